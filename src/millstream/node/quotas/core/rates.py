"""Rates and throttle times, computed as Kafka does.

`SampledRate` counts over samples (`quota.window.num` samples of `quota.window.size.seconds`): ten whole ones and the
current one. A rate is measured over at least ten samples, so a client that was idle may send ten seconds' worth at
once. `TokenBucket` allows a burst and then a steady rate; controller mutations use it. The time is an argument.
"""

from collections import deque


class SampledRate:
    """The rate of a quantity per second, over the last samples."""

    __slots__ = ("_sample_seconds", "_samples", "_samples_kept", "last_event")

    def __init__(self, samples: int, sample_seconds: float) -> None:
        self._samples_kept = samples
        self._sample_seconds = sample_seconds
        self._samples: deque[list[float]] = deque()  # start, last event, sum
        self.last_event = 0.0

    def record(self, amount: float, now: float) -> None:
        samples = self._samples
        self.last_event = now
        if samples:
            last = samples[-1]
            if now - last[0] < self._sample_seconds:
                last[1] = now
                last[2] += amount
                return
        samples.append([now, now, amount])
        if len(samples) > self._samples_kept + 1:
            samples.popleft()

    def measure(self, now: float) -> tuple[float, float]:
        """The rate, and the seconds over which it was measured."""
        samples, size = self._samples, self._sample_seconds
        while samples and now - samples[0][1] >= self._samples_kept * size:
            samples.popleft()
        if not samples:
            return 0.0, max((self._samples_kept - 1) * size, 0.001)
        elapsed = now - samples[0][0]
        missing = self._samples_kept - 1 - int(elapsed / size)
        if missing > 0:
            elapsed += missing * size
        elapsed = max(elapsed, 0.001)
        return sum(sample[2] for sample in samples) / elapsed, elapsed

    def throttle_ms(self, limit: float, now: float) -> int:
        """The time without events after which the rate is within the limit; 0 if it is."""
        rate, seconds = self.measure(now)
        if rate <= limit:
            return 0
        return min(round((rate - limit) / limit * seconds * 1000), MAX_THROTTLE_MS)

    def is_idle(self, now: float) -> bool:
        """Whether nothing was counted for so long that the rate is zero."""
        return now - self.last_event >= self._samples_kept * self._sample_seconds


MAX_THROTTLE_MS = (1 << 31) - 1
"""`throttle_time_ms` has 32 bits."""


class TokenBucket:
    """Tokens are added at the rate of the limit, up to a burst; they may become fewer than zero."""

    __slots__ = ("_burst_seconds", "_filled_at", "_tokens", "limit")

    def __init__(self, limit: float, burst_seconds: float, now: float) -> None:
        self.limit = limit
        self._burst_seconds = burst_seconds
        self._tokens = limit * burst_seconds
        self._filled_at = now

    def _fill(self, now: float) -> None:
        self._tokens = min(self._tokens + (now - self._filled_at) * self.limit, self.limit * self._burst_seconds)
        self._filled_at = now

    def take(self, amount: float, now: float) -> None:
        self._fill(now)
        self._tokens -= amount

    def throttle_ms(self, now: float) -> int:
        """The time until there is a token again; 0 if there is one, or none is owed."""
        self._fill(now)
        if self._tokens >= 0:
            return 0
        return max(1, min(round(-self._tokens / self.limit * 1000), MAX_THROTTLE_MS))

    def is_full(self, now: float) -> bool:
        self._fill(now)
        return self._tokens >= self.limit * self._burst_seconds
