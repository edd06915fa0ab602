"""Bringing a log to stable storage: the fsync runs in a thread, the recovery point moves on the loop afterwards."""

import errno
import os.path
from typing import TYPE_CHECKING

from millstream.node.storage.disk import Job
from millstream.node.storage.file_formats import INDEX_SUFFIX, LEADER_EPOCHS, PARTITION_METADATA, TIME_INDEX_SUFFIX

if TYPE_CHECKING:
    from millstream.node.storage.log.partition_log import PartitionLog


def unflushed_bytes(log: "PartitionLog") -> int:
    """How much of the log may not be on stable storage yet."""
    if log.recovery_point >= log.log_end_offset:
        return 0
    first = log.segments.slot_of(log.recovery_point)
    found = log.segments[first].find(log.recovery_point)
    return sum(log.segments[slot].size for slot in range(first, len(log.segments))) - (found or 0)


def flush_job(log: "PartitionLog") -> Job | None:
    """Flush up to the present end; None when that is done. On a log that has failed, a job that says so again."""
    target = log.log_end_offset
    if log.recovery_point >= target:
        return None
    if log.failure is not None:
        failure = OSError(errno.EIO, log.failure)
        return Job(f"flush partition={log.topic_partition}", lambda: failure, lambda _: None)
    first = log.segments.slot_of(log.recovery_point)
    unflushed = [log.segments[slot] for slot in range(first, len(log.segments))]
    files = [segment.file() for segment in unflushed]
    indexes = [segment.path(suffix) for segment in unflushed[:-1] for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)]
    aborted = [segment.aborted.path for segment in unflushed if segment.aborted]
    epoch_changes = log.epoch_changes
    epochs_changed = epoch_changes != log.epoch_changes_flushed
    directory_changed = log.directory_changed
    is_placed = log.is_placed
    truncations = log.truncations
    disk, directory = log.disk, log.directory
    metadata, epochs = f"{directory}/{PARTITION_METADATA}", f"{directory}/{LEADER_EPOCHS}"

    def run() -> None:
        for file in files:
            file.sync()
        for path in [*indexes, *aborted]:
            try:
                disk.open(path).sync()
            except FileNotFoundError:
                pass  # never written, or retention or the cleaner took the segment meanwhile
        if not is_placed and disk.exists(metadata):
            disk.open(metadata).sync()
        if epochs_changed and disk.exists(epochs):
            # What counts as flushed is not looked at again: a crash must not leave it with the epochs of before.
            disk.open(epochs).sync()
        if directory_changed or epochs_changed or not is_placed or aborted:
            disk.sync_directory(directory)
        if not is_placed:
            disk.sync_directory(os.path.dirname(directory))

    def done(result: OSError | None) -> None:
        if result is not None:
            # The kernel reports a failed write-back once and may then drop the pages: a later fsync would succeed
            # without them. What this process believes of the file is no longer safe, so the log takes no more writes.
            log.fail(f"fsync failed: {result}; the partition takes no writes until the broker restarts")
        elif truncations == log.truncations:
            log.recovery_point = max(log.recovery_point, target)
            log.is_placed = True
            log.epoch_changes_flushed = max(log.epoch_changes_flushed, epoch_changes)
            if target == log.log_end_offset:
                log.unflushed_since_ms = None
            if directory_changed and log.segments.active is unflushed[-1]:
                log.directory_changed = False

    return Job(f"flush partition={log.topic_partition} up_to={target}", run, done)
