"""A simulated cluster: machines with nodes, which are restarted when they exit, and clients."""

import random
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from millstream.config.broker_config import BrokerConfig
from millstream.config.loading import load_broker_config
from millstream.node.runtime.node import Node
from millstream.node.security.certificates import load
from millstream.simulator.invariants.logs import Decisions
from millstream.simulator.loop import ErrorCallback, Scheduler
from millstream.simulator.machine import Machine, Process, Program
from millstream.simulator.network import Fabric
from millstream.simulator.object_store import SimulatedStore
from millstream.simulator.results import Trace
from millstream.simulator.security import Report, Watch, client_network, secured_settings, tls_settings

CLIENT_PORT, CONTROLLER_PORT, NODE_PORT = 9092, 9093, 9094
_DATA = "/data"
MORE_DISKS = ("/disk2", "/disk3")
"""Further log directories, each on a disk of its own; the metadata log is in the first one."""
_RESTART_SECONDS = 1.0
_SETTINGS = {
    "controller.listener.names": "CONTROLLER",
    "broker.heartbeat.interval.ms": "250",
    "broker.session.timeout.ms": "3000",
    "millstream.broker.suspect.after.ms": "1000",
    "replica.lag.time.max.ms": "3000",
    "replica.fetch.wait.max.ms": "400",
    "replica.fetch.backoff.ms": "200",
    "replica.socket.timeout.ms": "3000",
    "controller.quorum.fetch.timeout.ms": "1000",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.election.backoff.max.ms": "500",
    "controller.quorum.request.timeout.ms": "1000",
    "leader.imbalance.check.interval.seconds": "5",
    "offsets.topic.num.partitions": "1",
    "min.insync.replicas": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "700",
    "log.cleaner.backoff.ms": "400",
    "log.cleaner.min.cleanable.ratio": "0.2",
    "log.retention.check.interval.ms": "1500",
    "millstream.hot.keys.enable": "false",
}
"""Shorter times than Kafka's defaults, so that more happens in a run. The proportions are similar."""

DEFAULT_TIMES = {
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "9000",
    "millstream.broker.suspect.after.ms": "2000",
    "controller.quorum.fetch.timeout.ms": "2000",
    "controller.quorum.election.timeout.ms": "1000",
    "controller.quorum.election.backoff.max.ms": "1000",
    "controller.quorum.request.timeout.ms": "2000",
}
"""The default values of a cluster without settings."""


class Cluster:
    """`roles` has one entry per node: "broker", "controller" or "broker,controller".

    A `Machine` has one node and its folder. With `hardware`, the number of the hardware of each node, several of them
    are one real machine: it loses power and connection as a whole.
    """

    def __init__(
        self,
        seed: str,
        roles: list[str],
        *,
        settings: dict[str, str] | None = None,
        clock_rates: list[float] | None = None,
        trace: Trace | None = None,
        report_error: ErrorCallback,
        scheduler: Scheduler | None = None,
        tls: bool = False,
        secured: Report | None = None,
        store: SimulatedStore | None = None,
        hardware: list[int] | None = None,
        fabric: Fabric | None = None,
        host_name: str = "node",
        disks: int = 1,
        earlier: dict[str, str] | None = None,
    ) -> None:
        """`earlier`: settings of nodes of the earlier version, if there are nodes of two versions.
        `disks`: the log directories of each node. `secured` reports clients that are refused; None for a cluster
        without authentication. Clusters with the same `scheduler` and `fabric`, and other names of hosts, can reach
        each other."""
        self.scheduler = scheduler or Scheduler()
        self.fabric = fabric or Fabric(self.scheduler, seed)
        self.fabric.is_encrypted = tls or secured is not None
        self.trace = trace or Trace(lambda: self.scheduler.now)
        self.disks = disks
        self._seed = seed
        self._report_error = report_error
        self._exits_expected_until: dict[int, float] = {}
        self._power_lost: dict[int, int] = {}
        """The nodes of the machine that lost power last, and their broker epochs then. Empty after they caught up."""
        self._hardware = dict(enumerate(hardware or range(1, len(roles) + 1), 1))
        self.machines: dict[int, Machine] = {}
        self.clients: list[Machine] = []
        self._configs: dict[int, BrokerConfig] = {}
        self._earlier: dict[int, BrokerConfig] = {}
        """The configs of nodes of the earlier version."""
        self._versions = random.Random(f"{seed} versions")
        self._started: set[int] = set()
        self._are_earlier: set[int] = set()
        """The nodes whose last start was one of the earlier version."""
        self._decisions = Decisions()
        self.exits: list[tuple[int, BaseException | None]] = []
        """Nodes that exited although their disks were healthy."""
        self.failing_disk: tuple[int, float] | None = None
        """The node with a failing disk while everything else is healthy, and since when."""
        self.before_kill: Callable[[], None] = lambda: None
        """Called before a node is killed, while its state can still be read."""
        self.broker_epoch: Callable[[int], int] = lambda node_id: 0
        """The broker epoch of a node at the active controller; -1 while there is none."""
        self.out_of_sync: Callable[[], set[int]] = set
        """Nodes missing from some in-sync set at the active controller; all nodes while there is no controller."""
        rates = clock_rates or [1.0] * len(roles)
        hosts = [f"{host_name}{node_id}" for node_id in range(1, len(roles) + 1)]
        voters = [
            f"{node_id}@{host}:{CONTROLLER_PORT}"
            for node_id, (host, role) in enumerate(zip(hosts, roles, strict=True), 1)
            if "controller" in role
        ]
        self.node_hosts = hosts
        self.broker_ids = [node_id for node_id, role in enumerate(roles, 1) if "broker" in role]
        self.voter_ids = [node_id for node_id, role in enumerate(roles, 1) if "controller" in role]
        self.max_down = (len(voters) - 1) // 2
        protocol = "CLIENT" if secured else "SSL" if tls else "PLAINTEXT"
        security = secured_settings() if secured else tls_settings() if tls else {}
        for node_id, (host, role, rate) in enumerate(zip(hosts, roles, rates, strict=True), 1):
            machine = Machine(
                host, self.scheduler, self.fabric, seed, report_error=report_error, clock_rate=rate, store=store
            )
            for root in (_DATA, *MORE_DISKS[: disks - 1]):
                machine.disk.make_root(root)
            machine.on_exit = self._exited(node_id)
            self.machines[node_id] = machine
            own = {"millstream.machine.id": f"m{self._hardware[node_id]}"} if hardware else {}
            mine = security | (settings or {}) | own
            self._configs[node_id] = _config(node_id, host, role, voters, mine, protocol, disks)
            if earlier:
                self._earlier[node_id] = _config(node_id, host, role, voters, mine | earlier, protocol, disks)
        self._client_context: ssl.SSLContext | None = None
        self._secured = secured
        if tls or secured:
            config = self._configs[self.broker_ids[0]]
            self._client_context = load(config.listener(protocol), is_server=False).client

    @property
    def bootstrap(self) -> list[tuple[str, int]]:
        return [(self.machines[node_id].name, CLIENT_PORT) for node_id in self.broker_ids]

    def siblings(self, node_id: int) -> list[int]:
        """The nodes on the machine of a node, itself included."""
        mine = self._hardware[node_id]
        return [each for each, hardware in self._hardware.items() if hardware == mine]

    @property
    def broker_groups(self) -> list[list[int]]:
        """The brokers of each machine."""
        groups: dict[int, list[int]] = {}
        for node_id in self.broker_ids:
            groups.setdefault(self._hardware[node_id], []).append(node_id)
        return list(groups.values())

    def stoppable(self) -> list[int]:
        """The running nodes that can stop without losing the majority: at most `max_down` machines are affected."""
        down = {self._hardware[node_id] for node_id, machine in self.machines.items() if not machine.is_up}
        up = [node_id for node_id, machine in self.machines.items() if machine.is_up]
        if len(down) < self.max_down:
            return up
        # A node of a machine that is affected already takes no further replica of a partition away.
        return [node_id for node_id in up if self._hardware[node_id] in down]

    def log_event(self, where: str, what: str) -> None:
        self.trace.log_event(where, what)

    # Nodes

    def start(self, delays: dict[int, float] | None = None) -> None:
        """`delays`: seconds by which nodes start late."""
        for node_id in self.machines:
            late = (delays or {}).get(node_id, 0.0)
            if late > 0:
                self.scheduler.after(late, self._revive, node_id)
            else:
                self.start_node(node_id)

    def start_node(self, node_id: int) -> None:
        machine, config = self.machines[node_id], self._configs[node_id]
        if node_id in self._earlier and (node_id not in self._started or self._versions.random() < 0.5):
            config = self._earlier[node_id]
            self._are_earlier.add(node_id)
        else:
            self._are_earlier.discard(node_id)
        self._started.add(node_id)
        self.log_event(machine.name, "starts" if config is self._configs[node_id] else "starts as the earlier version")

        def make(process: Process) -> Node:
            node = Node(config, process.environment, process.disk)
            node.failure.add_done_callback(lambda failed: machine.exit(process, RuntimeError(failed.result())))
            return node

        machine.start(make)

    def leave_earlier_version(self) -> list[int]:
        """From now on all starts are of the newest version. Returns the nodes that are to be restarted for it."""
        self._earlier.clear()
        return sorted(self._are_earlier)

    def kill(self, node_id: int, *, power_lost: bool = False) -> None:
        self.before_kill()
        if power_lost:
            self.note_power_loss(node_id)
        for each in self.siblings(node_id) if power_lost else [node_id]:
            self.machines[each].kill(power_lost=power_lost)

    def note_power_loss(self, node_id: int) -> None:
        """Called when a machine loses power. No node of another one is killed until its nodes have caught up."""
        self._power_lost = {each: self.broker_epoch(each) for each in self.siblings(node_id)}

    def cut_all_power(self) -> None:
        """All machines lose power at the same time."""
        self.before_kill()
        for machine in self.machines.values():
            machine.kill(power_lost=True)

    def is_ready(self, node_id: int) -> bool:
        process = self.machines[node_id].process
        return process is not None and process.ready

    def node(self, node_id: int) -> Node | None:
        process = self.machines[node_id].process
        return process.program if process is not None and isinstance(process.program, Node) else None

    def controller(self) -> int:
        """The node that considers itself leader of the quorum; 0 for none."""
        for node_id in self.voter_ids:
            node = self.node(node_id)
            if node is not None and node.quorum is not None and node.quorum.is_started and node.quorum.is_leader:
                return node_id
        return 0

    def leads_partition(self, node_id: int) -> bool:
        """Whether a node considers itself leader of a partition."""
        node = self.node(node_id)
        return node is not None and node.broker is not None and any(each.is_leader for each in node.broker.partitions)

    def deciding_coordinator(self) -> int:
        """A coordinator of a transaction that was decided since the last call; 0 for none."""
        with self.observed():
            return self._decisions.coordinator({node_id: self.node(node_id) for node_id in self.broker_ids})

    def newest_epoch(self) -> int:
        """The highest quorum epoch of any voter."""
        nodes = [self.node(node_id) for node_id in self.voter_ids]
        return max((n.quorum.epoch for n in nodes if n and n.quorum and n.quorum.is_started), default=0)

    def newest_high_watermark(self) -> int:
        """The highest quorum high watermark of any voter."""
        nodes = [self.node(node_id) for node_id in self.voter_ids]
        return max((n.quorum.high_watermark for n in nodes if n and n.quorum and n.quorum.is_started), default=0)

    def is_recovering_from_power_loss(self) -> bool:
        """Whether a machine that lost power has not caught up yet.

        Being in sync is not enough: until the node registers again, the controller does not know that it lost data.
        """
        if not self._power_lost:
            return False
        have_registered = all(
            self.is_ready(node_id) and (node_id not in self.broker_ids or self.broker_epoch(node_id) > epoch)
            for node_id, epoch in self._power_lost.items()
        )
        if have_registered and not self.out_of_sync():
            self._power_lost = {}
        return bool(self._power_lost)

    def expect_exit(self, node_id: int, seconds: float) -> None:
        """The disk fails for so long: the node may exit in this time or shortly after."""
        until = self.scheduler.now + seconds + 5.0
        self._exits_expected_until[node_id] = max(until, self._exits_expected_until.get(node_id, 0.0))

    def _exited(self, node_id: int) -> Callable[[BaseException | None], None]:
        def exited(error: BaseException | None) -> None:
            self.log_event(self.machines[node_id].name, f"exits: {error}")
            if self.scheduler.now > self._exits_expected_until.get(node_id, -1.0):
                self.exits.append((node_id, error))
            self.scheduler.after(_RESTART_SECONDS, self._revive, node_id)

        return exited

    def _revive(self, node_id: int) -> None:
        if not self.machines[node_id].is_up:
            self.start_node(node_id)

    @contextmanager
    def observed(self) -> Iterator[None]:
        """In this block, reads succeed also on disks with read errors."""
        disks = [machine.disk for machine in self.machines.values()]
        for disk in disks:
            disk.is_observed = True
        try:
            yield
        finally:
            for disk in disks:
                disk.is_observed = False

    # Clients

    def add_client(self, name: str, make: Callable[[Process], Program]) -> Machine:
        machine = Machine(name, self.scheduler, self.fabric, self._seed, report_error=self._report_error)
        self.clients.append(machine)
        machine.on_exit = self._client_ended(name)
        context = self._client_context

        def make_secured(process: Process) -> Program:
            if context is not None:
                process.client_network = client_network(process, context)
            if self._secured is not None:
                process.watch = Watch(process, self._secured)
            return make(process)

        machine.start(make_secured)
        return machine

    def _client_ended(self, name: str) -> Callable[[BaseException | None], None]:
        def ended(error: BaseException | None) -> None:
            if error is not None:
                self._report_error(name, {"message": "client failed", "exception": error})

        return ended

    # The end

    def close(self) -> None:
        """Ends all processes, so that nothing of this simulation runs later."""
        all_machines = [*self.machines.values(), *self.clients]
        for machine in all_machines:
            machine.kill()
        self.scheduler.clear()
        for machine in all_machines:
            machine.close_tasks()


def _config(
    node_id: int, host: str, role: str, voters: list[str], settings: dict[str, str], protocol: str, disks: int
) -> BrokerConfig:
    listeners = []
    if "broker" in role:
        listeners.append(f"{protocol}://{host}:{CLIENT_PORT}")
        if settings.get("inter.broker.listener.name"):
            listeners.append(f"NODES://{host}:{NODE_PORT}")
    if "controller" in role:
        listeners.append(f"CONTROLLER://{host}:{CONTROLLER_PORT}")
    values: dict[str, Any] = {
        "node.id": node_id,
        "process.roles": role,
        "listeners": ",".join(listeners),
        "controller.quorum.voters": ",".join(voters),
        **_SETTINGS,
        **settings,
    }
    directories = ",".join((_DATA, *MORE_DISKS[: disks - 1]))
    return load_broker_config(overrides=[f"{name}={value}" for name, value in values.items()], data_dir=directories)
