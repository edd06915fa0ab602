"""Two clients that write to one partition without a break: bare requests, and a librdkafka producer at its defaults."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Sequence
from itertools import pairwise

from confluent_kafka import KafkaError, Message, Producer

from tests.system.chaos.nodes import Node
from tests.wire import Closed, Wire, batch

_PAUSE_SECONDS = 0.01
_METADATA_TIMEOUT_SECONDS = 0.5
_PRODUCE_TIMEOUT_SECONDS = 20.0


class Acks:
    """When records were sent and acknowledged."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._rows: list[tuple[float, float]] = []

    def add(self, sent_at: float) -> None:
        with self._changed:
            self._rows.append((sent_at, time.monotonic()))
            self._changed.notify_all()

    @property
    def count(self) -> int:
        return len(self._rows)

    def longest_silence(self) -> float:
        """The longest time between two acks."""
        with self._changed:
            times = [acked_at for _, acked_at in self._rows]
        return max((after - before for before, after in pairwise(times)), default=0.0)

    def first_since(self, since: float, until: float) -> float | None:
        """When the first record that was sent after `since` was acknowledged; waits for it until `until`."""

        def found() -> float | None:
            return min((acked_at for sent_at, acked_at in self._rows if sent_at > since), default=None)

        with self._changed:
            self._changed.wait_for(lambda: found() is not None, max(0.0, until - time.monotonic()))
            return found()


class BareWriter(threading.Thread):
    """Asks reachable brokers who leads, and writes there with acks=all. It shows what the cluster does."""

    def __init__(self, topic: str, partition: int, nodes: Sequence[Node]) -> None:
        super().__init__(daemon=True)
        self.acks = Acks()
        self._avoided: int | None = None
        """The node that a fault has hit: it is not asked."""
        self._open: tuple[int, Wire] | None = None
        self._topic = topic
        self._partition = partition
        self._nodes = {node.number: node for node in nodes}
        self._ending = threading.Event()

    def avoid(self, node: int) -> None:
        """From now on this node is not asked, and what was asked of it is given up."""
        self._avoided = node
        opened = self._open
        if opened is not None and opened[0] == node:
            with contextlib.suppress(OSError):
                opened[1].socket.shutdown(socket.SHUT_RDWR)

    def run(self) -> None:
        while not self._ending.wait(_PAUSE_SECONDS):
            for number, node in self._nodes.items():
                if number == self._avoided or self._ending.is_set():
                    continue
                try:
                    leader = self._leader(node)
                    if leader in self._nodes and leader != self._avoided:
                        self._write(self._nodes[leader])
                        break
                except (OSError, Closed):
                    continue

    def _leader(self, node: Node) -> int:
        with Wire(node.address, _METADATA_TIMEOUT_SECONDS) as wire:
            response = wire.call("metadata", 12, topics=[{"name": self._topic}])
        rows = response.topics[0].partitions
        return next((int(row.leader_id) for row in rows if row.partition_index == self._partition), -1)

    def _write(self, node: Node) -> None:
        rows = [{"index": self._partition, "records": batch(b"written through the fault")}]
        sent_at = time.monotonic()
        with Wire(node.address, _PRODUCE_TIMEOUT_SECONDS) as wire:
            self._open = node.number, wire
            response = wire.call(
                "produce", 11, acks=-1, timeout_ms=15_000, topic_data=[{"name": self._topic, "partition_data": rows}]
            )
        if response.responses[0].partition_responses[0].error_code == 0:
            self.acks.add(sent_at)

    def stop(self) -> None:
        self._ending.set()
        if self.ident is not None:
            self.join(timeout=_PRODUCE_TIMEOUT_SECONDS + 5)


class LibrdkafkaWriter(threading.Thread):
    """A producer at its defaults, which sends a record every few milliseconds. It shows what a user feels."""

    def __init__(self, bootstrap: str, topic: str, partition: int) -> None:
        super().__init__(daemon=True)
        self.acks = Acks()
        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 2})
        self._topic = topic
        self._partition = partition
        self._ending = threading.Event()

    def run(self) -> None:
        while not self._ending.is_set():
            self._send()
            self._producer.poll(_PAUSE_SECONDS)
        self._producer.purge()
        self._producer.flush(5)

    def _send(self) -> None:
        sent_at = time.monotonic()

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is None:
                self.acks.add(sent_at)

        try:
            self._producer.produce(self._topic, b"x" * 100, partition=self._partition, on_delivery=delivered)
        except BufferError:
            pass

    def stop(self) -> None:
        self._ending.set()
        self.join(timeout=20)
