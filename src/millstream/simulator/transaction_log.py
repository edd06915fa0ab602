"""The transactions that lie in the committed part of each log, found by reading it: independent of what brokers make
of it."""

import struct
from collections.abc import Container, Iterator
from dataclasses import dataclass, field

from millstream.formats.records.record import Record
from millstream.simulator.committed_reader import is_commit_marker
from millstream.simulator.sight import Batch
from millstream.simulator.transaction_book import At, known_by, name_of

OFFSETS_TOPIC, STATE_TOPIC = "__consumer_offsets", "__transaction_state"
_VERSION, _LENGTH, _INT64 = struct.Struct(">h"), struct.Struct(">h"), struct.Struct(">q")


@dataclass(slots=True)
class Span:
    """What one producer wrote to one partition in one transaction."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    identities: dict[int, str] = field(default_factory=dict)
    """By offset: what each record is known by."""
    records: dict[int, Record] = field(default_factory=dict)
    end_offset: int | None = None
    """Of the marker; None while it is open."""
    committed: bool | None = None

    @property
    def names(self) -> list[str]:
        return sorted({name_of(identity) for identity in self.identities.values()})


class PartitionTransactions:
    """Of one partition, in the order of the log."""

    def __init__(self, at: At) -> None:
        self.at = at
        self.open: dict[int, Span] = {}
        self.ended: list[Span] = []

    def take(self, batch: Batch) -> Span | None:
        """The next batch; returns what it ends, if it is a marker."""
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
        """The first offset, as things were when so much was committed, of a transaction that was not decided; those
        of some producers are left out."""
        undecided = list(self.open.values())
        for span in reversed(self.ended):
            if span.end_offset is not None and span.end_offset < high_watermark:
                break  # and so do all before it: they are in the order of their markers
            undecided.append(span)
        firsts = [
            span.first_offset
            for span in undecided
            if span.first_offset < high_watermark and span.producer_id not in but_of
        ]
        return min(firsts, default=None)

    def span_of(self, offset: int, producer_id: int) -> Span | None:
        """The one that a record of a producer belongs to."""
        for span in self.spans():
            end = span.end_offset
            if span.producer_id == producer_id and span.first_offset <= offset and (end is None or offset < end):
                return span
        return None


def identity_of(topic: str, record: Record) -> str | None:
    """What a record of a transaction is known by; of an offset, its metadata say so."""
    if topic != OFFSETS_TOPIC:
        return known_by(record)
    committed = committed_offset(record)
    return f"{committed[1]}#offset" if committed is not None and committed[1] else None


def committed_offset(record: Record) -> tuple[int, str] | None:
    """(offset, metadata) of a record in `__consumer_offsets`; None if it is about something else."""
    key, value = record.key or b"", record.value or b""
    if len(key) < 2 or _VERSION.unpack_from(key)[0] > 1 or len(value) < 10:
        return None
    version = _VERSION.unpack_from(value)[0]
    if not 0 <= version <= 4:
        return None
    position = 10 + (4 if version >= 3 else 0)  # the leader epoch is there since version 3
    if version >= 4:  # a flexible version: one more than the length, in one byte for what is written here
        begin, length = position + 1, value[position] - 1
    else:
        begin, length = position + 2, _LENGTH.unpack_from(value, position)[0]
    return _INT64.unpack_from(value, 2)[0], value[begin : begin + length].decode(errors="replace")
