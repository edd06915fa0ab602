"""Putting the copy of a group in its place, on the event loop: a few renames, each of which a crash may be the last.

`.cleaned` becomes `.swap`, the old files become `.deleted`, `.swap` becomes the segment; the directory keeps the order
of its changes, and `storage.swapping` finishes what a crash interrupts. Readers in the middle of an old segment keep
its files.
"""

from millstream.node.storage.cleaner.plan import CleaningAbortedError
from millstream.node.storage.cleaner.segment_copy import SegmentCopy
from millstream.node.storage.file_names import CLEANED_SUFFIX, SWAP_SUFFIX, TRANSACTION_INDEX_SUFFIX, offset_file
from millstream.node.storage.job import Job
from millstream.node.storage.log.partition_log import PartitionLog
from millstream.node.storage.log.segment import Segment


def swap_in(log: PartitionLog, copy: SegmentCopy, now_ms: int) -> Job:
    """The job brings the new names to stable storage, and removes the old files.

    CleaningAbortedError if the group is no longer what was copied: retention, a truncation or another log of the same
    name came first.
    """
    slot, count = _find(log, copy)
    paths = [offset_file(log.directory, copy.base_offset, suffix) for suffix in copy.suffixes]
    segment = log.make_segment(copy.base_offset, now_ms)
    segment.size = copy.size
    disk = log.disk
    if copy.lacks_markers:
        # First, so that no crash leaves them with a log that does not tell how their transactions ended. Without them
        # producers are found from the start of the log, where every transaction that is left has its end.
        log.snapshots.remove_before(copy.group[-1].end_offset)

    def put_in_place() -> None:
        for path in paths:
            disk.rename(path + SWAP_SUFFIX, path)
        # This process wrote every byte of it.
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
        log.fail(f"the cleaned segment {copy.base_offset} could not be put in its place: {error}")
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
    """Where the group is in the log."""
    segments, count = log.segments, len(copy.group)
    slot = segments.slot_of(copy.base_offset)
    found: list[Segment] = [segments[at] for at in range(slot, min(slot + count, len(segments)))]
    expected = [source.segment for source in copy.group]
    is_same = len(found) == count and all(old is new for old, new in zip(found, expected, strict=True))
    if not is_same or segments.active in found or log.failure is not None:
        raise CleaningAbortedError
    return slot, count
