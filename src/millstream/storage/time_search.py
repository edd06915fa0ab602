"""Finding records by time: the indexes and headers lead to one batch, and only that batch is decoded."""

from collections.abc import Iterable
from typing import NamedTuple

from millstream.model.errors import ErrorCode, KafkaError
from millstream.records.batch import BatchHeader
from millstream.records.record_times import MalformedRecordsError, record_times
from millstream.storage.batch_scan import walk_headers
from millstream.storage.segment import Segment


class FoundOffset(NamedTuple):
    offset: int
    timestamp: int
    leader_epoch: int


def offset_by_timestamp(segments: Iterable[Segment], log_start_offset: int, timestamp: int) -> FoundOffset | None:
    """The first record at or after the log's start whose timestamp is not before `timestamp`."""
    for segment in segments:
        if segment.greatest_timestamp() < timestamp or segment.size == 0:
            continue
        start = max(segment.first_offset_for_time(timestamp), log_start_offset)
        found = segment.find(start)
        if found is None:
            continue
        for position, header in walk_headers(segment.file(), found, segment.size):
            if header.max_timestamp < timestamp or header.last_offset < log_start_offset:
                continue
            for offset, record_timestamp in _times(segment, position, header):
                if record_timestamp >= timestamp and offset >= log_start_offset:
                    return FoundOffset(offset, record_timestamp, header.leader_epoch)
    return None


def max_timestamp_offset(segments: Iterable[Segment]) -> FoundOffset | None:
    """The first record that has the greatest timestamp."""
    best: Segment | None = None
    for segment in segments:
        if segment.size and (best is None or segment.greatest_timestamp() > best.greatest_timestamp()):
            best = segment
    if best is None or best.greatest_timestamp() < 0:
        return None
    found = best.find(best.max_timestamp_offset)
    if found is None:
        return None
    _, header = next(walk_headers(best.file(), found, best.size))
    offset, timestamp = max(_times(best, found, header), key=lambda time: (time[1], -time[0]))
    return FoundOffset(offset, timestamp, header.leader_epoch)


def _times(segment: Segment, position: int, header: BatchHeader) -> list[tuple[int, int]]:
    try:
        return list(record_times(header, segment.file().read_at(position, header.size)))
    except MalformedRecordsError as error:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"the batch at offset {header.base_offset} in {segment.log.path}: {error}"
        ) from error
