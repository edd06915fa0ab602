"""Throttles for the replication of some replicas, such as those of a reassignment.

The replicas are a setting of the topic (`leader.replication.throttled.replicas`, `follower.…`: `partition:broker, …` or
`*`), the rate one of the broker (`leader.replication.throttled.rate`, `follower.…`). In-sync replicas are never
throttled.
"""

from collections import deque
from collections.abc import Callable, Mapping

_SAMPLES = 11
"""Seconds over which the rate is measured, as in Kafka."""
Names = frozenset[tuple[int, int]]


def parse_throttled(text: str) -> "Names | None":
    """Partition and broker of each throttled replica; None for all. Malformed entries are ignored."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if "*" in words:
        return None
    named = set()
    for word in words:
        partition, _, broker = word.partition(":")
        if partition.strip().isdigit() and broker.strip().isdigit():
            named.add((int(partition), int(broker)))
    return frozenset(named)


class ReplicaThrottle:
    """One direction of one node: what it sends as leader, or what it fetches as follower."""

    def __init__(
        self,
        setting: str,
        node_id: int,
        topic_config: Callable[[str], Mapping[str, str]],
        rate: Callable[[], int],
        now: Callable[[], float],
    ) -> None:
        self._setting = setting
        self._node_id = node_id
        self._topic_config = topic_config
        self._rate = rate
        self._now = now
        self._parsed: dict[str, Names | None] = {}
        self._samples: deque[tuple[int, int]] = deque()
        self.bytes = 0
        """Bytes that were copied under the throttle."""
        self.pauses = 0
        """How often a replica was paused."""

    def is_throttled(self, topic: str, partition: int) -> bool:
        text = self._topic_config(topic).get(self._setting)
        if not text:
            return False
        if text not in self._parsed:
            if len(self._parsed) > 1000:
                self._parsed.clear()
            self._parsed[text] = parse_throttled(text)
        named = self._parsed[text]
        return named is None or (partition, self._node_id) in named

    def record(self, size: int) -> None:
        self.bytes += size
        second = int(self._now())
        if self._samples and self._samples[-1][0] == second:
            self._samples[-1] = second, self._samples[-1][1] + size
        else:
            self._samples.append((second, size))

    @property
    def limit(self) -> int:
        """Bytes per second."""
        return self._rate()

    def is_exceeded(self) -> bool:
        second = int(self._now())
        samples = self._samples
        while samples and samples[0][0] <= second - _SAMPLES:
            samples.popleft()
        if not samples:
            return False
        # A window that has just begun counts almost as a whole one, so that a short burst is not throttled.
        elapsed = max(second - samples[0][0] + 1, _SAMPLES - 1)
        return sum(size for _, size in samples) > self._rate() * elapsed
