"""Which transactions of a log are not settled: open ones, and those whose markers may not be committed yet.

What lies before the first of them is stable: `read_committed` may see it. Logs without transactions pay one test.
"""

from heapq import heappop, heappush


class Transactions:
    __slots__ = ("ended", "ongoing")

    def __init__(self) -> None:
        self.ongoing: dict[int, int] = {}
        """First offset by producer, in the order of the offsets: transactions begin where the log ends."""
        self.ended: list[tuple[int, int]] = []
        """(first offset, marker's offset) of those whose markers may not be below the high watermark, as a heap."""

    def __bool__(self) -> bool:
        return bool(self.ongoing or self.ended)

    def begin(self, producer_id: int, first_offset: int) -> None:
        self.ongoing[producer_id] = first_offset

    def end(self, producer_id: int, marker_offset: int) -> tuple[int, int]:
        """(first offset, last stable offset as the transaction index notes it) of an open transaction, now ended."""
        first_offset = self.ongoing.pop(producer_id)
        heappush(self.ended, (first_offset, marker_offset))
        return first_offset, next(iter(self.ongoing.values()), marker_offset + 1)

    def first_unstable(self, high_watermark: int) -> int | None:
        """The first offset that is undecided, or decided by a marker that is not below the high watermark."""
        ended = self.ended
        while ended and ended[0][1] < high_watermark:
            heappop(ended)
        first_open = next(iter(self.ongoing.values()), None)
        if not ended:
            return first_open
        return ended[0][0] if first_open is None else min(first_open, ended[0][0])
