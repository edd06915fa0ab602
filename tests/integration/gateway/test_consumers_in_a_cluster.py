"""Consumers and streams over HTTP while brokers die: every acknowledged record arrives."""

import itertools
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from confluent_kafka import Message, Producer

from millstream.gateway.consumers.fetches import PendingFetches
from millstream.gateway.server import Gateway, GatewayOptions
from millstream.raw_client import Cluster, CoordinatorKind, TopicPartition
from millstream.testing import EmbeddedCluster
from tests.topics import make_topic
from tests.waiting import TIMEOUT_SECONDS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SETTINGS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "500",
}


@pytest.fixture(scope="module")
def nodes() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(3, SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def gateway(nodes: EmbeddedCluster) -> Iterator[Gateway]:
    with Gateway(GatewayOptions(nodes.bootstrap_servers)) as running:
        yield running


class Writing:
    """Numbers to all partitions until it is told to end; `acked` is what the cluster has promised to keep."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.acked: set[str] = set()
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "enable.idempotence": True})
        self._topic, self._partitions = topic, partitions
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        for number in itertools.count():
            if self._ended.wait(0.005):
                break
            self._producer.produce(
                self._topic, str(number), partition=number % self._partitions, on_delivery=self._delivered
            )
            self._producer.poll(0)
        assert self._producer.flush(TIMEOUT_SECONDS) == 0

    def _delivered(self, error: object, message: Message) -> None:
        if error is None:
            value = message.value()
            assert value is not None
            self.acked.add(value.decode())

    def end(self) -> None:
        self._ended.set()
        self._thread.join(TIMEOUT_SECONDS)


def test_a_consumer_goes_on_when_leaders_and_its_coordinator_die(nodes: EmbeddedCluster, gateway: Gateway) -> None:
    topic, group = "read-under-fire", "under-fire"
    with Cluster(nodes.bootstrap_servers) as cluster, httpx.Client(base_url=gateway.url, timeout=70) as http:
        make_topic(nodes, topic, 3)
        assert http.post(f"/consumers/{group}/subscribe", json={"topics": [topic]}).status_code == 200
        writing = Writing(nodes.bootstrap_servers, topic, 3)
        handed: list[tuple[int, int]] = []
        values: list[str] = []

        def read() -> None:
            response = http.get(f"/consumers/{group}/poll", params={"timeout_ms": 1_000, "format": "text"})
            if response.status_code in (503, 504):  # no one leads just now: said, not hidden
                return
            assert response.status_code == 200, response.text
            for row in response.json()["messages"]:
                handed.append((row["partition"], row["offset"]))
                values.append(row["value"])
            if values:
                committed = http.post(f"/consumers/{group}/offsets")
                assert committed.status_code in (200, 409, 503, 504), committed.text

        def read_for(seconds: float) -> None:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                read()

        try:
            read_for(2)
            coordinator = cluster.coordinator_of(group, CoordinatorKind.GROUP)
            found = next(row.node_id for row in cluster.brokers() if row.port == coordinator.port)
            leader = cluster.leader_of(TopicPartition(topic, 0)).node_id
            for victim in dict.fromkeys((leader, found)):
                nodes.kill(victim)
                read_for(8)
                nodes.restart(victim)
                read_for(4)
        finally:
            writing.end()
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not writing.acked <= set(values):
            assert time.monotonic() < deadline, f"missing: {sorted(writing.acked - set(values))[:10]}"
            read()
        assert len(writing.acked) > 500
        for partition in range(3):
            offsets = [offset for number, offset in handed if number == partition]
            # In order; a member that was forgotten may read again what was not committed.
            restarts = sum(later <= earlier for earlier, later in itertools.pairwise(offsets))
            assert restarts <= 4 and set(offsets) == set(range(max(offsets) + 1))


def test_after_a_leader_died_waiting_costs_nothing_again(
    nodes: EmbeddedCluster, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written, so the fetch at the new leader waits: there must be no turning round meanwhile."""
    topic, group = "quiet-after-fire", "quiet-group"
    rounds = 0
    original = PendingFetches._wait

    async def counted(*given: Any) -> None:
        nonlocal rounds
        rounds += 1
        await original(*given)

    with Cluster(nodes.bootstrap_servers) as cluster, httpx.Client(base_url=gateway.url, timeout=70) as http:
        make_topic(nodes, topic, 1)
        assert http.post(f"/consumers/{group}/subscribe", json={"topics": [topic]}).status_code == 200

        def poll(seconds: int) -> httpx.Response:
            return http.get(f"/consumers/{group}/poll", params={"timeout_ms": seconds * 1_000})

        def settle() -> None:
            deadline = time.monotonic() + TIMEOUT_SECONDS
            while poll(2).status_code != 200:
                assert time.monotonic() < deadline

        settle()
        victim = cluster.leader_of(TopicPartition(topic, 0)).node_id
        nodes.kill(victim)
        try:
            settle()
            monkeypatch.setattr(PendingFetches, "_wait", counted)
            found = []
            for _ in range(5):  # the cluster may not be at rest yet
                rounds = 0
                poll(4)
                found.append(rounds)
                if rounds <= 20:
                    break
            assert 1 <= found[-1] <= 20, found
        finally:
            nodes.restart(victim)


def test_a_stream_goes_on_when_a_leader_dies(nodes: EmbeddedCluster, gateway: Gateway) -> None:
    topic = "streamed-under-fire"
    with Cluster(nodes.bootstrap_servers) as cluster:
        make_topic(nodes, topic, 2)
        writing = Writing(nodes.bootstrap_servers, topic, 2)
        values: list[str] = []
        victim = cluster.leader_of(TopicPartition(topic, 0)).node_id
        url = f"{gateway.url}/topics/{topic}/stream?from=earliest&format=text"
        ended = struck = False
        with httpx.stream("GET", url, timeout=TIMEOUT_SECONDS) as response:
            for line in response.iter_lines():
                if line.startswith('data: {"topic"'):
                    values.append(json.loads(line[6:])["value"])
                if len(values) >= 200 and not struck:
                    struck = True
                    nodes.kill(victim)
                if len(values) >= 1000 and not ended:
                    ended = True
                    writing.end()
                    nodes.restart(victim)
                if ended and len(values) >= len(writing.acked) and writing.acked <= set(values):
                    break
        assert len(values) == len(set(values)), "nothing comes twice"
