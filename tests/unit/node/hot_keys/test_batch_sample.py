"""Blocks of records taken out of batches."""

import random

import pytest

from millstream.formats.records.compression import Codec
from millstream.formats.records.opening import OpeningLimits
from millstream.formats.records.record import Record, build_batch
from millstream.node.hot_keys.topic_statistics import BLOCK_RECORDS, sample_block


def _records(count: int) -> list[Record]:
    return [
        Record(None if n % 7 == 0 else b"key-%d" % n, b"v" * (n % 300), (("h", b"x"),), 1_700_000_000_000 + n)
        for n in range(count)
    ]


@pytest.mark.parametrize("codec", list(Codec))
def test_the_block_that_holds_an_offset(codec: Codec) -> None:
    records = _records(150)
    batch = bytes(build_batch(records, base_offset=1000, codec=codec))
    for offset, expected in ((1000, range(64)), (1063, range(64)), (1064, range(64, 128)), (1149, range(128, 150))):
        sample = sample_block(batch + b"whatever follows", offset)
        assert sample is not None
        assert [key for key, _ in sample.records] == [records[n].key for n in expected]
        assert all(size > len(records[n].value or b"") for n, (_, size) in zip(expected, sample.records, strict=True))
    assert BLOCK_RECORDS == 64


def test_what_is_no_batch_is_no_sample() -> None:
    batch = bytes(build_batch(_records(100), base_offset=5))
    control = bytes(build_batch(_records(1), control=True))
    assert sample_block(b"", 0) is None
    assert sample_block(batch[:-1], 5) is None
    assert sample_block(control, 0) is None
    chance = random.Random(1)
    for _ in range(500):
        damaged = bytearray(batch)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        sample_block(bytes(damaged), 5)  # whatever it says, it raises nothing


def test_malformed_records_in_a_sealed_batch() -> None:
    from millstream.formats.records.batch import HEADER_SIZE, seal

    chance = random.Random(2)
    batch = build_batch(_records(100))
    for _ in range(500):
        damaged = bytearray(batch)
        damaged[chance.randrange(HEADER_SIZE, len(damaged))] ^= 1 << chance.randrange(8)
        seal(damaged, 0, len(damaged))
        sample_block(bytes(damaged), chance.randrange(100))


def test_more_than_the_limits_is_no_sample() -> None:
    batch = bytes(build_batch(_records(100), codec=Codec.ZSTD))
    assert sample_block(batch, 70, OpeningLimits(1 << 20, 100)) is not None
    assert sample_block(batch, 70, OpeningLimits(1 << 20, 99)) is None
    assert sample_block(batch, 70, OpeningLimits(1000, 100)) is None
