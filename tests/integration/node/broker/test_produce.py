"""Produce: what is refused, with which code, and what happens to a batch on its way in."""

import struct
from collections.abc import Callable
from uuid import UUID, uuid4

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.formats.records.batch import HEADER, read_header, seal
from millstream.formats.records.compression import Codec
from millstream.formats.records.record import Record, build_batch, read_batches
from millstream.testing import EmbeddedBroker
from tests.wire import Wire, batch, now_ms, values

LENGTH, MAGIC, ATTRIBUTES, DELTA, COUNT = 1, 3, 5, 6, 12


def changed(data: bytes, **fields: int) -> bytes:
    """A batch with other header fields and a checksum that is right all the same."""
    places = {"length": LENGTH, "magic": MAGIC, "attributes": ATTRIBUTES, "delta": DELTA, "count": COUNT}
    copy = bytearray(data)
    header = list(HEADER.unpack_from(copy))
    for name, value in fields.items():
        header[places[name]] = value
    HEADER.pack_into(copy, 0, *header)
    seal(copy, 0, len(copy))
    return bytes(copy)


def test_offsets_follow_one_another(wire: Wire, topic: str) -> None:
    assert [wire.produce(topic, batch(b"a", b"b")).base_offset for _ in range(3)] == [0, 2, 4]
    assert values(wire.fetch(topic).records) == [b"a", b"b"] * 3


@pytest.mark.parametrize("codec", list(Codec))
def test_batches_are_stored_as_they_were_sent(wire: Wire, topic: str, codec: Codec) -> None:
    sent = batch(b"value" * 100, codec=codec)
    assert wire.produce(topic, sent).error_code == 0
    stored = wire.fetch(topic).records
    # All but the base offset and the leader epoch, which the broker stamps.
    assert stored[16:] == sent[16:]
    assert stored[8:12] == sent[8:12]


@pytest.mark.parametrize("version", [3, 8, 9, 12])
def test_an_unknown_partition_and_an_unknown_topic(wire: Wire, topic: str, version: int) -> None:
    for name, partition in ((topic, 2), (topic, -1), ("not-there", 0)):
        row = wire.produce(name, batch(b"x"), partition, version=version)
        assert (row.error_code, row.base_offset) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)


def test_produce_finds_topics_by_id(wire: Wire, new_name: Callable[[], str]) -> None:
    topic_id = wire.create_topic(new_name())
    for wanted, code in (
        (topic_id, 0),
        (uuid4(), ErrorCode.UNKNOWN_TOPIC_ID),
        (UUID(int=0), ErrorCode.UNKNOWN_TOPIC_ID),
    ):
        rows = [{"topic_id": wanted, "partition_data": [{"index": 0, "records": batch(b"x")}]}]
        (response,) = wire.call("produce", 13, acks=-1, timeout_ms=1000, topic_data=rows).responses
        assert response.topic_id == wanted
        assert response.partition_responses[0].error_code == code


@pytest.mark.parametrize("acks", [2, -2, 32_767])
def test_other_acks_than_three_are_refused(wire: Wire, topic: str, acks: int) -> None:
    row = wire.produce(topic, batch(b"x"), acks=acks)
    assert row.error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert wire.fetch(topic).high_watermark == 0


def test_acks_0_gets_no_response(wire: Wire, topic: str) -> None:
    data = [{"name": topic, "partition_data": [{"index": 0, "records": batch(b"x")}]}]
    wire.send("produce", 9, acks=0, timeout_ms=1000, topic_data=data)
    sent = wire.send("api_versions", 0)
    assert wire.receive("api_versions", 0)[0] == sent
    assert values(wire.fetch(topic).records) == [b"x"]


def test_acks_0_tells_of_an_error_by_closing(wire: Wire) -> None:
    data = [{"name": "not-there", "partition_data": [{"index": 0, "records": batch(b"x")}]}]
    wire.send("produce", 9, acks=0, timeout_ms=1000, topic_data=data)
    assert wire.is_closed()


def test_a_message_that_is_too_large(wire: Wire, topic: str) -> None:
    row = wire.produce(topic, batch(bytes(1_100_000)))
    assert row.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert "max.message.bytes" in row.error_message
    assert wire.produce(topic, batch(bytes(1_000_000))).error_code == 0


@pytest.mark.parametrize("at", [17, 21, 60, 61, -1])
def test_a_flipped_bit_is_noticed(wire: Wire, topic: str, at: int) -> None:
    data = bytearray(batch(b"value"))
    data[at] ^= 1
    assert wire.produce(topic, bytes(data)).error_code == ErrorCode.CORRUPT_MESSAGE
    assert wire.fetch(topic).high_watermark == 0


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"count": 2}, ErrorCode.INVALID_RECORD),
        ({"delta": 5}, ErrorCode.INVALID_RECORD),
        ({"count": -1, "delta": -2}, ErrorCode.INVALID_RECORD),
        ({"count": 0, "delta": -1}, ErrorCode.INVALID_RECORD),
        ({"attributes": 0x20}, ErrorCode.INVALID_RECORD),
        ({"attributes": 0x08}, ErrorCode.INVALID_TIMESTAMP),
        ({"attributes": 5}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"attributes": 7}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"magic": 0}, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        ({"magic": 1}, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        ({"magic": 3}, ErrorCode.CORRUPT_MESSAGE),
        ({"length": 48}, ErrorCode.CORRUPT_MESSAGE),
        ({"length": 10_000}, ErrorCode.CORRUPT_MESSAGE),
        ({"length": -1}, ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_a_batch_with_a_wrong_header_is_refused(
    wire: Wire, topic: str, fields: dict[str, int], code: ErrorCode
) -> None:
    row = wire.produce(topic, changed(batch(b"value"), **fields))
    assert row.error_code == code
    assert row.error_message
    assert wire.fetch(topic).high_watermark == 0


@pytest.mark.parametrize("data", [None, b"", b"x", bytes(60), bytes(61), bytes(500)])
def test_bytes_that_are_not_a_batch_are_refused(wire: Wire, topic: str, data: bytes | None) -> None:
    assert wire.produce(topic, data).error_code in (
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    )


def test_timestamps_out_of_range(wire: Wire, new_name: Callable[[], str]) -> None:
    name = new_name()
    wire.create_topic(name, 1, message_timestamp_before_max_ms="60000", message_timestamp_after_max_ms="60000")
    for age, code in (
        (0, 0),
        (-30_000, 0),
        (120_000, ErrorCode.INVALID_TIMESTAMP),
        (-120_000, ErrorCode.INVALID_TIMESTAMP),
    ):
        assert wire.produce(name, batch(b"x", timestamp=now_ms() - age)).error_code == code
    assert wire.fetch(name).high_watermark == 2


@pytest.mark.parametrize("codec", list(Codec))
def test_records_with_timestamps_out_of_range_are_named(wire: Wire, new_name: Callable[[], str], codec: Codec) -> None:
    """As Kafka does; but for batches that are large, of which the client then drops all records."""
    name = new_name()
    wire.create_topic(name, 1, message_timestamp_before_max_ms="60000", message_timestamp_after_max_ms="60000")
    ages = (0, 120_000, 0, -120_000)

    def sent(count: int) -> Message:
        times = [now_ms() - ages[number % len(ages)] for number in range(count)]
        records = [Record(None, b"v", timestamp=time) for time in times]
        return wire.produce(name, bytes(build_batch(records, codec=codec)))

    row = sent(4)
    assert row.error_code == ErrorCode.INVALID_TIMESTAMP and "2 of 4 records" in row.error_message
    assert [each.batch_index for each in row.record_errors] == [1, 3]
    assert all("is not from" in each.batch_index_error_message for each in row.record_errors)
    row = sent(1000)
    assert (row.error_code, row.record_errors) == (ErrorCode.INVALID_TIMESTAMP, [])
    assert wire.fetch(name).high_watermark == 0


def test_one_bad_partition_does_not_hinder_the_others(wire: Wire, topic: str) -> None:
    rows = [
        {"index": 0, "records": b"bad"},
        {"index": 1, "records": batch(b"good")},
        {"index": 9, "records": batch(b"x")},
    ]
    response = wire.call("produce", 9, acks=-1, timeout_ms=1000, topic_data=[{"name": topic, "partition_data": rows}])
    codes = [row.error_code for row in response.responses[0].partition_responses]
    assert codes == [ErrorCode.CORRUPT_MESSAGE, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert values(wire.fetch(topic, partition=1).records) == [b"good"]


def test_a_repeated_batch_is_acknowledged_and_not_stored_again(wire: Wire, topic: str) -> None:
    def sent(sequence: int, epoch: int = 0) -> bytes:
        return batch(b"a", b"b", producer_id=4000, producer_epoch=epoch, base_sequence=sequence)

    assert [wire.produce(topic, sent(n)).base_offset for n in (0, 2, 4)] == [0, 2, 4]
    assert wire.produce(topic, sent(2)).base_offset == 2  # a retry
    assert wire.produce(topic, sent(8)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert wire.produce(topic, sent(6)).base_offset == 6
    assert wire.produce(topic, sent(0, epoch=1)).base_offset == 8
    assert wire.produce(topic, sent(8, epoch=0)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert wire.fetch(topic).high_watermark == 10


def test_sequences_wrap_around_after_the_greatest_integer(wire: Wire, topic: str) -> None:
    last = 2**31 - 1
    for sequence, offset in ((last - 1, 0), (0, 2), (2, 4)):
        sent = batch(b"a", b"b", producer_id=4001, producer_epoch=0, base_sequence=sequence)
        assert wire.produce(topic, sent).base_offset == offset


@pytest.mark.parametrize("wanted", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
def test_a_topic_with_a_codec_of_its_own(wire: Wire, new_name: Callable[[], str], wanted: str) -> None:
    name = new_name()
    wire.create_topic(name, 1, compression_type=wanted)
    for codec in Codec:
        assert wire.produce(name, batch(b"value" * 50, b"other", codec=codec)).error_code == 0
    stored = wire.fetch(name).records
    expected = {"uncompressed": Codec.NONE}.get(wanted) if wanted == "uncompressed" else Codec[wanted.upper()]
    rows = list(read_batches(stored))
    assert {header.codec for header, _ in rows} == {expected}
    assert [record.offset for _, records in rows for record in records] == list(range(10))
    assert values(stored) == [b"value" * 50, b"other"] * 5


def test_noise_that_says_it_is_compressed_is_refused_where_it_must_be_opened(
    wire: Wire, new_name: Callable[[], str]
) -> None:
    name = new_name()
    wire.create_topic(name, 1, compression_type="zstd")
    for codec in (1, 2, 3):
        row = wire.produce(name, changed(batch(b"not compressed at all"), attributes=codec))
        assert row.error_code == ErrorCode.CORRUPT_MESSAGE


def test_log_append_time_replaces_the_timestamps(wire: Wire, new_name: Callable[[], str]) -> None:
    name = new_name()
    wire.create_topic(name, 1, message_timestamp_type="LogAppendTime")
    before = now_ms()
    row = wire.produce(name, batch(b"a", b"b", timestamp=1000))
    assert before <= row.log_append_time_ms <= now_ms()
    stored = wire.fetch(name).records
    header = read_header(stored)
    assert header.has_log_append_time and header.max_timestamp == row.log_append_time_ms
    ((_, records),) = read_batches(stored)
    assert {record.timestamp for record in records} == {row.log_append_time_ms}


def test_frames_within_the_request_limit_and_beyond(broker: EmbeddedBroker) -> None:
    with Wire(broker.bootstrap_servers) as wire:
        wire.send_raw(struct.pack(">i", (100 << 20) + 1))
        assert wire.is_closed()


def test_a_compacted_topic_takes_only_records_with_a_key(wire: Wire, new_name: Callable[[], str]) -> None:
    name = new_name()
    wire.create_topic(name, cleanup_policy="compact")
    with_key = build_batch([Record(b"k", b"v", timestamp=now_ms())])
    without = build_batch([Record(b"k", b"v", timestamp=now_ms()), Record(None, b"v", timestamp=now_ms())])
    assert wire.produce(name, bytes(with_key)).error_code == ErrorCode.NONE
    refused = wire.produce(name, bytes(without))
    assert refused.error_code == ErrorCode.INVALID_RECORD
    assert "key" in refused.error_message


def test_a_large_batch_for_a_compacted_topic_is_opened_in_a_thread(wire: Wire, new_name: Callable[[], str]) -> None:
    """Its request is held meanwhile."""
    name = new_name()
    wire.create_topic(name, cleanup_policy="compact")
    large = build_batch([Record(b"k%d" % number, bytes(10_000), timestamp=now_ms()) for number in range(50)])
    for number in range(3):
        row = wire.produce(name, bytes(large))
        assert (row.error_code, row.base_offset) == (ErrorCode.NONE, 50 * number)
    keyless = build_batch([Record(None, bytes(10_000), timestamp=now_ms()) for _ in range(50)])
    assert wire.produce(name, bytes(keyless)).error_code == ErrorCode.INVALID_RECORD


def test_nothing_is_acknowledged_that_is_not_stored(wire: Wire, topic: str) -> None:
    """Kafka takes one batch per partition and refuses more as INVALID_RECORD."""
    repeated = batch(b"old", producer_id=4002, producer_epoch=0, base_sequence=0)
    assert wire.produce(topic, repeated).error_code == 0
    row = wire.produce(topic, batch(b"new") + repeated)
    assert row.error_code == ErrorCode.INVALID_RECORD or b"new" in values(wire.fetch(topic).records)


def test_more_records_than_the_bytes_can_hold_are_refused(wire: Wire, topic: str) -> None:
    """A record has at least seven bytes; believed, each such batch would begin a segment of its own."""
    row = wire.produce(topic, changed(batch(b"x"), count=2**31 - 1, delta=2**31 - 2))
    assert row.error_code == ErrorCode.INVALID_RECORD
