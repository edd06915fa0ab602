"""The base class of `Partition`: what does not depend on the role. Its log, high watermark, flushes, and waiters.

The log is opened at its first use: a node may hold thousands of unused ones. The roles, and what moves the high
watermark, are in `partition.py`. Also here: `Replicas` and `PartitionContext`, by which a partition sees the node and
the cluster, and `TopicTraffic`, the counters of a topic.
"""

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypeVar
from uuid import UUID

from millstream.config.topic_config import LogConfig
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicPartition
from millstream.formats.model.ordered_set import OrderedSet
from millstream.node.environment import Environment
from millstream.node.metadata.image import PartitionState
from millstream.node.metadata.topic_names import INTERNAL_TOPICS
from millstream.node.replicas.acknowledgement import CommitWaiter, CommitWaiters, OnCommitted
from millstream.node.replicas.core.leader import Proposal
from millstream.node.replicas.unreadable_batches import UnreadableBatches
from millstream.node.storage.log.partition_log import PartitionLog

if TYPE_CHECKING:
    from millstream.node.replicas.partition import Partition


class TopicTraffic:
    """Counters of one topic on this node, for the metrics.

    One object for all partitions of a topic: it stays when single partitions move away, so that no counter decreases.
    """

    __slots__ = (
        "isr_expands",
        "isr_shrinks",
        "received_bytes",
        "received_records",
        "replica_received_bytes",
        "replica_sent_bytes",
        "sent_bytes",
        "sent_records",
    )

    def __init__(self) -> None:
        self.received_bytes = 0
        """Appended here as leader; repeated batches count once."""
        self.received_records = 0
        self.sent_bytes = 0
        """To consumers and members of share groups."""
        self.sent_records = 0
        self.replica_received_bytes = 0
        """Copied from the leader."""
        self.replica_sent_bytes = 0
        """Copied by followers."""
        self.isr_shrinks = 0
        """How often partitions led here lost an in-sync replica."""
        self.isr_expands = 0


NO_LEADER = -1


class Role(Enum):
    """The role of this node for a partition."""

    OFFLINE = "offline"
    LEADER = "leader"
    FOLLOWER = "follower"


class Waiter(Protocol):
    """A reader that waits for more records."""

    def wake(self) -> None: ...


class ReplicaWaiter(Waiter, Protocol):
    """A fetch session of a follower, which has many partitions."""

    def log_grew(self, partition: "Partition") -> None:
        """Called when records were appended to this partition."""
        ...

    def state_changed(self, partition: "Partition") -> None:
        """Called when the high watermark, the log start offset or the in-sync replicas changed. The next response has
        them."""
        ...


W = TypeVar("W", bound=Waiter)


class Waiters(OrderedSet[W]):
    """Waiters, which are woken in the order of their arrival."""

    __slots__ = ()


class LocalPartition:
    """The log of one partition on this node, and the waiters for commits and flushes."""

    __slots__ = (
        "_commit_waiters",
        "_flush_ended",
        "_flush_waiters",
        "_flushing",
        "_holds_flushes",
        "_log",
        "_open_log",
        "environment",
        "high_watermark",
        "is_internal",
        "is_leader",
        "is_log_offline",
        "is_mirror",
        "is_write_protected",
        "leader_epoch",
        "leader_id",
        "replica_waiters",
        "role",
        "topic_id",
        "topic_partition",
        "traffic",
        "unreadable",
        "waiters",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID,
        open_log: Callable[[], PartitionLog],
        environment: Environment,
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.environment = environment
        self.role = Role.OFFLINE
        self.is_leader = False
        """The same as `role is Role.LEADER`, for the hot path."""
        self.is_log_offline = False
        """Whether the log directory of its log is offline."""
        self.leader_id = NO_LEADER
        self.leader_epoch = -1
        self.high_watermark = 0
        self.is_internal = topic_partition.topic in INTERNAL_TOPICS
        self.is_mirror = False
        """Whether the log copies that of another cluster (docs/mirroring.md)."""
        self.is_write_protected = self.is_internal
        """Whether some writes are refused: the topic is internal or a mirror. `check_may_write` decides."""
        self.traffic = TopicTraffic()
        """The counters of the topic, once the partition is in the table."""
        self.unreadable: UnreadableBatches | None = None
        """Batches that consumers cannot read, if some were found in this role."""
        self.waiters: Waiters[Waiter] = Waiters()
        """Readers of committed records."""
        self.replica_waiters: Waiters[ReplicaWaiter] = Waiters()
        """Followers, which read up to the log's end."""
        self._log: PartitionLog | None = None
        self._open_log = open_log
        self._flushing = False
        self._holds_flushes = False
        self._flush_ended: asyncio.Future[None] | None = None
        self._flush_waiters: list[tuple[int, Callable[[KafkaError | None], None]]] = []
        self._commit_waiters = CommitWaiters()

    # The log

    @property
    def log(self) -> PartitionLog:
        """The log; opened at its first use."""
        log = self._log
        if log is None:
            try:
                log = self._open_log()
                self._opened(log)
            except OSError as error:
                self._log = None
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR, f"log of {self.topic_partition} cannot be opened: {error}"
                ) from error
            except KafkaError:
                self._log = None
                raise
        return log

    @property
    def last_stable_offset(self) -> int:
        """The offset up to which `read_committed` may read: before it, each transaction has ended and its marker is
        committed."""
        unstable = (self._log or self.log).first_unstable_offset
        committed = self.high_watermark
        return committed if unstable is None or unstable > committed else unstable

    def _opened(self, log: PartitionLog) -> None:
        """Takes the log that was just opened, and its high watermark."""
        self._log = log
        self.high_watermark = log.readable_end

    async def open(self) -> PartitionLog:
        """The log; if it had to be opened, other tasks run before the caller continues."""
        if self._log is None:
            _ = self.log
            await asyncio.sleep(0)
        return self.log

    @property
    def opened_log(self) -> PartitionLog | None:
        return self._log

    def check_leader_epoch(self, requested: int) -> None:
        """Refuses a request with an older or newer leader epoch; -1 means that it has none."""
        if requested in (-1, self.leader_epoch):
            return
        if requested < self.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, f"leader epoch {requested} has ended: refresh metadata")
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"leader epoch {requested} is not known here yet")

    def follow_config(self, config: LogConfig) -> None:
        """The settings of the topic, when the partition is new and when they changed."""
        self.is_mirror = config.is_mirror
        self.is_write_protected = self.is_internal or self.is_mirror

    def check_may_write(self, *, by_broker: bool = False) -> None:
        """Refuses a write of a client to an internal topic or a mirror topic, and of a broker to a mirror topic."""
        if self.is_mirror:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"{self.topic_partition.topic} is a mirror of a topic of another cluster and accepts no writes: write "
                "at the source, or end the mirroring with `millstream mirror promote` or `failover`",
            )
        if self.is_internal and not by_broker:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "only brokers write to internal topics")

    def check_is_leader(self) -> None:
        if not self.is_leader:
            raise self.not_leader()

    def not_leader(self) -> KafkaError:
        if self.is_log_offline:
            return KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"the log of {self.topic_partition} is in a log directory that is offline",
            )
        return KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this node does not lead {self.topic_partition}: refresh metadata"
        )

    # What is committed

    def _committed_to(self, offset: int) -> None:
        self.high_watermark = offset
        log = self._log
        if log is not None and log.high_watermark is not None:
            log.high_watermark = offset
        if self._commit_waiters:
            self._commit_waiters.reached(offset)
        if self.waiters:
            for waiter in tuple(self.waiters):
                waiter.wake()
        if self.replica_waiters:
            self._notify_followers()

    def _notify_followers(self) -> None:
        for follower in tuple(self.replica_waiters):
            follower.state_changed(self)  # type: ignore[arg-type]  # every partition is a `Partition`

    def when_committed(self, offset: int, callback: OnCommitted) -> CommitWaiter | None:
        """Calls back when everything before `offset` is committed. If it is already, calls back now and returns None.

        The callback gets an error if leadership is lost, or too few replicas are in sync.
        """
        if not self.is_leader:
            callback(self.not_leader())
            return None
        if offset <= self.high_watermark:
            callback(None)
            return None
        return self._commit_waiters.add(offset, callback)

    def wake_all(self) -> None:
        """Wakes all readers, for other changes than new records: a new role, or the partition is removed."""
        for waiter in (*self.waiters, *self.replica_waiters):
            waiter.wake()

    def _now_ms(self) -> int:
        return int(self.environment.loop.time() * 1000)

    def _fail_waiters(self, error: KafkaError) -> None:
        """The role has ended: records that they wait for may be truncated."""
        self._commit_waiters.fail(error)
        flushes, self._flush_waiters = self._flush_waiters, []
        for _, callback in flushes:
            callback(error)

    # Durability

    def when_flushed(self, offset: int, callback: Callable[[KafkaError | None], None]) -> None:
        """Calls back once everything before `offset` is on disk. One fsync serves all waiters at its start."""
        self._flush_waiters.append((offset, callback))
        if self._may_begin_flush:
            self._start_flush()

    @property
    def _may_begin_flush(self) -> bool:
        return not self._flushing and not self._holds_flushes

    def _start_flush(self) -> None:
        try:
            job = self.log.flush_job()
        except OSError as error:
            self._finish_flush(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log cannot be flushed: {error}"))
            return
        if job is None:
            self._flushed()
            self._finish_flush(None)
            return
        self._flushing = True
        future = self.environment.offload(job.run)

        def finished(done: object) -> None:
            self._flushing = False
            failure = future.result()
            job.done(failure)
            if failure is None:
                self._flushed()
                self._finish_flush(None)
            else:
                self._finish_flush(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log cannot be flushed: {failure}"))
            if self._flush_ended is not None and not self._flush_ended.done():
                self._flush_ended.set_result(None)

        future.add_done_callback(finished)

    def _flushed(self) -> None:
        """Called when a flush has ended without an error; for `Partition`."""

    async def hold_flushes(self) -> None:
        """Begin no flush until `release_flushes`; returns when none runs. Acknowledgements that need one wait."""
        self._holds_flushes = True
        if self._flushing:
            self._flush_ended = self.environment.loop.create_future()
            await self._flush_ended

    def release_flushes(self) -> None:
        self._holds_flushes = False
        if self._flush_waiters and self._may_begin_flush and not self.is_log_offline:
            self._start_flush()

    def _finish_flush(self, error: KafkaError | None) -> None:
        waiting, self._flush_waiters = self._flush_waiters, []
        if not waiting:
            return
        safe = self.log.recovery_point
        for offset, callback in waiting:
            if error is not None or offset <= safe:
                callback(error)
            else:
                self._flush_waiters.append((offset, callback))
        if self._flush_waiters and self._may_begin_flush:
            self._start_flush()


class Replicas(Protocol):
    """The node and the cluster, as partitions use them."""

    @property
    def node_id(self) -> int: ...

    def is_eligible(self, broker_id: int, broker_epoch: int, state: PartitionState | None) -> bool:
        """Whether a broker may be in the ISR of a partition."""
        ...

    def is_alive(self, broker_id: int) -> bool: ...

    def broker_epoch(self) -> int: ...

    def lag_max_ms(self) -> int: ...

    def has_lost_controller(self) -> bool:
        """Whether the controller cannot be reached, so that another node may lead partitions of this one."""
        ...

    def submit(self, partition: "Partition", proposal: Proposal) -> None:
        """Sends a proposal to the controller; the response goes to `Partition.on_proposal_response`."""
        ...


class PartitionContext:
    """The `ReplicaContext` of the leader of one log."""

    __slots__ = ("_log", "_partition", "_replicas")

    def __init__(self, replicas: Replicas, log: PartitionLog, partition: "Partition") -> None:
        self._replicas = replicas
        self._log = log
        self._partition = partition

    def is_eligible(self, broker_id: int, broker_epoch: int) -> bool:
        return self._replicas.is_eligible(broker_id, broker_epoch, self._partition.state)

    def is_alive(self, broker_id: int) -> bool:
        return self._replicas.is_alive(broker_id)

    def broker_epoch(self) -> int:
        return self._replicas.broker_epoch()

    def lag_max_ms(self) -> int:
        return self._replicas.lag_max_ms()

    def min_in_sync(self) -> int:
        return self._log.config.min_insync_replicas

    def own_end(self) -> int:
        log = self._log
        return log.recovery_point if log.config.flush_before_ack else log.log_end_offset
