"""Evidence of a history: all operations on each partition, arranged for the checks; and the kinds of anomalies."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import field
from enum import Enum

from millstream.common.lazy_dataclass import dataclass
from millstream.simulator.history.operations import Assigned, Fate, History, Outcome, Poll, Send, Transaction, Value


@dataclass(slots=True)
class PartitionEvidence:
    """All acknowledgements and polls of a partition."""

    name: str
    sends: dict[Value, Send] = field(default_factory=dict)
    values_at: dict[int, set[Value]] = field(default_factory=lambda: defaultdict(set))
    """By offset: the values acknowledged or read there; more than one is an anomaly."""
    read_at: dict[Value, set[int]] = field(default_factory=lambda: defaultdict(set))
    """By value: the offsets at which consumers got it."""
    highest_read: int = -1
    committed_read_at: dict[Value, float] = field(default_factory=dict)
    """By value: when the first read_committed consumer had it."""
    highest_committed_read: int = -1
    has_committed_reader: bool = False
    is_compacted: bool = False
    has_transactions: bool = False

    def offset_of(self, send: Send) -> int | None:
        """The offset at which the record was read or else acknowledged; None if unknown."""
        read = self.read_at.get(send.value)
        return min(read) if read else send.offset


@dataclass(slots=True)
class ConsumerRun:
    """The offsets a consumer read of one partition in one assignment."""

    consumer: str
    group: str | None
    partition: str
    position: int | None
    committed_only: bool
    offsets: list[int] = field(default_factory=list)


class RisingBound:
    """The highest value known at each time."""

    def __init__(self, points: Iterable[tuple[float, int]]) -> None:
        self._times: list[float] = []
        self._highest: list[int] = []
        for at, value in sorted(points):
            if not self._highest or value > self._highest[-1]:
                self._times.append(at)
                self._highest.append(value)

    def before(self, moment: float) -> int | None:
        """The highest value known strictly before `moment`."""
        at = bisect_left(self._times, moment)
        return self._highest[at - 1] if at else None


class Evidence:
    """A history by partition. `read_to_end`: a consumer has read every partition to its end."""

    def __init__(self, history: History, *, read_to_end: bool = True) -> None:
        self.history = history
        self.read_to_end = read_to_end
        self.partitions: dict[str, PartitionEvidence] = {}
        self.runs: list[ConsumerRun] = []
        self.transactions = {each.name: each for each in history.transactions}
        self.sends_of: dict[str, list[Send]] = defaultdict(list)
        """By transaction: its sends without failed ones."""
        for send in history.sends:
            here = self.partition(send.partition)
            here.sends[send.value] = send
            if send.outcome is Outcome.ACKED and send.offset is not None:
                here.values_at[send.offset].add(send.value)
            if send.transaction is not None:
                here.has_transactions = True
                if send.outcome is not Outcome.FAILED:
                    self.sends_of[send.transaction].append(send)
        for each in history.compacted:
            self.partition(each.partition).is_compacted = True
        self._read(history.reading)

    def partition(self, name: str) -> PartitionEvidence:
        found = self.partitions.get(name)
        if found is None:
            found = self.partitions[name] = PartitionEvidence(name)
        return found

    def stale_allowed(self, begun: float, ended: float) -> bool:
        return any(begun <= each.until and each.since <= ended for each in self.history.stale_allowed)

    def transaction_of(self, send: Send) -> Transaction | None:
        return None if send.transaction is None else self.transactions[send.transaction]

    def must_be_readable(self, send: Send) -> bool:
        """Whether it was acknowledged, itself or by the commit of its transaction."""
        transaction = self.transaction_of(send)
        if transaction is None:
            return send.outcome is Outcome.ACKED
        return transaction.fate is Fate.COMMITTED and send.outcome is not Outcome.FAILED

    def is_visible(self, send: Send) -> bool:
        """Whether it was read; by a read_committed consumer if it is in a transaction and there is such a consumer."""
        here = self.partitions[send.partition]
        if send.transaction is not None and here.has_committed_reader:
            return send.value in here.committed_read_at
        return send.value in here.read_at

    def known_offsets(self, here: PartitionEvidence, *, committed_only: bool) -> list[int]:
        """The sorted offsets at which every consumer must get a record."""
        gone = self.superseded(here)
        if not committed_only:
            return sorted(offset for offset, values in here.values_at.items() if not values <= gone)
        return sorted(
            offset
            for offset, values in here.values_at.items()
            if any(value not in gone and self._is_known_committed(here, value) for value in values)
        )

    def superseded(self, here: PartitionEvidence) -> set[Value]:
        """Values that compaction may have removed: a later record of the key exists or may exist."""
        if not here.is_compacted:
            return set()
        last: dict[str, float] = {}
        for send in here.sends.values():
            transaction = self.transaction_of(send)
            if send.key is None or send.outcome is Outcome.FAILED:
                continue
            if transaction is None or transaction.fate in (Fate.COMMITTED, Fate.UNKNOWN):
                offset = here.offset_of(send)
                last[send.key] = max(last.get(send.key, -1), float("inf") if offset is None else offset)
        return {
            send.value
            for send in here.sends.values()
            if send.key is not None and (offset := here.offset_of(send)) is not None and offset < last.get(send.key, -1)
        }

    def _is_known_committed(self, here: PartitionEvidence, value: Value) -> bool:
        if value in here.committed_read_at:
            return True
        send = here.sends.get(value)
        if send is None:
            return False
        transaction = self.transaction_of(send)
        return transaction is None or transaction.fate is Fate.COMMITTED

    def _read(self, reading: Iterable[Poll | Assigned]) -> None:
        open_runs: dict[str, dict[str, ConsumerRun]] = defaultdict(dict)
        kinds: dict[str, tuple[str | None, bool]] = {}
        for each in reading:
            runs = open_runs[each.consumer]
            if isinstance(each, Assigned):
                kinds[each.consumer] = kind = (each.group, each.committed_only)
                runs.clear()
                for name, position in each.positions.items():
                    runs[name] = self._begin(each.consumer, kind, name, position)
                continue
            for name, offset, value in each.records:
                run = runs.get(name)
                if run is None:
                    run = runs[name] = self._begin(each.consumer, kinds.get(each.consumer, (None, False)), name, None)
                run.offsets.append(offset)
                here = self.partition(name)
                here.values_at[offset].add(value)
                here.read_at[value].add(offset)
                here.highest_read = max(here.highest_read, offset)
                if run.committed_only:
                    here.highest_committed_read = max(here.highest_committed_read, offset)
                    first = here.committed_read_at.get(value, each.finished_at)
                    here.committed_read_at[value] = min(first, each.finished_at)

    def _begin(self, consumer: str, kind: tuple[str | None, bool], partition: str, position: int | None) -> ConsumerRun:
        group, committed_only = kind
        run = ConsumerRun(consumer, group, partition, position, committed_only)
        self.runs.append(run)
        if committed_only:
            self.partition(partition).has_committed_reader = True
        return run


def missing_between(known: list[int], first: int, last: int) -> list[int]:
    """The `known` offsets strictly between the two; `known` is sorted."""
    return known[bisect_right(known, first) : bisect_left(known, last)]


class Kind(Enum):
    """The names follow Jepsen's Kafka workload."""

    LOST_WRITE = "an acknowledged record is missing although later ones were read"
    UNSEEN_TAIL = "an acknowledged record at the end was never read, although everything was read to the end"
    DUPLICATE = "one record is at two offsets"
    INCONSISTENT_OFFSET = "two records are at one offset"
    REORDERED = "records of a producer are not in the order of its sends"
    NON_MONOTONIC_SEND = "a send that started after an acknowledgement got a lower offset"
    NON_MONOTONIC_POLL = "a consumer went backwards without a seek"
    POLL_SKIP = "a consumer skipped a record"
    GROUP_SKIP = "no member of a group got a record"
    GAP = "an offset below the end has no record"
    PHANTOM = "a record was read that was never sent, or whose send failed"
    STALE_READ = "a reported end offset is lower than an offset already known"
    LOST_COMMIT = "a committed offset went backwards"
    ABORTED_READ = "a read_committed consumer got a record of a transaction that was not committed (G1a)"
    DIRTY_READ = "a read_committed consumer got a record before the commit of its transaction was requested"
    TORN_TRANSACTION = "only a part of a transaction is visible"
    DIRTY_OFFSETS = "an offset of an uncommitted transaction is visible"
    COPIED_TWICE = "an input is in the output more than once"
    OFFSETS_DISAGREE = "the committed offsets of a group do not match its output"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One finding."""

    kind: Kind
    partition: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind.name} {self.partition}: {self.text}"
