"""The kills: a client, a coordinator, a leader, everyone; and zombies that wake up beside their successors.

Each picks its victim by chance when it strikes. Beside these, every copier kills itself now and then at some point of a
transaction.
"""

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from tests.system.chaos.cluster import Cluster
from tests.system.chaos.nodes import Node
from tests.system.exactly_once.lanes import Lane

TRANSACTION, GROUP = 1, 0
"""Kinds of coordinator, as FindCoordinator has them."""


class Strike(ABC):
    """One fault, once."""

    name: ClassVar[str]
    hold_s: ClassVar[float] = 3.0
    stale_reads_allowed: ClassVar[bool] = False
    """Whether a deposed leader may be asked that does not know it yet: Kafka lets it serve from what it has."""

    def __init__(self, cluster: Cluster, lanes: Sequence[Lane], chance: random.Random) -> None:
        self.cluster = cluster
        self.lanes = lanes
        self.random = chance

    @abstractmethod
    def strike(self) -> str:
        """Do it; returns what was done to which process."""

    def heal(self) -> None:
        """Nodes that are down come back; copiers are tended all the time."""
        for node in self.cluster.nodes.values():
            if not node.running:
                node.start()
        for node in self.cluster.nodes.values():
            node.wait_until_it_responds()


class _KillNode(Strike):
    @abstractmethod
    def victim(self, lane: Lane) -> tuple[Node, str]: ...

    def strike(self) -> str:
        node, why = self.victim(self.random.choice(self.lanes))
        time.sleep(self.random.uniform(0, 0.2))
        node.kill()
        return f"node {node.number}, {why}"


class KillTransactionCoordinator(_KillNode):
    name = "kill -9 of a transaction coordinator"

    def victim(self, lane: Lane) -> tuple[Node, str]:
        transactional_id = self.random.choice(sorted(lane.copiers))
        number = self.cluster.coordinator(transactional_id, TRANSACTION)
        return self.cluster.nodes[number], f"of {transactional_id}"


class KillGroupCoordinator(_KillNode):
    name = "kill -9 of a group coordinator"

    def victim(self, lane: Lane) -> tuple[Node, str]:
        return self.cluster.nodes[self.cluster.coordinator(lane.group, GROUP)], f"of {lane.group}"


class KillLeader(_KillNode):
    name = "kill -9 of a leader of the output"

    def victim(self, lane: Lane) -> tuple[Node, str]:
        leaders = self.cluster.leaders(lane.output)
        partition = self.random.choice(sorted(leaders))
        return self.cluster.nodes[leaders[partition]], f"of {lane.output}-{partition}"


class KillAndStartAtOnce(KillLeader):
    name = "kill -9 of a leader, started at once"
    hold_s = 0.0


class KillEverybody(Strike):
    name = "kill -9 of all nodes"
    hold_s = 1.0

    def strike(self) -> str:
        for number in self.random.sample(sorted(self.cluster.nodes), len(self.cluster.nodes)):
            self.cluster.nodes[number].kill()
        return "all"


class PauseTransactionCoordinator(Strike):
    """For longer than its session: others take over what it coordinates and leads, and then it goes on."""

    name = "pause of a transaction coordinator"
    hold_s = 6.0
    stale_reads_allowed = True

    def strike(self) -> str:
        transactional_id = self.random.choice(sorted(self.random.choice(self.lanes).copiers))
        self._node = self.cluster.nodes[self.cluster.coordinator(transactional_id, TRANSACTION)]
        self._node.pause()
        return f"node {self._node.number}, of {transactional_id}"

    def heal(self) -> None:
        self._node.resume()


class KillCopier(Strike):
    name = "kill -9 of copiers"
    hold_s = 2.0

    def strike(self) -> str:
        names = []
        for _ in range(3):
            lane = self.random.choice(self.lanes)
            copier = lane.some_copier(self.random)
            copier.kill()
            lane.tend()
            names.append(copier.name)
            time.sleep(self.random.uniform(0, 0.5))
        return ", ".join(names)


class Zombie(Strike):
    """A copier stops in the middle of whatever it does; another takes its transactional id; then it goes on."""

    name = "a copier wakes up beside its successor"
    hold_s = 7.0

    def strike(self) -> str:
        self._lane = self.random.choice(self.lanes)
        transactional_id = self.random.choice(sorted(self._lane.copiers))
        self._lane.copiers[transactional_id].pause()
        self._zombie = self._lane.replace(transactional_id)
        return self._zombie.name

    def heal(self) -> None:
        """It finds out that it is fenced, and ends; with nothing to do it may not notice, and is sent away."""
        self._zombie.resume()
        time.sleep(3.0)
        if self._zombie.running:
            self._zombie.leave()
        self._lane.bury(self._zombie)


ALL: tuple[type[Strike], ...] = (
    KillTransactionCoordinator,
    KillGroupCoordinator,
    KillLeader,
    KillAndStartAtOnce,
    KillEverybody,
    PauseTransactionCoordinator,
    KillCopier,
    Zombie,
)
