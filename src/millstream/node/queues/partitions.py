"""The share-partition leaders on this broker: loads them when a group first reads, and follows settings and topics."""

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any
from uuid import UUID

from millstream.common.background_tasks import BackgroundTasks
from millstream.common.quantities import parse_iso_duration_ms
from millstream.config import group_config
from millstream.config.group_config import BY_DURATION, READ_COMMITTED, GroupConfig
from millstream.config.setting import ConfigError
from millstream.config.table import share as share_settings
from millstream.config.table.topic import MILLSTREAM_DELIVERY_DELAY_MS
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicId
from millstream.formats.records.opening import OpeningLimits
from millstream.node.cluster.cluster_view import ClusterView
from millstream.node.environment import Environment
from millstream.node.metadata.image import ConfigResource, MetadataDelta, ResourceType
from millstream.node.metadata.topic_names import SHARE_GROUP_STATE_TOPIC
from millstream.node.queues.coordinator import StoredState
from millstream.node.queues.core.in_flight import ShareLimits
from millstream.node.queues.core.partition import SharePartition
from millstream.node.queues.core.runs import DeadLetter, RecordState
from millstream.node.queues.core.state import UNINITIALIZED, ShareKey, next_epoch
from millstream.node.queues.dead_letters import DeadLetters
from millstream.node.queues.leader import SharePartitionLeader
from millstream.node.queues.persister import SharePersister
from millstream.node.replicas.partition import Partition
from millstream.node.replicas.partition_table import PartitionTable
from millstream.node.storage.opening_limits import opening_limits

NO_DELAY = -1

_log = logging.getLogger("millstream.share")


class SharePartitions:
    def __init__(
        self,
        view: ClusterView,
        partitions: PartitionTable,
        persister: SharePersister,
        dead_letters: DeadLetters,
        environment: Environment,
    ) -> None:
        self.persister = persister
        self.environment = environment
        self._view = view
        self._partitions = partitions
        self._dead_letters = dead_letters
        self._leaders: dict[ShareKey, SharePartitionLeader] = {}
        self._loading: dict[ShareKey, asyncio.Future[SharePartitionLeader]] = {}
        self._background = BackgroundTasks(lambda error: _log.error("share_background_failed", exc_info=error))

    def opening_limits(self) -> OpeningLimits:
        """Limits for batches whose records are inspected."""
        return opening_limits(self._view.config)

    def config_of(self, group_id: str) -> GroupConfig:
        overrides = self._view.image.configs.get(ConfigResource(ResourceType.GROUP, group_id), {})
        return GroupConfig(overrides, self._view.config)

    # Loading

    def leaders(self) -> list[SharePartitionLeader]:
        """All loaded share-partition leaders."""
        return list(self._leaders.values())

    def loaded(self, key: ShareKey) -> SharePartitionLeader | None:
        return self._leaders.get(key)

    async def get(self, key: ShareKey) -> SharePartitionLeader:
        """The loaded share-partition leader; KafkaError if this broker does not lead the partition, or its state cannot
        be read."""
        leader = self._leaders.get(key)
        if leader is not None:
            return leader
        loading = self._loading.get(key)
        if loading is None:
            loading = self._loading[key] = asyncio.ensure_future(self._load(key), loop=self.environment.loop)
            loading.add_done_callback(lambda done: self._loading.pop(key, None))
        return await asyncio.shield(loading)

    async def _load(self, key: ShareKey) -> SharePartitionLeader:
        partition = self.find(key)
        leader_epoch = partition.leader_epoch
        _ = partition.log  # opens the log, which loads the high watermark
        config = self.config_of(key.group_id)
        try:
            state = await self.persister.read(key, leader_epoch)
        except KafkaError as error:
            if error.code is not ErrorCode.INVALID_REQUEST:
                raise
            # Kafka's error for a state that was never initialized.
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"share group {key.group_id} does not read partition {key.partition} of topic {key.topic_id}",
            ) from None
        state = await self._cut_to_log(key, partition, state)
        start = state.start_offset
        if start == UNINITIALIZED:
            start = await self._first_offset(partition, config[group_config.SHARE_AUTO_OFFSET_RESET])
            # Written at once, so that "latest" means the same after a restart.
            await self.persister.write(
                key,
                state_epoch=state.state_epoch,
                leader_epoch=leader_epoch,
                start_offset=start,
                complete_count=0,
                batches=(),
            )
        if not partition.is_leader or partition.leader_epoch != leader_epoch:
            raise partition.not_leader()
        delay_ms = self._delay_ms(partition.topic_partition.topic)
        machine = SharePartition(
            start,
            state.batches,
            self._limits(config),
            key_order=config[group_config.SHARE_KEY_ORDER],
            inspected=delay_ms != NO_DELAY,
        )
        leader = self._leaders[key] = SharePartitionLeader(
            key, partition, machine, state.state_epoch, delay_ms, self, only_committed=_only_committed(config)
        )
        return leader

    async def _cut_to_log(self, key: ShareKey, partition: Partition, state: StoredState) -> StoredState:
        """Removes the state of records that the log has lost: other records will get their offsets.

        A power failure, or an unclean leader election, may lose the last records after their acknowledgements were
        written.
        """
        end = max(partition.log.log_end_offset, partition.high_watermark)
        batches = state.batches
        if state.start_offset <= end and (not batches or batches[-1].last < end):
            return state
        _log.warning("share_state_beyond_log key=%s start=%d log_end=%d", key, state.start_offset, end)
        left = [each._replace(last=min(each.last, end - 1)) for each in batches if each.first < end]
        epoch, start = next_epoch(state.state_epoch), min(state.start_offset, end)
        await self.persister.initialize(key, epoch, start)
        await self.persister.write(
            key,
            state_epoch=epoch,
            leader_epoch=partition.leader_epoch,
            start_offset=UNINITIALIZED,
            complete_count=sum(each.last - each.first + 1 for each in left if RecordState(each.state).final),
            batches=left,
        )
        return await self.persister.read(key, partition.leader_epoch)

    def find(self, key: ShareKey) -> Partition:
        """The partition, if this broker leads it."""
        partition = self._partitions.by_id.get(key.topic_id.bytes, {}).get(key.partition)
        if partition is not None and partition.is_leader:
            return partition
        topic = self._view.image.topics_by_id.get(TopicId(key.topic_id))
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with the id {key.topic_id}")
        if not 0 <= key.partition < len(topic.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {key.partition} does not exist")
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"another broker leads partition {key.partition}")

    def leader(self, at: tuple[UUID, int]) -> tuple[int, int]:
        """The leader of a partition and its epoch, from the metadata; -1 if there is none."""
        topic = self._view.image.topics_by_id.get(TopicId(at[0]))
        if topic is None or not 0 <= at[1] < len(topic.partitions):
            return -1, -1
        state = topic.partitions[at[1]]
        return state.leader, state.leader_epoch

    async def _first_offset(self, partition: Partition, rule: str) -> int:
        log = partition.log
        if rule == "earliest":
            return log.log_start_offset
        if rule.startswith(BY_DURATION):
            since_ms = self.environment.clock.now_ms() - (parse_iso_duration_ms(rule.removeprefix(BY_DURATION)) or 0)
            search = log.time_search(self.opening_limits())
            found = await self.environment.open_in_turn(lambda: search.offset_by_timestamp(since_ms))
            return partition.high_watermark if found is None else found.offset
        return partition.high_watermark

    def _limits(self, config: GroupConfig) -> ShareLimits:
        return ShareLimits(
            delivery_count=config[group_config.SHARE_DELIVERY_COUNT_LIMIT],
            lock_ms=config[group_config.SHARE_RECORD_LOCK_DURATION_MS],
            max_locks=config[group_config.SHARE_PARTITION_MAX_RECORD_LOCKS],
            max_deferred=self._view.config[share_settings.MILLSTREAM_SHARE_PARTITION_MAX_DEFERRED_RECORDS],
            dead_letters=bool(config[group_config.ERRORS_DEADLETTERQUEUE_TOPIC_NAME]),
        )

    def _delay_ms(self, topic: str) -> int:
        text = self._view.image.topic_config(topic).get(MILLSTREAM_DELIVERY_DELAY_MS.name)
        if text is None:
            return MILLSTREAM_DELIVERY_DELAY_MS.default
        try:
            return MILLSTREAM_DELIVERY_DELAY_MS.parse(text)
        except ConfigError:
            return NO_DELAY

    # Changes of the metadata

    def follow(self, delta: MetadataDelta) -> None:
        gone = {topic.id for topic in delta.deleted.values()}
        all_state = any(topic.name == SHARE_GROUP_STATE_TOPIC for topic in delta.deleted.values())
        for leader in list(self._leaders.values()):
            if all_state or leader.key.topic_id in gone or not leader.is_current:
                self.forget(leader)
        if not delta.configs:
            return
        for leader in list(self._leaders.values()):
            config = self.config_of(leader.key.group_id)
            leader.machine.limits = self._limits(config)
            leader.only_committed = _only_committed(config)
            delay_ms = self._delay_ms(leader.partition.topic_partition.topic)
            if leader.differs(config[group_config.SHARE_KEY_ORDER], delay_ms):
                self.forget(leader)

    def reset(self, group_id: str, partitions: Iterable[tuple[UUID, int]]) -> None:
        """The persisted state was replaced."""
        for topic_id, index in partitions:
            leader = self._leaders.get(ShareKey(group_id, topic_id, index))
            if leader is not None:
                self.forget(leader)

    def forget(self, leader: SharePartitionLeader) -> None:
        if self._leaders.get(leader.key) is leader:
            del self._leaders[leader.key]
        leader.drop()

    # In the background

    def write_dead_letters(self, leader: SharePartitionLeader, letters: Sequence[DeadLetter]) -> None:
        self.in_background(self._dead_letters.send(leader, lambda: self.config_of(leader.key.group_id), letters))

    def in_background(self, work: "Coroutine[Any, Any, None]") -> None:
        self._background.start(work, loop=self.environment.loop)

    def close(self) -> None:
        for leader in self._leaders.values():
            leader.drop()


def _only_committed(config: GroupConfig) -> bool:
    return bool(config[group_config.SHARE_ISOLATION_LEVEL] == READ_COMMITTED)
