"""How fast the cleaner may read and write, all of its threads together (`log.cleaner.io.max.bytes.per.second`)."""

SMOOTHING_SECONDS = 0.3
"""How much may be done at once, in seconds of the rate."""


class Throttle:
    __slots__ = ("_free_at", "bytes_per_second")

    def __init__(self) -> None:
        self.bytes_per_second = float("inf")
        self._free_at = 0.0

    def piece_bytes(self, most: int) -> int:
        """How many bytes to do before asking again."""
        return int(min(most, max(1.0, self.bytes_per_second * SMOOTHING_SECONDS)))

    def delay_seconds(self, done_bytes: int, now: float) -> float:
        """How long to wait after so many bytes."""
        self._free_at = max(self._free_at, now) + done_bytes / self.bytes_per_second
        return max(0.0, self._free_at - now)
