"""One directory of logs (an entry of `log.dirs`): its partitions, its start and stop, and its periodic maintenance.

After a clean stop logs are opened at their first use, so that 10,000 of them start in a moment. After an unclean stop
every log that may be damaged is repaired first (see `startup_recovery`). A log that belongs to no known topic is set
aside, never removed. `meta.properties` is not part of storage.
"""

import json
import logging
from collections import deque
from collections.abc import Callable, Container, Iterable
from uuid import UUID

from millstream.config.topic_config import LogConfig
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicPartition
from millstream.node.storage.checkpointer import Checkpointer
from millstream.node.storage.directory_health import DirectoryHealth
from millstream.node.storage.disk import DirectoryLock, Disk, FileCache, Job, Space
from millstream.node.storage.file_formats import (
    BRANCH_DIRECTORY_SUFFIX,
    CLEAN_SHUTDOWN,
    DELETED_DIRECTORY_SUFFIX,
    LOCK,
    MOVED,
    PARTITION_METADATA,
    STRAY_DIRECTORY_SUFFIX,
    TEMPORARY_SUFFIX,
    encode_topic_id,
    parse_directory,
    parse_future_directory,
    retired_directory,
)
from millstream.node.storage.log.branching import LogBranch
from millstream.node.storage.log.files import read_branch
from millstream.node.storage.log.loader import create_log, load_log, read_topic_id
from millstream.node.storage.log.partition_log import PartitionLog
from millstream.node.storage.log.recovery import RecoveryReport
from millstream.node.storage.log.retention import retain
from millstream.node.storage.log.startup_recovery import (
    Progress,
    StartRecovery,
    find_transaction_indexes,
    read_moved,
)

OPENED_AT_ONCE = 10
"""Logs are opened on the event loop."""
ROUND_INTERVAL_MS = 10 * 60 * 1000


class UnopenedLogs:
    """Chooses logs that are not open, a few at a time, so that retention reaches all of them in turn.

    A log that could not be opened waits for the next round, and does not delay the others.
    """

    __slots__ = ("_began_ms", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[TopicPartition] = deque()
        self._began_ms: int | None = None

    def take(
        self, present: Iterable[TopicPartition], opened: Container[TopicPartition], now_ms: int
    ) -> list[TopicPartition]:
        """The next few logs to open."""
        began_ms = self._began_ms
        # The clock may have been set back.
        if not self._waiting and (began_ms is None or not 0 <= now_ms - began_ms < ROUND_INTERVAL_MS):
            self._began_ms = now_ms
            self._waiting.extend(sorted(each for each in present if each not in opened))
        taken: list[TopicPartition] = []
        while self._waiting and len(taken) < OPENED_AT_ONCE:
            partition = self._waiting.popleft()
            if partition not in opened:
                taken.append(partition)
        return taken


_log = logging.getLogger("millstream.storage")

DAY_MS = 24 * 60 * 60 * 1000
NO_EPOCH = -1
NO_DIRECTORY_ID = UUID(int=0)
MANY_FLUSHES = 32
PRODUCER_EXPIRY_INTERVAL_MS = 10 * 60 * 1000


class DirectoryInUseError(RuntimeError):
    """Another broker has this directory."""


class LogDirectory:
    def __init__(
        self,
        disk: Disk,
        root: str,
        *,
        max_open_files: int = 4096,
        producer_id_expiration_ms: int = DAY_MS,
        checkpoint_interval_ms: int = 60_000,
        retention_check_interval_ms: int = 0,
        cache: FileCache | None = None,
    ) -> None:
        """`cache`: the open files of all directories of a node; errors of its disk are then noted by the caller."""
        self.root = root
        self.id = NO_DIRECTORY_ID
        """The `directory.id` of its `meta.properties`, once that was read."""
        self.health = DirectoryHealth(root)
        if cache is None:
            disk.on_error = self.health.note
        self._disk = self.disk = disk
        self._cache = cache or FileCache(disk, max_open_files)
        self.space: Space | None = None
        """The space of its file system when it was last looked at."""
        self.futures: list[TopicPartition] = []
        """Partitions whose move to this directory was not finished when the node stopped; known after `start`."""
        self.unfinished_branches: list[LogBranch] = []
        """Logs of branches that were being made when the node stopped; known after `start`."""
        self.producer_id_expiration_ms = producer_id_expiration_ms
        self._checkpoint_interval_ms = checkpoint_interval_ms
        self._retention_check_interval_ms = retention_check_interval_ms
        self._last_retention_ms: int | None = None
        self._lock: DirectoryLock | None = None
        self._present: set[TopicPartition] = set()
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._unopened = UnopenedLogs()
        self._checkpoints = Checkpointer(disk, root)
        self._recovery = StartRecovery(disk, root, self._checkpoints)
        self._started = False
        self._last_checkpoint_ms: int | None = None
        self._last_expiry_ms: int | None = None
        self._last_maintenance_ms = 0
        self.started_clean = False
        """Whether the last stop was a clean one; known after `start`."""
        self.previous_broker_epoch = NO_EPOCH
        """The epoch in which the broker that stopped cleanly was registered; known after `start`."""

    @property
    def partitions(self) -> set[TopicPartition]:
        """All partitions with a log here, open or not."""
        return self._present

    @property
    def open_files(self) -> int:
        return self._cache.open_count

    def loaded(self) -> list[PartitionLog]:
        return list(self._logs.values())

    def loaded_log(self, partition: TopicPartition) -> PartitionLog | None:
        """The log if it is open."""
        return self._logs.get(partition)

    # Start and stop

    def take(self) -> None:
        """Lock the directory for this process, and change nothing in it; DirectoryInUseError if another process has
        it."""
        self._disk.make_directory(self.root)
        self._lock = self._disk.lock(f"{self.root}/{LOCK}")
        if self._lock is None:
            raise DirectoryInUseError(f"{self.root} is in use by another broker (its lock file {LOCK} is held)")

    def start(self, now_ms: int, progress: Progress | None = None) -> list[RecoveryReport]:
        """Find the logs; returns the reports of repairs. May take long after an unclean stop."""
        if self._lock is None:
            self.take()
        disk, root = self._disk, self.root
        self._checkpoints.read()
        clean = self.started_clean = disk.exists(f"{root}/{CLEAN_SHUTDOWN}")
        for name, is_directory in disk.list(root):
            if is_directory and name.endswith(DELETED_DIRECTORY_SUFFIX):
                disk.remove_directory(f"{root}/{name}")
            elif is_directory:
                partition = parse_directory(name)
                if partition is not None:
                    self._present.add(partition)
                elif name.endswith(BRANCH_DIRECTORY_SUFFIX):
                    self._find_branch(f"{root}/{name}")
                elif (partition := parse_future_directory(name)) is not None:
                    # The log is whole in another directory. The copy is made again.
                    moved = read_moved(disk, f"{root}/{name}")
                    self.futures.append(next(iter(moved), partition))  # the name of a long topic is cut
                    disk.remove_directory(f"{root}/{name}")
            elif name.endswith(TEMPORARY_SUFFIX):
                disk.remove(f"{root}/{name}")
        reports = [] if clean else self._recovery.run(self._present, progress)
        if self._present and not self._checkpoints.lists_transaction_indexes:
            found = find_transaction_indexes(disk, root, self._present)
            if found is not None:
                self._checkpoints.list_transaction_indexes(found)
        if clean:
            self.previous_broker_epoch = _broker_epoch(disk.read_bytes(f"{root}/{CLEAN_SHUTDOWN}"))
            disk.remove(f"{root}/{CLEAN_SHUTDOWN}")
            disk.sync_directory(root)
        self._last_checkpoint_ms = self._last_expiry_ms = now_ms
        self.space = disk.space(root)
        self._started = True
        _log.info(
            "log_directory_started root=%s partitions=%d clean=%s repaired=%d",
            root,
            len(self._present),
            clean,
            len(reports),
        )
        return reports

    def close(
        self,
        now_ms: int,
        may_flush: Callable[[int], bool] = lambda size: True,
        *,
        may_be_clean: bool = True,
        broker_epoch: int = NO_EPOCH,
    ) -> None:
        """Flush, write the checkpoints and the mark of a clean stop.

        `may_flush` is called before each flush, with its bytes. If it returns False, the bytes stay in the page cache,
        the mark is not written, and the next start checks them. `may_be_clean` is False when the caller has not yet
        handled an earlier unclean stop: then the next start must see it again. `broker_epoch`, the one of the
        registration, is written with the mark: the controller compares it when the broker registers again.
        """
        if self._lock is None:
            return  # never locked: the directory belongs to another process
        if self._started and self.health.failure is None:
            try:
                self._write_everything(may_flush, may_be_clean, broker_epoch)
            except OSError as error:  # the disk has failed: the next start checks the logs
                _log.error("log_directory_not_closed root=%s error=%s", self.root, error)
        self._checkpoints.close()
        self._logs.clear()
        self._started = False
        self._lock.release()
        self._lock = None

    def _write_everything(self, may_flush: Callable[[int], bool], may_be_clean: bool, broker_epoch: int) -> None:
        whole = may_be_clean
        unflushed = [(size, log) for log in self._logs.values() if (size := log.unflushed_bytes())]
        for log in self._logs.values():
            if not may_flush(0):
                whole = False  # out of time: the next start rebuilds the missing files
                break
            try:
                log.close()
            except OSError as error:
                _log.error("log_not_closed partition=%s error=%s", log.topic_partition, error)
                whole = False
        whole = self._flush_all(unflushed, may_flush) and whole
        whole = whole and all(log.failure is None for log in self._logs.values())
        unsynced = self._recovery.unsynced_bytes(self._logs)
        if unsynced and may_flush(unsynced) and (sync := self._recovery.sync_job(self._logs, again=True)) is not None:
            sync.done(sync.run())
        whole = whole and self._recovery.is_whole()
        failure = self._checkpoints.write_last(self._logs)
        if failure is not None:
            _log.error("checkpoint_failed root=%s error=%s", self.root, failure)
        elif whole:
            # Without this mark the next start checks the logs, so a stop that could not write everything must not
            # leave it.
            mark = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
            try:
                self._disk.write_atomically(f"{self.root}/{CLEAN_SHUTDOWN}", mark.encode())
            except OSError as error:
                _log.error("clean_stop_not_marked root=%s error=%s", self.root, error)

    def _flush_all(self, unflushed: list[tuple[int, PartitionLog]], may_flush: Callable[[int], bool]) -> bool:
        """Whether everything is flushed now."""
        if len(unflushed) > MANY_FLUSHES and may_flush(sum(size for size, _ in unflushed)):
            try:
                self._disk.sync_filesystem(self.root)
            except OSError as error:
                _log.error("sync_failed root=%s error=%s", self.root, error)  # then file by file, to know which
            else:
                for _, log in unflushed:
                    if log.failure is None:
                        log.recovery_point = log.log_end_offset
                return True
        for size, log in sorted(unflushed, key=lambda pair: pair[0]):
            if not may_flush(size):
                _log.info("stopped_unflushed root=%s: the next start checks the latest records", self.root)
                return False
            flush = log.flush_job()
            if flush is not None:
                flush.done(flush.run())
        return True

    # Logs

    def create(self, partition: TopicPartition, topic_id: UUID, config: LogConfig, now_ms: int) -> PartitionLog:
        """A new, empty log; the partition must not have one yet."""
        assert partition not in self._present, f"{partition} has a log"
        try:
            if self._disk.exists(self._directory(partition)):  # of a log that has just moved to another directory
                self._retire(partition, DELETED_DIRECTORY_SUFFIX)
            log = create_log(self._disk, self._cache, self._directory(partition), partition, topic_id, config, now_ms)
        except OSError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition} cannot be created: {error}") from error
        self._present.add(partition)
        self._logs[partition] = log
        return log

    def _find_branch(self, folder: str) -> None:
        file = read_branch(self._disk, folder)
        if file is None:  # the parent is as it was: the branch is made again
            self._disk.remove_directory(folder)
        else:
            self.unfinished_branches.append(LogBranch(folder, file))

    def take_branch(self, branch: LogBranch) -> None:
        """Make the log of a branch, which is finished in its folder, the log of its partition."""
        partition, checkpoints = branch.partition, self._checkpoints
        if self._disk.exists(self._directory(partition)):  # of a deleted topic with the same name
            self._retire(partition, DELETED_DIRECTORY_SUFFIX)
        self._disk.rename(branch.folder, self._directory(partition))
        self._present.add(partition)
        checkpoints.forget(partition)
        checkpoints.recovery_points[partition] = branch.file.recovery_point
        checkpoints.start_offsets[partition] = branch.file.log_start_offset
        if branch.cleaned_offset:
            checkpoints.cleaned_offsets[partition] = branch.cleaned_offset
        if branch.transaction_indexes:
            checkpoints.transaction_indexes[partition] = list(branch.transaction_indexes)
        checkpoints.is_wanted = True
        if branch in self.unfinished_branches:
            self.unfinished_branches.remove(branch)
            if not self.started_clean:
                self._recovery.require(partition)

    def open(self, partition: TopicPartition, config: LogConfig, now_ms: int) -> PartitionLog:
        """The log of a partition that has one; loads it if it is not open."""
        log = self._logs.get(partition)
        if log is not None:
            log.config = config  # maintenance may have opened it with older settings
            return log
        if partition not in self._present:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{partition} has no log in {self.root}")
        try:
            self._recovery.finish(partition)
            log = load_log(
                self._disk,
                self._cache,
                self._directory(partition),
                partition,
                config,
                now_ms,
                recovery_point=self._checkpoints.recovery_points.get(partition, 0),
                log_start_offset=self._checkpoints.start_offsets.get(partition, 0),
                transaction_indexes=self._checkpoints.transaction_indexes.get(partition, ()),
            )
        except OSError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition} cannot be opened: {error}") from error
        log.cleaned_offset = self._checkpoints.cleaned_offsets.get(partition, 0)
        if log.cleaned_offset > log.log_end_offset:
            log.cleaned_offset = 0  # an unclean stop has lost records that were cleaned last
        log.damaged_from = self._recovery.damaged_from.pop(partition, None)
        self._logs[partition] = log
        return log

    def was_moved_here(self, partition: TopicPartition) -> bool:
        """Whether a move to this directory has ended, and the log may still be in the other directory too."""
        return self._disk.exists(f"{self._directory(partition)}/{MOVED}")

    def keep_start_offsets(self, now_ms: int) -> bool:
        """Write the checkpoints, at the start, so that `forget_move` may follow. Whether it worked."""
        job = self.checkpoint_job(now_ms)
        failure = None if job is None else job.run()
        if job is not None:
            job.done(failure)
        return job is not None and failure is None

    def forget_move(self, partition: TopicPartition) -> None:
        """The log is in no other directory any more, and a checkpoint of this one has its start."""
        self._disk.remove(f"{self._directory(partition)}/{MOVED}")

    def take_over(self, log: PartitionLog, folder: str, now_ms: int, *, synced_end: int, cleaned_offset: int) -> None:
        """Make a copy of an open log, in `folder` of this directory, which the log itself does not use yet.

        `synced_end`: the copy is on stable storage up to here. OSError: the log is where it was.
        """
        partition = log.topic_partition
        target = self._directory(partition)
        if self._disk.exists(target):  # of an earlier move from here that could not remove it
            self._retire(partition, DELETED_DIRECTORY_SUFFIX)
        self._disk.rename(folder, target)
        try:
            copy = load_log(
                self._disk,
                self._cache,
                target,
                partition,
                log.config,
                now_ms,
                recovery_point=synced_end,
                log_start_offset=log.log_start_offset,
                transaction_indexes=[segment.base_offset for segment in log.segments if segment.aborted],
            )
            if copy.log_end_offset != log.log_end_offset or copy.log_start_offset != log.log_start_offset:
                raise OSError(
                    f"the copy has the offsets {copy.log_start_offset} to {copy.log_end_offset}, the log has "
                    f"{log.log_start_offset} to {log.log_end_offset}"
                )
        except Exception as error:
            try:
                self._disk.rename(target, folder)
            except OSError:
                # The copy counts at the next start, so the log must not get records that the copy does not have.
                log.fail(f"the move to {self.root} cannot be undone: {error}")
            raise
        log.move_to(copy)
        log.cleaned_offset = min(log.cleaned_offset, cleaned_offset)
        self._present.add(partition)
        self._logs[partition] = log
        self._checkpoints.is_wanted = True

    def let_go(self, partition: TopicPartition) -> None:
        """The log continues in another directory. Its files here are no longer in use; `delete` removes them."""
        self._logs.pop(partition, None)
        self._present.discard(partition)
        self._checkpoints.forget(partition)
        self._recovery.forget(partition)

    def release(self) -> None:
        """Close all files without a write: the disk has failed."""
        self._checkpoints.close()
        for log in self._logs.values():
            log.release()
        self._logs.clear()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def topic_id(self, partition: TopicPartition) -> UUID:
        """The topic id that a log was created with, read without opening it; NO_TOPIC_ID when its file is damaged."""
        log = self._logs.get(partition)
        return log.topic_id if log is not None else read_topic_id(self._disk, self._directory(partition))

    def checkpointed_high_watermark(self, partition: TopicPartition) -> int | None:
        """The high watermark in the last checkpoint."""
        return self._checkpoints.high_watermarks.get(partition)

    def restore_high_watermark(self, log: PartitionLog) -> None:
        """Give a log with several replicas the high watermark of the last checkpoint.

        After an unclean stop, only batches that were flushed count as committed. A power cut may bring back what a
        truncation removed: a batch of an old leader at an offset below the high watermark.
        """
        committed = self._checkpoints.high_watermarks.get(log.topic_partition, 0)
        if not self.started_clean:
            committed = min(committed, log.recovery_point)
        log.high_watermark = min(max(committed, log.local_start_offset), log.log_end_offset)

    def adopt(self, partition: TopicPartition, topic_id: UUID) -> None:
        """Write the topic id of a log whose file is damaged."""
        path = f"{self._directory(partition)}/{PARTITION_METADATA}"
        try:
            self._disk.write_atomically(path, encode_topic_id(topic_id))
        except OSError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition} cannot be adopted: {error}") from error
        _log.warning("topic_id_restored file=%s topic_id=%s", path, topic_id)
        log = self._logs.get(partition)
        if log is not None:
            log.topic_id = topic_id

    def set_aside(self, partition: TopicPartition) -> str:
        """Take away a log that belongs to no known topic, and keep its files under another name."""
        kept = self._retire(partition, STRAY_DIRECTORY_SUFFIX)
        _log.warning(
            "stray_log_set_aside partition=%s directory=%s: it belongs to no known topic;"
            " it is kept, and can be removed by hand",
            partition,
            kept,
        )
        return kept

    def delete(self, partition: TopicPartition) -> Job:
        """Take a log away at once; the job removes its files."""
        disk = self._disk
        retired = self._retire(partition, DELETED_DIRECTORY_SUFFIX)
        return Job(f"remove_log partition={partition}", lambda: disk.remove_directory(retired))

    def _retire(self, partition: TopicPartition, suffix: str) -> str:
        """Rename a log's directory and forget the log."""
        disk = self._disk
        try:
            topic_id = self.topic_id(partition).hex
            kept, attempt = f"{self.root}/{retired_directory(partition, topic_id, suffix)}", 0
            while disk.exists(kept):
                attempt += 1
                kept = f"{self.root}/{retired_directory(partition, f'{topic_id}.{attempt}', suffix)}"
            disk.rename(self._directory(partition), kept)
        except OSError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition} cannot be removed: {error}") from error
        log = self._logs.pop(partition, None)
        if log is not None:
            log.release()
        self._present.discard(partition)
        self._checkpoints.forget(partition)
        self._recovery.forget(partition)
        return kept

    # Maintenance

    def maintenance(
        self, now_ms: int, config_of: Callable[[TopicPartition], LogConfig | None] | None = None
    ) -> list[Job]:
        """Does what is due: retention, rolls by time, flushes, checkpoints. The returned jobs may block.

        With `config_of` some logs that are not open are opened each time, so that retention reaches all of them. It may
        return None for a partition whose settings are not known.
        """
        jobs: list[Job] = []
        if now_ms < self._last_maintenance_ms:
            self._clock_was_set_back(now_ms)
        self._last_maintenance_ms = now_ms
        if config_of is not None:
            self._open_some(now_ms, config_of)
        expire = self._last_expiry_ms is None or now_ms - self._last_expiry_ms >= PRODUCER_EXPIRY_INTERVAL_MS
        if expire:
            self._last_expiry_ms = now_ms
        is_retention_due = (
            self._last_retention_ms is None or now_ms - self._last_retention_ms >= self._retention_check_interval_ms
        )
        if is_retention_due:
            self._last_retention_ms = now_ms
        for log in self._logs.values():
            try:
                if is_retention_due:
                    jobs += retain(log, now_ms)
                if log.is_flush_due(now_ms) and (flush := log.flush_job()) is not None:
                    jobs.append(flush)
            except OSError as error:
                _log.error("maintenance_failed partition=%s error=%s", log.topic_partition, error)
            if log.cleaned_offset < self._checkpoints.cleaned_offsets.get(log.topic_partition, 0):
                self._checkpoints.is_wanted = True  # truncated: new records there are not cleaned
            if expire:
                log.producers.expire(now_ms, self.producer_id_expiration_ms)
        sync = self._recovery.sync_job(self._logs)
        if sync is not None:
            jobs.append(sync)
        is_checkpoint_due = (
            self._last_checkpoint_ms is None or now_ms - self._last_checkpoint_ms >= self._checkpoint_interval_ms
        )
        if (is_checkpoint_due or self._checkpoints.is_wanted) and (job := self.checkpoint_job(now_ms)) is not None:
            jobs.append(job)
        return jobs

    def _clock_was_set_back(self, now_ms: int) -> None:
        """Everything is due now, not when the clock is where it was. The checkpoints are written at once: changes after
        them must be later by the clock of the file system, or recovery does not find them."""
        self._last_checkpoint_ms = self._last_retention_ms = self._last_expiry_ms = None
        for log in self._logs.values():
            since_ms = log.flush_state.unflushed_since_ms
            if since_ms is not None and since_ms > now_ms:
                log.flush_state.unflushed_since_ms = now_ms

    def space_job(self) -> Job:
        """Look at the free space of the disk."""
        found: list[Space] = []

        def done(failure: OSError | None) -> None:
            if failure is None:
                self.space = found[0]

        return Job(f"look_at_space root={self.root}", lambda: found.append(self._disk.space(self.root)), done)

    def want_checkpoint(self) -> None:
        """Make `maintenance` write the checkpoints next time."""
        self._checkpoints.is_wanted = True

    def when_checkpointed(self, callback: Callable[[OSError | None], None], begin: Callable[[], None]) -> None:
        """Calls back when the checkpoints of now, or later ones, are on disk. `begin` runs a `checkpoint_job`: now, or
        when the present one has ended."""
        self._checkpoints.when_written(callback)
        self._checkpoints.on_wanted = begin
        begin()

    def checkpoint_job(self, now_ms: int) -> Job | None:
        """Write recovery points, log start offsets and high watermarks as they are now; None during another write: then
        `maintenance` writes them once more."""
        job = self._checkpoints.job(self._logs)
        if job is not None:
            self._last_checkpoint_ms = now_ms
        return job

    def _open_some(self, now_ms: int, config_of: Callable[[TopicPartition], LogConfig | None]) -> None:
        for partition in self._unopened.take(self._present, self._logs, now_ms):
            try:
                config = config_of(partition) if partition in self._present else None
                if config is not None:
                    # The replicas are not known here, so the high watermark stays as it was.
                    self.restore_high_watermark(self.open(partition, config, now_ms))
            except (KafkaError, OSError) as error:
                _log.error("log_not_opened partition=%s error=%s", partition, error)

    def _directory(self, partition: TopicPartition) -> str:
        return f"{self.root}/{partition}"


def _broker_epoch(mark: bytes) -> int:
    try:
        epoch = json.loads(mark)["brokerEpoch"]
    except (ValueError, KeyError, TypeError):
        return NO_EPOCH
    return epoch if isinstance(epoch, int) else NO_EPOCH
