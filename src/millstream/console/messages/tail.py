"""What arrives in a topic, step by step, for someone who watches: never behind, whatever the rate.

Each step asks for the ends of all partitions and reads only what is new. More than can be looked at is skipped, oldest
first, and counted: a watcher wants what happens now.
"""

from collections.abc import Collection
from dataclasses import dataclass

from millstream.console.messages.reading import Allowance, FoundRecord, Matches, Range, RecordReader

MOST_RECORDS = 200
_MOST_LOOKED_AT = 50_000
_MOST_BYTES = 16 << 20
_LONGEST_S = 2.0


@dataclass(frozen=True, slots=True)
class Step:
    records: list[FoundRecord]
    """Oldest first."""
    looked_at: int
    skipped: int
    """Offsets that were passed over, of which some may have had no record."""
    problems: list[str]


class RecordTail:
    """Begins at the ends as they are at the first step. Blocking; for one thread at a time."""

    def __init__(
        self,
        reader: RecordReader,
        topic: str,
        partitions: Collection[int] | None = None,
        matches: Matches | None = None,
    ) -> None:
        self._reader = reader
        self._topic = topic
        self._partitions = partitions
        self._matches = matches
        self._positions: dict[int, int] | None = None

    def step(self, most: int = MOST_RECORDS) -> Step:
        ranges = self._reader.ranges(self._topic, self._partitions)
        if self._positions is None:
            self._positions = {index: span.end for index, span in ranges.items()}
            return Step([], 0, 0, [])
        # A partition that was added since is read from its beginning; one that lost records from its end, from there.
        grown = {
            index: Range(max(span.start, self._positions.get(index, span.start)), span.end)
            for index, span in ranges.items()
            if span.end > self._positions.get(index, span.start)
        }
        self._positions = {index: span.end for index, span in ranges.items()}
        if not grown:
            return Step([], 0, 0, [])
        allowance = Allowance(_MOST_LOOKED_AT, _MOST_BYTES, _LONGEST_S)
        page = self._reader.backwards(self._topic, grown, most, self._matches, allowance)
        skipped = sum(page.following[index] - span.start for index, span in grown.items()) if page.more else 0
        return Step(page.records[::-1], page.looked_at, skipped, page.problems)
