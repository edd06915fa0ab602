"""Two simulated clusters with a mirror link: one is written to, the other one copies it, and both have faults.

A run has three phases: writes with faults (nodes are killed or lose power, connections between the clusters are cut);
rest, in which the mirror must catch up; and a failover, after which the mirror is written to. What must hold:

- at rest, every batch of the source is in the mirror at the same offset with the same checksum and epoch, and
  the replicas of the mirror are equal
- every acknowledged record is there, in both clusters, and in the mirror also after the failover
- leader epochs of the mirror are never below those of the source

With unclean elections at the source, acknowledged records may be lost there. Then the mirror must lose the same ones.
"""

import random
from collections.abc import Callable
from dataclasses import field

from millstream.common.lazy_dataclass import dataclass
from millstream.formats.model.errors import ErrorCode
from millstream.formats.records.record import Record, build_batch
from millstream.node.replicas.partition import Partition
from millstream.simulator.clients.client import SimulatedClient
from millstream.simulator.cluster import CLIENT_PORT, Cluster
from millstream.simulator.invariants.observation import StoredLog
from millstream.simulator.loop import Scheduler
from millstream.simulator.machine import Process
from millstream.simulator.network import Fabric

TOPIC, LINK, PARTITIONS = "orders", "west", 2
NODES = (1, 2, 3)
_START_SECONDS, _FAULT_SECONDS, _REST_SECONDS, _AFTER_SECONDS = 40.0, 45.0, 150.0, 60.0
_PREFIX = f"millstream.mirror.link.{LINK}."
_TOPIC_RESOURCE, _BROKER_RESOURCE, _SET = 2, 4, 0


@dataclass
class LinkedRun:
    """The result of a run."""

    violations: list[str] = field(default_factory=list)
    acknowledged: int = 0
    faults: int = 0
    batches: int = 0
    truncated: int = 0
    """Records that the mirror cut because the source lost them, since the last start of each broker."""
    fingerprint: int = 0


class Writer:
    """Writes single records with acks=all until it is told to stop; an unknown result is not counted as written."""

    def __init__(self, process: Process, bootstrap: list[tuple[str, int]], name: str) -> None:
        self._client = SimulatedClient(process, bootstrap, name)
        self._client.topics = (TOPIC,)
        self._loop = process.loop
        self._name = name
        self.acknowledged: list[bytes] = []
        self.writing = True

    def start(self) -> None:
        self._loop.create_task(self._run())

    def stop(self) -> None:
        """It ends with its process."""

    async def _run(self) -> None:
        number = 0
        while self.writing:
            value = f"{self._name}-{number}".encode()
            if await self._write(number % PARTITIONS, value):
                self.acknowledged.append(value)
            else:
                await self._client.recover()
            number += 1
            await self._client.pause(0.01, 0.08)

    async def _write(self, partition: int, value: bytes) -> bool:
        leader = self._client.leader(TOPIC, partition)
        if leader is None:
            return False
        rows = [{"index": partition, "records": build_batch([Record(b"key", value)])}]
        fields = {
            "transactional_id": None,
            "acks": -1,
            "timeout_ms": 1500,
            "topic_data": [{"name": TOPIC, "topic_id": leader.topic_id, "partition_data": rows}],
        }
        try:
            response = await self._client.request(leader.node_id, "produce", fields, timeout_s=2.5)
        except OSError:
            return False
        return not response.responses[0].partition_responses[0].error_code


class Requests:
    """Sends requests until each has succeeded."""

    def __init__(self, process: Process, bootstrap: list[tuple[str, int]], requests: list[tuple[str, object]]) -> None:
        self._client = SimulatedClient(process, bootstrap, process.machine.name)
        self._loop = process.loop
        self._requests = requests
        self.done = False

    def start(self) -> None:
        self._loop.create_task(self._run())

    def stop(self) -> None:
        """It ends with its process."""

    async def _run(self) -> None:
        for api, fields in self._requests:
            while not await self._succeeds(api, fields):
                await self._client.pause(0.1, 0.4)
        self.done = True

    async def _succeeds(self, api: str, fields: object) -> bool:
        try:
            response = await self._client.request_any(api, fields)  # type: ignore[arg-type]
        except OSError:
            return False
        rows = response.topics if api == "create_topics" else response.responses
        return all(row.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS) for row in rows)


def run_linked(seed: int, *, unclean: bool = False) -> LinkedRun:
    """Runs a seed. `unclean`: the source elects replicas that are not in sync."""
    return _Run(seed, unclean).run()


class _Run:
    def __init__(self, seed: int, unclean: bool) -> None:
        self._result = LinkedRun()
        self._unclean = unclean
        self._randomness = random.Random(f"{seed}/linked")
        self._scheduler = Scheduler()
        self._fabric = Fabric(self._scheduler, f"{seed}/linked")
        self._west, self._east = self._cluster(seed, "west"), self._cluster(seed, "east")
        self._clients = 0

    def _cluster(self, seed: int, name: str) -> Cluster:
        return Cluster(
            f"{seed}/{name}",
            # With a controller of its own, all brokers but one can fail, and the last one goes on alone.
            [*["broker"] * len(NODES), "controller"] if self._is_risky(name) else ["broker,controller"] * len(NODES),
            settings={"default.replication.factor": "3"},
            report_error=lambda where, context: self._result.violations.append(f"{where}: {context}"),
            scheduler=self._scheduler,
            fabric=self._fabric,
            host_name=name,
        )

    def _is_risky(self, name: str) -> bool:
        return self._unclean and name == "west"

    def run(self) -> LinkedRun:
        try:
            self._run()
        finally:
            self._result.fingerprint = self._fabric.fingerprint
            self._west.close()
            self._east.close()
        return self._result

    def _run(self) -> None:
        self._west.start()
        self._east.start()
        risky = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"} if self._unclean else {}
        configs = [{"name": name, "value": value} for name, value in risky.items()]
        topic = {"name": TOPIC, "num_partitions": PARTITIONS, "replication_factor": 3}
        topic |= {"assignments": [], "configs": configs}
        self._request(self._west, [("create_topics", {"topics": [topic], "timeout_ms": 5000, "validate_only": False})])
        servers = ",".join(f"west{node}:{CLIENT_PORT}" for node in NODES)
        link = {"bootstrap.servers": servers, "topics": TOPIC, "interval.ms": "500"}
        self._request(self._east, [_alter(_BROKER_RESOURCE, "", {_PREFIX + name: text for name, text in link.items()})])
        writer = self._writer(self._west)
        self._faults()
        writer.writing = False
        self._heal()
        self._until(self._is_equal, _REST_SECONDS, "the mirror did not catch up")
        self._check_equal(writer.acknowledged)
        self._request(self._east, [_alter(_TOPIC_RESOURCE, TOPIC, {"millstream.mirror.state": "promoted"})])
        own = self._writer(self._east)
        self._until(lambda: len(own.acknowledged) >= 20, _AFTER_SECONDS, "the promoted topic accepts no writes")
        own.writing = False
        self._result.acknowledged = len(writer.acknowledged) + len(own.acknowledged)
        expected = {*own.acknowledged} if self._unclean else {*writer.acknowledged, *own.acknowledged}
        missing = expected - self._values(self._east)
        if missing:
            self._violation(f"{len(missing)} acknowledged records are not in the promoted topic")

    # Clients

    def _client(self, cluster: Cluster, make: Callable[[Process], "Writer | Requests"]) -> "Writer | Requests":
        self._clients += 1
        machine = cluster.add_client(f"client{self._clients}", make)
        self._until(lambda: machine.process is not None and machine.process.ready, _START_SECONDS, "no client")
        assert machine.process is not None
        program = machine.process.program
        assert isinstance(program, Writer | Requests)
        return program

    def _writer(self, cluster: Cluster) -> Writer:
        name = f"writer{self._clients}"
        program = self._client(cluster, lambda process: Writer(process, cluster.bootstrap, name))
        assert isinstance(program, Writer)
        return program

    def _request(self, cluster: Cluster, requests: list[tuple[str, object]]) -> None:
        program = self._client(cluster, lambda process: Requests(process, cluster.bootstrap, requests))
        assert isinstance(program, Requests)
        self._until(lambda: program.done, _START_SECONDS, f"{requests[0][0]} did not succeed")

    def _until(self, holds: Callable[[], bool], seconds: float, otherwise: str) -> None:
        end = self._scheduler.now + seconds
        while not holds():
            if self._scheduler.now >= end:
                self._violation(otherwise)
                return
            self._scheduler.run(until=self._scheduler.now + 0.25)

    # Faults

    def _faults(self) -> None:
        chance, end = self._randomness, self._scheduler.now + _FAULT_SECONDS
        while self._scheduler.now < end:
            self._scheduler.run(until=self._scheduler.now + chance.uniform(0.5, 3.0))
            kind = chance.choice(("kill", "kill", "power", "cut"))
            cluster = chance.choice((self._west, self._east))
            self._result.faults += 1
            if kind == "cut":
                self._cut(chance.uniform(0.5, 6.0))
            elif self._unclean and cluster is self._west:
                self._lose_records()
            elif all(machine.is_up for machine in cluster.machines.values()) and self._may_lose_a_node(cluster):
                node = chance.choice(NODES)
                cluster.kill(node, power_lost=kind == "power")
                self._scheduler.after(chance.uniform(0.5, 3.0), cluster._revive, node)

    def _lose_records(self) -> None:
        """One broker of the source continues alone. Then it fails, and another is elected without its records."""
        last = self._randomness.choice(NODES)
        others = [node for node in NODES if node != last]
        for node in others:
            self._west.kill(node)
        self._scheduler.run(until=self._scheduler.now + 6.0)
        self._west.kill(last)
        for node in others:
            self._west._revive(node)
        self._scheduler.run(until=self._scheduler.now + 6.0)
        self._west._revive(last)

    def _may_lose_a_node(self, cluster: Cluster) -> bool:
        """Whether each replica has everything: only then may a node lose what is not on its disk."""
        leaders = self._leaders(cluster)
        return all(leader is None or len(leader.in_sync()) == len(NODES) for leader in leaders)

    def _cut(self, seconds: float) -> None:
        pairs = [(f"west{a}", f"east{b}") for a in NODES for b in NODES]
        chosen = self._randomness.sample(pairs, self._randomness.randint(1, len(pairs)))
        for west, east in chosen:
            self._fabric.block(west, east)
            self._fabric.block(east, west)
            self._scheduler.after(seconds, self._fabric.heal, west, east)
            self._scheduler.after(seconds, self._fabric.heal, east, west)

    def _heal(self) -> None:
        for link in self._fabric.links():
            link.heal()
        for cluster in (self._west, self._east):
            for node in NODES:
                cluster._revive(node)

    # Checks

    def _leaders(self, cluster: Cluster) -> list[Partition | None]:
        found: list[Partition | None] = [None] * PARTITIONS
        for partition in self._replicas(cluster):
            index = partition.topic_partition.partition
            known = found[index]
            if partition.is_leader and (known is None or partition.leader_epoch > known.leader_epoch):
                found[index] = partition
        return found

    def _replicas(self, cluster: Cluster) -> list[Partition]:
        nodes = [cluster.node(node) for node in NODES]
        brokers = [node.broker for node in nodes if node is not None and node.broker is not None]
        return [each for broker in brokers for each in broker.partitions.by_name.get(TOPIC.encode(), {}).values()]

    def _is_equal(self) -> bool:
        """Whether all replicas of both clusters end at the same offsets."""
        leaders = [*self._leaders(self._west), *self._leaders(self._east)]
        if any(leader is None or len(leader.in_sync()) < len(NODES) for leader in leaders):
            return False
        ends: dict[int, set[int]] = {}
        for partition in (*self._replicas(self._west), *self._replicas(self._east)):
            ends.setdefault(partition.topic_partition.partition, set()).update(
                (partition.log.log_end_offset, partition.high_watermark)
            )
        return all(len(found) == 1 for found in ends.values())

    def _check_equal(self, acknowledged: list[bytes]) -> None:
        replicas = [*self._replicas(self._west), *self._replicas(self._east)]
        for index in range(PARTITIONS):
            logs = [
                list(StoredLog(each.log).batches(each.log.log_start_offset, each.log.log_end_offset))
                for each in replicas
                if each.topic_partition.partition == index
            ]
            self._result.batches += len(logs[0])
            if any(log != logs[0] for log in logs):
                self._violation(f"the replicas of {TOPIC}-{index} differ")
        self._result.truncated = sum(
            driver.totals().records_truncated
            for node in filter(None, map(self._east.node, NODES))
            if node.broker is not None
            for driver in node.broker.mirroring.links.values()
        )
        for west, east in zip(self._leaders(self._west), self._leaders(self._east), strict=True):
            if west is not None and east is not None and east.leader_epoch < west.log.latest_epoch:
                self._violation(f"{east.topic_partition}: epoch {east.leader_epoch}, source {west.log.latest_epoch}")
        for cluster, name in () if self._unclean else ((self._west, "source"), (self._east, "mirror")):
            missing = set(acknowledged) - self._values(cluster)
            if missing:
                self._violation(f"{len(missing)} acknowledged records are not in the {name}")

    def _values(self, cluster: Cluster) -> set[bytes]:
        return {
            record.value or b""
            for leader in self._leaders(cluster)
            if leader is not None
            for batch in StoredLog(leader.log).batches(leader.log.log_start_offset, leader.log.log_end_offset)
            for record in batch.records
        }

    def _violation(self, what: str) -> None:
        self._result.violations.append(f"{self._scheduler.now:.1f} s: {what}")


def _alter(resource: int, name: str, settings: dict[str, str]) -> tuple[str, object]:
    rows = [{"name": key, "config_operation": _SET, "value": value} for key, value in settings.items()]
    resources = [{"resource_type": resource, "resource_name": name, "configs": rows}]
    return "incremental_alter_configs", {"resources": resources, "validate_only": False}
