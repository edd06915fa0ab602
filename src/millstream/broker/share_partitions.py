"""The shared partitions this broker leads: what lies in the log meets who asks for it.

`SharePartitions` loads the state of a share-partition when a group first reads it, and follows changes of settings and
topics. `LedSharePartition` is one of them: it hands out stretches of the log (whole batches, as a fetch does) together
with the offsets in them that a member acquired, persists what members say of these, and lets locks expire. All
decisions are in `coordinator/share/share_partition.py`.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from millstream.broker.batch_walk import BatchPlace, walk_batches
from millstream.broker.controller import Controller
from millstream.broker.dead_letters import DeadLetters
from millstream.broker.environment import Environment
from millstream.broker.partition import Partition, Waiter
from millstream.broker.partition_table import PartitionTable
from millstream.broker.share_coordinator import ShareCoordinator
from millstream.broker.share_inspection import inspect
from millstream.config import group_config
from millstream.config.errors import ConfigError
from millstream.config.group_config import BY_DURATION, GroupConfig
from millstream.config.iso_duration import parse_duration_ms
from millstream.config.table import share as share_settings
from millstream.config.table.topic import MILLSTREAM_DELIVERY_DELAY_MS
from millstream.coordinator.share.record_state import Acquired, DeadLetter
from millstream.coordinator.share.share_partition import AckRange, ShareLimits, SharePartition, Transition
from millstream.coordinator.share.share_state import UNINITIALIZED, ShareKey, ShareState
from millstream.metadata.image import ConfigResource, MetadataDelta, ResourceType
from millstream.model.errors import ErrorCode, KafkaError
from millstream.storage.slice import Slice

_READ_BYTES = 4 << 20
_INSPECTED_BYTES = 256 << 10
"""How much is read at once where records are looked at: the loop has others to serve."""
NO_DELAY = -1

_log = logging.getLogger("millstream.share")


class Taken(NamedTuple):
    """What a member gets: bytes of the log, and which of the records in them are for it."""

    records: Slice
    acquired: list[Acquired]
    total: int


class LedSharePartition:
    def __init__(
        self,
        key: ShareKey,
        partition: Partition,
        machine: SharePartition,
        state_epoch: int,
        delay_ms: int,
        owner: "SharePartitions",
    ) -> None:
        self.key = key
        self.partition = partition
        self.machine = machine
        self.waiters: set[Waiter] = set()
        self.dropped = False
        self._state_epoch = state_epoch
        self._delay_ms = delay_ms
        self._owner = owner
        self._environment = owner.environment
        self._reading = False
        self._missed = False
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ms = 0
        dead = machine.archiving()
        if dead:
            owner.bury(self, dead)

    # Handing out

    async def take(
        self, member: str, max_bytes: int, max_records: int, *, strict: bool, at_least_one: bool
    ) -> Taken | None:
        """Acquires records for a member; None if there are none for it now. KafkaError if the log cannot be read."""
        if self._reading or self.dropped:
            self._missed = True
            return None
        try:
            self._reading = True  # a second reader would find the same records free while the first waits for the disk
            return await self._take(member, max_bytes, max_records, strict, at_least_one)
        finally:
            self._reading = False
            if self._missed:
                self._missed = False
                self.wake_all()

    async def _take(
        self, member: str, max_bytes: int, max_records: int, strict: bool, at_least_one: bool
    ) -> Taken | None:
        machine, log, clock = self.machine, self.partition.log, self._environment.clock
        max_bytes = min(max_bytes, _INSPECTED_BYTES if machine.inspected else _READ_BYTES)
        while not self.dropped:
            now_ms = clock.now_ms()
            machine.log_starts_at(log.log_start_offset, now_ms)
            offset = machine.next_offset(now_ms)
            end = self.partition.high_watermark
            if offset is None or offset >= end:
                return None
            records = log.read(offset, max_bytes, up_to=end, at_least_one=at_least_one)
            if not records.ready:
                await self._environment.offload(records.prepare)
                now_ms = clock.now_ms()
            if not records.length:
                return None
            places = self._look(records, offset, max_records, now_ms)
            data = [place for place in places if not place.is_control]
            acquired = machine.acquire(
                member, [(place.first, place.last) for place in data], max_records, now_ms, strict=strict
            )
            self._set_alarm()
            if acquired:
                return Taken(_trimmed(records, data, acquired), acquired, _count(acquired))
            if machine.next_offset(now_ms) == offset:
                return None
            await asyncio.sleep(0)  # what was read was not for anyone yet: look further, after the others
        return None

    def _look(self, records: Slice, offset: int, max_records: int, now_ms: int) -> list[BatchPlace]:
        """Tells the machine what lies in a slice, as far as it is needed."""
        machine = self.machine
        places: list[BatchPlace] = []
        expected = offset
        for place in walk_batches(records):
            if place.last < offset:
                continue
            if place.first > expected:
                machine.absent(expected, place.first - 1, now_ms)
            if place.is_control:
                machine.absent(place.first, place.last, now_ms)
            expected = place.last + 1
            places.append(place)
            if not machine.inspected and expected - offset >= max_records:
                break
        unread = machine.next_unread()
        if machine.inspected and places and places[0].first <= unread <= places[-1].last:
            first, last = places[0].position, places[-1].position + places[-1].size
            content = records.file.read_at(first, last - first)
            machine.admit(unread, places[-1].last, inspect(content, self._delay_ms), now_ms)
        return places

    def differs(self, key_order: bool, delay_ms: int) -> bool:
        """Whether settings changed that decide how records are looked at."""
        return (key_order, delay_ms) != (self.machine.key_order, self._delay_ms)

    # What members say

    async def acknowledge(self, member: str, ranges: Sequence[AckRange]) -> None:
        """Returns when it is persisted; KafkaError if it was refused or could not be."""
        if self.dropped:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the share-partition was loaded anew")
        now_ms = self._environment.clock.now_ms()
        transition = self.machine.acknowledge(member, ranges, now_ms)
        self._set_alarm()
        await self._persist(transition)

    async def release(self, member: str) -> None:
        """The member is gone."""
        if not self.dropped:
            await self._persist_or_log(self.machine.release_member(member))

    async def _persist(self, transition: Transition) -> None:
        if not transition.runs:
            return
        try:
            await self._write(transition)
        except KafkaError:
            self.machine.roll_back(transition)
            self._set_alarm()
            raise
        self._commit(transition)

    async def _persist_or_log(self, transition: Transition) -> None:
        """For what is so whether it can be persisted or not: a lock is over, a member is gone."""
        if not transition.runs:
            return
        try:
            await self._write(transition)
        except KafkaError as error:
            _log.warning("share_state_not_written key=%s error=%s", self.key, error)
        self._commit(transition)

    async def _write(self, transition: Transition) -> None:
        await self._owner.coordinator.write(
            self.key,
            state_epoch=self._state_epoch,
            leader_epoch=self.partition.leader_epoch,
            start_offset=transition.start,
            complete_count=transition.complete_count,
            batches=transition.batches,
        )

    def _commit(self, transition: Transition) -> None:
        self.machine.commit(transition, self._environment.clock.now_ms())
        if transition.dead:
            self._owner.bury(self, transition.dead)
        self._set_alarm()
        self.wake_all()

    async def buried(self, letter: DeadLetter) -> None:
        """A dead letter is where it belongs."""
        await self._persist(self.machine.finish_archiving(letter.first, letter.last))

    # Time

    def _set_alarm(self) -> None:
        deadline_ms = self.machine.next_alarm_ms
        if deadline_ms is None or self.dropped:
            return
        if self._alarm is not None:
            if self._alarm_ms <= deadline_ms:
                return  # when it rings, it looks again
            self._alarm.cancel()
        delay = max(0, deadline_ms - self._environment.clock.now_ms()) / 1000
        self._alarm_ms = deadline_ms
        self._alarm = self._environment.loop.call_later(delay, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        now_ms = self._environment.clock.now_ms()
        ready = self.machine.next_offset(now_ms)  # also takes note of what is due by now
        expired = self.machine.expire(now_ms)
        if expired.runs:
            self._owner.in_background(self._persist_or_log(expired))
        elif ready is not None:
            self.wake_all()
        self._set_alarm()

    def wake_all(self) -> None:
        for waiter in tuple(self.waiters):
            waiter.wake()

    def drop(self) -> None:
        """The state changed under it, or the partition is gone: whoever asks next loads it anew."""
        self.dropped = True
        if self._alarm is not None:
            self._alarm.cancel()
        self.wake_all()


class SharePartitions:
    def __init__(
        self,
        controller: Controller,
        partitions: PartitionTable,
        coordinator: ShareCoordinator,
        environment: Environment,
    ) -> None:
        self.coordinator = coordinator
        self.environment = environment
        self._controller = controller
        self._partitions = partitions
        self._dead_letters = DeadLetters(controller, partitions, environment)
        self._led: dict[ShareKey, LedSharePartition] = {}
        self._loading: dict[ShareKey, asyncio.Future[LedSharePartition]] = {}
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
        partition = self._find(key)
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
        await self.coordinator.initialize(key, state.state_epoch, min(state.start_offset, end))
        await self.coordinator.write(
            key,
            state_epoch=state.state_epoch,
            leader_epoch=partition.leader_epoch,
            start_offset=min(state.start_offset, end),
            complete_count=-1,
            batches=[each._replace(last=min(each.last, end - 1)) for each in batches if each.first < end],
        )
        return await self.coordinator.read(key, partition.leader_epoch)

    def _find(self, key: ShareKey) -> Partition:
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
            found = await self.environment.offload(lambda: log.offset_by_timestamp(since_ms))
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
        for led in list(self._led.values()):
            if led.key.topic_id in gone:
                self._drop(led)
        if not delta.configs:
            return
        for led in list(self._led.values()):
            config = self.config_of(led.key.group_id)
            led.machine.limits = self._limits(config)
            delay_ms = self._delay_ms(led.partition.topic_partition.topic)
            if led.differs(config[group_config.SHARE_KEY_ORDER], delay_ms):
                self._drop(led)

    def reset(self, group_id: str, partitions: Iterable[tuple[UUID, int]]) -> None:
        """The persisted state was changed by an operator."""
        for topic_id, index in partitions:
            led = self._led.get(ShareKey(group_id, topic_id, index))
            if led is not None:
                self._drop(led)

    def _drop(self, led: LedSharePartition) -> None:
        del self._led[led.key]
        led.drop()

    # In the background

    def state_gone(self, group_id: str, partitions: Iterable[tuple[UUID, int]]) -> None:
        """A group or a topic is gone, and with it the need for its state."""
        partitions = list(partitions)
        self.reset(group_id, partitions)
        self.in_background(self._delete(group_id, partitions))

    async def _delete(self, group_id: str, partitions: Iterable[tuple[UUID, int]]) -> None:
        for topic_id, index in partitions:
            try:
                await self.coordinator.delete(ShareKey(group_id, topic_id, index))
            except KafkaError as error:
                _log.warning("share_state_not_deleted group=%s topic=%s error=%s", group_id, topic_id, error)

    def bury(self, led: LedSharePartition, letters: Sequence[DeadLetter]) -> None:
        config = self.config_of(led.key.group_id)
        self.in_background(self._dead_letters.send(led.key.group_id, config, led.partition, letters, led.buried))

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


def _trimmed(records: Slice, places: list[BatchPlace], acquired: list[Acquired]) -> Slice:
    """The batches from the first acquired record to the last."""
    wanted = [place for place in places if place.last >= acquired[0].first and place.first <= acquired[-1].last]
    first, last = wanted[0], wanted[-1]
    return Slice(records.file, first.position, last.position + last.size - first.position, True)


def _count(acquired: list[Acquired]) -> int:
    return sum(row.last - row.first + 1 for row in acquired)
