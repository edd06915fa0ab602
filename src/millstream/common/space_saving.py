"""The heaviest keys of a stream in fixed memory: the space-saving sketch, with decaying weights.

Metwally, Agrawal, El Abbadi, "Efficient Computation of Frequent and Top-k Elements in Data Streams" (2005), with
forward decay (Cormode et al., 2009): a weight is halved in each half-life. There are never more than `capacity` keys.
An estimate is at most `error` too high and never too low. The time is an argument. The broker's hot keys and the
client's partitioners use it.
"""

from collections.abc import Hashable
from heapq import heapify, heapreplace
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)
_RESCALE_AT = 1e100


class Estimate(NamedTuple, Generic[K]):
    """The decayed weight of a key: at most `weight`, at least `weight - error`."""

    key: K
    weight: float
    error: float


class SpaceSaving(Generic[K]):
    """Counts weights by key. Times are in seconds and must not go back by much."""

    def __init__(self, capacity: int, half_life_s: float) -> None:
        assert capacity > 0 and half_life_s > 0
        self.capacity = capacity
        self.half_life_s = half_life_s
        # Weights are scaled to the time `_origin`: new weights are scaled up instead of scaling all old ones down.
        self._origin: float | None = None
        self._total = 0.0
        self._counts: dict[K, list[float]] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._pushed = 0

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, key: K, weight: float, now_s: float) -> None:
        scaled = weight * self._growth(now_s)
        self._total += scaled
        found = self._counts.get(key)
        if found is not None:
            found[0] += scaled
        elif len(self._counts) < self.capacity:
            self._counts[key] = [scaled, 0.0]
            self._pushed += 1
            self._heap.append((scaled, self._pushed, key))
            if len(self._counts) == self.capacity:
                heapify(self._heap)
        else:
            self._replace_least(key, scaled)

    def estimate(self, key: K, now_s: float) -> Estimate[K]:
        """The estimate of one key; weight 0 if the key is not counted."""
        found = self._counts.get(key)
        if found is None:
            return Estimate(key, 0.0, 0.0)
        growth = self._growth(now_s)
        return Estimate(key, found[0] / growth, found[1] / growth)

    def total(self, now_s: float) -> float:
        """The faded weight of everything that was added, kept or not."""
        return self._total / self._growth(now_s)

    def top(self, count: int, now_s: float) -> list[Estimate[K]]:
        """The heaviest keys, heaviest first."""
        growth = self._growth(now_s)
        heaviest = sorted(self._counts.items(), key=lambda item: -item[1][0])[:count]
        return [Estimate(key, weight / growth, error / growth) for key, (weight, error) in heaviest]

    def _replace_least(self, key: K, scaled: float) -> None:
        # The heap holds each key's count as it was when it was last looked at. Counts only grow, so the least is found
        # by putting right whatever lies on top until it is right already.
        heap, counts = self._heap, self._counts
        while True:
            noted, _, least = heap[0]
            actual = counts[least][0]
            self._pushed += 1
            if actual <= noted:
                break
            heapreplace(heap, (actual, self._pushed, least))
        del counts[least]
        counts[key] = [actual + scaled, actual]
        heapreplace(heap, (actual + scaled, self._pushed, key))

    def _growth(self, now_s: float) -> float:
        if self._origin is None:
            self._origin = now_s
        half_lives = (now_s - self._origin) / self.half_life_s
        if half_lives > 1000:  # 2.0 ** 1024 is no number any more; everything so old is nothing
            self._scale(0.0, now_s)
            return 1.0
        growth: float = 2.0**half_lives
        if growth > _RESCALE_AT:
            self._scale(1 / growth, now_s)
            return 1.0
        return growth

    def _scale(self, factor: float, now_s: float) -> None:
        self._origin = now_s
        self._total *= factor
        for counted in self._counts.values():
            counted[0] *= factor
            counted[1] *= factor
        self._heap = [(counted[0], index, key) for index, (key, counted) in enumerate(self._counts.items())]
        self._pushed = len(self._heap)
        if len(self._counts) == self.capacity:
            heapify(self._heap)
