"""Batches made of records and taken apart, by us and by other clients; and bytes that are no batches."""

import io
import warnings
from typing import Any

import pytest
from aiokafka.record import default_records as aiokafka_records
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.records.batch import HEADER_SIZE, read_header, seal
from millstream.formats.records.compression import Codec
from millstream.formats.records.record import (
    NO_OFFSET,
    Record,
    build_batch,
    build_key_value_batch,
    iterate_records,
    read_batches,
)
from tests.examples import examples

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python's own
    from kafka.record import default_records as kafka_python_records

TIMESTAMPS = st.integers(-1, 1 << 48)
RECORDS = st.builds(
    Record,
    key=st.none() | st.binary(max_size=40),
    value=st.none() | st.binary(max_size=200),
    headers=st.lists(st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=20)), max_size=3).map(tuple),
    timestamp=TIMESTAMPS,
    offset=st.just(NO_OFFSET),
)
BATCHES = st.lists(RECORDS, min_size=1, max_size=8)
EXAMPLE = [
    Record(b"key", b"value", (("name", b"content"), ("empty", b""), ("null", None)), 1_700_000_000_000),
    Record(None, b"\x00" * 300, (), 1_700_000_000_123),
    Record(b"", None, (("\u00fc", b"\xff"),), 1_699_999_999_999),
]


def numbered(records: list[Record], base_offset: int = 0) -> list[Record]:
    return [record._replace(offset=base_offset + number) for number, record in enumerate(records)]


@given(BATCHES, st.sampled_from(Codec), st.integers(0, 1 << 62))
@settings(deadline=None, max_examples=examples(80))
def test_every_codec_brings_every_record_back(records: list[Record], codec: Codec, base_offset: int) -> None:
    batch = build_batch(records, codec=codec, base_offset=base_offset)
    ((header, found),) = read_batches(batch)
    assert found == numbered(records, base_offset)
    assert header.codec == codec
    assert header.size == len(batch)
    assert header.base_offset == base_offset
    assert header.last_offset == base_offset + len(records) - 1
    assert header.base_timestamp == records[0].timestamp
    assert header.max_timestamp == max(record.timestamp for record in records)


def test_the_header_says_what_it_was_told() -> None:
    batch = build_batch(
        EXAMPLE, leader_epoch=3, producer_id=7, producer_epoch=2, base_sequence=11, transactional=True, control=True
    )
    header = read_header(batch)
    assert (header.leader_epoch, header.producer_id, header.producer_epoch, header.base_sequence) == (3, 7, 2, 11)
    assert header.is_transactional and header.is_control and header.record_count == 3


def test_log_append_time_is_the_time_of_every_record() -> None:
    ((_, found),) = read_batches(build_batch(EXAMPLE, log_append_time=42))
    assert [record.timestamp for record in found] == [42, 42, 42]


def test_offsets_may_have_gaps_as_the_cleaner_leaves_them() -> None:
    records = [EXAMPLE[0]._replace(offset=10), EXAMPLE[1]._replace(offset=17), EXAMPLE[2]]
    ((header, found),) = read_batches(build_batch(records, base_offset=10))
    assert [record.offset for record in found] == [10, 17, 18]
    assert (header.record_count, header.last_offset) == (3, 18)


def test_a_header_name_that_is_not_utf_8_survives() -> None:
    records = [Record(None, b"", (("\udcff", b"x"),), 0, 0)]
    ((_, found),) = read_batches(build_batch(records))
    assert found == records


def test_several_batches_and_a_cut_off_one() -> None:
    first, second = build_batch(EXAMPLE), build_batch(EXAMPLE, base_offset=3, codec=Codec.ZSTD)
    found = list(read_batches(bytes(first + second)[:-1]))
    assert [header.base_offset for header, _ in found] == [0]
    assert [header.base_offset for header, _ in read_batches(bytes(first + second))] == [0, 3]


def other_builder(module: Any, codec: int) -> bytes:
    builder = module.DefaultRecordBatchBuilder(
        magic=2, compression_type=codec, is_transactional=0, producer_id=5, producer_epoch=1, base_sequence=9,
        batch_size=1 << 20,
    )  # fmt: skip
    for offset, record in enumerate(EXAMPLE):
        builder.append(offset, record.timestamp, record.key, record.value, list(record.headers))
    return bytes(builder.build())


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("module", [kafka_python_records, aiokafka_records], ids=["kafka-python", "aiokafka"])
def test_we_read_what_other_clients_write(module: Any, codec: Codec) -> None:
    ((header, found),) = read_batches(other_builder(module, codec))
    assert found == numbered(EXAMPLE)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 1, 9)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("module", [kafka_python_records, aiokafka_records], ids=["kafka-python", "aiokafka"])
def test_other_clients_read_what_we_write(module: Any, codec: Codec) -> None:
    batch = module.DefaultRecordBatch(bytes(build_batch(EXAMPLE, codec=codec)))
    assert batch.validate_crc()
    found = [
        Record(each.key, each.value, tuple((name, value) for name, value in each.headers), each.timestamp, each.offset)
        for each in batch
    ]
    assert found == numbered(EXAMPLE)


def test_uncompressed_batches_are_the_same_byte_for_byte() -> None:
    ours = build_batch(EXAMPLE, producer_id=5, producer_epoch=1, base_sequence=9)
    theirs = bytearray(other_builder(kafka_python_records, 0))
    theirs[12:16] = ours[12:16]  # the leader epoch, which the broker stamps
    assert ours == theirs


def refused(batch: bytes | bytearray, limit: int = 1 << 20) -> ErrorCode:
    with pytest.raises(KafkaError) as error:
        for _ in read_batches(batch, limit):
            pass
    return error.value.code


def test_a_flipped_bit_is_noticed() -> None:
    batch = build_batch(EXAMPLE)
    batch[-1] ^= 1
    assert refused(batch) is ErrorCode.CORRUPT_MESSAGE


def test_garbage_is_no_batch() -> None:
    assert refused(b"\x00" * 100) is ErrorCode.CORRUPT_MESSAGE


def test_an_unknown_codec_is_refused() -> None:
    batch = build_batch(EXAMPLE)
    batch[22] |= 7
    seal(batch, 0, len(batch))
    assert refused(batch) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_a_compression_bomb_meets_the_limit() -> None:
    batch = build_batch([Record(None, bytes(1 << 20))], codec=Codec.ZSTD)
    assert len(batch) < 1000
    assert refused(batch, limit=1 << 16) is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("count", [0, 1, 2, 4, 1 << 30])
def test_a_count_that_is_not_true(count: int) -> None:
    batch = build_batch(EXAMPLE)
    batch[HEADER_SIZE - 4 : HEADER_SIZE] = count.to_bytes(4, "big")
    seal(batch, 0, len(batch))
    assert refused(batch) is ErrorCode.INVALID_RECORD


def resealed(content: bytes, count: int = 1) -> bytearray:
    batch = build_batch([Record(None, b"")])[:HEADER_SIZE] + content
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[HEADER_SIZE - 4 : HEADER_SIZE] = count.to_bytes(4, "big")
    seal(batch, 0, len(batch))
    return batch


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00",  # a record of no bytes
        b"\x02\x00",  # only attributes
        b"\x0e\x00\x00\x00\x01\x01\x00\x00",  # longer than what it holds
        b"\x0c\x00\x00\x02\x01\x01\x00",  # offset 1 in a batch of one
        b"\x0c\x00\x00\x01\x01\x01\x00",  # offset -1
        b"\x0c\x00\x00\x00\x7e\x01\x00",  # a key longer than the record
        b"\x0c\x00\x00\x00\x01\x01\x01",  # -1 headers
        b"\x14\x00\x00\x00\x01\x01\xfe\xff\xff\xff\x0f",  # 2^31 - 1 headers
        b"\x10\x00\x00\x00\x01\x01\x02\x01\x01",  # a header without a name
        b"\xfe\xff\xff\xff\x0f\x00",  # a record of 2 GB
    ],
    ids=lambda content: content.hex() or "nothing",
)
def test_bytes_that_are_not_records_are_refused(content: bytes) -> None:
    assert refused(resealed(content)) is ErrorCode.INVALID_RECORD


@given(BATCHES, st.sampled_from(Codec), st.data())
@settings(deadline=None, max_examples=examples(100))
def test_damaged_batches_raise_nothing_but_kafka_errors(
    records: list[Record], codec: Codec, data: st.DataObject
) -> None:
    batch = build_batch(records, codec=codec)
    for _ in range(data.draw(st.integers(1, 4))):
        batch[data.draw(st.integers(21, len(batch) - 1))] = data.draw(st.integers(0, 255))
    header = read_header(batch)
    try:
        for record in iterate_records(header, batch, limit=1 << 20):
            assert len(record.key or b"") + len(record.value or b"") <= 1 << 20
    except KafkaError as error:
        assert error.code in (
            ErrorCode.CORRUPT_MESSAGE,
            ErrorCode.INVALID_RECORD,
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        )


def test_any_bytes_like_object_will_do() -> None:
    batch = build_batch(EXAMPLE)
    for data in (bytes(batch), memoryview(batch), memoryview(io.BytesIO(batch).getbuffer())):
        ((_, found),) = read_batches(data)
        assert found == numbered(EXAMPLE)


@given(
    st.lists(st.tuples(st.binary(max_size=300), st.none() | st.binary(max_size=9000)), min_size=1, max_size=200),
    st.integers(0, 1 << 45),
    st.booleans(),
)
def test_keys_and_values_in_one_pass_are_the_same_batch(
    pairs: list[tuple[bytes, bytes | None]], timestamp: int, transactional: bool
) -> None:
    records = [Record(key, value, timestamp=timestamp) for key, value in pairs]
    if transactional:
        expected = build_batch(records, producer_id=7, producer_epoch=2, transactional=True)
        made = build_key_value_batch(pairs, timestamp, producer_id=7, producer_epoch=2, transactional=True)
    else:
        expected, made = build_batch(records), build_key_value_batch(pairs, timestamp)
    assert made == expected
