"""The faults that this benchmark measures: each hits one node and can be undone."""

from __future__ import annotations

from collections.abc import Callable

from tests.system.chaos.cluster import Cluster


def _others(cluster: Cluster, victim: int) -> list[int]:
    return [number for number in cluster.nodes if number != victim]


def stop(cluster: Cluster, victim: int) -> None:
    """SIGSTOP: the process does not run, and its kernel still takes bytes."""
    cluster.nodes[victim].pause()


def isolate(cluster: Cluster, victim: int) -> None:
    """Nothing between this node and the other nodes gets through. Clients reach every node."""
    mute(cluster, victim)
    deaf(cluster, victim)


def mute(cluster: Cluster, victim: int) -> None:
    """What the node sends to other nodes is lost."""
    for other in _others(cluster, victim):
        cluster.network.cut(victim, other)


def deaf(cluster: Cluster, victim: int) -> None:
    """What other nodes send to this node is lost."""
    for other in _others(cluster, victim):
        cluster.network.cut(other, victim)


def part(cluster: Cluster, victim: int) -> None:
    """Of the nodes that are not the controller, this one and another do not reach each other."""
    other = next(number for number in _others(cluster, victim) if number != cluster.controller())
    cluster.network.cut(victim, other)
    cluster.network.cut(other, victim)


def scatter(cluster: Cluster, victim: int) -> None:
    """No node reaches any other."""
    for sender in cluster.nodes:
        for receiver in cluster.nodes:
            if sender != receiver:
                cluster.network.cut(sender, receiver)


def heal(cluster: Cluster, victim: int) -> None:
    cluster.network.heal()
    cluster.nodes[victim].resume()


FAULTS: dict[str, Callable[[Cluster, int], None]] = {"stop": stop, "isolate": isolate, "mute": mute, "deaf": deaf}
CUTS: dict[str, Callable[[Cluster, int], None]] = {"part": part, "isolate": isolate, "scatter": scatter}
NEEDS_NAMESPACES = {"isolate", "mute", "deaf"}
