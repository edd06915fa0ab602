"""Offsets of a consumer group that has no members: committed and read for it from outside."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from millstream.formats.protocol.schema import Message
from millstream.raw_client.coordinators import CoordinatorKind
from millstream.raw_client.errors import error_code, refusal
from millstream.raw_client.topics import TopicPartition

AskCoordinator = Callable[..., Message]
_LAST_WITH_NAMES = 9
"""Later versions go by topic ids; with names, a commit needs no look at the metadata."""
_NO_OFFSET = -1


def commit_offsets(ask: AskCoordinator, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    if not offsets:
        return
    rows: dict[str, list[dict[str, Any]]] = {}
    for (topic, partition), offset in offsets.items():
        row = {"partition_index": partition, "committed_offset": offset, "committed_metadata": ""}
        rows.setdefault(topic, []).append(row)
    answer = ask(
        group,
        CoordinatorKind.GROUP,
        "offset_commit",
        at_most=_LAST_WITH_NAMES,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[{"name": name, "partitions": found} for name, found in rows.items()],
    )
    for topic in answer.topics:
        for row in topic.partitions:
            _check(group, TopicPartition(topic.name, row.partition_index), row.error_code)


def committed_offsets(
    ask: AskCoordinator, group: str, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    if not partitions:
        return {}
    indexes: dict[str, list[int]] = {}
    for topic, partition in partitions:
        indexes.setdefault(topic, []).append(partition)
    topics = [{"name": name, "partition_indexes": found} for name, found in indexes.items()]
    answer = ask(
        group,
        CoordinatorKind.GROUP,
        "offset_fetch",
        at_most=_LAST_WITH_NAMES,
        groups=[{"group_id": group, "topics": topics}],
        group_id=group,
        topics=topics,
        require_stable=True,
    )
    of_group = answer.groups[0] if answer.groups else answer
    if of_group.error_code:
        raise refusal(f"group {group!r}", error_code(of_group.error_code))
    found: dict[TopicPartition, int] = {}
    for topic in of_group.topics:
        for row in topic.partitions:
            place = TopicPartition(topic.name, row.partition_index)
            _check(group, place, row.error_code)
            if row.committed_offset != _NO_OFFSET:
                found[place] = row.committed_offset
    return found


def _check(group: str, place: TopicPartition, number: int) -> None:
    if number:
        code = error_code(number)
        about_group = code.name.startswith(("GROUP", "INVALID_GROUP")) or code.name in _OF_MEMBERS
        raise refusal(f"group {group!r}" if about_group else f"offset of group {group!r} for {place}:", code)


_OF_MEMBERS = frozenset({"UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS"})
