"""Groups over HTTP, those of consumers and share groups alike: who is in them, how far they are, and set elsewhere."""

from collections.abc import Sequence
from typing import Any

from starlette.routing import BaseRoute

from millstream.formats.model.errors import ErrorCode
from millstream.gateway.admin.docs import group_docs
from millstream.gateway.admin.groups import GroupAdmin, GroupDetail, Progress
from millstream.gateway.admin.topic_routes import known, number_in
from millstream.gateway.context import GatewayContext
from millstream.gateway.http.errors import ApiError
from millstream.gateway.http.request import ApiRequest
from millstream.gateway.http.routes import endpoint
from millstream.raw_client import EARLIEST, LATEST, Cluster, TopicPartition
from millstream.raw_client.errors import refusal

_MAX_OFFSET = 2**63 - 1
_TARGETS = {"earliest": EARLIEST, "latest": LATEST}
_HINT = 'send {"topic": "orders", "to": "earliest"}, "latest", {"offset": 17} or {"time": 1700000000000}'


class GroupRoutes:
    """Of one kind of groups, below its own prefix."""

    def __init__(self, cluster: Cluster, *, share: bool) -> None:
        self._cluster = cluster
        self._admin = GroupAdmin(cluster)
        self._share = share

    def routes(self) -> list[BaseRoute]:
        base = "/share-groups" if self._share else "/groups"
        docs = group_docs("share group" if self._share else "consumer group")
        table: list[tuple[str, str, Any]] = [
            ("GET", "", self.every),
            ("GET", "/{group}", self.describe),
            ("DELETE", "/{group}", self.delete),
            ("GET", "/{group}/offsets", self.offsets),
            ("POST", "/{group}/offsets", self.reset),
        ]
        return [endpoint(method, base + path, handler, doc=docs[method, path]) for method, path, handler in table]

    def every(self, asked: ApiRequest) -> Any:
        prefix = asked.text("prefix")
        found = [row for row in self._admin.groups(share=self._share) if row.name.startswith(prefix)]
        return {"groups": [{"group": row.name, "type": row.type, "state": row.state} for row in asked.page(found)]}

    def describe(self, asked: ApiRequest) -> Any:
        group = self._admin.group(asked.path("group"), share=self._share)
        return {
            "group": group.name,
            "type": group.type,
            "state": group.state,
            "assignor": group.assignor,
            "coordinator": group.coordinator,
            "members": _members(group),
            "offsets": _shown(self._admin.progress(group.name, share=self._share)),
        }

    def delete(self, asked: ApiRequest) -> None:
        self._admin.delete(asked.path("group"))

    def offsets(self, asked: ApiRequest) -> Any:
        name = asked.path("group")
        self._admin.group(name, share=self._share)  # so that one that is not there is said to be so
        return {"offsets": _shown(self._admin.progress(name, share=self._share))}

    def reset(self, asked: ApiRequest) -> Any:
        """Where the group would be, and is unless it was only asked."""
        document, name = asked.document(), asked.path("group")
        known(document, "topic", "partitions", "to", "dry_run")
        topic, dry_run = document.get("topic"), document.get("dry_run", False)
        if not isinstance(topic, str) or not isinstance(dry_run, bool):
            raise ApiError(422, "'topic' must be a name, and 'dry_run' true or false", _HINT)
        target = self._targets(self._places(topic, document.get("partitions")), document.get("to"))
        before = self._admin.progress(name, share=self._share) if self._exists(name) else {}
        if not dry_run:
            if not self._share or before:
                self._check_empty(name)
            self._admin.set_offsets(name, target, share=self._share)
        rows = [
            {
                "topic": place.topic,
                "partition": place.partition,
                "from": before[place].offset if place in before else None,
                "to": offset,
            }
            for place, offset in target.items()
        ]
        return {"dry_run": dry_run, "offsets": rows}

    def _exists(self, name: str) -> bool:
        return any(row.name == name for row in self._admin.groups(share=self._share))

    def _check_empty(self, name: str) -> None:
        if self._exists(name) and self._admin.group(name, share=self._share).members:
            raise refusal(f"group {name!r}", ErrorCode.NON_EMPTY_GROUP, "it has members, which commit for themselves")

    def _places(self, topic: str, partitions: Any) -> Sequence[TopicPartition]:
        found = self._cluster.topics([topic]).get(topic)
        if found is None:
            raise refusal(f"topic {topic!r}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if partitions is None:
            return [TopicPartition(topic, row.index) for row in found.partitions]
        count = len(found.partitions)
        if not isinstance(partitions, list) or not partitions:
            raise ApiError(422, "'partitions' must be a list of numbers", "leave it out for all of them")
        for each in partitions:
            if isinstance(each, bool) or not isinstance(each, int) or not 0 <= each < count:
                raise ApiError(422, f"{topic!r} has no partition {each!r}", f"it has {count}, counted from 0")
        return [TopicPartition(topic, each) for each in sorted(set(partitions))]

    def _targets(self, places: Sequence[TopicPartition], to: Any) -> dict[TopicPartition, int]:
        starts = self._cluster.offsets(dict.fromkeys(places, EARLIEST))
        ends = self._cluster.offsets(dict.fromkeys(places, LATEST))
        if isinstance(to, str) and to in _TARGETS:
            chosen = starts if _TARGETS[to] == EARLIEST else ends
            return {place: chosen[place].offset for place in places}
        if isinstance(to, dict) and len(to) == 1:
            if "offset" in to:
                offset = number_in(to, "offset", 0, _MAX_OFFSET, 0)
                return {place: min(max(offset, starts[place].offset), ends[place].offset) for place in places}
            if "time" in to:
                found = self._cluster.offsets(dict.fromkeys(places, number_in(to, "time", 0, _MAX_OFFSET, 0)))
                return {place: row.offset if row.offset >= 0 else ends[place].offset for place, row in found.items()}
        raise ApiError(422, "'to' says nowhere", _HINT)


def _members(group: GroupDetail) -> list[dict[str, Any]]:
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


def _shown(progress: dict[TopicPartition, Progress]) -> list[dict[str, Any]]:
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


def group_routes(parts: GatewayContext) -> Sequence[BaseRoute]:
    return [route for share in (False, True) for route in GroupRoutes(parts.cluster, share=share).routes()]
