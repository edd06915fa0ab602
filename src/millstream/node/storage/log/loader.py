"""Opening a log whose files are in order: after a clean stop, or after `recovery`.

Small damage is repaired here (a missing or damaged index, an empty segment, a torn tail). Unknown files are left
alone.
"""

import logging
from collections.abc import Collection
from uuid import UUID

from millstream.config.topic_config import LogConfig
from millstream.formats.model.identifiers import NO_TOPIC_ID, TopicPartition
from millstream.node.storage.disk import Disk, FileCache
from millstream.node.storage.file_formats import (
    INDEX_SUFFIX,
    LEADER_EPOCHS,
    PARTITION_METADATA,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    DamagedFileError,
    decode_epochs,
    decode_topic_id,
    encode_topic_id,
)
from millstream.node.storage.index import offset_index, time_index
from millstream.node.storage.index.offset_index import OffsetIndex
from millstream.node.storage.index.time_index import NO_TIMESTAMP, TimeIndex
from millstream.node.storage.index.transaction_index import decode_aborted
from millstream.node.storage.log.batch_scan import walk_headers
from millstream.node.storage.log.earlier_batches import tiered_up_to
from millstream.node.storage.log.files import LogFiles, scan_files
from millstream.node.storage.log.leader_epochs import LeaderEpochs
from millstream.node.storage.log.partition_log import PartitionLog
from millstream.node.storage.log.producer_snapshots import SnapshotFiles, aborted_in, rebuild_producers
from millstream.node.storage.log.producer_state import ProducerState
from millstream.node.storage.log.recovery import recover_log
from millstream.node.storage.log.segment import Segment
from millstream.node.storage.log.segment_list import SegmentList

_log = logging.getLogger("millstream.storage")


def create_log(
    disk: Disk,
    cache: FileCache,
    directory: str,
    topic_partition: TopicPartition,
    topic_id: UUID,
    config: LogConfig,
    now_ms: int,
) -> PartitionLog:
    """A new, empty log."""
    disk.make_directory(directory)
    disk.write_bytes(f"{directory}/{PARTITION_METADATA}", encode_topic_id(topic_id))
    segment = Segment(disk, cache, directory, 0, now_ms)
    segment.create()
    return PartitionLog(
        disk=disk,
        directory=directory,
        topic_partition=topic_partition,
        topic_id=topic_id,
        config=config,
        segments=SegmentList(disk, cache, directory, [segment]),
        log_start_offset=0,
        log_end_offset=0,
        recovery_point=0,
        epochs=LeaderEpochs(),
        producers=ProducerState(),
        snapshots=SnapshotFiles(disk, directory, []),
    )


def load_log(
    disk: Disk,
    cache: FileCache,
    directory: str,
    topic_partition: TopicPartition,
    config: LogConfig,
    now_ms: int,
    *,
    recovery_point: int,
    log_start_offset: int,
    transaction_indexes: Collection[int] = (),
) -> PartitionLog:
    """`transaction_indexes` names the segments that had one at the last stop."""
    files = scan_files(disk, directory)
    files.discard_empty_segments(disk)
    segments = [_open_segment(disk, cache, files, base, now_ms) for base in files.bases]
    _discard_overlapped(disk, segments)
    end_offset = _activate(disk, segments[-1], files) if segments else None
    if segments and end_offset is None:
        # A clean stop does not leave such a tail.
        recover_log(disk, directory, recovery_point, log_start_offset, config.index_interval_bytes)
        return load_log(
            disk,
            cache,
            directory,
            topic_partition,
            config,
            now_ms,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            transaction_indexes=transaction_indexes,
        )
    for segment in segments[:-1]:
        _check_sealed(disk, segment, files)
    if segments and end_offset is not None and segments[-1].size and disk.is_shared(segments[-1].log.path):
        # A branch has the same file, so nothing may be appended to it. A power cut has removed the segment after it.
        segments[-1].seal()
        segments.append(Segment(disk, cache, directory, end_offset, now_ms))
        segments[-1].create()
    if end_offset is None and (tiered_end := tiered_up_to(disk, directory)) > log_start_offset:
        # All records are in the tier: it goes on there, with its epochs and producers.
        segment = Segment(disk, cache, directory, tiered_end, now_ms)
        segment.create()
        segments, end_offset = [segment], tiered_end
    if end_offset is None or end_offset < log_start_offset:
        # No record of the log is left: it begins again, without epochs and producers.
        files.remove_snapshots(disk)
        disk.remove(f"{directory}/{LEADER_EPOCHS}")
        for segment in segments:
            _log.warning("segment_discarded file=%s reason=before_log_start_%d", segment.log.path, log_start_offset)
            for path in segment.files():
                disk.remove(path)
        segment = Segment(disk, cache, directory, log_start_offset, now_ms)
        segment.create()
        segments, end_offset = [segment], log_start_offset
    if not config.remote_storage_enable:  # else the records before the first segment may be in the tier
        log_start_offset = max(log_start_offset, segments[0].base_offset)
    snapshots = files.sound_snapshots(disk, end_offset)
    _check_aborted(disk, directory, segments, snapshots, end_offset, transaction_indexes)
    return PartitionLog(
        disk=disk,
        directory=directory,
        topic_partition=topic_partition,
        topic_id=read_topic_id(disk, directory),
        config=config,
        segments=SegmentList(disk, cache, directory, segments),
        log_start_offset=log_start_offset,
        log_end_offset=end_offset,
        recovery_point=min(recovery_point, end_offset),
        epochs=_load_epochs(disk, directory, segments, log_start_offset, end_offset),
        producers=rebuild_producers(disk, directory, segments, snapshots, log_start_offset),
        snapshots=SnapshotFiles(disk, directory, snapshots),
    )


def _open_segment(disk: Disk, cache: FileCache, files: LogFiles, base_offset: int, now_ms: int) -> Segment:
    segment = Segment(disk, cache, files.directory, base_offset, now_ms)
    if files.has(base_offset, TRANSACTION_INDEX_SUFFIX):
        segment.aborted.opened()
    segment.size = disk.file_size(segment.log.path)
    segment.trusted_from = segment.size
    segment.verified = (segment.size, segment.size)
    return segment


def _discard_overlapped(disk: Disk, segments: list[Segment]) -> None:
    """Remove an empty last segment whose base offset is within the segment before it."""
    while len(segments) > 1 and segments[-1].size == 0 and segments[-2].read_end_offset() > segments[-1].base_offset:
        _log.warning("segment_discarded file=%s reason=empty", segments[-1].log.path)
        for path in segments.pop().files():
            disk.remove(path)


def _activate(disk: Disk, segment: Segment, files: LogFiles) -> int | None:
    """Load the indexes of the last segment and find where the log ends; None when its tail is torn."""
    index, times = _read_indexes(disk, segment, files)
    if not len(index):
        return _activate_from_batches(segment)
    last = index.offsets[-1] + segment.base_offset
    start = end = index.last_position()
    end_offset = segment.base_offset
    noted = timestamp, relative = times.last() or (NO_TIMESTAMP, 0)
    for position, header in walk_headers(segment.file(), start, segment.size):
        if position == start and header.last_offset != last:
            break
        end, end_offset = position + header.size, header.last_offset + 1
        if header.max_timestamp > timestamp:  # appended after the files were written
            timestamp, relative = header.max_timestamp, header.last_offset - segment.base_offset
    if end == start:
        # The last entry is of a batch that does not exist.
        _log.warning("index_rebuilt segment=%s", segment.log.path)
        return _activate_from_batches(segment)
    if end < segment.size:
        return None
    segment.activate(index, times, written=(timestamp, relative) == noted)
    segment.max_timestamp, segment.max_timestamp_offset = timestamp, segment.base_offset + relative
    return end_offset


def _activate_from_batches(segment: Segment) -> int | None:
    return segment.read_end_offset() if segment.activate_from_batches() == segment.size else None


def _read_indexes(disk: Disk, segment: Segment, files: LogFiles) -> tuple[OffsetIndex, TimeIndex]:
    if (
        segment.size
        and files.has(segment.base_offset, INDEX_SUFFIX)
        and files.has(segment.base_offset, TIME_INDEX_SUFFIX)
    ):
        entries = disk.read_bytes(segment.path(INDEX_SUFFIX))
        times = disk.read_bytes(segment.path(TIME_INDEX_SUFFIX))
        first = segment.read_first_timestamp()
        has_times = bool(times) or first is None or first < 0
        if has_times and offset_index.is_sound(entries, segment.size) and time_index.is_sound(times):
            return OffsetIndex(entries), TimeIndex(times)
    return OffsetIndex(), TimeIndex()


def _check_sealed(disk: Disk, segment: Segment, files: LogFiles) -> None:
    """Rebuild indexes that are missing or have an impossible size. Wrong entries are found by lookups."""
    for suffix, entry_size in ((INDEX_SUFFIX, offset_index.ENTRY_SIZE), (TIME_INDEX_SUFFIX, time_index.ENTRY_SIZE)):
        if not files.has(segment.base_offset, suffix) or disk.file_size(segment.path(suffix)) % entry_size:
            segment.rebuild_indexes()
            return


def _check_aborted(
    disk: Disk,
    directory: str,
    segments: list[Segment],
    snapshots: list[int],
    end_offset: int,
    expected: Collection[int],
) -> None:
    """Rebuild transaction indexes that are damaged or lost. Few segments have one."""
    for slot, segment in enumerate(segments):
        if not segment.aborted and segment.base_offset in expected:
            _log.warning("transaction_index_rebuilt file=%s reason=missing", segment.aborted.path)
            segment.aborted.replace(aborted_in(disk, directory, segments, slot, snapshots))
        elif segment.aborted:
            end = segments[slot + 1].base_offset if slot + 1 < len(segments) else end_offset
            try:
                found = decode_aborted(disk.read_bytes(segment.aborted.path), segment.base_offset)
                if found and found[-1].last_offset >= end:
                    raise DamagedFileError(f"{found[-1]} is not in the segment")
            except DamagedFileError as error:
                _log.warning("transaction_index_rebuilt file=%s reason=%s", segment.aborted.path, error)
                segment.aborted.replace(aborted_in(disk, directory, segments, slot, snapshots))


def _load_epochs(
    disk: Disk, directory: str, segments: list[Segment], log_start_offset: int, end_offset: int
) -> LeaderEpochs:
    path = f"{directory}/{LEADER_EPOCHS}"
    try:
        epochs = LeaderEpochs(decode_epochs(disk.read_bytes(path)))
    except (FileNotFoundError, DamagedFileError) as error:
        epochs = LeaderEpochs()
        if end_offset > log_start_offset:
            _log.warning("leader_epochs_rebuilt file=%s reason=%s", path, error)
            for segment in segments:
                for _, header in walk_headers(segment.file(), 0, segment.size):
                    epochs.assign(header.leader_epoch, header.base_offset)
            disk.write_atomically(path, epochs.to_bytes(), durable=False)
    epochs.truncate_from_end(end_offset)
    epochs.truncate_from_start(log_start_offset)
    return epochs


def read_topic_id(disk: Disk, directory: str) -> UUID:
    path = f"{directory}/{PARTITION_METADATA}"
    try:
        return decode_topic_id(disk.read_bytes(path))
    except (FileNotFoundError, DamagedFileError) as error:
        _log.warning("topic_id_unknown file=%s reason=%s", path, error)
        return NO_TOPIC_ID
