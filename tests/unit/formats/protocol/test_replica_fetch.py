"""A follower's fetch says, written by hand, what the schema codec reads; and it reads what a leader's codec writes."""

import random
from typing import cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.formats.protocol import fetch, replica_fetch
from millstream.formats.protocol.fetch import PartitionResult, ResponseParts
from millstream.formats.protocol.primitives import MalformedMessage
from millstream.formats.protocol.replica_fetch import FetchHead
from millstream.formats.protocol.schema import request_schema
from tests.unit.formats.protocol.test_fetch import Stretch

VERSIONS = range(replica_fetch.FIRST_VERSION, fetch.LAST_VERSION + 1)


@pytest.mark.parametrize("version", VERSIONS)
@given(seed=st.integers())
def test_the_schema_codec_reads_our_request(version: int, seed: int) -> None:
    rng = random.Random(seed)
    head = FetchHead(rng.choice([None, "", "c" * 200]), 3, rng.getrandbits(40), 500, 1, 10 << 20, 7, 9)
    rows = {
        rng.randbytes(16): [
            (p, 4, rng.getrandbits(50), rng.randrange(-1, 5), rng.getrandbits(30), 1 << 20)
            for p in range(rng.randrange(1, 300))
        ]
        for _ in range(rng.randrange(3))
    }
    forgotten = {rng.randbytes(16): [1, 2, 3] for _ in range(rng.randrange(3))}
    body = replica_fetch.encode_request(head, rows, forgotten)
    message = request_schema("fetch").decode(body, version)
    assert message.cluster_id == head.cluster_id
    assert (message.replica_state.replica_id, message.replica_state.replica_epoch) == (3, head.replica_epoch)
    assert (message.max_wait_ms, message.min_bytes, message.max_bytes) == (500, 1, 10 << 20)
    assert (message.session_id, message.session_epoch, message.rack_id) == (7, 9, "")
    assert {
        topic.topic_id.bytes: [
            (
                p.partition,
                p.current_leader_epoch,
                p.fetch_offset,
                p.last_fetched_epoch,
                p.log_start_offset,
                p.partition_max_bytes,
            )
            for p in topic.partitions
        ]
        for topic in message.topics
    } == rows
    assert {topic.topic_id.bytes: topic.partitions for topic in message.forgotten_topics_data} == forgotten


def random_response(rng: random.Random) -> tuple[list[tuple[bytes, list[PartitionResult]]], bytearray]:
    topics = [
        (
            UUID(int=rng.getrandbits(128)).bytes,
            [
                PartitionResult(
                    p,
                    rng.choice([0, 6]),
                    rng.getrandbits(40),
                    rng.getrandbits(40),
                    rng.getrandbits(40),
                    rng.choice([None, [], [(7, 8), (9, 10)]]),
                    -1,
                    rng.choice([None, Stretch(rng.randbytes(rng.randrange(300)))]),
                    rng.choice([None, (3, 99)]),
                    rng.choice([None, (1, 5)]),
                )
                for p in range(rng.randrange(4))
            ],
        )
        for _ in range(rng.randrange(4))
    ]
    parts = ResponseParts(bytearray())
    fetch.encode_response(parts, topics, 18, error=70, session_id=33, throttle_ms=5)
    whole = b"".join(p.content if isinstance(p, Stretch) else bytes(cast(bytearray, p)) for p in parts.parts)
    return topics, bytearray(whole)


@given(seed=st.integers())
def test_we_read_what_a_leader_writes(seed: int) -> None:
    topics, body = random_response(random.Random(seed))
    response = replica_fetch.parse_response(bytearray(b"head") + body, 4)
    assert (response.error, response.session_id) == (70, 33)
    assert [topic for topic, _ in response.topics] == [topic for topic, _ in topics]
    for (_, rows), (_, results) in zip(response.topics, topics, strict=True):
        for row, result in zip(rows, results, strict=True):
            assert row[:4] == (result.partition, result.error, result.high_watermark, result.log_start_offset)
            assert row.diverging_epoch == result.diverging_epoch
            assert bytes(row.records) == (result.records.content if result.records else b"")  # type: ignore[attr-defined]


@given(data=st.binary(max_size=120))
def test_any_bytes_are_parsed_or_refused(data: bytes) -> None:
    try:
        replica_fetch.parse_response(bytearray(data), 0)
    except MalformedMessage:
        pass


def test_a_response_that_is_cut_off_is_refused_at_every_byte() -> None:
    for seed in range(20):
        _, body = random_response(random.Random(seed))
        for end in range(len(body)):
            with pytest.raises(MalformedMessage):
                replica_fetch.parse_response(body[:end], 0)
