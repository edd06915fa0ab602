"""Consumer groups and share groups over HTTP: members, offsets and lag, resets, deletion."""

from collections.abc import Sequence
from typing import Any

from starlette.routing import BaseRoute

from millstream.access.roles import Role
from millstream.admin.errors import NotFoundError
from millstream.admin.groups import Group, GroupAdmin, GroupOffset
from millstream.admin.offsets import ResetTarget, partitions_of
from millstream.gateway.admin.docs import group_docs
from millstream.gateway.admin.topics import known, number_in
from millstream.gateway.context import GatewayContext
from millstream.gateway.http.errors import ApiError
from millstream.gateway.http.request import ApiRequest
from millstream.gateway.http.routes import endpoint
from millstream.gateway.identity.caller import caller_cluster
from millstream.gateway.identity.missing_acl import Needs
from millstream.raw_client import TopicPartition

_MAX_OFFSET = 2**63 - 1
_HINT = 'send {"topic": "orders", "to": "earliest"}, "latest", {"offset": 17} or {"time": 1700000000000}'


class GroupRoutes:
    """The routes for one kind of groups: consumer groups or share groups."""

    def __init__(self, *, share: bool) -> None:
        self._share = share

    @property
    def _admin(self) -> GroupAdmin:
        return GroupAdmin(caller_cluster())

    def routes(self) -> list[BaseRoute]:
        base = "/share-groups" if self._share else "/groups"
        docs = group_docs("share group" if self._share else "consumer group")
        table: list[tuple[str, str, Any, Role, Needs]] = [
            ("GET", "", self.every, Role.VIEWER, Needs()),
            ("GET", "/{group}", self.describe, Role.VIEWER, Needs()),
            ("DELETE", "/{group}", self.delete, Role.ADMIN, Needs(group="Delete")),
            ("GET", "/{group}/offsets", self.offsets, Role.VIEWER, Needs()),
            ("POST", "/{group}/offsets", self.reset, Role.OPERATOR, Needs(topic="Read", group="Read")),
        ]
        return [
            endpoint(method, base + path, handler, doc=docs[method, path], role=role, needs=needs)
            for method, path, handler, role, needs in table
        ]

    def every(self, request: ApiRequest) -> Any:
        prefix = request.text("prefix")
        found = [row for row in self._admin.groups(share=self._share) if row.name.startswith(prefix)]
        return {"groups": [{"group": row.name, "type": row.type, "state": row.state} for row in request.page(found)]}

    def describe(self, request: ApiRequest) -> Any:
        group = self._admin.group(request.path("group"), share=self._share)
        return {
            "group": group.name,
            "type": group.type,
            "state": group.state,
            "assignor": group.assignor,
            "coordinator": group.coordinator,
            "members": _members(group),
            "offsets": _shown(self._admin.progress(group.name, share=self._share)),
        }

    def delete(self, request: ApiRequest) -> None:
        self._admin.delete(request.path("group"))

    def offsets(self, request: ApiRequest) -> Any:
        name = request.path("group")
        self._admin.group(name, share=self._share)  # 404 if it does not exist
        return {"offsets": _shown(self._admin.progress(name, share=self._share))}

    def reset(self, request: ApiRequest) -> Any:
        """Resets offsets; with `dry_run` it only returns the result."""
        document, name = request.document(), request.path("group")
        known(document, "topic", "partitions", "to", "dry_run")
        topic, dry_run = document.get("topic"), document.get("dry_run", False)
        if not isinstance(topic, str) or not isinstance(dry_run, bool):
            raise ApiError(422, "'topic' must be a name, and 'dry_run' true or false", _HINT)
        partitions = self._partitions(topic, document.get("partitions"))
        target = _target(document.get("to"))
        moves = self._admin.reset_offsets(name, target, partitions, share=self._share, dry_run=dry_run)
        rows = [
            {"topic": each.partition.topic, "partition": each.partition.partition, "from": each.old, "to": each.new}
            for each in moves
        ]
        return {"dry_run": dry_run, "offsets": rows}

    def _partitions(self, topic: str, indexes: Any) -> Sequence[TopicPartition]:
        if indexes is not None:
            is_list = isinstance(indexes, list) and bool(indexes)
            if not is_list or not all(isinstance(each, int) and not isinstance(each, bool) for each in indexes):
                raise ApiError(422, "'partitions' must be a list of numbers", "leave it out for all partitions")
        try:
            return partitions_of(caller_cluster(), topic, indexes)
        except NotFoundError as error:
            raise ApiError(422, str(error), "GET the topic lists its partitions") from error


def _target(to: Any) -> ResetTarget:
    if to == "earliest":
        return ResetTarget.earliest()
    if to == "latest":
        return ResetTarget.latest()
    if isinstance(to, dict) and len(to) == 1:
        if "offset" in to:
            return ResetTarget.to_offset(number_in(to, "offset", 0, _MAX_OFFSET, 0))
        if "time" in to:
            return ResetTarget.to_time(number_in(to, "time", 0, _MAX_OFFSET, 0))
    raise ApiError(422, "'to' is not a target", _HINT)


def _members(group: Group) -> list[dict[str, Any]]:
    return [
        {
            "member_id": member.member_id,
            "instance_id": member.instance_id,
            "client_id": member.client_id,
            "host": member.host,
            "assignment": [{"topic": place.topic, "partition": place.partition} for place in member.assignment],
        }
        for member in group.members
    ]


def _shown(progress: dict[TopicPartition, GroupOffset]) -> list[dict[str, Any]]:
    return [
        {
            "topic": place.topic,
            "partition": place.partition,
            "offset": row.offset,
            "end_offset": row.end if row.end >= 0 else None,
            "lag": row.lag,
        }
        for place, row in progress.items()
    ]


def group_routes(context: GatewayContext) -> Sequence[BaseRoute]:
    return [route for share in (False, True) for route in GroupRoutes(share=share).routes()]
