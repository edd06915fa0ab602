"""Offset and timestamp of each record in a batch, and nothing else of it: for ListOffsets by timestamp."""

import time
from collections.abc import Iterator

from millstream.records.batch import HEADER_SIZE, BatchHeader, Bytes
from millstream.records.compression import MAX_DECOMPRESSED_BYTES, Codec, DecompressionFailedError, decompress
from millstream.records.varint import MAX_LONG_BYTES, read_varint

_STEP = 255
"""After so many records the interpreter's lock is offered to the event loop: this runs in a thread."""


class MalformedRecordsError(ValueError):
    """The records section does not hold what the header promises."""


def record_times(header: BatchHeader, batch: Bytes, limit: int = MAX_DECOMPRESSED_BYTES) -> Iterator[tuple[int, int]]:
    """(offset, timestamp) of each record of the batch, whose bytes begin with the header."""
    try:
        records = decompress(Codec(header.codec), memoryview(batch)[HEADER_SIZE : header.size], limit)
        position = 0
        for number in range(header.record_count):
            if number & _STEP == _STEP:
                time.sleep(0)
            size, position = read_varint(records, position)
            end = position + size
            if size < 0 or end > len(records):
                raise MalformedRecordsError("a record reaches past the end of its batch")
            timestamp_delta, position = read_varint(records, position + 1, MAX_LONG_BYTES)
            offset_delta, _ = read_varint(records, position)
            timestamp = header.max_timestamp if header.has_log_append_time else header.base_timestamp + timestamp_delta
            yield header.base_offset + offset_delta, timestamp
            position = end
    except (IndexError, ValueError) as error:
        if isinstance(error, MalformedRecordsError):
            raise
        raise MalformedRecordsError(str(error)) from error


__all__ = ["DecompressionFailedError", "MalformedRecordsError", "record_times"]
