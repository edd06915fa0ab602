"""One directory of logs (an entry of `log.dirs`): which partitions it holds, how it starts and stops, what it keeps
tidy.

After a clean stop logs are opened only when asked for, so that 10,000 of them start in a moment; after an unclean one
every log that may be damaged is repaired first (see `recovery`). `meta.properties` is not storage's.
"""

import itertools
import logging
from collections.abc import Callable
from uuid import UUID

from millstream.config.log_config import LogConfig
from millstream.model.errors import ErrorCode, KafkaError
from millstream.model.identifiers import TopicPartition
from millstream.storage.checkpoint import DamagedFileError, decode_offsets, encode_offsets
from millstream.storage.disk import DirectoryLock, Disk
from millstream.storage.file_cache import FileCache
from millstream.storage.file_names import (
    CLEAN_SHUTDOWN,
    DELETED_DIRECTORY_SUFFIX,
    HIGH_WATERMARKS,
    LOCK,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    TEMPORARY_SUFFIX,
    deleted_directory,
    parse_directory,
)
from millstream.storage.flushing import unflushed_bytes
from millstream.storage.job import Job
from millstream.storage.log_loader import create_log, load_log, read_topic_id
from millstream.storage.partition_log import PartitionLog
from millstream.storage.recovery import RecoveryReport, is_settled, recover_log
from millstream.storage.retention import expired_count
from millstream.storage.rolling import is_idle_due

logger = logging.getLogger("millstream.storage")

DAY_MS = 24 * 60 * 60 * 1000
CLEAN_SHUTDOWN_TEXT = b'{"version":0,"brokerEpoch":-1}'
OPENED_PER_MAINTENANCE = 100
MANY_FLUSHES = 32
PRODUCER_EXPIRY_INTERVAL_MS = 10 * 60 * 1000

Progress = Callable[[int, int, str], None]


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
    ) -> None:
        self.root = root
        self._disk = disk
        self._cache = FileCache(disk, max_open_files)
        self._producer_id_expiration_ms = producer_id_expiration_ms
        self._checkpoint_interval_ms = checkpoint_interval_ms
        self._retention_check_interval_ms = retention_check_interval_ms
        self._last_retention_ms: int | None = None
        self._lock: DirectoryLock | None = None
        self._present: set[TopicPartition] = set()
        self._logs: dict[TopicPartition, PartitionLog] = {}
        # What the checkpoint files say; for a log that is open, the log knows better.
        self._recovery_points: dict[TopicPartition, int] = {}
        self._start_offsets: dict[TopicPartition, int] = {}
        self._high_watermarks: dict[TopicPartition, int] = {}
        self._last_checkpoint_ms: int | None = None
        self._last_expiry_ms: int | None = None
        self.started_clean = False
        """Whether the last stop was a clean one; known after `start`."""

    @property
    def partitions(self) -> set[TopicPartition]:
        """All partitions with a log here, open or not."""
        return self._present

    @property
    def open_files(self) -> int:
        return self._cache.open_count

    def loaded(self) -> list[PartitionLog]:
        return list(self._logs.values())

    # Start and stop

    def start(self, now_ms: int, progress: Progress | None = None) -> list[RecoveryReport]:
        """Take the directory; returns what had to be repaired. May take long after an unclean stop."""
        disk, root = self._disk, self.root
        disk.make_directory(root)
        self._lock = disk.lock(f"{root}/{LOCK}")
        if self._lock is None:
            raise DirectoryInUseError(f"{root} is in use by another broker (its lock file {LOCK} is held)")
        checkpoint = f"{root}/{RECOVERY_POINTS}"
        checkpoint_ns = disk.modified_ns(checkpoint) if disk.exists(checkpoint) else 0
        self._recovery_points = self._read_offsets(RECOVERY_POINTS)
        self._start_offsets = self._read_offsets(LOG_START_OFFSETS)
        self._high_watermarks = self._read_offsets(HIGH_WATERMARKS)
        clean = self.started_clean = disk.exists(f"{root}/{CLEAN_SHUTDOWN}")
        for name, is_directory in disk.list(root):
            if is_directory and name.endswith(DELETED_DIRECTORY_SUFFIX):
                disk.remove_directory(f"{root}/{name}")
            elif is_directory:
                partition = parse_directory(name)
                if partition is not None:
                    self._present.add(partition)
            elif name.endswith(TEMPORARY_SUFFIX):
                disk.remove(f"{root}/{name}")
        reports = [] if clean else self._recover(checkpoint_ns, progress)
        if clean:
            disk.remove(f"{root}/{CLEAN_SHUTDOWN}")
            disk.sync_directory(root)
        self._last_checkpoint_ms = self._last_expiry_ms = now_ms
        logger.info(
            "log_directory_started root=%s partitions=%d clean=%s repaired=%d",
            root,
            len(self._present),
            clean,
            len(reports),
        )
        return reports

    def close(self, now_ms: int, may_flush: Callable[[int], bool] = lambda size: True) -> None:
        """Flush what was written, write the checkpoints and the mark of a clean stop.

        `may_flush` is asked before each flush, with its bytes. Where it says no, the bytes stay in the page cache, the
        mark is not written, and the next start checks them.
        """
        if self._lock is None:
            return  # never started: nothing here is ours to write
        whole = True
        unflushed = [(size, log) for log in self._logs.values() if (size := unflushed_bytes(log))]
        for log in self._logs.values():
            if not may_flush(0):
                whole = False  # out of time: what is not written here is made anew at the next start
                break
            try:
                log.close()
            except OSError as error:
                logger.error("log_not_closed partition=%s error=%s", log.topic_partition, error)
                whole = False
        whole = self._flush_all(unflushed, may_flush) and whole
        whole = whole and all(log.failure is None for log in self._logs.values())
        failure = self.checkpoint_job(now_ms).run()
        if failure is not None:
            logger.error("checkpoint_failed root=%s error=%s", self.root, failure)
        elif whole:
            # Without this mark the next start checks the logs, so a stop that could not write everything must not leave
            # it.
            self._disk.write_atomically(f"{self.root}/{CLEAN_SHUTDOWN}", CLEAN_SHUTDOWN_TEXT)
        self._logs.clear()
        self._lock.release()
        self._lock = None

    def _flush_all(self, unflushed: list[tuple[int, PartitionLog]], may_flush: Callable[[int], bool]) -> bool:
        """Whether everything is on disk now."""
        if len(unflushed) > MANY_FLUSHES and may_flush(sum(size for size, _ in unflushed)):
            try:
                self._disk.sync_filesystem(self.root)
            except OSError as error:
                logger.error("sync_failed root=%s error=%s", self.root, error)  # file by file then, to know which
            else:
                for _, log in unflushed:
                    if log.failure is None:
                        log.recovery_point = log.log_end_offset
                return True
        for size, log in sorted(unflushed, key=lambda pair: pair[0]):
            if not may_flush(size):
                logger.info("stopped_unflushed root=%s: what was written last is checked at the next start", self.root)
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
            log = create_log(self._disk, self._cache, self._directory(partition), partition, topic_id, config, now_ms)
        except OSError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition} cannot be created: {error}") from error
        self._present.add(partition)
        self._logs[partition] = log
        return log

    def open(self, partition: TopicPartition, config: LogConfig, now_ms: int) -> PartitionLog:
        """The log of a partition that has one, loaded now if it was not before."""
        log = self._logs.get(partition)
        if log is not None:
            return log
        if partition not in self._present:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{partition} has no log in {self.root}")
        try:
            log = load_log(
                self._disk,
                self._cache,
                self._directory(partition),
                partition,
                config,
                now_ms,
                recovery_point=self._recovery_points.get(partition, 0),
                log_start_offset=self._start_offsets.get(partition, 0),
            )
        except OSError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition} cannot be opened: {error}") from error
        self._logs[partition] = log
        return log

    def topic_id(self, partition: TopicPartition) -> UUID:
        """The topic id that a log was created with, read without opening it; NO_TOPIC_ID when its file is damaged."""
        log = self._logs.get(partition)
        return log.topic_id if log is not None else read_topic_id(self._disk, self._directory(partition))

    def checkpointed_high_watermark(self, partition: TopicPartition) -> int | None:
        """The high watermark as the last checkpoint has it."""
        return self._high_watermarks.get(partition)

    def delete(self, partition: TopicPartition) -> Job:
        """Take a log away at once; the job removes its files."""
        disk = self._disk
        grave = f"{self.root}/{deleted_directory(partition, self.topic_id(partition).hex)}"
        try:
            if disk.exists(grave):
                disk.remove_directory(grave)
            disk.rename(self._directory(partition), grave)
        except OSError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition} cannot be deleted: {error}") from error
        log = self._logs.pop(partition, None)
        if log is not None:
            log.release()
        self._present.discard(partition)
        for offsets in (self._recovery_points, self._start_offsets, self._high_watermarks):
            offsets.pop(partition, None)
        return Job(f"remove_log partition={partition}", lambda: disk.remove_directory(grave))

    # Upkeep

    def maintenance(
        self, now_ms: int, config_of: Callable[[TopicPartition], LogConfig | None] | None = None
    ) -> list[Job]:
        """What is due: retention, rolls by time, flushes, checkpoints. Cheap where nothing is; the jobs do the work.

        Logs that nobody has opened get old too: with `config_of` some of them are opened each time, so that retention
        reaches all of them in the end. It may answer None for a partition whose settings are not known.
        """
        jobs: list[Job] = []
        if config_of is not None:
            self._open_some(now_ms, config_of)
        expire = self._last_expiry_ms is None or now_ms - self._last_expiry_ms >= PRODUCER_EXPIRY_INTERVAL_MS
        if expire:
            self._last_expiry_ms = now_ms
        retain = (
            self._last_retention_ms is None or now_ms - self._last_retention_ms >= self._retention_check_interval_ms
        )
        if retain:
            self._last_retention_ms = now_ms
        for log in self._logs.values():
            try:
                if retain:
                    jobs += self._retain(log, now_ms)
                if log.is_flush_due(now_ms) and (flush := log.flush_job()) is not None:
                    jobs.append(flush)
            except OSError as error:
                logger.error("maintenance_failed partition=%s error=%s", log.topic_partition, error)
            if expire:
                log.producers.expire(now_ms, self._producer_id_expiration_ms)
        if self._last_checkpoint_ms is None or now_ms - self._last_checkpoint_ms >= self._checkpoint_interval_ms:
            jobs.append(self.checkpoint_job(now_ms))
        return jobs

    def checkpoint_job(self, now_ms: int) -> Job:
        """Write recovery points, log start offsets and high watermarks as they are now."""
        self._last_checkpoint_ms = now_ms
        for partition, log in self._logs.items():
            self._recovery_points[partition] = log.recovery_point
            self._start_offsets[partition] = log.log_start_offset
            self._high_watermarks[partition] = log.readable_end
        contents = [
            (RECOVERY_POINTS, encode_offsets(self._recovery_points)),
            (LOG_START_OFFSETS, encode_offsets({key: value for key, value in self._start_offsets.items() if value})),
            (HIGH_WATERMARKS, encode_offsets(self._high_watermarks)),
        ]
        disk, root = self._disk, self.root

        def run() -> None:
            for name, data in contents:
                disk.write_atomically(f"{root}/{name}", data)

        return Job("write_checkpoints", run)

    def _open_some(self, now_ms: int, config_of: Callable[[TopicPartition], LogConfig | None]) -> None:
        waiting = itertools.islice((each for each in self._present if each not in self._logs), OPENED_PER_MAINTENANCE)
        for partition in list(waiting):
            config = config_of(partition)
            if config is None:
                continue
            try:
                self.open(partition, config, now_ms)
            except KafkaError as error:
                logger.error("log_not_opened partition=%s error=%s", partition, error)

    def _retain(self, log: PartitionLog, now_ms: int) -> list[Job]:
        jobs: list[Job] = []
        if is_idle_due(log.segments.active, log.config, now_ms):
            log.roll(now_ms)
        count = expired_count(log, now_ms)
        if count:
            if count == len(log.segments):
                log.roll(now_ms)
            logger.info(
                "segments_expired partition=%s count=%d new_start=%d",
                log.topic_partition,
                count,
                log.segments[count].base_offset,
            )
            jobs.append(log.drop_segments(count))
        return jobs

    def _recover(self, checkpoint_ns: int, progress: Progress | None) -> list[RecoveryReport]:
        reports = []
        total = len(self._present)
        for done, partition in enumerate(sorted(self._present)):
            if progress is not None:
                progress(done, total, str(partition))
            directory = self._directory(partition)
            recovery_point = self._recovery_points.get(partition, 0)
            try:
                if is_settled(self._disk, directory, recovery_point, checkpoint_ns):
                    continue
                report = recover_log(self._disk, directory, recovery_point, self._start_offsets.get(partition, 0))
            except OSError as error:
                # One log that cannot be read is one partition's trouble: opening it will say so again.
                logger.error("log_not_recovered partition=%s error=%s", partition, error)
                continue
            if not report.is_clean:
                reports.append(report)
            self._recovery_points[partition] = min(recovery_point, report.end_offset)
        if progress is not None:
            progress(total, total, "")
        return reports

    def _directory(self, partition: TopicPartition) -> str:
        return f"{self.root}/{partition}"

    def _read_offsets(self, name: str) -> dict[TopicPartition, int]:
        try:
            return decode_offsets(self._disk.read_bytes(f"{self.root}/{name}"))
        except FileNotFoundError:
            return {}
        except DamagedFileError as error:
            logger.warning("checkpoint_discarded file=%s/%s reason=%s", self.root, name, error)
            return {}
