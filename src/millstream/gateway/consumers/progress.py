"""Where a consumer is in each of its partitions: what is fetched ahead, handed out, and committed.

    committed ≤ settled ≤ reached, and the position anywhere up to `reached`

A position moves only when records are handed out, in the moment before the answer is sent. What was fetched and not
handed out, or belonged to an answer that could not be sent, is still before the position and comes again.
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
    """What the group committed, if it ever did."""
    reached: int = 0
    """How far the position ever was: so far may be committed, also after a seek back."""
    settled: int = 0
    """Up to here nothing is open: where it began, or what the caller has committed since."""
    ahead: FetchedPartition | None = None
    """Fetched from the position on, and not handed out yet."""
    leaving: bool = False
    """To go to another member as soon as the caller has committed what it got, or goes on without."""

    def __post_init__(self) -> None:
        self.reached = self.settled = self.position

    @property
    def is_open(self) -> bool:
        """Records were handed out that are not committed."""
        return self.reached > self.settled

    def move(self, offset: int) -> None:
        """By handing out what comes before the offset."""
        self.position = offset
        self.reached = max(self.reached, offset)
        part, self.ahead = self.ahead, None
        if part is not None:
            rest = [record for record in part.records if record.offset >= offset]
            self.ahead = FetchedPartition(rest, part.next_offset) if rest else None

    def skip(self, offset: int) -> None:
        """Over what is never shown, such as the markers of transactions, so nobody could commit it."""
        was_open = self.is_open
        self.move(offset)
        if not was_open:
            self.settled = self.reached

    def seek(self, offset: int) -> None:
        self.ahead = None
        self.position = offset
        self.reached = max(self.reached, offset)

    def begin_at(self, offset: int) -> None:
        """What came before is gone."""
        self.ahead = None
        self.position = self.reached = self.settled = offset

    def take_back(self, before: int) -> None:
        if self.reached == self.position:
            self.reached = before
        self.position = before
        self.ahead = None


@dataclass(slots=True)
class Batch:
    """Records that may be handed out, and where each partition is before and after."""

    records: list[tuple[TopicPartition, Record]] = field(default_factory=list)
    bytes: int = 0
    before: dict[TopicPartition, int] = field(default_factory=dict)
    after: dict[TopicPartition, int] = field(default_factory=dict)


class Progress:
    def __init__(self) -> None:
        self._held: dict[TopicPartition, PartitionProgress] = {}
        self._turn = 0

    def __contains__(self, place: TopicPartition) -> bool:
        return place in self._held

    def __getitem__(self, place: TopicPartition) -> PartitionProgress:
        return self._held[place]

    def get(self, place: TopicPartition) -> PartitionProgress | None:
        return self._held.get(place)

    def begin(self, place: TopicPartition, position: int, committed: int | None) -> None:
        self._held[place] = PartitionProgress(position, committed)

    def drop(self, places: Collection[TopicPartition]) -> None:
        for place in places:
            self._held.pop(place, None)

    def items(self) -> Iterator[tuple[TopicPartition, PartitionProgress]]:
        yield from list(self._held.items())

    @property
    def leaving(self) -> list[TopicPartition]:
        return [place for place, held in self._held.items() if held.leaving]

    def to_fetch(self) -> dict[TopicPartition, int]:
        """Positions of which nothing is fetched ahead."""
        return {place: held.position for place, held in self._held.items() if held.ahead is None and not held.leaving}

    def collect(self, max_records: int, max_bytes: int) -> Batch:
        """From what was fetched ahead, another partition first each time; at least one record if there is any."""
        batch = Batch()
        ready = sorted((place, held.ahead) for place, held in self._held.items() if held.ahead is not None)
        self._turn += 1
        first = self._turn % len(ready) if ready else 0
        for place, part in ready[first:] + ready[:first]:
            if len(batch.records) >= max_records or batch.bytes >= max_bytes:
                break
            self._collect_from(place, part, batch, max_records, max_bytes)
        return batch

    def _collect_from(
        self, place: TopicPartition, part: FetchedPartition, batch: Batch, max_records: int, max_bytes: int
    ) -> None:
        taken = 0
        for record in part.records:
            size = len(record.key or b"") + len(record.value or b"") + _RECORD_OVERHEAD
            if batch.records and (len(batch.records) >= max_records or batch.bytes + size > max_bytes):
                break
            batch.records.append((place, record))
            batch.bytes += size
            taken += 1
        if taken:
            batch.before[place] = self._held[place].position
            batch.after[place] = part.next_offset if taken == len(part.records) else part.records[taken].offset

    def hand_out(self, batch: Batch) -> bool:
        """Moves the positions; False if in the meantime something of it was taken away or moved."""
        for place, offset in batch.before.items():
            if place not in self._held or self._held[place].position != offset:
                return False
        for place, offset in batch.after.items():
            self._held[place].move(offset)
        return True

    def take_back(self, batch: Batch) -> None:
        """The answer did not go out."""
        for place, offset in batch.before.items():
            if place in self._held and self._held[place].position == batch.after[place]:
                self._held[place].take_back(offset)
