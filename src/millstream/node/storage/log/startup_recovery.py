"""The start of a log directory after an unclean stop: repair of its logs, and the search for lost transaction indexes.

Every log that may be damaged is repaired before the start goes on. Logs that were found sound are brought to stable
storage afterwards, in the background. Until then their recovery points stay, and a stop is not a clean one.
"""

import logging
from collections.abc import Callable, Iterable, Mapping

from millstream.formats.model.identifiers import TopicPartition
from millstream.node.storage.checkpointer import Checkpointer
from millstream.node.storage.disk import Disk, Job
from millstream.node.storage.file_formats import (
    LOG_SUFFIX,
    MOVED,
    PARTITION_METADATA,
    SNAPSHOT_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    DamagedFileError,
    decode_offsets,
    offset_file,
)
from millstream.node.storage.index.transaction_index import read_marker
from millstream.node.storage.log.batch_scan import walk_headers
from millstream.node.storage.log.files import LogFiles, read_branch, scan_files
from millstream.node.storage.log.partition_log import PartitionLog
from millstream.node.storage.log.producer_snapshots import decode_snapshot
from millstream.node.storage.log.producer_state import NO_EPOCH, NO_TRANSACTION
from millstream.node.storage.log.recovery import RecoveryReport, is_settled, recover_log

_log = logging.getLogger("millstream.storage")

MANY_LOGS = 32
"""From this many on, one sync of the file system is quicker than a sync of each file."""

Progress = Callable[[int, int, str], None]


def read_moved(disk: Disk, directory: str) -> dict[TopicPartition, int]:
    """The partition and its start in the file that a move leaves in a log; nothing if there is no such file."""
    path = f"{directory}/{MOVED}"
    try:
        return decode_offsets(disk.read_bytes(path)) if disk.exists(path) else {}
    except DamagedFileError:
        return {}  # of an older version


class StartRecovery:
    def __init__(self, disk: Disk, root: str, checkpoints: Checkpointer) -> None:
        self._disk = disk
        self._root = root
        self._checkpoints = checkpoints
        self._unsynced: dict[TopicPartition, tuple[int, int]] = {}
        """(end offset, bytes) of sound logs that may not be on stable storage."""
        self._unrecovered: set[TopicPartition] = set()
        self.damaged_from: dict[TopicPartition, int] = {}
        """The offset where kept damage begins, by partition."""
        self._under_way = False
        self._failed = False

    def run(self, present: Iterable[TopicPartition], progress: Progress | None) -> list[RecoveryReport]:
        """Repair logs where necessary; returns the reports of logs that were changed."""
        reports = []
        partitions = sorted(present)
        for done, partition in enumerate(partitions):
            if progress is not None:
                progress(done, len(partitions), str(partition))
            try:
                report = self._recover(partition)
            except OSError as error:
                # Only this partition is affected: opening it fails with the same error.
                _log.error("log_not_recovered partition=%s error=%s", partition, error)
                self._unrecovered.add(partition)
                self._distrust(partition)
                continue
            if report is not None and not report.is_clean:
                reports.append(report)
        if progress is not None:
            progress(len(partitions), len(partitions), "")
        return reports

    def finish(self, partition: TopicPartition) -> None:
        """Repair a log before it is opened, if the start could not. OSError if it fails again."""
        if partition in self._unrecovered:
            self._recover(partition)
            self._unrecovered.discard(partition)

    def require(self, partition: TopicPartition) -> None:
        """Repair a log before it is opened: it was found after the others were repaired."""
        self._unrecovered.add(partition)

    def forget(self, partition: TopicPartition) -> None:
        self._unsynced.pop(partition, None)
        self._unrecovered.discard(partition)
        self.damaged_from.pop(partition, None)

    def unsynced_bytes(self, logs: Mapping[TopicPartition, PartitionLog]) -> int:
        """How many bytes may not be on stable storage, beyond those of the open logs."""
        for partition, (end, _) in list(self._unsynced.items()):
            log = logs.get(partition)
            if log is not None and log.recovery_point >= min(end, log.log_end_offset):
                del self._unsynced[partition]
        return sum(size for _, size in self._unsynced.values())

    def is_whole(self) -> bool:
        """Whether nothing is left to do."""
        return not (self._failed or self._unsynced or self._unrecovered)

    def sync_job(self, logs: Mapping[TopicPartition, PartitionLog], *, again: bool = False) -> Job | None:
        """Bring sound logs to stable storage, once; with `again`, even during another such job."""
        if not self._unsynced or self._failed or (self._under_way and not again):
            return None
        self._under_way = True
        unsynced = dict(self._unsynced)

        def done(result: OSError | None) -> None:
            if result is not None:
                # A second try could succeed without the pages that the kernel dropped. The recovery points stay, so
                # that the next start checks the files.
                _log.error("recovered_logs_not_synced root=%s error=%s", self._root, result)
                self._failed = True
                return
            self._under_way = False
            for partition, recovered in unsynced.items():
                if self._unsynced.get(partition) is recovered:
                    del self._unsynced[partition]
                    self._advance(partition, recovered[0], logs.get(partition))

        return Job(f"sync_recovered logs={len(unsynced)}", lambda: self._sync(unsynced), done)

    def _recover(self, partition: TopicPartition) -> RecoveryReport | None:
        disk, checkpoints = self._disk, self._checkpoints
        directory = f"{self._root}/{partition}"
        metadata = f"{directory}/{PARTITION_METADATA}"
        if disk.exists(metadata) and disk.modified_ns(metadata) > checkpoints.read_ns:
            # Created after the checkpoints, which are of an earlier log of this name.
            checkpoints.forget(partition)
        if partition not in checkpoints.recovery_points:  # perhaps moved here after the checkpoints
            checkpoints.start_offsets.update(read_moved(disk, directory))
            if (branch := read_branch(disk, directory)) is not None:  # perhaps made after the checkpoints
                checkpoints.start_offsets.setdefault(partition, branch.log_start_offset)
                checkpoints.recovery_points[partition] = branch.recovery_point
        recovery_point = checkpoints.recovery_points.get(partition, 0)
        if is_settled(disk, directory, recovery_point, checkpoints.read_ns):
            return None
        start_offset = checkpoints.start_offsets.get(partition, 0)
        report = recover_log(disk, directory, recovery_point, start_offset, checkpoint_ns=checkpoints.read_ns)
        checkpoints.recovery_points[partition] = min(report.recovery_point, report.end_offset)
        if partition in checkpoints.cleaned_offsets:  # it may be of records that a truncation removed, too
            cleaned = min(checkpoints.cleaned_offsets[partition], report.recovery_point)
            checkpoints.cleaned_offsets[partition] = cleaned
        if report.damaged_from is not None:
            self.damaged_from[partition] = report.damaged_from
        if report.end_offset > report.recovery_point:
            self._unsynced[partition] = report.end_offset, report.checked_bytes
        return report

    def _distrust(self, partition: TopicPartition) -> None:
        """The recovery point may be of records that a truncation removed. The next checkpoint is newer than the change
        that tells so: the whole log is to be checked."""
        points = self._checkpoints.recovery_points
        if partition in points:
            points[partition] = min(points[partition], self._checkpoints.start_offsets.get(partition, 0))

    def _sync(self, unsynced: Iterable[TopicPartition]) -> None:
        disk, partitions = self._disk, list(unsynced)
        if len(partitions) > MANY_LOGS:
            disk.sync_filesystem(self._root)
            return
        for partition in partitions:
            directory = f"{self._root}/{partition}"
            try:
                for name, is_directory in disk.list(directory):
                    if not is_directory:
                        self._sync_file(f"{directory}/{name}")
                disk.sync_directory(directory)
            except FileNotFoundError:
                continue  # the topic was deleted meanwhile
        disk.sync_directory(self._root)

    def _sync_file(self, path: str) -> None:
        try:
            self._disk.open(path).sync()
        except FileNotFoundError:
            pass  # retention, or a temporary file

    def _advance(self, partition: TopicPartition, end: int, log: PartitionLog | None) -> None:
        if log is None:
            self._checkpoints.recovery_points[partition] = end
        elif log.truncations == 0 and log.failure is None:
            log.recovery_point = max(log.recovery_point, min(end, log.log_end_offset))


def find_transaction_indexes(
    disk: Disk, root: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, list[int]] | None:
    """For each partition the segments that have a transaction index or must have one; None if a log cannot be read.

    The list (`transaction-index-checkpoint`) is Millstream's own: a directory of Apache Kafka or of an older version
    has none. A lost index looks like a segment without aborted transactions, so the segments are searched for abort
    markers, once. That reads the header of every batch, so it is done only if a producer snapshot has a transaction.
    """
    found: dict[TopicPartition, list[int]] = {}
    for partition in sorted(partitions):
        try:
            files = scan_files(disk, f"{root}/{partition}")
            bases = _with_index(disk, files)
        except OSError as error:
            _log.error("transaction_indexes_not_listed partition=%s error=%s", partition, error)
            return None
        if bases:
            found[partition] = bases
    return found


def _with_index(disk: Disk, files: LogFiles) -> list[int]:
    has_transactions = any(_names_transactions(disk, files.directory, offset) for offset in files.snapshots)
    return [
        base
        for base in files.bases
        if files.has(base, TRANSACTION_INDEX_SUFFIX)
        or (has_transactions and _has_abort(disk, offset_file(files.directory, base, LOG_SUFFIX)))
    ]


def _names_transactions(disk: Disk, directory: str, offset: int) -> bool:
    """Whether a snapshot has a producer that has ended or begun a transaction. True for a damaged one."""
    try:
        entries = decode_snapshot(disk.read_bytes(offset_file(directory, offset, SNAPSHOT_SUFFIX)))
    except DamagedFileError:
        return True
    return any(each.coordinator_epoch != NO_EPOCH or each.transaction_start != NO_TRANSACTION for each in entries)


def _has_abort(disk: Disk, path: str) -> bool:
    file = disk.open(path)
    for position, header in walk_headers(file, 0, file.size()):
        if header.is_control:
            marker = read_marker(file.read_at(position, header.size))
            if marker is not None and not marker.committed:
                return True
    return False
