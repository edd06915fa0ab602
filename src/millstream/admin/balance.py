"""Plans reassignments: to even out the load of brokers, to empty a broker, or to place chosen partitions. Pure.

Moving data takes hours, so the plan has as few moves as possible. It considers, in this order: the machines of a
partition and its zones (`broker.rack`), the number of replicas of a broker, their size, and the number of partitions of
which a broker is the preferred leader. For the last, only the order of replicas changes, and no data is moved.

No move costs a partition a machine or a zone. A broker is a process: a machine with several of them gets as many
replicas for each as other machines do, as far as machines allow it.
"""

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.placement import Place, Used, default_machine

BYTES_TOLERANCE = 0.1
"""Data is not moved between brokers whose sizes differ by less than this part of the mean."""
_NEIGHBOURS = 12
"""Replicas of about the right size that are tried for an exchange, on each side. Many cannot move, because the other
broker has a replica of the same partition already."""

_Level = Callable[[Place], str | None]


def _machine(place: Place) -> str | None:
    return place.machine


def _zone(place: Place) -> str | None:
    return place.zone


_LedBy = dict[int, dict[int, None]]
"""The partitions of which each broker is the preferred leader, in a deterministic order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSlot:
    """A broker that replicas can be moved to."""

    id: int
    rack: str | None = None
    machine: str | None = None
    """None for a machine of its own."""

    @property
    def place(self) -> Place:
        return Place(self.rack, self.machine or default_machine(self.id))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLoad:
    topic: str
    partition: int
    replicas: tuple[int, ...]
    """The preferred leader first."""
    size_bytes: int = 0
    """The size of one replica."""
    internal: bool = False
    """An internal topic: it may have fewer replicas when there are fewer brokers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedReassignment:
    topic: str
    partition: int
    before: tuple[int, ...]
    replicas: tuple[int, ...]
    moved_bytes: int
    """The bytes that new replicas have to copy; 0 if only the preferred leader changes."""

    @property
    def adding(self) -> tuple[int, ...]:
        return tuple(broker for broker in self.replicas if broker not in self.before)

    @property
    def removing(self) -> tuple[int, ...]:
        return tuple(broker for broker in self.before if broker not in self.replicas)


def plan_balance(brokers: Sequence[BrokerSlot], partitions: Sequence[PartitionLoad]) -> list[PlannedReassignment]:
    """The reassignments that even out the load of the brokers; empty if it is even.

    Replicas on brokers that are not in `brokers` are not moved.
    """
    plan = _Plan(brokers, partitions)
    if brokers:
        plan.spread()
        plan.even_replicas()
        plan.even_bytes()
        plan.even_leaders(range(len(partitions)))
    return plan.changes()


def plan_drain(
    brokers: Sequence[BrokerSlot], partitions: Sequence[PartitionLoad], *broker_ids: int
) -> list[PlannedReassignment]:
    """The reassignments that empty one broker, or several: those of a machine.

    INVALID_REPLICATION_FACTOR if too few other brokers are left.
    """
    plan = _Plan([broker for broker in brokers if broker.id not in broker_ids], partitions)
    touched = [index for index, each in enumerate(partitions) if not set(broker_ids).isdisjoint(each.replicas)]
    for index in sorted(touched, key=lambda index: -partitions[index].size_bytes):
        for broker_id in broker_ids:
            if broker_id in partitions[index].replicas:
                plan.replace_or_drop(index, broker_id)
    plan.even_leaders(touched)
    return plan.changes()


def plan_assignment(
    brokers: Sequence[BrokerSlot],
    partitions: Sequence[PartitionLoad],
    chosen: Collection[int],
    targets: Collection[int] | None = None,
    replication_factor: int | None = None,
) -> list[PlannedReassignment]:
    """The reassignments that place the chosen partitions, by index, on the targets, with so many replicas each.

    Replicas that are on a target stay, as far as the number of replicas allows it. Without targets, replicas stay where
    they are, and new ones go to any broker; without a factor, their number stays. INVALID_REPLICATION_FACTOR if there
    are too few targets.
    """
    plan = _Plan([broker for broker in brokers if targets is None or broker.id in targets], partitions)
    for index in sorted(chosen, key=lambda index: -partitions[index].size_bytes):
        if targets is not None:
            plan.leave(index, targets, replication_factor or len(partitions[index].replicas))
        if replication_factor is not None:
            plan.resize(index, replication_factor)
    plan.even_leaders([index for index in chosen if plan.has_other_leader(index)])
    return plan.changes()


class _Plan:
    """The planned replicas of all partitions. The methods change it step by step."""

    def __init__(self, brokers: Iterable[BrokerSlot], partitions: Sequence[PartitionLoad]) -> None:
        self._places = {broker.id: broker.place for broker in brokers}
        self._brokers = sorted(self._places)
        self._partitions = partitions
        self._replicas = [list(partition.replicas) for partition in partitions]
        self._count: Counter[int] = Counter()
        self._bytes: Counter[int] = Counter()
        self._held: dict[int, list[tuple[int, int]]] = {broker: [] for broker in self._brokers}
        """The partitions of each broker as (size, index), smallest first."""
        for index, partition in enumerate(partitions):
            for broker in partition.replicas:
                if broker in self._places:
                    self._count[broker] += 1
                    self._bytes[broker] += partition.size_bytes
                    self._held[broker].append((partition.size_bytes, index))
        for held in self._held.values():
            held.sort()

    def changes(self) -> list[PlannedReassignment]:
        return [
            PlannedReassignment(
                topic=partition.topic,
                partition=partition.partition,
                before=partition.replicas,
                replicas=tuple(replicas),
                moved_bytes=len(set(replicas) - set(partition.replicas)) * partition.size_bytes,
            )
            for partition, replicas in zip(self._partitions, self._replicas, strict=True)
            if tuple(replicas) != partition.replicas
        ]

    # Replicas

    def spread(self) -> None:
        """Moves replicas so that each partition is on as many machines, and in as many zones, as possible."""
        for index, replicas in enumerate(self._replicas):
            for level in (_machine, _zone):
                while (giver := self._double(replicas, level)) is not None:
                    used = Used(self._places, (broker for broker in replicas if broker != giver))
                    taken = {level(self._places[broker]) for broker in replicas if broker in self._places}
                    elsewhere = [
                        broker
                        for broker in self._brokers
                        if level(self._places[broker]) not in taken and self._may_move(index, giver, broker)
                    ]
                    if not elsewhere:
                        break
                    self._move(index, giver, min(elsewhere, key=lambda other: (*used.cost(other), *self._load(other))))

    def _double(self, replicas: Sequence[int], level: _Level, movable: Sequence[int] | None = None) -> int | None:
        """The broker with the highest load among the replicas that share a machine, or a zone, with another one.

        If replicas share a zone, one that shares a machine too goes first. `movable`: only one of these.
        """
        known = [broker for broker in replicas if broker in self._places]
        shared = Counter(level(self._places[broker]) for broker in known)
        machines = Counter(self._places[broker].machine for broker in known)
        doubles = [
            broker
            for broker in known
            if shared[level(self._places[broker])] > 1 and (movable is None or broker in movable)
        ]
        return max(
            doubles, key=lambda broker: (machines[self._places[broker].machine], *self._load(broker)), default=None
        )

    def even_replicas(self) -> None:
        """Moves replicas until no broker has two replicas more than a broker that could take one."""
        while self._give_one():
            pass

    def _give_one(self) -> bool:
        takers = sorted(self._brokers, key=self._load)
        for giver in reversed(takers):
            for taker in takers:
                if self._count[giver] - self._count[taker] < 2:
                    break
                index = self._best_to_give(giver, taker)
                if index is not None:
                    self._move(index, giver, taker)
                    return True
        return False

    def _best_to_give(self, giver: int, taker: int) -> int | None:
        """The partition whose move makes the sizes of the two brokers most equal."""
        held = self._held[giver]
        position = bisect_left(held, ((self._bytes[giver] - self._bytes[taker]) // 2, 0))
        for distance in range(len(held) + 1):
            for at in (position - 1 - distance, position + distance):
                if 0 <= at < len(held) and self._may_move(held[at][1], giver, taker):
                    return held[at][1]
        return None

    def even_bytes(self) -> None:
        """Exchanges large replicas for small ones between brokers whose sizes differ by more than the tolerance."""
        if not self._brokers:
            return
        tolerance = BYTES_TOLERANCE * sum(self._bytes[broker] for broker in self._brokers) / len(self._brokers)
        for _ in range(len(self._partitions)):
            if not self._exchange_one(tolerance):
                return

    def _exchange_one(self, tolerance: float) -> bool:
        by_bytes = sorted(self._brokers, key=lambda broker: (self._bytes[broker], broker))
        for heavy in reversed(by_bytes):
            for light in by_bytes:
                gap = self._bytes[heavy] - self._bytes[light]
                if gap <= tolerance:
                    break
                # Moving one replica costs less than exchanging two.
                if self._count[heavy] > self._count[light] and self._move_best(heavy, light, gap, tolerance):
                    return True
                if self._exchange_best(heavy, light, gap, tolerance):
                    return True
        return False

    def _move_best(self, heavy: int, light: int, gap: int, tolerance: float) -> bool:
        index = self._best_to_give(heavy, light)
        if index is None or not _worth_it(self._partitions[index].size_bytes, gap, tolerance):
            return False
        self._move(index, heavy, light)
        return True

    def _exchange_best(self, heavy: int, light: int, gap: int, tolerance: float) -> bool:
        best: tuple[float, int, int] | None = None
        small = self._held[light]
        for size, index in reversed(self._held[heavy]):
            if not self._may_move(index, heavy, light):
                continue
            at = bisect_left(small, (size - gap // 2, 0))
            for _, other in small[max(0, at - _NEIGHBOURS) : at + _NEIGHBOURS]:
                difference = size - self._partitions[other].size_bytes
                if not _worth_it(difference, gap, tolerance) or not self._may_move(other, light, heavy):
                    continue
                miss = abs(difference - gap / 2)
                if best is None or miss < best[0]:
                    best = miss, index, other
        if best is None:
            return False
        self._move(best[1], heavy, light)
        self._move(best[2], light, heavy)
        return True

    def replace_or_drop(self, index: int, broker: int) -> None:
        """Moves a replica to another broker. If there is none, an internal topic loses the replica."""
        partition, replicas = self._partitions[index], self._replicas[index]
        free = [other for other in self._brokers if other not in replicas]
        if free:
            used = Used(self._places, (other for other in replicas if other != broker))
            taker = min(free, key=lambda other: (*used.cost(other), *self._load(other)))
            self._move(index, broker, taker)
        elif partition.internal and len(replicas) > 1:
            replicas.remove(broker)
        else:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"{partition.topic}-{partition.partition} has {len(replicas)} replica(s), and only "
                f"{len(self._brokers)} broker(s) would be left: add a broker, or lower the replication factor first.",
            )

    def has_other_leader(self, index: int) -> bool:
        """Whether the plan changes the preferred leader."""
        return self._replicas[index][0] != self._partitions[index].replicas[0]

    def leave(self, index: int, targets: Collection[int], wanted: int) -> None:
        """Takes a partition off all brokers that are no targets. Replicas above the wanted number are not replaced."""
        for broker in [each for each in self._replicas[index] if each not in targets]:
            if len(self._replicas[index]) > wanted:
                self._drop(index, broker)
            else:
                self.replace_or_drop(index, broker)

    def resize(self, index: int, wanted: int) -> None:
        """Adds or removes replicas of a partition. The preferred leader stays."""
        partition, replicas = self._partitions[index], self._replicas[index]
        while len(replicas) > wanted:
            others = replicas[1:]
            doubles = [
                *(broker for broker in others if broker not in self._places),
                *(self._double(replicas, level, others) for level in (_machine, _zone)),
                max(others, key=self._load),
            ]
            self._drop(index, next(broker for broker in doubles if broker is not None))
        while len(replicas) < wanted:
            free = [broker for broker in self._brokers if broker not in replicas]
            if not free:
                raise KafkaError(
                    ErrorCode.INVALID_REPLICATION_FACTOR,
                    f"{partition.topic}-{partition.partition} cannot have {wanted} replicas: only {len(replicas)} "
                    "broker(s) can have one.",
                )
            used = Used(self._places, replicas)
            taker = min(free, key=lambda other: (*used.cost(other), *self._load(other)))
            replicas.append(taker)
            self._hold(index, taker)

    def _load(self, broker: int) -> tuple[int, int, int]:
        return self._count[broker], self._bytes[broker], broker

    def _may_move(self, index: int, giver: int, taker: int) -> bool:
        replicas = self._replicas[index]
        if taker in replicas:
            return False
        before, after = self._places[giver], self._places[taker]
        if before == after:
            return True
        others = [self._places[broker] for broker in replicas if broker != giver and broker in self._places]
        machines, zones = {place.machine for place in others}, {place.zone for place in others}
        return (after.machine not in machines or before.machine in machines) and (
            after.zone not in zones or before.zone in zones
        )

    def _move(self, index: int, giver: int, taker: int) -> None:
        replicas = self._replicas[index]
        replicas[replicas.index(giver)] = taker
        self._hold(index, taker)
        self._release(index, giver)

    def _drop(self, index: int, broker: int) -> None:
        self._replicas[index].remove(broker)
        self._release(index, broker)

    def _hold(self, index: int, broker: int) -> None:
        size = self._partitions[index].size_bytes
        insort(self._held[broker], (size, index))
        self._count[broker] += 1
        self._bytes[broker] += size

    def _release(self, index: int, broker: int) -> None:
        if broker in self._places:
            size, held = self._partitions[index].size_bytes, self._held[broker]
            del held[bisect_left(held, (size, index))]
            self._count[broker] -= 1
            self._bytes[broker] -= size

    # Leaders

    def even_leaders(self, movable: Collection[int]) -> None:
        """Changes the order of replicas of these partitions, so that brokers are preferred leaders of about as many.

        If a broker with too many shares no partition with a broker with too few, leadership moves through brokers in
        between.
        """
        led: Counter[int] = Counter(replicas[0] for replicas in self._replicas)
        first: _LedBy = {broker: {} for broker in self._brokers}
        for index in movable:
            if self._replicas[index][0] in first:
                first[self._replicas[index][0]][index] = None
        while self._pass_on_one(led, first):
            pass

    def _pass_on_one(self, led: Counter[int], first: _LedBy) -> bool:
        for giver in sorted(self._brokers, key=lambda broker: (-led[broker], broker)):
            path = self._path(giver, led, first)
            if path is not None:
                for index, old, new in path:
                    replicas = self._replicas[index]
                    at = replicas.index(new)
                    replicas[0], replicas[at] = new, old
                    del first[old][index]
                    first[new][index] = None
                    led[old] -= 1
                    led[new] += 1
                return True
        return False

    def _path(self, giver: int, led: Counter[int], first: _LedBy) -> list[tuple[int, int, int]] | None:
        """The shortest chain of moves to a broker that leads at least two partitions less: (partition, from, to)."""
        if led[giver] - min(led[broker] for broker in self._brokers) < 2:
            return None
        came_by: dict[int, tuple[int, int]] = {}
        reached = {giver}
        waiting = deque([giver])
        while waiting:
            broker = waiting.popleft()
            for index in first[broker]:
                for other in self._replicas[index][1:]:
                    if other in reached or other not in self._places:
                        continue
                    reached.add(other)
                    came_by[other] = index, broker
                    if led[giver] - led[other] >= 2:
                        return _steps(came_by, giver, other)
                    waiting.append(other)
        return None


def _worth_it(difference: int, gap: int, tolerance: float) -> bool:
    """Whether the gap becomes smaller by more than half of the tolerance."""
    return gap - abs(gap - 2 * difference) > tolerance / 2


def _steps(came_by: Mapping[int, tuple[int, int]], giver: int, taker: int) -> list[tuple[int, int, int]]:
    steps = []
    while taker != giver:
        index, broker = came_by[taker]
        steps.append((index, broker, taker))
        taker = broker
    return steps
