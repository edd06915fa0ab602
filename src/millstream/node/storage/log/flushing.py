"""What of a log is on stable storage, and the jobs that flush the rest: the fsync runs in a thread, the recovery point
moves on the event loop afterwards.
"""

import errno
import os.path
from collections.abc import Callable

from millstream.node.storage.disk import Disk, Job
from millstream.node.storage.file_formats import INDEX_SUFFIX, PARTITION_METADATA, TIME_INDEX_SUFFIX
from millstream.node.storage.log.leader_epochs import LeaderEpochFile
from millstream.node.storage.log.segment_list import SegmentList


class FlushState:
    """The state of a log on stable storage: the recovery point, and changes other than new records."""

    __slots__ = (
        "_directory",
        "_directory_changed",
        "_disk",
        "_is_directory_synced",
        "recovery_point",
        "truncations",
        "unflushed_since_ms",
    )

    def __init__(self, disk: Disk, directory: str, recovery_point: int) -> None:
        self._disk = disk
        self._directory = directory
        self._directory_changed = True
        self._is_directory_synced = False
        """Whether the directory of the log, and the topic id in it, are on stable storage. The first flush does it."""
        self.recovery_point = recovery_point
        self.truncations = 0
        """A flush that was begun before a truncation does not move the recovery point."""
        self.unflushed_since_ms: int | None = None

    def directory_changed(self) -> None:
        """Files were created or removed."""
        self._directory_changed = True

    def truncated(self, last_batch: int) -> None:
        """The log was cut after the batch that begins at `last_batch`.

        The recovery point goes before this batch, so that the next flush includes the segment that was cut. Else its
        old tail could come back after a power cut, before records that are in the next segment by then. It is never
        within a batch: high watermarks are limited to it, and a batch is committed whole.
        """
        self._directory_changed = True
        self.recovery_point = min(self.recovery_point, last_batch)

    def restarted(self, offset: int) -> None:
        """The log was emptied, and begins again at `offset`."""
        self._directory_changed = True
        self.recovery_point = offset

    def is_due(self, segments: SegmentList, end_offset: int, flush_ms: int, now_ms: int) -> bool:
        """Whether `flush.ms` has passed since the first unflushed append, or sealed segments are not flushed."""
        if self.recovery_point < segments.active.base_offset:
            return True
        since = self.unflushed_since_ms
        return since is not None and now_ms - since >= flush_ms and self.recovery_point < end_offset

    def unflushed_bytes(self, segments: SegmentList, end_offset: int) -> int:
        """How many bytes may not be on stable storage yet."""
        if self.recovery_point >= end_offset:
            return 0
        first = segments.slot_of(self.recovery_point)
        found = segments[first].find(self.recovery_point)
        return sum(segments[slot].size for slot in range(first, len(segments))) - (found or 0)

    def job(
        self,
        name: str,
        segments: SegmentList,
        epochs: LeaderEpochFile,
        end_of_log: Callable[[], int],
        fail: Callable[[str], None],
    ) -> Job | None:
        """Flush up to the present end; None when that is done. `fail` is called with the reason if an fsync fails."""
        target = end_of_log()
        if self.recovery_point >= target:
            return None
        first = segments.slot_of(self.recovery_point)
        unflushed = [segments[slot] for slot in range(first, len(segments))]
        files = [segment.file() for segment in unflushed]
        indexes = [segment.path(suffix) for segment in unflushed[:-1] for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)]
        aborted = [segment.aborted.path for segment in unflushed if segment.aborted]
        epochs_version = epochs.version
        epochs_changed = epochs_version != epochs.flushed_version
        directory_changed, is_directory_synced = self._directory_changed, self._is_directory_synced
        truncations = self.truncations
        disk, directory = self._disk, self._directory
        metadata = f"{directory}/{PARTITION_METADATA}"

        def run() -> None:
            for file in files:
                file.sync()
            for path in [*indexes, *aborted]:
                try:
                    disk.open(path).sync()
                except FileNotFoundError:
                    pass  # never written, or retention or the cleaner removed the segment meanwhile
            if not is_directory_synced and disk.exists(metadata):
                disk.open(metadata).sync()
            if epochs_changed and disk.exists(epochs.path):
                # Recovery does not read flushed batches again, so their epochs must be on stable storage too.
                disk.open(epochs.path).sync()
            if directory_changed or epochs_changed or not is_directory_synced or aborted:
                disk.sync_directory(directory)
            if not is_directory_synced:
                disk.sync_directory(os.path.dirname(directory))

        def done(result: OSError | None) -> None:
            if result is not None:
                # The kernel reports a failed write-back once and may then drop the pages: a later fsync would succeed
                # without them. The file may differ from what this process wrote, so the log accepts no more writes.
                fail(f"fsync failed: {result}; the partition accepts no writes until the broker restarts")
            elif truncations == self.truncations:
                self.recovery_point = max(self.recovery_point, target)
                self._is_directory_synced = True
                epochs.flushed_version = max(epochs.flushed_version, epochs_version)
                if target == end_of_log():
                    self.unflushed_since_ms = None
                if directory_changed and segments.active is unflushed[-1]:
                    self._directory_changed = False

        return Job(f"{name} up_to={target}", run, done)


def failed_job(name: str, reason: str) -> Job:
    """A job that fails: the log has failed before, and `done` does nothing more."""
    failure = OSError(errno.EIO, reason)
    return Job(name, lambda: failure, lambda _: None)
