"""The group coordinator: runs operations on a group's partition of `__consumer_offsets`.

The internal topic is created when it is first needed. The state machine is `core/shard.py`; its runtime is
`coordination/runtime.py`. The APIs are in `handlers.py`, those of streams groups in `streams.py`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from millstream.config.table import groups as settings
from millstream.config.table import transactions
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import Marker, TopicName, VerificationGuard
from millstream.node.cluster.cluster_view import ClusterView
from millstream.node.cluster.topic_creation import InternalTopics
from millstream.node.coordination.core.state_machine import (
    CoordinatorResult,
    DeferredResponse,
    ImageTopics,
)
from millstream.node.coordination.runtime import CoordinatorRuntime, CoordinatorShards, java_hash
from millstream.node.environment import Environment
from millstream.node.groups.core.group import MAX_TEXT_LENGTH
from millstream.node.groups.core.shard import GroupShard
from millstream.node.groups.core.share_groups import Partitions
from millstream.node.metadata.image import ConfigResource, MetadataDelta, ResourceType
from millstream.node.metadata.topic_names import CONSUMER_OFFSETS_TOPIC
from millstream.node.replicas.partition import Partition
from millstream.node.replicas.partition_table import PartitionTable
from millstream.node.server.request import LaterResponse, Response
from millstream.node.storage.opening_limits import replay_limits

_MARKER_ERRORS = {
    ErrorCode.NOT_COORDINATOR: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.NOT_ENOUGH_REPLICAS,
}
_log = logging.getLogger("millstream.groups")
R = TypeVar("R")
OnShareState = Callable[[GroupShard, str, Partitions, Partitions], None]


class GroupCoordinator:
    """Runs operations of the groups that this broker coordinates."""

    def __init__(
        self,
        view: ClusterView,
        partitions: PartitionTable,
        internal_topics: InternalTopics,
        environment: Environment,
    ) -> None:
        self._view = view
        self._internal_topics = internal_topics
        self._environment = environment
        self.topics = ImageTopics(lambda: view.image)
        self._shards = CoordinatorShards(CONSUMER_OFFSETS_TOPIC, partitions, environment, self._new_runtime, _log)
        self._shards.on_closed = lambda runtime: self.on_shard_closed(_shard(runtime))
        self.on_share_state: OnShareState = lambda shard, group_id, begun, gone: None
        """Called with partitions whose share state a group needs, and does not need any more, once that is committed.
        """
        self.on_shard_closed: Callable[[GroupShard], None] = lambda shard: None

    # The partition of a group

    async def ensure_topic(self) -> None:
        """Creates `__consumer_offsets` unless it exists; COORDINATOR_NOT_AVAILABLE if that fails."""
        if CONSUMER_OFFSETS_TOPIC in self._view.image.topics:
            return
        config = self._view.config
        await self._internal_topics.ensure(
            CONSUMER_OFFSETS_TOPIC,
            config[settings.OFFSETS_TOPIC_NUM_PARTITIONS],
            config[settings.OFFSETS_TOPIC_REPLICATION_FACTOR],
            {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(config[settings.OFFSETS_TOPIC_SEGMENT_BYTES]),
            },
        )

    def partition_of(self, group_id: str) -> int:
        """The partition of CONSUMER_OFFSETS_TOPIC whose leader coordinates the group."""
        topic = self._view.image.topics.get(CONSUMER_OFFSETS_TOPIC)
        if topic is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{CONSUMER_OFFSETS_TOPIC} does not exist yet")
        if len(group_id) > MAX_TEXT_LENGTH:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, f"the group id is longer than {MAX_TEXT_LENGTH} characters")
        return java_hash(group_id) % len(topic.partitions)

    def _new_runtime(self, partition: Partition) -> CoordinatorRuntime:
        view = self._view
        shard = GroupShard(lambda: view.config, self.topics, self._environment.randomness, self._settings_of_group)
        runtime = CoordinatorRuntime(
            partition,
            shard,
            self._environment,
            on_replayed=shard.replayed,
            participant=shard,
            commit_timeout_ms=lambda: view.config[settings.OFFSETS_COMMIT_TIMEOUT_MS],
            needs_guard=lambda: view.config[transactions.TRANSACTION_PARTITION_VERIFICATION_ENABLE],
            limits=lambda: replay_limits(view.config),
        )

        def share_state(group_id: str, begun: Partitions, gone: Partitions) -> None:
            runtime.when_settled(lambda: self.on_share_state(shard, group_id, begun, gone))

        shard.share.on_state = share_state
        return runtime

    def _settings_of_group(self, group_id: str) -> Mapping[str, str]:
        return self._view.image.configs.get(ConfigResource(ResourceType.GROUP, group_id), {})

    # Operations

    def respond(
        self,
        group_id: str,
        operation: "Callable[[GroupShard, int], CoordinatorResult[R]]",
        refuse: "Callable[[KafkaError], R]",
    ) -> "R | Awaitable[R]":
        """As `run`, but responds without a task if it can. `refuse` makes the response for a refused request."""
        runtime = self._loaded_runtime(group_id)
        if runtime is None:
            return self._respond_later(group_id, operation, refuse)
        shard = _shard(runtime)
        response: R | DeferredResponse[R]
        try:
            response = runtime.run_now(lambda now_ms: operation(shard, now_ms))
        except KafkaError as error:
            response = refuse(error)
        if isinstance(response, DeferredResponse) or not runtime.is_settled:
            return _resolved_or_refused(runtime, response, refuse)
        return response

    def commit(
        self,
        group_id: str,
        operation: "Callable[[GroupShard, int], CoordinatorResult[dict[str, Any]]]",
        refuse: Callable[[KafkaError], dict[str, Any]],
    ) -> Response | Awaitable[Response]:
        """As `respond`, for a commit of offsets: its records are written with those of other commits of this turn."""
        runtime = self._loaded_runtime(group_id)
        if runtime is None:
            return self._respond_later(group_id, operation, refuse)
        shard = _shard(runtime)
        if group_id not in shard.groups:
            runtime.write_gathered()  # maybe the first commit of the group, which makes it
        response: dict[str, Any]
        try:
            result = runtime.decide(lambda now_ms: operation(shard, now_ms))
        except KafkaError as error:
            response = refuse(error)
        else:
            assert isinstance(result.response, dict), "a commit has its response at once"
            response = result.response
            if result.records:
                later = LaterResponse()

                def done(error: KafkaError | None) -> None:
                    later.resolve(response if error is None else refuse(error))

                runtime.gather(result.records, done)
                return later
        return response if runtime.is_settled else _resolved_or_refused(runtime, response, refuse)

    def _loaded_runtime(self, group_id: str) -> CoordinatorRuntime | None:
        topic = self._view.image.topics.get(CONSUMER_OFFSETS_TOPIC)
        if topic is None or len(group_id) > MAX_TEXT_LENGTH:
            return None
        runtime = self._shards.runtimes.get(java_hash(group_id) % len(topic.partitions))
        return runtime if runtime is not None and runtime.is_loaded and runtime.is_current else None

    async def _respond_later(
        self,
        group_id: str,
        operation: "Callable[[GroupShard, int], CoordinatorResult[R]]",
        refuse: "Callable[[KafkaError], R]",
    ) -> R:
        try:
            return await self.run(group_id, operation)
        except KafkaError as error:
            return refuse(error)

    async def run(self, group_id: str, operation: "Callable[[GroupShard, int], CoordinatorResult[R]]") -> R:
        """Runs an operation on the shard of a group, and waits for its response. KafkaError if it is refused."""
        return await self.run_in(await self.runtime_of(group_id), operation)

    async def run_in(
        self,
        runtime: CoordinatorRuntime,
        operation: "Callable[[GroupShard, int], CoordinatorResult[R]]",
        guard: VerificationGuard | None = None,
    ) -> R:
        shard = _shard(runtime)
        return await runtime.run(lambda now_ms: operation(shard, now_ms), guard)

    async def read(self, group_id: str, read_state: "Callable[[GroupShard], R]") -> R:
        """Reads from the shard of a group."""
        return await self.run(group_id, lambda shard, now_ms: CoordinatorResult(read_state(shard)))

    async def runtime_of(self, group_id: str) -> CoordinatorRuntime:
        """The loaded runtime of a group's partition; KafkaError if this broker does not coordinate the group."""
        await self.ensure_topic()
        return await self._shards.loaded(self.partition_of(group_id))

    async def end_transaction(self, index: int, marker: Marker) -> None:
        """Writes a marker to a partition of CONSUMER_OFFSETS_TOPIC in which offsets were committed in a transaction.

        Returns when the marker is committed. Errors are those of a partition leader, which the transaction coordinator
        expects.
        """
        try:
            runtime = await self._shards.loaded(index)
            await runtime.end_transaction(marker)
        except KafkaError as error:
            raise KafkaError(_MARKER_ERRORS.get(error.code, error.code), error.message) from error

    async def learn_pattern(self, group_id: str, text: str) -> None:
        """Matches the topics with an expression in a thread, before the heartbeat needs the result."""
        if len(text) > MAX_TEXT_LENGTH:
            return
        shard = _shard(await self.runtime_of(group_id))
        pattern = shard.consumer.patterns.get(text)
        names = pattern.unknown(self.topics)
        if names:
            await self._environment.offload(partial(pattern.learn, names))

    async def read_all(self, read_state: "Callable[[GroupShard], R]") -> list[R]:
        """Reads from all shards of this broker; empty if CONSUMER_OFFSETS_TOPIC does not exist."""
        responses = []
        for index in self._shards.led_partitions():
            try:
                runtime = await self._shards.loaded(index)
                responses.append(await runtime.resolved(read_state(_shard(runtime))))
                await asyncio.sleep(0)  # let other tasks run
            except KafkaError as error:
                if error.code != ErrorCode.NOT_COORDINATOR:
                    raise  # otherwise another broker leads it now, and responds for it
        return responses

    def loaded_shards(self) -> list[GroupShard]:
        """The shards that are loaded now, for reading."""
        return [_shard(runtime) for runtime in self._shards.all_loaded()]

    async def run_on(self, shard: GroupShard, operation: "Callable[[int], CoordinatorResult[R]]") -> R:
        """Runs an operation on this shard; NOT_COORDINATOR if it was closed."""
        for runtime in self._shards.runtimes.values():
            if runtime.state is shard:
                return await runtime.run(operation)
        raise KafkaError(ErrorCode.NOT_COORDINATOR, "this broker has closed the shard")

    # Life cycle

    def start(self) -> None:
        """Loads, in the background, the shards that this broker leads."""
        self._shards.start()

    def follow(self, delta: MetadataDelta) -> None:
        """Follows changes of topics and their leaders."""
        self._shards.follow(delta)
        if not (delta.deleted or delta.created or delta.changed):
            return
        deleted = frozenset(topic.name for topic in delta.deleted.values())
        for runtime in self._shards.runtimes.values():
            self._shards.in_background(self._topics_changed(runtime, deleted))

    async def _topics_changed(self, runtime: CoordinatorRuntime, deleted: frozenset[TopicName]) -> None:
        try:
            await runtime.run(lambda now_ms: _shard(runtime).topics_changed(deleted, now_ms))
        except KafkaError as error:
            if error.code != ErrorCode.NOT_COORDINATOR:
                _log.error("topics_not_followed partition=%s error=%s", runtime.partition.topic_partition, error)
        except Exception as error:  # loading failed
            _log.error("topics_not_followed partition=%s error=%r", runtime.partition.topic_partition, error)

    def close(self) -> None:
        """Closes all shards. Waiting requests get NOT_COORDINATOR."""
        self._shards.close()


async def _resolved_or_refused(
    runtime: CoordinatorRuntime, response: "R | DeferredResponse[R]", refuse: "Callable[[KafkaError], R]"
) -> R:
    try:
        return await runtime.resolved(response)
    except KafkaError as error:
        return refuse(error)


def _shard(runtime: CoordinatorRuntime) -> GroupShard:
    assert isinstance(runtime.state, GroupShard)
    return runtime.state
