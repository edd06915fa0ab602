"""Faults of a single node: power cuts at any time and within any write, kills and restarts.

With `flush.before.ack`, no acknowledged record may be lost. Kills and clean restarts are mixed in: data that they leave
unflushed must not be acknowledged before it is on disk.
"""

import random
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

from millstream.simulator.faults import begin_move

if TYPE_CHECKING:
    from millstream.simulator.cluster import Cluster

_NODE = 1
_SLOWNESS = (1.0, 10.0, 40.0, 150.0)
"""Slowness of the disk until the next fault. On a slow disk, more requests wait for it."""
_MOVES = 3
"""Logs that are moved to another log directory before each fault, if the node has several."""


class PowerFault(StrEnum):
    CUT = "power cut"
    CUT_IN_WRITE = "power cut during a write"
    KILL = "kill"
    KILL_IN_WRITE = "kill during a write"
    RESTART = "restart"


_WEIGHTS = {
    PowerFault.CUT: 2,
    PowerFault.CUT_IN_WRITE: 8,
    PowerFault.KILL: 1,
    PowerFault.KILL_IN_WRITE: 3,
    PowerFault.RESTART: 1,
}


class PowerCuts:
    """Injects faults into a single node, one at a time."""

    def __init__(self, cluster: "Cluster", seed: str) -> None:
        self._cluster = cluster
        self._machine = cluster.machines[_NODE]
        self._randomness = random.Random(f"{seed}/power")
        self._mean_gap = self._randomness.choice((0.3, 0.8, 1.5))
        self._is_over = False
        self.done: dict[str, int] = {}
        """How often each fault was injected."""

    def begin(self) -> None:
        self._next()

    def end(self) -> None:
        """Ends all faults and starts the node if it is down."""
        self._is_over = True
        self._cluster.log_event("faults", "all faults end")
        self._machine.disk.heal()
        self._start()

    def _next(self) -> None:
        """Plans the next fault. It may hit a node that is still starting, so that recovery is interrupted too."""
        gap = min(self._randomness.expovariate(1 / self._mean_gap), 3 * self._mean_gap)
        self._cluster.scheduler.after(gap, self._strike)

    def _strike(self) -> None:
        if self._is_over:
            return
        randomness, machine = self._randomness, self._machine
        if not machine.is_up:
            self._next()
            return
        machine.disk.slowness = randomness.choice(_SLOWNESS)
        if self._cluster.disks > 1:
            for _ in range(_MOVES):
                moved = begin_move(self._cluster, _NODE, randomness)
                self._cluster.log_event("faults", f"move: {moved}")
        (fault,) = randomness.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
        self.done[fault] = self.done.get(fault, 0) + 1
        act: dict[PowerFault, Callable[[], None]] = {
            PowerFault.CUT: lambda: self._kill(fault, power_lost=True),
            PowerFault.CUT_IN_WRITE: lambda: self._kill_in_write(fault, power_lost=True),
            PowerFault.KILL: lambda: self._kill(fault, power_lost=False),
            PowerFault.KILL_IN_WRITE: lambda: self._kill_in_write(fault, power_lost=False),
            PowerFault.RESTART: self._restart,
        }
        act[fault]()

    def _kill(self, fault: PowerFault, *, power_lost: bool) -> None:
        self._cluster.log_event("faults", fault)
        self._cluster.kill(_NODE, power_lost=power_lost)
        self._died()

    def _kill_in_write(self, fault: PowerFault, *, power_lost: bool) -> None:
        operations = self._randomness.choice((1, 2, 5, 20, 60))
        operations = self._randomness.randint(1, operations)
        self._cluster.log_event("faults", f"{fault}, {operations} disk changes from now")

        def died() -> None:
            self._cluster.log_event("faults", f"{fault}: now")
            self._died()

        self._machine.kill_within(operations, died, power_lost=lambda: power_lost)

    def _restart(self) -> None:
        process = self._machine.process
        if process is None or not process.ready:
            self._next()
            return
        self._cluster.log_event("faults", "restart")
        self._machine.stop(self._died)

    def _died(self) -> None:
        self._machine.disk.heal()
        self._cluster.scheduler.after(self._randomness.choice((0.0, 0.05, 0.3)), self._start)
        self._next()

    def _start(self) -> None:
        if not self._machine.is_up:
            self._cluster.start_node(_NODE)
