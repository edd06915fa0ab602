"""While the disk of one node fails, others lead: every partition takes writes again within a bounded time."""

from collections.abc import Callable

from millstream.simulator.cluster import Cluster
from millstream.simulator.violation import Violation

BOUND_SECONDS = 3.0
"""Virtual time. Errors are met with the next write; what follows takes a few messages, or one election."""


class WritesGoOn:
    """`silent` names the partitions that have taken no write since a time."""

    def __init__(self, cluster: Cluster, silent: Callable[[float], list[str]]) -> None:
        self._cluster = cluster
        self._silent = silent

    def check(self, now: float) -> None:
        failing = self._cluster.failing_disk
        if failing is None or now < failing[1] + BOUND_SECONDS:
            return
        node_id, since = failing
        if silent := self._silent(since):
            raise Violation(
                "WritesGoOn",
                f"{now - since:.1f} s after the disk of node {node_id} began to fail: no write in {', '.join(silent)}",
            )
