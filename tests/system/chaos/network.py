"""Hosts for the nodes: each in a network namespace on one bridge, with links that can be cut in either direction.

A link is cut by giving the sender a wrong hardware address for the receiver: packets leave and no one takes them, as
with a dead cable, and unlike a firewall that responds. Clients are on the bridge itself and reach every node always.
`Loopback` has no links to cut, for machines without namespaces.
"""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from millstream.testing.node_process import free_ports
from tests.failing_disk import FailingDisks, can_be_built

KAFKA_PORT = 9092
CONTROLLER_PORT = 9093
NODE_PORT = 9094
_NOBODY = "02:00:00:00:ff:ff"


class Network(Protocol):
    """Where nodes live. Nodes are numbered from 1."""

    can_cut: bool
    client_host: str
    """Where nodes reach what runs beside the clients, like an object store."""

    def kafka_address(self, node: int) -> tuple[str, int]: ...

    def controller_address(self, node: int) -> tuple[str, int]: ...

    def node_address(self, node: int) -> tuple[str, int]:
        """Where other brokers reach it, in a cluster with a listener for them."""
        ...

    def command_prefix(self, node: int) -> Sequence[str]:
        """What makes a program run on the node's host."""
        ...

    def cut(self, sender: int, receiver: int) -> None:
        """Nothing from the one reaches the other any more; the way back is another link."""

    def heal(self) -> None:
        """All links carry again."""


class Loopback:
    """All nodes on 127.0.0.1, on free ports."""

    can_cut = False
    client_host = "127.0.0.1"

    def __init__(self, node_count: int) -> None:
        ports = free_ports(3 * node_count)
        self._kafka, self._controller, self._node = (ports[first::3] for first in range(3))

    def kafka_address(self, node: int) -> tuple[str, int]:
        return "127.0.0.1", self._kafka[node - 1]

    def controller_address(self, node: int) -> tuple[str, int]:
        return "127.0.0.1", self._controller[node - 1]

    def node_address(self, node: int) -> tuple[str, int]:
        return "127.0.0.1", self._node[node - 1]

    def command_prefix(self, node: int) -> Sequence[str]:
        return ()

    def cut(self, sender: int, receiver: int) -> None:
        raise NotImplementedError("links cannot be cut on loopback")

    def heal(self) -> None:
        pass


class Bridged:
    """A namespace per node, in the namespaces that `containment` has made for the run."""

    can_cut = True
    client_host = "10.77.0.254"

    def __init__(self, node_count: int) -> None:
        self._nodes = range(1, node_count + 1)
        _run("mount", "-t", "tmpfs", "tmpfs", "/run")  # where `ip netns` keeps its names
        _ip("link", "set", "lo", "up")
        _ip("link", "add", "hub", "type", "bridge")
        _ip("addr", "add", f"{self.client_host}/24", "dev", "hub")
        _ip("link", "set", "hub", "up")
        for node in self._nodes:
            _ip("netns", "add", _name(node))
            _ip("link", "add", f"to-{node}", "type", "veth", "peer", "name", "eth0", "netns", _name(node))
            _ip("link", "set", f"to-{node}", "master", "hub", "up")
            _ip("-n", _name(node), "link", "set", "lo", "up")
            _ip("-n", _name(node), "link", "set", "eth0", "address", _hardware(node))
            _ip("-n", _name(node), "addr", "add", f"{_host(node)}/24", "dev", "eth0")
            _ip("-n", _name(node), "link", "set", "eth0", "up")
        self.heal()

    def kafka_address(self, node: int) -> tuple[str, int]:
        return _host(node), KAFKA_PORT

    def controller_address(self, node: int) -> tuple[str, int]:
        return _host(node), CONTROLLER_PORT

    def node_address(self, node: int) -> tuple[str, int]:
        return _host(node), NODE_PORT

    def command_prefix(self, node: int) -> Sequence[str]:
        return ("ip", "netns", "exec", _name(node))

    def cut(self, sender: int, receiver: int) -> None:
        self._point(sender, receiver, _NOBODY)

    def heal(self) -> None:
        for sender in self._nodes:
            for receiver in self._nodes:
                if sender != receiver:
                    self._point(sender, receiver, _hardware(receiver))

    @staticmethod
    def _point(sender: int, receiver: int, hardware: str) -> None:
        entry = (_host(receiver), "lladdr", hardware, "dev", "eth0", "nud", "permanent")
        _ip("-n", _name(sender), "neigh", "replace", *entry)


class Disks:
    """Where nodes keep their data: on small file systems that can be filled, where those can be had. With `failing`
    and a C compiler, nodes are started so that their disks can fail."""

    def __init__(self, directory: Path, *, small: bool, megabytes: int = 0, failing: bool = False) -> None:
        self._directory = directory
        self.can_fill = small
        self._megabytes = megabytes
        self.can_fail = failing and can_be_built()
        self._failing = FailingDisks(directory) if self.can_fail else None

    def make(self, node: int) -> Path:
        mount = self._directory / f"disk-{node}"
        mount.mkdir(parents=True, exist_ok=True)
        if self.can_fill:
            _run("mount", "-t", "tmpfs", "-o", f"size={self._megabytes}m", "tmpfs", str(mount))
        return self._data(node)

    def environment(self, node: int) -> Mapping[str, str]:
        """What the node's process needs in its environment."""
        return {} if self._failing is None else self._failing.environment(self._data(node))

    def fail(self, node: int, *how: str) -> None:
        assert self._failing is not None
        self._failing.fail(self._data(node), *how)

    def mend(self, node: int) -> None:
        assert self._failing is not None
        self._failing.heal(self._data(node))

    def _data(self, node: int) -> Path:
        return self._directory / f"disk-{node}" / "data"

    def fill(self, node: int) -> None:
        """Take all the room there is."""
        with self._filler(node).open("wb", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError:
                    continue

    def free(self, node: int) -> None:
        self._filler(node).unlink(missing_ok=True)

    def _filler(self, node: int) -> Path:
        return self._directory / f"disk-{node}" / "filler"


def _name(node: int) -> str:
    return f"node-{node}"


def _host(node: int) -> str:
    return f"10.77.0.{node}"


def _hardware(node: int) -> str:
    return f"02:00:00:00:00:{node:02x}"


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
