"""Death of a broker that leads 1,000 partitions: the time until metadata names a new leader for each of them.

Counted from kill -9 to the response of a surviving broker that is not the controller; default settings, so it contains
the time until the death is noticed. The rest of it, from the first new leader to the last, is the election itself.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar

from benchmarks.compare.cluster_target import ClusterTarget
from benchmarks.compare.cluster_topic import controller_of, replicated_topic, rows_at, wait_until_whole
from benchmarks.compare.measure import Load, Measure, Scale
from benchmarks.compare.target import Target

_PARTITIONS = 1_000
_TIMEOUT_SECONDS = 120.0


class ClusterElection(Load):
    name: ClassVar[str] = "cluster-election"
    title: ClassVar[str] = "Election of 1,000 leaders"
    measures: Sequence[Measure] = (
        Measure("all", "kill -9 of the leader of 1,000 partitions to the last new leader", "s", "lower", 1.0),
        Measure("spread", "from the first of 1,000 new leaders to the last", "s", "lower", 1.0),
    )

    def run(self, target: Target, scale: Scale) -> dict[str, float]:
        assert isinstance(target, ClusterTarget)
        count = scale.records(_PARTITIONS, least=10)
        controller = controller_of(target)
        victim, witness = (node_id for node_id in target.addresses if node_id != controller)
        with replicated_topic(target, count, leader=victim) as topic:
            killed_at = time.monotonic()
            target.kill(victim)
            try:
                first_s, last_s = _watch(target, topic, witness, victim, killed_at)
            finally:
                target.start_node(victim)
            wait_until_whole(target, topic, count)
        return {"all": last_s, "spread": last_s - first_s}


def _watch(target: ClusterTarget, topic: str, witness: int, victim: int, killed_at: float) -> tuple[float, float]:
    first_s: float | None = None
    before_s = 0.0
    while True:
        rows = rows_at(target, witness, topic)
        seconds = time.monotonic() - killed_at
        moved = sum(row.leader not in (victim, -1) for row in rows.values())
        if moved and first_s is None:
            # It happened since the look before this one.
            first_s = before_s if moved < len(rows) else seconds
        if moved == len(rows) and first_s is not None:
            return first_s, seconds
        if seconds > _TIMEOUT_SECONDS:
            raise RuntimeError(f"{target.name}: {len(rows) - moved} partitions without a leader after {seconds:.0f} s")
        before_s = seconds
        time.sleep(0.005)
