"""Invariant of compacted topics: compaction removes only records that a later record of the same key supersedes."""

from collections.abc import Iterable

from millstream.formats.records.record import Record
from millstream.simulator.clients.transaction_tracker import At
from millstream.simulator.invariants.logs import CommittedLogs, PartitionTransactions, Span
from millstream.simulator.invariants.observation import (
    UNREADABLE,
    Batch,
    LogContent,
    Observation,
    ObservedReplica,
    PartitionKey,
)
from millstream.simulator.invariants.transactions import TransactionLogs
from millstream.simulator.results import Violation


class _Whole:
    """All records that were ever committed in one log."""

    def __init__(self) -> None:
        self.records: dict[int, tuple[Record, int]] = {}
        """By offset, with the producer id of transactional records; -1 for others."""
        self.deletions: dict[int, float] = {}
        """Tombstones: by offset, the time they were first seen."""

    def take(self, batch: Batch, now: float) -> None:
        header = batch.header
        if not header.is_control:
            producer_id = header.producer_id if header.is_transactional else -1
            for record in batch.records:
                self.records[record.offset] = record, producer_id
                if record.value is None:
                    self.deletions[record.offset] = now


class _Held:
    """Offsets that a node's log has held at some time, without truncated ones."""

    def __init__(self) -> None:
        self._end = 0
        self._offsets: set[int] = set()
        self.missed: set[int] = set()
        """Markers that the node never got, because the leader had already removed them."""
        self.missed_deletions: set[int] = set()
        """Tombstones that the node never got, for the same reason."""

    def has(self, offset: int) -> bool:
        return offset in self._offsets

    def read_on(self, log: LogContent, spans: PartitionTransactions | None, others: Iterable[ObservedReplica]) -> range:
        """Reads new batches of the log. Returns their offset range."""
        if log.end < self._end:
            self._end = log.end
            self._offsets = {each for each in self._offsets if each < log.end}
            self.missed = {each for each in self.missed if each < log.end}
            self.missed_deletions = {each for each in self.missed_deletions if each < log.end}
        begin, self._end = self._end, log.end
        for batch in log.batches(max(begin, log.start), log.end):
            self._offsets.update(record.offset for record in batch.records)
        for span in spans.ended if spans is not None and begin < log.end else ():
            marker = span.end_offset
            if marker is None or span.committed or not begin <= marker < log.end or marker in self._offsets:
                continue
            if not self._offsets.isdisjoint(span.records) and any(_lacks(other, marker) for other in others):
                self.missed.add(marker)
        return range(begin, log.end)

    def miss(self, deletions: Iterable[int], others: Iterable[ObservedReplica]) -> None:
        """Notes tombstones in the new range that the node lacks and another replica has removed."""
        for offset in deletions:
            if offset not in self._offsets and any(_lacks(other, offset) for other in others):
                self.missed_deletions.add(offset)

    def takes_for_committed(self, offset: int, span: Span) -> bool:
        """Whether the node may consider an aborted record committed or open, because it missed the marker."""
        return offset in self._offsets and span.end_offset in self.missed


def _lacks(seen: ObservedReplica, offset: int) -> bool:
    """Whether a log continues after an offset but has no record there."""
    if seen.log is None or seen.log.end <= offset:
        return False
    batch = next(iter(seen.log.batches(offset, seen.log.end)), None)
    return batch is None or all(record.offset != offset for record in batch.records)


class CompactionKeepsLastRecord:
    """A record may be missing from a compacted log only if a later record of its key is there, if it is a tombstone, or
    if it was aborted. Checked when a log shrinks or is opened, and at the end. A restarted follower may have compacted
    beyond the high watermark that it knows.

    A replica that was down for longer than `delete.retention.ms` may hold records of a transaction and never get its
    abort marker, because the leader has removed both, as in Kafka (docs/compaction.md). For that replica these records
    count as committed.
    """

    def __init__(self, transactions: TransactionLogs, logs: CommittedLogs, *, delete_retention_s: float = 0.0) -> None:
        self._transactions = transactions
        self._delete_retention_s = delete_retention_s
        self._now = 0.0
        self._leaders: dict[At, ObservedReplica] = {}
        self._wholes: dict[PartitionKey, _Whole] = {}
        self._topics: set[str] = set()
        """Compacted topics seen so far."""
        self._sizes: dict[tuple[int, int, PartitionKey], int] = {}
        self._held: dict[tuple[int, PartitionKey], _Held] = {}
        self.cleanings = 0
        """How often a log has shrunk."""
        logs.listeners.append(self._committed)
        self._logs = logs

    def _committed(self, seen: ObservedReplica, batch: Batch) -> None:
        if self._logs.of(seen).is_cleaned:
            self._wholes.setdefault(seen.key, _Whole()).take(batch, self._now)
            self._topics.add(seen.topic)

    def check(self, observation: Observation) -> None:
        self._now = observation.at
        for seen in observation.replicas:
            if seen.topic not in self._topics or seen.key not in self._wholes or seen.log is None:
                continue
            if seen.is_leader:
                self._leaders[seen.topic, seen.key.partition] = seen
            at = (seen.node_id, seen.life, seen.key)
            size, before = seen.log.size, self._sizes.get(at)
            self._sizes[at] = size
            if size != before:
                self._read_on(seen, observation)
            if before is None or size < before:
                self.cleanings += before is not None
                self._look(seen)

    def check_end(self, observation: Observation) -> None:
        for seen in observation.replicas:
            if seen.key in self._wholes and seen.log is not None:
                self._look(seen)

    def _read_on(self, seen: ObservedReplica, observation: Observation) -> None:
        assert seen.log is not None
        others = [each for each in observation.replicas if each.name == seen.name and each.node_id != seen.node_id]
        others = [each for each in others if each.key == seen.key]
        held = self._held.setdefault((seen.node_id, seen.key), _Held())
        try:
            new = held.read_on(seen.log, self._transactions.of(seen.key), others)
            held.miss(self._overdue(seen.key, new), others)
        except UNREADABLE as error:
            raise self._wrong(seen, f"cannot be read: {error}") from None

    def _overdue(self, key: PartitionKey, within: range) -> list[int]:
        """Tombstones that other replicas may have removed by now."""
        latest = self._now - self._delete_retention_s
        return [offset for offset, at in self._wholes[key].deletions.items() if offset in within and at <= latest]

    def is_back(self, at: At, record: Record) -> bool:
        """Whether the leader has a deleted record because it never got the tombstone: it was down for longer than
        `delete.retention.ms`, and the other replicas had removed the tombstone when it returned."""
        leader = self._leaders.get(at)
        if leader is None or not (held := self._held[leader.node_id, leader.key]).has(record.offset):
            return False
        records = self._wholes[leader.key].records
        return any(offset > record.offset and records[offset][0].key == record.key for offset in held.missed_deletions)

    def missed_its_end(self, at: At, offset: int) -> bool:
        """Whether a replica has a record of an aborted transaction and never got the marker: it was down for longer
        than `delete.retention.ms`. When it leads, the record counts as committed."""
        for (_, key), held in self._held.items():
            spans = self._transactions.of(key)
            if spans is None or spans.at != at:
                continue
            for span in spans.ended:
                if offset in span.records and not span.committed and held.takes_for_committed(offset, span):
                    return True
        return False

    def _look(self, seen: ObservedReplica) -> None:
        assert seen.log is not None
        whole, spans = self._wholes[seen.key], self._transactions.of(seen.key)
        held = self._held[seen.node_id, seen.key]
        try:
            there = {
                record.offset: record
                for batch in seen.log.batches(seen.log.start, seen.log.end)
                for record in (() if batch.header.is_control else batch.records)
            }
        except UNREADABLE as error:
            raise self._wrong(seen, f"cannot be read: {error}") from None
        last: set[bytes | None] = set()
        for offset in sorted(whole.records, reverse=True):
            record, producer_id = whole.records[offset]
            found = there.get(offset)
            span = spans.span_of(offset, producer_id) if producer_id >= 0 and spans is not None else None
            fate = span.committed if span is not None else None if producer_id >= 0 and spans is not None else True
            if offset >= seen.high_watermark and found != record:
                continue  # not replicated yet, or to be truncated
            if found is None:
                if record.key not in last and record.value is not None and fate is not False:
                    raise self._wrong(seen, f"has lost {record}, the last record of its key")
            elif found != record:
                raise self._wrong(seen, f"has {found}, but {record} was committed there")
            if fate or (span is not None and fate is False and held.takes_for_committed(offset, span)):
                last.add(record.key)

    def _wrong(self, seen: ObservedReplica, what: str) -> Violation:
        return Violation(type(self).__name__, f"{seen.name} on node {seen.node_id} {what}")
