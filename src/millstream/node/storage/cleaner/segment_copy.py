"""The copy of a group of segments: its files under Kafka's `.cleaned` names, and the swap that replaces the group.

The swap is a few renames on the event loop, and a crash may come after any of them: `.cleaned` becomes `.swap`, the old
files become `.deleted`, `.swap` becomes the segment. The directory keeps the order of its changes, and `log.files`
finishes a swap after a crash. Readers of an old segment keep its files.
"""

from millstream.formats.records.batch import Bytes
from millstream.node.storage.cleaner.plan import CleaningAbortedError, Plan, Source
from millstream.node.storage.disk import File, Job
from millstream.node.storage.file_formats import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    offset_file,
)
from millstream.node.storage.index.time_index import IndexBuilder
from millstream.node.storage.index.transaction_index import AbortedTransaction, encode_aborted
from millstream.node.storage.log.partition_log import PartitionLog
from millstream.node.storage.log.segment import Segment


class SegmentCopy:
    def __init__(self, plan: Plan, group: list[Source]) -> None:
        self._plan = plan
        self.group = group
        self.base_offset = group[0].base_offset
        self.changed = len(group) > 1
        """Whether it differs from the segments that it replaces."""
        self.lacks_markers = False
        """Whether markers of its group were removed: with a snapshot from before them, their transactions would stay
        open."""
        self.size = 0
        self.suffixes: list[str] = []
        """Suffixes of the files that were written, without `.cleaned`."""
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
        """Write the pending batches, if they are `at_least` bytes."""
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
            files[TRANSACTION_INDEX_SUFFIX] = encode_aborted(aborted)  # an empty one replaces the old one too
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


def swap_in(log: PartitionLog, copy: SegmentCopy, now_ms: int) -> Job:
    """The job brings the new names to stable storage, and removes the old files.

    CleaningAbortedError if the group has changed since: by retention, by a truncation, or as the log was replaced by
    another one of the same name.
    """
    slot, count = _find(log, copy)
    paths = [offset_file(log.directory, copy.base_offset, suffix) for suffix in copy.suffixes]
    segment = log.segments.make(copy.base_offset, now_ms)
    segment.size = copy.size
    disk = log.disk
    if copy.lacks_markers:
        # First, so that after a crash no snapshot has open transactions whose markers are removed. Without snapshots,
        # producers are rebuilt from the start of the log, where every remaining transaction has its marker.
        log.snapshots.remove_before(copy.group[-1].end_offset)

    def put_in_place() -> None:
        for path in paths:
            disk.rename(path + SWAP_SUFFIX, path)
        # This process wrote all of it.
        segment.trusted_from = segment.size
        segment.verified = (0, segment.size)
        segment.sealed_modified_ns = segment.file().modified_ns()

    try:
        for path in paths:
            disk.rename(path + CLEANED_SUFFIX, path + SWAP_SUFFIX)
    except OSError:
        for path in paths:
            disk.remove(path + SWAP_SUFFIX)
        raise
    try:
        old = log.segments.replace(slot, count, segment, put_in_place)
    except OSError as error:
        log.fail(f"the cleaned segment {copy.base_offset} could not replace the old ones: {error}")
        raise
    if TRANSACTION_INDEX_SUFFIX in copy.suffixes:
        segment.aborted.opened()
    old += log.snapshots.forget_at([source.base_offset for source in copy.group[1:]])
    directory = log.directory

    def settle() -> None:
        disk.sync_directory(directory)
        for path in old:
            disk.remove(path)

    return Job(f"settle_cleaned partition={log.topic_partition} segment={copy.base_offset}", settle)


def _find(log: PartitionLog, copy: SegmentCopy) -> tuple[int, int]:
    """(slot, count) of the group in the log."""
    segments, count = log.segments, len(copy.group)
    slot = segments.slot_of(copy.base_offset)
    found: list[Segment] = [segments[at] for at in range(slot, min(slot + count, len(segments)))]
    expected = [source.segment for source in copy.group]
    is_same = len(found) == count and all(old is new for old, new in zip(found, expected, strict=True))
    if not is_same or segments.active in found or log.failure is not None:
        raise CleaningAbortedError
    return slot, count
