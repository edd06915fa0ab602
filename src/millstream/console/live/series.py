"""Numbers over time for charts: the last so many, in little memory."""

from array import array
from collections.abc import Iterator

KEPT_POINTS = 900


class Series:
    def __init__(self, kept: int = KEPT_POINTS) -> None:
        self._kept = kept
        self._times = array("d")
        self._values = array("d")

    def __len__(self) -> int:
        return len(self._times)

    def add(self, at: float, value: float) -> None:
        if self._times and at <= self._times[-1]:
            return
        self._times.append(at)
        self._values.append(value)
        if len(self._times) > self._kept * 5 // 4:  # not one by one: that would move all of them each time
            cut = len(self._times) - self._kept
            del self._times[:cut]
            del self._values[:cut]

    def points(self, since: float = 0.0) -> Iterator[tuple[float, float]]:
        for at, value in zip(self._times, self._values, strict=True):
            if at >= since:
                yield at, value

    def last(self) -> float | None:
        return self._values[-1] if self._values else None
