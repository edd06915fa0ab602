import gzip
import os
import tracemalloc

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.formats.records.compression import CODEC_BY_NAME, Codec, DecompressionFailedError, compress, decompress

CODECS = list(Codec)


@given(st.sampled_from(CODECS), st.binary(max_size=3000), st.integers(1, 60))
def test_what_is_compressed_is_decompressed(codec: Codec, data: bytes, times: int) -> None:
    data *= times
    assert decompress(codec, compress(codec, data)) == data
    assert decompress(codec, memoryview(bytearray(compress(codec, memoryview(data))))) == data


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", [b"", b"x", os.urandom(100_000), b"abc" * 1_000_000])
def test_data_of_any_size_is_decompressed(codec: Codec, data: bytes) -> None:
    assert decompress(codec, compress(codec, data)) == data


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_data_of_any_level_is_decompressed(codec: Codec) -> None:
    data = b"some text that repeats " * 1000
    for level in (1, 3, 9):
        assert decompress(codec, compress(codec, data, level)) == data


@pytest.mark.parametrize("codec", CODECS)
def test_no_more_than_the_limit(codec: Codec) -> None:
    data = bytes(200_000)
    packed = compress(codec, data)
    assert len(decompress(codec, packed, limit=200_000)) == 200_000
    with pytest.raises(DecompressionFailedError):
        decompress(codec, packed, limit=199_999)
    with pytest.raises(DecompressionFailedError):
        decompress(codec, packed, limit=10)


def test_a_bomb_costs_no_memory() -> None:
    bomb = gzip.compress(bytes(40_000_000), 1)
    tracemalloc.start()
    with pytest.raises(DecompressionFailedError):
        decompress(Codec.GZIP, bomb, limit=1_000_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000_000


@given(st.sampled_from(CODECS[1:]), st.binary(max_size=200))
def test_junk_is_refused_not_fatal(codec: Codec, junk: bytes) -> None:
    try:
        decompress(codec, junk, limit=1_000_000)
    except DecompressionFailedError:
        pass


@given(st.sampled_from(CODECS[1:]), st.integers(0, 10_000), st.integers(1, 255))
def test_damage_is_refused_or_harmless(codec: Codec, at: int, flip: int) -> None:
    data = bytearray(compress(codec, b"some text that repeats " * 100))
    data[at % len(data)] ^= flip
    try:
        decompress(codec, data, limit=1_000_000)
    except DecompressionFailedError:
        pass


def test_snappy_is_written_as_java_does_and_read_raw_too() -> None:
    data = os.urandom(50_000) + bytes(50_000)
    framed = compress(Codec.SNAPPY, data)
    assert framed[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    first = int.from_bytes(framed[16:20])
    assert bytes(cramjam.snappy.decompress_raw(framed[20 : 20 + first])) == data[: 32 * 1024]
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(data))) == data


def test_lz4_frames_have_independent_blocks() -> None:
    framed = compress(Codec.LZ4, b"abc" * 100_000)
    assert framed[:4] == b"\x04\x22\x4d\x18"
    assert framed[4] & 0x20, "Java reads no other"
    assert not framed[4] & 0x08, "Java does not expect a content size"


def test_names_are_those_of_compression_type() -> None:
    assert {name: int(codec) for name, codec in CODEC_BY_NAME.items()} == {
        "uncompressed": 0,
        "none": 0,
        "gzip": 1,
        "snappy": 2,
        "lz4": 3,
        "zstd": 4,
    }
