"""Members of KIP-848 groups on one connection: they join, confirm what they got, and leave.

A group is stable when all its members are at one epoch and own together every partition of the topic exactly once,
evenly.
"""

from __future__ import annotations

import itertools
import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.compare import group_wire, wire
from benchmarks.compare.loads.rebalance import wait_for_coordinator

_STABLE_SECONDS = 180.0
_RETRIABLE = {14, 15, 16}  # a coordinator that still loads


@dataclass
class Member:
    group: str
    member_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    epoch: int = group_wire.JOIN_EPOCH
    owned: dict[bytes, list[int]] = field(default_factory=dict)
    reported: dict[bytes, list[int]] | None = None  # what the coordinator was told last


@dataclass(frozen=True, slots=True)
class Formed:
    members: list[Member]
    seconds: float


@contextmanager
def stable(bootstrap: str, topic: str, partitions: int, groups: Sequence[tuple[str, int]]) -> Iterator[Formed]:
    """Groups with that many members each, all of them stable on the partitions of the topic; gone afterwards."""
    wait_for_coordinator(bootstrap, groups[0][0])
    members = [Member(group) for group, count in groups for _ in range(count)]
    with wire.connect(bootstrap) as connection:
        started = time.monotonic()
        for member in members:
            _beat(connection, member, topic)
        while not _all_stable(members, partitions):
            if time.monotonic() - started > _STABLE_SECONDS:
                raise RuntimeError(f"given up: {len(members)} members not stable after {_STABLE_SECONDS:.0f} s")
            for member in members:
                _beat(connection, member, None)
        formed = Formed(members, time.monotonic() - started)
        try:
            yield formed
        finally:
            for member in members:
                leaving = group_wire.consumer_heartbeat(member.group, member.member_id, group_wire.LEAVE_EPOCH)
                wire.ask(connection, leaving)


def check_heartbeat(response: bytes) -> None:
    found = group_wire.assigned(response)
    if found.error:
        raise RuntimeError(f"ConsumerGroupHeartbeat has error {found.error} {found.message}")


def _all_stable(members: Sequence[Member], partitions: int) -> bool:
    groups: dict[str, list[Member]] = {}
    for member in members:
        if member.owned != member.reported:
            return False
        groups.setdefault(member.group, []).append(member)
    return all(_is_stable(of_group, partitions) for of_group in groups.values())


def _is_stable(members: Sequence[Member], partitions: int) -> bool:
    """The brokers assign at intervals: for a while one member has everything, and all are at its epoch."""
    owned = [[each for of_topic in member.owned.values() for each in of_topic] for member in members]
    sizes = [len(each) for each in owned]
    return (
        len({member.epoch for member in members}) == 1
        and max(sizes) - min(sizes) <= 1
        and sorted(itertools.chain(*owned)) == list(range(partitions))
    )


def _beat(connection: socket.socket, member: Member, topic: str | None) -> None:
    news = member.owned if topic is not None or member.owned != member.reported else None
    request = group_wire.consumer_heartbeat(member.group, member.member_id, member.epoch, topic=topic, owned=news)
    while True:
        found = group_wire.assigned(wire.ask(connection, request))
        if found.error not in _RETRIABLE:
            break
        time.sleep(0.05)
    if found.error:
        raise RuntimeError(f"ConsumerGroupHeartbeat has error {found.error} {found.message}")
    if news is not None:
        member.reported = news
    member.epoch = found.epoch
    if found.partitions is not None:
        member.owned = found.partitions
