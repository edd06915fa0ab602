"""Share groups for the command line. librdkafka has no admin calls for them, so these go over `wire_client`."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from millstream.cli.group_admin import Group, Listed, Member, Place, Position, group_refusal
from millstream.cli.wire_client import WireClient, WireCluster
from millstream.model.errors import ErrorCode
from millstream.protocol.schema import Message

if TYPE_CHECKING:
    from millstream.client import Client

SHARE = "share"


class ShareGroups:
    def __init__(self, client: "Client") -> None:
        self._cluster = WireCluster(client.connection)
        self._timeout = client.connection.timeout

    def list(self) -> list[Listed]:
        found = {}
        for address in self._cluster.brokers():
            for row in self._cluster.until_settled(partial(self._list_of, address)):
                found[row.group_id] = Listed(row.group_id, row.group_type.lower(), row.group_state)
        return [found[name] for name in sorted(found)]

    def _list_of(self, address: tuple[str, int]) -> tuple[int, Any]:
        with WireClient(address, self._timeout) as wire:
            answer = wire.call("list_groups", states_filter=[], types_filter=[SHARE])
        return answer.error_code, answer.groups

    def describe(self, group: str) -> Group | None:
        answer = self._cluster.ask_coordinator(
            group, "share_group_describe", lambda answer: int(answer.groups[0].error_code), group_ids=[group]
        )
        row = answer.groups[0]
        if row.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            return None
        _check(group, row)
        host, port = self._cluster.coordinator(group)
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
        return Group(group, SHARE, row.group_state, row.assignor_name, f"{host}:{port}", members)

    def offsets(self, group: str) -> dict[Place, Position]:
        answer = self._cluster.ask_coordinator(
            group,
            "describe_share_group_offsets",
            lambda answer: int(answer.groups[0].error_code),
            groups=[{"group_id": group, "topics": None}],
        )
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
        answer = self._cluster.ask_coordinator(
            group,
            "alter_share_group_offsets",
            lambda answer: int(answer.error_code),
            group_id=group,
            topics=[{"topic_name": topic, "partitions": rows} for topic, rows in topics.items()],
        )
        _check(group, answer)
        for row in _partition_rows(answer):
            _check(group, row)

    def delete(self, group: str) -> None:
        answer = self._cluster.ask_coordinator(
            group, "delete_groups", lambda answer: int(answer.results[0].error_code), groups_names=[group]
        )
        _check(group, answer.results[0])


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
