"""The hand-written produce codec agrees with the schema codec in every version, and survives any bytes."""

import random
from collections.abc import Iterable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.formats.protocol import produce
from millstream.formats.protocol.primitives import MalformedMessage, NodeEndpoint
from millstream.formats.protocol.produce import PartitionResult
from millstream.formats.protocol.schema import request_schema, response_schema

VERSIONS = range(produce.FIRST_VERSION, produce.LAST_VERSION + 1)
names = st.text("abc-é", min_size=1, max_size=20)
partition_data = st.fixed_dictionaries(
    {"index": st.integers(0, 2**31 - 1), "records": st.none() | st.binary(max_size=300)}
)
requests = st.fixed_dictionaries(
    {
        "transactional_id": st.none() | names,
        "acks": st.sampled_from([-1, 0, 1]),
        "timeout_ms": st.integers(0, 60000),
        "topic_data": st.lists(
            st.fixed_dictionaries(
                {"name": names, "topic_id": st.uuids(), "partition_data": st.lists(partition_data, max_size=4)}
            ),
            max_size=4,
        ),
    }
)


@pytest.mark.parametrize("version", VERSIONS)
@given(values=requests)
def test_parse_finds_what_the_schema_codec_wrote(version: int, values: dict[str, Any]) -> None:
    padding = bytes(7)
    encoded = request_schema("produce").encode(values, version)
    buffer = bytearray(padding + encoded + padding)
    request = produce.parse(buffer, 7, 7 + len(encoded), version)
    wanted_id = values["transactional_id"]
    assert request.transactional_id == (None if wanted_id is None else wanted_id.encode())
    assert (request.acks, request.timeout_ms) == (values["acks"], values["timeout_ms"])
    assert [
        (topic, [(p.partition, bytes(buffer[p.start : p.end])) for p in partitions])
        for topic, partitions in request.topics
    ] == [
        (
            t["topic_id"].bytes if version >= produce.FIRST_WITH_TOPIC_ID else t["name"].encode(),
            [(p["index"], p["records"] or b"") for p in t["partition_data"]],
        )
        for t in values["topic_data"]
    ]


@pytest.mark.parametrize("version", VERSIONS)
@given(seed=st.integers())
def test_the_schema_codec_reads_our_response(version: int, seed: int) -> None:
    rng = random.Random(seed)
    by_id = version >= produce.FIRST_WITH_TOPIC_ID
    topics = [
        (
            rng.randbytes(16) if by_id else f"t{i}".encode(),
            [
                PartitionResult(
                    p,
                    rng.choice([0, 3]),
                    rng.getrandbits(40),
                    -1,
                    5,
                    rng.choice([None, "why", "é" * 200]),
                    rng.choice([None, (2, 40)]),
                    rng.choice([(), ((0, "why"), (300, "é" * 200))]),
                )
                for p in range(rng.randrange(200))
            ],
        )
        for i in range(rng.randrange(4))
    ]

    def locate(ids: Iterable[int], listener: str) -> list[NodeEndpoint]:
        return [NodeEndpoint(i, f"{listener}.{'b' * 200}", 9000 + i, rng.choice([None, "rack"])) for i in ids]

    out = bytearray()
    produce.encode_response(out, topics, version, throttle_ms=17, locate=locate, listener="L")
    message = response_schema("produce").decode(out, version)
    assert message.throttle_time_ms == 17
    assert len(message.responses) == len(topics)
    for decoded, (topic, results) in zip(message.responses, topics, strict=True):
        assert (decoded.topic_id == UUID(bytes=topic)) if by_id else (decoded.name == topic.decode())
        for row, result in zip(decoded.partition_responses, results, strict=True):
            assert (row.index, row.error_code) == (result.partition, result.error)
            assert (row.base_offset, row.log_append_time_ms) == (result.base_offset, result.log_append_time_ms)
            assert row.log_start_offset == (result.log_start_offset if version >= 5 else -1)
            assert row.error_message == (result.message if version >= 8 else None)
            told = tuple((each.batch_index, each.batch_index_error_message) for each in row.record_errors)
            assert told == (result.record_errors if version >= 8 else ())
            leader = result.current_leader if version >= 10 else None
            assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (leader or (-1, -1))
    named = {result.current_leader[0] for _, results in topics for result in results if result.current_leader}
    assert {n.node_id for n in message.node_endpoints} == (named if version >= 10 else set())
    assert all(n.host.startswith("L.b") and n.port == 9000 + n.node_id for n in message.node_endpoints)


@given(data=st.binary(max_size=120), version=st.sampled_from(VERSIONS))
def test_any_bytes_are_parsed_or_refused(data: bytes, version: int) -> None:
    buffer = bytearray(data)
    try:
        request = produce.parse(buffer, 0, len(buffer), version)
    except MalformedMessage:
        return
    for _, partitions in request.topics:
        for partition in partitions:
            assert 0 <= partition.start <= partition.end <= len(buffer)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_truncated_request_is_refused_at_every_byte(version: int) -> None:
    values = {"acks": 1, "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": b"x" * 70}]}]}
    encoded = bytearray(request_schema("produce").encode(values, version))
    for end in range(len(encoded)):
        with pytest.raises(MalformedMessage):
            produce.parse(encoded, 0, end, version)
