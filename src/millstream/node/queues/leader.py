"""One shared partition on its leader: stretches of the log go out, what members say of them comes in and is persisted.

It hands out whole batches, as a fetch does, together with the offsets in them that a member acquired, and lets locks
expire and records become due. All decisions are in `node/queues/core/partition.py`; loading is the owner's.

Keys and due times of records, for the groups and topics that ask for key order or delays; only these pay for it.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.records.batch import iterate_headers
from millstream.formats.records.opening import OpeningLimits, records_between
from millstream.formats.records.record import Record
from millstream.node.coordination.aborted_batches import AbortedBatches
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
from millstream.node.storage.index.aborted_reading import aborted_among
from millstream.node.storage.log.log_reader import BatchLocation, Slice, walk_batches

DELIVER_AT = "millstream-deliver-at"
"""The header with the time before which share groups do not hand the record out: milliseconds since 1970, as text."""
_MAX_DIGITS = 19
MAX_INSPECTED_OFFSETS = 2000
"""Offsets that are looked at in one go: what becomes of each is worked out on the event loop."""

_log = logging.getLogger("millstream.share")


def inspect(batches: bytes, delay_ms: int, first: int, last: int, limits: OpeningLimits) -> Iterator[ReadRecord]:
    """Offset, key and due time of each record from offset `first` to `last`; a negative delay means that nothing is
    delayed here. For a thread: passing over what lies before `first` takes time."""
    for position, header in iterate_headers(batches):
        low, high = max(first, header.base_offset), min(last, header.last_offset)
        if header.is_control or low > high:
            continue
        try:
            batch = memoryview(batches)[position : position + header.size]
            for record in records_between(header, batch, low, high, limits):
                yield record.offset, record.key, due_ms(record, delay_ms)
        except KafkaError as error:
            # The consumer will say what is wrong with it; until then it must not hold up the others.
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
"""Refusals of a write that say that the state is no longer the one that was loaded."""

_STATE_CHECK_INTERVAL_MS = 5000
"""How long a state that nothing is written to is taken for the one that is kept."""
_READ_BYTES = 4 << 20
_MAX_CHECKED = 1024
_INSPECTED_BYTES = 256 << 10
"""How much is read at once where records are looked at: the loop has others to serve."""


class Owner(Protocol):
    """What a shared partition needs around it."""

    persister: SharePersister
    environment: Environment

    def opening_limits(self) -> OpeningLimits: ...

    def write_dead_letters(self, leader: "SharePartitionLeader", letters: Sequence[DeadLetter]) -> None: ...

    def forget(self, leader: "SharePartitionLeader") -> None: ...

    def in_background(self, work: "Coroutine[Any, Any, None]") -> None: ...


class AcquiredRecords(NamedTuple):
    """What a member gets: bytes of the log, and which of the records in them are for it."""

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
        """Whether records of transactions are handed out only once these are committed (`share.isolation.level`)."""
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
        """Whether this broker leads the partition still, in the epoch that it was loaded in."""
        return self.partition.is_leader and self.partition.leader_epoch == self.leader_epoch

    # Handing out

    async def acquire(
        self, member: str, max_bytes: int, max_records: int, *, strict: bool, at_least_one: bool
    ) -> AcquiredRecords | None:
        """Acquires records for a member; None if there are none for it now. KafkaError if the log cannot be read."""
        if self._reading or self.dropped:
            self._was_busy = True
            return None
        try:
            self._reading = True  # a second reader would find the same records free while the first waits for the disk
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
            aborted = AbortedBatches(aborted_among(log, records, offset, end) if self.only_committed else ())
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
                member, [(place.first, place.last) for place in data], max_records, now_ms, strict=strict
            )
            self._set_timer()
            if acquired:
                taken = AcquiredRecords(_trimmed(records, data, acquired), acquired, _count(acquired))
                self.partition.traffic.sent_bytes += taken.records.length
                self.partition.traffic.sent_records += taken.total
                return taken
            if machine.next_offset(now_ms) == offset:
                return None
            await asyncio.sleep(0)  # what was read was not for anyone yet: inspect_records further, after the others
        return None

    async def _check_readable(self, records: Slice) -> None:
        """What comes back may be a batch that no member can read, and with it the good ones behind it (ADR 25)."""
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
        """Somebody new reads: perhaps it is a new group of the same name."""
        self._state_valid_until_ms = 0

    async def _check_state(self) -> None:
        """Finds out whether the state is still the one that was loaded: the share coordinator may be elsewhere."""
        try:
            state = await self._owner.persister.summary(self.key)
        except KafkaError as error:
            # Nothing is lost by handing records out: what is said of them is refused, if the state is another.
            _log.warning("share_state_not_looked_at key=%s error=%s", self.key, error)
        else:
            if state is None or state.state_epoch != self._state_epoch:
                self._owner.forget(self)
        self._state_valid_until_ms = self._time.now_ms() + _STATE_CHECK_INTERVAL_MS

    async def _scan(
        self, records: Slice, offset: int, max_records: int, now_ms: int, aborted: AbortedBatches
    ) -> list[BatchLocation]:
        """Tells the machine what lies in a slice, as far as it is needed; returns the batches with records to give."""
        machine, unreadable = self.machine, self.partition.unreadable
        data: list[BatchLocation] = []
        expected = offset
        for place in walk_batches(records):
            is_for_nobody = aborted.has(place) or place.is_control or place.is_empty
            if place.last < offset:
                continue
            if unreadable is not None and unreadable.has(place.first):
                if data:
                    break  # members would drop what is behind it in the same response
                is_for_nobody = True
            if place.first > expected:
                machine.absent(expected, place.first - 1, now_ms)
            if is_for_nobody:
                machine.absent(place.first, place.last, now_ms)
            else:
                data.append(place)
            expected = place.last + 1
            if not machine.inspected and expected - offset >= max_records:
                break
        unread = machine.next_unread()
        if machine.inspected and data and data[0].first <= unread <= data[-1].last:
            # In a thread: batches may be large once they are opened. No other request reads here meanwhile. A few at a
            # time: the next request, or the next turn, goes on behind them.
            last = min(data[-1].last, unread + MAX_INSPECTED_OFFSETS - 1)
            limits = self._owner.opening_limits()

            def inspect_records() -> list[ReadRecord]:
                return [
                    row
                    for place in data
                    if place.last >= unread and place.first <= last
                    for row in inspect(
                        records.file.read_at(place.position, place.size), self._delay_ms, unread, last, limits
                    )
                ]

            machine.admit(unread, last, await self._environment.open_in_turn(inspect_records), self._time.now_ms())
        return data

    def differs(self, key_order: bool, delay_ms: int) -> bool:
        """Whether settings changed that decide how records are looked at."""
        return (key_order, delay_ms) != (self.machine.key_order, self._delay_ms)

    # What members say

    async def acknowledge(self, member: str, ranges: Sequence[AckRange]) -> None:
        """Returns when it is persisted; KafkaError if it was refused or could not be."""
        if self.dropped:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the share-partition was loaded anew")
        now_ms = self._time.now_ms()
        transition = self.machine.acknowledge(member, ranges, now_ms)
        self._set_timer()
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
        except KafkaError as error:
            if error.code in _SUPERSEDED:
                self._owner.forget(self)
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the state is another by now: {error}") from error
            self.machine.roll_back(transition)
            self._set_timer()
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
        """A dead letter is where it belongs."""
        if self.dropped:
            return  # whoever loads it anew sends the letter again: the state still has it on its way
        await self._persist(self.machine.finish_archiving(letter.first, letter.last))

    # Time

    def _set_timer(self) -> None:
        deadline_ms = self.machine.next_alarm_ms
        if deadline_ms is None or self.dropped:
            return
        if self._timer is not None:
            if self._timer_ms <= deadline_ms:
                return  # when it rings, it looks again
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
        ready = self.machine.next_offset(now_ms)  # also takes note of what is due by now
        expired = self.machine.expire(now_ms)  # written at once: what was decided first must not be written last
        if expired.runs:
            await self._persist_or_log(expired)
        elif ready is not None:
            self.wake_all()
        self._set_timer()

    def wake_all(self) -> None:
        for waiter in tuple(self.waiters):
            waiter.wake()

    def drop(self) -> None:
        """The state changed under it, or the partition is gone: whoever asks next loads it anew."""
        self.dropped = True
        if self._timer is not None:
            self._timer.cancel()
        self.wake_all()


def _trimmed(records: Slice, places: list[BatchLocation], acquired: list[Acquired]) -> Slice:
    """The batches from the first acquired record to the last."""
    wanted = [place for place in places if place.last >= acquired[0].first and place.first <= acquired[-1].last]
    first, last = wanted[0], wanted[-1]
    return Slice(records.file, first.position, last.position + last.size - first.position, True)


def _count(acquired: list[Acquired]) -> int:
    return sum(row.last - row.first + 1 for row in acquired)
