"""The sweeps: each varies one number, and yields the broker's CPU for the same piece of work at each point."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Protocol

from benchmarks.compare import group_wire, topic, wire
from benchmarks.compare.cluster_target import ClusterTarget
from benchmarks.compare.process_stat import cpu_seconds
from benchmarks.compare.target import Target
from benchmarks.scaling import group_members
from benchmarks.scaling.driving import drive
from benchmarks.scaling.replicated import produce_replicated

_CONNECTIONS = 8
_PARTITIONS = 6
_RECORD = b"x" * 100
_BYTES_PER_SECOND_OF_BATCHES = 100 << 20


@dataclass(frozen=True, slots=True)
class Measured:
    """What a point of a sweep cost."""

    value: float
    note: str = ""


class Sweep(Protocol):
    """One number that is varied. `run` leaves no topic behind."""

    name: ClassVar[str]
    title: ClassVar[str]
    axis: ClassVar[str]
    unit: ClassVar[str]
    points: ClassVar[tuple[int, ...]]

    def run(self, target: Target, point: int, seconds: float) -> Measured: ...


@contextmanager
def _topic(target: Target, partitions: int) -> Iterator[str]:
    name = f"scaling-{uuid.uuid4().hex[:12]}"
    topic.create(target.bootstrap, name, partitions)
    try:
        yield name
    finally:
        topic.delete(target.bootstrap, name)


def _produce_requests(name: str, partitions: Sequence[int]) -> list[bytes]:
    batch = wire.record_batch([_RECORD])
    return [wire.produce_request(name, partition, batch) for partition in partitions]


def _produced(name: str, response: bytes) -> None:
    if error := wire.produce_error(response, name):
        raise RuntimeError(f"Produce has error {error}")


class Partitions(Sweep):
    name: ClassVar[str] = "partitions"
    title: ClassVar[str] = "Small produce requests, to all partitions in turn"
    axis: ClassVar[str] = "partitions"
    unit: ClassVar[str] = "µs CPU/request"
    points: ClassVar[tuple[int, ...]] = (1, 10, 100, 1_000, 10_000)

    def run(self, target: Target, point: int, seconds: float) -> Measured:
        with _topic(target, point) as name:
            lines = [
                _produce_requests(name, range(first % point, point, _CONNECTIONS)) for first in range(_CONNECTIONS)
            ]
            return Measured(drive(target, lines, lambda response: _produced(name, response), seconds).cpu_microseconds)


class Connections(Sweep):
    name: ClassVar[str] = "connections"
    title: ClassVar[str] = "Small produce requests, one in flight on every connection"
    axis: ClassVar[str] = "connections"
    unit: ClassVar[str] = "µs CPU/request"
    points: ClassVar[tuple[int, ...]] = (1, 10, 100, 1_000, 5_000)

    def run(self, target: Target, point: int, seconds: float) -> Measured:
        with _topic(target, _PARTITIONS) as name:
            lines = [_produce_requests(name, [number % _PARTITIONS]) for number in range(point)]
            return Measured(drive(target, lines, lambda response: _produced(name, response), seconds).cpu_microseconds)


class Groups(Sweep):
    name: ClassVar[str] = "groups"
    title: ClassVar[str] = "Heartbeats of consumer groups of one member (KIP-848)"
    axis: ClassVar[str] = "consumer groups"
    unit: ClassVar[str] = "µs CPU/heartbeat"
    points: ClassVar[tuple[int, ...]] = (1, 10, 100, 500)

    def run(self, target: Target, point: int, seconds: float) -> Measured:
        with _topic(target, _PARTITIONS) as name:
            groups = [(f"scaling-{uuid.uuid4().hex}", 1) for _ in range(point)]
            return _heartbeats(target, name, _PARTITIONS, groups, seconds)


class Members(Sweep):
    name: ClassVar[str] = "members"
    title: ClassVar[str] = "Heartbeats of one consumer group (KIP-848)"
    axis: ClassVar[str] = "members of the group"
    unit: ClassVar[str] = "µs CPU/heartbeat"
    points: ClassVar[tuple[int, ...]] = (1, 10, 100, 1_000)

    def run(self, target: Target, point: int, seconds: float) -> Measured:
        partitions = max(point, _PARTITIONS)
        with _topic(target, partitions) as name:
            return _heartbeats(target, name, partitions, [(f"scaling-{uuid.uuid4().hex}", point)], seconds)


def _heartbeats(
    target: Target, name: str, partitions: int, groups: Sequence[tuple[str, int]], seconds: float
) -> Measured:
    with group_members.stable(target.bootstrap, name, partitions, groups) as formed:
        requests = [
            group_wire.consumer_heartbeat(member.group, member.member_id, member.epoch) for member in formed.members
        ]
        lines = [requests[first::_CONNECTIONS] for first in range(min(_CONNECTIONS, len(requests)))]
        driven = drive(target, lines, group_members.check_heartbeat, seconds)
    return Measured(driven.cpu_microseconds, f"stable after {formed.seconds:.1f} s")


class BatchSize(Sweep):
    name: ClassVar[str] = "batch-size"
    title: ClassVar[str] = "Produce, one batch in a request"
    axis: ClassVar[str] = "bytes in a batch"
    unit: ClassVar[str] = "CPU s/GB"
    points: ClassVar[tuple[int, ...]] = (100, 1_000, 10_000, 100_000, 900_000)

    def run(self, target: Target, point: int, seconds: float) -> Measured:
        batch = wire.record_batch([b"x" * min(point, 1_000)] * max(point // 1_000, 1))
        with _topic(target, _PARTITIONS) as name:
            topic.settle(int(seconds * _BYTES_PER_SECOND_OF_BATCHES))
            lines = [[wire.produce_request(name, number % _PARTITIONS, batch)] for number in range(_CONNECTIONS)]
            driven = drive(target, lines, lambda response: _produced(name, response), seconds)
        return Measured(driven.cpu_microseconds / len(batch) * 1e3)


class Replicas:
    """On three nodes; all other sweeps need one."""

    name: ClassVar[str] = "replicas"
    title: ClassVar[str] = "Produce 1 KB records, acks=all, librdkafka: all nodes together"
    axis: ClassVar[str] = "replicas"
    unit: ClassVar[str] = "CPU s/GB"
    points: ClassVar[tuple[int, ...]] = (1, 2, 3)

    def run(self, target: ClusterTarget, point: int, seconds: float) -> Measured:
        before = _cpu_of_all(target)
        written = produce_replicated(target, point, seconds)
        return Measured((_cpu_of_all(target) - before) / (written / 1e9))


def _cpu_of_all(target: ClusterTarget) -> float:
    return sum(cpu_seconds(pid) for pid in target.pids.values())


class Processes:
    """On a node with that many processes (`--cores`), started for each point; Kafka has one process always."""

    name: ClassVar[str] = "processes"
    title: ClassVar[str] = "Small produce requests to 8 partitions, one in flight on each of 8 connections"
    axis: ClassVar[str] = "processes"
    unit: ClassVar[str] = "µs CPU/request"
    points: ClassVar[tuple[int, ...]] = (1, 2, 4)

    def run(self, target: Target, point: int, seconds: float) -> Measured:
        with _topic(target, _CONNECTIONS) as name:
            places = topic.leaders(target.bootstrap, name)
            lines = [_produce_requests(name, [number]) for number in range(_CONNECTIONS)]
            addresses = [places[number] for number in range(_CONNECTIONS)]
            driven = drive(target, lines, lambda response: _produced(name, response), seconds, addresses)
            return Measured(
                driven.cpu_microseconds, f"{driven.responses / seconds:,.0f} requests/s, one client process"
            )


SWEEPS: tuple[Sweep, ...] = (Partitions(), Connections(), Groups(), Members(), BatchSize())
