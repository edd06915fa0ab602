"""OffsetCommit by hand: the same fields and the same bytes as with the schema, in every version."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.formats.protocol.offset_commit import (
    CommitPartition,
    CommitRequest,
    CommitTopic,
    read_request,
    request_of,
    topic_of,
    write_response,
)
from millstream.formats.protocol.primitives import Cursor, MalformedMessage
from millstream.formats.protocol.schema import request_schema, response_schema

SCHEMA, RESPONSE = request_schema("offset_commit"), response_schema("offset_commit")
VERSIONS = range(SCHEMA.versions.low, SCHEMA.versions.high + 1)

texts = st.text(max_size=200)
partitions = st.fixed_dictionaries(
    {
        "partition_index": st.integers(-(1 << 31), (1 << 31) - 1),
        "committed_offset": st.integers(-(1 << 63), (1 << 63) - 1),
        "committed_leader_epoch": st.integers(-(1 << 31), (1 << 31) - 1),
        "committed_metadata": st.none() | texts,
    }
)
topics = st.fixed_dictionaries({"topic_id": st.uuids(), "name": texts, "partitions": st.lists(partitions, max_size=4)})
requests = st.fixed_dictionaries(
    {
        "group_id": texts,
        "generation_id_or_member_epoch": st.integers(-(1 << 31), (1 << 31) - 1),
        "member_id": texts,
        "group_instance_id": st.none() | texts,
        "retention_time_ms": st.integers(-(1 << 63), (1 << 63) - 1),
        "topics": st.lists(topics, max_size=4),
    }
)


def fields_of(message: Any) -> dict[str, Any]:
    """The fields of a request by hand, or of one that was read by the schema."""
    names = getattr(message, "FIELDS", None) or message.__slots__
    made = {name: getattr(message, name) for name in names}
    for name in ("topics", "partitions"):
        if name in made:
            made[name] = [fields_of(row) for row in made[name]]
    return made


@pytest.mark.parametrize("version", VERSIONS)
@given(fields=requests)
def test_a_request_has_the_fields_that_the_schema_reads(version: int, fields: dict[str, Any]) -> None:
    data = SCHEMA.encode(fields, version)
    expected: Any = SCHEMA.decode(data, version)
    for buffer in (data, bytearray(data), memoryview(data)):
        cursor = Cursor(buffer)
        assert fields_of(read_request(cursor, version)) == fields_of(expected)
        assert cursor.position == len(data)
    assert fields_of(request_of(expected)) == fields_of(expected)


def test_the_fields_have_the_names_and_the_defaults_of_the_schema() -> None:
    new = SCHEMA.root.new()
    assert fields_of(CommitRequest()) == fields_of(new)
    by_name = {field.name: field for field in SCHEMA.root.fields}
    topic = by_name["topics"].children
    assert topic is not None
    assert fields_of(CommitTopic()) == fields_of(topic.new())
    partition = topic.fields[-1].children
    assert partition is not None
    assert fields_of(CommitPartition()) | {"committed_metadata": None} == fields_of(partition.new()) | {
        "committed_metadata": None
    }


def test_a_topic_of_a_transaction_has_the_same_partitions() -> None:
    schema = request_schema("txn_offset_commit")
    row = {"partition_index": 3, "committed_offset": 5, "committed_leader_epoch": 2, "committed_metadata": None}
    data = schema.encode({"topics": [{"name": "t", "partitions": [row]}]}, 3)
    topic = topic_of(schema.decode(data, 3).topics[0])
    assert fields_of(topic) == {"topic_id": UUID(int=0), "name": "t", "partitions": [row]}


def fields_or_refused(read: Any) -> Any:
    """The fields; None for bytes that are refused."""
    try:
        return fields_of(read())
    except MalformedMessage:
        return None


@pytest.mark.parametrize("version", (2, 5, 7, 8, 10))
@given(fields=requests, data=st.data())
def test_damaged_bytes_are_refused_as_by_the_schema(version: int, fields: dict[str, Any], data: st.DataObject) -> None:
    whole = bytearray(SCHEMA.encode(fields, version))
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(whole)))
    for limits in ({}, {"most_items": 2, "longest_text": 20}):
        by_hand = fields_or_refused(lambda: read_request(Cursor(whole, 0, end, **limits), version))  # noqa: B023
        assert by_hand == fields_or_refused(lambda: SCHEMA.read(Cursor(whole, 0, end, **limits), version))  # noqa: B023


def test_unknown_tagged_fields_are_skipped() -> None:
    body = SCHEMA.encode({"group_id": "g", "topics": []}, 9)
    assert body.endswith(b"\x00")
    cursor = Cursor(body[:-1] + b"\x01\x07\x02ab")
    assert read_request(cursor, 9).group_id == "g"
    assert cursor.position == cursor.end


responses = st.fixed_dictionaries(
    {
        "topics": st.lists(
            st.fixed_dictionaries(
                {
                    "topic_id": st.uuids(),
                    "name": texts,
                    "partitions": st.lists(
                        st.fixed_dictionaries(
                            {
                                "partition_index": st.integers(-(1 << 31), (1 << 31) - 1),
                                "error_code": st.integers(-(1 << 15), (1 << 15) - 1),
                            }
                        ),
                        max_size=4,
                    ),
                }
            ),
            max_size=4,
        )
    },
    optional={"throttle_time_ms": st.integers(0, 1000)},
)


@pytest.mark.parametrize("version", VERSIONS)
@given(fields=responses)
def test_a_response_has_the_bytes_that_the_schema_writes(version: int, fields: dict[str, Any]) -> None:
    out = bytearray(b"head")
    write_response(out, fields, version)
    assert bytes(out) == b"head" + RESPONSE.encode(fields, version)
