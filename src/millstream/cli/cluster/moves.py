"""Moves replicas as a plan says: a few at a time, throttled if wanted, watched until the last is where it belongs.

The cluster does the moving and goes on with it whatever becomes of the command. So a command that comes later first
waits for what an earlier one began, and takes its throttle back.
"""

import time
from collections.abc import Sequence

from millstream.cli.cluster_reading import Cluster, ClusterAdmin, Place
from millstream.cli.terminal import CommandFailedError, note, progress
from millstream.node.metadata.balance import BrokerPlace, PartitionLoad, PlannedReassignment

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"
MOVES_AT_ONCE = 20
_POLL_S = 0.2


def places(cluster: Cluster) -> list[BrokerPlace]:
    """The brokers that replicas can be moved to."""
    return [BrokerPlace(id=broker.id, rack=broker.rack) for broker in cluster.live if broker.id not in cluster.cordoned]


def loads(cluster: Cluster) -> list[PartitionLoad]:
    return [
        PartitionLoad(
            topic=each.topic,
            partition=each.number,
            replicas=each.replicas,
            size_bytes=cluster.size(each),
            internal=each.is_internal,
        )
        for each in cluster.partitions
    ]


class Mover:
    def __init__(self, admin: ClusterAdmin, cluster: Cluster, throttle: int | None) -> None:
        """`throttle` is in bytes a second for each broker; None for as fast as it goes."""
        self._admin = admin
        self._cluster = cluster
        self._throttle = throttle
        self._before = {each.place: each.replicas for each in cluster.partitions}

    def settle(self) -> int:
        """Waits for moves that others began; how many there were."""
        under_way = list(self._admin.reassignments())
        if under_way:
            note(f"{len(under_way)} partitions are on their way already: waiting for them first")
            self._watch([], under_way)
            self._release(under_way)
        return len(under_way)

    def move(self, plan: Sequence[PlannedReassignment]) -> None:
        """Returns when everything is where the plan says and is led as it should be."""
        wanted = [((each.topic, each.partition), each.replicas) for each in plan]
        if self._throttle is not None:
            self._hold_back(wanted)
        try:
            self._watch(wanted, [])
        except KeyboardInterrupt:
            note("the moves that were begun go on in the cluster; the same command waits for them and does the rest")
            raise
        if self._throttle is not None:
            self._release([place for place, _ in wanted])
        refused = self._admin.elect_preferred([place for place, _ in wanted]) if wanted else {}
        for (topic, number), why in refused.items():
            note(f"{topic}-{number} keeps its leader for now: {why}")

    def _watch(self, wanted: Sequence[tuple[Place, tuple[int, ...]]], under_way: Sequence[Place]) -> None:
        waiting = list(reversed(wanted))
        moving = set(under_way)
        total = len(waiting) + len(moving)
        with progress() as display:
            task = display.add_task("partitions", total=total, info="") if display is not None else None
            while waiting or moving:
                room = max(0, MOVES_AT_ONCE - len(moving))
                some = [waiting.pop() for _ in range(min(room, len(waiting)))]
                if some:
                    self._begin(some)
                    moving.update(place for place, _ in some)
                moving &= self._admin.reassignments().keys()
                if display is not None and task is not None:
                    display.update(task, completed=total - len(waiting) - len(moving))
                if moving:
                    time.sleep(_POLL_S)

    def _begin(self, some: Sequence[tuple[Place, tuple[int, ...]]]) -> None:
        refused = self._admin.reassign(some)
        if refused:
            (topic, number), why = next(iter(refused.items()))
            raise CommandFailedError(f"{topic}-{number} cannot be moved: {why}; what was begun before goes on")

    # The throttle

    def _hold_back(self, wanted: Sequence[tuple[Place, tuple[int, ...]]]) -> None:
        leaders: dict[str, list[str]] = {}
        followers: dict[str, list[str]] = {}
        for (topic, number), replicas in wanted:
            before = self._before.get((topic, number), ())
            leaders.setdefault(topic, []).extend(f"{number}:{each}" for each in before)
            followers.setdefault(topic, []).extend(f"{number}:{each}" for each in replicas if each not in before)
        topics: dict[str, dict[str, str | None]] = {
            topic: {LEADER_REPLICAS: ",".join(leaders[topic]), FOLLOWER_REPLICAS: ",".join(followers[topic])}
            for topic in leaders
        }
        rate = str(self._throttle)
        brokers: dict[int, dict[str, str | None]] = {
            each.id: {LEADER_RATE: rate, FOLLOWER_RATE: rate} for each in self._cluster.live
        }
        self._admin.alter_configs(topics, brokers)

    def _release(self, moved: Sequence[Place]) -> None:
        topics: dict[str, dict[str, str | None]] = {
            topic: {LEADER_REPLICAS: None, FOLLOWER_REPLICAS: None}
            for topic in dict.fromkeys(name for name, _ in moved)
        }
        brokers: dict[int, dict[str, str | None]] = {
            each.id: {LEADER_RATE: None, FOLLOWER_RATE: None} for each in self._cluster.live
        }
        self._admin.alter_configs(topics, brokers)
