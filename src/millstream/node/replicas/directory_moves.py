"""Moves of logs between the log directories of this node.

A move (`AlterReplicaLogDirs`, KIP-113) copies a log while it is used (`node/storage/log/moving.py`). Before the log
goes on in the other directory, the controller is told (`AssignReplicasToDirs`, KIP-858), so that it reacts to a failure
of the right one. A move that the node's stop interrupts begins again at the next start.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator

from millstream.common.background_tasks import BackgroundTasks
from millstream.config.broker_config import BrokerConfig
from millstream.config.table import cluster
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicPartition
from millstream.node.environment import Environment
from millstream.node.replicas.directory_assignments import DirectoryAssignments
from millstream.node.replicas.partition import Partition
from millstream.node.replicas.roles import ReplicaRoles
from millstream.node.storage.cleaner.log_cleaner import LogCleaner
from millstream.node.storage.disk import Job
from millstream.node.storage.log.directories import LogDirectories
from millstream.node.storage.log.directory import LogDirectory
from millstream.node.storage.log.moving import MOST_CATCH_UPS, LogMove

_log = logging.getLogger("millstream.replication")


class DirectoryMoves:
    def __init__(
        self,
        logs: LogDirectories,
        roles: ReplicaRoles,
        assignments: DirectoryAssignments,
        cleaner: LogCleaner,
        environment: Environment,
        config: Callable[[], BrokerConfig],
    ) -> None:
        self._logs = logs
        self._roles = roles
        self._assignments = assignments
        self._cleaner = cleaner
        self._environment = environment
        self._config = config
        self._moves: dict[TopicPartition, tuple[LogDirectory, asyncio.Task[None]]] = {}
        self._copies: dict[TopicPartition, LogMove] = {}
        self._completions: dict[TopicPartition, asyncio.Task[None]] = {}
        """The last part of moves: the old log is removed."""
        self._tasks = BackgroundTasks()
        self._closed = False
        self.finished = 0
        self.failed = 0
        roles.on_released = self.cancel

    def __iter__(self) -> Iterator[LogMove]:
        """The moves whose copy has begun."""
        return iter(tuple(self._copies.values()))

    def __len__(self) -> int:
        return len(self._moves)

    def begin(self, partition: Partition, target: LogDirectory) -> None:
        """Moves the log to another directory. A move to a third one ends; a move to where the log is does nothing."""
        at = partition.topic_partition
        known = self._moves.get(at)
        if known is not None and known[0] is target:
            return
        self.cancel(at)
        if self._logs.home(at, target.id) is target:
            return
        task = self._tasks.start(self._move(partition, target), loop=self._environment.loop)
        self._moves[at] = target, task

    def resume(self) -> None:
        """Begins the moves again that the last stop interrupted."""
        for directory in self._logs.online:
            for at in directory.futures:
                partition = self._roles.partitions.by_name.get(at.topic.encode(), {}).get(at.partition)
                if partition is not None and not partition.is_log_offline:
                    self.begin(partition, directory)
            directory.futures.clear()

    def cancel(self, at: TopicPartition) -> None:
        known = self._moves.pop(at, None)
        if known is not None:
            known[1].cancel()

    def directory_failed(self, directory: LogDirectory) -> list["asyncio.Future[bool]"]:
        """Ends the moves from and to a directory. The results: the controller knows where the others' logs still are.

        Called before the logs of the directory are taken offline.
        """
        told = []
        for at, (target, task) in list(self._moves.items()):
            source = self._logs.place_of(at)
            if directory not in (target, source):
                continue
            del self._moves[at]
            task.cancel()
            partition = self._roles.partitions.by_name.get(at.topic.encode(), {}).get(at.partition)
            if self._roles.moving_to.pop(at, None) is not None and source is not None and partition is not None:
                # The controller has, or is about to get, the target. It must have the directory with the log.
                told.append(self._assignments.assign(partition.topic_id, at.partition, source.id))
        return told

    def close(self) -> None:
        self._closed = True
        self._tasks.cancel()
        self._assignments.close()

    # One move

    async def _move(self, partition: Partition, target: LogDirectory) -> None:
        at = partition.topic_partition
        try:
            earlier = self._completions.get(at)
            if earlier is not None:  # the old log may be where this move goes to
                await asyncio.wait((earlier,))
            log = await partition.open()
            source = self._logs.place_of(at)
            if source is None or source is target:
                return
            unique = f"{self._environment.randomness.getrandbits(64):016x}"
            copy = self._copies[at] = LogMove(log, source, target, unique)
            _log.info("move_begun partition=%s from=%s to=%s bytes=%d", at, source.root, target.root, log.size_bytes)
            await self._copy(partition, copy)
        except asyncio.CancelledError:
            await self._undo(partition, target, "cancelled")
            raise
        except (KafkaError, OSError) as error:
            self.failed += 1
            await self._undo(partition, target, str(error))
        except Exception:
            self.failed += 1
            _log.exception("move_failed partition=%s", at)
            await self._undo(partition, target, "internal error")
        finally:
            self._cleaner.release(at)
            self._roles.moving_to.pop(at, None)
            self._copies.pop(at, None)
            known = self._moves.get(at)
            if known is not None and known[0] is target:
                del self._moves[at]

    async def _copy(self, partition: Partition, copy: LogMove) -> None:
        at, now_ms = partition.topic_partition, self._environment.clock.now_ms
        is_assigned = is_finished = False
        while True:
            before = copy.copied_bytes
            try:
                if is_assigned:
                    await partition.hold_flushes()
                await self._run(copy.step(now_ms()))
                if is_assigned and copy.is_at_end:
                    await self._catch_up(copy)
                if is_assigned and copy.is_at_end and self._cleaner.hold(at) and copy.finish(now_ms()):
                    is_finished = True  # flushes are released when the move is on stable storage
                    completion = self._tasks.start(self._complete(partition, copy), loop=self._environment.loop)
                    self._completions[at] = completion
                    completion.add_done_callback(lambda _: self._completions.pop(at, None))
                    return
            except OSError:
                if not copy.is_stale:
                    raise
            finally:
                if is_assigned and not is_finished:
                    partition.release_flushes()
            if copy.is_at_end and not is_assigned:
                self._roles.moving_to[at] = copy.target.id
                if not await self._assignments.assign(partition.topic_id, at.partition, copy.target.id):
                    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{at} is not on this broker any more")
                is_assigned = True
            await self._throttle(copy.copied_bytes - before)

    async def _catch_up(self, copy: LogMove) -> None:
        """Copies what is appended meanwhile, until so little is left that it takes no time on the event loop."""
        for _ in range(MOST_CATCH_UPS):
            job = copy.catch_up()
            if job is None:
                return
            await self._run(job)

    async def _complete(self, partition: Partition, copy: LogMove) -> None:
        """The log is in the other directory: the old one is removed. If that fails, the next start does it."""
        try:
            await self._run(copy.settle())
        except FileNotFoundError:
            pass  # the topic was deleted meanwhile
        except OSError as error:
            _log.error("move_not_settled partition=%s error=%s", partition.topic_partition, error)
            return
        finally:
            partition.release_flushes()
        try:
            await self._write_checkpoints(copy.target)
            await self._run(copy.retire())
        except (KafkaError, OSError) as error:
            _log.error("moved_log_not_removed partition=%s error=%s", partition.topic_partition, error)
        self.finished += 1
        _log.info("move_finished partition=%s to=%s", partition.topic_partition, copy.target.root)

    async def _write_checkpoints(self, directory: LogDirectory) -> None:
        """Returns when a checkpoint of the directory, with the logs that it has now, is on disk."""
        written: asyncio.Future[OSError | None] = self._environment.loop.create_future()

        def begin() -> None:
            job = directory.checkpoint_job(self._environment.clock.now_ms())
            if job is not None:
                self._environment.offload(job.run).add_done_callback(lambda done: job.done(done.result()))

        directory.when_checkpointed(lambda failure: None if written.done() else written.set_result(failure), begin)
        if (failure := await written) is not None:
            raise failure

    async def _throttle(self, copied: int) -> None:
        rate = self._config()[cluster.REPLICA_ALTER_LOG_DIRS_IO_MAX_BYTES_PER_SECOND]
        await asyncio.sleep(min(copied / rate, 60.0) if copied > 0 else 0)

    async def _run(self, job: Job) -> None:
        failure = await self._environment.offload(job.run)
        job.done(failure)
        if failure is not None:
            raise failure

    async def _undo(self, partition: Partition, target: LogDirectory, reason: str) -> None:
        """Removes the copy, and reports to the controller that the log has not moved."""
        at = partition.topic_partition
        copy = self._copies.pop(at, None)
        if copy is None or self._closed or self._logs.place_of(at) is target:
            return  # nothing to undo; after a stop the move begins again
        _log.warning("move_ended partition=%s to=%s reason=%s", at, target.root, reason)
        if self._roles.moving_to.pop(at, None) is not None and not partition.is_log_offline:
            self._assignments.assign(partition.topic_id, at.partition, copy.source.id)
        if self._logs.is_online(target):
            job = copy.cancel()
            self._environment.offload(job.run).add_done_callback(lambda done: job.done(done.result()))
