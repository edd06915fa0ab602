"""Small requests that mean much work: while the broker is at them, it responds to all other clients."""

import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.formats.records.batch import ATTRIBUTES, ATTRIBUTES_START, HEADER_SIZE, LOG_OVERHEAD, seal
from millstream.formats.records.compiled import IS_COMPILED
from millstream.formats.records.compression import Codec, compress
from millstream.formats.records.record import Record, build_batch
from millstream.formats.records.varint import append_varint, read_varint
from millstream.testing import EmbeddedBroker
from tests.integration.node.broker.test_share import Group
from tests.wire import Wire, framed, now_ms, request

RECORDS = 300_000 if IS_COMPILED else 20_000
BOMBS = 20
LIMIT_BYTES = 32 << 20


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    settings = {"millstream.batch.max.decompressed.bytes": LIMIT_BYTES, "log.cleaner.enable": False}
    with EmbeddedBroker(settings) as running:
        yield running
        log = running.log_file.read_text()
        assert "Traceback" not in log, log[-3000:]


def many_records(count: int, key: bytes | None = None, value: bytes | None = b"", codec: Codec = Codec.ZSTD) -> bytes:
    """A small batch with very many records inside, which differ in their offsets alone."""
    batch = build_batch([Record(key, value, timestamp=now_ms())])
    first = bytes(batch[HEADER_SIZE:])
    if count > 1:
        rest = first[read_varint(first, 0)[1] + 3 :]  # behind attributes, timestamp and offset
        records = bytearray()
        for number in range(count):
            body = bytearray(2)
            append_varint(body, number)
            body += rest
            append_varint(records, len(body))
            records += body
        first = bytes(records)
    batch[HEADER_SIZE:] = compress(codec, first)
    struct.pack_into(">i", batch, 8, len(batch) - LOG_OVERHEAD)
    ATTRIBUTES.pack_into(batch, ATTRIBUTES_START, codec)
    struct.pack_into(">i", batch, 23, count - 1)
    struct.pack_into(">i", batch, 57, count)
    seal(batch, 0, len(batch))
    return bytes(batch)


def throw(broker: EmbeddedBroker, topic: str, bomb: bytes, count: int = BOMBS) -> tuple[list[Any], int]:
    """Sends a bomb several times in one go; the rows of the responses, and how many requests of another client were
    responded to after the bombs were sent and before the last of them had its response."""
    fields = {"acks": -1, "timeout_ms": 60_000}
    fields["topic_data"] = [{"name": topic, "partition_data": [{"index": 0, "records": bomb}]}]  # type: ignore[assignment]
    rows: list[Any] = []
    with Wire(broker.bootstrap_servers, 120) as bomber, Wire(broker.bootstrap_servers, 120) as other:
        other.call("api_versions", 3)
        bomber.send_raw(b"".join(framed(request("produce", 9, fields, number)) for number in range(count)))

        def receive() -> None:
            for _ in range(count):
                rows.append(bomber.receive("produce", 9)[1].responses[0].partition_responses[0])

        receiver = threading.Thread(target=receive)
        receiver.start()
        responses = 0
        while receiver.is_alive():
            other.call("api_versions", 3)
            responses += len(rows) < count
        receiver.join()
    assert len(rows) == count
    return rows, responses


def created(broker: EmbeddedBroker, name: str, **settings: str) -> str:
    with Wire(broker.bootstrap_servers) as wire:
        wire.create_topic(name, 1, **settings)
    return name


def peak_bytes(broker: EmbeddedBroker) -> int:
    for line in Path(f"/proc/{broker.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) << 10
    raise AssertionError("no peak in the status")


def test_many_records_for_a_compacted_topic(broker: EmbeddedBroker) -> None:
    topic = created(broker, "compacted", cleanup_policy="compact")
    rows, responses = throw(broker, topic, many_records(RECORDS, b"k"))
    assert [row.error_code for row in rows] == [0] * BOMBS
    assert [row.base_offset for row in rows] == [RECORDS * number for number in range(BOMBS)], "in their order"
    assert responses >= 3
    rows, responses = throw(broker, topic, many_records(RECORDS))
    assert {row.error_code for row in rows} == {ErrorCode.INVALID_RECORD}, "they have no key"
    assert responses >= 3


def test_many_records_for_a_topic_with_schemas(broker: EmbeddedBroker) -> None:
    topic = created(broker, "schemas", millstream_value_schema_validation="true")
    # A null needs no schema. So each record is looked at, and none is a reason to stop.
    rows, responses = throw(broker, topic, many_records(RECORDS, value=None))
    assert [row.error_code for row in rows] == [0] * BOMBS
    assert responses >= 3
    rows, responses = throw(broker, topic, many_records(RECORDS))
    assert {row.error_code for row in rows} == {ErrorCode.INVALID_RECORD}
    assert responses >= 3


def test_many_bytes_for_a_topic_with_its_own_codec(broker: EmbeddedBroker) -> None:
    topic = created(broker, "gzip", compression_type="gzip")
    rows, responses = throw(broker, topic, many_records(1, value=bytes(20 << 20)), 4)
    assert [row.error_code for row in rows] == [0] * 4
    assert responses >= 3


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_more_than_the_limits_takes_no_more_memory_than_they_allow(broker: EmbeddedBroker, codec: Codec) -> None:
    topic = created(broker, f"limits-{codec.name}", cleanup_policy="compact")
    before = peak_bytes(broker)
    bomb = many_records(1, b"k", bytes(80 << 20), codec)
    rows, _ = throw(broker, topic, bomb, 4)
    assert {row.error_code for row in rows} == {ErrorCode.MESSAGE_TOO_LARGE}
    assert "millstream.batch.max.decompressed.bytes" in rows[0].error_message
    assert peak_bytes(broker) - before < 2 * LIMIT_BYTES, "two threads at most are at it"


@pytest.mark.parametrize("fault", ["time", "key", "schema"])
def test_a_response_names_few_records_whatever_the_request(broker: EmbeddedBroker, fault: str) -> None:
    """A small request with many small batches, in which each record is wrong: to name them all would take long, and
    the response would be a thousand times as large as the request."""
    settings = {"key": {"cleanup_policy": "compact"}, "schema": {"millstream_value_schema_validation": "true"}}
    topic = created(broker, f"names-{fault}", **settings.get(fault, {}))
    late_ms = now_ms() + (1_000_000_000 if fault == "time" else 0)
    wrong = bytes(build_batch([Record(None, b"", timestamp=late_ms)] * 500, codec=Codec.ZSTD))
    count = 200
    fields: dict[str, Any] = {"acks": -1, "timeout_ms": 60_000}
    fields["topic_data"] = [{"name": topic, "partition_data": [{"index": 0, "records": wrong}] * count}]
    assert len(wrong) * count < 250_000
    with Wire(broker.bootstrap_servers, 120) as wire:
        rows = wire.call("produce", 9, **fields).responses[0].partition_responses
    expected = ErrorCode.INVALID_TIMESTAMP if fault == "time" else ErrorCode.INVALID_RECORD
    assert [row.error_code for row in rows] == [expected] * count
    named = [len(row.record_errors) for row in rows]
    assert named[0] == 500 and sum(named) <= 1000 + count


def test_many_records_for_a_share_group_with_key_order(broker: EmbeddedBroker) -> None:
    topic = created(broker, "shared")
    with Wire(broker.bootstrap_servers, 120) as wire, Wire(broker.bootstrap_servers, 120) as other:
        group = Group(wire, topic, "ordered")
        assert group.configure(**{"share.auto.offset.reset": "earliest", "share.key.order": "true"}) == 0
        for _ in range(3):
            assert wire.produce(topic, many_records(RECORDS)).error_code == 0
        assert wire.produce(topic, bytes(build_batch([Record(b"k", b"v", timestamp=now_ms())]))).error_code == 0
        group.begin()
        done = threading.Event()
        found: list[Any] = []

        def fetch() -> None:
            found.append(group.fetch(max_wait_ms=60_000))
            done.set()

        fetching = threading.Thread(target=fetch)
        fetching.start()
        responses = 0
        while not done.is_set():
            other.call("api_versions", 3)
            responses += 1
        fetching.join()
        assert found[0].error_code == 0 and responses >= 3


@pytest.mark.parametrize("kind", ["plain", "compacted", "schemas", "codec"])
def test_a_claim_that_the_bytes_cannot_hold_is_refused(broker: EmbeddedBroker, kind: str) -> None:
    settings = {
        "plain": {},
        "compacted": {"cleanup_policy": "compact"},
        "schemas": {"millstream_value_schema_validation": "true"},
        "codec": {"compression_type": "gzip"},
    }[kind]
    topic = created(broker, f"claims-{kind}", **settings)
    claim = bytearray(many_records(1, b"k"))
    struct.pack_into(">i", claim, 23, 999_999)
    struct.pack_into(">i", claim, 57, 1_000_000)
    seal(claim, 0, len(claim))
    assert len(claim) < 100
    with Wire(broker.bootstrap_servers) as wire:
        refused = wire.produce(topic, bytes(claim))
        assert (
            refused.error_code == ErrorCode.INVALID_RECORD and "1000000 records cannot be in" in refused.error_message
        )


def test_more_records_than_the_limit(broker: EmbeddedBroker) -> None:
    topic = created(broker, "count", cleanup_policy="compact")
    before = peak_bytes(broker)
    rows, _ = throw(broker, topic, many_records(1_000_001, b"k"), 4)
    assert {row.error_code for row in rows} == {ErrorCode.MESSAGE_TOO_LARGE}
    assert "millstream.batch.max.records" in rows[0].error_message
    assert peak_bytes(broker) - before < LIMIT_BYTES
