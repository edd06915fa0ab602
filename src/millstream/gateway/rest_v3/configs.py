"""Confluent's REST v3: settings of topics, of single brokers, and of all brokers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.routing import BaseRoute

from millstream.admin.topics import ConfigChange, ConfigEntry, ConfigOperation, ConfigResource, TopicAdmin
from millstream.gateway.http.errors import ApiError
from millstream.gateway.http.request import ApiRequest
from millstream.gateway.http.routes import endpoint
from millstream.gateway.identity.caller import caller_cluster
from millstream.gateway.identity.missing_acl import Needs
from millstream.gateway.rest_v3.resources import (
    ALL_CONFIGS_DOCS,
    BASE,
    CONFIG_DOCS,
    ConfigAlteration,
    ConfigAlterations,
    ConfigUpdate,
    Links,
    number_from_path,
)


@dataclass(frozen=True, slots=True)
class _Holder:
    """The topic or broker whose settings a request is about."""

    resource: ConfigResource
    name: str
    kind: str
    path: tuple[object, ...]
    named: tuple[tuple[str, object], ...]
    """The parts of the resource name before the setting."""
    setting_part: str
    fields: dict[str, Any]


_READING = Needs(topic="DescribeConfigs", cluster="DescribeConfigs")
_CHANGING = Needs(topic="AlterConfigs", cluster="AlterConfigs")


class ConfigRoutes:
    """The same operations for topics, brokers, and all brokers."""

    def __init__(self, links: Callable[[ApiRequest], Links]) -> None:
        self._links = links

    @property
    def _admin(self) -> TopicAdmin:
        return TopicAdmin(caller_cluster())

    def routes(self) -> list[BaseRoute]:
        cluster = BASE + "/{cluster_id}"
        # Paths with a dash, which means all, are matched before those with a name.
        found: list[BaseRoute] = [
            endpoint(
                "GET", cluster + "/topics/-/configs", self.of_all_topics, doc=ALL_CONFIGS_DOCS["topics"], needs=_READING
            ),
            endpoint(
                "GET",
                cluster + "/brokers/-/configs",
                self.of_all_brokers,
                doc=ALL_CONFIGS_DOCS["brokers"],
                needs=_READING,
            ),
        ]
        for base, holder in (
            (cluster + "/topics/{topic_name}/configs", _topic_of),
            (cluster + "/brokers/{broker_id}/configs", _broker_of),
            (cluster + "/broker-configs", _cluster),
        ):
            found += self._routes_at(base, holder)
        return found

    def _routes_at(self, base: str, holder: Callable[[ApiRequest], _Holder]) -> list[BaseRoute]:
        def bound(method: Callable[[ApiRequest, Links, _Holder], Any]) -> Callable[[ApiRequest], Any]:
            return lambda req: method(req, self._links(req), holder(req))

        table: list[tuple[str, str, Callable[[ApiRequest, Links, _Holder], Any]]] = [
            ("GET", "", self.every),
            ("POST", ":alter", self.alter),
            ("GET", "/{name}", self.get),
            ("PUT", "/{name}", self.put),
            ("DELETE", "/{name}", self.reset),
        ]
        return [
            endpoint(
                method,
                base + path,
                bound(handler),
                doc=CONFIG_DOCS[method, path],
                needs=_READING if method == "GET" else _CHANGING,
            )
            for method, path, handler in table
        ]

    def of_all_topics(self, req: ApiRequest) -> Any:
        return self._of_all(req, "topics", "KafkaTopicConfigList", [_topic(row.name) for row in self._admin.topics()])

    def of_all_brokers(self, req: ApiRequest) -> Any:
        brokers = [_broker(row.id) for row in self._admin.cluster().brokers]
        return self._of_all(req, "brokers", "KafkaBrokerConfigList", brokers)

    def _of_all(self, req: ApiRequest, what: str, kind: str, holders: list[_Holder]) -> Any:
        links, admin = self._links(req), self._admin
        rows = [
            _shown(links, holder, row) for holder in holders for row in admin.settings(holder.resource, holder.name)
        ]
        return links.collection(kind, (what, "-", "configs"), rows)

    def every(self, req: ApiRequest, links: Links, holder: _Holder) -> Any:
        rows = self._admin.settings(holder.resource, holder.name)
        if holder.resource is ConfigResource.BROKER and not holder.name:
            rows = [row for row in rows if row.source == "DYNAMIC_DEFAULT_BROKER_CONFIG"]
        return links.collection(f"{holder.kind}List", holder.path, [_shown(links, holder, row) for row in rows])

    def get(self, req: ApiRequest, links: Links, holder: _Holder) -> Any:
        return _shown(links, holder, self._admin.setting(holder.resource, holder.name, req.path("name")))

    def put(self, req: ApiRequest, links: Links, holder: _Holder) -> None:
        change = ConfigChange(req.path("name"), req.read(ConfigUpdate).value)
        self._admin.change(holder.resource, holder.name, [change])

    def reset(self, req: ApiRequest, links: Links, holder: _Holder) -> None:
        change = ConfigChange(req.path("name"), None, ConfigOperation.DELETE)
        self._admin.change(holder.resource, holder.name, [change])

    def alter(self, req: ApiRequest, links: Links, holder: _Holder) -> None:
        wanted = req.read(ConfigAlterations)
        changes = [_change(row) for row in wanted.data]
        self._admin.change(holder.resource, holder.name, changes, validate_only=bool(wanted.validate_only))


def _change(row: ConfigAlteration) -> ConfigChange:
    operation = (row.operation or "SET").upper()
    if operation not in ConfigOperation.__members__:
        known = ", ".join(ConfigOperation.__members__)
        raise ApiError(400, f"operation {row.operation!r} is unknown", f"give one of {known}")
    return ConfigChange(row.name, row.value, ConfigOperation[operation])


def _shown(links: Links, holder: _Holder, row: ConfigEntry) -> dict[str, Any]:
    return links.resource(
        holder.kind,
        (*holder.path, row.name),
        (*holder.named, (holder.setting_part, row.name)),
        {
            **holder.fields,
            "name": row.name,
            "value": None if row.is_sensitive else row.value,
            "is_default": row.is_default,
            "is_read_only": row.is_read_only,
            "is_sensitive": row.is_sensitive,
            "source": row.source,
            "synonyms": [{"name": name, "value": value, "source": source} for name, value, source in row.synonyms],
        },
    )


def _topic_of(req: ApiRequest) -> _Holder:
    return _topic(req.path("topic_name"))


def _topic(name: str) -> _Holder:
    path = ("topics", name, "configs")
    return _Holder(
        ConfigResource.TOPIC, name, "KafkaTopicConfig", path, (("topic", name),), "config", {"topic_name": name}
    )


def _broker_of(req: ApiRequest) -> _Holder:
    return _broker(number_from_path(req, "broker_id", "Broker"))


def _broker(number: int) -> _Holder:
    path = ("brokers", number, "configs")
    named = (("broker", number),)
    return _Holder(
        ConfigResource.BROKER, str(number), "KafkaBrokerConfig", path, named, "config", {"broker_id": number}
    )


def _cluster(req: ApiRequest) -> _Holder:
    fields = {"config_type": "BROKER"}
    return _Holder(ConfigResource.BROKER, "", "KafkaClusterConfig", ("broker-configs",), (), "broker-config", fields)
