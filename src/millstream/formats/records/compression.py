"""The five compression codecs of record batches.

Decompression never uses more memory than its limit, whatever the input claims (a few bytes of gzip or zstd may become
gigabytes). Java reads the output: xerial framing for snappy, independent blocks for lz4.
"""

import mmap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import IntEnum
from struct import Struct
from struct import error as StructError  # noqa: N812  # it is an exception class with a lower-case name
from typing import Any

import cramjam

from millstream.formats.records.batch import Bytes

MAX_DECOMPRESSED_BYTES = 256 << 20
"""Above the size of any reasonable batch."""

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK_BYTES = 32 * 1024
_BLOCK_SIZE = Struct(">i")
_FIRST_GUESS_RATIO = 6
_FIRST_GUESS_BYTES = 16 * 1024
_OUT_OF_ROOM = "failed to write whole buffer"


class Codec(IntEnum):
    """The lowest three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


CODEC_BY_NAME = {
    "uncompressed": Codec.NONE,
    "none": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}

MOST_GROWTH = (1, 1032, 22, 255, 32768, 1, 1, 1)
"""By codec: the largest number of bytes from one compressed byte, by the formats. (deflate: 258 bytes from two bits;
snappy: 64 from three bytes; lz4: 255 from one; zstd: 128 KiB from a block of four.)"""

_FRAMED = {Codec.GZIP: cramjam.gzip, Codec.LZ4: cramjam.lz4, Codec.ZSTD: cramjam.zstd}


class DecompressionFailedError(ValueError):
    """The input is damaged, or would grow past the limit."""


class TooLargeError(DecompressionFailedError):
    """The input would grow past the limit."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"it becomes more than {limit} bytes")
        self.limit = limit


def compress(codec: Codec, data: Bytes, level: int | None = None) -> bytes:
    """`level` is the codec's own; None is its default."""
    if codec is Codec.NONE:
        return bytes(data)
    if codec is Codec.GZIP:
        return bytes(cramjam.gzip.compress(data, level=6 if level is None or level < 0 else level))
    if codec is Codec.SNAPPY:
        return _compress_xerial(data)
    if codec is Codec.LZ4:
        # Java refuses frames whose blocks depend on each other.
        compressor = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
        compressor.compress(bytes(data))
        return bytes(compressor.finish())
    return bytes(cramjam.zstd.compress(data, level=level))


def decompress(codec: Codec, data: Bytes, limit: int = MAX_DECOMPRESSED_BYTES) -> bytes:
    """The records as bytes; TooLargeError if they are more than `limit`."""
    with decompressed(codec, data, limit) as content:
        return bytes(content)


@contextmanager
def decompressed(codec: Codec, data: Bytes, limit: int = MAX_DECOMPRESSED_BYTES) -> Iterator[memoryview]:
    """The records while the context lasts: they are not copied, and the memory of large ones is freed at once."""
    with ExitStack() as stack:
        yield stack.enter_context(_content(codec, data, limit, stack))


def _content(codec: Codec, data: Bytes, limit: int, stack: ExitStack) -> memoryview:
    if codec is Codec.NONE:
        if len(data) > limit:
            raise TooLargeError(limit)
        return memoryview(data)
    try:
        if codec is Codec.SNAPPY:
            return memoryview(_decompress_snappy(data, limit))
        return _decompress_framed(_FRAMED[codec], data, limit, stack)
    except (cramjam.DecompressionError, StructError) as error:
        raise DecompressionFailedError(f"{codec.name.lower()}: {error}") from error


def _decompress_framed(module: Any, data: Bytes, limit: int, stack: ExitStack) -> memoryview:
    # The frames need not have their decompressed size, and may be wrong. First a buffer of a likely size, then one of
    # the limit, whose pages are allocated only when they are written.
    guess = min(limit, max(_FIRST_GUESS_BYTES, _FIRST_GUESS_RATIO * len(data)))
    output = bytearray(guess)
    try:
        size: int = module.decompress_into(data, output)
        return memoryview(output)[:size]
    except cramjam.DecompressionError as error:
        if str(error) != _OUT_OF_ROOM:
            raise
        if guess == limit:
            raise TooLargeError(limit) from error
    pages = stack.enter_context(mmap.mmap(-1, limit))
    try:
        size = module.decompress_into(data, pages)
    except cramjam.DecompressionError as error:
        if str(error) == _OUT_OF_ROOM:
            raise TooLargeError(limit) from error
        raise
    whole = stack.enter_context(memoryview(pages))
    return whole[:size]


def _compress_xerial(data: Bytes) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_BLOCK_SIZE.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: Bytes, limit: int) -> bytes:
    view = memoryview(data)
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _decompress_raw(view, limit, limit)
    parts: list[bytes] = []
    left = limit
    position = len(_XERIAL_HEADER)
    while position < len(view):
        (size,) = _BLOCK_SIZE.unpack_from(view, position)
        position += _BLOCK_SIZE.size
        if size < 0 or size > len(view) - position:
            raise DecompressionFailedError(f"snappy: a block of {size} bytes does not fit")
        part = _decompress_raw(view[position : position + size], limit, left)
        left -= len(part)
        parts.append(part)
        position += size
    return b"".join(parts)


def _decompress_raw(block: memoryview, limit: int, left: int) -> bytes:
    size = cramjam.snappy.decompress_raw_len(block)
    if size > left:
        raise TooLargeError(limit)
    if size > MOST_GROWTH[Codec.SNAPPY] * len(block):
        raise DecompressionFailedError(f"snappy: a block of {len(block)} bytes cannot become {size}")
    output = bytearray(size)
    written: int = cramjam.snappy.decompress_raw_into(block, output)
    return bytes(memoryview(output)[:written])
