"""The checkpoint files of a log directory: recovery points, log start offsets, high watermarks, cleaned offsets.

One write at a time. A request during a write is served by the next one, which `maintenance` begins, or `on_wanted`
where a caller waits for it. After the last write, at the stop, nothing is written any more, even by a job that runs
late.

A thread writes what was gathered before, on the event loop. Meanwhile a log may be truncated and get other records, or
be deleted and created again, and then the offsets are not those of its records. So the file of the recovery points gets
the time at which they were gathered as its time of modification: recovery checks everything that was changed since.
"""

import logging
from collections.abc import Callable, Mapping
from threading import Lock
from typing import TypeVar

from millstream.formats.model.identifiers import TopicPartition
from millstream.node.storage.disk import Disk, Job
from millstream.node.storage.file_formats import (
    CLEANED_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    TEMPORARY_SUFFIX,
    TRANSACTION_INDEXES,
    DamagedFileError,
    decode_offset_lists,
    decode_offsets,
    encode_offset_lists,
    encode_offsets,
)
from millstream.node.storage.log.partition_log import PartitionLog

_log = logging.getLogger("millstream.storage")

_TIME = f"checkpoint-time{TEMPORARY_SUFFIX}"
Contents = list[tuple[str, bytes]]
T = TypeVar("T")


class Checkpointer:
    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._root = root
        # The contents of the files. For an open log, the log itself is more recent.
        self.recovery_points: dict[TopicPartition, int] = {}
        self.start_offsets: dict[TopicPartition, int] = {}
        self.high_watermarks: dict[TopicPartition, int] = {}
        self.cleaned_offsets: dict[TopicPartition, int] = {}
        self.transaction_indexes: dict[TopicPartition, list[int]] = {}
        """The segments that had a transaction index at the last stop. Kafka has no such file. Without it, a segment
        whose index is lost looks like one without aborted transactions."""
        self.lists_transaction_indexes = False
        """Whether that file was read; a directory of Kafka, or of an older version, does not have it."""
        self.read_ns = 0
        """When the content of the files that were read was gathered."""
        self.is_wanted = False
        """Whether a write was requested during another one."""
        self.on_wanted: Callable[[], None] = lambda: None
        """Called when a write has ended and a caller waits for another: it begins one."""
        self._waiting: list[Callable[[OSError | None], None]] = []
        self._under_way = False
        self._closed = False
        self._writing = Lock()

    def read(self) -> None:
        path = f"{self._root}/{RECOVERY_POINTS}"
        self.read_ns = self._disk.modified_ns(path) if self._disk.exists(path) else 0
        self.recovery_points = self._read(RECOVERY_POINTS)
        self.start_offsets = self._read(LOG_START_OFFSETS)
        self.high_watermarks = self._read(HIGH_WATERMARKS)
        self.cleaned_offsets = self._read(CLEANED_OFFSETS)
        listed = self._read_with(decode_offset_lists, TRANSACTION_INDEXES)
        self.lists_transaction_indexes = listed is not None
        self.transaction_indexes = listed or {}

    def forget(self, partition: TopicPartition) -> None:
        for offsets in (self.recovery_points, self.start_offsets, self.high_watermarks, self.cleaned_offsets):
            if offsets.pop(partition, None) is not None:
                self.is_wanted = True  # a log of the same name must not inherit it
        self.transaction_indexes.pop(partition, None)

    def when_written(self, callback: Callable[[OSError | None], None]) -> None:
        """Calls back, with the failure if there is one, when a write that begins after this call has ended."""
        self._waiting.append(callback)

    def job(self, logs: Mapping[TopicPartition, PartitionLog]) -> Job | None:
        """Write everything as it is now; None during another write, which is then followed by one more."""
        self.is_wanted = self._under_way
        if self._under_way:
            return None
        self._under_way = True
        gathered_ns = 0
        failure: OSError | None = None
        try:
            gathered_ns = 0 if self._closed else self._time()
        except OSError as error:
            failure = error
        contents = self._gather(logs)
        served, self._waiting = self._waiting, []

        def run() -> OSError | None:
            if failure is None:
                self._write(contents, gathered_ns)
            return failure

        def done(result: OSError | None) -> None:
            self._under_way = False
            if result is not None:
                _log.warning("checkpoint_failed root=%s error=%s", self._root, result)
            for callback in served:
                callback(result)
            if self._waiting:
                self.on_wanted()

        return Job("write_checkpoints", run, done)

    def write_last(self, logs: Mapping[TopicPartition, PartitionLog]) -> OSError | None:
        """Write at the stop, after the write that may run in a thread."""
        contents = self._gather(logs)
        self._note_transaction_indexes(logs)
        contents.append((TRANSACTION_INDEXES, encode_offset_lists(self.transaction_indexes)))
        failure = Job("write_checkpoints", lambda: self._write(contents)).run()
        self.close()
        return failure

    def list_transaction_indexes(self, found: dict[TopicPartition, list[int]]) -> None:
        """Write the list for a directory that had none, so that the segments are searched only once."""
        self.transaction_indexes, self.lists_transaction_indexes = found, True
        try:
            self._write([(TRANSACTION_INDEXES, encode_offset_lists(found))])
        except OSError as error:
            _log.warning("checkpoint_failed root=%s error=%s", self._root, error)

    def close(self) -> None:
        with self._writing:
            self._closed = True

    def _time(self) -> int:
        """The present time by the clock of the file system, which is not that of the process."""
        return self._disk.create(f"{self._root}/{_TIME}").modified_ns()

    def _gather(self, logs: Mapping[TopicPartition, PartitionLog]) -> Contents:
        for partition, log in logs.items():
            self.recovery_points[partition] = log.recovery_point
            self.start_offsets[partition] = log.log_start_offset
            self.high_watermarks[partition] = log.readable_end
            if log.cleaned_offset or partition in self.cleaned_offsets:
                self.cleaned_offsets[partition] = log.cleaned_offset
        contents = [
            # Before the recovery points: a log in these has its start in a checkpoint (see `startup_recovery`).
            (LOG_START_OFFSETS, encode_offsets({key: value for key, value in self.start_offsets.items() if value})),
            (HIGH_WATERMARKS, encode_offsets(self.high_watermarks)),
        ]
        if self.cleaned_offsets:
            contents.append((CLEANED_OFFSETS, encode_offsets(self.cleaned_offsets)))
        # Last: recovery limits the others to what was not changed since this file.
        contents.append((RECOVERY_POINTS, encode_offsets(self.recovery_points)))
        return contents

    def _note_transaction_indexes(self, logs: Mapping[TopicPartition, PartitionLog]) -> None:
        for partition, log in logs.items():
            bases = [segment.base_offset for segment in log.segments if segment.aborted]
            if bases:
                self.transaction_indexes[partition] = bases
            else:
                self.transaction_indexes.pop(partition, None)

    def _write(self, contents: Contents, gathered_ns: int | None = None) -> None:
        with self._writing:
            if self._closed:
                return  # another process may have the directory by now
            for name, data in contents:
                modified_ns = gathered_ns if name == RECOVERY_POINTS else None
                self._disk.write_atomically(f"{self._root}/{name}", data, modified_ns=modified_ns)

    def _read(self, name: str) -> dict[TopicPartition, int]:
        return self._read_with(decode_offsets, name) or {}

    def _read_with(
        self, decode: Callable[[bytes], dict[TopicPartition, T]], name: str
    ) -> dict[TopicPartition, T] | None:
        """None if the file is missing, empty (as Kafka leaves one that it never wrote) or damaged."""
        try:
            data = self._disk.read_bytes(f"{self._root}/{name}")
            return decode(data) if data else None
        except FileNotFoundError:
            return None
        except DamagedFileError as error:
            _log.warning("checkpoint_discarded file=%s/%s reason=%s", self._root, name, error)
            return None
