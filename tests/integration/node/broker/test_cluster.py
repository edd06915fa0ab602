"""Metadata, DescribeCluster, DescribeTopicPartitions, FindCoordinator, DescribeLogDirs, InitProducerId."""

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.testing import EmbeddedBroker
from tests.wire import Wire, batch

NO_ID = UUID(int=0)


def metadata(wire: Wire, topics: list[dict[str, Any]] | None, version: int = 12, auto_create: bool = False) -> Message:
    return wire.call("metadata", version, topics=topics, allow_auto_topic_creation=auto_create)


def named(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "topic_id": NO_ID} for name in names]


@pytest.mark.parametrize("version", [1, 8, 9, 13])
def test_all_topics_or_none_or_some(wire: Wire, topic: str, version: int) -> None:
    assert topic in {row.name for row in metadata(wire, None, version).topics}
    assert metadata(wire, [], version).topics == []
    response = metadata(wire, named(topic), version)
    (row,) = response.topics
    assert [partition.partition_index for partition in row.partitions] == [0, 1]
    (node,) = response.brokers
    assert {partition.leader_id for partition in row.partitions} == {node.node_id} == {response.controller_id}
    assert f"{node.host}:{node.port}" == ":".join(map(str, wire.socket.getpeername()))


def test_in_version_0_an_empty_list_means_all(wire: Wire, topic: str) -> None:
    assert topic in {row.name for row in metadata(wire, [], 0).topics}


def test_metadata_finds_topics_by_id(wire: Wire, new_name: Callable[[], str]) -> None:
    name, unknown = new_name(), uuid4()
    topic_id = wire.create_topic(name)
    rows = metadata(wire, [{"name": None, "topic_id": topic_id}, {"name": None, "topic_id": unknown}]).topics
    assert (rows[0].name, rows[0].error_code) == (name, 0)
    assert (rows[1].topic_id, rows[1].error_code) == (unknown, ErrorCode.UNKNOWN_TOPIC_ID)


def test_a_topic_named_often_is_in_the_response_once(wire: Wire, topic: str) -> None:
    assert len(metadata(wire, named(*[topic] * 1000)).topics) == 1


def test_unknown_and_impossible_topics(wire: Wire, new_name: Callable[[], str]) -> None:
    names = (new_name(), "a/b", "", "x" * 300)
    codes = [row.error_code for row in metadata(wire, named(*names)).topics]
    assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] + [ErrorCode.INVALID_TOPIC_EXCEPTION] * 3


def test_topics_are_created_when_that_is_asked_for(wire: Wire, new_name: Callable[[], str]) -> None:
    name = new_name()
    rows = metadata(wire, named(name, "a/b"), auto_create=True).topics
    assert [row.error_code for row in rows] == [0, ErrorCode.INVALID_TOPIC_EXCEPTION]
    assert len(rows[0].partitions) == 2
    assert wire.produce(name, batch(b"x")).error_code == 0


def test_topics_are_not_created_where_the_broker_does_not_allow_it() -> None:
    with EmbeddedBroker({"auto.create.topics.enable": False}) as broker, Wire(broker.bootstrap_servers) as wire:
        (row,) = metadata(wire, named("nope"), auto_create=True).topics
        assert row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_metadata_is_never_older_than_the_last_change(wire: Wire, new_name: Callable[[], str]) -> None:
    """Encoded responses are kept: a change must not be hidden by one."""
    for _ in range(5):
        name = new_name()
        assert metadata(wire, named(name)).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        wire.create_topic(name)
        assert metadata(wire, named(name)).topics[0].error_code == 0
        assert name in {row.name for row in metadata(wire, None).topics}


def test_describe_cluster_lists_brokers_and_refuses_other_endpoints(wire: Wire) -> None:
    response = wire.call("describe_cluster", 2, endpoint_type=1, include_fenced_brokers=True)
    assert response.cluster_id == metadata(wire, []).cluster_id
    assert len(response.brokers) == 1
    for kind, code in ((2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (9, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)):
        assert wire.call("describe_cluster", 1, endpoint_type=kind).error_code == code


def partitions(wire: Wire, names: list[str], limit: int, cursor: tuple[str, int] | None = None) -> Message:
    at = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
    rows = [{"name": name} for name in names]
    return wire.call("describe_topic_partitions", 0, topics=rows, response_partition_limit=limit, cursor=at)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 100])
def test_partitions_page_by_page(wire: Wire, new_name: Callable[[], str], limit: int) -> None:
    names = sorted(new_name() for _ in range(3))
    for name in names:
        wire.create_topic(name, 3)
    seen: list[tuple[str, int]] = []
    cursor: tuple[str, int] | None = None
    for _ in range(20):
        response = partitions(wire, names, limit, cursor)
        page = [(topic.name, row.partition_index) for topic in response.topics for row in topic.partitions]
        assert len(page) <= limit
        seen += page
        if response.next_cursor is None:
            break
        cursor = (response.next_cursor.topic_name, response.next_cursor.partition_index)
    assert seen == [(name, index) for name in names for index in range(3)]


def test_pages_of_the_unknown_and_absurd(wire: Wire, topic: str) -> None:
    (row,) = partitions(wire, ["not-there"], 10).topics
    assert row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for limit, cursor in ((0, None), (-5, None), (2**31 - 1, (topic, 2**31 - 1)), (5, (topic, -1)), (5, ("zzz", 0))):
        partitions(wire, [topic], limit, cursor)


def test_find_coordinator_names_this_broker(wire: Wire) -> None:
    (row,) = wire.call("find_coordinator", 4, key_type=0, coordinator_keys=["group"]).coordinators
    assert (row.error_code, row.node_id) == (0, metadata(wire, []).brokers[0].node_id)
    for kind in (2, 9, -1):
        rows = wire.call("find_coordinator", 4, key_type=kind, coordinator_keys=["x"]).coordinators
        assert [row.key for row in rows] == ["x"]


def test_describe_log_dirs_has_the_size_of_partitions(broker: EmbeddedBroker, wire: Wire, topic: str) -> None:
    wire.produce(topic, batch(bytes(1000)))
    (row,) = wire.call("describe_log_dirs", 4, topics=[{"topic": topic, "partitions": [0, 1, 9]}]).results
    assert (row.error_code, row.log_dir) == (0, str(broker.data_dir))
    sizes = {partition.partition_index: partition.partition_size for partition in row.topics[0].partitions}
    assert sizes[0] > 1000 and sizes[1] == 0 and 9 not in sizes
    assert row.total_bytes >= row.usable_bytes > 0


def test_producer_ids_are_never_given_twice(broker: EmbeddedBroker, wire: Wire) -> None:
    def take(at: Wire) -> int:
        response = at.call("init_producer_id", 4, transactional_id=None, producer_id=-1, producer_epoch=-1)
        assert (response.error_code, response.producer_epoch) == (0, 0)
        return int(response.producer_id)

    taken = [take(wire) for _ in range(1100)]  # more than one block
    assert len(set(taken)) == len(taken)


def test_a_producer_that_has_an_id_gets_another(wire: Wire) -> None:
    """As in Kafka: no one can take the id of someone else by naming it."""
    response = wire.call("init_producer_id", 4, transactional_id=None, producer_id=5_000_000, producer_epoch=3)
    assert (response.error_code, response.producer_epoch) == (0, 0) and response.producer_id != 5_000_000
    for half in ({"producer_id": 5_000_000, "producer_epoch": -1}, {"producer_id": -1, "producer_epoch": 3}):
        response = wire.call("init_producer_id", 4, transactional_id=None, **half)
        assert response.error_code == ErrorCode.INVALID_REQUEST
