"""Moves the committed offsets of a group: the plan, the requests, and the dialog with a preview.

An offset outside the log of a partition is set to the nearest end of the log, and the preview marks it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from millstream.console.console import UserError
from millstream.console.live.reading import SHARE
from millstream.console.live.snapshot import Group
from millstream.formats.model.errors import ErrorCode
from millstream.raw_client import EARLIEST, LATEST, Cluster, CoordinatorKind, TopicPartition
from millstream.raw_client.errors import error_code, refusal


class Where(Enum):
    EARLIEST = "to the earliest offset"
    LATEST = "to the latest offset"
    TIME = "to a time"
    OFFSET = "to an offset"
    SHIFT = "shift by"


@dataclass(frozen=True, slots=True)
class Target:
    where: Where
    number: int = 0
    """An offset, a shift, or milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Move:
    place: TopicPartition
    old: int | None
    new: int
    clamped: bool


def target_of(where: Where, text: str) -> Target:
    """What was typed beside the choice."""
    if where in (Where.EARLIEST, Where.LATEST):
        return Target(where)
    text = text.strip()
    if where is Where.TIME:
        try:
            return Target(where, int(datetime.fromisoformat(text).timestamp() * 1000))
        except (ValueError, OverflowError, OSError):
            raise UserError("not a time: enter a time such as 2026-01-31T12:00 or 2026-01-31T12:00:00Z") from None
    try:
        number = int(text.replace(",", "").replace("_", ""))
    except ValueError:
        raise UserError("not a whole number: enter a number such as 42 or -100") from None
    if where is Where.OFFSET and number < 0:
        raise UserError("an offset cannot be negative: choose 'shift by' to move back")
    return Target(where, number)


def plan(
    cluster: Cluster, committed: Mapping[TopicPartition, int], places: Collection[TopicPartition], target: Target
) -> list[Move]:
    """The moves, in order; nothing is changed."""
    lows = cluster.offsets(dict.fromkeys(places, EARLIEST))
    highs = cluster.offsets(dict.fromkeys(places, LATEST), read_committed=False)
    at_time = cluster.offsets(dict.fromkeys(places, target.number)) if target.where is Where.TIME else {}
    moves = []
    for place in sorted(places):
        low, high, old = lows[place].offset, highs[place].offset, committed.get(place)
        match target.where:
            case Where.EARLIEST:
                new = low
            case Where.LATEST:
                new = high
            case Where.TIME:
                new = high if at_time[place].offset < 0 else at_time[place].offset
            case Where.OFFSET:
                new = target.number
            case Where.SHIFT:
                if old is None:
                    continue  # there is nothing to shift
                new = old + target.number
        moves.append(Move(place, old, min(max(new, low), high), not low <= new <= high))
    return moves


def carry_out(cluster: Cluster, group: Group, moves: Sequence[Move]) -> None:
    """The group must have no members: they would write over it."""
    refuse_if_active(group)
    offsets = {move.place: move.new for move in moves}
    if group.kind != SHARE:
        cluster.commit_offsets(group.name, offsets)
        return
    topics: dict[str, list[dict[str, int]]] = {}
    for (topic, partition), offset in offsets.items():
        topics.setdefault(topic, []).append({"partition_index": partition, "start_offset": offset})
    answer = cluster.call_coordinator(
        group.name,
        CoordinatorKind.GROUP,
        "alter_share_group_offsets",
        group_id=group.name,
        topics=[{"topic_name": topic, "partitions": rows} for topic, rows in topics.items()],
    )
    for row in (answer, *(row for topic in answer.responses for row in topic.partitions)):
        _check(group.name, row.error_code, getattr(row, "error_message", None))


def delete_group(cluster: Cluster, group: Group) -> None:
    refuse_if_active(group)
    answer = cluster.call_coordinator(group.name, CoordinatorKind.GROUP, "delete_groups", groups_names=[group.name])
    for row in answer.results:
        _check(group.name, row.error_code, None)


def refuse_if_active(group: Group) -> None:
    if group.members:
        count = len(group.members)
        raise UserError(
            f"group {group.name!r} has {count} active member{'' if count == 1 else 's'}: stop them first, or wait until"
            " their session times out"
        )


def _check(group: str, number: int, message: str | None) -> None:
    if number:
        code = error_code(number)
        if code in (ErrorCode.NON_EMPTY_GROUP, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC):
            raise UserError(f"group {group!r} has active members: stop them first ({code.name})")
        raise refusal(f"group {group!r}", code, message)
