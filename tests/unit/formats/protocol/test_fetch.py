"""The hand-written fetch codec agrees with the schema codec in every version, and survives any bytes."""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.formats.protocol import fetch
from millstream.formats.protocol.fetch import PartitionResult, ResponseParts
from millstream.formats.protocol.primitives import MalformedMessage, NodeEndpoint
from millstream.formats.protocol.schema import request_schema, response_schema

VERSIONS = range(fetch.FIRST_VERSION, fetch.LAST_VERSION + 1)


def random_request(rng: random.Random) -> dict[str, Any]:
    def partition() -> dict[str, Any]:
        return {
            "partition": rng.randrange(1 << 31),
            "current_leader_epoch": rng.randrange(-1, 100),
            "fetch_offset": rng.getrandbits(60),
            "last_fetched_epoch": rng.randrange(-1, 100),
            "log_start_offset": rng.randrange(-1, 100),
            "partition_max_bytes": rng.getrandbits(30),
            "replica_directory_id": UUID(int=rng.choice([0, rng.getrandbits(128)])),
            "high_watermark": rng.choice([fetch.UNKNOWN_HIGH_WATERMARK, rng.getrandbits(50)]),
        }

    def topic(partitions: list[Any]) -> dict[str, Any]:
        return {"topic": f"t{rng.random()}", "topic_id": UUID(int=rng.getrandbits(128)), "partitions": partitions}

    replica = rng.choice([-1, 3])
    return {
        "cluster_id": rng.choice([None, "", "a-cluster"]),
        "replica_id": replica,
        "replica_state": {"replica_id": replica, "replica_epoch": 9},
        "max_wait_ms": rng.getrandbits(20),
        "min_bytes": rng.getrandbits(20),
        "max_bytes": rng.getrandbits(20),
        "isolation_level": rng.randrange(2),
        "session_id": rng.getrandbits(30),
        "session_epoch": rng.randrange(-1, 50),
        "topics": [topic([partition() for _ in range(rng.randrange(4))]) for _ in range(rng.randrange(4))],
        "forgotten_topics_data": [topic([rng.getrandbits(20) for _ in range(rng.randrange(4))])] * rng.randrange(2),
        "rack_id": rng.choice(["", "rack-1"]),
    }


@pytest.mark.parametrize("version", VERSIONS)
@given(seed=st.integers())
def test_parse_finds_what_the_schema_codec_wrote(version: int, seed: int) -> None:
    values = random_request(random.Random(seed))
    encoded = request_schema("fetch").encode(values, version)
    buffer = bytearray(b"\xff" * 5 + encoded + b"\xff" * 5)
    request = fetch.parse(buffer, 5, 5 + len(encoded), version)
    message = request_schema("fetch").decode(encoded, version)

    def key(topic: Any) -> bytes:
        by_id = version >= fetch.FIRST_WITH_TOPIC_ID
        found: bytes = topic.topic_id.bytes if by_id else topic.topic.encode()
        return found

    assert (request.replica_id, request.replica_epoch) == (values["replica_id"], message.replica_state.replica_epoch)
    assert (request.max_wait_ms, request.isolation_level) == (message.max_wait_ms, message.isolation_level)
    assert (request.min_bytes, request.max_bytes) == (message.min_bytes, message.max_bytes)
    assert (request.session_id, request.session_epoch) == (message.session_id, message.session_epoch)
    assert request.rack_id == message.rack_id.encode()
    assert request.cluster_id == (None if message.cluster_id is None else message.cluster_id.encode())
    assert request.forgotten == [(key(topic), topic.partitions) for topic in message.forgotten_topics_data]
    assert [
        (
            topic,
            [
                (
                    p.partition,
                    p.current_leader_epoch,
                    p.fetch_offset,
                    p.last_fetched_epoch,
                    p.log_start_offset,
                    p.max_bytes,
                    p.replica_directory_id,
                    p.high_watermark,
                )
                for p in partitions
            ],
        )
        for topic, partitions in request.topics
    ] == [
        (
            key(topic),
            [
                (
                    p.partition,
                    p.current_leader_epoch,
                    p.fetch_offset,
                    p.last_fetched_epoch,
                    p.log_start_offset,
                    p.partition_max_bytes,
                    p.replica_directory_id.bytes if p.replica_directory_id.int else None,
                    p.high_watermark,
                )
                for p in topic.partitions
            ],
        )
        for topic in message.topics
    ]


@dataclass
class Stretch:
    content: bytes

    @property
    def length(self) -> int:
        return len(self.content)


@pytest.mark.parametrize("version", VERSIONS)
@given(seed=st.integers())
def test_the_schema_codec_reads_our_response(version: int, seed: int) -> None:
    rng = random.Random(seed)
    flexible = version >= fetch.FIRST_FLEXIBLE
    by_id = version >= fetch.FIRST_WITH_TOPIC_ID
    topics = [
        (
            rng.randbytes(16) if by_id else f"t{i}".encode(),
            [
                PartitionResult(
                    p,
                    rng.choice([0, 1]),
                    rng.getrandbits(40),
                    rng.getrandbits(40),
                    rng.getrandbits(40),
                    rng.choice([None, [], [(7, 8), (9, 10)]]),
                    rng.choice([-1, 4]),
                    rng.choice([None, Stretch(rng.randbytes(rng.randrange(300)))]),
                    rng.choice([None, (3, 99)]) if flexible else None,
                    rng.choice([None, (1, 5)]) if flexible else None,
                    rng.choice([None, (700, 6)]) if flexible else None,
                )
                for p in range(rng.randrange(4))
            ],
        )
        for i in range(rng.randrange(4))
    ]

    def locate(ids: Iterable[int], listener: str) -> list[NodeEndpoint]:
        return [NodeEndpoint(i, f"{listener}.{'b' * 200}", 9000 + i, rng.choice([None, "rack"])) for i in ids]

    parts = ResponseParts(bytearray())
    fetch.encode_response(parts, topics, version, error=70, session_id=33, throttle_ms=5, locate=locate, listener="L")
    whole = b"".join(p.content if isinstance(p, Stretch) else bytes(cast(bytearray, p)) for p in parts.parts)
    assert parts.finish() == len(whole)
    message = response_schema("fetch").decode(whole, version)
    assert message.throttle_time_ms == 5
    assert (message.error_code, message.session_id) == ((70, 33) if version >= 7 else (0, 0))
    for decoded, (topic, results) in zip(message.responses, topics, strict=True):
        assert (decoded.topic_id.bytes if by_id else decoded.topic.encode()) == topic
        for row, result in zip(decoded.partitions, results, strict=True):
            assert (row.partition_index, row.error_code) == (result.partition, result.error)
            assert (row.high_watermark, row.last_stable_offset) == (result.high_watermark, result.last_stable_offset)
            assert row.log_start_offset == (result.log_start_offset if version >= 5 else -1)
            assert (row.records or b"") == (result.records.content if isinstance(result.records, Stretch) else b"")
            aborted = row.aborted_transactions
            assert (
                aborted if aborted is None else [(a.producer_id, a.first_offset) for a in aborted]
            ) == result.aborted
            assert row.preferred_read_replica == (result.preferred_read_replica if version >= 11 else -1)
            assert (row.diverging_epoch.epoch, row.diverging_epoch.end_offset) == (result.diverging_epoch or (-1, -1))
            assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (
                result.current_leader or (-1, -1)
            )
            assert (row.snapshot_id.end_offset, row.snapshot_id.epoch) == (result.snapshot_id or (-1, -1))
    named = {result.current_leader[0] for _, results in topics for result in results if result.current_leader}
    assert {n.node_id for n in message.node_endpoints} == (named if version >= 16 else set())
    assert all(n.host.startswith("L.b") and n.port == 9000 + n.node_id for n in message.node_endpoints)


@given(data=st.binary(max_size=120), version=st.sampled_from(VERSIONS))
def test_any_bytes_are_parsed_or_refused(data: bytes, version: int) -> None:
    try:
        fetch.parse(bytearray(data), 0, len(data), version)
    except MalformedMessage:
        pass


@pytest.mark.parametrize("version", VERSIONS)
def test_a_truncated_request_is_refused_at_every_byte(version: int) -> None:
    encoded = bytearray(request_schema("fetch").encode(random_request(random.Random(3)), version))
    for end in range(len(encoded)):
        with pytest.raises(MalformedMessage):
            fetch.parse(encoded, 0, end, version)
