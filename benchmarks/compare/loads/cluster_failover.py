"""Kill -9 of a partition's leader, and the time until a write to that partition is acknowledged elsewhere.

Default settings on both sides. Two clients try at the same time: bare requests every few milliseconds, which see what
the cluster does, and a librdkafka producer at its defaults, which is what a user feels. Once the leader is an ordinary
broker, once it is the active controller as well, so that a controller has to be elected first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import ClassVar

from confluent_kafka import KafkaError, Message, Producer

from benchmarks.compare import wire
from benchmarks.compare.cluster_target import ClusterTarget
from benchmarks.compare.cluster_topic import controller_of, replicated_topic, rows_at, wait_until_whole
from benchmarks.compare.measure import Load, Measure, Scale
from benchmarks.compare.target import Target

_RETRY_SECONDS = 0.005
_TIMEOUT_SECONDS = 60.0
_PROMISED_SECONDS = 1.5


class ClusterFailover(Load):
    name: ClassVar[str] = "cluster-failover"
    title: ClassVar[str] = "Death of a leader"
    measures: Sequence[Measure] = (
        Measure("broker", "kill -9 of a leader to the first ack elsewhere", "s", "lower", at_most=_PROMISED_SECONDS),
        Measure("broker_client", "the same, librdkafka at its defaults", "s", "lower"),
        Measure(
            "controller", "kill -9 of leader and controller to the first ack", "s", "lower", at_most=_PROMISED_SECONDS
        ),
        Measure("controller_client", "the same, librdkafka at its defaults", "s", "lower"),
    )

    def run(self, target: Target, scale: Scale) -> dict[str, float]:
        assert isinstance(target, ClusterTarget)
        values: dict[str, float] = {}
        for key in ("broker", "controller"):
            controller = controller_of(target)
            ordinary = next(node_id for node_id in target.addresses if node_id != controller)
            victim = controller if key == "controller" else ordinary
            values[key], values[f"{key}_client"] = _fail_over(target, victim)
        return values


def _fail_over(target: ClusterTarget, victim: int) -> tuple[float, float]:
    with replicated_topic(target, 1, leader=victim) as topic:
        client = _Client(target.bootstrap, topic)
        client.start()
        try:
            client.wait_for_ack_since(time.monotonic())
            killed_at = time.monotonic()
            target.kill(victim)
            bare_s = _first_ack_elsewhere(target, topic, victim) - killed_at
            client_s = client.wait_for_ack_since(killed_at) - killed_at
        finally:
            client.stop()
            if victim not in target.pids:
                target.start_node(victim)
        wait_until_whole(target, topic, 1)
    return bare_s, client_s


def _first_ack_elsewhere(target: ClusterTarget, topic: str, victim: int) -> float:
    """When a bare Produce was acknowledged by another leader than the victim."""
    request = wire.produce_request(topic, 0, wire.record_batch([b"after the kill"]))
    survivors = [node_id for node_id in target.addresses if node_id != victim]
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        for node_id in survivors:
            try:
                leader = rows_at(target, node_id, topic)[0].leader
                if leader not in survivors:
                    continue
                with wire.connect(target.addresses[leader], timeout_s=5) as connection:
                    if wire.produce_error(wire.ask(connection, request), topic) == 0:
                        return time.monotonic()
            except (OSError, KeyError):
                continue
        time.sleep(_RETRY_SECONDS)
    raise RuntimeError(f"{target.name}: nothing was acknowledged within {_TIMEOUT_SECONDS:.0f} s of the kill")


class _Client(threading.Thread):
    """A librdkafka producer at its defaults that sends a record every few milliseconds."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 2})
        self._topic = topic
        self._ending = threading.Event()
        self._acked = threading.Condition()
        self._acks: list[tuple[float, float]] = []

    def run(self) -> None:
        while not self._ending.is_set():
            self._send()
            self._producer.poll(2 * _RETRY_SECONDS)
        self._producer.purge()
        self._producer.flush(5)

    def _send(self) -> None:
        sent_at = time.monotonic()

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is None:
                with self._acked:
                    self._acks.append((sent_at, time.monotonic()))
                    self._acked.notify_all()

        try:
            self._producer.produce(self._topic, b"x" * 100, partition=0, on_delivery=delivered)
        except BufferError:
            pass

    def wait_for_ack_since(self, since: float) -> float:
        """When the first record that was sent after `since` was acknowledged."""

        def found() -> float | None:
            return next((acked_at for sent_at, acked_at in self._acks if sent_at > since), None)

        with self._acked:
            if not self._acked.wait_for(lambda: found() is not None, _TIMEOUT_SECONDS):
                raise RuntimeError(f"librdkafka got nothing acknowledged within {_TIMEOUT_SECONDS:.0f} s")
            at = found()
            assert at is not None
            return at

    def stop(self) -> None:
        self._ending.set()
        self.join(timeout=20)
