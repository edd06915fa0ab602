"""Three nodes under test, behind one face: Millstream's and Apache Kafka's, as their documentation sets them up.

Each node is broker and controller in one process on loopback, with default settings. A cluster is a `Target` too, so
that loads which only need an address run on it; those that need more (node ids, process ids, `kill`) take a
`ClusterTarget`.
"""

from __future__ import annotations

import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.compare.target import OtherMillstream, millstream_command
from millstream.testing.node_process import free_ports
from tools.apache_kafka import ApacheKafkaCluster, KafkaDistribution, responds_to_api_versions

NODES = 3
_START_TIMEOUT_SECONDS = 90.0


class ClusterTarget(ABC):
    """A cluster that loads can be run against; node ids count from 1."""

    name: str
    data_dir: Path

    @property
    @abstractmethod
    def addresses(self) -> Mapping[int, str]:
        """HOST:PORT of every node, running or not."""

    @property
    @abstractmethod
    def pids(self) -> Mapping[int, int]:
        """Process ids of the nodes that run."""

    @abstractmethod
    def prepare(self) -> None: ...

    @abstractmethod
    def spawn(self) -> None: ...

    @abstractmethod
    def wait_until_ready(self) -> None: ...

    @abstractmethod
    def kill(self, node_id: int) -> None:
        """Kill -9; returns at once."""

    @abstractmethod
    def start_node(self, node_id: int) -> None:
        """Start a node that was killed, and wait until it responds."""

    @abstractmethod
    def stop(self) -> None: ...

    @property
    def bootstrap(self) -> str:
        return ",".join(self.addresses.values())

    @property
    def pid(self) -> int:
        return next(iter(self.pids.values()))


ClusterFactory = Callable[[str], ClusterTarget]
"""Makes a new, not yet started cluster of the given name on a directory of its own."""


class MillstreamCluster(ClusterTarget):
    """`millstream serve --config` of this repository, three times."""

    name = "millstream"

    def __init__(self, directory: Path, program: Path | None = None) -> None:
        self.data_dir = directory
        self._run = millstream_command(program)
        self._ports: list[int] = []
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def addresses(self) -> Mapping[int, str]:
        return {node_id: f"127.0.0.1:{self._ports[node_id - 1]}" for node_id in range(1, NODES + 1)}

    @property
    def pids(self) -> Mapping[int, int]:
        return {node_id: process.pid for node_id, process in self._processes.items()}

    def prepare(self) -> None:
        self._ports = free_ports(2 * NODES)
        ids = range(1, NODES + 1)
        voters = ",".join(f"{node_id}@127.0.0.1:{self._ports[NODES + node_id - 1]}" for node_id in ids)
        for node_id in ids:
            controller = f"127.0.0.1:{self._ports[NODES + node_id - 1]}"
            settings = {
                "process.roles": "broker,controller",
                "node.id": str(node_id),
                "controller.quorum.voters": voters,
                "listeners": f"PLAINTEXT://{self.addresses[node_id]},CONTROLLER://{controller}",
                "inter.broker.listener.name": "PLAINTEXT",
                "controller.listener.names": "CONTROLLER",
                "log.dirs": str(self.data_dir / f"node-{node_id}"),
            }
            lines = [f"{name}={value}\n" for name, value in settings.items()]
            self._properties(node_id).write_text("".join(lines))

    def spawn(self) -> None:
        for node_id in range(1, NODES + 1):
            self._spawn_node(node_id)

    def wait_until_ready(self) -> None:
        for node_id in range(1, NODES + 1):
            self._wait(node_id)

    def kill(self, node_id: int) -> None:
        process = self._processes.pop(node_id)
        process.kill()
        process.wait()

    def start_node(self, node_id: int) -> None:
        self._spawn_node(node_id)
        self._wait(node_id)

    def stop(self) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def _properties(self, node_id: int) -> Path:
        return self.data_dir / f"node-{node_id}.properties"

    def _log(self, node_id: int) -> Path:
        return self.data_dir / f"node-{node_id}.log"

    def _spawn_node(self, node_id: int) -> None:
        with open(self._log(node_id), "ab") as log:
            self._processes[node_id] = subprocess.Popen(
                [*self._run, "serve", "--no-http", "--config", str(self._properties(node_id))],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def _wait(self, node_id: int) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_SECONDS
        host, _, port = self.addresses[node_id].rpartition(":")
        while not responds_to_api_versions(host, int(port)):
            if self._processes[node_id].poll() is not None or time.monotonic() > deadline:
                said = self._log(node_id).read_text(errors="replace").strip().splitlines()[-5:]
                self.stop()
                raise RuntimeError(f"node {node_id} did not become ready: " + (" / ".join(said) or "it said nothing"))
            time.sleep(0.02)


class OtherMillstreamCluster(MillstreamCluster):
    name = OtherMillstream.name


class KafkaCluster(ClusterTarget):
    """Three nodes of Apache Kafka with the settings its distribution ships, and 512 MB of heap each."""

    name = "kafka"

    def __init__(self, directory: Path, distribution: KafkaDistribution) -> None:
        self.data_dir = directory
        self._cluster = ApacheKafkaCluster(distribution, directory, NODES)

    @property
    def addresses(self) -> Mapping[int, str]:
        return {node.node_id: node.bootstrap_servers for node in self._cluster.nodes}

    @property
    def pids(self) -> Mapping[int, int]:
        return {node.node_id: node.pid for node in self._cluster.nodes if node.process is not None}

    def prepare(self) -> None:
        self._cluster.format()

    def spawn(self) -> None:
        for node in self._cluster.nodes:
            node.start_process()

    def wait_until_ready(self) -> None:
        for node in self._cluster.nodes:
            node.wait_until_ready()

    def kill(self, node_id: int) -> None:
        self._cluster.nodes[node_id - 1].kill()

    def start_node(self, node_id: int) -> None:
        self._cluster.nodes[node_id - 1].start()

    def stop(self) -> None:
        self._cluster.stop()
