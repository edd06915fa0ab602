"""The records of one batch as stretches of bytes: finding their keys, and taking some of them out.

Nothing is decoded that need not be. Numbers of one byte are read in place: most are, and the calls would cost more than
all the rest. Whatever is wrong with the bytes comes up as `UncleanableError`.
"""

from collections.abc import Container, Sequence
from typing import NamedTuple

from millstream.records.compression import Codec, DecompressionFailedError, decompress
from millstream.records.varint import MAX_LONG_BYTES, MalformedRecordError, append_varint, read_varint
from millstream.storage.cleaner.key_map import DEAD, LONGEST_KEY_BYTES, SHARD_MASK, TOMBSTONE, Key, KeyMap, digest

DIGEST_OBJECT_BYTES = 12
"""What the int of a digest takes more than the constant part that is counted for every key."""


class UncleanableError(Exception):
    """The log holds something that cannot be read; it is left as it is."""


class RecordSpan(NamedTuple):
    """Where one record lies, and what the cleaner needs to know of it."""

    start: int
    body: int
    """Behind the length: the record's attributes."""
    timestamp_end: int
    end: int
    timestamp_delta: int


def content_of(codec: int, data: bytes, start: int, end: int) -> tuple[bytes, int, int]:
    """The bytes that hold the records, and from where to where; uncompressed ones stay where they are."""
    if codec == Codec.NONE:
        return data, start, end
    try:
        content = decompress(Codec(codec), memoryview(data)[start:end])
        return content, 0, len(content)
    except (ValueError, DecompressionFailedError) as error:
        raise UncleanableError(f"a batch cannot be decompressed: {error}") from error


def map_records(keys: KeyMap, data: bytes, position: int, content_end: int, count: int) -> None:
    """Take the records of the next batch, which end at `content_end`, into the map."""
    shards, fates = keys.latest, keys.fates
    number = len(fates)
    fates += bytes(count)
    new_key_bytes = new_keys = 0
    try:
        for number in range(number, number + count):  # noqa: B020
            byte = data[position]
            if byte < 0x80:
                end = position + 1 + (byte >> 1)
                position += 2
            elif (second := data[position + 1]) < 0x80:
                end = position + 2 + ((byte & 0x7F | second << 7) >> 1)
                position += 3
            else:
                size, position = read_varint(data, position)
                end = position + size
                position += 1
            while data[position] >= 0x80:  # the time
                position += 1
            position += 1
            while data[position] >= 0x80:  # the offset
                position += 1
            position += 1
            byte = data[position]
            if byte < 0x80 and not byte & 1:
                position += 1
                size = byte >> 1
            else:
                size, position = read_varint(data, position)
                if size < 0:
                    fates[number] = DEAD  # compaction knows no place for a record without a key
                    position = end
                    continue
            key: Key = data[position : position + size]
            position += size
            if position >= end:
                raise UncleanableError("a key reaches past the end of its record")
            if size > LONGEST_KEY_BYTES:
                key = digest(key)  # type: ignore[arg-type]
                size = DIGEST_OBJECT_BYTES
            latest = shards[hash(key) & SHARD_MASK]
            previous = latest.get(key)
            if previous is None:
                new_keys += 1
                new_key_bytes += size
            else:
                fates[previous] = DEAD
            latest[key] = number
            if data[position] & 1 and read_varint(data, position)[0] < 0:
                fates[number] = TOMBSTONE
            position = end
    except (IndexError, MalformedRecordError) as error:
        raise UncleanableError(f"a record is malformed: {error}") from error
    finally:
        keys.note_growth(new_key_bytes, new_keys)
    if position != content_end:
        raise UncleanableError("the records of a batch do not end where it does")


def fates_by_key(
    shards: Sequence[Container[Key]], data: bytes, position: int, content_end: int, count: int
) -> bytearray:
    """What becomes of the records of a batch, each older than all that the map has: superseded if it has their key.

    The loop is that of `map_records`; to share it would cost a call for each record.
    """
    fates = bytearray(count)
    try:
        for number in range(count):
            byte = data[position]
            if byte < 0x80:
                end = position + 1 + (byte >> 1)
                position += 2
            elif (second := data[position + 1]) < 0x80:
                end = position + 2 + ((byte & 0x7F | second << 7) >> 1)
                position += 3
            else:
                size, position = read_varint(data, position)
                end = position + size
                position += 1
            while data[position] >= 0x80:  # the time
                position += 1
            position += 1
            while data[position] >= 0x80:  # the offset
                position += 1
            position += 1
            byte = data[position]
            if byte < 0x80 and not byte & 1:
                position += 1
                size = byte >> 1
            else:
                size, position = read_varint(data, position)
            if size < 0:
                fates[number] = DEAD
            else:
                key: Key = data[position : position + size]
                position += size
                if position >= end:
                    raise UncleanableError("a key reaches past the end of its record")
                if size > LONGEST_KEY_BYTES:
                    key = digest(key)  # type: ignore[arg-type]
                if key in shards[hash(key) & SHARD_MASK]:
                    fates[number] = DEAD
                elif data[position] & 1 and read_varint(data, position)[0] < 0:
                    fates[number] = TOMBSTONE
            position = end
    except (IndexError, MalformedRecordError) as error:
        raise UncleanableError(f"a record is malformed: {error}") from error
    if position != content_end:
        raise UncleanableError("the records of a batch do not end where it does")
    return fates


def live_spans(data: bytes, position: int, fates: bytes | bytearray, gone: bytes) -> list[RecordSpan]:
    """Those of the records that begin at `position` whose fate is not among `gone`; each has its byte in `fates`."""
    kept: list[RecordSpan] = []
    try:
        for fate in fates:
            start = position
            byte = data[position]
            if byte < 0x80:
                body = position + 1
                position = body + (byte >> 1)
            elif (second := data[position + 1]) < 0x80:
                body = position + 2
                position = body + ((byte & 0x7F | second << 7) >> 1)
            else:
                size, body = read_varint(data, position)
                position = body + size
            if fate not in gone:
                byte = data[body + 1]
                if byte < 0x80:
                    kept.append(RecordSpan(start, body, body + 2, position, (byte >> 1) ^ -(byte & 1)))
                else:
                    delta, timestamp_end = read_varint(data, body + 1, MAX_LONG_BYTES)
                    kept.append(RecordSpan(start, body, timestamp_end, position, delta))
    except (IndexError, MalformedRecordError) as error:
        raise UncleanableError(f"a record is malformed: {error}") from error
    return kept


def rebased(data: bytes, span: RecordSpan, shift_ms: int) -> bytes:
    """A record whose time is told from a base that is `shift_ms` later."""
    times = bytearray()
    append_varint(times, span.timestamp_delta - shift_ms)
    size = 1 + len(times) + span.end - span.timestamp_end
    out = bytearray()
    append_varint(out, size)
    out.append(data[span.body])
    out += times
    out += memoryview(data)[span.timestamp_end : span.end]
    return bytes(out)
