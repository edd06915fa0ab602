"""One partition as one share group sees it: which records are whose, how often they were delivered, what is done with.

Pure: the leader tells it what lies in the log, who asks and what time it is. Handing records out changes only memory;
whatever must survive (acknowledged, released with a count, archived) is a `Transition`: its batches are persisted
first, and only then does it take effect, so no answer ever speaks of something that a crash could undo.

The offsets from `start` to `end` are the records in flight. Most of the time there are a few runs of them. Under key
order or with delayed records (`inspected`), each record that was read is a run of its own and passes a `DeliveryGate`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from millstream.coordinator.share.delivery_gate import DeliveryGate
from millstream.coordinator.share.record_runs import NO_MEMBER, Run, RunList
from millstream.coordinator.share.record_state import (
    LIMIT_REACHED,
    REJECTED,
    Acknowledgement,
    Acquired,
    DeadLetter,
    RecordState,
    StateBatch,
)
from millstream.model.errors import ErrorCode, KafkaError

AckRange = tuple[int, int, int]
"""First offset, last offset, acknowledgement."""
ReadRecord = tuple[int, bytes | None, int]
"""Offset, key, due time (0 for at once)."""


@dataclass(slots=True)
class ShareLimits:
    """What the group's settings say; may be replaced at any time."""

    delivery_count: int = 5
    lock_ms: int = 30_000
    max_locks: int = 2000
    max_deferred: int = 50_000
    """How many records that may not go yet (not due, or behind another of their key) are kept in sight."""
    dead_letters: bool = False


@dataclass(slots=True, eq=False)
class Transition:
    """A change that takes effect once it is persisted: call `commit` or `roll_back` with it."""

    batches: list[StateBatch] = field(default_factory=list)
    start: int = 0
    """The start offset that will hold."""
    complete_count: int = 0
    """How many records from there on will be done with."""
    runs: list[Run] = field(default_factory=list)
    dead: list[DeadLetter] = field(default_factory=list)


class SharePartition:
    def __init__(
        self,
        start: int,
        batches: Iterable[StateBatch],
        limits: ShareLimits,
        *,
        key_order: bool = False,
        inspected: bool = False,
    ) -> None:
        self.limits = limits
        self.start = start
        """Everything before it is done with."""
        self.end = start
        """Nothing from here on was read yet."""
        self.key_order = key_order
        self.inspected = key_order or inspected
        self.locks = 0
        """Records that members hold."""
        self.deferred = 0
        """Records read that are available, ready or not; only counted when inspected."""
        self._runs = RunList()
        self._gate = DeliveryGate(self._runs, key_order)
        self._holes: list[tuple[int, int]] = []
        self._counts: dict[int, int] = {}  # deliveries of records that must be read again to be known
        self._earliest_deadline_ms: int | None = None
        self.complete_count = 0
        """How many records from the start on are done with."""
        self._restore(batches)

    def _restore(self, batches: Iterable[StateBatch]) -> None:
        for first, last, number, count in sorted(batches):
            if last < self.start:
                continue
            state, first = RecordState(number), max(first, self.start)
            if first > self.end:
                self._holes.append((self.end, first - 1))
            self.end = last + 1
            if self.inspected and state is RecordState.AVAILABLE:
                # Its key and due time are only in the log.
                self._counts.update(dict.fromkeys(range(first, last + 1), count))
                if self._holes and self._holes[-1][1] + 1 == first:
                    self._holes[-1] = (self._holes[-1][0], last)
                else:
                    self._holes.append((first, last))
                continue
            run = Run(first, last, state, count)
            self._runs.insert([run])
            if state is RecordState.AVAILABLE:
                self._gate.release(run)
            elif state.final:
                self.complete_count += len(run)
        self._advance()

    # What is where

    @property
    def runs(self) -> list[StateBatch]:
        return self._runs.batches()

    def next_offset(self, now_ms: int) -> int | None:
        """Where to read for the next member that asks; None if nothing may be handed out whatever the log holds."""
        ready = self._gate.first_ready(now_ms)
        if self.inspected:
            if self.locks >= self.limits.max_locks:
                return None
            if ready is not None:
                return ready
            return self.next_unread() if self.deferred < self.limits.max_deferred else None
        unread: int | None = self.next_unread()
        if unread == self.end and self.end - self.start >= self.limits.max_locks:
            unread = None
        if ready is None or unread is None:
            return ready if unread is None else unread
        return min(ready, unread)

    def next_unread(self) -> int:
        return self._holes[0][0] if self._holes else self.end

    @property
    def next_alarm_ms(self) -> int | None:
        """When time alone will change something: a lock expires, a record becomes due."""
        due = self._gate.next_due_ms
        lock = self._earliest_deadline_ms
        return lock if due is None else due if lock is None else min(due, lock)

    # Reading

    def absent(self, first: int, last: int, now_ms: int) -> None:
        """There is nothing for anyone at these offsets: compacted away, or control records."""
        first = max(first, self.start)
        if first > last:
            return
        for run in self._runs.overlapping(first, last):
            if run.state is RecordState.AVAILABLE and run.transition is None:
                low, high = max(run.first, first), min(run.last, last)
                rest = run.last
                part = self._runs.cut_out(run, low, high)
                if rest > high and (behind := self._runs.find(high + 1)) is not None:
                    self._gate.release(behind)
                part.state = part.target = RecordState.ARCHIVED
                self.complete_count += len(part)
                self.deferred -= self.inspected
                self._gate.finish(part, now_ms)
        for low, high in self._take_unread(first, last):
            self._runs.insert([Run(low, high, RecordState.ARCHIVED, 0)])
            self.complete_count += high - low + 1
        for run in self._runs.overlapping(first, last):
            if run.state.final:
                self._runs.join_final(run)
                break
        self._advance()

    def admit(self, first: int, last: int, records: Iterable[ReadRecord], now_ms: int) -> None:
        """Takes note of the records of first..last; must be told of the lowest unread offsets first."""
        assert self.inspected
        known = {offset: (key, due_ms) for offset, key, due_ms in records}
        for low, high in self._take_unread(max(first, self.start), last):
            fresh: list[Run] = []
            for offset in range(low, high + 1):
                if offset in known:
                    run = Run(offset, offset, RecordState.AVAILABLE, self._counts.pop(offset, 0))
                    run.key, run.due_ms = known[offset]
                    self.deferred += 1
                    fresh.append(run)
                elif fresh and fresh[-1].state is RecordState.ARCHIVED:
                    fresh[-1].last = offset
                else:
                    fresh.append(Run(offset, offset, RecordState.ARCHIVED, 0))
            self._runs.insert(fresh)
            for run in fresh:
                if run.state is RecordState.AVAILABLE:
                    self._gate.admit(run, now_ms)
                else:
                    self.complete_count += len(run)
        self._advance()

    def _take_unread(self, first: int, last: int) -> list[tuple[int, int]]:
        """Unread ranges within first..last; they count as read from now on."""
        taken = []
        if self._holes:
            left = []
            for low, high in self._holes:
                if high < first or low > last:
                    left.append((low, high))
                    continue
                taken.append((max(low, first), min(high, last)))
                if low < first:
                    left.append((low, first - 1))
                if high > last:
                    left.append((last + 1, high))
            self._holes = left
        if last >= self.end:
            begin = max(first, self.end)
            if begin > self.end:
                self._holes.append((self.end, begin - 1))
            taken.append((begin, last))
            self.end = last + 1
        return taken

    # Handing out

    def acquire(
        self, member: str, batches: Sequence[tuple[int, int]], max_records: int, now_ms: int, *, strict: bool = False
    ) -> list[Acquired]:
        """Gives a member what is free in these batches of the log (first and last offset of each).

        `max_records` is exact if strict; otherwise the batch in which it is reached is given whole.
        """
        if not batches or max_records <= 0:
            return []
        deadline_ms = now_ms + self.limits.lock_ms
        taken: list[Acquired] = []
        if self.inspected:
            self._acquire_ready(member, batches, max_records, now_ms, deadline_ms, taken)
        else:
            left = max_records
            for first, last in batches:
                left -= self._acquire_batch(member, max(first, self.start), last, left, strict, deadline_ms, taken)
                if left <= 0:
                    break
        if taken:
            self._watch(deadline_ms)
        return taken

    def _watch(self, deadline_ms: int) -> None:
        earliest = self._earliest_deadline_ms
        self._earliest_deadline_ms = deadline_ms if earliest is None else min(earliest, deadline_ms)

    def _acquire_batch(
        self, member: str, first: int, last: int, left: int, strict: bool, deadline_ms: int, taken: list[Acquired]
    ) -> int:
        if strict:
            last = min(last, self._nth_free(first, last, left))
        acquired = 0
        position = first
        while position <= last:
            run = self._runs.find(position)
            if run is None:
                acquired += self._acquire_unread(member, position, last, deadline_ms, taken)
                position = self._end_of_hole(position, last) + 1
                continue
            high = min(run.last, last)
            if run.state is RecordState.AVAILABLE and run.transition is None:
                rest = run.last
                part = self._runs.cut_out(run, position, high)
                if rest > high and (behind := self._runs.find(high + 1)) is not None:
                    self._gate.release(behind)
                part.acquire(member, deadline_ms)
                self.locks += len(part)
                acquired += len(part)
                _note(taken, part)
            position = high + 1
        return acquired

    def _end_of_hole(self, position: int, last: int) -> int:
        at = self._runs.index_at(position)
        return min(last, self._runs.runs[at].first - 1) if at < len(self._runs) else last

    def _acquire_unread(self, member: str, position: int, last: int, deadline_ms: int, taken: list[Acquired]) -> int:
        if position >= self.end and self.end - self.start >= self.limits.max_locks:
            return 0
        acquired = 0
        for low, high in self._take_unread(position, self._end_of_hole(position, last)):
            run = Run(low, high, RecordState.AVAILABLE, 0)
            run.acquire(member, deadline_ms)
            self._runs.insert([run])
            self.locks += len(run)
            acquired += len(run)
            _note(taken, run)
        return acquired

    def _nth_free(self, first: int, last: int, number: int) -> int:
        """The offset at which `number` free records of first..last are reached."""
        position = first
        for run in self._runs.overlapping(first, last):
            if run.first > position:
                number -= run.first - position
                if number <= 0:
                    return run.first - 1 + number
            if run.state is RecordState.AVAILABLE and run.transition is None:
                number -= min(run.last, last) - max(run.first, first) + 1
                if number <= 0:
                    return min(run.last, last) + number
            position = run.last + 1
        return min(last, position + number - 1)

    def _acquire_ready(
        self,
        member: str,
        batches: Sequence[tuple[int, int]],
        max_records: int,
        now_ms: int,
        deadline_ms: int,
        taken: list[Acquired],
    ) -> None:
        last = batches[-1][1]
        left = min(max_records, self.limits.max_locks - self.locks)
        while left > 0:
            offset = self._gate.first_ready(now_ms)
            if offset is None or not batches[0][0] <= offset <= last:
                return
            run = self._runs.find(offset)
            assert run is not None
            self._gate.pop()
            run.acquire(member, deadline_ms)
            self.locks += 1
            self.deferred -= 1
            left -= 1
            _note(taken, run)

    # Giving back

    def acknowledge(self, member: str, ranges: Sequence[AckRange], now_ms: int) -> Transition:
        """What a member says of records it holds; all of it counts or, with INVALID_RECORD_STATE, nothing.

        Renewals take effect at once: a lock is not persisted.
        """
        pieces: list[AckRange] = []
        for first, last, kind in ranges:
            first = max(first, self.start)  # what lies before the start is done with, whoever decided it
            if first > last:
                continue
            position = first
            for run in self._runs.overlapping(first, last):
                if run.first > position or run.state is not RecordState.ACQUIRED or run.transition is not None:
                    break
                if run.member != member:
                    raise KafkaError(
                        ErrorCode.INVALID_RECORD_STATE, f"offset {position} is held by another member of the group"
                    )
                pieces.append((max(run.first, first), min(run.last, last), kind))
                position = run.last + 1
            if position <= last:
                raise KafkaError(ErrorCode.INVALID_RECORD_STATE, f"offset {position} is not acquired by this member")
        renewed_until_ms = now_ms + self.limits.lock_ms
        transition = Transition()
        for first, last, kind in pieces:
            whole = self._runs.find(first)  # an earlier piece may have cut the run that was found
            assert whole is not None
            run = self._runs.cut_out(whole, first, last)
            if kind == Acknowledgement.RENEW:
                run.deadline_ms = renewed_until_ms
            elif kind == Acknowledgement.ACCEPT:
                self._plan(transition, run, RecordState.ACKNOWLEDGED)
            elif kind == Acknowledgement.GAP:
                self._plan(transition, run, RecordState.ARCHIVED)
            elif kind == Acknowledgement.REJECT:
                self._plan_dead(transition, run, REJECTED)
            else:
                self._plan_release(transition, run)
        return self._planned(transition)

    def release_member(self, member: str) -> Transition:
        """The member is gone: what it holds is free again."""
        transition = Transition()
        for run in list(self._runs):
            if run.state is RecordState.ACQUIRED and run.transition is None and run.member == member:
                self._plan_release(transition, run)
        return self._planned(transition)

    def expire(self, now_ms: int) -> Transition:
        """Frees the records whose locks have expired."""
        transition = Transition()
        if self._earliest_deadline_ms is None or self._earliest_deadline_ms > now_ms:
            return transition
        earliest: int | None = None
        for run in list(self._runs):
            if run.state is not RecordState.ACQUIRED or run.transition is not None:
                continue
            if run.deadline_ms <= now_ms:
                self._plan_release(transition, run)
            elif earliest is None or run.deadline_ms < earliest:
                earliest = run.deadline_ms
        self._earliest_deadline_ms = earliest
        return self._planned(transition)

    def archiving(self) -> list[DeadLetter]:
        """Records that were on their way to the dead-letter topic when the state was last persisted."""
        limit = self.limits.delivery_count
        return [
            DeadLetter(run.first, run.last, run.deliveries, LIMIT_REACHED if run.deliveries >= limit else REJECTED)
            for run in self._runs
            if run.state is RecordState.ARCHIVING and run.transition is None
        ]

    def finish_archiving(self, first: int, last: int) -> Transition:
        """They are in the dead-letter topic."""
        transition = Transition()
        for run in self._runs.overlapping(first, last):
            if run.state is RecordState.ARCHIVING and run.transition is None:
                part = self._runs.cut_out(run, max(run.first, first), min(run.last, last))
                self._plan(transition, part, RecordState.ARCHIVED)
        return self._planned(transition)

    def _plan_release(self, transition: Transition, run: Run) -> None:
        if run.deliveries >= self.limits.delivery_count:
            self._plan_dead(transition, run, LIMIT_REACHED)
        else:
            self._plan(transition, run, RecordState.AVAILABLE)

    def _plan_dead(self, transition: Transition, run: Run, reason: str) -> None:
        if self.limits.dead_letters:
            self._plan(transition, run, RecordState.ARCHIVING)
            transition.dead.append(DeadLetter(run.first, run.last, run.deliveries, reason))
        else:
            self._plan(transition, run, RecordState.ARCHIVED)

    def _plan(self, transition: Transition, run: Run, target: RecordState) -> None:
        run.transition = transition
        run.target = target
        transition.runs.append(run)

    def _planned(self, transition: Transition) -> Transition:
        start = self.start
        for run in self._runs:
            state = run.target if run.transition is transition else run.state
            if run.first != start or not state.final:
                break
            start = run.last + 1
        complete = sum(len(run) for run in transition.runs if run.target.final)
        transition.start = start
        transition.complete_count = self.complete_count + complete - (start - self.start)
        transition.batches = [
            StateBatch(run.first, run.last, run.target, run.deliveries) for run in transition.runs if run.first >= start
        ]
        return transition

    def commit(self, transition: Transition, now_ms: int) -> None:
        """It is persisted: let it be so."""
        for run in transition.runs:
            if run.transition is not transition:
                continue  # dropped meanwhile, with all of its log
            run.transition = None
            if run.state is RecordState.ACQUIRED:
                self.locks -= len(run)
            run.state = run.target
            run.member = NO_MEMBER
            if run.state is RecordState.AVAILABLE:
                self.deferred += self.inspected
                self._gate.release(run)
            else:
                if run.state.final:
                    self.complete_count += len(run)
                self._gate.finish(run, now_ms)
        for run in transition.runs:
            if run.state.final and run.last >= self.start:
                self._runs.join_final(run)
        self._advance()

    def roll_back(self, transition: Transition) -> None:
        """It could not be persisted: everything is as before."""
        for run in transition.runs:
            if run.transition is transition:
                run.transition = None
                run.target = run.state
                if run.state is RecordState.ACQUIRED:
                    self._watch(run.deadline_ms)

    def log_starts_at(self, offset: int, now_ms: int) -> None:
        """The log was cut off before `offset`: what lay there is lost to everyone."""
        if offset <= self.start:
            return
        for run in self._runs.drop_before(offset):
            if run.state is RecordState.ACQUIRED:
                self.locks -= len(run)
            elif run.state is RecordState.AVAILABLE:
                self.deferred -= self.inspected
            elif run.state.final:
                self.complete_count -= len(run)
            run.transition = None
            self._gate.finish(run, now_ms)
        self._holes = [(max(low, offset), high) for low, high in self._holes if high >= offset]
        self._counts = {at: count for at, count in self._counts.items() if at >= offset}
        self.start = offset
        self.end = max(self.end, offset)
        self._advance()

    def _advance(self) -> None:
        runs = self._runs.runs
        passed = 0
        for run in runs:
            if run.first != self.start or not run.state.final or run.transition is not None:
                break
            self.start = run.last + 1
            self.complete_count -= len(run)
            passed += 1
        if passed:
            del runs[:passed]


def _note(taken: list[Acquired], run: Run) -> None:
    """Adds a run to an answer, as part of the row before it where that says the same."""
    if taken and taken[-1].last + 1 == run.first and taken[-1].deliveries == run.deliveries:
        taken[-1] = Acquired(taken[-1].first, run.last, run.deliveries)
    else:
        taken.append(Acquired(run.first, run.last, run.deliveries))
