"""Search by time: the indexes and headers lead to one batch, and only that batch is decompressed.

A batch above the limits, or one that cannot be read, counts as a whole: the result is its first offset instead of the
first record at or after a time, and its last offset instead of the latest record. So does the batch after several ones
whose headers promise a record of that time that is not in them.
"""

import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.records.batch import NO_TIMESTAMP, BatchHeader
from millstream.formats.records.opening import WIDEST, BeyondLimitsError, OpeningLimits, first_record_at, latest_record
from millstream.node.storage.disk import File
from millstream.node.storage.log.batch_scan import walk_headers
from millstream.node.storage.log.segment import Segment

_MAX_MISSES = 8
"""Batches that are decompressed without the record that their headers promise. Kafka clients write no such batches."""
_log = logging.getLogger("millstream.storage")


class FoundOffset(NamedTuple):
    offset: int
    timestamp: int
    leader_epoch: int


class TimeSearch:
    """A view of a log's segments, made on the event loop. The searches run in a thread, while the loop appends, rolls
    and deletes."""

    __slots__ = ("_limits", "_log_start_offset", "_misses", "_newest", "_segments")

    def __init__(self, segments: Iterable[Segment], log_start_offset: int, limits: OpeningLimits = WIDEST) -> None:
        # The end of the active segment, and its greatest timestamp, change later.
        self._segments = [(segment, segment.size) for segment in segments if segment.size]
        self._newest = self._segments[-1][0].max_timestamp if self._segments else NO_TIMESTAMP
        self._log_start_offset = log_start_offset
        self._limits = limits
        self._misses = 0
        """Batches that were decompressed without a result."""

    def offset_by_timestamp(self, timestamp: int) -> FoundOffset | None:
        """The first record at or after the log's start whose timestamp is not before `timestamp`."""
        return self._first(lambda segment, size: self._search(segment, size, timestamp))

    def max_timestamp_offset(self) -> FoundOffset | None:
        """The first record that has the greatest timestamp."""
        greatest = self._greatest()
        if greatest < 0:
            return None
        found = self._first(lambda segment, size: self._greatest_record(segment, size, greatest))
        if found is None:
            # The batch that has it is empty (the cleaner keeps such ones): search the batches with records.
            latest = max((_latest_left(segment) for segment, _ in self._segments), default=NO_TIMESTAMP)
            found = self._first(lambda segment, size: self._greatest_record(segment, size, latest, indexed=False))
        return found

    def _first(self, search: Callable[[Segment, int], FoundOffset | None]) -> FoundOffset | None:
        for segment, size in self._segments:
            try:
                found = self._search_newest(search, segment, size)
            except FileNotFoundError as error:
                if not segment.dropped:
                    raise _unreadable(segment, error) from error
                continue  # deleted during the search
            except OSError as error:
                raise _unreadable(segment, error) from error
            if found is not None:
                return found
        return None

    def _search_newest(
        self, search: Callable[[Segment, int], FoundOffset | None], segment: Segment, size: int
    ) -> FoundOffset | None:
        if segment.successor is None:
            try:
                return search(segment, size)
            except FileNotFoundError:
                if segment.successor is None:
                    raise
        cleaned = segment.newest()  # it has the remaining records
        return search(cleaned, cleaned.size)

    def _greatest(self) -> int:
        if self._newest is None:
            greatest, older = NO_TIMESTAMP, self._segments
        else:
            greatest, older = self._newest, self._segments[:-1]
        for segment, _ in older:
            try:
                greatest = max(greatest, segment.newest().greatest_timestamp())
            except OSError as error:
                if not segment.dropped:
                    raise _unreadable(segment, error) from error
        return greatest

    def _search(self, segment: Segment, size: int, timestamp: int) -> FoundOffset | None:
        if segment.greatest_timestamp() < timestamp:
            return None
        start = max(segment.first_offset_for_time(timestamp), self._log_start_offset)
        position = segment.find(start, in_thread=True)
        if position is None:
            return None
        file = segment.file()
        for at, header in walk_headers(file, position, size):
            if header.max_timestamp < timestamp or header.last_offset < self._log_start_offset:
                continue
            found = self._first_in_batch(file, at, header, timestamp)
            if found is not None:
                return FoundOffset(*found, header.leader_epoch)
        return None

    def _first_in_batch(self, file: File, at: int, header: BatchHeader, timestamp: int) -> tuple[int, int] | None:
        least_offset = self._log_start_offset
        if not header.record_count:
            return None  # the cleaner has removed the records
        if self._misses >= _MAX_MISSES:
            return max(header.base_offset, least_offset), header.max_timestamp
        try:
            found = first_record_at(header, file.read_at(at, header.size), timestamp, least_offset, self._limits)
        except BeyondLimitsError:
            return max(header.base_offset, least_offset), header.max_timestamp
        except KafkaError as error:
            _log_unreadable(file, header, error)
            return max(header.base_offset, least_offset), header.max_timestamp
        self._misses += found is None
        return found

    def _greatest_record(
        self, segment: Segment, size: int, greatest: int, *, indexed: bool = True
    ) -> FoundOffset | None:
        if segment.greatest_timestamp() < greatest:
            return None
        position = segment.find(segment.first_offset_for_time(greatest), in_thread=True) if indexed else 0
        if position is None:
            return None
        file = segment.file()
        for at, header in walk_headers(file, position, size):
            if header.max_timestamp >= greatest and header.record_count:
                return FoundOffset(*self._latest_in_batch(file, at, header), header.leader_epoch)
        return None

    def _latest_in_batch(self, file: File, at: int, header: BatchHeader) -> tuple[int, int]:
        whole = header.last_offset, header.max_timestamp
        try:
            return latest_record(header, file.read_at(at, header.size), self._limits) or whole
        except BeyondLimitsError:
            return whole
        except KafkaError as error:
            _log_unreadable(file, header, error)
            return whole


def _latest_left(segment: Segment) -> int:
    """The greatest timestamp of batches that have records."""
    cleaned = segment.newest()
    try:
        headers = walk_headers(cleaned.file(), 0, cleaned.size)
        return max((header.max_timestamp for _, header in headers if header.record_count), default=NO_TIMESTAMP)
    except OSError as error:
        if not segment.dropped:
            raise _unreadable(segment, error) from error
        return NO_TIMESTAMP


def _log_unreadable(file: File, header: BatchHeader, error: KafkaError) -> None:
    """Not an error of ListOffsets: clients would retry it for ever. A fetch of the records gets the error (ADR 25)."""
    _log.warning("times_of_batch_unreadable file=%s offset=%d reason=%s", file.path, header.base_offset, error.message)


def _unreadable(segment: Segment, error: OSError) -> KafkaError:
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{segment.log.path}: {error}")
