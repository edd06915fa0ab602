"""The share coordinator: keeps the state of share-partitions in `__share_group_state`.

The topic is created when it is first needed; a partition of it is loaded when it is first used. The topic is not
compacted, because updates build on each other. From time to time all states of a partition are written again as
snapshots, and the log before them is deleted.
"""

import asyncio
import base64
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from millstream.config.table import share
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.cluster.cluster_view import ClusterView
from millstream.node.cluster.topic_creation import InternalTopics
from millstream.node.coordination.core.state_machine import CoordinatorRecord, CoordinatorResult
from millstream.node.coordination.runtime import CoordinatorRuntime, java_hash
from millstream.node.environment import Environment
from millstream.node.metadata.image import MetadataDelta
from millstream.node.metadata.topic_names import SHARE_GROUP_STATE_TOPIC
from millstream.node.queues.core.runs import StateBatch
from millstream.node.queues.core.state import ShareKey, ShareState, ShareStateShard
from millstream.node.replicas.partition_table import PartitionTable
from millstream.node.storage.opening_limits import replay_limits

_LOAD_TIMEOUT_SECONDS = 5.0
_CHECKPOINT_RECORDS = 20_000
_CHECKPOINT_BATCH_BYTES = 256 << 10
_MAX_STATE_BYTES = 16 << 20

_log = logging.getLogger("millstream.share")
R = TypeVar("R")


class StoredState(NamedTuple):
    """The state of a share-partition at one moment."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    complete_count: int
    batches: list[StateBatch]


class ShareCoordinator:
    def __init__(
        self,
        view: ClusterView,
        partitions: PartitionTable,
        internal_topics: InternalTopics,
        environment: Environment,
    ) -> None:
        self._view = view
        self._partitions = partitions
        self._internal_topics = internal_topics
        self._environment = environment
        self._runtimes: dict[int, CoordinatorRuntime] = {}

    # The partition of a state

    async def ensure_topic(self) -> None:
        """Creates `__share_group_state` unless it exists; COORDINATOR_NOT_AVAILABLE if that fails."""
        if SHARE_GROUP_STATE_TOPIC in self._view.image.topics:
            return
        config = self._view.config
        await self._internal_topics.ensure(
            SHARE_GROUP_STATE_TOPIC,
            config[share.SHARE_COORDINATOR_STATE_TOPIC_NUM_PARTITIONS],
            config[share.SHARE_COORDINATOR_STATE_TOPIC_REPLICATION_FACTOR],
            {
                "cleanup.policy": "delete",
                "retention.ms": "-1",
                "retention.bytes": "-1",
                "compression.type": "producer",
                "max.message.bytes": str(_MAX_STATE_BYTES),
                "segment.bytes": str(config[share.SHARE_COORDINATOR_STATE_TOPIC_SEGMENT_BYTES]),
            },
        )

    def partition_of(self, key: ShareKey) -> int:
        """The partition of SHARE_GROUP_STATE_TOPIC whose leader keeps the state."""
        return self.partition_of_text(coordinator_key(key))

    def partition_of_text(self, key: str) -> int:
        """The same for a key in the format of FindCoordinator."""
        topic = self._view.image.topics.get(SHARE_GROUP_STATE_TOPIC)
        if topic is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{SHARE_GROUP_STATE_TOPIC} does not exist yet")
        return java_hash(key) % len(topic.partitions)

    def leader_of(self, key: ShareKey) -> int:
        """The broker that keeps the state; -1 if there is none now."""
        index = self.partition_of(key)
        return self._view.image.topics[SHARE_GROUP_STATE_TOPIC].partitions[index].leader

    def _runtime(self, key: ShareKey) -> CoordinatorRuntime:
        index = self.partition_of(key)
        runtime = self._runtimes.get(index)
        if runtime is not None and runtime.is_current:
            return runtime
        if runtime is not None:
            self._close(index, runtime)
        partition = self._partitions.by_name.get(SHARE_GROUP_STATE_TOPIC.encode(), {}).get(index)
        if partition is None or not partition.is_leader:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, "another broker keeps this state")
        config = self._view.config
        created = CoordinatorRuntime(
            partition,
            ShareStateShard(config[share.SHARE_COORDINATOR_SNAPSHOT_UPDATE_RECORDS_PER_SNAPSHOT]),
            self._environment,
            commit_timeout_ms=lambda: self._view.config[share.SHARE_COORDINATOR_WRITE_TIMEOUT_MS],
            limits=lambda: replay_limits(self._view.config),
        )
        created.on_lost = lambda: self._close(index, created)
        self._runtimes[index] = created
        return created

    def _close(self, index: int, runtime: CoordinatorRuntime) -> None:
        if self._runtimes.get(index) is runtime:
            del self._runtimes[index]
        runtime.close()

    # Operations

    async def _run(self, key: ShareKey, operation: "Callable[[ShareStateShard, int], CoordinatorResult[R]]") -> R:
        if SHARE_GROUP_STATE_TOPIC not in self._view.image.topics:
            await self.ensure_topic()
        runtime = self._runtime(key)
        await self._load(runtime)
        shard = _shard(runtime)
        response = await runtime.run(lambda now_ms: operation(shard, now_ms))
        if shard.records_since_checkpoint > max(_CHECKPOINT_RECORDS, 4 * len(shard.states)):
            await self._checkpoint(runtime)
        return response

    async def _load(self, runtime: CoordinatorRuntime) -> None:
        if runtime.is_loaded:
            return
        at = runtime.partition.topic_partition
        try:
            async with asyncio.timeout(_LOAD_TIMEOUT_SECONDS):
                await runtime.load()
        except TimeoutError:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{at} is loading") from None
        except Exception as error:
            self._close(at.partition, runtime)  # the next request loads it again
            if not isinstance(error, KafkaError) or error.code == ErrorCode.NOT_COORDINATOR:
                raise
            _log.error("share_state_not_loaded partition=%s error=%s", at, error)
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{at}: {error}") from None

    async def initialize(self, key: ShareKey, state_epoch: int, start_offset: int) -> None:
        await self._run(key, lambda shard, now_ms: shard.initialize(key, state_epoch, start_offset, now_ms))

    async def read(self, key: ShareKey, leader_epoch: int) -> StoredState:
        """The state for a share-partition leader; INVALID_REQUEST if there is none."""

        def read(shard: ShareStateShard, now_ms: int) -> CoordinatorResult[StoredState]:
            outcome = shard.read(key, leader_epoch, now_ms)
            assert isinstance(outcome.response, ShareState)
            return CoordinatorResult(_stored(outcome.response), outcome.records)

        return await self._run(key, read)

    async def write(
        self,
        key: ShareKey,
        *,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        complete_count: int,
        batches: Sequence[StateBatch],
    ) -> None:
        await self._run(
            key,
            lambda shard, now_ms: shard.write(
                key,
                state_epoch=state_epoch,
                leader_epoch=leader_epoch,
                start_offset=start_offset,
                complete_count=complete_count,
                batches=batches,
                now_ms=now_ms,
            ),
        )

    async def delete(self, key: ShareKey) -> None:
        await self._run(key, lambda shard, now_ms: shard.delete(key))

    async def summary(self, key: ShareKey) -> StoredState | None:
        def summary(shard: ShareStateShard, now_ms: int) -> CoordinatorResult[StoredState | None]:
            state = shard.summary(key)
            return CoordinatorResult(None if state is None else _stored(state))

        return await self._run(key, summary)

    async def _checkpoint(self, runtime: CoordinatorRuntime) -> None:
        shard, log = _shard(runtime), runtime.partition.log
        begin = log.log_end_offset
        now_ms = self._environment.clock.now_ms()
        try:
            # Without a pause: an update in between would belong to a snapshot that is not the last one.
            for records in _in_batches(shard.checkpoint(now_ms).records):
                runtime.run_now(lambda now_ms, records=records: CoordinatorResult(None, records))  # type: ignore[misc]
            shard.records_since_checkpoint = 0
            end = log.log_end_offset
            await runtime.settled()
        except KafkaError:
            return  # already logged; the next write retries

        def flushed(error: KafkaError | None) -> None:
            # The log before the snapshots stays until they are flushed: a power failure may lose them.
            if error is not None or not runtime.is_current:
                return
            log.delete_records_before(begin)
            _log.info(
                "share_state_checkpoint partition=%s states=%d", runtime.partition.topic_partition, len(shard.states)
            )

        runtime.partition.when_flushed(end, flushed)

    # Life cycle

    def follow(self, delta: MetadataDelta) -> None:
        """Closes runtimes of partitions that this broker does not lead any more; new ones are loaded on first use."""
        for index, runtime in tuple(self._runtimes.items()):
            if not runtime.is_current:
                self._close(index, runtime)

    def close(self) -> None:
        for index, runtime in tuple(self._runtimes.items()):
            self._close(index, runtime)


def _stored(state: ShareState) -> StoredState:
    return StoredState(
        state.state_epoch, state.leader_epoch, state.start_offset, state.complete_count, list(state.batches)
    )


def coordinator_key(key: ShareKey) -> str:
    """The key of FindCoordinator, which is also hashed: group, topic id in Kafka's base 64, partition."""
    topic_id = base64.urlsafe_b64encode(key.topic_id.bytes).decode().rstrip("=")
    return f"{key.group_id}:{topic_id}:{key.partition}"


def _shard(runtime: CoordinatorRuntime) -> ShareStateShard:
    assert isinstance(runtime.state, ShareStateShard)
    return runtime.state


def _in_batches(records: Sequence[CoordinatorRecord]) -> list[list[CoordinatorRecord]]:
    batches: list[list[CoordinatorRecord]] = []
    size = _CHECKPOINT_BATCH_BYTES
    for record in records:
        if size >= _CHECKPOINT_BATCH_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(record)
        size += len(record.key) + len(record.value or b"")
    return batches
