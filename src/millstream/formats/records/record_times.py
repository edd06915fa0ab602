"""Records of one batch by their time, for ListOffsets: nothing else of them is looked at.

For a thread. The walk over the records is compiled where that was built.
"""

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.records.batch import NO_TIMESTAMP, BatchHeader, Bytes
from millstream.formats.records.compiled import find_time, latest_time
from millstream.formats.records.opening import OpeningLimits, opened
from millstream.formats.records.varint import MAX_LONG_BYTES, MalformedRecordError, read_varint

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


def first_record_at(
    header: BatchHeader, batch: Bytes, timestamp: int, least_offset: int, limits: OpeningLimits
) -> tuple[int, int] | None:
    """Offset and timestamp of the first record that is neither before `timestamp` nor below `least_offset`.

    `batch` begins with the header. Raises as `opened` does, and INVALID_RECORD.
    """
    if header.has_log_append_time:
        if header.max_timestamp < timestamp:
            return None
        least_time = _LEAST
    else:
        least_time = max(_LEAST, min(_MOST, timestamp - header.base_timestamp))
    least_delta = max(_LEAST, least_offset - header.base_offset)
    try:
        with opened(header, batch, limits) as content:
            found = find_time(content, 0, len(content), header.record_count, least_time, least_delta)
    except MalformedRecordError as error:
        raise _malformed(error) from None
    return None if found is None else _absolute(header, *found)


def latest_record(header: BatchHeader, batch: Bytes, limits: OpeningLimits) -> tuple[int, int] | None:
    """Offset and timestamp of the first record that has the greatest timestamp; None if there is no record."""
    if header.has_log_append_time:
        return first_record_at(header, batch, header.max_timestamp, header.base_offset, limits)
    try:
        with opened(header, batch, limits) as content:
            found = latest_time(content, 0, len(content), header.record_count)
    except MalformedRecordError as error:
        raise _malformed(error) from None
    return None if found is None else _absolute(header, *found)


def records_outside(
    header: BatchHeader, batch: Bytes, earliest: int, latest: int, limits: OpeningLimits
) -> list[tuple[int, int]]:
    """Number and timestamp of each record whose timestamp is outside of these two; -1 is no timestamp, and never is.

    In plain Python: for batches that are refused, and with limits that suit it. Raises as `opened` does, and
    INVALID_RECORD.
    """
    found = []
    position = 0
    try:
        with opened(header, batch, limits) as content:
            for number in range(header.record_count):
                size, body = read_varint(content, position)
                if size < 1 or body + size > len(content):
                    raise MalformedRecordError(f"record {number} of {size} bytes does not fit into its batch")
                timestamp = header.base_timestamp + read_varint(content, body + 1, MAX_LONG_BYTES)[0]
                if timestamp != NO_TIMESTAMP and not earliest <= timestamp <= latest:
                    found.append((number, timestamp))
                position = body + size
    except MalformedRecordError as error:
        raise _malformed(error) from None
    return found


def _absolute(header: BatchHeader, offset_delta: int, time_delta: int) -> tuple[int, int]:
    timestamp = header.max_timestamp if header.has_log_append_time else header.base_timestamp + time_delta
    return header.base_offset + offset_delta, timestamp


def _malformed(error: MalformedRecordError) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, f"the records are not what their batch says: {error}")
