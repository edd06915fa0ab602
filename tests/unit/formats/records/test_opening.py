"""Opening batches of strangers: limits hold whatever the bytes claim."""

import struct

import pytest

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.records.batch import HEADER_SIZE, read_header, seal
from millstream.formats.records.compression import Codec
from millstream.formats.records.opening import (
    MINIMUM_RECORD_BYTES,
    BeyondLimitsError,
    OpeningLimits,
    check,
    is_possible_count,
    opened,
)
from millstream.formats.records.record import Record, build_batch

COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]


def claiming(batch: bytearray, count: int) -> bytearray:
    """The batch with another number of records in its header, and a right checksum."""
    struct.pack_into(">i", batch, 23, count - 1)
    struct.pack_into(">i", batch, 57, count)
    seal(batch, 0, len(batch))
    return batch


@pytest.mark.parametrize("codec", list(Codec))
def test_as_many_records_as_can_be(codec: Codec) -> None:
    """The smallest records there are, in the smallest batches a compressor makes of them, are never refused."""
    for count in (1, 10, 10_000, 300_000):
        batch = build_batch([Record(None, None, timestamp=0)] * count, codec=codec)
        assert is_possible_count(read_header(batch)), (codec, count, len(batch))


@pytest.mark.parametrize("codec", list(Codec))
def test_a_count_that_the_bytes_cannot_hold(codec: Codec) -> None:
    batch = claiming(build_batch([Record(None, None, timestamp=0)], codec=codec), 1_000_000)
    header = read_header(batch)
    assert not is_possible_count(header)
    with pytest.raises(KafkaError, match="cannot be in") as caught, opened(header, batch, OpeningLimits()):
        pass
    assert caught.value.code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_batch_above_its_limits_is_not_opened(codec: Codec) -> None:
    batch = build_batch([Record(None, bytes(200_000))], codec=codec)
    header = read_header(batch)
    with opened(header, batch, OpeningLimits(max_bytes=200_100)) as records:
        assert 200_000 < len(records) < 200_100
        check(header, records)
    with pytest.raises(BeyondLimitsError, match=r"max\.decompressed"), opened(header, batch, OpeningLimits(200_000)):
        pass
    with (
        pytest.raises(BeyondLimitsError, match=r"millstream\.batch\.max\.records"),
        opened(header, batch, OpeningLimits(max_records=0)),
    ):
        pass


def test_snappy_that_claims_more_than_it_can_hold() -> None:
    batch = build_batch([Record(None, b"x")], codec=Codec.SNAPPY)
    batch[HEADER_SIZE:] = b"\xff\xff\xff\x1f" + bytes(20)  # 64 MiB out of 24 bytes
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    seal(batch, 0, len(batch))
    with pytest.raises(KafkaError) as caught, opened(read_header(batch), batch, OpeningLimits()):
        pass
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


def test_records_that_are_not_what_the_header_says() -> None:
    batch = claiming(build_batch([Record(b"key", bytes(100))], codec=Codec.GZIP), 2)
    header = read_header(batch)
    with pytest.raises(KafkaError) as caught, opened(header, batch, OpeningLimits()) as records:
        check(header, records)
    assert caught.value.code == ErrorCode.INVALID_RECORD


def test_the_smallest_record_has_the_minimum_size() -> None:
    assert len(build_batch([Record(None, None, timestamp=0)])) == HEADER_SIZE + MINIMUM_RECORD_BYTES
