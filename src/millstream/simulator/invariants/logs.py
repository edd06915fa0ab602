"""Committed logs, combined from all replicas, and the transactions in them, read independently of the brokers."""

import struct
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import field

from millstream.common.lazy_dataclass import dataclass
from millstream.formats.records.record import Record
from millstream.node.runtime.node import Node
from millstream.simulator.clients.transaction_tracker import At, known_by, name_of
from millstream.simulator.clients.transactions import is_commit_marker
from millstream.simulator.invariants.observation import (
    UNREADABLE,
    Batch,
    LogContent,
    ObservedReplica,
    PartitionKey,
    StoredLog,
)

OnCommitted = Callable[[ObservedReplica, Batch], None]


class CommittedLog:
    """The committed batches of one log. `is_cleaned`: replicas may have compacted away different records."""

    def __init__(self, *, is_cleaned: bool = False) -> None:
        self.is_cleaned = is_cleaned
        self.batches: dict[int, Batch] = {}
        self.begin = 0
        """Where the first replica that was seen began on its disk: later than others, in a branch of a tiered log."""
        self.end = 0
        self.fresh: list[Batch] = []
        """Batches that the last comparison added."""

    def compare(self, log: LogContent, offset: int, below: int) -> tuple[int, str | None]:
        """Returns (offset compared up to, description of a mismatch or None)."""
        self.fresh = []
        offset = max(offset, log.start)
        if not self.batches:
            self.begin = offset
        for batch in log.batches(offset, below):
            known = self.batches.get(batch.base_offset)
            if known is None:
                if self.begin <= batch.base_offset < self.end and not self.is_cleaned:
                    return offset, f"has {batch}, but other replicas have committed something else there"
                self.batches[batch.base_offset] = batch
                if batch.base_offset >= self.end:
                    self.fresh.append(batch)
                    self.end = batch.last_offset + 1
            elif known != batch:
                if self.is_cleaned and is_rest_of(known, batch):
                    self.batches[batch.base_offset] = batch  # cleaned before it was first seen
                elif not self.is_cleaned or not is_rest_of(batch, known):
                    return offset, f"has {batch}, but {known} is committed there"
            offset = batch.last_offset + 1
        return offset, None


def is_rest_of(batch: Batch, whole: Batch) -> bool:
    """Whether a batch can be the result of compacting `whole`: a subset of its records at the same offsets."""
    left, before = batch.header, whole.header
    if (left.last_offset, left.producer_id, left.producer_epoch, left.base_sequence, left.leader_epoch) != (
        before.last_offset,
        before.producer_id,
        before.producer_epoch,
        before.base_sequence,
        before.leader_epoch,
    ):
        return False
    if (left.is_control, left.is_transactional) != (before.is_control, before.is_transactional):
        return False
    records = {record.offset: record for record in whole.records}
    return all(records.get(record.offset) == record for record in batch.records)


class CommittedLogs:
    """All committed logs. Listeners get each batch once, when it is first seen as committed, in log order.

    The first replica that considers an offset committed defines its content; all others must match.
    """

    def __init__(self, cleaned: Iterable[str] = ()) -> None:
        self._cleaned = frozenset(cleaned)
        self._logs: dict[PartitionKey, CommittedLog] = {}
        self.listeners: list[OnCommitted] = []
        self.ends: dict[tuple[str, int], int] = {}
        """By topic and partition: the highest committed offset seen."""

    def of(self, seen: ObservedReplica) -> CommittedLog:
        log = self._logs.get(seen.key)
        if log is None:
            log = self._logs[seen.key] = CommittedLog(is_cleaned=seen.topic in self._cleaned)
        return log

    def compare(self, seen: ObservedReplica, offset: int) -> tuple[int, str | None]:
        """Compares a replica from `offset` up to its high watermark."""
        assert seen.log is not None
        log = self.of(seen)
        result = log.compare(seen.log, offset, seen.high_watermark)
        self.ends[seen.topic, seen.key.partition] = log.end
        for batch in log.fresh:
            for listener in self.listeners:
                listener(seen, batch)
        return result


OFFSETS_TOPIC, STATE_TOPIC = "__consumer_offsets", "__transaction_state"
_VERSION, _LENGTH, _INT64 = struct.Struct(">h"), struct.Struct(">h"), struct.Struct(">q")


@dataclass(slots=True)
class Span:
    """The records of one transaction in one partition."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    identities: dict[int, str] = field(default_factory=dict)
    """By offset: the identity of each record."""
    records: dict[int, Record] = field(default_factory=dict)
    end_offset: int | None = None
    """Offset of the marker; None while the transaction is open."""
    committed: bool | None = None

    @property
    def names(self) -> list[str]:
        return sorted({name_of(identity) for identity in self.identities.values()})


class PartitionTransactions:
    """The transactions of one partition, in log order, read independently of the broker's own indexes."""

    def __init__(self, at: At) -> None:
        self.at = at
        self.open: dict[int, Span] = {}
        self.ended: list[Span] = []

    def take(self, batch: Batch) -> Span | None:
        """Takes the next batch. Returns the span that it ends, if it is a marker."""
        header = batch.header
        if not header.is_transactional:
            return None
        if header.is_control:
            span = self.open.pop(header.producer_id, None)
            if span is None:
                return None
            span.end_offset = header.base_offset
            span.committed = is_commit_marker(batch.records)
            self.ended.append(span)
            return span
        span = self.open.get(header.producer_id)
        if span is None:
            span = Span(header.producer_id, header.producer_epoch, header.base_offset)
            self.open[header.producer_id] = span
        for record in batch.records:
            span.records[record.offset] = record
            identity = identity_of(self.at[0], record)
            if identity is not None:
                span.identities[record.offset] = identity
        return None

    def spans(self) -> Iterator[Span]:
        yield from self.ended
        yield from self.open.values()

    def first_unstable(self, high_watermark: int, but_of: Container[int] = ()) -> int | None:
        """The first offset of the undecided transactions at the given high watermark, without those of some
        producers."""
        undecided = list(self.open.values())
        for span in reversed(self.ended):
            if span.end_offset is not None and span.end_offset < high_watermark:
                break  # all earlier ones too: they are in the order of their markers
            undecided.append(span)
        firsts = [
            span.first_offset
            for span in undecided
            if span.first_offset < high_watermark and span.producer_id not in but_of
        ]
        return min(firsts, default=None)

    def span_of(self, offset: int, producer_id: int) -> Span | None:
        """The span of a record of a producer."""
        for span in self.spans():
            end = span.end_offset
            if span.producer_id == producer_id and span.first_offset <= offset and (end is None or offset < end):
                return span
        return None


def identity_of(topic: str, record: Record) -> str | None:
    """The identity of a transactional record; for a committed offset, it is in the metadata."""
    if topic != OFFSETS_TOPIC:
        return known_by(record)
    committed = committed_offset(record)
    return f"{committed[1]}#offset" if committed is not None and committed[1] else None


def committed_offset(record: Record) -> tuple[int, str] | None:
    """(offset, metadata) of a committed offset in `__consumer_offsets`; None for other records."""
    key, value = record.key or b"", record.value or b""
    if len(key) < 2 or _VERSION.unpack_from(key)[0] > 1 or len(value) < 10:
        return None
    version = _VERSION.unpack_from(value)[0]
    if not 0 <= version <= 4:
        return None
    position = 10 + (4 if version >= 3 else 0)  # version 3 added the leader epoch
    if version >= 4:  # flexible version: length + 1, in one byte for short metadata
        begin, length = position + 1, value[position] - 1
    else:
        begin, length = position + 2, _LENGTH.unpack_from(value, position)[0]
    return _INT64.unpack_from(value, 2)[0], value[begin : begin + length].decode(errors="replace")


STATE_VALUE = struct.Struct(">hqhib")
"""The start of a transaction state value, in all versions: version, producer id, epoch, timeout, state."""
STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead", "Fencing")
_DECIDED = frozenset(("PrepareCommit", "PrepareAbort"))
_LAST_RECORDS = 4
"""How many of the latest records are read."""


class Decisions:
    """Finds coordinators that have just decided a transaction. Remembers the offsets already read.

    Between the decision and its markers is the worst moment for a coordinator to fail.
    """

    def __init__(self) -> None:
        self._ends: dict[tuple[int, int], int] = {}

    def coordinator(self, nodes: Mapping[int, Node | None]) -> int:
        """A node whose last decision is committed and not complete; 0 for none."""
        for node_id, node in nodes.items():
            if node is None or node.broker is None:
                continue
            for number, partition in node.broker.partitions.by_name.get(STATE_TOPIC.encode(), {}).items():
                log, end = partition.opened_log, partition.high_watermark
                at = (node_id, number)
                if log is None or not partition.is_leader or self._ends.get(at) == end:
                    continue
                self._ends[at] = end
                if _is_decided(StoredLog(log), end):
                    return node_id
        return 0


def _is_decided(log: StoredLog, end: int) -> bool:
    states: dict[bytes | None, str] = {}
    try:
        for batch in log.batches(max(log.start, end - _LAST_RECORDS), end):
            for record in batch.records:
                if record.value is not None:
                    states[record.key] = STATES[STATE_VALUE.unpack_from(record.value)[4]]
    except UNREADABLE:
        return False  # an invariant reports unreadable logs
    return not _DECIDED.isdisjoint(states.values())
