"""Moves of replicas between brokers: plans for a cluster, their throttle, and carrying them out, a few at a time.

The cluster moves the replicas, and continues if the program that started them ends. The rest of the plan is then not
started, and the throttle stays: `remove_throttle` removes it.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from millstream.admin.balance import (
    BrokerSlot,
    PartitionLoad,
    PlannedReassignment,
    plan_assignment,
    plan_balance,
    plan_drain,
)
from millstream.admin.cluster import ClusterAdmin, ClusterState, Reassignment
from millstream.admin.errors import AdminError, NotFoundError
from millstream.admin.topics import ConfigResource, TopicAdmin
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.raw_client import Cluster, TopicPartition

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"
MOVES_AT_ONCE = 20
_POLL_INTERVAL_SECONDS = 0.2


class MoveError(AdminError):
    """A plan that is not possible, or a move that the cluster refuses."""

    error = ErrorCode.INVALID_REPLICA_ASSIGNMENT


# Plans


def available_brokers(cluster: ClusterState) -> list[BrokerSlot]:
    """The brokers to which replicas can be moved."""
    return [
        BrokerSlot(id=broker.id, rack=broker.rack, machine=broker.machine)
        for broker in cluster.live
        if broker.id not in cluster.cordoned
    ]


def loads(cluster: ClusterState) -> list[PartitionLoad]:
    return [
        PartitionLoad(
            topic=each.topic,
            partition=each.index,
            replicas=each.replicas,
            size_bytes=cluster.size(each),
            internal=each.is_internal,
        )
        for each in cluster.partitions
    ]


def balance_plan(cluster: ClusterState) -> list[PlannedReassignment]:
    """What balances replicas, data and leaders over the live brokers; empty if they are balanced."""
    return plan_balance(available_brokers(cluster), loads(cluster))


def drain_plan(cluster: ClusterState, brokers: Sequence[int]) -> list[PlannedReassignment]:
    """What empties these brokers. MoveError if too few others are left."""
    try:
        return plan_drain(available_brokers(cluster), loads(cluster), *brokers)
    except KafkaError as error:
        raise MoveError(error.message) from None


def assignment_plan(
    cluster: ClusterState,
    partitions: Collection[TopicPartition],
    targets: Collection[int] | None = None,
    replication_factor: int | None = None,
) -> list[PlannedReassignment]:
    """What places these partitions on the targets, with so many replicas each; None: as they are. MoveError if too few
    targets are left, NotFoundError for a target that does not exist."""
    slots = available_brokers(cluster)
    usable = {slot.id for slot in slots}
    for broker in targets or ():
        if broker not in usable:
            state = "is fenced" if cluster.broker(broker).fenced else "is cordoned"
            raise MoveError(f"broker {broker} {state} and gets no new replicas: choose others")
    index_of = {each.topic_partition: index for index, each in enumerate(cluster.partitions)}
    for each in partitions:
        if each not in index_of:
            raise NotFoundError(f"there is no partition {each}")
    try:
        return plan_assignment(
            slots, loads(cluster), [index_of[each] for each in partitions], targets, replication_factor
        )
    except KafkaError as error:
        raise MoveError(error.message) from None


# The throttle


def set_throttle(
    admin: ClusterAdmin,
    brokers: Iterable[int],
    moves: Mapping[TopicPartition, tuple[Sequence[int], Sequence[int]]],
    rate: int,
) -> None:
    """Limits moves to a rate in bytes a second, on each broker. The moves have the brokers that send a partition, and
    those that receive it."""
    leaders: dict[str, list[str]] = {}
    followers: dict[str, list[str]] = {}
    for (topic, index), (senders, receivers) in moves.items():
        leaders.setdefault(topic, []).extend(f"{index}:{each}" for each in senders)
        followers.setdefault(topic, []).extend(f"{index}:{each}" for each in receivers)
    topics: dict[str, dict[str, str | None]] = {
        topic: {LEADER_REPLICAS: ",".join(leaders[topic]), FOLLOWER_REPLICAS: ",".join(followers[topic])}
        for topic in leaders
    }
    admin.alter_configs(topics, {each: {LEADER_RATE: str(rate), FOLLOWER_RATE: str(rate)} for each in brokers})


def remove_throttle(admin: ClusterAdmin, brokers: Iterable[int], topics: Iterable[str]) -> None:
    """Removes the limit of these brokers and topics."""
    no_replicas: Mapping[str, str | None] = {LEADER_REPLICAS: None, FOLLOWER_REPLICAS: None}
    no_rate: Mapping[str, str | None] = {LEADER_RATE: None, FOLLOWER_RATE: None}
    admin.alter_configs(dict.fromkeys(topics, no_replicas), dict.fromkeys(brokers, no_rate))


def read_throttle(cluster: Cluster, brokers: Iterable[int]) -> dict[int, int]:
    """The limit of each broker that has one: the lower of the rates for sending and receiving."""
    admin = TopicAdmin(cluster)
    found = {}
    for broker in brokers:
        entries = admin.settings(ConfigResource.BROKER, str(broker), [LEADER_RATE, FOLLOWER_RATE])
        rates = [int(each.value) for each in entries if each.is_own and each.value is not None]
        if rates:
            found[broker] = min(rates)
    return found


def throttled_topics(admin: ClusterAdmin, topics: Sequence[str]) -> list[str]:
    """The topics with replicas that are throttled."""
    found = admin.topic_settings(topics, [LEADER_REPLICAS, FOLLOWER_REPLICAS])
    return [topic for topic, values in found.items() if any(values.values())]


def senders_and_receivers(move: Reassignment) -> tuple[Sequence[int], Sequence[int]]:
    """Of a running move, for `set_throttle`."""
    return [each for each in move.replicas if each not in move.adding], move.adding


# Carrying out


def _nothing(*_: object) -> None:
    pass


def _never() -> bool:
    return False


class Mover:
    """Carries out plans. `report` gets the number of partitions that have moved, and of all; `note` gets texts.

    When `is_stopped` is true no further move is started; those that were started are waited for.
    """

    def __init__(
        self,
        admin: ClusterAdmin,
        cluster: ClusterState,
        throttle: int | None = None,
        *,
        report: Callable[[int, int], None] = _nothing,
        note: Callable[[str], None] = _nothing,
        is_stopped: Callable[[], bool] = _never,
    ) -> None:
        """`throttle` is in bytes a second for each broker; None for no limit."""
        self._admin = admin
        self._brokers = [each.id for each in cluster.live]
        self.throttle = throttle
        """May be changed while a plan is carried out; then call `set_throttle` or `remove_throttle` too."""
        self._report = report
        self._note = note
        self._is_stopped = is_stopped

    def settle(self) -> int:
        """Waits for moves that were started before, and removes their throttle; returns their number."""
        moving = [each.partition for each in self._admin.reassignments()]
        if moving:
            self._note(f"{len(moving)} partitions are being moved already: waiting for them first")
            self._watch({}, moving)
            self._remove_throttle(moving)
        return len(moving)

    def move(self, plan: Sequence[PlannedReassignment]) -> None:
        """Returns when all replicas are moved and the preferred leaders are elected. MoveError if one is refused."""
        targets = {TopicPartition(each.topic, each.partition): each.replicas for each in plan}
        if self.throttle is not None:
            moves = {TopicPartition(each.topic, each.partition): (each.before, each.adding) for each in plan}
            set_throttle(self._admin, self._brokers, moves, self.throttle)
        self._watch(targets, [])
        if self.throttle is not None:
            self._remove_throttle(targets)
        refused = self._admin.elect_preferred(targets) if targets else {}
        for partition, reason in refused.items():
            self._note(f"{partition} keeps its leader for now: {reason}")

    def _watch(self, targets: Mapping[TopicPartition, tuple[int, ...]], moving_now: list[TopicPartition]) -> None:
        waiting = list(targets)[::-1]
        moving = set(moving_now)
        total = len(waiting) + len(moving)
        not_started = 0
        while waiting or moving:
            if self._is_stopped():
                not_started += len(waiting)
                waiting.clear()
            some = [waiting.pop() for _ in range(min(max(0, MOVES_AT_ONCE - len(moving)), len(waiting)))]
            if some:
                self._start({partition: targets[partition] for partition in some})
                moving.update(some)
            moving &= {each.partition for each in self._admin.reassignments()}
            self._report(total - not_started - len(waiting) - len(moving), total)
            if moving:
                time.sleep(_POLL_INTERVAL_SECONDS)

    def _start(self, targets: Mapping[TopicPartition, tuple[int, ...]]) -> None:
        refused = self._admin.reassign(targets)
        if refused:
            partition, reason = next(iter(refused.items()))
            raise MoveError(f"{partition} cannot be moved: {reason}; moves that were started continue")

    def _remove_throttle(self, moved: Collection[TopicPartition]) -> None:
        remove_throttle(self._admin, self._brokers, dict.fromkeys(each.topic for each in moved))
