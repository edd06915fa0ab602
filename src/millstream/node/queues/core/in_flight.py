"""The records of a partition that are in flight for a share group: their owners, locks, and order of delivery.

The offsets from `start` to `end` are in flight, usually in a few runs. With key order or delays (`inspected`), each
record that was read is its own run and passes the `DeliveryGate`. Acknowledgements and persisted changes are in
`partition.py`.

`DeliveryGate` decides which available records may be delivered now. Without delays and key order this is the list of
released offsets. With them, a record waits until it is due, and until the record of the same key before it is final. A
record that is not due blocks the later records of its key: order requires that.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from millstream.common.lazy_dataclass import dataclass
from millstream.node.queues.core.runs import Acquired, RecordState, Run, RunList, StateBatch


class DeliveryGate:
    __slots__ = ("_by_key", "_due", "_ready", "_runs", "ordered")

    def __init__(self, runs: RunList, ordered: bool) -> None:
        self.ordered = ordered
        self._runs = runs
        self._ready: list[int] = []
        self._due: list[tuple[int, int]] = []
        self._by_key: dict[bytes, deque[int]] = {}

    def admit(self, run: Run, now_ms: int) -> None:
        """A record was read from the log, as its own run; offsets are ascending."""
        if self.ordered and run.key is not None:
            queue = self._by_key.setdefault(run.key, deque())
            queue.append(run.first)
            if queue[0] != run.first:
                return
        self._first_of_its_key(run, now_ms)

    def _first_of_its_key(self, run: Run, now_ms: int) -> None:
        if run.due_ms > now_ms:
            heappush(self._due, (run.due_ms, run.first))
        else:
            heappush(self._ready, run.first)

    def release(self, run: Run) -> None:
        """The record is available again."""
        heappush(self._ready, run.first)

    def finish(self, run: Run, now_ms: int) -> None:
        """The record is final: the next record of its key may be delivered."""
        if not self.ordered or run.key is None:
            return
        queue = self._by_key.get(run.key)
        if queue is None:
            return
        try:
            queue.remove(run.first)
        except ValueError:
            return
        while queue:
            following = self._runs.find(queue[0])
            if following is None or following.state is not RecordState.AVAILABLE:
                if following is not None and following.state is RecordState.ACQUIRED:
                    return
                queue.popleft()
                continue
            self._first_of_its_key(following, now_ms)
            return
        del self._by_key[run.key]

    @property
    def next_due_ms(self) -> int | None:
        return self._due[0][0] if self._due else None

    def first_ready(self, now_ms: int) -> int | None:
        """The lowest offset that may be delivered; None if there is none now."""
        while self._due and self._due[0][0] <= now_ms:
            heappush(self._ready, heappop(self._due)[1])
        while self._ready:
            run = self._runs.find(self._ready[0])
            if run is not None and run.state is RecordState.AVAILABLE and run.transition is None:
                return self._ready[0]
            heappop(self._ready)  # acquired or removed since
        return None

    def pop(self) -> None:
        """Removes the offset that `first_ready` returned."""
        heappop(self._ready)


ReadRecord = tuple[int, bytes | None, int]
"""Offset, key, due time (0: at once)."""


@dataclass(slots=True)
class ShareLimits:
    """From the group's settings; may be replaced at any time."""

    delivery_count: int = 5
    lock_ms: int = 30_000
    max_locks: int = 2000
    max_deferred: int = 50_000
    """The limit for records in memory that may not be delivered yet (not due, or after another record of their key)."""
    dead_letters: bool = False


class InFlight:
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
        """All records before it are final."""
        self.end = start
        """No record from here on was read yet."""
        self.key_order = key_order
        self.inspected = key_order or inspected
        self.locks = 0
        """Records that members hold."""
        self.deferred = 0
        """Available records that were read; only counted when inspected."""
        self._runs = RunList()
        self._gate = DeliveryGate(self._runs, key_order)
        self._holes: list[tuple[int, int]] = []
        self._counts = RunList()  # delivery counts of records that must be read again
        self._earliest_deadline_ms: int | None = None
        self.complete_count = 0
        """Number of final records from `start` on."""
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
                self._counts.insert([Run(first, last, state, count)])
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

    # Reading of state

    @property
    def runs(self) -> list[StateBatch]:
        return self._runs.batches()

    def next_offset(self, now_ms: int) -> int | None:
        """The offset to read for the next acquisition; None if nothing can be delivered, whatever the log has."""
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

    def was_delivered(self, offset: int) -> bool:
        """Whether the record at this offset was delivered before, and released."""
        run = self._runs.find(offset)
        return run is not None and run.deliveries > 0

    def next_unread(self) -> int:
        return self._holes[0][0] if self._holes else self.end

    @property
    def next_alarm_ms(self) -> int | None:
        """The next time at which a lock expires or a record becomes due."""
        due = self._gate.next_due_ms
        lock = self._earliest_deadline_ms
        return lock if due is None else due if lock is None else min(due, lock)

    # Records of the log

    def absent(self, first: int, last: int, now_ms: int) -> None:
        """There are no records at these offsets: removed by compaction, or control records."""
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
        """Adds the records of first..last. The lowest unread offsets must come first."""
        assert self.inspected
        known = {offset: (key, due_ms) for offset, key, due_ms in records}
        for low, high in self._take_unread(max(first, self.start), last):
            fresh: list[Run] = []
            for offset in range(low, high + 1):
                if offset in known:
                    earlier = self._counts.find(offset)
                    run = Run(offset, offset, RecordState.AVAILABLE, earlier.deliveries if earlier is not None else 0)
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

    # Acquisition

    def acquire(
        self, member: str, batches: Sequence[tuple[int, int]], max_records: int, now_ms: int, *, strict: bool = False
    ) -> list[Acquired]:
        """Acquires available records for a member, in these batches of the log (first and last offset of each).

        With `strict`, `max_records` is exact; otherwise the last batch is acquired whole.
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
        """The offset at which `number` available records of first..last are reached."""
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

    def log_starts_at(self, offset: int, now_ms: int) -> None:
        """The log was truncated before `offset`: earlier records are lost."""
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
        self._counts.drop_before(offset)
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
    """Adds a run to the response, merged with the previous row if both have the same delivery count."""
    if taken and taken[-1].last + 1 == run.first and taken[-1].deliveries == run.deliveries:
        taken[-1] = Acquired(taken[-1].first, run.last, run.deliveries)
    else:
        taken.append(Acquired(run.first, run.last, run.deliveries))
