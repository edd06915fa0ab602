"""How groups, members, lags and moves of offsets are shown: tables for people, documents for scripts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millstream.cli.group_admin import Group, Place, Position
from millstream.cli.offset_reset import Move
from millstream.cli.terminal import note, print_json, print_table

if TYPE_CHECKING:
    from millstream.client import Client


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a group is behind in one partition; None where it has no offset or the partition is gone."""

    topic: str
    partition: int
    offset: int | None
    end: int | None
    member: str | None
    host: str | None
    counted: int | None = None
    """The broker's own count of what is left: in a queue, records behind the start may be done already."""

    @property
    def lag(self) -> int | None:
        if self.counted is not None:
            return self.counted
        return None if self.offset is None or self.end is None else max(0, self.end - self.offset)


def lags_of(client: "Client", group: Group, committed: Mapping[Place, Position]) -> list[Lag]:
    """All partitions that the group has offsets for or that a member has, with their ends."""
    from millstream.client.errors import TopicNotFoundError
    from millstream.client.topics import LATEST

    owners = {place: member for member in group.members for place in member.partitions}
    places = sorted({*committed, *owners})
    ends: dict[Place, int] = {}
    for topic in dict.fromkeys(topic for topic, _ in places):
        wanted = [partition for name, partition in places if name == topic]
        try:
            existing = set(client.topics.partitions(topic))
        except TopicNotFoundError:
            continue  # the topic is gone; the offsets may outlive it
        found = client.topics.offsets(topic, {partition: LATEST for partition in wanted if partition in existing})
        ends.update({(topic, partition): end for partition, end in found.items()})
    lags = []
    for place in places:
        owner, position = owners.get(place), committed.get(place)
        member, host = (None, None) if owner is None else (owner.client or owner.id, owner.host)
        offset, counted = (None, None) if position is None else position
        lags.append(Lag(*place, offset, ends.get(place), member, host, counted))
    return lags


def group_document(group: Group) -> dict[str, Any]:
    return {
        "group": group.group,
        "type": group.type,
        "state": group.state,
        "assignor": group.assignor,
        "coordinator": group.coordinator,
        "members": [
            {
                "id": member.id,
                "client": member.client,
                "host": member.host,
                "instance": member.instance,
                "partitions": [{"topic": topic, "partition": number} for topic, number in member.partitions],
            }
            for member in group.members
        ],
    }


def lag_document(name: str, lags: list[Lag]) -> dict[str, Any]:
    return {
        "group": name,
        "lag": sum(row.lag or 0 for row in lags),
        "partitions": [
            {
                "topic": row.topic,
                "partition": row.partition,
                "offset": row.offset,
                "end": row.end,
                "lag": row.lag,
                "member": row.member,
                "host": row.host,
            }
            for row in lags
        ],
    }


def show_group(group: Group) -> None:
    plural = "" if len(group.members) == 1 else "s"
    print(
        f"{group.group}  {group.type}  {group.state}  {len(group.members)} member{plural}"
        f"{f'  assignor {group.assignor}' if group.assignor else ''}  coordinator {group.coordinator}"
    )


def show_members(group: Group) -> None:
    if not group.members:
        note(f"{group.group} has no members")
        return
    print_table(
        ("member", "client", "host", "instance", "partitions"),
        [(row.id, row.client, row.host, row.instance, _places(row.partitions)) for row in group.members],
    )


def _places(places: Iterable[Place]) -> str:
    """orders:0,1,2 payments:0"""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(places):
        by_topic.setdefault(topic, []).append(partition)
    return " ".join(f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in by_topic.items())


def show_lags(lags: list[Lag], offset_column: str) -> None:
    if not lags:
        note("no offsets yet")
        return
    print_table(
        ("topic", "partition", offset_column, "end", "lag", "client", "host"),
        [(row.topic, row.partition, row.offset, row.end, row.lag, row.member, row.host) for row in lags],
    )
    print(f"lag {sum(row.lag or 0 for row in lags)}")


def show_moves(group: str, moves: list[Move], *, executed: bool, json: bool) -> None:
    if json:
        rows = [
            {"topic": row.topic, "partition": row.partition, "old": row.old, "new": row.new, "clamped": row.is_clamped}
            for row in moves
        ]
        print_json({"group": group, "executed": executed and bool(moves), "partitions": rows})
        return
    if not moves:
        note("nothing to move: the group has no offsets there")
        return
    print_table(
        ("topic", "partition", "old", "", "new", ""),
        [
            (row.topic, row.partition, row.old, "->", row.new, "nearest offset there is" if row.is_clamped else "")
            for row in moves
        ],
    )
    print("moved" if executed else "nothing was changed: add --execute to do it")
