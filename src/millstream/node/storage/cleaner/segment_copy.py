"""The segment that takes the place of a group: its files under Kafka's `.cleaned` names, written and synced."""

from millstream.formats.records.batch import Bytes
from millstream.node.storage.cleaner.plan import Plan, Source
from millstream.node.storage.disk import File
from millstream.node.storage.file_names import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    offset_file,
)
from millstream.node.storage.index.index_builder import IndexBuilder
from millstream.node.storage.index.transaction_index import AbortedTransaction, encode_aborted


class SegmentCopy:
    def __init__(self, plan: Plan, group: list[Source]) -> None:
        self._plan = plan
        self.group = group
        self.base_offset = group[0].base_offset
        self.changed = len(group) > 1
        """Whether it differs from what it would replace."""
        self.lacks_markers = False
        """Whether markers of its group are gone: a snapshot from before them has their transactions open for ever."""
        self.size = 0
        self.suffixes: list[str] = []
        """Of the files that were written, without `.cleaned`."""
        self.builder = IndexBuilder(self.base_offset, plan.index_interval_bytes)
        self._pending: list[Bytes] = []
        self._written = 0
        self._file: File = plan.disk.create(self._path(LOG_SUFFIX))

    def add(self, batch: Bytes, header: tuple[int, ...]) -> None:
        """Append a batch; `header` has the fields of `BatchHeader`."""
        self.builder.add_fields(self.size, header[0] + header[6], len(batch), header[8])
        self._pending.append(batch)
        self.size += len(batch)
        stats = self._plan.stats
        stats.written_bytes += len(batch)
        stats.written_records += header[12]

    def flush(self, at_least: int = 1) -> None:
        """Write what was added since, if it is so much."""
        if self.size - self._written >= at_least:
            self._file.write_at(self._written, b"".join(self._pending))
            self._written = self.size
            self._pending.clear()

    def finish(self, aborted: list[AbortedTransaction]) -> None:
        """Write the indexes, and bring everything to stable storage."""
        if not self.changed:
            return
        self.flush()
        builder, disk = self.builder, self._plan.disk
        if builder.max_timestamp >= 0:
            builder.times.append(builder.max_timestamp, builder.max_timestamp_offset - self.base_offset)
        files = {INDEX_SUFFIX: builder.index.to_bytes(), TIME_INDEX_SUFFIX: builder.times.to_bytes()}
        if aborted or any(source.segment.aborted for source in self.group):
            files[TRANSACTION_INDEX_SUFFIX] = encode_aborted(aborted)  # an empty one, too, takes the old one's place
        for suffix, data in files.items():
            file = disk.create(self._path(suffix))
            if data:
                file.write_at(0, data)
            file.sync()
        self._file.sync()
        self.suffixes = [*files, LOG_SUFFIX]

    def discard(self) -> None:
        for suffix in SEGMENT_SUFFIXES:
            self._plan.disk.remove(self._path(suffix))

    def _path(self, suffix: str) -> str:
        return offset_file(self._plan.directory, self.base_offset, suffix) + CLEANED_SUFFIX
