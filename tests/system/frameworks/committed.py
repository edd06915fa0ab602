"""What readers of committed records see of a topic, partition by partition, in the order of its offsets."""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka import Consumer, TopicPartition

from tests.waiting import LONG_TIMEOUT_SECONDS


class Committed:
    """Reads a topic from its beginning. `values` has what was read so far, by partition."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"reader-of-{topic}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        self.values: dict[int, list[str]] = {number: [] for number in range(partitions)}

    @property
    def count(self) -> int:
        return sum(map(len, self.values.values()))

    def has(self, count: int) -> bool:
        """Whether at least so many records are there; reads on."""
        for message in self._consumer.consume(1000, timeout=0.2):
            if message.error() is None:
                self.values[message.partition() or 0].append((message.value() or b"").decode())
        return self.count >= count

    def await_count(self, count: int, what: str, check: Callable[[], object] = lambda: None) -> None:
        """Waits until so many records are there: the bound is on the time without any progress. `check` fails if they
        cannot come any more."""
        before, deadline = -1, 0.0
        while not self.has(count):
            check()
            if self.count > before:
                before, deadline = self.count, time.monotonic() + LONG_TIMEOUT_SECONDS
            assert time.monotonic() < deadline, (
                f"{what}: {self.count} of {count}, no more in {LONG_TIMEOUT_SECONDS:g} s"
            )

    def close(self) -> None:
        self._consumer.close()
