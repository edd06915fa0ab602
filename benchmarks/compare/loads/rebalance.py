"""How long a group of 50 members takes to take in one more, in the classic protocol and in the one of KIP-848.

The members are ours and the same for both brokers: bare connections in one select loop, each with one request in
flight and a heartbeat every 50 ms on a fixed grid, so a rebalance can take no less than it takes the slowest of them
to hear of it. It begins with the newcomer's first request. It ends when every member has its assignment of the new
generation (classic), or when all members are at one epoch and what they have confirmed to own is every partition
exactly once (KIP-848). The classic group's start is not measured: group.initial.rebalance.delay.ms is all of it.
"""

from __future__ import annotations

import selectors
import statistics
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, Generic, TypeVar

from benchmarks.compare import group_wire, wire
from benchmarks.compare.measure import LATENCY_GOAL, Load, Measure, Scale
from benchmarks.compare.target import Target
from benchmarks.compare.topic import temporary_topic

MEMBERS = 50
PARTITIONS = 100
_HEARTBEAT_SECONDS = 0.05
_FULL_REPETITIONS = 5
_TIMEOUT_SECONDS = 30.0
_UNKNOWN_MEMBER, _REBALANCE_IN_PROGRESS, _MEMBER_ID_REQUIRED = 25, 27, 79


class Rebalance(Load):
    name: ClassVar[str] = "rebalance"
    title: ClassVar[str] = "Rebalance"
    measures: Sequence[Measure] = (
        Measure("classic_ms", "one more in a group of 50, classic protocol", "ms", "lower", LATENCY_GOAL),
        Measure("consumer_ms", "one more in a group of 50, KIP-848", "ms", "lower", LATENCY_GOAL),
        Measure("consumer_form_ms", "50 members from nothing, KIP-848", "ms", "lower"),
    )

    def run(self, target: Target, scale: Scale) -> dict[str, float]:
        repetitions = scale.records(_FULL_REPETITIONS, least=1)
        with temporary_topic(target, PARTITIONS, expected_bytes=0) as topic:
            _, classic = _rebalance(ClassicCrew(target.bootstrap, topic), repetitions)
            forming, consumer = _rebalance(ConsumerCrew(target.bootstrap, topic), repetitions)
        return {"classic_ms": classic * 1000, "consumer_ms": consumer * 1000, "consumer_form_ms": forming * 1000}


class Member(ABC):
    """One connection, at most one request in flight. `generation` is what it has an assignment of, or its epoch."""

    generation = 0

    def __init__(self, bootstrap: str, group: str, topic: str, phase: float) -> None:
        self.connection = wire.connect(bootstrap)
        self.group, self.topic = group, topic
        self.phase = phase
        self.due = 0.0
        self.waiting = False
        self._received = bytearray()

    @abstractmethod
    def next_request(self) -> bytes: ...

    @abstractmethod
    def on_response(self, response: bytes) -> bytes | None:
        """What has to be said at once, without waiting for the next beat."""

    def send(self, request: bytes) -> None:
        self.connection.sendall(request)
        self.waiting = True
        now = time.perf_counter()
        self.due = now + _HEARTBEAT_SECONDS - (now - self.phase) % _HEARTBEAT_SECONDS

    def receive(self) -> None:
        data = self.connection.recv(1 << 16)
        if not data:
            raise ConnectionError("the broker closed a member's connection")
        self._received += data
        size = 4 + int.from_bytes(self._received[:4], "big")
        if len(self._received) < max(size, 5):
            return
        response = bytes(self._received[4:size])
        del self._received[:size]
        self.waiting = False
        if (request := self.on_response(response)) is not None:
            self.send(request)


class ClassicMember(Member):
    member_id = ""
    _joined_generation = 0
    _reads: Callable[[bytes], bytes | None]

    def next_request(self) -> bytes:
        if not self.generation:
            return self._join()
        self._reads = self._on_heartbeat_response
        return group_wire.heartbeat(self.group, self.generation, self.member_id)

    def on_response(self, response: bytes) -> bytes | None:
        return self._reads(response)

    def _join(self) -> bytes:
        self._reads = self._on_join_response
        return group_wire.join(self.group, self.member_id, self.topic)

    def _on_join_response(self, response: bytes) -> bytes:
        joined = group_wire.joined(response)
        self.member_id = joined.member_id
        if joined.error == _MEMBER_ID_REQUIRED:
            return self._join()
        _check("JoinGroup", joined.error)
        self._joined_generation = joined.generation
        shares = {
            each: group_wire.assignment(self.topic, range(at, PARTITIONS, len(joined.members)))
            for at, each in enumerate(joined.members)
        }
        self._reads = self._on_sync_response
        return group_wire.sync(self.group, joined.generation, self.member_id, shares)

    def _on_sync_response(self, response: bytes) -> bytes | None:
        error, assignment = group_wire.synced(response)
        if error == _REBALANCE_IN_PROGRESS:
            return self._join()
        _check("SyncGroup", error)
        if not assignment:
            raise RuntimeError("SyncGroup responded with an empty assignment")
        self.generation = self._joined_generation
        return None

    def _on_heartbeat_response(self, response: bytes) -> bytes | None:
        error = group_wire.plain_error(response)
        if error == _REBALANCE_IN_PROGRESS:
            return self._join()
        _check("Heartbeat", error)
        return None


class ConsumerMember(Member):
    def __init__(self, bootstrap: str, group: str, topic: str, phase: float) -> None:
        super().__init__(bootstrap, group, topic, phase)
        self.member_id = str(uuid.uuid4())
        self.owned: dict[bytes, list[int]] = {}
        self.confirmed: list[int] = []  # of the one topic; what the coordinator was told and has responded to
        self._telling: list[int] | None = None

    def next_request(self) -> bytes:
        if not self.generation:
            return group_wire.consumer_heartbeat(
                self.group, self.member_id, group_wire.JOIN_EPOCH, topic=self.topic, owned={}
            )
        return group_wire.consumer_heartbeat(self.group, self.member_id, self.generation)

    def on_response(self, response: bytes) -> bytes | None:
        assigned = group_wire.assigned(response)
        _check("ConsumerGroupHeartbeat", assigned.error, assigned.message)
        self.generation = assigned.epoch
        if self._telling is not None:
            self.confirmed, self._telling = self._telling, None
        if assigned.partitions is None or assigned.partitions == self.owned:
            return None
        # There is nothing to finish before giving a partition up, so a change is confirmed at once.
        self.owned = assigned.partitions
        self._telling = [number for numbers in self.owned.values() for number in numbers]
        return group_wire.consumer_heartbeat(self.group, self.member_id, self.generation, owned=self.owned)


M = TypeVar("M", bound=Member)


class Crew(ABC, Generic[M]):
    """The members of one group and the loop that drives them."""

    protocol: ClassVar[str]
    rest_seconds: ClassVar[float]  # between one change of the group and the next

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        self._selector = selectors.DefaultSelector()
        self._start = time.perf_counter()
        self.group = f"bench-{uuid.uuid4()}"
        self.members: list[M] = []
        wait_for_coordinator(bootstrap, self.group)

    @abstractmethod
    def make(self, bootstrap: str, group: str, topic: str, phase: float) -> M: ...

    @abstractmethod
    def shared_out(self) -> bool:
        """Whether the members, all at one new generation, share the partitions out among them."""

    @abstractmethod
    def leave(self, members: Sequence[M]) -> None: ...

    def connect(self, count: int) -> list[M]:
        """New members, connected; they join when `settle` sends their first request."""
        made = []
        for number in range(len(self.members), len(self.members) + count):
            phase = self._start + number * _HEARTBEAT_SECONDS / MEMBERS
            made.append(self.make(self._bootstrap, self.group, self._topic, phase))
            self._selector.register(made[-1].connection, selectors.EVENT_READ, made[-1])
        return made

    def settle(self, joining: Sequence[M]) -> float:
        """Let these join; the seconds until the group is stable with them."""
        before = max((member.generation for member in self.members), default=0)
        self.members.extend(joining)
        began = time.perf_counter()
        for member in joining:
            member.send(member.next_request())
        while not (self._at_one_after(before) and self.shared_out()):
            if time.perf_counter() - began > _TIMEOUT_SECONDS:
                size = len(self.members)
                raise RuntimeError(
                    f"given up: {self.protocol} group of {size} not stable after {_TIMEOUT_SECONDS:.0f} s"
                )
            self._beat()
        return time.perf_counter() - began

    def rest(self, seconds: float) -> None:
        """Only heartbeats, for a while."""
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            self._beat()

    def part(self, members: Sequence[M]) -> None:
        """Let these leave and wait for what they had in flight, without waiting for the others to take over."""
        until = time.perf_counter() + _TIMEOUT_SECONDS
        while any(member.waiting for member in members) and time.perf_counter() < until:
            self._beat()
        self.leave(members)
        for member in members:
            self.members.remove(member)
            self._selector.unregister(member.connection)
            member.connection.close()

    def close(self) -> None:
        """Whatever state they are in: connections go, and the coordinator is left to time the members out."""
        for member in self.members:
            member.connection.close()
        self._selector.close()

    def _at_one_after(self, before: int) -> bool:
        newest = self.members[-1].generation
        return newest > before and all(member.generation == newest for member in self.members)

    def _beat(self) -> None:
        now = time.perf_counter()
        soonest = now + _HEARTBEAT_SECONDS
        for member in self.members:
            if not member.waiting:
                if member.due <= now:
                    member.send(member.next_request())
                else:
                    soonest = min(soonest, member.due)
        for key, _ in self._selector.select(soonest - now):
            key.data.receive()


class ClassicCrew(Crew[ClassicMember]):
    protocol = "classic"
    rest_seconds = 4 * _HEARTBEAT_SECONDS

    def make(self, bootstrap: str, group: str, topic: str, phase: float) -> ClassicMember:
        return ClassicMember(bootstrap, group, topic, phase)

    def shared_out(self) -> bool:
        return True  # an assignment of the generation is all it takes

    def leave(self, members: Sequence[ClassicMember]) -> None:
        request = group_wire.leave(self.group, [member.member_id for member in members])
        with wire.connect(self._bootstrap) as connection:
            _check("LeaveGroup", group_wire.plain_error(wire.ask(connection, request)))


class ConsumerCrew(Crew[ConsumerMember]):
    protocol = "consumer"
    # group.consumer.assignment.interval.ms, by default a second, holds back what follows an assignment too soon.
    rest_seconds = 1.2

    def make(self, bootstrap: str, group: str, topic: str, phase: float) -> ConsumerMember:
        return ConsumerMember(bootstrap, group, topic, phase)

    def shared_out(self) -> bool:
        return all(member.confirmed for member in self.members) and sorted(
            each for member in self.members for each in member.confirmed
        ) == list(range(PARTITIONS))

    def leave(self, members: Sequence[ConsumerMember]) -> None:
        for member in members:
            request = group_wire.consumer_heartbeat(self.group, member.member_id, group_wire.LEAVE_EPOCH)
            left = group_wire.assigned(wire.ask(member.connection, request))
            _check("ConsumerGroupHeartbeat", left.error, left.message)


def _rebalance(crew: Crew[M], repetitions: int) -> tuple[float, float]:
    """The seconds to form the group, and to take in one more: the median of the repetitions."""
    try:
        forming = crew.settle(crew.connect(MEMBERS))
        seconds = []
        for _ in range(repetitions):
            crew.rest(crew.rest_seconds)
            newcomer = crew.connect(1)
            seconds.append(crew.settle(newcomer))
            crew.part(newcomer)
            crew.settle([])
        crew.part(list(crew.members))
        return forming, statistics.median(seconds)
    finally:
        crew.close()


def wait_for_coordinator(bootstrap: str, group: str) -> None:
    """A broker may set its coordinator up when first asked; only one that works refuses an unknown member as such."""
    until = time.monotonic() + _TIMEOUT_SECONDS
    with wire.connect(bootstrap) as connection:
        while time.monotonic() < until:
            wire.ask(connection, group_wire.find_coordinator(group))
            if (
                group_wire.plain_error(wire.ask(connection, group_wire.heartbeat(group, 1, "nobody")))
                == _UNKNOWN_MEMBER
            ):
                return
            time.sleep(0.1)
    raise RuntimeError("no coordinator became available")


def _check(request: str, error: int, message: str = "") -> None:
    if error:
        raise RuntimeError(f"{request} responded with error {error} {message}".rstrip())
