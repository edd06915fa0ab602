"""Output of the group commands: tables for people, documents for scripts."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from millstream.cli.terminal import note, print_json, print_table
from millstream.common.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from millstream.admin.groups import Group, GroupAdmin
    from millstream.admin.offsets import OffsetMove
    from millstream.raw_client import TopicPartition


@dataclass(frozen=True, slots=True)
class Lag:
    """A row of the lag table. Values are None if the group has no offset or the partition does not exist any more."""

    partition: "TopicPartition"
    offset: int | None
    end: int | None
    lag: int | None
    client: str | None
    host: str | None


def lags_of(admin: "GroupAdmin", group: "Group") -> list[Lag]:
    """All partitions in which the group has an offset, and all that are assigned to a member."""
    progress = admin.progress(group.name, share=group.type == "share")
    owners = {partition: member for member in group.members for partition in member.assignment}
    ends = {each: row.end for each, row in progress.items() if row.end >= 0}
    ends |= admin.ends([each for each in owners if each not in progress])
    lags = []
    for each in sorted({*progress, *owners}):
        owner, row = owners.get(each), progress.get(each)
        client, host = (None, None) if owner is None else (owner.client_id or owner.member_id, owner.host)
        offset, lag = (None, None) if row is None else (row.offset, row.lag)
        lags.append(Lag(each, offset, ends.get(each), lag, client, host))
    return lags


def group_document(group: "Group") -> dict[str, Any]:
    return {
        "group": group.name,
        "type": group.type,
        "state": group.state,
        "assignor": group.assignor,
        "coordinator": group.coordinator_address,
        "members": [
            {
                "id": member.member_id,
                "client": member.client_id,
                "host": member.host,
                "instance": member.instance_id,
                "partitions": [{"topic": topic, "partition": index} for topic, index in member.assignment],
            }
            for member in group.members
        ],
    }


def lag_document(name: str, lags: Sequence[Lag]) -> dict[str, Any]:
    return {
        "group": name,
        "lag": sum(row.lag or 0 for row in lags),
        "partitions": [
            {
                "topic": row.partition.topic,
                "partition": row.partition.partition,
                "offset": row.offset,
                "end": row.end,
                "lag": row.lag,
                "member": row.client,
                "host": row.host,
            }
            for row in lags
        ],
    }


def show_group(group: "Group") -> None:
    plural = "" if len(group.members) == 1 else "s"
    print(
        f"{group.name}  {group.type}  {group.state}  {len(group.members)} member{plural}"
        f"{f'  assignor {group.assignor}' if group.assignor else ''}  coordinator {group.coordinator_address}"
    )


def show_members(group: "Group") -> None:
    if not group.members:
        note(f"{group.name} has no members")
        return
    print_table(
        ("member", "client", "host", "instance", "partitions"),
        [
            (row.member_id, row.client_id, row.host, row.instance_id, _partitions_text(row.assignment))
            for row in group.members
        ],
    )


def _partitions_text(partitions: "Iterable[TopicPartition]") -> str:
    """orders:0,1,2 payments:0"""
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        by_topic.setdefault(topic, []).append(index)
    return " ".join(f"{topic}:{','.join(map(str, indexes))}" for topic, indexes in by_topic.items())


def show_lags(lags: Sequence[Lag], offset_column: str) -> None:
    if not lags:
        note("no offsets yet")
        return
    print_table(
        ("topic", "partition", offset_column, "end", "lag", "client", "host"),
        [(*row.partition, row.offset, row.end, row.lag, row.client, row.host) for row in lags],
    )
    print(f"lag {sum(row.lag or 0 for row in lags)}")


def show_moves(group: str, moves: "Sequence[OffsetMove]", *, executed: bool, json: bool) -> None:
    if json:
        rows = [
            {
                "topic": row.partition.topic,
                "partition": row.partition.partition,
                "old": row.old,
                "new": row.new,
                "clamped": row.is_clamped,
            }
            for row in moves
        ]
        print_json({"group": group, "executed": executed and bool(moves), "partitions": rows})
        return
    if not moves:
        note("nothing to move: the group has no offsets in these partitions")
        return
    print_table(
        ("topic", "partition", "old", "", "new", ""),
        [
            (*row.partition, row.old, "->", row.new, "nearest offset in the log" if row.is_clamped else "")
            for row in moves
        ],
    )
    print("moved" if executed else "nothing was changed: add --execute to do it")
