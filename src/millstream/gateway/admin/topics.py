"""Topics over HTTP: list, create, describe, change, delete."""

from collections.abc import Sequence
from typing import Any

from starlette.routing import BaseRoute

from millstream.admin.cluster import ClusterAdmin
from millstream.admin.topics import ConfigChange, ConfigEntry, ConfigOperation, ConfigResource, TopicAdmin
from millstream.gateway.admin.docs import (
    ADD_PARTITIONS,
    BRANCH_TOPIC,
    CLUSTER,
    CREATE_TOPIC,
    DELETE_TOPIC,
    DESCRIBE_TOPIC,
    LIST_TOPICS,
    SET_TOPIC_CONFIGS,
    TOPIC_CONFIGS,
)
from millstream.gateway.context import GatewayContext
from millstream.gateway.http.errors import ApiError
from millstream.gateway.http.request import ApiRequest
from millstream.gateway.http.routes import endpoint
from millstream.gateway.identity.caller import caller_cluster, current_caller
from millstream.gateway.identity.missing_acl import Needs
from millstream.raw_client import EARLIEST, LATEST, Cluster, TopicInfo, TopicPartition

_MAX_INT32 = 2**31 - 1
_MAX_INT16 = 2**15 - 1
_MAX_INT64 = 2**63 - 1


class TopicRoutes:
    @property
    def _cluster(self) -> Cluster:
        return caller_cluster()

    @property
    def _admin(self) -> TopicAdmin:
        return TopicAdmin(caller_cluster())

    def routes(self) -> list[BaseRoute]:
        return [
            endpoint("GET", "/cluster", self.cluster, doc=CLUSTER),
            endpoint("GET", "/topics", self.every, doc=LIST_TOPICS),
            endpoint("POST", "/topics", self.create, doc=CREATE_TOPIC, needs=Needs(topic="Create", cluster="Create")),
            endpoint("GET", "/topics/{topic}", self.describe, doc=DESCRIBE_TOPIC),
            endpoint("DELETE", "/topics/{topic}", self.delete, doc=DELETE_TOPIC, needs=Needs(topic="Delete")),
            endpoint(
                "POST",
                "/topics/{topic}/branches",
                self.branch,
                doc=BRANCH_TOPIC,
                needs=Needs(topic="Read", cluster="Create"),
            ),
            endpoint(
                "POST",
                "/topics/{topic}/partitions",
                self.add_partitions,
                doc=ADD_PARTITIONS,
                needs=Needs(topic="Alter"),
            ),
            endpoint(
                "GET", "/topics/{topic}/configs", self.configs, doc=TOPIC_CONFIGS, needs=Needs(topic="DescribeConfigs")
            ),
            endpoint(
                "PATCH",
                "/topics/{topic}/configs",
                self.set_configs,
                doc=SET_TOPIC_CONFIGS,
                needs=Needs(topic="AlterConfigs"),
            ),
        ]

    def cluster(self, request: ApiRequest) -> Any:
        found = ClusterAdmin(self._cluster).describe()
        brokers = [
            {"id": row.id, "host": row.host, "port": row.port, "rack": row.rack}
            for row in found.brokers
            if not row.fenced
        ]
        return {"cluster_id": found.cluster_id, "controller": found.controller_id, "brokers": brokers}

    def every(self, request: ApiRequest) -> Any:
        internal, prefix = request.flag("internal"), request.text("prefix")
        found = [
            row for row in self._admin.topics() if row.name.startswith(prefix) and (internal or not row.is_internal)
        ]
        return {"topics": [_summary(row) for row in request.page(found)]}

    def create(self, request: ApiRequest) -> Any:
        document = request.document()
        known(document, "name", "partitions", "replication_factor", "configs")
        name = document.get("name")
        if not isinstance(name, str) or not name:
            raise ApiError(422, "'name' must be the name of the topic", 'send {"name": "orders"}')
        partitions = number_in(document, "partitions", 1, _MAX_INT32, -1)
        replication = number_in(document, "replication_factor", 1, _MAX_INT16, -1)
        configs = _texts(document.get("configs") or {}, "configs")
        self._admin.create(name, partitions, replication, configs)
        return _summary(self._admin.topic(name))

    def describe(self, request: ApiRequest) -> Any:
        topic = self._admin.topic(request.path("topic"))
        led = [TopicPartition(topic.name, row.index) for row in topic.partitions if row.leader >= 0]
        starts = self._cluster.offsets(dict.fromkeys(led, EARLIEST))
        ends = self._cluster.offsets(dict.fromkeys(led, LATEST), read_committed=False)
        partitions = []
        for row in topic.partitions:
            place = TopicPartition(topic.name, row.index)
            partitions.append(
                {
                    "partition": row.index,
                    "leader": row.leader if row.leader >= 0 else None,
                    "replicas": list(row.replicas),
                    "isr": list(row.isr),
                    "start_offset": starts[place].offset if place in starts else None,
                    "end_offset": ends[place].offset if place in ends else None,
                }
            )
        settings = self._admin.settings(ConfigResource.TOPIC, topic.name)
        return {
            **_summary(topic),
            "partitions": partitions,
            "configs": {row.name: row.value for row in settings if row.is_own},
        }

    def delete(self, request: ApiRequest) -> None:
        self._admin.delete(request.path("topic"))

    def branch(self, request: ApiRequest) -> Any:
        document, parent = request.document(), request.path("topic")
        known(document, "name", "at", "offsets", "configs", "groups")
        name = document.get("name")
        if not isinstance(name, str) or not name:
            raise ApiError(422, "'name' must be the name of the branch", 'send {"name": "orders-test"}')
        if current_caller().mask_of(parent) is not None:
            hint = "ask a user who sees the whole topic, or change [[masks]] or [[subjects]] of the rules file"
            raise ApiError(403, f"parts of {parent} are hidden from you: a branch would show them", hint, code=40302)
        at_ms = number_in(document, "at", 0, _MAX_INT64, -1)
        configs = _texts(document.get("configs") or {}, "configs")
        groups = _texts(document.get("groups") or {}, "groups")
        made = self._admin.branch(
            parent,
            name,
            at_ms=None if at_ms < 0 else at_ms,
            offsets=_branch_offsets(document.get("offsets"), parent),
            configs={key: value for key, value in configs.items() if value is not None},
            groups={source: target or source for source, target in groups.items()},
        )
        return {
            **_summary(self._admin.topic(name)),
            "partitions": [
                {"partition": each.partition, "start": each.start, "offset": each.offset, "note": each.note or None}
                for each in made.points
            ],
            "groups": {group: len(found) for group, found in made.groups.items()},
        }

    def add_partitions(self, request: ApiRequest) -> Any:
        document, name = request.document(), request.path("topic")
        known(document, "count")
        if "count" not in document:
            raise ApiError(422, "'count' is missing", 'send {"count": 6}: the new number of partitions')
        self._admin.add_partitions(name, number_in(document, "count", 1, _MAX_INT32, -1))
        return {"name": name, "partitions": document["count"]}

    def configs(self, request: ApiRequest) -> Any:
        return {"configs": [_shown(row) for row in self._admin.settings(ConfigResource.TOPIC, request.path("topic"))]}

    def set_configs(self, request: ApiRequest) -> Any:
        document, name = request.document(), request.path("topic")
        known(document, "configs")
        changes = [
            ConfigChange(key, value, ConfigOperation.DELETE if value is None else ConfigOperation.SET)
            for key, value in _texts(document.get("configs"), "configs").items()
        ]
        if not changes:
            hint = 'send {"configs": {"retention.ms": "60000"}}; null goes back to the default'
            raise ApiError(422, "'configs' names no setting", hint)
        self._admin.change(ConfigResource.TOPIC, name, changes, validate_only=request.flag("dry_run"))
        return {"configs": [_shown(row) for row in self._admin.settings(ConfigResource.TOPIC, name) if row.is_own]}


def _branch_offsets(value: Any, parent: str) -> dict[TopicPartition, int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise ApiError(422, "'offsets' must be a list", 'send "offsets": [{"partition": 0, "offset": 42}]')
    found: dict[TopicPartition, int] = {}
    for row in value:
        known(row, "partition", "offset")
        if "partition" not in row or "offset" not in row:
            raise ApiError(422, "'offsets' has a row without 'partition' or 'offset'")
        partition = number_in(row, "partition", 0, _MAX_INT32, 0)
        found[TopicPartition(parent, partition)] = number_in(row, "offset", 0, _MAX_INT64, 0)
    return found


def _summary(topic: TopicInfo) -> dict[str, Any]:
    return {
        "name": topic.name,
        "partition_count": len(topic.partitions),
        "replication_factor": len(topic.partitions[0].replicas) if topic.partitions else 0,
        "internal": topic.is_internal,
        "branch_of": topic.branch_of,
    }


def _shown(row: ConfigEntry) -> dict[str, Any]:
    return {
        "name": row.name,
        "value": row.value,
        "source": row.source,
        "default": not row.is_own,
        "read_only": row.is_read_only,
        "sensitive": row.is_sensitive,
        "documentation": row.documentation,
    }


def known(document: dict[str, Any], *names: str) -> None:
    """Refuses unknown fields, which are most likely misspelt."""
    unknown = [name for name in document if name not in names]
    if unknown:
        raise ApiError(422, f"the field {unknown[0]!r} is not known", f"there are {', '.join(names)}")


def number_in(document: dict[str, Any], name: str, low: int, high: int, default: int) -> int:
    value = document.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ApiError(422, f"'{name}' must be a whole number from {low} to {high}")
    return value


def _texts(value: Any, name: str) -> dict[str, str | None]:
    if not isinstance(value, dict):
        raise ApiError(422, f"'{name}' must be an object of names and values")
    found: dict[str, str | None] = {}
    for key, each in value.items():
        if isinstance(each, (dict, list)):
            raise ApiError(422, f"'{name}': the value of {key!r} must be a text or a number")
        plain = each is None or isinstance(each, str)
        found[key] = each if plain else str(each).lower() if isinstance(each, bool) else str(each)
    return found


def topic_routes(context: GatewayContext) -> Sequence[BaseRoute]:
    return TopicRoutes().routes()
