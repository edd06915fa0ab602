"""Bytes that are no records: CorruptBatchError from both implementations alike, and never a read out of bounds."""

from types import ModuleType

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.columnar import COLUMNS, ArrowDecoder, CorruptBatchError, _pure
from millstream.columnar.compiled import compiled_or_none
from millstream.formats.records.batch import HEADER_SIZE, LOG_OVERHEAD, seal
from millstream.formats.records.compression import Codec
from millstream.formats.records.record import Record, build_batch
from tests.examples import examples
from tests.unit.columnar.rows import BATCHES, EXAMPLE, rows_in

IMPLEMENTATIONS = [module for module in (_pure, compiled_or_none()) if module is not None]


def verdict(implementation: ModuleType, data: bytes | bytearray) -> object:
    decoder = ArrowDecoder(COLUMNS, max_rows=5, max_bytes=500, implementation=implementation)
    try:
        batches, following = decoder.decode(data, topic="orders", partition=3, start=0, stop=1 << 62)
    except CorruptBatchError as error:
        assert str(error).startswith(f"orders-3@{error.offset}: ")
        return ("corrupt", error.offset)
    return following, rows_in(with_plain_times(batch) for batch in batches)


def with_plain_times(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Mutated times may be such that Python's datetime has no room for them."""
    at = batch.schema.get_field_index("timestamp")
    return batch.set_column(at, "timestamp", batch.column(at).cast(pa.int64()))


def sealed(records_section: bytes, count: int, codec: int = 0, last_offset_delta: int | None = None) -> bytearray:
    """A batch with a right checksum around whatever is in it."""
    batch = build_batch([Record(None, None, (), 0)])[:HEADER_SIZE] + records_section
    batch[8:12] = (len(batch) - LOG_OVERHEAD).to_bytes(4, "big")
    batch[21:23] = codec.to_bytes(2, "big")
    batch[23:27] = (count - 1 if last_offset_delta is None else last_offset_delta).to_bytes(4, "big", signed=True)
    batch[57:61] = count.to_bytes(4, "big", signed=True)
    seal(batch, 0, len(batch))
    return batch


def same_verdict(data: bytes | bytearray) -> object:
    verdicts = [verdict(implementation, data) for implementation in IMPLEMENTATIONS]
    assert all(each == verdicts[0] for each in verdicts), verdicts
    return verdicts[0]


@given(BATCHES, st.data())
@settings(max_examples=examples(200))
def test_mutated_records_have_one_verdict(records: list[Record], data: st.DataObject) -> None:
    section = build_batch(records)[HEADER_SIZE:]
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(section)))
        change = data.draw(st.sampled_from(["set", "insert", "cut", "delete"]))
        if change == "set" and at < len(section):
            section[at] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
        elif change == "insert":
            section[at:at] = data.draw(st.binary(min_size=1, max_size=11))
        elif change == "cut":
            del section[at:]
        elif section:
            del section[min(at, len(section) - 1)]
    same_verdict(sealed(bytes(section), len(records) + data.draw(st.sampled_from([0, 0, 0, 1, -1]))))


@given(st.binary(max_size=120), st.integers(-1, 9), st.integers(0, 7))
@settings(max_examples=examples(200))
def test_noise_has_one_verdict(noise: bytes, count: int, codec: int) -> None:
    same_verdict(noise)
    same_verdict(sealed(noise, count, codec, 5))


@given(BATCHES, st.sampled_from(Codec), st.data())
@settings(max_examples=examples(60))
def test_mutated_compressed_content_has_one_verdict(records: list[Record], codec: Codec, data: st.DataObject) -> None:
    batch = build_batch(records, codec=codec)
    section = batch[HEADER_SIZE:]
    section[data.draw(st.integers(0, len(section) - 1))] ^= data.draw(st.integers(1, 255))
    same_verdict(sealed(bytes(section), len(records), int(codec)))


@given(BATCHES, st.data())
@settings(max_examples=examples(100))
def test_mutated_batches_have_one_verdict(records: list[Record], data: st.DataObject) -> None:
    batch = build_batch(records) + build_batch(records, base_offset=len(records), codec=Codec.LZ4)
    batch[data.draw(st.integers(0, len(batch) - 1))] ^= data.draw(st.integers(1, 255))
    same_verdict(batch)


def number(value: int) -> bytes:
    """A zig-zag varint."""
    zigzag, out = value << 1 if value >= 0 else (-value << 1) - 1, bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    return bytes([*out, zigzag])


def record(*parts: bytes) -> bytes:
    body = b"\x00" + b"".join(parts)
    return number(len(body)) + body


@pytest.mark.parametrize(
    ("section", "count", "reason"),
    [
        (b"", 1, "does not fit|no end"),
        (b"\x80", 1, "no end|does not fit"),
        (b"\x80\x80\x80\x80\x80\x80", 1, "no end"),
        (b"\xff\xff\xff\xff\x7f", 1, "larger than its type"),
        (number(-1), 1, "-1 bytes does not fit"),
        (number(100), 1, "100 bytes does not fit"),
        (number(2**31 - 1) + bytes(20), 1, "does not fit"),
        (record(number(0), number(1), b"\x01\x01\x00"), 1, "offset delta 1 is outside"),
        (record(number(0), number(-1), b"\x01\x01\x00"), 1, "offset delta -1 is outside"),
        (record(b"\xff" * 9 + b"\x02", number(0), b"\x01\x01\x00"), 1, "larger than its type"),
        (record(b"\xff" * 10, number(0), b"\x01\x01\x00"), 1, "no end"),
        (record(number(0), number(0), number(50), b"\x01\x00"), 1, "50 bytes do not fit"),
        (record(number(0), number(0), b"\x01", number(2**31 - 1), b"\x00"), 1, "bytes do not fit"),
        (record(number(0), number(0), b"\x01\x01", number(9)), 1, "9 headers do not fit"),
        (record(number(0), number(0), b"\x01\x01", number(-3)), 1, "-3 headers do not fit"),
        (record(number(0), number(0), b"\x01\x01", number(1), b"\x01\x01"), 1, "a header has no name"),
        (record(number(0), number(0), b"\x01\x01\x00\x00"), 1, "does not end where its length says"),
        (record(number(0), number(0), b"\x01\x01\x00") + b"\x00", 1, "1 bytes are left over"),
        (record(number(0), number(0), b"\x01\x01\x00"), 2, "does not fit|no end"),
        (record(), 1, "does not fit|do not fit|no end|does not end"),
    ],
)
def test_a_malformed_batch_is_an_error_with_its_reason(
    implementation: ModuleType, section: bytes, count: int, reason: str
) -> None:
    decoder = ArrowDecoder(COLUMNS, implementation=implementation)
    with pytest.raises(CorruptBatchError, match=reason):
        decoder.decode(sealed(section, count), topic="t", partition=0, start=0, stop=9)
    # The decoder is as good as before.
    batches, _ = decoder.decode(build_batch(EXAMPLE), topic="t", partition=0, start=0, stop=9)
    assert sum(batch.num_rows for batch in batches) == 3


def test_a_flipped_bit_is_noticed(implementation: ModuleType) -> None:
    batch = build_batch(EXAMPLE, base_offset=40)
    batch[-1] ^= 1
    with pytest.raises(CorruptBatchError, match="t-0@40: the checksum"):
        ArrowDecoder(COLUMNS, implementation=implementation).decode(batch, topic="t", partition=0, start=0, stop=99)


def test_old_messages_and_unknown_codecs_are_told_apart(implementation: ModuleType) -> None:
    decoder = ArrowDecoder(COLUMNS, implementation=implementation)
    old = build_batch(EXAMPLE)
    old[16] = 1
    with pytest.raises(CorruptBatchError, match="old format v1"):
        decoder.decode(old, topic="t", partition=0, start=7, stop=99)
    with pytest.raises(CorruptBatchError, match="no compression codec 6"):
        decoder.decode(sealed(b"xx", 1, codec=6), topic="t", partition=0, start=0, stop=99)
    with pytest.raises(CorruptBatchError, match="zstd"):
        decoder.decode(sealed(b"xx", 1, codec=4), topic="t", partition=0, start=0, stop=99)


def test_a_batch_that_claims_a_billion_records_costs_nothing(implementation: ModuleType) -> None:
    claim = sealed(record(number(0), number(0), b"\x01\x01\x00"), 2**31 - 1)
    with pytest.raises(CorruptBatchError, match="it has 2147483647 records, and at most 4000000"):
        ArrowDecoder(COLUMNS, max_rows=1 << 30, implementation=implementation).decode(
            claim, topic="t", partition=0, start=0, stop=9
        )
