"""Making a segment's indexes from its batches, with the rule by which appending makes them."""

from millstream.formats.records.batch import BatchHeader
from millstream.node.storage.disk import Disk
from millstream.node.storage.file_names import INDEX_SUFFIX, TIME_INDEX_SUFFIX, offset_file
from millstream.node.storage.index.offset_index import OffsetIndex
from millstream.node.storage.index.time_index import TimeIndex

DEFAULT_INTERVAL_BYTES = 4096
NO_TIMESTAMP = -1


class IndexBuilder:
    __slots__ = (
        "_bytes_since_entry",
        "_interval_bytes",
        "base_offset",
        "index",
        "max_timestamp",
        "max_timestamp_offset",
        "times",
    )

    def __init__(self, base_offset: int, interval_bytes: int = DEFAULT_INTERVAL_BYTES) -> None:
        self.base_offset = base_offset
        self.index = OffsetIndex()
        self.times = TimeIndex()
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self._interval_bytes = interval_bytes
        self._bytes_since_entry = 0

    def add(self, position: int, header: BatchHeader) -> None:
        self.add_fields(position, header.last_offset, header.size, header.max_timestamp)

    def add_fields(self, position: int, last_offset: int, size: int, max_timestamp: int) -> None:
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if self._bytes_since_entry > self._interval_bytes:
            self.index.append(last_offset - self.base_offset, position)
            self.times.append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
            self._bytes_since_entry = 0
        self._bytes_since_entry += size

    def write(self, disk: Disk, directory: str) -> None:
        """Write both files, with the closing time entry."""
        if self.max_timestamp >= 0:
            self.times.append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
        index, times = (
            offset_file(directory, self.base_offset, suffix) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)
        )
        # As one step each: a file that somebody has mapped must not shrink under them.
        disk.write_atomically(times, self.times.to_bytes(), durable=False)
        disk.write_atomically(index, self.index.to_bytes(), durable=False)
