"""One partition of this node with its role: as leader it accepts writes, as follower it copies the leader.

    offline ──become_leader──> leader <──become_leader / become_follower──> follower

A partition is offline until the metadata gives it a role. The leader accepts writes and tracks how far followers are;
with a single replica every append is committed at once. With `flush.before.ack` the leader's own log counts up to the
flushed offset: no consumer reads a record that a power cut may remove, because it would skip the next record with that
offset. A follower copies its leader, and serves consumers up to the high watermark that the leader sent. Both roles
begin with the high watermark that the node knew: a record is not readable before it is known again to be committed.

What does not depend on the role (the log, flushes, waiters) is in the base class, `local_partition.py`.
"""

import logging
from collections.abc import Callable
from uuid import UUID

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import Marker, Origin, TopicPartition, VerificationGuard
from millstream.node.environment import Environment
from millstream.node.metadata.image import PartitionState
from millstream.node.replicas.acknowledgement import CommitWaiter, OnCommitted
from millstream.node.replicas.core.follower import PartitionFollower
from millstream.node.replicas.core.leader import Confirmed, Follower, NextStep, PartitionLeader, Proposal
from millstream.node.replicas.local_partition import NO_LEADER, LocalPartition, PartitionContext, Replicas, Role
from millstream.node.replicas.retry_order import NEW_LEADER_SECONDS
from millstream.node.storage.log.appended import Appended
from millstream.node.storage.log.partition_log import PartitionLog

_log = logging.getLogger("millstream.replication")


class Partition(LocalPartition):
    """One partition of this node, and its role."""

    __slots__ = ("_deletion_waiters", "_follower", "_leader", "_replicas", "new_leader_until", "state")

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID,
        open_log: Callable[[], PartitionLog],
        environment: Environment,
        replicas: Replicas,
    ) -> None:
        super().__init__(topic_partition, topic_id, open_log, environment)
        self.state: PartitionState | None = None
        """The state in the metadata."""
        self.new_leader_until = 0.0
        """Until then (loop time), producers may have batches in flight to an earlier leader; 0 if there was none."""
        self._replicas = replicas
        self._leader: PartitionLeader | None = None
        self._follower: PartitionFollower | None = None
        self._deletion_waiters: list[CommitWaiter] = []

    def _opened(self, log: PartitionLog) -> None:
        self._check_epochs(log)
        super()._opened(log)
        if self.is_leader:
            self._begin_leading(log)

    def _check_epochs(self, log: PartitionLog) -> None:
        """A batch with a later epoch than the metadata has is damaged.

        A follower fetches it again from the leader, because their logs would have no common epoch otherwise. A leader
        keeps its records.
        """
        since = log.forget_epochs_after(self.leader_epoch) if self.state is not None else None
        if since is None:
            return
        _log.warning("impossible_epoch partition=%s offset=%d", self.topic_partition, since)
        if not self.is_leader:
            log.truncate_to(since)

    # Roles

    def become_leader(self, state: PartitionState) -> None:
        """The metadata has this node as leader; also called for other changes in the same leader epoch."""
        if self.is_leader and state.leader_epoch == self.leader_epoch:
            self._follow_state(state)
            return
        self._leave_role()
        self.is_log_offline = False
        self.state = state
        self.role, self.is_leader = Role.LEADER, True
        self.leader_id, self.leader_epoch = state.leader, state.leader_epoch
        if state.leader_epoch > 0 and len(state.replicas) > 1:
            self.new_leader_until = self.environment.loop.time() + NEW_LEADER_SECONDS
        if self._log is not None:
            try:
                self._begin_leading(self._log)
            except BaseException:
                self._log = None  # the next use tries again; until then no write is accepted
                raise
        self.wake_all()

    def become_follower(self, state: PartitionState) -> None:
        """The metadata has another node as leader, or none."""
        if self.role is Role.FOLLOWER and (state.leader, state.leader_epoch) == (self.leader_id, self.leader_epoch):
            self.state = state
            return
        self._leave_role()
        self.is_log_offline = False
        self.state = state
        self.role = Role.FOLLOWER
        self.leader_id, self.leader_epoch = state.leader, state.leader_epoch
        if self._log is not None:
            self._log.high_watermark = self.high_watermark
        self.wake_all()

    def set_log_offline(self, state: PartitionState | None) -> None:
        """The log directory of the replica is offline."""
        self.is_log_offline = True
        self._log = None
        self.go_offline()
        self.state = state
        if state is not None:
            self.leader_epoch = state.leader_epoch

    def go_offline(self) -> None:
        """This node no longer has a replica of the partition, or stops."""
        self._leave_role()
        self.role = Role.OFFLINE
        self.leader_id = NO_LEADER
        self.wake_all()

    def _leave_role(self) -> None:
        self.is_leader = False
        self._leader = self._follower = None
        self.unreadable = None  # the log may be truncated in another role
        error = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "leadership was lost before the write was acknowledged")
        self._fail_waiters(error)
        deletions, self._deletion_waiters = self._deletion_waiters, []
        for waiter in deletions:
            waiter.tell(error)

    def _begin_leading(self, log: PartitionLog) -> None:
        state = self.state
        assert state is not None
        # The epoch begins at the log's end: followers find by this where their logs diverge. The records of a mirror
        # have the epochs of the source.
        if not self.is_mirror:
            log.assign_leader_epoch(self.leader_epoch)
        if self._is_committed_at_once(log, state):
            log.high_watermark = None
            self.high_watermark = log.log_end_offset
            return
        log.high_watermark = self.high_watermark
        self._leader = self._new_leader(log, state)
        self._update_high_watermark(self._leader)
        self._flush_to_commit(log)

    def _is_committed_at_once(self, log: PartitionLog, state: PartitionState) -> bool:
        """Whether appends are committed at once: there is no other replica, and no wait for the disk."""
        return state.replicas == (self._replicas.node_id,) and not log.config.flush_before_ack

    def _new_leader(self, log: PartitionLog, state: PartitionState) -> PartitionLeader:
        return PartitionLeader(
            self._replicas.node_id,
            log,
            PartitionContext(self._replicas, log, self),
            replicas=state.replicas,
            isr=state.isr,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            high_watermark=self.high_watermark,
            now_ms=self._now_ms(),
        )

    def _follow_state(self, state: PartitionState) -> None:
        self.state = state
        self._notify_followers()
        log = self._log
        if log is None:
            return
        leader = self._leader
        if leader is None:
            if not self._is_committed_at_once(log, state):
                log.high_watermark = self.high_watermark
                self._leader = self._new_leader(log, state)
            return
        if self._is_committed_at_once(log, state):
            self._leader = None
            log.high_watermark = None
            self._committed_to(log.log_end_offset)
            return
        before = leader.isr
        leader.updated(
            replicas=state.replicas, isr=state.isr, partition_epoch=state.partition_epoch, now_ms=self._now_ms()
        )
        self._in_sync_set_changed(leader, before)

    # Leading

    @property
    def is_in_doubt(self) -> bool:
        """Whether another node may lead by now: there are other replicas, and the controller cannot be reached."""
        state = self.state
        return self.is_leader and state is not None and len(state.replicas) > 1 and self._replicas.has_lost_controller()

    @property
    def leader_for_clients(self) -> tuple[int, int] | None:
        """The leader and its epoch, for responses to clients; None if this node is in doubt. If it named itself,
        librdkafka would not request metadata from other nodes."""
        return None if self.is_in_doubt else (self.leader_id, self.leader_epoch)

    def doubt_error(self, why: object) -> KafkaError:
        """A retriable error in place of one that clients take as final: another node may lead by now, and its log may
        differ. `why` is the error that is replaced."""
        return KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"this node has lost the controller, so another may lead {self.topic_partition}: refresh metadata ({why})",
        )

    @property
    def is_new_leader(self) -> bool:
        if self.new_leader_until and self.environment.loop.time() >= self.new_leader_until:
            self.new_leader_until = 0.0
        return self.new_leader_until > 0

    def append(
        self,
        batches: memoryview,
        now_ms: int,
        *,
        origin: Origin = Origin.CLIENT,
        guard: VerificationGuard | None = None,
        needs_guard: bool = False,
    ) -> Appended:
        """Appends a batch. With `needs_guard`, the first batch of a transaction needs the guard of
        `begin_verification`."""
        if not self.is_leader:
            raise self.not_leader()
        log = self._log or self.log
        if guard is None and not needs_guard:
            appended = log.append(batches, leader_epoch=self.leader_epoch, now_ms=now_ms, origin=origin)
        else:
            appended = log.append(
                batches,
                leader_epoch=self.leader_epoch,
                now_ms=now_ms,
                origin=origin,
                guard=guard,
                needs_guard=needs_guard,
            )
        if not appended.duplicate:  # else it was a repetition
            traffic = self.traffic
            traffic.received_bytes += len(batches)
            traffic.received_records += appended.last_offset - appended.base_offset + 1
        if self._leader is None and not self.waiters:
            self.high_watermark = log.log_end_offset
        else:
            self._log_grew(log)
        return appended

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether this leader has an open transaction of a producer."""
        log = self._log
        return self.is_leader and log is not None and log.producers.has_open_transaction(producer_id, epoch)

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, *, bumps_epoch: bool
    ) -> VerificationGuard | None:
        """The guard for the append, once the coordinator has confirmed the transaction; None if it is open here
        already."""
        if not self.is_leader:
            raise self.not_leader()
        return self.log.begin_verification(producer_id, epoch, sequence, bumps_epoch=bumps_epoch)

    def append_marker(self, marker: Marker, now_ms: int) -> Appended:
        """Appends the marker that ends a producer's transaction."""
        if not self.is_leader:
            raise self.not_leader()
        if self.is_mirror:
            self.check_may_write()
        log = self._log or self.log
        appended = log.append_marker(marker, leader_epoch=self.leader_epoch, now_ms=now_ms)
        self._log_grew(log)
        return appended

    # Mirroring: the leader's log is that of a source (`node/mirror`)

    def append_mirrored(self, batches: memoryview, now_ms: int) -> None:
        """Appends whole batches of the source, with its offsets and epochs."""
        log = self._mirrored_log()
        log.append_as_follower(batches, now_ms=now_ms)
        self.traffic.received_bytes += len(batches)
        self._log_grew(log)

    def truncate_mirrored(self, offset: int) -> int:
        """Removes what the source does not have; returns the new end. Followers find by the epochs that they differ."""
        log = self._mirrored_log()
        end = log.truncate_to(min(offset, log.log_end_offset))
        self._lead_again(log)
        return end

    def restart_mirrored(self, offset: int, now_ms: int) -> None:
        """Begins again at an offset, because the source has removed everything before it."""
        log = self._mirrored_log()
        log.restart_at(offset, now_ms)
        self._lead_again(log)

    def start_mirrored(self, offset: int) -> None:
        """The log of the source begins at an offset now."""
        log = self._mirrored_log()
        start = min(offset, self.high_watermark)
        if start > log.log_start_offset:
            log.delete_records_before(start)
            self._notify_followers()

    def _mirrored_log(self) -> PartitionLog:
        if not self.is_leader:
            raise self.not_leader()
        if not self.is_mirror:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{self.topic_partition} is not a mirror")
        return self._log or self.log

    def _lead_again(self, log: PartitionLog) -> None:
        """Begins the leadership again after a truncation: what followers reported is not valid any more."""
        state = self.state
        assert state is not None
        if self._leader is None:
            self.high_watermark = log.log_end_offset
        else:
            self.high_watermark = log.high_watermark = min(self.high_watermark, log.log_end_offset)
            self._leader = self._new_leader(log, state)
        self.unreadable = None
        self.wake_all()

    def _log_grew(self, log: PartitionLog) -> None:
        leader = self._leader
        if leader is None:
            self.high_watermark = log.log_end_offset
            if self.waiters:
                for waiter in tuple(self.waiters):
                    waiter.wake()
            return
        if len(leader.maximal_isr) == 1:  # else the other replicas must have it first
            leader.appended(self._now_ms())
            self._update_high_watermark(leader)
        self._flush_to_commit(log)
        if self.replica_waiters:
            for follower in tuple(self.replica_waiters):
                follower.log_grew(self)

    def check_enough_in_sync(self) -> None:
        """Refuses a write with acks=all if fewer replicas than `min.insync.replicas` are in sync."""
        if self._leader is not None:
            self._leader.check_enough_in_sync()

    @property
    def epoch_start(self) -> int:
        """The offset where this leadership began. Below it, the high watermark may lag behind the committed records."""
        return self._leader.epoch_start if self._leader is not None else 0

    @property
    def knows_what_is_committed(self) -> bool:
        return self.high_watermark >= self.epoch_start

    def followers(self) -> dict[int, Follower]:
        return self._leader.followers if self._leader is not None else {}

    def in_sync(self) -> frozenset[int]:
        if self._leader is not None:
            return self._leader.isr
        return frozenset(self.state.isr) if self.state is not None else frozenset()

    def check_follower(self, broker_id: int, broker_epoch: int) -> None:
        """Refuses a fetch of a broker that is no replica, or has registered again since."""
        self.check_is_leader()
        _ = self.log
        if self._leader is None:
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"broker {broker_id} is not known here as a replica")
        self._leader.follower(broker_id, broker_epoch)

    def fetched_by(self, broker_id: int, broker_epoch: int, offset: int, log_start: int) -> None:
        """Notes that a follower, whose log agrees with this one, has everything before `offset`."""
        leader = self._leader
        if leader is None:
            raise self.not_leader()
        now_ms = self._now_ms()
        moved = leader.fetched(broker_id, offset=offset, log_start=log_start, broker_epoch=broker_epoch, now_ms=now_ms)
        if leader.wants_growth(broker_id):
            self._propose(leader, now_ms)
        if moved:
            self._update_high_watermark(leader)
        if self._deletion_waiters:
            self._update_low_watermark()

    def is_at_end(self, broker_id: int, broker_epoch: int, offset: int, log_start: int, leader_epoch: int) -> bool:
        """Whether an in-sync follower fetches at the log's end again. If so, that is noted.

        This is the case for most partitions of most fetches, and is much cheaper than `fetched_by`.
        """
        leader, log = self._leader, self._log
        if leader is None or log is None or leader_epoch != self.leader_epoch or broker_id not in leader.isr:
            return False
        follower = leader.followers.get(broker_id)
        if (
            follower is None
            or offset != log.log_end_offset
            or follower.log_end != offset
            or follower.log_start != log_start
            or follower.broker_epoch != broker_epoch
        ):
            return False
        follower.note_at_end(self._now_ms())
        return True

    def was_at_end(self, broker_id: int, at: float) -> None:
        """A follower was at the log's end when it fetched, at that time of the loop, and nothing was appended since."""
        follower = self._leader.followers.get(broker_id) if self._leader is not None else None
        if follower is not None and int(at * 1000) > follower.fetched_ms:
            follower.note_at_end(int(at * 1000))

    def release_flushes(self) -> None:
        super().release_flushes()
        if self.is_leader and self._leader is not None and self._log is not None:
            self._flush_to_commit(self._log)

    def _flush_to_commit(self, log: PartitionLog) -> None:
        if log.config.flush_before_ack and log.recovery_point < log.log_end_offset and self._may_begin_flush:
            self._start_flush()

    def _flushed(self) -> None:
        leader = self._leader
        if leader is not None:
            leader.appended(self._now_ms())
            self._update_high_watermark(leader)
            self._flush_to_commit(self.log)  # appends since the flush began

    def check_in_sync_set(self) -> None:
        """Called periodically, because silent followers cause no event, and when settings changed."""
        log, state = self._log, self.state
        if self.is_leader and state is not None and log is not None:
            if (self._leader is None) is not self._is_committed_at_once(log, state):
                self._follow_state(state)  # `flush.before.ack` was changed
            self._flush_to_commit(log)
        leader = self._leader
        if leader is not None:
            now_ms = self._now_ms()
            leader.settings_changed(now_ms)
            self._update_high_watermark(leader)
            self._propose(leader, now_ms)
            if self._deletion_waiters:
                self._update_low_watermark()

    def _propose(self, leader: PartitionLeader, now_ms: int) -> None:
        proposal = leader.propose(now_ms)
        if proposal is not None:
            self._replicas.submit(self, proposal)

    def on_proposal_response(self, proposal: Proposal, error: int, confirmed: Confirmed | None) -> NextStep:
        leader = self._leader
        if leader is None or leader.leader_epoch != proposal.leader_epoch:
            return NextStep.NOTHING
        before = leader.isr
        step = leader.on_response(proposal, error, confirmed, self._now_ms())
        self._in_sync_set_changed(leader, before)
        return step

    def _in_sync_set_changed(self, leader: PartitionLeader, before: frozenset[int]) -> None:
        self.traffic.isr_shrinks += not before <= leader.isr
        self.traffic.isr_expands += not leader.isr <= before
        self._notify_followers()
        self._update_high_watermark(leader)
        if self._commit_waiters:
            error = leader.not_enough_after_append()
            if error is not None:
                self._commit_waiters.fail(error)
        if self._deletion_waiters:
            self._update_low_watermark()

    def _update_high_watermark(self, leader: PartitionLeader) -> None:
        if leader.high_watermark > self.high_watermark:
            self._committed_to(leader.high_watermark)

    # Deleting from the start

    @property
    def low_watermark(self) -> int:
        return self._leader.low_watermark if self._leader is not None else self.log.log_start_offset

    def when_deleted(self, offset: int, callback: OnCommitted) -> CommitWaiter | None:
        """Calls back when no live replica has records before `offset` any more."""
        self._notify_followers()
        if self.low_watermark >= offset:
            callback(None)
            return None
        waiter = CommitWaiter(offset, callback)
        self._deletion_waiters = [each for each in self._deletion_waiters if each.is_waiting]
        self._deletion_waiters.append(waiter)
        return waiter

    def _update_low_watermark(self) -> None:
        low = self.low_watermark
        waiting, self._deletion_waiters = self._deletion_waiters, []
        for waiter in waiting:
            if waiter.offset <= low:
                waiter.tell(None)
            elif waiter.is_waiting:
                self._deletion_waiters.append(waiter)

    # Following

    @property
    def follower(self) -> PartitionFollower | None:
        """The follower's state, made when it first fetches; None in any other role."""
        if self.role is not Role.FOLLOWER or self.leader_id == NO_LEADER:
            return None
        if self._follower is None:
            log = self.log
            self._cut_damage(log)
            log.high_watermark = self.high_watermark
            self._follower = PartitionFollower(log, self.leader_id, self.leader_epoch, self.high_watermark)
        return self._follower

    def _cut_damage(self, log: PartitionLog) -> None:
        """Remove records that recovery has kept behind a damaged or lost part: the leader has all of them.

        Done before the first fetch, whose offset acknowledges everything before it.
        """
        since = log.damaged_from
        if since is None:
            return
        _log.warning("damage_cut partition=%s from=%d to=%d", self.topic_partition, log.log_end_offset, since)
        if since < log.log_start_offset:
            log.restart_at(since, self.environment.clock.now_ms())
        else:
            log.truncate_to(since)
        self.high_watermark = min(self.high_watermark, log.log_end_offset)

    def followed(self) -> None:
        """A response of the leader has changed the follower's state: readers may see more, or less after a
        truncation."""
        follower, log = self._follower, self._log
        if follower is None or log is None or follower.high_watermark == self.high_watermark:
            return
        self.high_watermark = log.high_watermark = follower.high_watermark
        for waiter in tuple(self.waiters):
            waiter.wake()
