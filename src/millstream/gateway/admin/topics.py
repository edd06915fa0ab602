"""Topics and settings of the cluster, asked and changed over the wire."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.raw_client import BrokerInfo, Cluster, RefusedError, TopicInfo
from millstream.raw_client.errors import error_code, refusal

_CHANGE_MS = 30_000


class Resource(IntEnum):
    TOPIC = 2
    BROKER = 4


class Operation(IntEnum):
    """What is done to a setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_SOURCES = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
    6: "DYNAMIC_BROKER_LOGGER_CONFIG",
    7: "DYNAMIC_CLIENT_METRICS_CONFIG",
    8: "GROUP_CONFIG",
}
_OWN = frozenset({1, 2})
"""Sources of what was set for this very topic or broker."""


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    value: str | None
    source: str
    is_default: bool
    is_own: bool
    is_read_only: bool
    is_sensitive: bool
    documentation: str | None
    synonyms: tuple[tuple[str, str | None, str], ...]


@dataclass(frozen=True, slots=True)
class Change:
    name: str
    value: str | None
    operation: Operation = Operation.SET


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    cluster_id: str
    controller_id: int
    brokers: list[BrokerInfo]


class TopicAdmin:
    """Thread safe; every method may raise WireError."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def cluster(self) -> ClusterInfo:
        answer = self._cluster.call("describe_cluster")
        _check("the cluster", answer)
        brokers = [BrokerInfo(row.broker_id, row.host, row.port, row.rack) for row in answer.brokers]
        return ClusterInfo(answer.cluster_id, answer.controller_id, sorted(brokers, key=lambda row: row.node_id))

    def topics(self) -> list[TopicInfo]:
        found = self._cluster.topics()
        return [found[name] for name in sorted(found)]

    def topic(self, name: str) -> TopicInfo:
        found = self._cluster.topics([name]).get(name)
        if found is None:
            raise refusal(f"topic {name!r}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return found

    def create(
        self,
        name: str,
        partitions: int = -1,
        replication: int = -1,
        configs: Mapping[str, str | None] | None = None,
        assignments: Mapping[int, Sequence[int]] | None = None,
        *,
        validate_only: bool = False,
    ) -> None:
        """Waits until the topic can be written to."""
        if not validate_only and not assignments:
            given = {key: value for key, value in (configs or {}).items() if value is not None}
            self._cluster.create_topic(name, partitions, replication, given)
            return
        rows = [{"partition_index": at, "broker_ids": list(ids)} for at, ids in (assignments or {}).items()]
        topic = {
            "name": name,
            "num_partitions": -1 if rows else partitions,
            "replication_factor": -1 if rows else replication,
            "assignments": rows,
            "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
        }
        answer = self._cluster.call("create_topics", topics=[topic], validate_only=validate_only, timeout_ms=_CHANGE_MS)
        _check(f"topic {name!r}", answer.topics[0])

    def delete(self, name: str) -> None:
        answer = self._cluster.call("delete_topics", topics=[{"name": name}], topic_names=[name], timeout_ms=_CHANGE_MS)
        _check(f"topic {name!r}", answer.responses[0])

    def add_partitions(self, name: str, count: int, *, validate_only: bool = False) -> None:
        topic = {"name": name, "count": count, "assignments": None}
        answer = self._cluster.call(
            "create_partitions", topics=[topic], validate_only=validate_only, timeout_ms=_CHANGE_MS
        )
        _check(f"topic {name!r}", answer.results[0])

    # Settings

    def settings(self, resource: Resource, name: str, names: Sequence[str] | None = None) -> list[Setting]:
        """In the order of their names; of the whole cluster if a broker's name is empty."""
        wanted = {"resource_type": int(resource), "resource_name": name, "configuration_keys": names}
        answer = self._ask_about(
            resource, name, "describe_configs", resources=[wanted], include_synonyms=True, include_documentation=True
        )
        _check(_called(resource, name), answer.results[0])
        return sorted((_setting(row) for row in answer.results[0].configs), key=lambda row: row.name)

    def setting(self, resource: Resource, name: str, key: str) -> Setting:
        """RESOURCE_NOT_FOUND if the topic or broker has no such setting."""
        found = next((row for row in self.settings(resource, name) if row.name == key), None)
        if found is None:
            raise refusal(_called(resource, name), ErrorCode.RESOURCE_NOT_FOUND, f"there is no setting {key!r}")
        return found

    def change(self, resource: Resource, name: str, changes: Sequence[Change], *, validate_only: bool = False) -> None:
        rows = [
            {"name": change.name, "config_operation": int(change.operation), "value": change.value}
            for change in changes
        ]
        wanted = {"resource_type": int(resource), "resource_name": name, "configs": rows}
        answer = self._ask_about(
            resource, name, "incremental_alter_configs", resources=[wanted], validate_only=validate_only
        )
        _check(_called(resource, name), answer.responses[0])

    def _ask_about(self, resource: Resource, name: str, api: str, **fields: Any) -> Message:
        """A broker's settings are its own to tell."""
        if resource is Resource.BROKER and name:
            if int(name) not in {row.node_id for row in self._cluster.brokers()}:
                raise refusal(f"broker {name}", ErrorCode.RESOURCE_NOT_FOUND, "there is no such broker")
            return self._cluster.call(api, node=int(name), **fields)
        return self._cluster.call(api, **fields)


def _setting(row: Message) -> Setting:
    source = _SOURCES.get(row.config_source, "UNKNOWN")
    return Setting(
        row.name,
        row.value,
        source,
        source == "DEFAULT_CONFIG",
        row.config_source in _OWN,
        row.read_only,
        row.is_sensitive,
        row.documentation,
        tuple((each.name, each.value, _SOURCES.get(each.source, "UNKNOWN")) for each in row.synonyms),
    )


def _called(resource: Resource, name: str) -> str:
    if resource is Resource.TOPIC:
        return f"topic {name!r}"
    return f"broker {name}" if name else "the cluster"


def _check(what: str, row: Message) -> None:
    if row.error_code:
        raise _refusal(what, row)


def _refusal(what: str, row: Message) -> RefusedError:
    return refusal(what, error_code(row.error_code), getattr(row, "error_message", None))
