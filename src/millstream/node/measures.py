"""How often something took how long: the one instrument of the hot paths. Counters there are plain integers.

Belongs to no room: whoever does the work holds its instruments, and `metrics/` reads them when it is asked. A histogram
is used by one thread; where several observe, whoever has it holds a lock around it.
"""

from bisect import bisect_left

REQUEST_SECONDS = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)
"""Bounds for the durations of requests, including long polls."""
PAUSE_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Bounds for pauses of the event loop, and for disk operations."""


class Histogram:
    """Counts of observations by upper bound. The counts are not cumulative; the text format adds them up."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """The last count is for values above all bounds."""
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)
