"""The log directories of a node (`log.dirs`): which of them has which log, where new logs go, which have failed.

Each directory has its own lock, checkpoints, recovery and mark of a clean stop (`directory`). One of them also has the
metadata log; without it the node cannot run. Another one that fails takes only its own replicas offline.

A new log goes to the directory with the fewest logs for its free space: on disks of one size to the one with the fewest
logs, as in Kafka; a disk with twice the free space gets twice as many. Cordoned directories get none.
"""

import logging
import os.path
from collections.abc import Callable, Collection, Iterable, Sequence
from uuid import UUID

from millstream.config.topic_config import LogConfig
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicPartition
from millstream.node.storage.disk import Disk, FileCache, Job
from millstream.node.storage.log.branching import LogBranch, begin_branch
from millstream.node.storage.log.directory import NO_DIRECTORY_ID, NO_EPOCH, LogDirectory
from millstream.node.storage.log.partition_log import PartitionLog

_log = logging.getLogger("millstream.storage")

_SPACE_INTERVAL_MS = 10_000
_MAX_PREFERRED = 10_000


def is_cordoned(root: str, cordoned: Iterable[str]) -> bool:
    """Whether the setting `cordoned.log.dirs` names this directory, `*`, or a directory above it: each core of a
    machine has its own below those of the file."""
    for each in cordoned:
        path = os.path.abspath(each)
        if each == "*" or root == path or root.startswith(f"{path.rstrip('/')}/"):
            return True
    return False


class LogDirectories:
    def __init__(
        self,
        disk: Disk,
        roots: Sequence[str],
        *,
        metadata_root: str | None = None,
        max_open_files: int = 4096,
        producer_id_expiration_ms: int = 24 * 60 * 60 * 1000,
        checkpoint_interval_ms: int = 60_000,
        retention_check_interval_ms: int = 0,
    ) -> None:
        """`metadata_root`: the directory of the metadata log, the first by default. It may be none of `roots`: then it
        has no other logs."""
        self.disk = disk
        cache = FileCache(disk, max_open_files)

        def directory(root: str) -> LogDirectory:
            return LogDirectory(
                disk,
                root,
                producer_id_expiration_ms=producer_id_expiration_ms,
                checkpoint_interval_ms=checkpoint_interval_ms,
                retention_check_interval_ms=retention_check_interval_ms,
                cache=cache,
            )

        self._new_directory = directory
        self.data = [directory(root) for root in roots]
        """The directories that replicas may be in, in the order of the setting, online or not."""
        self.metadata = next((each for each in self.data if each.root == (metadata_root or roots[0])), None) or (
            directory(metadata_root or roots[0])
        )
        self._offline: dict[str, frozenset[TopicPartition]] = {}
        """The directories that are offline, by root, with the logs that they had."""
        self._reserved: dict[TopicPartition, LogDirectory] = {}
        """Where logs go that are created at their first use."""
        self._preferred: dict[TopicPartition, str] = {}
        """The directories that an operator wants for replicas that do not exist yet (`AlterReplicaLogDirs`)."""
        self._looked_at_space_ms: int | None = None
        disk.on_error = self._note_error

    # The directories

    @property
    def all(self) -> list[LogDirectory]:
        return self.data if self.metadata in self.data else [self.metadata, *self.data]

    @property
    def online(self) -> list[LogDirectory]:
        """The directories in use that replicas may be in."""
        return [each for each in self.data if each.root not in self._offline]

    @property
    def offline(self) -> list[LogDirectory]:
        return [each for each in self.data if each.root in self._offline]

    def is_online(self, directory: LogDirectory) -> bool:
        return directory.root not in self._offline

    def by_root(self, root: str) -> LogDirectory | None:
        return next((each for each in self.data if each.root == root), None)

    def by_id(self, directory_id: UUID) -> LogDirectory | None:
        """The directory in use with this id."""
        return next((each for each in self.online if each.id == directory_id), None)

    def may_be_offline(self, directory_id: UUID) -> bool:
        """Whether a directory that is offline has this id, or one whose id is not known."""
        return any(each.id in (directory_id, NO_DIRECTORY_ID) for each in self.offline)

    def _note_error(self, error: OSError, path: str, reading: bool) -> None:
        """In the thread where the error occurs."""
        for directory in self.all:
            if path == directory.root or path.startswith(f"{directory.root}/"):
                directory.health.note(error, path, reading)
                return

    def take_offline(self, directory: LogDirectory) -> frozenset[TopicPartition]:
        """Stop using a directory whose disk has failed; returns the partitions that it has."""
        reserved = {at for at, place in self._reserved.items() if place is directory}
        lost = frozenset(directory.partitions | reserved)
        self._offline[directory.root] = lost
        for at in sorted(reserved):
            del self._reserved[at]
        directory.release()
        return lost

    def fresh(self, directory: LogDirectory) -> LogDirectory:
        """A new object for a directory that is offline: to be started, and then brought online."""
        return self._new_directory(directory.root)

    def bring_online(self, directory: LogDirectory, counts: Callable[[TopicPartition], bool]) -> None:
        """Use a directory again, after it was started again. Of a log that another directory has too, one is set aside:
        the other one if `counts` says that the log of this directory is the replica."""
        at = next(slot for slot, each in enumerate(self.data) if each.root == directory.root)
        self.data[at] = directory
        for partition in sorted(directory.partitions):
            if (other := self.place_of(partition)) is not None:
                (other if counts(partition) else directory).set_aside(partition)
        del self._offline[directory.root]

    # Start and stop

    def start(self, now_ms: int) -> None:
        """Find and repair the logs. A directory that cannot be used is offline; without that of the metadata log there
        is no start."""
        for directory in self.all:
            if directory.root in self._offline:
                continue
            try:
                directory.start(now_ms)
            except OSError as error:
                if directory is self.metadata:
                    raise
                self.unusable(directory, error)
        if not self.online:
            raise OSError(f"none of the log directories can be used: {', '.join(each.root for each in self.data)}")
        self._settle_moves(now_ms)

    def unusable(self, directory: LogDirectory, error: OSError) -> None:
        """A directory that cannot be used at the start."""
        _log.error(
            "log_directory_offline directory=%s error=%s: its replicas stay offline until the disk works again",
            directory.root,
            error,
        )
        directory.health.note(error, directory.root, True)
        self._offline[directory.root] = frozenset(directory.partitions)
        directory.release()

    def _settle_moves(self, now_ms: int) -> None:
        """Finish moves that a crash interrupted after their rename."""
        if len(self.data) < 2:
            return
        for directory in self.online:
            others = [each for each in self.online if each is not directory]
            moved = [at for at in sorted(directory.partitions) if directory.was_moved_here(at)]
            is_written = bool(moved) and directory.keep_start_offsets(now_ms)
            for partition in moved:
                for other in others:
                    if partition in other.partitions:
                        _log.warning("move_finished partition=%s from=%s to=%s", partition, other.root, directory.root)
                        job = other.delete(partition)
                        self.disk.sync_directory(other.root)
                        job.done(job.run())
                if is_written and not self.offline:  # else the old log may be in the directory that is offline
                    directory.forget_move(partition)

    def close(
        self,
        now_ms: int,
        may_flush: Callable[[int], bool],
        *,
        may_be_clean: bool,
        broker_epoch: int,
    ) -> None:
        for directory in self.all:
            if directory.root not in self._offline:
                directory.close(now_ms, may_flush, may_be_clean=may_be_clean, broker_epoch=broker_epoch)

    @property
    def started_clean(self) -> bool:
        """Whether the last stop was a clean one, in every directory."""
        return not self._offline and all(each.started_clean for each in self.all)

    @property
    def previous_broker_epoch(self) -> int:
        """The epoch of the broker that stopped cleanly; -1 unless all directories have the same. A new directory has
        none, as a disk that was replaced."""
        epochs = {each.previous_broker_epoch for each in self.data}
        return epochs.pop() if len(epochs) == 1 and not self._offline else NO_EPOCH

    # Logs

    @property
    def partitions(self) -> set[TopicPartition]:
        """All partitions with a log in a directory in use."""
        return {at for directory in self._with_logs() for at in directory.partitions}

    def has(self, partition: TopicPartition) -> bool:
        return self.place_of(partition) is not None

    def place_of(self, partition: TopicPartition) -> LogDirectory | None:
        """The directory in use that has the log."""
        return next((each for each in self._with_logs() if partition in each.partitions), None)

    def duplicates(self) -> dict[TopicPartition, list[LogDirectory]]:
        """Partitions with a log in several directories, with these."""
        places: dict[TopicPartition, list[LogDirectory]] = {}
        if len(self.data) > 1:
            for directory in self.online:
                for at in sorted(directory.partitions):
                    places.setdefault(at, []).append(directory)
        return {at: found for at, found in places.items() if len(found) > 1}

    def home(self, partition: TopicPartition, assigned: UUID, cordoned: Collection[str] = ()) -> LogDirectory | None:
        """The directory of a replica: the one that has its log, or where it is going to be created.

        `assigned`: the directory in the metadata. None: it is in a directory that is offline, and must not be created
        in another one.
        """
        found = self._reserved.get(partition)
        if found is None and self._offline and self._is_lost(partition, assigned):
            return None
        found = found or self.place_of(partition)
        if found is None:
            wanted = self.by_root(self._preferred.pop(partition, ""))
            if wanted is not None and self.is_online(wanted):
                found = wanted
            else:
                found = self.by_id(assigned) or self._choose(cordoned)
            if found is not None:
                self._reserved[partition] = found
        return found

    def prefer(self, partition: TopicPartition, directory: LogDirectory) -> None:
        """Where the log goes if this node gets a replica of the partition."""
        self._preferred.pop(partition, None)
        self._preferred[partition] = directory.root
        if len(self._preferred) > _MAX_PREFERRED:
            del self._preferred[next(iter(self._preferred))]

    def _is_lost(self, partition: TopicPartition, assigned: UUID) -> bool:
        if any(partition in lost for lost in self._offline.values()):
            return True
        return self.by_id(assigned) is None and assigned.int > 1 and self.may_be_offline(assigned)

    def is_lost(self, partition: TopicPartition) -> bool:
        """Whether the log was in a directory when that failed."""
        return any(partition in lost for lost in self._offline.values())

    def forget_lost(self, partition: TopicPartition) -> None:
        """This node has no replica of the partition any more."""
        self._offline = {root: lost - {partition} for root, lost in self._offline.items()}
        self._reserved.pop(partition, None)

    def _choose(self, cordoned: Collection[str]) -> LogDirectory | None:
        candidates = self.online
        if len(candidates) > 1:
            candidates = [each for each in candidates if not is_cordoned(each.root, cordoned)] or candidates

        def load(directory: LogDirectory) -> float:
            waiting = sum(1 for place in self._reserved.values() if place is directory)
            usable = directory.space.usable_bytes if directory.space is not None else 1
            return (len(directory.partitions) + waiting + 1) / max(usable, 1)

        return min(candidates, key=load, default=None)

    def create(
        self,
        partition: TopicPartition,
        topic_id: UUID,
        config: LogConfig,
        now_ms: int,
        assigned: UUID = NO_DIRECTORY_ID,
    ) -> PartitionLog:
        directory = self.home(partition, assigned)
        if directory is None:
            raise self._offline_error(partition)
        log = directory.create(partition, topic_id, config, now_ms)
        self._reserved.pop(partition, None)
        return log

    def begin_branch(
        self, parent: PartitionLog, partition: TopicPartition, topic_id: UUID, offset: int, now_ms: int
    ) -> tuple[LogDirectory, LogBranch]:
        """Begin to make the log of a branch, in the directory of its parent."""
        directory = self._having(parent.topic_partition)
        return directory, begin_branch(parent, directory.root, partition, topic_id, offset, now_ms)

    def open(self, partition: TopicPartition, config: LogConfig, now_ms: int) -> PartitionLog:
        return self._having(partition).open(partition, config, now_ms)

    def topic_id(self, partition: TopicPartition) -> UUID:
        return self._having(partition).topic_id(partition)

    def restore_high_watermark(self, log: PartitionLog) -> None:
        self._having(log.topic_partition).restore_high_watermark(log)

    def adopt(self, partition: TopicPartition, topic_id: UUID) -> None:
        self._having(partition).adopt(partition, topic_id)

    def set_aside(self, partition: TopicPartition) -> str:
        return self._having(partition).set_aside(partition)

    def delete(self, partition: TopicPartition) -> Job:
        return self._having(partition).delete(partition)

    def loaded(self) -> list[PartitionLog]:
        return [log for directory in self._with_logs() for log in directory.loaded()]

    def loaded_log(self, partition: TopicPartition) -> PartitionLog | None:
        for directory in self._with_logs():
            if (log := directory.loaded_log(partition)) is not None:
                return log
        return None

    def _having(self, partition: TopicPartition) -> LogDirectory:
        directory = self.place_of(partition)
        if directory is None:
            if self.is_lost(partition):
                raise self._offline_error(partition)
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{partition} has no log on this node")
        return directory

    def _offline_error(self, partition: TopicPartition) -> KafkaError:
        roots = ", ".join(each.root for each in self.offline)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition} is in a log directory that is offline ({roots})")

    def _with_logs(self) -> Iterable[LogDirectory]:
        return (each for each in self.all if each.root not in self._offline)

    # Maintenance

    def maintenance(self, now_ms: int, config_of: Callable[[TopicPartition], LogConfig | None]) -> list[Job]:
        jobs = [job for directory in self._with_logs() for job in directory.maintenance(now_ms, config_of)]
        if len(self.data) > 1 and (
            self._looked_at_space_ms is None or not 0 <= now_ms - self._looked_at_space_ms < _SPACE_INTERVAL_MS
        ):
            self._looked_at_space_ms = now_ms
            jobs += [each.space_job() for each in self.online]
        return jobs

    def expire_producers_after(self, duration_ms: int) -> None:
        for directory in self.all:
            directory.producer_id_expiration_ms = duration_ms

    def want_checkpoint(self) -> None:
        for directory in self._with_logs():
            directory.want_checkpoint()

    def checkpoint_jobs(self, now_ms: int) -> list[Job]:
        found = [directory.checkpoint_job(now_ms) for directory in self._with_logs()]
        return [job for job in found if job is not None]

    def when_checkpointed(
        self, callback: Callable[[OSError | None], None], run: Callable[[Job], None], now: Callable[[], int]
    ) -> None:
        """Calls back when the checkpoints of now, or later ones, are on disk in every directory; `run` runs a job."""
        waiting = list(self._with_logs())
        failures: list[OSError] = []

        def written(failure: OSError | None) -> None:
            waiting.pop()
            if failure is not None:
                failures.append(failure)
            if not waiting:
                callback(failures[0] if failures else None)

        for directory in tuple(waiting):

            def begin(directory: LogDirectory = directory) -> None:
                job = directory.checkpoint_job(now())
                if job is not None:
                    run(job)

            directory.when_checkpointed(written, begin)
