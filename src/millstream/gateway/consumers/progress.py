"""Progress of a consumer in its partitions: records fetched ahead, handed out, and committed.

    committed ≤ settled ≤ reached, and the position anywhere up to `reached`

A position moves only when records are handed out, just before the response is sent. Records that were fetched but not
handed out, or that belonged to a response that could not be sent, are handed out later.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from millstream.formats.records.record import Record
from millstream.gateway.consumers.fetches import FetchedPartition
from millstream.raw_client import TopicPartition

_RECORD_OVERHEAD = 64


@dataclass(slots=True)
class PartitionProgress:
    """One partition."""

    position: int
    """The next record to hand out."""
    committed: int | None
    """The committed offset of the group, or None."""
    reached: int = 0
    """The highest position so far. Up to here offsets may be committed, also after a seek back."""
    settled: int = 0
    """Up to here all records are committed or were never handed out."""
    ahead: FetchedPartition | None = None
    """Records fetched from the position on, not yet handed out."""
    leaving: bool = False
    """Revoked: it is given up when the caller commits, or polls again."""

    def __post_init__(self) -> None:
        self.reached = self.settled = self.position

    @property
    def is_open(self) -> bool:
        """Records were handed out that are not committed."""
        return self.reached > self.settled

    def move(self, offset: int) -> None:
        """Moves the position, because the records before the offset were handed out."""
        self.position = offset
        self.reached = max(self.reached, offset)
        part, self.ahead = self.ahead, None
        if part is not None:
            rest = [record for record in part.records if record.offset >= offset]
            self.ahead = FetchedPartition(rest, part.next_offset) if rest else None

    def skip(self, offset: int) -> None:
        """Moves past records that are never shown, such as transaction markers, and so are never committed."""
        was_open = self.is_open
        self.move(offset)
        if not was_open:
            self.settled = self.reached

    def seek(self, offset: int) -> None:
        self.ahead = None
        self.position = offset
        self.reached = max(self.reached, offset)

    def begin_at(self, offset: int) -> None:
        """Starts again at this offset; earlier records were deleted."""
        self.ahead = None
        self.position = self.reached = self.settled = offset

    def take_back(self, before: int) -> None:
        if self.reached == self.position:
            self.reached = before
        self.position = before
        self.ahead = None


@dataclass(slots=True)
class Batch:
    """Records that may be handed out, and the positions before and after them."""

    records: list[tuple[TopicPartition, Record]] = field(default_factory=list)
    bytes: int = 0
    before: dict[TopicPartition, int] = field(default_factory=dict)
    after: dict[TopicPartition, int] = field(default_factory=dict)

    def without(self, partition: TopicPartition, offset: int) -> "Batch":
        """Without the records of a partition from this offset on."""
        records = [row for row in self.records if row[0] != partition or row[1].offset < offset]
        before, after = dict(self.before), self.after | {partition: offset}
        if not any(row[0] == partition for row in records):
            del before[partition], after[partition]
        return Batch(records, self.bytes, before, after)


class Progress:
    def __init__(self) -> None:
        self._held: dict[TopicPartition, PartitionProgress] = {}
        self._turn = 0

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._held

    def __getitem__(self, partition: TopicPartition) -> PartitionProgress:
        return self._held[partition]

    def get(self, partition: TopicPartition) -> PartitionProgress | None:
        return self._held.get(partition)

    def begin(self, partition: TopicPartition, position: int, committed: int | None) -> None:
        self._held[partition] = PartitionProgress(position, committed)

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            self._held.pop(partition, None)

    def items(self) -> Iterator[tuple[TopicPartition, PartitionProgress]]:
        yield from list(self._held.items())

    @property
    def leaving(self) -> list[TopicPartition]:
        return [partition for partition, progress in self._held.items() if progress.leaving]

    def to_fetch(self) -> dict[TopicPartition, int]:
        """Positions without records fetched ahead."""
        return {
            partition: progress.position
            for partition, progress in self._held.items()
            if progress.ahead is None and not progress.leaving
        }

    def collect(self, max_records: int, max_bytes: int) -> Batch:
        """Records that were fetched ahead, beginning with another partition each time; at least one if there is any."""
        batch = Batch()
        ready = sorted(
            (partition, progress.ahead) for partition, progress in self._held.items() if progress.ahead is not None
        )
        self._turn += 1
        first = self._turn % len(ready) if ready else 0
        for partition, part in ready[first:] + ready[:first]:
            if len(batch.records) >= max_records or batch.bytes >= max_bytes:
                break
            self._collect_from(partition, part, batch, max_records, max_bytes)
        return batch

    def _collect_from(
        self, partition: TopicPartition, part: FetchedPartition, batch: Batch, max_records: int, max_bytes: int
    ) -> None:
        taken = 0
        for record in part.records:
            size = len(record.key or b"") + len(record.value or b"") + _RECORD_OVERHEAD
            if batch.records and (len(batch.records) >= max_records or batch.bytes + size > max_bytes):
                break
            batch.records.append((partition, record))
            batch.bytes += size
            taken += 1
        if taken:
            batch.before[partition] = self._held[partition].position
            batch.after[partition] = part.next_offset if taken == len(part.records) else part.records[taken].offset

    def hand_out(self, batch: Batch) -> bool:
        """Moves the positions. False if a partition was revoked or its position changed in the meantime."""
        for partition, offset in batch.before.items():
            if partition not in self._held or self._held[partition].position != offset:
                return False
        for partition, offset in batch.after.items():
            self._held[partition].move(offset)
        return True

    def take_back(self, batch: Batch) -> None:
        """The response could not be sent: moves the positions back."""
        for partition, offset in batch.before.items():
            if partition in self._held and self._held[partition].position == batch.after[partition]:
                self._held[partition].take_back(offset)
