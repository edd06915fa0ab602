"""The prefix of registered records: a zero byte and the schema id; for Protobuf also the index of the message."""

from struct import Struct

from millstream.formats.records.varint import MalformedRecordError, append_varint, read_varint

PREFIX = Struct(">bI")
MAGIC = 0
_FIRST_MESSAGE = (0,)


class UnframedError(ValueError):
    """The bytes do not begin with the prefix."""


def split(data: bytes) -> tuple[int, bytes]:
    """The schema id, and the bytes after the prefix."""
    if len(data) < PREFIX.size or data[0] != MAGIC:
        raise UnframedError(
            f"no schema registry prefix: the record begins with {data[: PREFIX.size].hex(' ') or 'nothing'}, "
            "not with 00 and a schema id"
        )
    return int.from_bytes(data[1:5], "big"), data[5:]


def prefix(schema_id: int) -> bytes:
    return PREFIX.pack(MAGIC, schema_id)


def split_indexes(data: bytes) -> tuple[tuple[int, ...], bytes]:
    """The index of the message in the file, then in its parent message; and the remaining bytes."""
    count, at = _read(data, 0)
    if count == 0:  # short for the first message of the file
        return _FIRST_MESSAGE, data[at:]
    if not 0 < count <= len(data):
        raise UnframedError(f"a message index of {count} levels")
    indexes = []
    for _ in range(count):
        index, at = _read(data, at)
        indexes.append(index)
    return tuple(indexes), data[at:]


def indexes_prefix(indexes: tuple[int, ...]) -> bytes:
    if indexes == _FIRST_MESSAGE:
        return b"\x00"
    out = bytearray()
    for number in (len(indexes), *indexes):
        append_varint(out, number)
    return bytes(out)


def _read(data: bytes, at: int) -> tuple[int, int]:
    try:
        return read_varint(data, at)
    except MalformedRecordError:
        raise UnframedError("the message indexes are cut off") from None
