"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords."""

from collections.abc import Callable

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from tests.wire import Wire, batch, values

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5


@pytest.fixture
def timed(wire: Wire, new_name: Callable[[], str]) -> str:
    """A topic whose records have these times, the latest not the last."""
    topic = new_name()
    wire.create_topic(topic, 2, retention_ms="-1")
    for timestamp in (1000, 2000, 5000, 3000):
        assert wire.produce(topic, batch(b"value", timestamp=timestamp)).error_code == 0
    return topic


def offset(wire: Wire, topic: str, timestamp: int, version: int = 11, partition: int = 0, epoch: int = -1) -> Message:
    rows = [{"partition_index": partition, "current_leader_epoch": epoch, "timestamp": timestamp}]
    response = wire.call(
        "list_offsets", version, replica_id=-1, topics=[{"name": topic, "partitions": rows}], timeout_ms=1000
    )
    row: Message = response.topics[0].partitions[0]
    return row


@pytest.mark.parametrize("version", [1, 4, 6, 11])
@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (LATEST, (4, -1)),
        (EARLIEST, (0, -1)),
        (0, (0, 1000)),
        (1000, (0, 1000)),
        (1001, (1, 2000)),
        (2500, (2, 5000)),
        (5000, (2, 5000)),
        (5001, (-1, -1)),
    ],
)
def test_list_offsets_finds_the_offset_of_a_timestamp(
    wire: Wire, timed: str, version: int, timestamp: int, expected: tuple[int, int]
) -> None:
    row = offset(wire, timed, timestamp, version)
    assert (row.error_code, row.offset, row.timestamp) == (0, *expected)


def test_special_timestamps_of_newer_versions(wire: Wire, timed: str) -> None:
    row = offset(wire, timed, MAX_TIMESTAMP)
    assert (row.offset, row.timestamp) == (2, 5000)
    assert offset(wire, timed, EARLIEST_LOCAL).offset == 0
    assert offset(wire, timed, LATEST_TIERED).offset == -1
    assert offset(wire, timed, -99).error_code == ErrorCode.UNSUPPORTED_VERSION


def test_list_offsets_of_an_empty_log(wire: Wire, topic: str) -> None:
    assert [offset(wire, topic, at).offset for at in (LATEST, EARLIEST, MAX_TIMESTAMP, 0)] == [0, 0, -1, -1]


def test_list_offsets_refuses_wrong_partitions_and_epochs(wire: Wire, timed: str) -> None:
    assert offset(wire, timed, LATEST, partition=9).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert offset(wire, "not-there", LATEST).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert offset(wire, timed, LATEST, epoch=9).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    twice = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}] * 2
    response = wire.call("list_offsets", 6, replica_id=-1, topics=[{"name": timed, "partitions": twice}])
    assert {row.error_code for row in response.topics[0].partitions} == {ErrorCode.INVALID_REQUEST}


def epoch_end(wire: Wire, topic: str, epoch: int, current: int = -1, partition: int = 0) -> Message:
    rows = [{"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}]
    response = wire.call("offset_for_leader_epoch", 4, replica_id=-1, topics=[{"topic": topic, "partitions": rows}])
    row: Message = response.topics[0].partitions[0]
    return row


def test_each_leader_epoch_has_its_end_offset(wire: Wire, timed: str) -> None:
    row = epoch_end(wire, timed, 0)
    assert (row.error_code, row.leader_epoch, row.end_offset) == (0, 0, 4)
    for unknown in (5, -1, -2, -(2**31)):
        row = epoch_end(wire, timed, unknown)
        assert (row.error_code, row.leader_epoch, row.end_offset) == (0, -1, -1), unknown
    assert epoch_end(wire, timed, 0, current=7).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert epoch_end(wire, timed, 0, partition=5).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def delete_before(wire: Wire, topic: str, at: int, partition: int = 0) -> Message:
    rows = [{"partition_index": partition, "offset": at}]
    response = wire.call("delete_records", 2, topics=[{"name": topic, "partitions": rows}], timeout_ms=1000)
    row: Message = response.topics[0].partitions[0]
    return row


def test_records_are_deleted_up_to_an_offset(wire: Wire, timed: str) -> None:
    row = delete_before(wire, timed, 2)
    assert (row.error_code, row.low_watermark) == (0, 2)
    assert offset(wire, timed, EARLIEST).offset == 2
    assert wire.fetch(timed, 1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert len(values(wire.fetch(timed, 2).records)) == 2
    assert delete_before(wire, timed, 1).low_watermark == 2  # what is gone stays gone
    assert delete_before(wire, timed, -1).low_watermark == 4  # all
    assert wire.produce(timed, batch(b"next")).base_offset == 4
    assert values(wire.fetch(timed, 4).records) == [b"next"]


def test_records_of_internal_topics_are_not_deleted(wire: Wire) -> None:
    wire.call("find_coordinator", 4, key_type=0, coordinator_keys=["group"])
    resource = {"resource_type": 2, "resource_name": "__consumer_offsets"}
    change = {"name": "cleanup.policy", "config_operation": 0, "value": "compact,delete"}
    wire.call("incremental_alter_configs", 1, resources=[resource | {"configs": [change]}], validate_only=False)
    assert delete_before(wire, "__consumer_offsets", 0).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_delete_records_refuses_offsets_out_of_range(wire: Wire, timed: str) -> None:
    for at in (5, -2, 2**62):
        row = delete_before(wire, timed, at)
        assert (row.error_code, row.low_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1), at
    assert delete_before(wire, timed, 0, partition=9).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
