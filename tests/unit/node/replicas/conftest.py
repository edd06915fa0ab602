"""Three brokers in three racks, with a controller apart so that a broker can be stopped without the quorum noticing."""

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar
from uuid import UUID

import pytest

from millstream.formats.protocol.schema import Message
from millstream.testing import EmbeddedCluster
from tests.topics import await_topic
from tests.waiting import TIMEOUT_SECONDS
from tests.wire import Wire, values

T = TypeVar("T")
_numbers = itertools.count()
SETTINGS = {
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "replica.lag.time.max.ms": 2000,
    "replica.fetch.wait.max.ms": 200,
    "auto.leader.rebalance.enable": "false",
}


class Replicated:
    """The cluster, and what the tests of it ask by raw requests."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.cluster = cluster
        self._wires: dict[int, Wire] = {}

    def wire(self, number: int) -> Wire:
        """A connection to a node, kept; `forget` ends it."""
        if number not in self._wires:
            self._wires[number] = Wire(self.cluster.address(number))
        return self._wires[number]

    def forget(self, *numbers: int) -> None:
        for number in numbers:
            wire = self._wires.pop(number, None)
            if wire is not None:
                wire.close()

    def create(self, replicas: list[int], **configs: str) -> str:
        """A topic of one partition, whose first replica leads."""
        name = f"topic-{next(_numbers)}"
        topic = {
            "name": name,
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [{"partition_index": 0, "broker_ids": replicas}],
            "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
        }
        number = next(number for number in self.cluster.brokers if self.cluster.running(number))
        (row,) = self.wire(number).call("create_topics", 7, topics=[topic], timeout_ms=20_000).topics
        assert row.error_code == 0, (row.error_code, row.error_message)
        await_topic(self.cluster, name, 1)
        return name

    def partition(self, topic: str, *, asked: int) -> Message:
        """The partition as one node's metadata has it; AssertionError if it has not heard of it."""
        (row,) = self.wire(asked).call("metadata", 12, topics=[{"name": topic}]).topics
        assert row.error_code == 0 and len(row.partitions) == 1
        found: Message = row.partitions[0]
        return found

    def topic_id(self, topic: str, asked: int) -> UUID:
        (row,) = self.wire(asked).call("metadata", 12, topics=[{"name": topic}]).topics
        found: UUID = row.topic_id
        return found

    def wait_for(self, topic: str, *, isr: set[int], asked: int, leader: int | None = None) -> Message:
        def check() -> Message:
            partition = self.partition(topic, asked=asked)
            assert set(partition.isr_nodes) == isr, partition
            assert leader is None or partition.leader_id == leader, partition
            return partition

        return eventually(check)

    def fetch(self, number: int, topic: str, offset: int, version: int = 12, **fields: Any) -> Message:
        partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        partition |= fields.pop("partition", {})
        row: dict[str, Any] = {"topic": topic, "partitions": [partition]}
        if version >= 13:
            row["topic_id"] = self.topic_id(topic, number)
        response = self.wire(number).call(
            "fetch", version, **{"max_wait_ms": 0, "min_bytes": 1, "topics": [row], **fields}
        )
        assert response.error_code == 0, response
        found: Message = response.responses[0].partitions[0]
        return found

    def read_all(self, number: int, topic: str) -> list[bytes]:
        """The values of all records: a response ends with a segment."""
        found: list[bytes] = []
        while more := values(self.fetch(number, topic, len(found)).records):
            found += more
        return found

    def end(self, number: int, topic: str, *, timestamp: int = -1, **fields: Any) -> Message:
        row = {"partition_index": 0, "timestamp": timestamp}
        response = self.wire(number).call(
            "list_offsets", 7, **{"replica_id": -1, "topics": [{"name": topic, "partitions": [row]}], **fields}
        )
        found: Message = response.topics[0].partitions[0]
        return found


def eventually(check: Callable[[], T], *, seconds: float = TIMEOUT_SECONDS) -> T:
    """What `check` returns, once it does not raise AssertionError any more."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return check()
        except AssertionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@pytest.fixture(scope="package")
def running() -> Iterator[EmbeddedCluster]:
    racks = {number: {"broker.rack": f"rack-{number}"} for number in (1, 2, 3)}
    with EmbeddedCluster(3, SETTINGS, node_settings=racks, controllers=1) as cluster:
        yield cluster
        for number in cluster.nodes:
            log = cluster.log_file(number).read_text()
            assert "Traceback" not in log, log[-3000:]


@pytest.fixture
def replicated(running: EmbeddedCluster) -> Iterator[Replicated]:
    """All brokers run when a test begins; a test may stop some."""
    found = Replicated(running)
    yield found
    for number in running.brokers:
        if not running.running(number):
            running.start(number)
        else:
            running.resume(number)
    found.forget(*running.brokers)
