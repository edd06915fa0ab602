"""CreateTopics, DeleteTopics, CreatePartitions: Kafka's codes, and messages a person understands."""

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.testing import EmbeddedBroker
from tests.wire import Wire, batch

NO_ID = UUID(int=0)


def create(wire: Wire, version: int = 7, validate_only: bool = False, **fields: Any) -> Message:
    topic = {"num_partitions": 1, "replication_factor": 1} | fields
    (row,) = wire.call("create_topics", version, topics=[topic], timeout_ms=1000, validate_only=validate_only).topics
    return row


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "ü", "a b", "a" * 250, "x\x00", "n" * 32_000, "\x01" * 32_000])
@pytest.mark.parametrize("version", [2, 7])
def test_wrong_names_of_topics_are_refused(wire: Wire, name: str, version: int) -> None:
    row = create(wire, version, name=name)
    assert row.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert row.error_message


@pytest.mark.parametrize(
    ("fields", "code", "hint"),
    [
        ({"num_partitions": 0}, ErrorCode.INVALID_PARTITIONS, "partitions"),
        ({"num_partitions": -7}, ErrorCode.INVALID_PARTITIONS, "partitions"),
        ({"replication_factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR, "eplication factor"),
        ({"replication_factor": 2}, ErrorCode.INVALID_REPLICATION_FACTOR, "eplication factor"),
        ({"configs": [{"name": "no.such", "value": "1"}]}, ErrorCode.INVALID_CONFIG, "no.such"),
        ({"configs": [{"name": "retention.ms", "value": "soon"}]}, ErrorCode.INVALID_CONFIG, "retention.ms"),
        ({"configs": [{"name": "retention.ms", "value": None}]}, ErrorCode.INVALID_CONFIG, "retention.ms"),
        ({"configs": [{"name": "cleanup.policy", "value": "burn"}]}, ErrorCode.INVALID_CONFIG, "cleanup.policy"),
        ({"assignments": [{"partition_index": 0, "broker_ids": [1]}]}, ErrorCode.INVALID_REQUEST, "assignment"),
    ],
)
def test_wrong_topics_are_refused_with_a_hint(
    wire: Wire, new_name: Callable[[], str], fields: dict[str, Any], code: ErrorCode, hint: str
) -> None:
    row = create(wire, name=new_name(), **fields)
    assert row.error_code == code
    assert hint in row.error_message


@pytest.mark.parametrize("count", [2**31 - 1, 10_001])
def test_absurdly_many_partitions_are_refused(wire: Wire, new_name: Callable[[], str], count: int) -> None:
    assert create(wire, name=new_name(), num_partitions=count).error_code in (
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.POLICY_VIOLATION,
    )


def test_many_topics_with_many_partitions_in_one_request(wire: Wire) -> None:
    topics = [{"name": f"many-{n}", "num_partitions": 10_000, "replication_factor": 1} for n in range(100)]
    rows = wire.call("create_topics", 7, topics=topics, timeout_ms=1000, validate_only=True).topics
    assert sum(row.num_partitions for row in rows if not row.error_code) <= 10_000


def test_a_topic_that_is_there_and_one_that_looks_alike(wire: Wire, new_name: Callable[[], str]) -> None:
    name = f"{new_name()}.dotted"
    assert create(wire, name=name).error_code == 0
    assert create(wire, name=name).error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    alike = create(wire, name=name.replace(".", "_"))
    assert alike.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert "collides" in alike.error_message


def test_the_same_name_twice_in_a_request(wire: Wire, new_name: Callable[[], str]) -> None:
    topic = {"name": new_name(), "num_partitions": 1, "replication_factor": 1}
    rows = wire.call("create_topics", 7, topics=[topic, topic], timeout_ms=1000).topics
    assert {row.error_code for row in rows} == {ErrorCode.INVALID_REQUEST}


def test_validate_only_creates_nothing(wire: Wire, new_name: Callable[[], str]) -> None:
    name = new_name()
    assert create(wire, name=name, validate_only=True).error_code == 0
    assert create(wire, name=name).error_code == 0


def test_a_new_topic_is_described_in_the_response(wire: Wire, new_name: Callable[[], str]) -> None:
    row = create(wire, name=new_name(), num_partitions=-1, replication_factor=-1)
    assert (row.num_partitions, row.replication_factor) == (2, 1)  # num.partitions of this broker
    assert row.topic_id != NO_ID
    assert {config.name: config.value for config in row.configs}["cleanup.policy"] == "delete"


def delete(wire: Wire, version: int = 6, name: str | None = None, topic_id: UUID = NO_ID) -> Message:
    fields: dict[str, Any] = {"topics": [{"name": name, "topic_id": topic_id}]}
    if version < 6:
        fields = {"topic_names": [name]}
    (row,) = wire.call("delete_topics", version, timeout_ms=1000, **fields).responses
    return row


def test_deleting_by_name_and_by_id(wire: Wire, new_name: Callable[[], str]) -> None:
    name, other = new_name(), new_name()
    wire.create_topic(name)
    other_id = wire.create_topic(other)
    assert delete(wire, 1, name).error_code == 0
    assert delete(wire, 1, name).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    row = delete(wire, topic_id=other_id)
    assert (row.error_code, row.name) == (0, other)
    assert delete(wire, topic_id=other_id).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert delete(wire, topic_id=uuid4(), name="x").error_code == ErrorCode.INVALID_REQUEST
    assert delete(wire).error_code == ErrorCode.INVALID_REQUEST


def test_a_topic_made_again_is_empty_and_has_another_id(wire: Wire, new_name: Callable[[], str]) -> None:
    name = new_name()
    first = wire.create_topic(name)
    wire.produce(name, batch(b"old"))
    assert delete(wire, name=name).error_code == 0
    assert wire.produce(name, batch(b"x")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert wire.create_topic(name) != first
    assert wire.produce(name, batch(b"new")).base_offset == 0


def test_topics_may_be_kept_from_deletion() -> None:
    with EmbeddedBroker({"delete.topic.enable": False}) as broker, Wire(broker.bootstrap_servers) as wire:
        wire.create_topic("kept")
        assert delete(wire, name="kept").error_code == ErrorCode.TOPIC_DELETION_DISABLED


def more_partitions(wire: Wire, name: str, count: int, assignments: Any = None, validate_only: bool = False) -> Message:
    topics = [{"name": name, "count": count, "assignments": assignments}]
    (row,) = wire.call("create_partitions", 3, topics=topics, timeout_ms=1000, validate_only=validate_only).results
    return row


def test_a_topic_gets_more_partitions(wire: Wire, topic: str) -> None:
    assert more_partitions(wire, topic, 3, validate_only=True).error_code == 0
    assert wire.produce(topic, batch(b"x"), 2).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert more_partitions(wire, topic, 3).error_code == 0
    assert wire.produce(topic, batch(b"x"), 2).error_code == 0


@pytest.mark.parametrize("count", [2, 1, 0, -1, 2**31 - 1])
def test_wrong_partition_counts_are_refused(wire: Wire, topic: str, count: int) -> None:
    row = more_partitions(wire, topic, count)
    assert row.error_code in (ErrorCode.INVALID_PARTITIONS, ErrorCode.POLICY_VIOLATION)
    assert row.error_message


def test_partitions_of_nothing_and_on_no_one(wire: Wire, topic: str) -> None:
    assert more_partitions(wire, "not-there", 3).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    wrong: list[list[dict[str, list[int]]]] = [
        [],
        [{"broker_ids": []}],
        [{"broker_ids": [99]}],
        [{"broker_ids": [1, 1]}],
    ]
    for assignments in wrong:
        assert more_partitions(wire, topic, 3, assignments).error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
