"""Two clusters of three nodes, far from each other: `python -m tests.system.mirror.far_clusters`, under `unshare`.

Each node has a network namespace. The nodes of a side are on one bridge, and clients reach each side directly. The two
bridges are joined by a relay, which delays each Ethernet frame, loses some, and can be cut. (The kernel's netem would
do the same, where there is one.) TCP above it is the kernel's own, with its repetitions.
"""

import argparse
import collections
import fcntl
import random
import select
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka import TopicPartition as Place

from millstream.raw_client import TopicPartition
from millstream.simulator.history import History, Recorder, Seen, Send, check
from tests.mirrors import Mirror, cluster_of, make_source_topic, read_all
from tests.repository import REPOSITORY
from tests.system.chaos.nodes import MillstreamNode
from tests.waiting import TIMEOUT_SECONDS, until

SIDES = {"west": 1, "east": 2}
TOPIC, GROUP, PARTITIONS = "orders", "readers", 3
SETTINGS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
}
_ALL_FRAMES = 3
_OUTGOING = 4
_SIOCETHTOOL = 0x8946
_OFFLOADS = (0x17, 0x1F, 0x24)
"""ETHTOOL_STXCSUM, ETHTOOL_STSO, ETHTOOL_SGSO: what crosses the relay must be whole frames with checksums."""


# The network


def relay(ports: list[str], delay_s: float, loss: float, seed: int) -> None:
    """Carries frames between two devices until its input ends. Lines `cut` and `heal` come on its input."""
    sockets = [socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_FRAMES)) for _ in ports]
    for each, port in zip(sockets, ports, strict=True):
        each.bind((port, 0))
    chance, is_cut, carried, lost = random.Random(seed), False, 0, 0
    waiting: collections.deque[tuple[float, socket.socket, bytes]] = collections.deque()
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, receiver, frame = waiting.popleft()
            receiver.send(frame)
        timeout = max(0.0, waiting[0][0] - now) if waiting else None
        readable = select.select([*sockets, sys.stdin], [], [], timeout)[0]
        if sys.stdin in readable:
            line = sys.stdin.readline()
            if not line:
                say(f"the relay carried {carried} frames and lost {lost}")
                return
            is_cut = line.strip() == "cut"
        for ready in (each for each in sockets if each in readable):
            frame, address = ready.recvfrom(65536)
            if address[2] == _OUTGOING:
                continue
            if is_cut or chance.random() < loss:
                lost += 1
                continue
            carried += 1
            other = sockets[1] if ready is sockets[0] else sockets[0]
            waiting.append((time.monotonic() + delay_s, other, frame))


def without_offloads(device: str) -> None:
    """Makes a device send frames as they are on a wire."""
    import ctypes

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in _OFFLOADS:
            value = ctypes.create_string_buffer(struct.pack("II", command, 0))
            fcntl.ioctl(control, _SIOCETHTOOL, struct.pack("16sP", device.encode(), ctypes.addressof(value)))


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


class WideArea:
    """Two bridges with three hosts each, and the relay between them."""

    def __init__(self, delay_ms: float, loss: float, seed: int) -> None:
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
        _ip("link", "set", "lo", "up")
        for side, number in SIDES.items():
            _ip("link", "add", side, "type", "bridge")
            _ip("addr", "add", f"10.78.{number}.254/24", "dev", side)
            _ip("link", "set", side, "up")
            _ip("link", "add", f"up-{side}", "type", "veth", "peer", "name", f"port-{side}")
            _ip("link", "set", f"port-{side}", "master", side, "up")
            _ip("link", "set", f"up-{side}", "promisc", "on", "up")
            for node in (1, 2, 3):
                name = self.name(side, node)
                _ip("netns", "add", name)
                _ip("link", "add", f"to-{name}", "type", "veth", "peer", "name", "eth0", "netns", name)
                _ip("link", "set", f"to-{name}", "master", side, "up")
                _ip("-n", name, "link", "set", "lo", "up")
                _ip("-n", name, "addr", "add", f"{self.host(side, node)}/16", "dev", "eth0")
                _ip("-n", name, "link", "set", "eth0", "up")
                module = [sys.executable, "-m", "tests.system.mirror.far_clusters", "--without-offloads", "eth0"]
                subprocess.run(["ip", "netns", "exec", name, *module], check=True, cwd=REPOSITORY)
        options = ["--relay", "--delay-ms", str(delay_ms), "--loss", str(loss), "--seed", str(seed)]
        self._relay = subprocess.Popen(
            [sys.executable, "-m", "tests.system.mirror.far_clusters", *options], stdin=subprocess.PIPE, cwd=REPOSITORY
        )

    @staticmethod
    def name(side: str, node: int) -> str:
        return f"{side}-{node}"

    @staticmethod
    def host(side: str, node: int) -> str:
        return f"10.78.{SIDES[side]}.{node}"

    def cut(self) -> None:
        self._tell("cut")

    def heal(self) -> None:
        self._tell("heal")

    def _tell(self, word: str) -> None:
        assert self._relay.stdin is not None
        assert self._relay.poll() is None, "the relay has ended"
        self._relay.stdin.write(f"{word}\n".encode())
        self._relay.stdin.flush()

    def close(self) -> None:
        assert self._relay.stdin is not None
        self._relay.stdin.close()
        self._relay.wait(30)


class Side:
    """The three nodes of one side."""

    def __init__(self, side: str, network: WideArea, directory: Path) -> None:
        directory = directory / side
        voters: Mapping[int, tuple[str, int]] = {node: (network.host(side, node), 9093) for node in (1, 2, 3)}
        self.nodes = {}
        for node in voters:
            data = directory / f"data-{node}"
            data.mkdir(parents=True)
            prefix = ("ip", "netns", "exec", network.name(side, node))
            place = (network.host(side, node), 9092)
            self.nodes[node] = MillstreamNode(node, place, voters, directory, data, prefix, SETTINGS)
        self.bootstrap = ",".join(node.address for node in self.nodes.values())

    def start(self) -> None:
        for node in self.nodes.values():
            node.prepare()
            node.start()
        for node in self.nodes.values():
            node.wait_until_it_responds()

    def stop(self) -> None:
        for node in self.nodes.values():
            node.kill()

    def leader(self, partition: int = 0) -> int:
        with cluster_of(self.bootstrap) as cluster:
            found = cluster.topics([TOPIC])[TOPIC].partitions[partition].leader
        assert found > 0
        return found

    def controller(self) -> int:
        with cluster_of(self.bootstrap) as cluster:
            metadata = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
            (topic,) = cluster.call("describe_quorum", topics=[metadata]).topics
            return int(topic.partitions[0].leader_id)

    @contextmanager
    def without(self, node: int) -> Iterator[None]:
        """The node is killed, and started again after the block."""
        say(f"kill {self.nodes[node].command_prefix[-1]}")
        self.nodes[node].kill()
        yield
        self.nodes[node].start()
        self.nodes[node].wait_until_it_responds()


# The clients


def partition_name(partition: int) -> str:
    return f"{TOPIC}-{partition}"


class Writer:
    """An idempotent producer that writes until it is stopped; what was acknowledged, by partition and offset."""

    def __init__(self, bootstrap: str, word: str) -> None:
        self.recorder = Recorder()
        self.acknowledged: dict[int, dict[int, bytes]] = {partition: {} for partition in range(PARTITIONS)}
        self.count = 0
        self._word = word
        self._stop = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 2, "message.timeout.ms": 0}
            | {"log_level": 0, "reconnect.backoff.max.ms": 500}
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(0.003):
            value, partition = f"{self._word}-{number}".ljust(300, "."), number % PARTITIONS
            operation = self.recorder.send(self._word, partition_name(partition), value)
            self._producer.produce(TOPIC, value, partition=partition, on_delivery=partial(self._delivered, operation))
            self._producer.poll(0)
            number += 1

    def _delivered(self, operation: Send, error: object, message: Message) -> None:
        assert error is None, error
        self.recorder.acked(operation, message.offset())
        self.acknowledged[message.partition() or 0][message.offset() or 0] = message.value() or b""
        self.count += 1

    def goes_on(self, count: int = 150) -> None:
        goal = self.count + count
        until(lambda: self.count >= goal, "the producer does not go on")

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(TIMEOUT_SECONDS) == 0


class Reader:
    """A consumer of one side without a group, from the first record on. It runs through all faults."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.recorder = Recorder()
        self._name = name
        self._positions = dict.fromkeys(range(PARTITIONS), 0)
        self._problem = ""
        self._stop = threading.Event()
        # A position that the log does not have is an error: it must not be reset.
        settings = {"group.id": "unused", "enable.auto.commit": False, "auto.offset.reset": "error", "log_level": 0}
        more = {"topic.metadata.refresh.interval.ms": 1000, "reconnect.backoff.max.ms": 500, "fetch.wait.max.ms": 200}
        self._consumer = Consumer({"bootstrap.servers": bootstrap, **settings, **more})
        self.recorder.assigned(name, {partition_name(at): 0 for at in self._positions})
        self._consumer.assign([Place(TOPIC, at, 0) for at in self._positions])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            invoked_at, seen = self.recorder.now(), []
            for message in self._consumer.consume(500, 0.2):
                error = message.error()
                if error is None:
                    partition, offset = message.partition() or 0, message.offset() or 0
                    seen.append(Seen(partition_name(partition), offset, (message.value() or b"").decode()))
                    self._positions[partition] = offset + 1
                elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                    self._problem = error.str()
            self.recorder.poll(self._name, invoked_at, seen)

    def read_to(self, ends: list[int]) -> None:
        """Reads up to these ends, and stops."""
        until(
            lambda: bool(self._problem) or all(self._positions[at] >= end for at, end in enumerate(ends)),
            f"{self._name} does not come to the end",
        )
        self.stop()
        assert not self._problem, f"{self._name}: {self._problem}"

    def stop(self) -> None:
        if not self._stop.is_set():
            self._stop.set()
            self._thread.join()
            self._consumer.close()


def check_history(sends: list[Send], reader: Reader) -> None:
    """All sends against all that a side's consumer read, to the end."""
    report = check(History(sends=sends, reading=reader.recorder.history.reading))
    say(f"{reader._name}: {report}")
    assert report.clean and report.records_read >= report.acked == len(sends) > 0, str(report)


def commit(bootstrap: str, offsets: Mapping[int, int]) -> None:
    with cluster_of(bootstrap) as cluster:
        cluster.commit_offsets(GROUP, {TopicPartition(TOPIC, at): offset for at, offset in offsets.items()})


def committed(bootstrap: str) -> dict[int, int]:
    with cluster_of(bootstrap) as cluster:
        found = cluster.committed_offsets(GROUP, [TopicPartition(TOPIC, at) for at in range(PARTITIONS)])
    return {at.partition: offset for at, offset in found.items()}


def values_at(bootstrap: str, partition: int) -> dict[int, bytes]:
    return {offset: value or b"" for offset, _, value, _, _ in read_all(bootstrap, TOPIC, partition)}


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


# The run


def run(directory: Path, delay_ms: float, loss: float, seed: int) -> None:
    with ExitStack() as stack:
        network = WideArea(delay_ms, loss, seed)
        stack.callback(network.close)
        west, east = (Side(side, network, directory) for side in SIDES)
        for side in (west, east):
            stack.callback(side.stop)
            side.start()
        say(f"both sides run; {delay_ms:g} ms and {loss:.1%} loss between them")
        there = Mirror("far", west.bootstrap, east.bootstrap)
        make_source_topic(west.bootstrap, TOPIC, PARTITIONS, replicas=3)
        there.create(TOPIC, groups=GROUP)
        there.await_topic(TOPIC)
        writer = Writer(west.bootstrap, "west")
        stack.callback(writer._stop.set)
        readers = [
            Reader(side.bootstrap, f"reader in the {name}") for name, side in zip(SIDES, (west, east), strict=True)
        ]
        for reader in readers:
            stack.callback(reader.stop)
        writer.goes_on()
        for side in (west, east):
            for victim in (side.leader, side.controller):
                with side.without(victim()):
                    writer.goes_on()
        say("cut, and healed")
        network.cut()
        writer.goes_on()
        network.heal()
        writer.goes_on()
        commit(west.bootstrap, dict.fromkeys(range(PARTITIONS), 20))
        until(lambda: committed(east.bootstrap) == dict.fromkeys(range(PARTITIONS), 20), "the group did not come over")

        say("cut for good; failover in the east")
        network.cut()
        writer.goes_on()
        there.admin.failover(there.name)
        until(lambda: there.state(TOPIC) == "promoted", "no failover")
        writer.stop()
        ends = there.ends(TOPIC)
        for partition in range(PARTITIONS):
            mirrored = values_at(east.bootstrap, partition)
            acknowledged = writer.acknowledged[partition]
            assert {at: acknowledged[at] for at in mirrored} == mirrored, f"partition {partition} is not a prefix"
            assert len(mirrored) == ends[partition] > 0
        lost = sum(map(len, writer.acknowledged.values())) - sum(ends)
        say(f"the east has {sum(ends)} records; {lost} of the west were not mirrored")
        assert lost > 0, "records were written during the cut"
        readers[0].read_to(there.ends(TOPIC, at_source=True))
        written = writer.recorder.history.sends
        check_history(written, readers[0])

        after = Writer(east.bootstrap, "east")
        stack.callback(after._stop.set)
        after.goes_on()
        network.heal()
        say("healed; the west becomes a mirror of the east")
        there.admin.reverse(there.name, there.source_admin, {"bootstrap.servers": east.bootstrap, "interval.ms": "200"})
        back = Mirror(there.name, east.bootstrap, west.bootstrap)
        back.await_topic(TOPIC)
        for side in (east, west):
            with side.without(side.leader()):
                after.goes_on()
        commit(east.bootstrap, {at: ends[at] + 5 for at in range(PARTITIONS)})
        after.stop()
        back.await_equal(TOPIC)
        until(lambda: committed(west.bootstrap) == committed(east.bootstrap), "the group did not come back")
        for partition in range(PARTITIONS):
            both = [values_at(side.bootstrap, partition) for side in (west, east)]
            assert both[0] == both[1]
            kept = {at: value for at, value in writer.acknowledged[partition].items() if at < ends[partition]}
            assert both[0] == kept | after.acknowledged[partition]
        mirrored_ends = {partition_name(at): end for at, end in enumerate(ends)}
        kept_sends = [
            send for send in written if send.offset is not None and send.offset < mirrored_ends[send.partition]
        ]
        again = Reader(west.bootstrap, "reader in the west, after the way back")
        stack.callback(again.stop)
        for reader in (readers[1], again):
            reader.read_to(back.ends(TOPIC))
            check_history([*kept_sends, *after.recorder.history.sends], reader)
        back.admin.promote(back.name, timeout_s=TIMEOUT_SECONDS)
        say("equal, byte for byte; the west leads again")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.system.mirror.far_clusters")
    parser.add_argument("--delay-ms", type=float, default=25.0)
    parser.add_argument("--loss", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--relay", action="store_true")
    parser.add_argument("--without-offloads", metavar="DEVICE")
    chosen = parser.parse_args()
    if chosen.without_offloads:
        without_offloads(chosen.without_offloads)
    elif chosen.relay:
        relay([f"up-{side}" for side in SIDES], chosen.delay_ms / 1000, chosen.loss, chosen.seed)
    else:
        with tempfile.TemporaryDirectory(prefix="far-") as directory:
            run(Path(directory), chosen.delay_ms, chosen.loss, chosen.seed)


if __name__ == "__main__":
    main()
