"""The share coordinator: finds the partition of `__share_group_state` a share-partition's state lives in, and keeps it.

The topic is made when it is first needed. It is not compacted (updates build on each other): now and then everything
that lives in a partition is written out again as snapshots, and the log before them is cut off.
"""

import base64
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from millstream.broker.controller import Controller
from millstream.broker.coordinator_shell import CoordinatorShell
from millstream.broker.group_coordinator import java_hash
from millstream.broker.partition_table import PartitionTable
from millstream.config.table import share
from millstream.coordinator.outcome import CoordinatorRecord, Outcome
from millstream.coordinator.share.record_state import StateBatch
from millstream.coordinator.share.share_state import ShareKey, ShareState, ShareStateShard
from millstream.environment import Environment
from millstream.metadata.image import MetadataDelta
from millstream.metadata.topic_names import SHARE_GROUP_STATE_TOPIC
from millstream.metadata.topics import create_topics, internal_topic
from millstream.model.errors import ErrorCode, KafkaError
from millstream.model.identifiers import TopicName

STATE_TOPIC = TopicName(SHARE_GROUP_STATE_TOPIC)
_CHECKPOINT_RECORDS = 20_000
_CHECKPOINT_BATCH_BYTES = 256 << 10
_LARGEST_STATE_BYTES = 16 << 20

_log = logging.getLogger("millstream.share")
R = TypeVar("R")


class ShareCoordinator:
    def __init__(self, controller: Controller, partitions: PartitionTable, environment: Environment) -> None:
        self._controller = controller
        self._partitions = partitions
        self._environment = environment
        self._shells: dict[int, CoordinatorShell] = {}

    async def ensure_topic(self) -> None:
        """Makes `__share_group_state` unless it is there; COORDINATOR_NOT_AVAILABLE if that is not possible."""
        if STATE_TOPIC in self._controller.image.topics:
            return
        config = self._controller.config
        configs = {
            "cleanup.policy": "delete",
            "retention.ms": "-1",
            "retention.bytes": "-1",
            "compression.type": "producer",
            "max.message.bytes": str(_LARGEST_STATE_BYTES),
            "segment.bytes": str(config[share.SHARE_COORDINATOR_STATE_TOPIC_SEGMENT_BYTES]),
        }
        (result,) = await self._controller.decide(
            lambda image, config, randomness: create_topics(
                image,
                [
                    internal_topic(
                        STATE_TOPIC,
                        image,
                        config[share.SHARE_COORDINATOR_STATE_TOPIC_NUM_PARTITIONS],
                        config[share.SHARE_COORDINATOR_STATE_TOPIC_REPLICATION_FACTOR],
                        configs,
                    )
                ],
                config,
                randomness,
            )
        )
        if result.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            _log.error("internal_topic_not_created topic=%s error=%s", STATE_TOPIC, result.message)
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{STATE_TOPIC} cannot be made: {result.message}")

    def _shell(self, key: ShareKey) -> CoordinatorShell:
        topic = self._controller.image.topics.get(STATE_TOPIC)
        if topic is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{STATE_TOPIC} does not exist yet")
        index = java_hash(coordinator_key(key)) % len(topic.partitions)
        shell = self._shells.get(index)
        if shell is None:
            try:
                partition = self._partitions.find(STATE_TOPIC, index)
            except KafkaError:
                raise KafkaError(ErrorCode.NOT_COORDINATOR, "another broker keeps this state") from None
            updates = self._controller.config[share.SHARE_COORDINATOR_SNAPSHOT_UPDATE_RECORDS_PER_SNAPSHOT]
            shell = self._shells[index] = CoordinatorShell(partition, ShareStateShard(updates), self._environment)
        return shell

    async def _run(self, key: ShareKey, operation: "Callable[[ShareStateShard, int], Outcome[R]]") -> R:
        if STATE_TOPIC not in self._controller.image.topics:
            await self.ensure_topic()
        shell = self._shell(key)
        await self._load(shell)
        shard = _shard(shell)
        answer = await shell.run(lambda now_ms: operation(shard, now_ms))
        if shard.records_since_checkpoint > max(_CHECKPOINT_RECORDS, 4 * len(shard.states)):
            await self._checkpoint(shell)
        return answer

    async def _load(self, shell: CoordinatorShell) -> None:
        if shell.is_loaded:
            return
        try:
            await shell.load()
        except Exception as error:
            at = shell.partition.topic_partition
            if self._shells.get(at.partition) is shell:
                del self._shells[at.partition]  # the next request begins anew
            if not isinstance(error, KafkaError):
                raise
            _log.error("share_state_not_loaded partition=%s error=%s", at, error)
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{at}: {error}") from None

    async def initialize(
        self, key: ShareKey, state_epoch: int, start_offset: int, batches: Sequence[StateBatch] = ()
    ) -> None:
        await self._run(key, lambda shard, now_ms: shard.initialize(key, state_epoch, start_offset, now_ms, batches))

    async def read(self, key: ShareKey, leader_epoch: int) -> ShareState:
        """The state as its leader needs it; INVALID_REQUEST if there is none."""
        return await self._run(key, lambda shard, now_ms: shard.read(key, leader_epoch, now_ms))

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

    async def summary(self, key: ShareKey) -> ShareState | None:
        return await self._run(key, lambda shard, now_ms: Outcome(shard.summary(key)))

    async def _checkpoint(self, shell: CoordinatorShell) -> None:
        """Nothing else runs in between: a loaded shell answers without waiting."""
        shard, log = _shard(shell), shell.partition.log
        begin = log.log_end_offset
        now_ms = self._environment.clock.now_ms()
        try:
            for records in _in_batches(shard.checkpoint(now_ms).records):
                await shell.run(lambda now_ms, records=records: Outcome(None, records))  # type: ignore[misc]
        except KafkaError:
            return  # logged where it happened; the next write tries again
        shard.records_since_checkpoint = 0

        def flushed(error: KafkaError | None) -> None:
            # Until the snapshots are on disk, what they replace must stay: a power cut may take them.
            if error is not None or self._shells.get(shell.partition.topic_partition.partition) is not shell:
                return
            log.delete_records_before(begin)
            _log.info(
                "share_state_checkpoint partition=%s states=%d", shell.partition.topic_partition, len(shard.states)
            )

        shell.partition.when_flushed(log.log_end_offset, flushed)

    def follow(self, delta: MetadataDelta) -> None:
        if any(topic.name == STATE_TOPIC for topic in delta.deleted.values()):
            self.close()
            self._shells.clear()

    def close(self) -> None:
        for shell in self._shells.values():
            shell.close()


def coordinator_key(key: ShareKey) -> str:
    """As FindCoordinator spells it, and as it is hashed: group, topic id in Kafka's base 64, partition."""
    topic_id = base64.urlsafe_b64encode(key.topic_id.bytes).decode().rstrip("=")
    return f"{key.group_id}:{topic_id}:{key.partition}"


def _shard(shell: CoordinatorShell) -> ShareStateShard:
    assert isinstance(shell.state, ShareStateShard)
    return shell.state


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
