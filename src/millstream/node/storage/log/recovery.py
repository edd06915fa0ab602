"""Repair of a log after an unclean stop, so that it can be opened as after a clean one.

From the segment with the recovery point on, every batch is read and its checksum checked; indexes, leader epochs,
producer state and transaction indexes are rebuilt. The log is cut at the first byte that is not part of a whole, sound
batch, and the cut is reported. One exception keeps more than Kafka: a sealed segment with whole batches to its end and
a wrong checksum is kept, because a cut would remove all later segments too. Its readers get CORRUPT_MESSAGE. (A
follower cuts there all the same: its leader has the records.)
"""

import logging
from dataclasses import field

from millstream.common.lazy_dataclass import dataclass
from millstream.node.storage.disk import Disk, File
from millstream.node.storage.file_formats import (
    INDEX_SUFFIX,
    LEADER_EPOCHS,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    DamagedFileError,
    decode_epochs,
    offset_file,
)
from millstream.node.storage.index.offset_index import MAX_RELATIVE_OFFSET, OffsetIndex, is_sound
from millstream.node.storage.index.time_index import DEFAULT_INTERVAL_BYTES, IndexBuilder
from millstream.node.storage.index.transaction_index import AbortedTransaction, write_index
from millstream.node.storage.log.batch_scan import walk_checked, walk_headers
from millstream.node.storage.log.earlier_batches import tiered_up_to
from millstream.node.storage.log.files import LogFiles, own, scan_files
from millstream.node.storage.log.leader_epochs import LeaderEpochs
from millstream.node.storage.log.producer_snapshots import encode_snapshot, load_snapshot, note_batch, producers_begin
from millstream.node.storage.log.producer_state import ProducerState

_log = logging.getLogger("millstream.storage")

QUICK_REBUILD_BYTES = 1 << 20
SETTLED_WALK_BYTES = 8 << 20
"""How many bytes are read for the end of a log that is probably in order, before it is checked instead."""


@dataclass(slots=True)
class RecoveryReport:
    """The result of the recovery of one log."""

    directory: str
    recovery_point: int = 0
    """Offsets below were not checked, because they are on stable storage."""
    end_offset: int = 0
    checked_bytes: int = 0
    cut_bytes: int = 0
    cut_at: str = ""
    """`file:position reason` of the first byte that was cut, empty when nothing was."""
    removed_segments: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    """Batches in sealed segments that were kept although their checksums are wrong."""
    damaged_from: int | None = None
    """The offset of the first of them, or the log start offset if the first segments are lost."""

    @property
    def is_clean(self) -> bool:
        return not (self.cut_bytes or self.removed_segments or self.damaged_from is not None)


def recover_log(
    disk: Disk,
    directory: str,
    recovery_point: int,
    log_start_offset: int,
    interval_bytes: int = DEFAULT_INTERVAL_BYTES,
    checkpoint_ns: int | None = None,
) -> RecoveryReport:
    """With `checkpoint_ns`, the time of the checkpoint, segments that were changed since are checked too."""
    report = RecoveryReport(directory)
    files = scan_files(disk, directory)
    files.discard_empty_segments(disk)
    if not files.bases:
        report.recovery_point = report.end_offset = max(log_start_offset, tiered_up_to(disk, directory))
        return report
    if files.bases[0] > max(recovery_point, log_start_offset, tiered_up_to(disk, directory)):
        # The segments before were not flushed: a power cut has lost them, they were not deleted.
        _log.warning("beginning_lost directory=%s from=%d to=%d", directory, log_start_offset, files.bases[0])
        report.damaged_from = log_start_offset
    if checkpoint_ns is not None:
        recovery_point = min(recovery_point, _first_changed(disk, files, checkpoint_ns, recovery_point))
    report.recovery_point = recovery_point
    unflushed = [base for at, base in enumerate(files.bases) if not _ends_before(files.bases, at, recovery_point)]
    known_epochs = _read_epochs(disk, directory)
    known_starts = dict(known_epochs or ())
    epochs = _epochs_before(disk, files, unflushed[0], known_epochs)
    producers = _producers_at(disk, files, unflushed[0], log_start_offset)
    end_offset = unflushed[0]
    for base in unflushed:
        if base > end_offset:
            # A segment begins where the one before it ends. The records between were never written to the disk. A
            # replica that kept the records behind them would have an unnoticed gap.
            _log.warning("segments_removed directory=%s missing_from=%d missing_to=%d", directory, end_offset, base)
            _remove_from(disk, files, base, report)
            break
        is_last = base == files.bases[-1]
        next_base = None if is_last else files.bases[files.bases.index(base) + 1]
        end_offset, cut = _recover_segment(
            disk, directory, base, next_base, end_offset, epochs, known_starts, producers, interval_bytes, report
        )
        if cut:
            _remove_from(disk, files, base + 1, report)
            break
    if report.removed_segments:
        disk.sync_directory(directory)
    report.end_offset = end_offset
    # Later snapshots may be of other records: after a power cut, a file that a truncation removed may be there again.
    for offset in [offset for offset in files.snapshots if offset > unflushed[0]]:
        disk.remove(offset_file(directory, offset, SNAPSHOT_SUFFIX))
    producers.begin_anew(end_offset)
    if producers.entries or report.checked_bytes > QUICK_REBUILD_BYTES:
        snapshot = encode_snapshot(producers.entries.values())
        disk.write_bytes(offset_file(directory, end_offset, SNAPSHOT_SUFFIX), snapshot)
    if epochs.entries() != known_epochs:
        disk.write_atomically(f"{directory}/{LEADER_EPOCHS}", epochs.to_bytes(), durable=False)
    if not report.is_clean:
        _log.warning(
            "log_repaired directory=%s end_offset=%d cut_bytes=%d cut_at=%r removed_segments=%d damaged_batches=%d",
            directory,
            end_offset,
            report.cut_bytes,
            report.cut_at,
            len(report.removed_segments),
            len(report.damaged),
        )
    return report


def is_settled(disk: Disk, directory: str, recovery_point: int, checkpoint_ns: int) -> bool:
    """Whether the whole log was on stable storage at the checkpoint, and was not changed since.

    Most logs of a large node are idle, and need no check after an unclean stop.
    """
    files = scan_files(disk, directory)
    if not files.bases or recovery_point < files.bases[-1]:
        return False
    base = files.bases[-1]
    path = offset_file(directory, base, LOG_SUFFIX)
    if disk.modified_ns(path) >= checkpoint_ns:
        return False
    size = disk.file_size(path)
    if size == 0:
        return recovery_point == base
    start = 0
    if files.has(base, INDEX_SUFFIX):
        entries = disk.read_bytes(offset_file(directory, base, INDEX_SUFFIX))
        if is_sound(entries, size):
            start = OffsetIndex(entries).last_position()
    if size - start > SETTLED_WALK_BYTES:
        return False
    end, end_offset = start, base
    for position, header in walk_headers(disk.open(path), start, size):
        end, end_offset = position + header.size, header.last_offset + 1
    return end == size and end_offset == recovery_point


def _first_changed(disk: Disk, files: LogFiles, checkpoint_ns: int, otherwise: int) -> int:
    """The base offset of the first segment that was changed since the checkpoint.

    After a truncation, offsets that were flushed at the checkpoint may belong to other records.
    """
    changed = (
        base
        for base in files.bases
        if disk.modified_ns(offset_file(files.directory, base, LOG_SUFFIX)) >= checkpoint_ns
    )
    return next(changed, otherwise)


def _ends_before(bases: list[int], at: int, recovery_point: int) -> bool:
    return at + 1 < len(bases) and bases[at + 1] <= recovery_point


def _recover_segment(
    disk: Disk,
    directory: str,
    base: int,
    next_base: int | None,
    next_offset: int,
    epochs: LeaderEpochs,
    known_starts: dict[int, int],
    producers: ProducerState,
    interval_bytes: int,
    report: RecoveryReport,
) -> tuple[int, bool]:
    """(offset after the last kept batch, whether the log was cut here)."""
    path = offset_file(directory, base, LOG_SUFFIX)
    file = disk.open(path)
    size = file.size()
    report.checked_bytes += size
    builder = IndexBuilder(base, interval_bytes)
    aborted: list[AbortedTransaction] = []
    sealed_whole = next_base is not None and _reaches_end(file, size, next_base)
    end = 0
    reason = "torn"
    next_offset = max(next_offset, base)
    for position, header, holds in walk_checked(file, 0, size):
        if header.base_offset < next_offset or header.last_offset - base > MAX_RELATIVE_OFFSET:
            reason = "offsets_out_of_order"
            break
        if not holds:
            if not sealed_whole:
                reason = "checksum"
                break
            report.damaged.append(f"{path}:{position}")
            if report.damaged_from is None:
                report.damaged_from = header.base_offset
            _log.warning("damaged_batch_kept file=%s position=%d offset=%d", path, position, header.base_offset)
        builder.add(position, header)
        if header.leader_epoch > epochs.latest:
            start = known_starts.get(header.leader_epoch, header.base_offset)
            # The cleaner may have removed the first batches of the epoch. Its start offset stays the same: a follower
            # with other records there must not take them for records of the epoch before.
            epochs.assign(
                header.leader_epoch, start if next_offset <= start <= header.base_offset else header.base_offset
            )
        found = note_batch(producers, header, file.read_at(position, header.size) if header.is_control else None)
        if found is not None:
            aborted.append(found)
        next_offset = header.last_offset + 1
        end = position + header.size
    if end < size:
        report.cut_bytes += size - end
        report.cut_at = report.cut_at or f"{path}:{end} {reason}"
        _log.warning(
            "segment_cut file=%s position=%d cut_bytes=%d next_offset=%d reason=%s",
            path,
            end,
            size - end,
            next_offset,
            reason,
        )
        if disk.is_shared(path):  # a branch may need the bytes
            own(disk, path, end)
        else:
            file.truncate(end)
            file.sync()  # the cut bytes must not come back after a power cut
    write_index(disk, offset_file(directory, base, TRANSACTION_INDEX_SUFFIX), aborted)
    if next_base is not None or size > QUICK_REBUILD_BYTES:
        builder.write(disk, directory)
    else:
        # The indexes of the active segment are in memory, and small ones are rebuilt from the batches when the log is
        # loaded. The files lack the batches that were appended after they were written.
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            disk.remove(offset_file(directory, base, suffix))
    return next_offset, end < size


def _reaches_end(file: File, size: int, next_base: int) -> bool:
    """Whether a sealed segment has whole batches in order up to its end, with offsets before the next segment."""
    end, next_offset = 0, 0
    for position, header in walk_headers(file, 0, size):
        if header.base_offset < next_offset:
            return False
        end, next_offset = position + header.size, header.last_offset + 1
    return end == size and next_offset <= next_base


def _remove_from(disk: Disk, files: LogFiles, base: int, report: RecoveryReport) -> None:
    for later in [later for later in files.bases if later >= base]:
        path = offset_file(files.directory, later, LOG_SUFFIX)
        cut = disk.file_size(path)
        report.cut_bytes += cut
        report.removed_segments.append(path)
        _log.warning("segment_removed file=%s cut_bytes=%d reason=after_damage", path, cut)
        files.remove_segment(disk, later)


def _read_epochs(disk: Disk, directory: str) -> list[tuple[int, int]] | None:
    try:
        return decode_epochs(disk.read_bytes(f"{directory}/{LEADER_EPOCHS}"))
    except (FileNotFoundError, DamagedFileError):
        return None


def _epochs_before(disk: Disk, files: LogFiles, offset: int, known: list[tuple[int, int]] | None) -> LeaderEpochs:
    """The leader epochs at the offset where the check begins."""
    epochs = LeaderEpochs(known)
    epochs.truncate_from_end(offset)
    if known is None:
        for base in files.bases:
            if base < offset:
                file = disk.open(offset_file(files.directory, base, LOG_SUFFIX))
                for _, header in walk_headers(file, 0, file.size()):
                    epochs.assign(header.leader_epoch, header.base_offset)
    return epochs


def _producers_at(disk: Disk, files: LogFiles, offset: int, log_start_offset: int) -> ProducerState:
    """The producers at the offset where the check begins."""
    usable = [snapshot for snapshot in files.snapshots if snapshot <= offset]
    start, producers = load_snapshot(disk, files.directory, usable)
    if start is None:
        start = log_start_offset
    producers.begins_at = producers_begin(disk, files.directory, start)
    for at, base in enumerate(files.bases):
        if base >= offset:
            break
        if _ends_before(files.bases, at, start):
            continue
        file = disk.open(offset_file(files.directory, base, LOG_SUFFIX))
        for position, header in walk_headers(file, 0, file.size()):
            if header.last_offset >= start:
                note_batch(producers, header, file.read_at(position, header.size) if header.is_control else None)
    return producers
