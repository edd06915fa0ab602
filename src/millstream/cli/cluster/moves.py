"""Moves replicas by a plan: a few at a time, throttled if wanted, until the last one has moved.

The cluster moves them, and continues if the command is interrupted. So a later command first waits for the moves of an
earlier one and removes its throttle.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from millstream.cli.options import open_cluster
from millstream.cli.terminal import CommandFailedError, note, progress
from millstream.node.metadata.balance import BrokerSlot, PartitionLoad, PlannedReassignment

if TYPE_CHECKING:
    from millstream.admin.cluster import ClusterAdmin, ClusterState
    from millstream.raw_client import TopicPartition

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"
MOVES_AT_ONCE = 20
_POLL_INTERVAL_S = 0.2


def open_admin(bootstrap: str, timeout: float, settings: list[str] | None) -> "ClusterAdmin":
    """The administration of the cluster that the shared options name. Requests are not repeated."""
    from millstream.admin.cluster import ClusterAdmin

    return ClusterAdmin(open_cluster(bootstrap, timeout, settings), attempts=1)


def available_brokers(cluster: "ClusterState") -> list[BrokerSlot]:
    """The brokers to which replicas can be moved."""
    return [
        BrokerSlot(id=broker.id, rack=broker.rack, machine=broker.machine)
        for broker in cluster.live
        if broker.id not in cluster.cordoned
    ]


def loads(cluster: "ClusterState") -> list[PartitionLoad]:
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


class Mover:
    def __init__(self, admin: "ClusterAdmin", cluster: "ClusterState", throttle: int | None) -> None:
        """`throttle` is in bytes a second for each broker; None for no limit."""
        self._admin = admin
        self._cluster = cluster
        self._throttle = throttle
        self._before = {each.topic_partition: each.replicas for each in cluster.partitions}

    def settle(self) -> int:
        """Waits for moves that were started before; returns their number."""
        moving = [each.partition for each in self._admin.reassignments()]
        if moving:
            note(f"{len(moving)} partitions are being moved already: waiting for them first")
            self._watch({}, moving)
            self._remove_throttle(moving)
        return len(moving)

    def move(self, plan: Sequence[PlannedReassignment]) -> None:
        """Returns when all replicas are moved and the preferred leaders are elected."""
        from millstream.raw_client import TopicPartition

        targets = {TopicPartition(each.topic, each.partition): each.replicas for each in plan}
        if self._throttle is not None:
            self._set_throttle(targets)
        try:
            self._watch(targets, [])
        except KeyboardInterrupt:
            note("the cluster finishes the moves that were started; the same command waits for them and does the rest")
            raise
        if self._throttle is not None:
            self._remove_throttle(targets)
        refused = self._admin.elect_preferred(targets) if targets else {}
        for partition, reason in refused.items():
            note(f"{partition} keeps its leader for now: {reason}")

    def _watch(self, targets: "Mapping[TopicPartition, tuple[int, ...]]", moving_now: "list[TopicPartition]") -> None:
        waiting = list(targets)[::-1]
        moving = set(moving_now)
        total = len(waiting) + len(moving)
        with progress() as display:
            task = display.add_task("partitions", total=total, info="") if display is not None else None
            while waiting or moving:
                room = max(0, MOVES_AT_ONCE - len(moving))
                some = [waiting.pop() for _ in range(min(room, len(waiting)))]
                if some:
                    self._start({partition: targets[partition] for partition in some})
                    moving.update(some)
                moving &= {each.partition for each in self._admin.reassignments()}
                if display is not None and task is not None:
                    display.update(task, completed=total - len(waiting) - len(moving))
                if moving:
                    time.sleep(_POLL_INTERVAL_S)

    def _start(self, targets: "Mapping[TopicPartition, tuple[int, ...]]") -> None:
        refused = self._admin.reassign(targets)
        if refused:
            partition, reason = next(iter(refused.items()))
            raise CommandFailedError(f"{partition} cannot be moved: {reason}; moves that were started continue")

    # The throttle

    def _set_throttle(self, targets: "Mapping[TopicPartition, tuple[int, ...]]") -> None:
        leaders: dict[str, list[str]] = {}
        followers: dict[str, list[str]] = {}
        for partition, replicas in targets.items():
            topic, index = partition
            before = self._before.get(partition, ())
            leaders.setdefault(topic, []).extend(f"{index}:{each}" for each in before)
            followers.setdefault(topic, []).extend(f"{index}:{each}" for each in replicas if each not in before)
        topics: dict[str, dict[str, str | None]] = {
            topic: {LEADER_REPLICAS: ",".join(leaders[topic]), FOLLOWER_REPLICAS: ",".join(followers[topic])}
            for topic in leaders
        }
        rate = str(self._throttle)
        brokers: dict[int, dict[str, str | None]] = {
            each.id: {LEADER_RATE: rate, FOLLOWER_RATE: rate} for each in self._cluster.live
        }
        self._admin.alter_configs(topics, brokers)

    def _remove_throttle(self, moved: "Collection[TopicPartition]") -> None:
        topics: dict[str, dict[str, str | None]] = {
            topic: {LEADER_REPLICAS: None, FOLLOWER_REPLICAS: None}
            for topic in dict.fromkeys(each.topic for each in moved)
        }
        brokers: dict[int, dict[str, str | None]] = {
            each.id: {LEADER_RATE: None, FOLLOWER_RATE: None} for each in self._cluster.live
        }
        self._admin.alter_configs(topics, brokers)
