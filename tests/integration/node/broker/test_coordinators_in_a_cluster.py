"""Groups and queues where the coordinator, the share coordinator and the partition's leader are different brokers."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.testing.embedded_cluster import EmbeddedCluster
from tests import wire as wires
from tests.topics import await_topic
from tests.waiting import TIMEOUT_SECONDS
from tests.wire import Wire

T = TypeVar("T")
ACCEPT, RELEASE, REJECT = 1, 2, 3
REPORTS = "__millstream_hot_keys"
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 6,
    "share.coordinator.state.topic.num.partitions": 6,
    "default.replication.factor": 3,
    "millstream.hot.keys.interval.ms": 1000,
}
PASSING = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
)


def eventually(attempt: Callable[[], "T | None"], what: str, seconds: float = TIMEOUT_SECONDS) -> T:
    deadline = time.monotonic() + seconds
    while True:
        found = attempt()
        if found is not None:
            return found
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class Cluster:
    """Raw connections to the brokers that live."""

    def __init__(self, nodes: EmbeddedCluster) -> None:
        self.nodes = nodes
        self._wires: dict[int, Wire] = {}

    def wire(self, number: int) -> Wire:
        if number not in self._wires:
            self._wires[number] = Wire(self.nodes.address(number))
        return self._wires[number]

    @property
    def any(self) -> Wire:
        return self.wire(next(number for number in self.nodes.brokers if self.nodes.running(number)))

    def kill(self, number: int) -> None:
        self.nodes.kill(number)
        if number in self._wires:
            self._wires.pop(number).close()

    def close(self) -> None:
        for wire in self._wires.values():
            wire.close()
        self._wires.clear()

    def coordinator(self, key: str, kind: int = 0) -> Wire:
        def find() -> Wire | None:
            (row,) = self.any.call("find_coordinator", 6, key_type=kind, coordinator_keys=[key]).coordinators
            return self.wire(row.node_id) if not row.error_code and self.nodes.running(row.node_id) else None

        return eventually(find, f"no coordinator of {key}")

    def leader(self, topic: str, index: int) -> int:
        def find() -> int | None:
            (row,) = self.any.call("metadata", 12, topics=[{"name": topic}]).topics
            known = [each.leader_id for each in row.partitions if each.partition_index == index]
            return known[0] if known and known[0] >= 0 and self.nodes.running(known[0]) else None

        return eventually(find, f"no leader of {topic}-{index}")

    def create(self, name: str, partitions: int, **configs: str) -> Any:
        rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 3, "configs": rows}
        (row,) = self.any.call("create_topics", 7, topics=[topic], timeout_ms=10_000, validate_only=False).topics
        assert row.error_code == 0, (row.error_code, row.error_message)
        await_topic(self.nodes, name, partitions)
        return row.topic_id

    def ask(self, find: Callable[[], Wire], api: str, version: int, **fields: Any) -> Message:
        """Asks, again while the response is that this is not the right broker at the moment."""

        def ask() -> Message | None:
            try:
                response = find().call(api, version, **fields)
            except (wires.Closed, OSError):
                return None
            return None if getattr(response, "error_code", 0) in PASSING else response

        return eventually(ask, f"{api} got no response")


@pytest.fixture(scope="module")
def nodes() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(3, SETTINGS) as running:
        yield running
        for number in running.nodes:
            log = running.log_file(number).read_text()
            assert "handler_failed" not in log and "Traceback" not in log, log[-3000:]


@pytest.fixture
def cluster(nodes: EmbeddedCluster) -> Iterator[Cluster]:
    made = Cluster(nodes)
    yield made
    made.close()
    nodes.start()


def offsets_commit(cluster: Cluster, group: str, topic: str, offset: int) -> Message:
    partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": None}
    topics = [{"name": topic, "partitions": [partition]}]
    return cluster.coordinator(group).call(
        "offset_commit", 8, group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=topics
    )


def offset_fetch(cluster: Cluster, group: str, topic: str) -> int | None:
    wanted = {"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}
    (row,) = cluster.coordinator(group).call("offset_fetch", 8, groups=[wanted]).groups
    return None if row.error_code else int(row.topics[0].partitions[0].committed_offset)


def test_another_broker_says_that_it_is_not_the_coordinator(cluster: Cluster) -> None:
    cluster.create("elsewhere", 1)
    right = cluster.coordinator("e")
    for number in cluster.nodes.brokers:
        response = cluster.wire(number).call("heartbeat", 4, group_id="e", generation_id=1, member_id="m")
        expected = ErrorCode.UNKNOWN_MEMBER_ID if cluster.wire(number) is right else ErrorCode.NOT_COORDINATOR
        assert response.error_code == expected


def test_offsets_that_were_committed_survive_their_coordinator(cluster: Cluster) -> None:
    cluster.create("commits", 1)
    groups = [f"commits-{number}" for number in range(9)]
    for number, group in enumerate(groups):
        (row,) = offsets_commit(cluster, group, "commits", 100 + number).topics[0].partitions
        assert row.error_code == 0
    cluster.kill(cluster.nodes.brokers[0])
    for number, group in enumerate(groups):
        found = eventually(lambda group=group: offset_fetch(cluster, group, "commits"), f"{group} is not found")  # type: ignore[misc]
        assert found == 100 + number


class Queue:
    """One member of a share group, which finds its coordinator."""

    def __init__(self, cluster: Cluster, group: str, topic: str, topic_id: Any) -> None:
        self.cluster = cluster
        self.group = group
        self.topic = topic
        self.topic_id = topic_id
        self._epochs: dict[int, int] = {}

    def configure(self, **settings: str) -> None:
        rows = [
            {"name": name.replace("_", "."), "config_operation": 0, "value": value} for name, value in settings.items()
        ]
        resource = {"resource_type": 32, "resource_name": self.group, "configs": rows}
        (row,) = self.cluster.any.call("incremental_alter_configs", 1, resources=[resource]).responses
        assert row.error_code == 0

    def join(self) -> Message:
        return self.cluster.ask(
            lambda: self.cluster.coordinator(self.group),
            "share_group_heartbeat",
            1,
            group_id=self.group,
            member_id="m",
            member_epoch=0,
            subscribed_topic_names=[self.topic],
        )

    def fetch(self, index: int, *acks: tuple[int, int, list[int]], leader: int | None = None) -> Message:
        number = self.cluster.leader(self.topic, index) if leader is None else leader
        batches = [
            {"first_offset": first, "last_offset": last, "acknowledge_types": kinds} for first, last, kinds in acks
        ]
        rows = [{"partition_index": index, "acknowledgement_batches": batches}]
        response = self.cluster.wire(number).call(
            "share_fetch",
            2,
            group_id=self.group,
            member_id="m",
            share_session_epoch=self._epochs.get(number, 0),
            max_wait_ms=200,
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=100,
            batch_size=100,
            topics=[{"topic_id": self.topic_id, "partitions": rows}],
        )
        if response.error_code:
            self._epochs.pop(number, None)
        else:
            self._epochs[number] = self._epochs.get(number, 0) + 1
        return response

    def leave_brokers(self) -> None:
        """Ends its sessions, as a consumer does that is closed."""
        for number in self._epochs:
            response = self.cluster.wire(number).call(
                "share_acknowledge", 2, group_id=self.group, member_id="m", share_session_epoch=-1, topics=[]
            )
            assert response.error_code == 0
        self._epochs.clear()

    def acquired(self, response: Message) -> list[tuple[int, int, int]]:
        return [
            (each.first_offset, each.last_offset, each.delivery_count)
            for topic in response.responses
            for row in topic.partitions
            for each in row.acquired_records
        ]

    def take(self, index: int, what: str) -> list[tuple[int, int, int]]:
        def fetch() -> list[tuple[int, int, int]] | None:
            try:
                return self.acquired(self.fetch(index)) or None
            except (wires.Closed, OSError):
                self._epochs.clear()
                return None

        return eventually(fetch, what)


def produce(cluster: Cluster, topic: str, index: int, *values: bytes) -> None:
    leader = cluster.wire(cluster.leader(topic, index))
    rows = [{"index": index, "records": wires.batch(*values)}]
    response = leader.call(
        "produce", 9, acks=-1, timeout_ms=10_000, topic_data=[{"name": topic, "partition_data": rows}]
    )
    assert response.responses[0].partition_responses[0].error_code == 0


def test_a_queue_whose_state_is_kept_elsewhere(cluster: Cluster) -> None:
    topic_id = cluster.create("queue", 6)
    queue = Queue(cluster, "q", "queue", topic_id)
    queue.configure(share_auto_offset_reset="earliest")
    joined = queue.join()
    assert sorted(joined.assignment.topic_partitions[0].partitions) == list(range(6))
    for index in range(6):
        produce(cluster, "queue", index, b"a", b"b", b"c")
        assert queue.take(index, f"nothing of partition {index}") == [(0, 2, 1)]
        again = queue.fetch(index, (0, 2, [ACCEPT, RELEASE, ACCEPT]))
        assert again.responses[0].partitions[0].acknowledge_error_code == 0
    described = cluster.coordinator("q").call(
        "describe_share_group_offsets", 1, groups=[{"group_id": "q", "topics": None}]
    )
    rows = described.groups[0].topics[0].partitions
    assert [(row.partition_index, row.error_code, row.start_offset, row.lag) for row in rows] == [
        (index, 0, 1, 1) for index in range(6)
    ]


def test_a_member_that_comes_to_the_wrong_broker_is_told_where_the_leader_is(cluster: Cluster) -> None:
    topic_id = cluster.create("wrong", 1)
    queue = Queue(cluster, "w", "wrong", topic_id)
    queue.join()
    leader = cluster.leader("wrong", 0)
    other = next(number for number in cluster.nodes.brokers if number != leader)
    response = queue.fetch(0, leader=other)
    row = response.responses[0].partitions[0]
    assert (row.error_code, row.current_leader.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, leader)
    (endpoint,) = response.node_endpoints
    assert f"{endpoint.host}:{endpoint.port}" == cluster.nodes.address(leader)


def test_what_was_acknowledged_is_not_delivered_again_by_the_next_leader(cluster: Cluster) -> None:
    topic_id = cluster.create("handed-over", 3)
    queue = Queue(cluster, "h", "handed-over", topic_id)
    queue.configure(share_auto_offset_reset="earliest")
    queue.join()
    for index in range(3):
        produce(cluster, "handed-over", index, b"a", b"b")
        assert queue.take(index, f"nothing of partition {index}") == [(0, 1, 1)]
        done = queue.fetch(index, (0, 0, [ACCEPT]))
        assert done.responses[0].partitions[0].acknowledge_error_code == 0
    cluster.kill(cluster.leader("handed-over", 0))
    for index in range(3):
        first, last, _ = queue.take(index, f"nothing of partition {index} after the failure")[0]
        assert (first, last) == (1, 1)


def test_dead_letters_go_to_whoever_leads_their_topic(cluster: Cluster) -> None:
    graves = "dlq.poisoned"
    cluster.create(graves, 3, errors_deadletterqueue_group_enable="true")
    topic_id = cluster.create("poisoned", 3)
    queue = Queue(cluster, "p", "poisoned", topic_id)
    queue.configure(share_auto_offset_reset="earliest", errors_deadletterqueue_topic_name=graves)
    queue.join()
    for index in range(3):
        produce(cluster, "poisoned", index, b"poison-%d" % index)
        queue.take(index, f"nothing of partition {index}")
        queue.fetch(index, (0, 0, [REJECT]))
    for index in range(3):

        def letters(index: int = index) -> list[bytes] | None:
            response = cluster.wire(cluster.leader(graves, index)).fetch(graves, partition=index, max_wait_ms=200)
            return wires.values(response.records) or None

        assert eventually(letters, f"no letter in {graves}-{index}") == [b"poison-%d" % index]


def test_a_group_of_the_same_name_begins_again(cluster: Cluster) -> None:
    topic_id = cluster.create("again", 3)
    queue = Queue(cluster, "a", "again", topic_id)
    queue.configure(share_auto_offset_reset="earliest")
    for _ in range(2):
        joined = queue.join()
        for index in range(3):
            produce(cluster, "again", index, b"x")
            taken = queue.take(index, f"nothing of partition {index}")
            assert taken[0][0] == 0  # from the beginning, also the second time
            queue.fetch(index, (0, taken[-1][1], [ACCEPT]))
        queue.leave_brokers()
        cluster.coordinator("a").call(
            "share_group_heartbeat", 1, group_id="a", member_id="m", member_epoch=-1, subscribed_topic_names=None
        )
        assert joined.member_epoch > 0
        (row,) = cluster.coordinator("a").call("delete_groups", 2, groups_names=["a"]).results
        assert row.error_code == 0


def test_every_broker_reports_on_what_it_leads(cluster: Cluster) -> None:
    cluster.create("hot", 3)
    nodes: set[int] = set()

    def all_have() -> bool | None:
        for index in range(3):
            produce(cluster, "hot", index, b"x")
        if any(topic.error_code for topic in cluster.any.call("metadata", 12, topics=[{"name": REPORTS}]).topics):
            return None
        response = cluster.wire(cluster.leader(REPORTS, 0)).fetch(REPORTS)
        reports = [json.loads(value) for value in wires.values(response.records) if value]
        nodes.update(report["node"] for report in reports if report["topic"] == "hot")
        return True if nodes == set(cluster.nodes.brokers) else None

    eventually(all_have, f"reports came from {nodes} only")
