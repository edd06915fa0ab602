"""The fetch response read by hand, against the schema that writes it, in every version."""

from uuid import UUID

import pytest

from millstream.formats.protocol.primitives import MalformedMessage
from millstream.formats.protocol.schema import request_schema, response_schema
from millstream.raw_client.fetching import fetch_fields, parse_response

TOPIC_ID = UUID(int=0x1234 << 64)
VERSIONS = range(4, 19)
ABORTED = [{"producer_id": 9, "first_offset": 3}, {"producer_id": 1 << 40, "first_offset": 77}]


def response(
    version: int, error: int = 0, row_error: int = 0, records: bytes | None = b"x" * 300, **row: object
) -> bytes:
    fields = {
        "partition_index": 2,
        "error_code": row_error,
        "high_watermark": 100,
        "last_stable_offset": 90,
        "log_start_offset": 5,
        "aborted_transactions": ABORTED,
        "preferred_read_replica": -1,
        "records": records,
    }
    topic = {"topic": "t" * 200, "topic_id": TOPIC_ID, "partitions": [fields | row]}
    endpoint = {"node_id": 3, "host": "h", "port": 1, "rack": None}
    whole = {"throttle_time_ms": 0, "error_code": error, "session_id": 0, "responses": [topic]}
    return response_schema("fetch").encode(whole | {"node_endpoints": [endpoint]}, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_all_fields_of_a_response_are_read(version: int) -> None:
    frame = bytearray(b"head!" + response(version, current_leader={"leader_id": 3, "leader_epoch": 4}))
    error, fetched = parse_response(frame, 5, version)
    assert error == 0
    assert bytes(fetched.data) == b"x" * 300
    assert (fetched.high_watermark, fetched.last_stable_offset) == (100, 90)
    assert fetched.log_start_offset == (5 if version >= 5 else -1)
    assert fetched.aborted == ((9, 3), (1 << 40, 77))


@pytest.mark.parametrize("version", range(12, 19))
def test_records_are_not_copied(version: int) -> None:
    frame = bytearray(response(version))
    assert parse_response(frame, 0, version).fetched.data.obj is frame


@pytest.mark.parametrize("version", VERSIONS)
def test_no_records_and_no_transactions(version: int) -> None:
    error, fetched = parse_response(bytearray(response(version, records=None, aborted_transactions=None)), 0, version)
    assert (error, bytes(fetched.data), fetched.aborted) == (0, b"", ())


@pytest.mark.parametrize("version", VERSIONS)
def test_errors_of_a_response_are_read(version: int) -> None:
    assert parse_response(bytearray(response(version, row_error=6)), 0, version).error == 6
    if version >= 7:
        assert parse_response(bytearray(response(version, error=71)), 0, version).error == 71
        alone = response_schema("fetch").encode({"error_code": 100, "session_id": 0, "responses": []}, version)
        assert parse_response(bytearray(alone), 0, version).error == 100


@pytest.mark.parametrize("version", [4, 11, 12, 13, 18])
def test_a_response_that_is_cut_off_is_malformed(version: int) -> None:
    whole = response(version, records=b"r" * 20)
    tail = 30  # what stands behind the records may be missing without harm
    for length in range(len(whole) - tail):
        with pytest.raises(MalformedMessage):
            parse_response(bytearray(whole[:length]), 0, version)


def test_a_response_with_more_partitions_is_malformed() -> None:
    topic = {"topic_id": TOPIC_ID, "partitions": [{"partition_index": 0, "records": b""}] * 2}
    whole = response_schema("fetch").encode({"responses": [topic]}, 17)
    with pytest.raises(MalformedMessage, match="of one"):
        parse_response(bytearray(whole), 0, 17)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_request_has_all_fields(version: int) -> None:
    fields = fetch_fields(
        "t", TOPIC_ID, 3, 44, leader_epoch=7, max_bytes=1000, max_wait_ms=50, min_bytes=2, read_committed=True
    )
    asked = request_schema("fetch").decode(request_schema("fetch").encode(fields, version), version)
    assert (asked.isolation_level, asked.session_id, asked.session_epoch, asked.min_bytes) == (1, 0, -1, 2)
    (topic,) = asked.topics
    assert (topic.topic_id if version > 12 else topic.topic) == (TOPIC_ID if version > 12 else "t")
    assert topic.partitions[0].fetch_offset == 44
