"""One partition as its leader serves it: the log, how far it is committed, and who waits for it to move.

With a single replica everything appended is committed at once, so the high watermark is the log's end.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol
from uuid import UUID

from millstream.environment import Environment
from millstream.metadata.topic_names import INTERNAL_TOPICS
from millstream.model.errors import ErrorCode, KafkaError
from millstream.model.identifiers import TopicPartition
from millstream.storage.partition_log import Appended, PartitionLog


class Waiter(Protocol):
    """Someone who wants to know when there is more to read."""

    def wake(self) -> None: ...


class Partition:
    __slots__ = (
        "_flush_waiters",
        "_flushing",
        "_log",
        "_open_log",
        "environment",
        "high_watermark",
        "in_sync_count",
        "is_internal",
        "leader_epoch",
        "topic_id",
        "topic_partition",
        "waiters",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID,
        leader_epoch: int,
        open_log: Callable[[], PartitionLog],
        environment: Environment,
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.leader_epoch = leader_epoch
        self.environment = environment
        self.high_watermark = 0
        self.in_sync_count = 1
        self.is_internal = topic_partition.topic in INTERNAL_TOPICS
        self.waiters: set[Waiter] = set()
        self._log: PartitionLog | None = None
        self._open_log = open_log
        self._flushing = False
        self._flush_waiters: list[tuple[int, Callable[[KafkaError | None], None]]] = []

    @property
    def log(self) -> PartitionLog:
        """The log, opened when it is first needed: a node may hold thousands that nobody asks for."""
        log = self._log
        if log is None:
            try:
                log = self._log = self._open_log()
            except OSError as error:
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR, f"log of {self.topic_partition} cannot be opened: {error}"
                ) from error
            self.high_watermark = log.log_end_offset
        return log

    async def open(self) -> PartitionLog:
        """The log; where it had to be opened, others get a turn before whoever asks goes on to the next."""
        if self._log is None:
            _ = self.log
            await asyncio.sleep(0)
        return self.log

    @property
    def opened_log(self) -> PartitionLog | None:
        return self._log

    def append(self, batches: memoryview, now_ms: int) -> Appended:
        log = self._log or self.log
        appended = log.append(batches, leader_epoch=self.leader_epoch, now_ms=now_ms)
        self.high_watermark = log.log_end_offset
        if self.waiters:
            for waiter in tuple(self.waiters):
                waiter.wake()
        return appended

    def wake_all(self) -> None:
        """For changes that readers must hear of other than new records: the partition is going away."""
        for waiter in tuple(self.waiters):
            waiter.wake()

    def check_leader_epoch(self, requested: int) -> None:
        """Refuses a client whose idea of the leadership is older or newer than ours; -1 means it has none."""
        if requested in (-1, self.leader_epoch):
            return
        if requested < self.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, f"leader epoch {requested} is over: refresh metadata")
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"leader epoch {requested} is not known here yet")

    def when_flushed(self, offset: int, callback: Callable[[KafkaError | None], None]) -> None:
        """Calls back once everything before `offset` is on disk. One fsync serves all that wait at its start."""
        self._flush_waiters.append((offset, callback))
        if not self._flushing:
            self._start_flush()

    def _start_flush(self) -> None:
        job = self.log.flush_job()
        if job is None:
            self._finish_flush(None)
            return
        self._flushing = True
        future = self.environment.offload(job.run)

        def finished(done: object) -> None:
            self._flushing = False
            failure = future.result()
            job.done(failure)
            if failure is None:
                self._finish_flush(None)
            else:
                self._finish_flush(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"cannot be made durable: {failure}"))

        future.add_done_callback(finished)

    def _finish_flush(self, error: KafkaError | None) -> None:
        waiting, self._flush_waiters = self._flush_waiters, []
        safe = self.log.recovery_point
        for offset, callback in waiting:
            if error is not None or offset <= safe:
                callback(error)
            else:
                self._flush_waiters.append((offset, callback))
        if self._flush_waiters and not self._flushing:
            self._start_flush()
