"""The leader of one partition: how far each follower is, what is committed, and who is in sync.

Promises: the high watermark never goes back, and passes a record only when every member of the *maximal* in-sync set
has it (the leader itself on its disk, where the topic asks for that): those the controller has confirmed and those we
have proposed to it. A member we would like to be rid of counts
until the controller has agreed, since until then it may be elected. One proposal is in flight at a time.

    in sync ──(behind for replica.lag.time.max.ms)──> shrink proposed ──(confirmed)──> out of sync
    out of sync ──(has all that is committed, and fetched in this epoch)──> growth proposed ──(confirmed)──> in sync

Times are milliseconds of a clock that never jumps. Deliberately elsewhere: the log, sending proposals, answering
clients.
"""

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple, Protocol

from millstream.formats.model.errors import ErrorCode, KafkaError

UNKNOWN = -1
GROWTH_RETRY_MS = 200
"""After the controller refused a growth: its reason may be one that our image does not show yet."""


class LedLog(Protocol):
    """The log as its leader sees it."""

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...


class ReplicaContext(Protocol):
    """What the leader must know of the cluster, and of the topic's settings, as they are at the moment."""

    def is_eligible(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether the broker, in this incarnation, may be in sync: it is registered, not fenced, not shutting down."""
        ...

    def is_alive(self, broker_id: int) -> bool: ...

    def broker_epoch(self) -> int:
        """That of this node."""
        ...

    def lag_max_ms(self) -> int: ...

    def min_in_sync(self) -> int: ...

    def own_end(self) -> int:
        """Up to where the leader's own log counts: its end, or what is on disk where nothing else may be shown."""
        ...


class Follower:
    """What the leader knows of one other replica."""

    __slots__ = ("broker_epoch", "caught_up_ms", "fetched_ms", "leader_end_then", "log_end", "log_start")

    def __init__(self, caught_up_ms: int | None) -> None:
        self.log_start = UNKNOWN
        self.log_end = UNKNOWN
        self.broker_epoch = UNKNOWN
        self.caught_up_ms = caught_up_ms
        """When it last had everything that the leader had; None if that was never seen."""
        self.fetched_ms = 0
        self.leader_end_then = UNKNOWN

    def fetched(self, offset: int, log_start: int, broker_epoch: int, leader_end: int, now_ms: int) -> None:
        if offset >= leader_end:
            self.caught_up_ms = now_ms
        elif self.leader_end_then != UNKNOWN and offset >= self.leader_end_then:
            # It now has what the leader had when it fetched before, so it was level with the leader then.
            self.caught_up_ms = max(self.caught_up_ms or 0, self.fetched_ms)
        self.log_start = log_start
        self.log_end = offset
        self.broker_epoch = broker_epoch
        self.leader_end_then = max(leader_end, self.leader_end_then)
        self.fetched_ms = now_ms

    def level(self, now_ms: int) -> None:
        """It fetched once more where it was, and that was still the leader's end."""
        self.caught_up_ms = self.fetched_ms = now_ms

    def is_caught_up(self, leader_end: int, now_ms: int, lag_max_ms: int) -> bool:
        if self.log_end == leader_end:
            return True
        return self.caught_up_ms is not None and now_ms - self.caught_up_ms <= lag_max_ms


class Proposal(NamedTuple):
    """An in-sync set that the controller is asked to confirm, each member with the incarnation we know of it."""

    isr: tuple[tuple[int, int], ...]
    """Broker id and broker epoch, -1 where we do not know it."""
    leader_epoch: int
    partition_epoch: int

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(broker for broker, _ in self.isr)


class Confirmed(NamedTuple):
    """The partition as the controller answers."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]


class NextStep(Enum):
    """What the one who sent a proposal does after the answer."""

    NOTHING = "nothing"
    SEND_AGAIN = "send again"


_REFUSED = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})
"""Nothing was changed. The proposal is off, once that was said twice: the first time may have been of a copy that
overtook another on a second connection, and a proposal that we count no more must never come true."""
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
"""The partition is another than we know. The metadata will tell; until then the proposal counts as if it held."""


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
        """Where this leadership began. A replica that has not got there may lack what an earlier leader committed."""
        self.high_watermark = high_watermark
        self.isr = frozenset(isr)
        self.maximal_isr = self.isr
        self.proposal: Proposal | None = None
        self._refusals = 0
        self._growth_not_before_ms = now_ms
        # A member of the set is given the time to show itself.
        self.followers = {
            replica: Follower(now_ms if replica in self.isr else None) for replica in replicas if replica != node_id
        }
        self._advance(now_ms)

    # How many must have a record

    @property
    def required_in_sync(self) -> int:
        """`min.insync.replicas`, but never more than there are replicas, as in Kafka."""
        return min(self._context.min_in_sync(), len(self.followers) + 1)

    @property
    def is_under_min(self) -> bool:
        return len(self.isr) < self.required_in_sync

    def check_enough_in_sync(self) -> None:
        """Before a write that all in-sync replicas must hold: refuses what too few would."""
        if self.is_under_min:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, self._too_few())

    def not_enough_after_append(self) -> KafkaError | None:
        """What to tell those who wait for a write to be committed, while too few replicas are in sync."""
        if self.is_under_min:
            return KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, self._too_few())
        return None

    def _too_few(self) -> str:
        return f"{self.required_in_sync} replicas must be in sync (min.insync.replicas), {len(self.isr)} are"

    # What moves the high watermark; each of these says whether it did

    def appended(self, now_ms: int) -> bool:
        """The leader's own log has grown, or more of it is on disk."""
        return self._advance(now_ms)

    def fetched(self, broker_id: int, *, offset: int, log_start: int, broker_epoch: int, now_ms: int) -> bool:
        """A follower has everything before `offset`. The caller has seen that its log agrees with ours up to there."""
        follower = self.follower(broker_id, broker_epoch)
        before = follower.log_end
        follower.fetched(offset, log_start, broker_epoch, self._log.log_end_offset, now_ms)
        return follower.log_end != before and self._advance(now_ms)

    def updated(self, *, replicas: Iterable[int], isr: Iterable[int], partition_epoch: int, now_ms: int) -> bool:
        """The metadata tells of the partition, in the same leader epoch."""
        if partition_epoch < self.partition_epoch:
            return False  # the controller's answer came to us before the records of it did
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
        """A smaller `min.insync.replicas`, or no `flush.before.ack`, may let the high watermark go on."""
        return self._advance(now_ms)

    def follower(self, broker_id: int, broker_epoch: int) -> Follower:
        """What is known of a replica; KafkaError if it is none, or speaks for an incarnation that is over."""
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
        """Whether to wait for a replica outside the set: under load it would else run after the end for ever."""
        context = self._context
        return follower.is_caught_up(self._log.log_end_offset, now_ms, context.lag_max_ms()) and context.is_eligible(
            broker_id, follower.broker_epoch
        )

    @property
    def low_watermark(self) -> int:
        """What no live replica has any more: deleted records are gone for good below it."""
        lowest = self._log.log_start_offset
        for broker_id, follower in self.followers.items():
            if follower.log_start < lowest and self._context.is_alive(broker_id):
                lowest = follower.log_start
        return lowest

    # The in-sync set

    def propose(self, now_ms: int) -> Proposal | None:
        """The in-sync set as it should be, where that is another one and no proposal is in flight; now it is."""
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
        """Whether a follower that has just fetched is worth a look at `propose`: cheap, for every fetch."""
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

    def answered(self, proposal: Proposal, error: int, confirmed: Confirmed | None, now_ms: int) -> NextStep:
        """The controller's answer to a proposal. The caller looks at the high watermark afterwards."""
        if self.proposal is not proposal:
            return NextStep.NOTHING  # the metadata was quicker
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
