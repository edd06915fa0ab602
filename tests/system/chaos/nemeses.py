"""The faults, each a small class: what it does to the cluster, for how long, and how it is undone.

A nemesis picks its victim when it strikes, from the cluster as it is then. Most hurt one node, as a cluster of three is
built to bear; those that kill more leave the disks alone, so that service may stop but nothing may be lost.
`stale_reads_allowed` marks faults in which a deposed leader may still be asked and does not know that it is one:
Kafka lets it serve reads from what it has.
"""

import json
import random
import struct
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from tests import previous_version
from tests.failing_disk import READ, SYNC, TORN, WRITE
from tests.s3_server import Faults, FaultyStore
from tests.system.chaos.cluster import Cluster
from tests.system.chaos.nodes import KafkaNode, MillstreamNode, Node
from tests.system.chaos.workload import TOPIC


class Nemesis(ABC):
    """One fault, once."""

    name: ClassVar[str]
    hold_s: ClassVar[float]
    stale_reads_allowed: ClassVar[bool] = False
    is_unseen: ClassVar[bool] = False
    """No client may get an error of any kind."""

    def __init__(self, cluster: Cluster, chance: random.Random) -> None:
        self.cluster = cluster
        self.random = chance
        self.victims: set[int] = set()
        """The nodes that were struck, once it has struck: of no other node may a connection end."""

    @classmethod
    def is_possible(cls, cluster: Cluster) -> bool:
        return True

    @abstractmethod
    def strike(self) -> str:
        """Do it; returns what was done to which node."""

    @abstractmethod
    def heal(self) -> None:
        """Undo it."""

    def some_leader(self) -> Node:
        leaders = self.cluster.leaders(TOPIC)
        return self.cluster.nodes[leaders[self.random.choice(sorted(leaders))]]

    def others(self, node: Node) -> list[int]:
        return [number for number in self.cluster.nodes if number != node.number]


class _Kill(Nemesis):
    hold_s = 3.0

    @abstractmethod
    def victim(self) -> Node: ...

    def strike(self) -> str:
        self._victim = self.victim()
        self.victims = {self._victim.number}
        self._victim.kill()
        return f"node {self._victim.number}"

    def heal(self) -> None:
        _start_again(self._victim)


class KillLeader(_Kill):
    name = "kill -9 of a leader"

    def victim(self) -> Node:
        return self.some_leader()


class KillController(_Kill):
    name = "kill -9 of the controller"

    def victim(self) -> Node:
        return self.cluster.nodes[self.cluster.controller()]


class KillAndStartAtOnce(_Kill):
    """Back before anyone has noticed that it was gone: its old place in the in-sync set must not count."""

    name = "kill -9 and start at once"
    hold_s = 0.0

    def victim(self) -> Node:
        return self.some_leader()


class _KillSeveral(Nemesis):
    hold_s = 3.0

    @abstractmethod
    def how_many(self) -> int: ...

    def strike(self) -> str:
        victims = self.random.sample(sorted(self.cluster.nodes), self.how_many())
        self.victims = set(victims)
        for number in victims:
            self.cluster.nodes[number].kill()
        return f"nodes {', '.join(map(str, victims))}"

    def heal(self) -> None:
        for node in self.cluster.nodes.values():
            if not node.running:
                node.start()
        for node in self.cluster.nodes.values():
            node.wait_until_it_responds()


class KillMajority(_KillSeveral):
    """No one can decide anything until they are back."""

    name = "kill -9 of a majority"

    def how_many(self) -> int:
        return len(self.cluster.nodes) // 2 + 1


class KillEverybody(_KillSeveral):
    name = "kill -9 of all nodes"

    def how_many(self) -> int:
        return len(self.cluster.nodes)


class _Pause(Nemesis):
    stale_reads_allowed = True

    @abstractmethod
    def victim(self) -> Node: ...

    def strike(self) -> str:
        self._victim = self.victim()
        self.victims = {self._victim.number}
        self._victim.pause()
        return f"node {self._victim.number}"

    def heal(self) -> None:
        self._victim.resume()


class PauseLeader(_Pause):
    """Longer than the broker's session, so that it wakes up deposed."""

    name = "pause of a leader"
    hold_s = 11.0

    def victim(self) -> Node:
        return self.some_leader()


class PauseController(_Pause):
    """Long enough for another to be elected, with which it must not interfere when it wakes up."""

    name = "pause of the controller"
    hold_s = 5.0

    def victim(self) -> Node:
        return self.cluster.nodes[self.cluster.controller()]


class _Partition(Nemesis):
    stale_reads_allowed = True

    @classmethod
    def is_possible(cls, cluster: Cluster) -> bool:
        return cluster.network.can_cut

    def isolate(self, node: Node, *, inwards: bool = True, outwards: bool = True) -> None:
        self.victims = {node.number}
        for other in self.others(node):
            if outwards:
                self.cluster.network.cut(node.number, other)
            if inwards:
                self.cluster.network.cut(other, node.number)

    def heal(self) -> None:
        self.cluster.network.heal()


class PartitionLeader(_Partition):
    """Clients still reach it; it must not acknowledge what it cannot replicate."""

    name = "partition of a leader from its followers"
    hold_s = 11.0

    def strike(self) -> str:
        victim = self.some_leader()
        self.isolate(victim)
        return f"node {victim.number}"


class PartitionController(_Partition):
    name = "partition of the controller from the rest"
    hold_s = 6.0

    def strike(self) -> str:
        victim = self.cluster.nodes[self.cluster.controller()]
        self.isolate(victim)
        return f"node {victim.number}"


class _OneWayPartition(_Partition):
    hold_s = 6.0
    deaf: ClassVar[bool]

    def strike(self) -> str:
        victim = self.cluster.nodes[self.random.choice(sorted(self.cluster.nodes))]
        self.isolate(victim, inwards=self.deaf, outwards=not self.deaf)
        return f"node {victim.number}"


class DeafNode(_OneWayPartition):
    """What the others send to it is lost."""

    name = "a node that hears no other (deaf)"
    deaf = True


class MuteNode(_OneWayPartition):
    """What it sends to the others is lost."""

    name = "a node that reaches no other (mute)"
    deaf = False


class RollingRestart(Nemesis):
    """Each node in turn, the next one when all is in sync again."""

    name = "rolling restart"
    hold_s = 0.0

    def strike(self) -> str:
        took = []
        self.victims = set(self.cluster.nodes)
        for node in self.cluster.nodes.values():
            began = time.monotonic()
            _stop(node)
            self.before_start(node)
            node.start()
            node.wait_until_it_responds()
            self.cluster.wait_until_in_sync(TOPIC)
            took.append(time.monotonic() - began)
        return "all nodes, " + ", ".join(f"{seconds:.1f}" for seconds in took) + " s"

    def before_start(self, node: Node) -> None:
        """What changes with the restart."""

    def heal(self) -> None:
        for node in self.cluster.nodes.values():
            _start_again(node)


class FullDisk(Nemesis):
    name = "full disk of a leader"
    hold_s = 6.0

    @classmethod
    def is_possible(cls, cluster: Cluster) -> bool:
        return cluster.disks.can_fill

    def strike(self) -> str:
        self._victim = self.some_leader()
        self.victims = {self._victim.number}
        self.cluster.disks.fill(self._victim.number)
        return f"node {self._victim.number}"

    def heal(self) -> None:
        self.cluster.disks.free(self._victim.number)
        _start_again(self._victim)  # Kafka's node gives up


class _FailingDisk(Nemesis):
    """The node leaves the cluster by itself, and comes back when its disk works again; no one starts it."""

    hold_s = 6.0
    how: ClassVar[tuple[str, ...]]

    @classmethod
    def is_possible(cls, cluster: Cluster) -> bool:
        return cluster.disks.can_fail

    def strike(self) -> str:
        self._victim = self.victim()
        self.victims = {self._victim.number}
        self.cluster.disks.fail(self._victim.number, *self.how)
        return f"node {self._victim.number}"

    def victim(self) -> Node:
        return self.some_leader()

    def heal(self) -> None:
        self.cluster.disks.mend(self._victim.number)
        if isinstance(self._victim, KafkaNode):
            _start_again(self._victim)  # Kafka's node gives up


class EioOnWrite(_FailingDisk):
    name = "EIO on every write of a leader"
    how = (WRITE,)


class EioOnWriteOfController(_FailingDisk):
    name = "EIO on every write and fsync of the controller"
    how = (WRITE, SYNC)

    def victim(self) -> Node:
        return self.cluster.nodes[self.cluster.controller()]


class EioOnRead(_FailingDisk):
    """The node can write, and cannot read what it wrote."""

    name = "EIO on every read of a leader"
    how = (READ,)


class TornWrites(_FailingDisk):
    """Half of every write arrives."""

    name = "torn writes of a leader"
    how = (TORN,)


_DAMAGE = ("garbage", "zeros", "cut", "flip")


class CorruptTail(Nemesis):
    """As after a loss of power: kill a node and damage the ends of its logs before it comes back: cut, overwritten, or
    with garbage behind.

    Its copy has lost acknowledged records; it must not count as in sync until it has them again. Of the metadata log,
    which is synced before it counts, only a torn write behind its end is fair.
    """

    name = "lost or damaged log tails, as without power"
    hold_s = 1.0

    def strike(self) -> str:
        self._victim = self.some_leader()
        self.victims = {self._victim.number}
        self._victim.kill()
        # One log surely loses records: garbage behind a log costs nothing, and chance could choose it for all.
        logs = self._last_segments(f"{TOPIC}-*")
        done = [self._damage(path, self.random.choice(_DAMAGE) if place else "cut") for place, path in enumerate(logs)]
        for path in self._last_segments("__cluster_metadata-0"):
            _append(path, self.random.randbytes(self.random.randint(1, 300)))
        return f"node {self._victim.number}: " + ", ".join(done)

    def heal(self) -> None:
        _start_again(self._victim)

    def _last_segments(self, pattern: str) -> list[Path]:
        directories = sorted(self._victim.data_dir.glob(pattern))
        return [max(logs) for each in directories if (logs := list(each.glob("*.log")))]

    def _damage(self, path: Path, kind: str) -> str:
        size = path.stat().st_size
        reach = min(size, self.random.randint(1, 20_000))
        if kind == "cut" and reach:
            with path.open("r+b") as file:
                file.truncate(size - reach)
        elif kind == "flip" and reach:
            with path.open("r+b") as file:
                position = _with_a_checksum(file, size - reach)
                file.seek(position)
                old = file.read(1)
                file.seek(position)
                file.write(bytes([old[0] ^ (1 << self.random.randrange(8))]))
        else:
            data = self.random.randbytes(reach + 1) if kind == "garbage" else bytes(reach + 1)
            _append(path, data)
        return f"{path.parent.name} {kind}"


class ReplaceCertificates(Nemesis):
    """Every node gets a new key and certificate, in its file; new connections must use them, old ones must stay.

    While it lasts, clients come and go: the forgetful producer, members of the group, and the harness itself.
    """

    name = "certificates replaced"
    hold_s = 4.0
    is_unseen = True
    _most_s: ClassVar[float] = 30.0

    @classmethod
    def is_possible(cls, cluster: Cluster) -> bool:
        return cluster.security is not None

    def strike(self) -> str:
        assert self.cluster.security is not None
        nodes = list(self.cluster.nodes.values())
        self.random.shuffle(nodes)
        began = time.monotonic()
        for node in nodes:
            expected = self.cluster.security.replace_certificate(node.number)
            deadline = time.monotonic() + self._most_s
            while self.cluster.security.fingerprint(node.address, 5.0) != expected:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"node {node.number} still shows its old certificate after {self._most_s:g} s")
                time.sleep(0.1)
        return f"nodes {', '.join(str(node.number) for node in nodes)}, in use after {time.monotonic() - began:.1f} s"

    def heal(self) -> None:
        """The new certificates stay."""


class _StoreFault(Nemesis):
    """Of the object store of a tiered topic: produce and reads of recent records go on."""

    hold_s = 8.0

    @property
    def store(self) -> FaultyStore:
        assert self.cluster.store is not None
        return self.cluster.store

    def heal(self) -> None:
        self.store.proxy.calm()


class StoreDown(_StoreFault):
    name = "kill -9 of the object store"

    def strike(self) -> str:
        self.store.server.kill()
        return "started again later"

    def heal(self) -> None:
        self.store.server.start()


class StoreSlow(_StoreFault):
    name = "a slow object store"

    def strike(self) -> str:
        self.store.proxy.faults = Faults(delay_s=1.5)
        return "1.5 s for each request"


class StoreErrors(_StoreFault):
    """Some requests are refused; others take effect, and their response is lost."""

    name = "errors of the object store"

    def strike(self) -> str:
        chance = random.Random(self.random.random())
        self.store.proxy.faults = Faults(fails=lambda _: chance.random() < 0.4, loses=lambda _: chance.random() < 0.4)
        return "two of three requests"


class KillLeaderInUpload(KillLeader):
    """At a write of an object or of a manifest."""

    name = "kill -9 of a leader while it writes to the store"

    def strike(self) -> str:
        assert self.cluster.store is not None
        proxy = self.cluster.store.proxy
        is_manifest = self.random.random() < 0.5
        hold = proxy.hold(
            lambda request: request.is_manifest_write if is_manifest else request.is_segment_write,
            after=self.random.random() < 0.5,
        )
        hold.wait()
        done = super().strike()
        proxy.calm()
        return f"{done}, at {'a manifest' if is_manifest else 'an object'}"


class _OfUpgrades(Nemesis):
    @classmethod
    def is_possible(cls, cluster: Cluster) -> bool:
        return cluster.previous is not None


class ChangeVersion(_OfUpgrades):
    """One node is upgraded, or goes back, and stays so: the faults that follow strike a cluster of two versions."""

    name = "a node changes its version"
    hold_s = 0.0

    def strike(self) -> str:
        node = _some_node(self)
        _stop(node)
        node.use_version(is_previous=not node.is_previous)
        _start_again(node)
        return f"node {node.number}, to the {_version(node)} version"

    def heal(self) -> None:
        """It stays so."""


class CrashAfterChange(_OfUpgrades):
    """A node of the other version is killed while it catches up, and goes back: what it wrote must be readable."""

    name = "a node changes its version, kill -9, and back"
    hold_s = 1.0

    def strike(self) -> str:
        self._victim = node = _some_node(self)
        before = node.is_previous
        _stop(node)
        node.use_version(is_previous=not before)
        _start_again(node)
        node.kill()
        node.use_version(is_previous=before)
        return f"node {node.number}, back to the {_version(node)} version"

    def heal(self) -> None:
        _start_again(self._victim)


class RollingUpgrade(RollingRestart, _OfUpgrades):
    """All nodes to the newest version, one by one."""

    name = "rolling upgrade"
    to_previous: ClassVar[bool] = False

    def before_start(self, node: Node) -> None:
        _millstream(node).use_version(is_previous=self.to_previous)


class Rollback(RollingUpgrade):
    """All nodes to the previous version, one by one."""

    name = "rollback"
    to_previous = True


class EndOfUpgrade(RollingUpgrade):
    """All nodes to the newest version, then `millstream cluster upgrade`. Until then no level may have changed."""

    name = "rolling upgrade, and its end"

    def strike(self) -> str:
        done = super().strike()
        changes = self._command("--dry-run", "--json")["changes"]
        found = {each["name"]: each["from"] for each in changes}
        if found != previous_version.LEVELS:
            raise RuntimeError(f"before the upgrade was ended, the levels are {found}, not {previous_version.LEVELS}")
        self._command("--json")
        if left := self._command("--dry-run", "--json")["changes"]:
            raise RuntimeError(f"`millstream cluster upgrade` has left {left}")
        return f"{done}; {len(found)} features raised"

    def _command(self, *words: str) -> Any:
        security = self.cluster.security
        login = () if security is None else ("--command-config", str(security.administrator_file))
        command = [sys.executable, "-m", "millstream", "cluster", "upgrade", "-b", self.cluster.bootstrap, *login]
        done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"millstream cluster upgrade {' '.join(words)}: {done.stdout}{done.stderr}")
        return json.loads(done.stdout)


def _millstream(node: Node) -> MillstreamNode:
    assert isinstance(node, MillstreamNode)
    return node


def _some_node(nemesis: Nemesis) -> MillstreamNode:
    node = _millstream(nemesis.cluster.nodes[nemesis.random.choice(sorted(nemesis.cluster.nodes))])
    nemesis.victims = {node.number}
    return node


def _version(node: MillstreamNode) -> str:
    return "previous" if node.is_previous else "newest"


def _stop(node: Node) -> None:
    if not node.stop():
        raise RuntimeError(f"node {node.number} did not stop when asked to")


def _with_a_checksum(file: BinaryIO, position: int) -> int:
    """The position, or the next one that is not in a batch's base offset: nothing in the format tells a wrong one."""
    start = 0
    while True:
        file.seek(start + 8)
        (length,) = struct.unpack(">i", file.read(4))
        if start + 12 + length > position:
            return max(position, start + 8)
        start += 12 + length


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def _start_again(node: Node) -> None:
    if not node.running:
        node.start()
        node.wait_until_it_responds()


ALL: tuple[type[Nemesis], ...] = (
    KillLeader,
    KillController,
    KillAndStartAtOnce,
    KillMajority,
    KillEverybody,
    PauseLeader,
    PauseController,
    PartitionLeader,
    PartitionController,
    DeafNode,
    MuteNode,
    RollingRestart,
    FullDisk,
    EioOnWrite,
    EioOnWriteOfController,
    EioOnRead,
    TornWrites,
    CorruptTail,
)
OF_TIERED: tuple[type[Nemesis], ...] = (StoreDown, StoreSlow, StoreErrors, KillLeaderInUpload)
"""Only for a tiered topic."""
OF_SECURED: tuple[type[Nemesis], ...] = (ReplaceCertificates,)
"""Only for a secured cluster."""
OF_UPGRADES: tuple[type[Nemesis], ...] = (ChangeVersion, CrashAfterChange, RollingUpgrade, Rollback)
"""Only where nodes begin with the previous version. At the end comes `EndOfUpgrade`."""
