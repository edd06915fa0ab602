"""The share-partition leader: hands out records of a partition to a share group, and persists acknowledgements.

It returns whole batches, as a fetch does, with the offsets in them that the member acquired. It runs the timers of
locks and of delayed records. The decisions are in `core/partition.py`; loading is in `partitions.py`.

`inspect` reads keys and due times of records. Only groups with key order and topics with delays need it.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.records.aborted import AbortedTransactions
from millstream.formats.records.batch import iterate_headers
from millstream.formats.records.opening import OpeningLimits, records_between
from millstream.formats.records.record import Record
from millstream.node.coordination.runtime import MonotonicWallClock
from millstream.node.environment import Environment
from millstream.node.queues.core.in_flight import ReadRecord
from millstream.node.queues.core.partition import AckRange, SharePartition, Transition
from millstream.node.queues.core.runs import Acquired, DeadLetter
from millstream.node.queues.core.state import ShareKey
from millstream.node.queues.persister import SharePersister
from millstream.node.replicas.local_partition import Waiter, Waiters
from millstream.node.replicas.partition import Partition
from millstream.node.replicas.unreadable_batches import note_unreadable, unreadable_in
from millstream.node.storage.log.log_reader import BatchLocation, Slice, aborted_among, walk_batches

DELIVER_AT = "millstream-deliver-at"
"""The header with the earliest delivery time for share groups: milliseconds since 1970, as text."""
_MAX_DIGITS = 19
MAX_INSPECTED_OFFSETS = 2000
"""Offsets that are inspected at once: the event loop processes each of them."""

_log = logging.getLogger("millstream.share")


def inspect(batches: bytes, delay_ms: int, first: int, last: int, limits: OpeningLimits) -> Iterator[ReadRecord]:
    """Offset, key and due time of each record from offset `first` to `last`. A negative delay disables delays. Runs in
    a thread, because skipping the records before `first` takes time."""
    for position, header in iterate_headers(batches):
        low, high = max(first, header.base_offset), min(last, header.last_offset)
        if header.is_control or low > high:
            continue
        try:
            batch = memoryview(batches)[position : position + header.size]
            for record in records_between(header, batch, low, high, limits):
                yield record.offset, record.key, due_ms(record, delay_ms)
        except KafkaError as error:
            # The consumer gets the error; until then the batch must not block other batches.
            _log.warning("batch_not_inspected offset=%d error=%s", header.base_offset, error)
            for offset in range(low, high + 1):
                yield offset, None, 0


def due_ms(record: Record, delay_ms: int) -> int:
    if delay_ms < 0:
        return 0
    for name, value in record.headers:
        if name == DELIVER_AT and value is not None:
            text = value.strip()
            if text.isdigit() and len(text) <= _MAX_DIGITS:
                return int(text)
    return record.timestamp + delay_ms if delay_ms and record.timestamp >= 0 else 0


_SUPERSEDED = frozenset((ErrorCode.INVALID_REQUEST, ErrorCode.FENCED_STATE_EPOCH, ErrorCode.FENCED_LEADER_EPOCH))
"""Errors of a write that show that the loaded state is outdated."""

_STATE_CHECK_INTERVAL_MS = 5000
"""How long a state without writes is used before it is checked."""
_READ_BYTES = 4 << 20
_MAX_CHECKED = 1024
_INSPECTED_BYTES = 256 << 10
"""Bytes read at once where records are inspected, so that the event loop is not blocked."""


class Owner(Protocol):
    """What a share-partition leader needs of its owner."""

    persister: SharePersister
    environment: Environment

    def opening_limits(self) -> OpeningLimits: ...

    def write_dead_letters(self, leader: "SharePartitionLeader", letters: Sequence[DeadLetter]) -> None: ...

    def forget(self, leader: "SharePartitionLeader") -> None: ...

    def in_background(self, work: "Coroutine[Any, Any, None]") -> None: ...


class AcquiredRecords(NamedTuple):
    """The result of an acquisition: bytes of the log, and the offsets in them that the member acquired."""

    records: Slice
    acquired: list[Acquired]
    total: int


class SharePartitionLeader:
    def __init__(
        self,
        key: ShareKey,
        partition: Partition,
        machine: SharePartition,
        state_epoch: int,
        delay_ms: int,
        owner: Owner,
        *,
        only_committed: bool,
    ) -> None:
        self.key = key
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.machine = machine
        self.waiters: Waiters[Waiter] = Waiters()
        self.dropped = False
        self.only_committed = only_committed
        """Whether records of transactions are handed out only when these are committed (`share.isolation.level`)."""
        self._state_epoch = state_epoch
        self._delay_ms = delay_ms
        self._owner = owner
        self._environment = owner.environment
        self._reading = False
        self._was_busy = False
        self._checked: set[tuple[str, int]] = set()
        self._time = MonotonicWallClock(owner.environment)
        self._state_valid_until_ms = self._time.now_ms() + _STATE_CHECK_INTERVAL_MS
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        dead = machine.archiving()
        if dead:
            owner.write_dead_letters(self, dead)

    @property
    def is_current(self) -> bool:
        """Whether this broker leads the partition, still in the epoch in which it was loaded."""
        return self.partition.is_leader and self.partition.leader_epoch == self.leader_epoch

    # Acquisition

    async def acquire(
        self, member: str, max_bytes: int, max_records: int, *, strict: bool, at_least_one: bool
    ) -> AcquiredRecords | None:
        """Acquires records for a member; None if there are none now. KafkaError if the log cannot be read."""
        if self._reading or self.dropped:
            self._was_busy = True
            return None
        try:
            self._reading = True  # a second reader would acquire the same records
            return await self._acquire(member, max_bytes, max_records, strict, at_least_one)
        finally:
            self._reading = False
            if self._was_busy:
                self._was_busy = False
                self.wake_all()

    async def _acquire(
        self, member: str, max_bytes: int, max_records: int, strict: bool, at_least_one: bool
    ) -> AcquiredRecords | None:
        machine, log, clock = self.machine, self.partition.log, self._time
        max_bytes = min(max_bytes, _INSPECTED_BYTES if machine.inspected else _READ_BYTES)
        while not self.dropped:
            now_ms = clock.now_ms()
            machine.log_starts_at(log.log_start_offset, now_ms)
            offset = machine.next_offset(now_ms)
            end = self.partition.last_stable_offset if self.only_committed else self.partition.high_watermark
            if offset is None or offset >= end:
                return None
            if now_ms >= self._state_valid_until_ms:
                await self._check_state()
                continue
            records = log.read(offset, max_bytes, up_to=end, at_least_one=at_least_one)
            aborted = AbortedTransactions(aborted_among(log, records, offset, end) if self.only_committed else ())
            if not records.ready:
                await self._environment.offload(records.prepare)
                now_ms = clock.now_ms()
            if not records.length:
                return None
            if machine.was_delivered(offset):
                await self._check_readable(records)
            data = await self._scan(records, offset, max_records, now_ms, aborted)
            if self.dropped:
                return None
            now_ms = clock.now_ms()
            acquired = machine.acquire(
                member, [(place.base_offset, place.last_offset) for place in data], max_records, now_ms, strict=strict
            )
            self._set_timer()
            if acquired:
                taken = AcquiredRecords(_trimmed(records, data, acquired), acquired, _count(acquired))
                self.partition.traffic.sent_bytes += taken.records.length
                self.partition.traffic.sent_records += taken.total
                return taken
            if machine.next_offset(now_ms) == offset:
                return None
            await asyncio.sleep(0)  # no record was available in this range: continue with the next, after other tasks
        return None

    async def _check_readable(self, records: Slice) -> None:
        """A record that was delivered before may be in a batch that no member can read, which blocks the batches after
        it (ADR 25)."""
        place = records.file.path, records.position
        if place in self._checked:
            return
        if len(self._checked) >= _MAX_CHECKED:
            self._checked.clear()
        self._checked.add(place)
        limits = self._owner.opening_limits()
        found = await self._environment.offload(lambda: unreadable_in(records, limits))
        if self.is_current:
            note_unreadable(self.partition, found)

    def recheck_state(self) -> None:
        """A new session reads: it may be of a new group with the same name."""
        self._state_valid_until_ms = 0

    async def _check_state(self) -> None:
        """Checks at the share coordinator, which may be on another broker, that the loaded state is current."""
        try:
            state = await self._owner.persister.summary(self.key)
        except KafkaError as error:
            # It is safe to hand records out: acknowledgements are refused if the state is outdated.
            _log.warning("share_state_not_checked key=%s error=%s", self.key, error)
        else:
            if state is None or state.state_epoch != self._state_epoch:
                self._owner.forget(self)
        self._state_valid_until_ms = self._time.now_ms() + _STATE_CHECK_INTERVAL_MS

    async def _scan(
        self, records: Slice, offset: int, max_records: int, now_ms: int, aborted: AbortedTransactions
    ) -> list[BatchLocation]:
        """Registers the batches of a slice, as far as needed; returns those with records to hand out."""
        machine, unreadable = self.machine, self.partition.unreadable
        data: list[BatchLocation] = []
        expected = offset
        for place in walk_batches(records):
            is_skipped = aborted.hide(place) or place.is_empty
            if place.last_offset < offset:
                continue
            if unreadable is not None and unreadable.has(place.base_offset):
                if data:
                    break  # members would skip the rest of the response after it
                is_skipped = True
            if place.base_offset > expected:
                machine.absent(expected, place.base_offset - 1, now_ms)
            if is_skipped:
                machine.absent(place.base_offset, place.last_offset, now_ms)
            else:
                data.append(place)
            expected = place.last_offset + 1
            if not machine.inspected and expected - offset >= max_records:
                break
        unread = machine.next_unread()
        if machine.inspected and data and data[0].base_offset <= unread <= data[-1].last_offset:
            # In a thread, because batches may be large. No other request reads here meanwhile. Only some offsets at a
            # time: the next request continues after them.
            last = min(data[-1].last_offset, unread + MAX_INSPECTED_OFFSETS - 1)
            limits = self._owner.opening_limits()

            def inspect_records() -> list[ReadRecord]:
                return [
                    row
                    for place in data
                    if place.last_offset >= unread and place.base_offset <= last
                    for row in inspect(
                        records.file.read_at(place.position, place.size), self._delay_ms, unread, last, limits
                    )
                ]

            machine.admit(unread, last, await self._environment.open_in_turn(inspect_records), self._time.now_ms())
        return data

    def differs(self, key_order: bool, delay_ms: int) -> bool:
        """Whether the settings changed that decide how records are inspected."""
        return (key_order, delay_ms) != (self.machine.key_order, self._delay_ms)

    # Acknowledgements

    async def acknowledge(self, member: str, ranges: Sequence[AckRange]) -> None:
        """Returns when the acknowledgements are persisted; KafkaError if they are refused or cannot be persisted."""
        if self.dropped:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the share-partition is being reloaded; try again")
        now_ms = self._time.now_ms()
        transition = self.machine.acknowledge(member, ranges, now_ms)
        self._set_timer()
        await self._persist(transition)

    async def release(self, member: str) -> None:
        """Releases the records of a member that has left."""
        if not self.dropped:
            await self._persist_or_log(self.machine.release_member(member))

    async def _persist(self, transition: Transition) -> None:
        if not transition.runs:
            return
        try:
            await self._write(transition)
        except KafkaError as error:
            if error.code in _SUPERSEDED:
                self._owner.forget(self)
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the state was replaced: {error}") from error
            self.machine.roll_back(transition)
            self._set_timer()
            raise
        self._commit(transition)

    async def _persist_or_log(self, transition: Transition) -> None:
        """For changes that hold even if they cannot be persisted: an expired lock, a member that has left."""
        if not transition.runs:
            return
        try:
            await self._write(transition)
        except KafkaError as error:
            _log.warning("share_state_not_written key=%s error=%s", self.key, error)
            if error.code in _SUPERSEDED:
                self._owner.forget(self)
                return
        self._commit(transition)

    async def _write(self, transition: Transition) -> None:
        await self._owner.persister.write(
            self.key,
            state_epoch=self._state_epoch,
            leader_epoch=self.leader_epoch,
            start_offset=transition.start,
            complete_count=transition.complete_count,
            batches=transition.batches,
        )
        self._state_valid_until_ms = self._time.now_ms() + _STATE_CHECK_INTERVAL_MS

    def _commit(self, transition: Transition) -> None:
        self.machine.commit(transition, self._time.now_ms())
        if transition.dead and not self.dropped:
            self._owner.write_dead_letters(self, transition.dead)
        self._set_timer()
        self.wake_all()

    async def dead_letter_written(self, letter: DeadLetter) -> None:
        """Called when a dead letter is written."""
        if self.dropped:
            return  # the next leader sends the letter again: the state still has it
        await self._persist(self.machine.finish_archiving(letter.first, letter.last))

    # Timers

    def _set_timer(self) -> None:
        deadline_ms = self.machine.next_alarm_ms
        if deadline_ms is None or self.dropped:
            return
        if self._timer is not None:
            if self._timer_ms <= deadline_ms:
                return  # the earlier timer sets the next one
            self._timer.cancel()
        delay = max(0, deadline_ms - self._time.now_ms()) / 1000
        self._timer_ms = deadline_ms
        self._timer = self._environment.loop.call_later(delay, self._timer_due)

    def _timer_due(self) -> None:
        self._timer = None
        self._owner.in_background(self._on_timer())

    async def _on_timer(self) -> None:
        if self.dropped:
            return
        now_ms = self._time.now_ms()
        ready = self.machine.next_offset(now_ms)  # this also registers due records
        expired = self.machine.expire(now_ms)  # written at once, so that writes have the order of the decisions
        if expired.runs:
            await self._persist_or_log(expired)
        elif ready is not None:
            self.wake_all()
        self._set_timer()

    def wake_all(self) -> None:
        for waiter in tuple(self.waiters):
            waiter.wake()

    def drop(self) -> None:
        """The state has changed, or the partition has another leader. The next request loads it again."""
        self.dropped = True
        if self._timer is not None:
            self._timer.cancel()
        self.wake_all()


def _trimmed(records: Slice, places: list[BatchLocation], acquired: list[Acquired]) -> Slice:
    """The batches from the first acquired record to the last."""
    wanted = [
        place for place in places if place.last_offset >= acquired[0].first and place.base_offset <= acquired[-1].last
    ]
    first, last = wanted[0], wanted[-1]
    return Slice(records.file, first.position, last.position + last.size - first.position, True)


def _count(acquired: list[Acquired]) -> int:
    return sum(row.last - row.first + 1 for row in acquired)
