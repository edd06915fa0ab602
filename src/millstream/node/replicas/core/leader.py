"""The leader of one partition: how far each follower is, which records are committed, and which replicas are in sync.

The high watermark never goes back. It passes a record only when every member of the *maximal* in-sync set has it (the
leader itself on its disk, where the topic requires that): the members that the controller has confirmed, and those of a
proposal. A member to be removed counts until the controller has confirmed that, because it may be elected until then.
One proposal is in flight at a time.

    in sync ──(behind for replica.lag.time.max.ms)──> shrink proposed ──(confirmed)──> out of sync
    out of sync ──(has all that is committed, and fetched in this epoch)──> growth proposed ──(confirmed)──> in sync

Times are milliseconds of a monotonic clock. In other modules: the log, sending proposals, responses to clients.
"""

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple, Protocol

from millstream.formats.model.errors import ErrorCode, KafkaError

UNKNOWN = -1
GROWTH_RETRY_MS = 200
"""Pause after the controller refused a growth: this node may not have the metadata of the reason yet."""


class LedLog(Protocol):
    """The log, as the leader uses it."""

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...


class ReplicaContext(Protocol):
    """The present state of the cluster and of the topic's settings, as the leader uses them."""

    def is_eligible(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether the broker, in this incarnation, may be in sync: it is registered, not fenced, not shutting down."""
        ...

    def is_alive(self, broker_id: int) -> bool: ...

    def broker_epoch(self) -> int:
        """The broker epoch of this node."""
        ...

    def lag_max_ms(self) -> int: ...

    def min_in_sync(self) -> int: ...

    def own_end(self) -> int:
        """The end of the leader's own log, or with `flush.before.ack` its flushed offset."""
        ...


class Follower:
    """The state of one other replica, as the leader knows it."""

    __slots__ = ("broker_epoch", "caught_up_ms", "fetched_ms", "leader_end_then", "log_end", "log_start")

    def __init__(self, caught_up_ms: int | None) -> None:
        self.log_start = UNKNOWN
        self.log_end = UNKNOWN
        self.broker_epoch = UNKNOWN
        self.caught_up_ms = caught_up_ms
        """When it last had all records of the leader; None if never."""
        self.fetched_ms = 0
        self.leader_end_then = UNKNOWN

    def fetched(self, offset: int, log_start: int, broker_epoch: int, leader_end: int, now_ms: int) -> None:
        if offset >= leader_end:
            self.caught_up_ms = now_ms
        elif self.leader_end_then != UNKNOWN and offset >= self.leader_end_then:
            # It has the records up to the leader's end at its fetch before, so it was caught up then.
            self.caught_up_ms = max(self.caught_up_ms or 0, self.fetched_ms)
        self.log_start = log_start
        self.log_end = offset
        self.broker_epoch = broker_epoch
        self.leader_end_then = max(leader_end, self.leader_end_then)
        self.fetched_ms = now_ms

    def note_at_end(self, now_ms: int) -> None:
        """It fetched at the leader's end again."""
        self.caught_up_ms = self.fetched_ms = now_ms

    def is_caught_up(self, leader_end: int, now_ms: int, lag_max_ms: int) -> bool:
        if self.log_end == leader_end:
            return True
        return self.caught_up_ms is not None and now_ms - self.caught_up_ms <= lag_max_ms


class Proposal(NamedTuple):
    """In-sync replicas for the controller to confirm, each with its known broker epoch."""

    isr: tuple[tuple[int, int], ...]
    """Broker id and broker epoch, -1 if unknown."""
    leader_epoch: int
    partition_epoch: int

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(broker for broker, _ in self.isr)


class Confirmed(NamedTuple):
    """The partition in the response of the controller."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]


class NextStep(Enum):
    """What the sender of a proposal does after the response."""

    NOTHING = "nothing"
    SEND_AGAIN = "send again"


_REFUSED = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})
"""Nothing was changed. The proposal is withdrawn after the second such response: the first may be for a copy that
overtook another one on a second connection, and a withdrawn proposal must never be confirmed."""
_OVERTAKEN = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)
"""The partition has changed. Until the metadata arrives, the proposal counts as if it were confirmed."""


class PartitionLeader:
    __slots__ = (
        "_context",
        "_growth_not_before_ms",
        "_log",
        "_refusals",
        "epoch_start",
        "followers",
        "high_watermark",
        "isr",
        "leader_epoch",
        "maximal_isr",
        "node_id",
        "partition_epoch",
        "proposal",
    )

    def __init__(
        self,
        node_id: int,
        log: LedLog,
        context: ReplicaContext,
        *,
        replicas: Iterable[int],
        isr: Iterable[int],
        leader_epoch: int,
        partition_epoch: int,
        high_watermark: int,
        now_ms: int,
    ) -> None:
        self.node_id = node_id
        self._log = log
        self._context = context
        self.leader_epoch = leader_epoch
        self.partition_epoch = partition_epoch
        self.epoch_start = log.log_end_offset
        """The offset where this leadership began. A replica behind it may lack records that an earlier leader
        committed."""
        self.high_watermark = high_watermark
        self.isr = frozenset(isr)
        self.maximal_isr = self.isr
        self.proposal: Proposal | None = None
        self._refusals = 0
        self._growth_not_before_ms = now_ms
        # In-sync replicas have the full lag time for their first fetch.
        self.followers = {
            replica: Follower(now_ms if replica in self.isr else None) for replica in replicas if replica != node_id
        }
        self._advance(now_ms)

    # min.insync.replicas

    @property
    def required_in_sync(self) -> int:
        """`min.insync.replicas`, but never more than there are replicas, as in Kafka."""
        return min(self._context.min_in_sync(), len(self.followers) + 1)

    @property
    def is_under_min(self) -> bool:
        return len(self.isr) < self.required_in_sync

    def check_enough_in_sync(self) -> None:
        """Refuses a write with acks=all if too few replicas are in sync."""
        if self.is_under_min:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, self._too_few())

    def not_enough_after_append(self) -> KafkaError | None:
        """The error for waiters for a commit, while too few replicas are in sync."""
        if self.is_under_min:
            return KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, self._too_few())
        return None

    def _too_few(self) -> str:
        return f"{self.required_in_sync} replicas must be in sync (min.insync.replicas), {len(self.isr)} are"

    # The high watermark; each of these returns whether it moved

    def appended(self, now_ms: int) -> bool:
        """The leader's own log has grown, or more of it is on disk."""
        return self._advance(now_ms)

    def fetched(self, broker_id: int, *, offset: int, log_start: int, broker_epoch: int, now_ms: int) -> bool:
        """A follower has everything before `offset`. The caller has checked that its log agrees up to there."""
        follower = self.follower(broker_id, broker_epoch)
        before = follower.log_end
        follower.fetched(offset, log_start, broker_epoch, self._log.log_end_offset, now_ms)
        return follower.log_end != before and self._advance(now_ms)

    def updated(self, *, replicas: Iterable[int], isr: Iterable[int], partition_epoch: int, now_ms: int) -> bool:
        """The metadata of the partition has changed, in the same leader epoch."""
        if partition_epoch < self.partition_epoch:
            return False  # the controller's response came before the metadata records
        others = [replica for replica in replicas if replica != self.node_id]
        for gone in [replica for replica in self.followers if replica not in others]:
            del self.followers[gone]
        for replica in others:
            if replica not in self.followers:
                self.followers[replica] = Follower(None)
        if partition_epoch > self.partition_epoch:
            self._confirm(frozenset(isr), partition_epoch)
        return self._advance(now_ms)

    def settings_changed(self, now_ms: int) -> bool:
        """After a smaller `min.insync.replicas`, or without `flush.before.ack`, the high watermark may advance."""
        return self._advance(now_ms)

    def follower(self, broker_id: int, broker_epoch: int) -> Follower:
        """The state of a replica; KafkaError if it is none, or its broker epoch is stale."""
        follower = self.followers.get(broker_id)
        if follower is None:
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"broker {broker_id} is not known here as a replica")
        if UNKNOWN < broker_epoch < follower.broker_epoch:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {broker_id} has registered again since")
        return follower

    def _advance(self, now_ms: int) -> bool:
        if self.is_under_min:
            return False
        committed = self._context.own_end()
        for broker_id, follower in self.followers.items():
            if follower.log_end < committed and (
                broker_id in self.maximal_isr or self._may_soon_join(broker_id, follower, now_ms)
            ):
                committed = follower.log_end
        if committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        return True

    def _may_soon_join(self, broker_id: int, follower: Follower, now_ms: int) -> bool:
        """Whether to wait for a replica that is not in sync: else it might never catch up under load."""
        context = self._context
        return follower.is_caught_up(self._log.log_end_offset, now_ms, context.lag_max_ms()) and context.is_eligible(
            broker_id, follower.broker_epoch
        )

    @property
    def low_watermark(self) -> int:
        """The lowest log start offset of live replicas: no replica has records below it."""
        lowest = self._log.log_start_offset
        for broker_id, follower in self.followers.items():
            if follower.log_start < lowest and self._context.is_alive(broker_id):
                lowest = follower.log_start
        return lowest

    # In-sync replicas

    def propose(self, now_ms: int) -> Proposal | None:
        """The in-sync replicas as they should be, if they differ and no proposal is in flight. Then this one is."""
        if self.proposal is not None:
            return None
        members = self.isr - self._out_of_sync(now_ms)
        if members == self.isr and now_ms >= self._growth_not_before_ms:
            members = self.isr.union(self._in_sync_again())
        if members == self.isr:
            return None
        own = self.node_id, self._context.broker_epoch()
        others = [
            (broker, self.followers[broker].broker_epoch if broker in self.followers else UNKNOWN)
            for broker in sorted(members - {self.node_id})
        ]
        self._refusals = 0
        self.proposal = Proposal((own, *others), self.leader_epoch, self.partition_epoch)
        self.maximal_isr = self.isr | members
        return self.proposal

    def wants_growth(self, broker_id: int) -> bool:
        """Whether to call `propose` after a fetch of this follower: a cheap test, for every fetch."""
        return broker_id not in self.isr and self.proposal is None

    def _out_of_sync(self, now_ms: int) -> set[int]:
        end, lag_max_ms = self._log.log_end_offset, self._context.lag_max_ms()
        return {
            broker
            for broker in self.isr
            if broker != self.node_id
            and (broker not in self.followers or not self.followers[broker].is_caught_up(end, now_ms, lag_max_ms))
        }

    def _in_sync_again(self) -> set[int]:
        needed = max(self.high_watermark, self.epoch_start)
        return {
            broker
            for broker, follower in self.followers.items()
            if broker not in self.isr
            and follower.log_end >= needed
            and self._context.is_eligible(broker, follower.broker_epoch)
        }

    def on_response(self, proposal: Proposal, error: int, confirmed: Confirmed | None, now_ms: int) -> NextStep:
        """The controller's response to a proposal. Afterwards the caller checks the high watermark."""
        if self.proposal != proposal:
            return NextStep.NOTHING  # the metadata came first
        if error == ErrorCode.NONE and confirmed is not None:
            if confirmed.leader_epoch == self.leader_epoch and confirmed.partition_epoch >= self.partition_epoch:
                self._confirm(frozenset(confirmed.isr), confirmed.partition_epoch)
                self._advance(now_ms)
            return NextStep.NOTHING
        if error in _REFUSED:
            self._refusals += 1
            if self._refusals < 2:
                return NextStep.SEND_AGAIN
            self.proposal = None
            self.maximal_isr = self.isr
            self._growth_not_before_ms = now_ms + GROWTH_RETRY_MS
            self._advance(now_ms)
            return NextStep.NOTHING
        return NextStep.NOTHING if error in _OVERTAKEN else NextStep.SEND_AGAIN

    def _confirm(self, isr: frozenset[int], partition_epoch: int) -> None:
        self.isr = self.maximal_isr = isr
        self.partition_epoch = partition_epoch
        self.proposal = None
