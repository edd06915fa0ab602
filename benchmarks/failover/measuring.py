"""One cluster, one fault after another, and the times until writes are acknowledged again."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.failover import faults
from benchmarks.failover.writers import Acks, BareWriter, LibrdkafkaWriter
from tests.system.chaos.cluster import Cluster
from tests.system.chaos.network import Bridged, Disks, Loopback, Network

TOPIC = "failover"
PARTITIONS = 6
_CALM_SECONDS = 1.5
_FENCED = re.compile(r"broker_fenced broker=(\d+) .*reason=(.*)")
_ELECTED = re.compile(r"became_leader ")
_BUSY_LOOP = "while True: pass"


@dataclass(frozen=True, slots=True)
class Outage:
    """Seconds from the fault to the first ack of a record that was sent after it; None if there was none in time."""

    fault: str
    victim: str
    led_by_victim: float | None
    every_partition: float | None
    librdkafka: float | None
    in_sync_after_healing: float


@dataclass(frozen=True, slots=True)
class Healing:
    """Seconds from the end of a cut."""

    cut: str
    lasted: float
    every_partition: float | None
    """Until a write to each partition was acknowledged that was sent after the end."""
    in_sync: float


@dataclass(frozen=True, slots=True)
class Overload:
    seconds: float
    processes: int
    cores: int
    acknowledged: int
    longest_silence: float
    fenced: tuple[str, ...]
    """One line for each fencing while nothing but load was wrong."""
    elections: int


class Bench:
    """Use it with `with`."""

    def __init__(self, system: str, directory: Path, *, contained: bool, node_count: int = 3) -> None:
        network: Network = Bridged(node_count) if contained else Loopback(node_count)
        self.cluster = Cluster(system, node_count, network, Disks(directory, small=False), directory, {})
        self.possible = [name for name in faults.FAULTS if contained or name not in faults.NEEDS_NAMESPACES]

    def __enter__(self) -> Bench:
        self.cluster.__enter__()
        self.cluster.create_topic(TOPIC, PARTITIONS)
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.close()

    def outage(self, fault: str, victim: str, *, longest_s: float) -> Outage:
        """Hits a leader that is not the controller, or the controller, which leads a partition too."""
        cluster = self.cluster
        cluster.elect_preferred_leaders(TOPIC, PARTITIONS)
        controller = cluster.controller()
        leaders = cluster.leaders(TOPIC)
        wanted = [p for p, leader in leaders.items() if (leader == controller) == (victim == "controller")]
        if not wanted:
            raise RuntimeError(f"no partition is led by a {victim}: {leaders}, controller {controller}")
        partition, node = wanted[0], leaders[wanted[0]]
        bare = [BareWriter(TOPIC, number, list(cluster.nodes.values())) for number in range(PARTITIONS)]
        client = LibrdkafkaWriter(cluster.bootstrap, TOPIC, partition)
        writers: list[BareWriter | LibrdkafkaWriter] = [*bare, client]
        for writer in writers:
            writer.start()
        try:
            begun = time.monotonic()
            for writer in writers:
                if writer.acks.first_since(begun, begun + 30) is None:
                    raise RuntimeError("no writes are acknowledged before the fault")
            time.sleep(_CALM_SECONDS)
            faults.FAULTS[fault](cluster, node)
            struck_at = time.monotonic()
            for writer in bare:
                writer.avoid(node)
            until = struck_at + longest_s
            led = [number for number, leader in leaders.items() if leader == node]
            of_victim = _slowest([bare[number].acks for number in led], struck_at, until)
            of_all = _slowest([writer.acks for writer in bare], struck_at, until)
            of_client = _slowest([client.acks], struck_at, until)
        finally:
            faults.heal(cluster, node)
            for writer in writers:
                writer.stop()
        return Outage(fault, victim, of_victim, of_all, of_client, cluster.wait_until_in_sync(TOPIC))

    def healing(self, cut: str, seconds: float, *, longest_s: float = 60.0) -> Healing:
        """Cuts links of a node that is not the controller, heals them after a while, and writes from then on."""
        cluster = self.cluster
        cluster.elect_preferred_leaders(TOPIC, PARTITIONS)
        victim = next(number for number in cluster.nodes if number != cluster.controller())
        writers = [BareWriter(TOPIC, number, list(cluster.nodes.values())) for number in range(PARTITIONS)]
        try:
            faults.CUTS[cut](cluster, victim)
            time.sleep(seconds)
            cluster.network.heal()
            healed_at = time.monotonic()
            for writer in writers:
                writer.start()
            of_all = _slowest([writer.acks for writer in writers], healed_at, healed_at + longest_s)
            cluster.wait_until_in_sync(TOPIC)
            in_sync_s = time.monotonic() - healed_at
        finally:
            cluster.network.heal()
            for writer in writers:
                writer.stop()
        return Healing(cut, seconds, of_all, in_sync_s)

    def overload(self, seconds: float, *, times: int, cores: int, say: Callable[[str], None]) -> Overload:
        """Busy loops on every core, and writers beside them; counts what the controller did about it."""
        log_ends = {number: node.log_file.stat().st_size for number, node in self.cluster.nodes.items()}
        nodes = list(self.cluster.nodes.values())
        writers: list[BareWriter | LibrdkafkaWriter] = []
        writers += [BareWriter(TOPIC, number, nodes) for number in range(PARTITIONS)]
        writers += [LibrdkafkaWriter(self.cluster.bootstrap, TOPIC, number) for number in range(PARTITIONS)]
        busy = [subprocess.Popen([sys.executable, "-c", _BUSY_LOOP]) for _ in range(times * cores)]
        try:
            for writer in writers:
                writer.start()
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                time.sleep(min(10.0, max(0.0, end - time.monotonic())))
                say(f"{sum(writer.acks.count for writer in writers)} writes acknowledged under load")
        finally:
            for process in busy:
                process.kill()
                process.wait()
            for writer in writers:
                writer.stop()
        fenced: list[str] = []
        elections = 0
        for number, node in self.cluster.nodes.items():
            with node.log_file.open(errors="replace") as log:
                log.seek(log_ends[number])
                text = log.read()
            fenced += [f"node {number} fenced broker {who}: {why}" for who, why in _FENCED.findall(text)]
            elections += len(_ELECTED.findall(text))
        return Overload(
            seconds,
            len(busy),
            cores,
            sum(writer.acks.count for writer in writers),
            max(writer.acks.longest_silence() for writer in writers),
            tuple(fenced),
            elections,
        )


def _slowest(all_acks: list[Acks], since: float, until: float) -> float | None:
    found = [acks.first_since(since, until) for acks in all_acks]
    times = [at for at in found if at is not None]
    return max(times) - since if len(times) == len(found) and times else None
