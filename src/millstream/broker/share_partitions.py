"""The shared partitions this broker leads: loaded when a group first reads them, kept as settings and topics say."""

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any
from uuid import UUID

from millstream.broker.controller import Controller
from millstream.broker.dead_letters import DeadLetters
from millstream.broker.group_coordinator import GroupCoordinator
from millstream.broker.led_share_partition import LedSharePartition
from millstream.broker.partition import Partition
from millstream.broker.partition_table import PartitionTable
from millstream.broker.share_coordinator import STATE_TOPIC, ShareCoordinator
from millstream.config import group_config
from millstream.config.errors import ConfigError
from millstream.config.group_config import BY_DURATION, GroupConfig
from millstream.config.iso_duration import parse_duration_ms
from millstream.config.table import share as share_settings
from millstream.config.table.topic import MILLSTREAM_DELIVERY_DELAY_MS
from millstream.coordinator.share.in_flight import ShareLimits
from millstream.coordinator.share.record_state import DeadLetter
from millstream.coordinator.share.share_group import ShareGroup
from millstream.coordinator.share.share_partition import SharePartition
from millstream.coordinator.share.share_state import UNINITIALIZED, ShareKey, ShareState
from millstream.environment import Environment
from millstream.metadata.image import ConfigResource, MetadataDelta, ResourceType
from millstream.model.errors import ErrorCode, KafkaError

NO_DELAY = -1

_log = logging.getLogger("millstream.share")


class SharePartitions:
    def __init__(
        self,
        controller: Controller,
        partitions: PartitionTable,
        coordinator: ShareCoordinator,
        groups: GroupCoordinator,
        environment: Environment,
    ) -> None:
        self.coordinator = coordinator
        self.environment = environment
        self._controller = controller
        self._partitions = partitions
        self._groups = groups
        self._dead_letters = DeadLetters(controller, partitions, environment)
        self._led: dict[ShareKey, LedSharePartition] = {}
        self._loading: dict[ShareKey, asyncio.Future[LedSharePartition]] = {}
        self._doomed: set[ShareKey] = set()
        """Whose state is of no use to anyone and still has to be deleted."""
        self._clearing = asyncio.Lock()
        self._background: set[asyncio.Future[Any]] = set()

    def config_of(self, group_id: str) -> GroupConfig:
        overrides = self._controller.image.configs.get(ConfigResource(ResourceType.GROUP, group_id), {})
        return GroupConfig(overrides, self._controller.config)

    # Finding and loading

    def loaded(self, key: ShareKey) -> LedSharePartition | None:
        return self._led.get(key)

    async def get(self, key: ShareKey) -> LedSharePartition:
        """The share-partition, loaded; KafkaError if this broker does not lead it or its state cannot be read."""
        led = self._led.get(key)
        if led is not None:
            return led
        loading = self._loading.get(key)
        if loading is None:
            loading = self._loading[key] = asyncio.ensure_future(self._load(key), loop=self.environment.loop)
            loading.add_done_callback(lambda done: self._loading.pop(key, None))
        return await asyncio.shield(loading)

    async def _load(self, key: ShareKey) -> LedSharePartition:
        partition = self.find(key)
        await self._check_kept(key)
        await self.clear(key)
        config = self.config_of(key.group_id)
        try:
            state = await self.coordinator.read(key, partition.leader_epoch)
        except KafkaError as error:
            if error.code is not ErrorCode.INVALID_REQUEST:
                raise
            await self.coordinator.initialize(key, 0, UNINITIALIZED)
            state = await self.coordinator.read(key, partition.leader_epoch)
        state = await self._cut_to_log(key, partition, state)
        start, state_epoch, batches = state.start_offset, state.state_epoch, state.batches
        if start == UNINITIALIZED:
            start = await self._first_offset(partition, config[group_config.SHARE_AUTO_OFFSET_RESET])
            # Written down at once: "latest" must mean the same after a restart.
            await self.coordinator.write(
                key,
                state_epoch=state_epoch,
                leader_epoch=partition.leader_epoch,
                start_offset=start,
                complete_count=0,
                batches=(),
            )
        delay_ms = self._delay_ms(partition.topic_partition.topic)
        machine = SharePartition(
            start,
            batches,
            self._limits(config),
            key_order=config[group_config.SHARE_KEY_ORDER],
            inspected=delay_ms != NO_DELAY,
        )
        led = self._led[key] = LedSharePartition(key, partition, machine, state_epoch, delay_ms, self)
        return led

    async def _cut_to_log(self, key: ShareKey, partition: Partition, state: ShareState) -> ShareState:
        """Takes back what is known of records that the log no longer has: their offsets will be those of others.

        A power cut may cost the log its last records after their acknowledgements reached the disk.
        """
        end = max(partition.log.log_end_offset, partition.high_watermark)
        batches = state.batches
        if state.start_offset <= end and (not batches or batches[-1].last < end):
            return state
        _log.warning("share_state_beyond_log key=%s start=%d log_end=%d", key, state.start_offset, end)
        left = [each._replace(last=min(each.last, end - 1)) for each in batches if each.first < end]
        await self.coordinator.initialize(key, state.state_epoch, min(state.start_offset, end), left)
        return await self.coordinator.read(key, partition.leader_epoch)

    async def _check_kept(self, key: ShareKey) -> None:
        """Whoever invents groups must not leave state behind: none is made but for what a group says it reads."""
        group = await self._groups.read(key.group_id, lambda shard: shard.groups.get(key.group_id))
        kept = group.kept.get(key.topic_id) if isinstance(group, ShareGroup) else None
        if kept is None or key.partition not in kept.partitions:
            # As Kafka says it: the state was never initialized.
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"share group {key.group_id} does not read partition {key.partition} of topic {key.topic_id}",
            )

    def find(self, key: ShareKey) -> Partition:
        topic = self._partitions.by_id.get(key.topic_id.bytes)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with the id {key.topic_id}")
        partition = topic.get(key.partition)
        if partition is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {key.partition} is not here")
        return partition

    async def _first_offset(self, partition: Partition, rule: str) -> int:
        log = partition.log
        if rule == "earliest":
            return log.log_start_offset
        if rule.startswith(BY_DURATION):
            since_ms = self.environment.clock.now_ms() - (parse_duration_ms(rule.removeprefix(BY_DURATION)) or 0)
            search = log.time_search()
            found = await self.environment.offload(lambda: search.offset_by_timestamp(since_ms))
            return partition.high_watermark if found is None else found.offset
        return partition.high_watermark

    def _limits(self, config: GroupConfig) -> ShareLimits:
        return ShareLimits(
            delivery_count=config[group_config.SHARE_DELIVERY_COUNT_LIMIT],
            lock_ms=config[group_config.SHARE_RECORD_LOCK_DURATION_MS],
            max_locks=config[group_config.SHARE_PARTITION_MAX_RECORD_LOCKS],
            max_deferred=self._controller.config[share_settings.MILLSTREAM_SHARE_PARTITION_MAX_DEFERRED_RECORDS],
            dead_letters=bool(config[group_config.ERRORS_DEADLETTERQUEUE_TOPIC_NAME]),
        )

    def _delay_ms(self, topic: str) -> int:
        text = self._controller.image.topic_config(topic).get(MILLSTREAM_DELIVERY_DELAY_MS.name)
        if text is None:
            return MILLSTREAM_DELIVERY_DELAY_MS.default
        try:
            return MILLSTREAM_DELIVERY_DELAY_MS.parse(text)
        except ConfigError:
            return NO_DELAY

    # Following the metadata

    def follow(self, delta: MetadataDelta) -> None:
        gone = {topic.id for topic in delta.deleted.values()}
        all_state = any(topic.name == STATE_TOPIC for topic in delta.deleted.values())
        for led in list(self._led.values()):
            if all_state or led.key.topic_id in gone:
                self.forget(led)
        if not delta.configs:
            return
        for led in list(self._led.values()):
            config = self.config_of(led.key.group_id)
            led.machine.limits = self._limits(config)
            delay_ms = self._delay_ms(led.partition.topic_partition.topic)
            if led.differs(config[group_config.SHARE_KEY_ORDER], delay_ms):
                self.forget(led)

    def reset(self, group_id: str, partitions: Iterable[tuple[UUID, int]]) -> None:
        """The persisted state was changed by an operator."""
        for topic_id, index in partitions:
            led = self._led.get(ShareKey(group_id, topic_id, index))
            if led is not None:
                self.forget(led)

    def forget(self, led: LedSharePartition) -> None:
        if self._led.get(led.key) is led:
            del self._led[led.key]
        led.drop()

    # In the background

    def state_gone(self, group_id: str, partitions: Iterable[tuple[UUID, int]]) -> None:
        """Whatever state there is of these belongs to nobody: the group or the topic is gone, or only now begins."""
        partitions = list(partitions)
        self.reset(group_id, partitions)
        keys = [ShareKey(group_id, topic_id, index) for topic_id, index in partitions]
        self._doomed.update(keys)
        self.in_background(self._delete(keys))

    async def _delete(self, keys: Sequence[ShareKey]) -> None:
        for key in keys:
            try:
                await self.clear(key)
            except KafkaError as error:
                _log.warning("share_state_not_deleted key=%s error=%s", key, error)
            await asyncio.sleep(0)  # others have their turn

    async def clear(self, key: ShareKey) -> None:
        """Returns when nothing is left of a group of the same name that was there before."""
        if key not in self._doomed:
            return
        async with self._clearing:  # or a second one would delete what the first has made room for
            if key in self._doomed:
                if STATE_TOPIC in self._controller.image.topics:
                    await self.coordinator.delete(key)
                self._doomed.discard(key)

    def bury(self, led: LedSharePartition, letters: Sequence[DeadLetter]) -> None:
        self.in_background(self._dead_letters.send(led, lambda: self.config_of(led.key.group_id), letters))

    def in_background(self, work: "Coroutine[Any, Any, None]") -> None:
        task = asyncio.ensure_future(work, loop=self.environment.loop)
        self._background.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: "asyncio.Future[Any]") -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("share_background_failed", exc_info=error)

    def close(self) -> None:
        for led in self._led.values():
            led.drop()
