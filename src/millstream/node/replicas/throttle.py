"""How fast replicas may be copied that an operator has put under a throttle, such as those of a reassignment.

Which ones is a topic's setting (`leader.replication.throttled.replicas`, `follower.…`: `partition:broker, …` or `*`),
how fast a broker's (`leader.replication.throttled.rate`, `follower.…`). Replicas in sync are never held up.
"""

from collections import deque
from collections.abc import Callable, Mapping

_SAMPLES = 11
"""Seconds over which the rate is taken, as in Kafka."""
Names = frozenset[tuple[int, int]]


def parse_throttled(text: str) -> "Names | None":
    """Partition and broker of each throttled replica; None for all. What cannot be read names nobody."""
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
        """Copied under the throttle so far."""
        self.pauses = 0
        """How often a replica had to wait because of it."""

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
        # A window that has just begun counts as a whole one but for its last second: a burst is not an average.
        elapsed = max(second - samples[0][0] + 1, _SAMPLES - 1)
        return sum(size for _, size in samples) > self._rate() * elapsed
