"""Share groups for the command line. librdkafka has no admin calls for them, so these go over the wire room."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from millstream.cli.group_admin import Group, Listed, Member, Place, Position, group_refusal
from millstream.cli.wire_cluster import wire_cluster
from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.raw_client import CoordinatorKind

if TYPE_CHECKING:
    from millstream.client import Client

SHARE = "share"


class ShareGroups:
    def __init__(self, client: "Client") -> None:
        self._cluster = wire_cluster(client.connection)

    def list(self) -> list[Listed]:
        found = {}
        for answer in self._cluster.call_every_broker("list_groups", states_filter=[], types_filter=[SHARE]).values():
            for row in answer.groups:
                found[row.group_id] = Listed(row.group_id, row.group_type.lower(), row.group_state)
        return [found[name] for name in sorted(found)]

    def describe(self, group: str) -> Group | None:
        answer = self._ask(group, "share_group_describe", group_ids=[group])
        row = answer.groups[0]
        if row.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            return None
        _check(group, row)
        coordinator = self._cluster.coordinator_of(group, CoordinatorKind.GROUP)
        members = [
            Member(
                member.member_id,
                member.client_id,
                member.client_host.lstrip("/"),
                None,
                [
                    (topic.topic_name, partition)
                    for topic in member.assignment.topic_partitions
                    for partition in topic.partitions
                ],
            )
            for member in row.members
        ]
        return Group(group, SHARE, row.group_state, row.assignor_name, str(coordinator), members)

    def offsets(self, group: str) -> dict[Place, Position]:
        answer = self._ask(group, "describe_share_group_offsets", groups=[{"group_id": group, "topics": None}])
        _check(group, answer.groups[0])
        return {
            (topic.topic_name, row.partition_index): Position(row.start_offset, row.lag if row.lag >= 0 else None)
            for topic in answer.groups[0].topics
            for row in topic.partitions
            if row.error_code == ErrorCode.NONE and row.start_offset >= 0
        }

    def set_offsets(self, group: str, offsets: Mapping[Place, int]) -> None:
        topics: dict[str, list[dict[str, int]]] = {}
        for (topic, partition), offset in offsets.items():
            topics.setdefault(topic, []).append({"partition_index": partition, "start_offset": offset})
        answer = self._ask(
            group,
            "alter_share_group_offsets",
            group_id=group,
            topics=[{"topic_name": topic, "partitions": rows} for topic, rows in topics.items()],
        )
        _check(group, answer)
        for row in _partition_rows(answer):
            _check(group, row)

    def delete(self, group: str) -> None:
        answer = self._ask(group, "delete_groups", groups_names=[group])
        _check(group, answer.results[0])

    def _ask(self, group: str, api: str, **fields: Any) -> Message:
        return self._cluster.call_coordinator(group, CoordinatorKind.GROUP, api, **fields)


def _partition_rows(answer: Message) -> Iterator[Message]:
    for topic in answer.responses:
        yield from topic.partitions


def _check(group: str, row: Message) -> None:
    if row.error_code != ErrorCode.NONE:
        try:
            name = ErrorCode(row.error_code).name
        except ValueError:
            name = f"error {row.error_code}"
        raise group_refusal(group, name, getattr(row, "error_message", None) or "the broker refused")
