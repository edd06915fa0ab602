"""Reading batches for the cleaner: blocks of a segment with whole, sound batches, and removal of records from a batch.

Only the necessary fields are decoded. Numbers of one byte are read in place, because most have one byte and a call
would cost more than the rest. Headers stay plain tuples in the order of `BatchHeader`: for small batches, named tuples
would be a third of the work. Malformed bytes raise `UncleanableError`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from crc32c import crc32c

from millstream.formats.model.errors import KafkaError
from millstream.formats.records.batch import (
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC_V2,
    MINIMUM_LENGTH,
    BatchHeader,
    Bytes,
)
from millstream.formats.records.opening import BeyondLimitsError, opened
from millstream.formats.records.varint import MAX_LONG_BYTES, MalformedRecordError, append_varint, read_varint
from millstream.node.storage.cleaner.errors import MalformedBatchError, UncleanableError
from millstream.node.storage.cleaner.key_map import DEAD, TOMBSTONE
from millstream.node.storage.cleaner.plan import Plan
from millstream.node.storage.disk import File

_DEAD, _DEAD_OR_TOMBSTONE = bytes([DEAD]), bytes([DEAD, TOMBSTONE])


class _RecordSpan(NamedTuple):
    """The position of one record, and its timestamp."""

    start: int
    body: int
    """Behind the length: the record's attributes."""
    timestamp_end: int
    end: int
    timestamp_delta: int


@contextmanager
def decompressed_content(
    plan: Plan, header: tuple[int, ...], block: bytes, at: int, after: int
) -> Iterator[memoryview]:
    """The records of a compressed batch of the block, within the context; BeyondLimitsError if they are above the
    limits of the plan, MalformedBatchError if they cannot be decompressed."""
    try:
        with opened(BatchHeader._make(header), memoryview(block)[at:after], plan.limits) as content:
            plan.stats.opened_bytes += len(content)
            yield content
    except BeyondLimitsError:
        plan.stats.opened_bytes += plan.limits.max_bytes
        raise
    except KafkaError as error:
        raise MalformedBatchError(f"the batch at offset {header[0]} cannot be opened: {error.message}") from error


def _live_spans(data: bytes, position: int, fates: bytes | bytearray, gone: bytes) -> list[_RecordSpan]:
    """The records from `position` on whose byte in `fates` is not in `gone`."""
    kept: list[_RecordSpan] = []
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
                    kept.append(_RecordSpan(start, body, body + 2, position, (byte >> 1) ^ -(byte & 1)))
                else:
                    delta, timestamp_end = read_varint(data, body + 1, MAX_LONG_BYTES)
                    kept.append(_RecordSpan(start, body, timestamp_end, position, delta))
    except (IndexError, MalformedRecordError) as error:
        raise UncleanableError(f"a record is malformed: {error}") from error
    return kept


def kept_records(
    data: Bytes, position: int, fates: bytes | bytearray, drops_tombstones: bool, shift_ms: int
) -> tuple[bytes | bytearray, int, int]:
    """The records from `position` on that are kept, with timestamps relative to a base that is `shift_ms` later; their
    count; and the greatest of their timestamp deltas before the shift."""
    data = bytes(data)
    spans = _live_spans(data, position, fates, _DEAD_OR_TOMBSTONE if drops_tombstones else _DEAD)
    if shift_ms:
        content = b"".join([_rebased(data, span, shift_ms) for span in spans])
    else:
        content = b"".join([data[span.start : span.end] for span in spans])
    return content, len(spans), max((span.timestamp_delta for span in spans), default=0)


def _rebased(data: bytes, span: _RecordSpan, shift_ms: int) -> bytes:
    """A record with its timestamp relative to a base that is `shift_ms` later."""
    times = bytearray()
    append_varint(times, span.timestamp_delta - shift_ms)
    size = 1 + len(times) + span.end - span.timestamp_end
    out = bytearray()
    append_varint(out, size)
    out.append(data[span.body])
    out += times
    out += memoryview(data)[span.timestamp_end : span.end]
    return bytes(out)


Located = tuple[int, int, tuple[int, ...]]
"""Start and end of a batch in its block, and its header."""

STEP_BYTES = 32 << 10

_unpack_from = HEADER.unpack_from


def read_blocks(file: File, start: int, end: int, block_bytes: int) -> Iterator[tuple[bytes, list[Located]]]:
    """Blocks with some of their batches each time, from `start` to `end`, which are batch boundaries; UncleanableError
    where one is damaged.

    A batch larger than a block is read alone.
    """
    position = start
    wanted = max(block_bytes, HEADER_SIZE)
    while position < end:
        block = file.read_at(position, min(wanted, end - position))
        found, needed = _batches(block, position, end, file.path)
        if found:
            for some in _steps(found):
                yield block, some
            position += found[-1][1]
            wanted = max(block_bytes, HEADER_SIZE)
        elif needed > len(block):
            wanted = needed
        else:
            raise UncleanableError(f"{file.path} ends at byte {position + len(block)}, not at {end}")


def _steps(found: list[Located]) -> Iterator[list[Located]]:
    """Batches in steps that take a short time."""
    first = 0
    for at, (_, after, _) in enumerate(found):
        if after - found[first][0] >= STEP_BYTES:
            yield found[first : at + 1]
            first = at + 1
    if first < len(found):
        yield found[first:]


def _batches(block: bytes, start: int, end: int, path: str) -> tuple[list[Located], int]:
    """The whole batches of a block, and how many bytes the next one needs."""
    found: list[Located] = []
    view = memoryview(block)
    at, length, room = 0, len(block), end - start
    while at < length:
        if length - at < HEADER_SIZE:
            if at + HEADER_SIZE > room:
                raise UncleanableError(f"no batch fits at byte {start + at} of {path}")
            return found, HEADER_SIZE
        header = _unpack_from(block, at)
        after = at + header[1] + LOG_OVERHEAD
        if (
            header[3] != MAGIC_V2
            or header[1] < MINIMUM_LENGTH
            or after > room
            or header[0] < 0
            or header[6] < 0
            or header[12] < 0
        ):
            raise UncleanableError(f"no batch begins at byte {start + at} of {path}")
        if after > length:
            return found, after - at
        if crc32c(view[at + CRC_START : after]) != header[4]:
            raise UncleanableError(f"the batch at byte {start + at} of {path} is damaged")
        found.append((at, after, header))
        at = after
    return found, 0
