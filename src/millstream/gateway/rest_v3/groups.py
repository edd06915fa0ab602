"""Confluent's REST v3: consumer groups, members, assignments and lag."""

import re
from collections.abc import Callable
from typing import Any

from starlette.routing import BaseRoute

from millstream.admin.groups import Group, GroupAdmin, GroupListing, GroupMember, GroupOffset
from millstream.gateway.http.request import ApiRequest
from millstream.gateway.http.routes import endpoint
from millstream.gateway.identity.caller import caller_cluster
from millstream.gateway.identity.missing_acl import Needs
from millstream.gateway.rest_v3.resources import BASE, GROUP_DOCS, Links, not_found, number_from_path
from millstream.raw_client import TopicPartition

_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")


class GroupRoutes:
    def __init__(self, links: Callable[[ApiRequest], Links]) -> None:
        self._links = links

    @property
    def _admin(self) -> GroupAdmin:
        return GroupAdmin(caller_cluster())

    def routes(self) -> list[BaseRoute]:
        groups = BASE + "/{cluster_id}/consumer-groups"
        group = groups + "/{consumer_group_id}"
        consumer = group + "/consumers/{consumer_id}"
        partition = "/{topic_name}/partitions/{partition_id}"
        table: list[tuple[str, str, Callable[[ApiRequest], Any]]] = [
            ("GET", groups, self.groups),
            ("GET", group, self.group),
            ("DELETE", group, self.delete),
            ("GET", group + "/consumers", self.consumers),
            ("GET", consumer, self.consumer),
            ("GET", consumer + "/assignments", self.assignments),
            ("GET", consumer + "/assignments" + partition, self.assignment),
            ("GET", group + "/lag-summary", self.lag_summary),
            ("GET", group + "/lags", self.lags),
            ("GET", group + "/lags" + partition, self.lag),
        ]
        return [
            endpoint(
                method,
                path,
                handler,
                doc=GROUP_DOCS[method, path.removeprefix(groups)],
                needs=Needs(group="Delete") if method == "DELETE" else Needs(),
            )
            for method, path, handler in table
        ]

    def groups(self, req: ApiRequest) -> Any:
        links = self._links(req)
        rows = [self._listed(links, row) for row in self._admin.groups()]
        return links.collection("KafkaConsumerGroupList", ("consumer-groups",), rows)

    def _listed(self, links: Links, row: GroupListing) -> dict[str, Any]:
        return _group(links, self._admin.group(row.name))

    def group(self, req: ApiRequest) -> Any:
        return _group(self._links(req), self._group(req))

    def delete(self, req: ApiRequest) -> None:
        self._links(req)
        self._admin.delete(req.path("consumer_group_id"))

    def _group(self, req: ApiRequest) -> Group:
        return self._admin.group(req.path("consumer_group_id"))

    # Members

    def consumers(self, req: ApiRequest) -> Any:
        links, group = self._links(req), self._group(req)
        rows = [_consumer(links, group.name, member) for member in group.members]
        return links.collection("KafkaConsumerList", ("consumer-groups", group.name, "consumers"), rows)

    def consumer(self, req: ApiRequest) -> Any:
        return _consumer(self._links(req), *self._member(req))

    def assignments(self, req: ApiRequest) -> Any:
        links, (group, member) = self._links(req), self._member(req)
        rows = [_assignment(links, group, member, partition) for partition in member.assignment]
        path = ("consumer-groups", group, "consumers", member.member_id, "assignments")
        return links.collection("KafkaConsumerAssignmentList", path, rows)

    def assignment(self, req: ApiRequest) -> Any:
        links, (group, member), partition = self._links(req), self._member(req), _topic_partition(req)
        if partition not in member.assignment:
            raise not_found(f"Assignment of {partition} to {member.member_id}")
        return _assignment(links, group, member, partition)

    def _member(self, req: ApiRequest) -> tuple[str, GroupMember]:
        group, wanted = self._group(req), req.path("consumer_id")
        for member in group.members:
            if member.member_id == wanted:
                return group.name, member
        raise not_found(f"Consumer {wanted} of group {group.name}")

    # Lag

    def lags(self, req: ApiRequest) -> Any:
        links, group = self._links(req), self._group(req)
        rows = [_lag(links, group, partition, row) for partition, row in self._admin.progress(group.name).items()]
        return links.collection("KafkaConsumerLagList", ("consumer-groups", group.name, "lags"), rows)

    def lag(self, req: ApiRequest) -> Any:
        links, group, partition = self._links(req), self._group(req), _topic_partition(req)
        found = self._admin.progress(group.name).get(partition)
        if found is None:
            raise not_found(f"Offset of group {group.name} in {partition}")
        return _lag(links, group, partition, found)

    def lag_summary(self, req: ApiRequest) -> Any:
        links, group = self._links(req), self._group(req)
        progress = self._admin.progress(group.name)
        if not progress:
            raise not_found(f"Lag summary of group {group.name}", "it has no committed offsets")
        most, row = max(progress.items(), key=lambda item: item[1].lag or 0)
        owner = _owner(group, most)
        path = ("consumer-groups", group.name)
        fields: dict[str, Any] = {
            "consumer_group_id": group.name,
            "max_lag_consumer_id": owner.member_id if owner else "",
            "max_lag_instance_id": owner.instance_id if owner else None,
            "max_lag_client_id": owner.client_id if owner else "",
            "max_lag_topic_name": most.topic,
            "max_lag_partition_id": most.partition,
            "max_lag": row.lag or 0,
            "total_lag": sum(each.lag or 0 for each in progress.values()),
            "max_lag_partition": links.related("topics", most.topic, "partitions", most.partition),
        }
        if owner:
            fields["max_lag_consumer"] = links.related(*path, "consumers", owner.member_id)
        named = (("consumer-group", group.name), ("lag-summary", ""))
        return links.resource("KafkaConsumerGroupLagSummary", (*path, "lag-summary"), named, fields)


def _topic_partition(req: ApiRequest) -> TopicPartition:
    return TopicPartition(req.path("topic_name"), number_from_path(req, "partition_id", "Partition"))


def _owner(group: Group, partition: TopicPartition) -> GroupMember | None:
    return next((member for member in group.members if partition in member.assignment), None)


def _group(links: Links, group: Group) -> dict[str, Any]:
    path = ("consumer-groups", group.name)
    fields: dict[str, Any] = {
        "consumer_group_id": group.name,
        "is_simple": group.type == "classic" and not group.members and not group.assignor,
        "partition_assignor": group.assignor,
        "state": _WORD.sub("_", group.state).upper(),
        "type": group.type.upper(),
    }
    if group.coordinator >= 0:
        fields["coordinator"] = links.related("brokers", group.coordinator)
    fields |= {
        "consumer": links.related(*path, "consumers"),
        "consumers": links.related(*path, "consumers"),
        "lag_summary": links.related(*path, "lag-summary"),
    }
    return links.resource("KafkaConsumerGroup", path, (("consumer-group", group.name),), fields)


def _consumer(links: Links, group: str, member: GroupMember) -> dict[str, Any]:
    path = ("consumer-groups", group, "consumers", member.member_id)
    fields = {
        "consumer_group_id": group,
        "consumer_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "assignments": links.related(*path, "assignments"),
    }
    named = (("consumer-group", group), ("consumer", member.member_id))
    return links.resource("KafkaConsumer", path, named, fields)


def _assignment(links: Links, group: str, member: GroupMember, partition: TopicPartition) -> dict[str, Any]:
    path = ("consumer-groups", group, "consumers", member.member_id, "assignments")
    fields = {
        "consumer_group_id": group,
        "consumer_id": member.member_id,
        "topic_name": partition.topic,
        "partition_id": partition.partition,
        "partition": links.related("topics", partition.topic, "partitions", partition.partition),
        "lag": links.related("consumer-groups", group, "lags", partition.topic, "partitions", partition.partition),
    }
    named = (
        ("consumer-group", group),
        ("consumer", member.member_id),
        ("assignment", partition.topic),
        ("partition", partition.partition),
    )
    return links.resource(
        "KafkaConsumerAssignment", (*path, partition.topic, "partitions", partition.partition), named, fields
    )


def _lag(links: Links, group: Group, partition: TopicPartition, row: GroupOffset) -> dict[str, Any]:
    owner = _owner(group, partition)
    path = ("consumer-groups", group.name, "lags", partition.topic, "partitions", partition.partition)
    fields = {
        "consumer_group_id": group.name,
        "topic_name": partition.topic,
        "partition_id": partition.partition,
        "current_offset": row.offset,
        "log_end_offset": row.end,
        "lag": row.lag or 0,
        "consumer_id": owner.member_id if owner else "",
        "instance_id": owner.instance_id if owner else None,
        "client_id": owner.client_id if owner else "",
    }
    named = (("consumer-group", group.name), ("lag", partition.topic), ("partition", partition.partition))
    return links.resource("KafkaConsumerLag", path, named, fields)
