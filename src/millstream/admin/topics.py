"""Topics and the settings of topics and brokers: list, create, change, delete."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from millstream.admin.branches import Branching, create_branch, plan_branch
from millstream.admin.cluster import ClusterAdmin, ClusterInfo
from millstream.admin.errors import check
from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.raw_client import EARLIEST, LATEST, Cluster, TopicInfo, TopicPartition
from millstream.raw_client.deadline import Deadline
from millstream.raw_client.errors import RetriableError, UnreachableError, error_code, refusal

_CHANGE_TIMEOUT_MS = 30_000


class ConfigResource(IntEnum):
    """What has settings."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    """The loggers of one broker, each with its level."""


class ConfigOperation(IntEnum):
    """How a setting is changed. APPEND and SUBTRACT are for lists."""

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
"""Sources of a value that was set for this topic or broker."""


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A setting with its value and the source of the value."""

    name: str
    value: str | None
    """None for a password."""
    source: str
    """Kafka's name, such as DYNAMIC_TOPIC_CONFIG or DEFAULT_CONFIG."""
    is_default: bool
    is_own: bool
    """Whether the value was set for this topic or broker."""
    is_read_only: bool
    is_sensitive: bool
    documentation: str | None
    synonyms: tuple[tuple[str, str | None, str], ...]
    """Name, value and source of all values that could apply, the one in effect first."""


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """A change of one setting."""

    name: str
    value: str | None
    operation: ConfigOperation = ConfigOperation.SET


@dataclass(frozen=True, slots=True)
class RecordDeletion:
    """The records of a partition from its log start to before `new_start`, by offsets."""

    partition: int
    start: int
    new_start: int

    @property
    def records(self) -> int:
        return self.new_start - self.start


class TopicAdmin:
    """Reads and changes topics and settings. Thread safe; every method may raise WireError."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def cluster(self) -> ClusterInfo:
        """The cluster's id, its controller, and the brokers that are not fenced."""
        found = ClusterAdmin(self._cluster).describe()
        return replace(found, brokers=[broker for broker in found.brokers if not broker.fenced])

    def topics(self) -> list[TopicInfo]:
        """All topics, by name, internal ones too."""
        found = self._cluster.topics()
        return [found[name] for name in sorted(found)]

    def topic(self, name: str) -> TopicInfo:
        """A topic with its partitions; UNKNOWN_TOPIC_OR_PARTITION if it does not exist."""
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
        """Creates a topic and waits until all its partitions have a leader.

        -1 leaves a number to the brokers. `assignments` has the brokers of each partition.
        """
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
        response = self._cluster.call(
            "create_topics", topics=[topic], validate_only=validate_only, timeout_ms=_CHANGE_TIMEOUT_MS
        )
        check(f"topic {name!r}", response.topics[0])

    def branch(
        self,
        parent: str,
        name: str,
        *,
        at_ms: int | None = None,
        offsets: Mapping[TopicPartition, int] | None = None,
        configs: Mapping[str, str] | None = None,
        groups: Mapping[str, str] | None = None,
    ) -> Branching:
        """Creates a branch of a topic: a topic with the same records up to a point, and its own records after that.

        The point is the end now, the first record at or after a time, or an offset for each partition. `configs` are
        set instead of the parent's. `groups` maps groups to those that get their committed offsets.
        """
        points = plan_branch(self._cluster, parent, at_ms=at_ms, offsets=offsets)
        return create_branch(self._cluster, parent, name, points, configs=configs, groups=groups)

    def delete(self, name: str) -> None:
        """Deletes a topic and its records."""
        response = self._cluster.call(
            "delete_topics", topics=[{"name": name}], topic_names=[name], timeout_ms=_CHANGE_TIMEOUT_MS
        )
        check(f"topic {name!r}", response.responses[0])

    def add_partitions(self, name: str, count: int, *, validate_only: bool = False) -> None:
        """Adds partitions, so that there are `count` of them."""
        topic = {"name": name, "count": count, "assignments": None}
        response = self._cluster.call(
            "create_partitions", topics=[topic], validate_only=validate_only, timeout_ms=_CHANGE_TIMEOUT_MS
        )
        check(f"topic {name!r}", response.results[0])

    # Records

    def plan_deletion(
        self,
        topic: str,
        partitions: Sequence[int] | None = None,
        before_offset: int | None = None,
        before_ms: int | None = None,
    ) -> list[RecordDeletion]:
        """What would be deleted of the partitions, all or those given: the records before an offset or a time, or all
        records if neither is given."""
        indexes = range(self._cluster.partitions_of(topic)) if partitions is None else partitions
        places = [TopicPartition(topic, index) for index in indexes]
        starts = self._cluster.offsets(dict.fromkeys(places, EARLIEST))
        ends = self._cluster.offsets(dict.fromkeys(places, LATEST), read_committed=False)
        wanted = {place: ends[place].offset if before_offset is None else before_offset for place in places}
        if before_ms is not None:
            for place, found in self._cluster.offsets(dict.fromkeys(places, before_ms), read_committed=False).items():
                wanted[place] = ends[place].offset if found.offset < 0 else found.offset
        return [
            RecordDeletion(
                place.partition,
                starts[place].offset,
                max(starts[place].offset, min(wanted[place], ends[place].offset)),
            )
            for place in places
        ]

    def delete_records(self, topic: str, deletions: Sequence[RecordDeletion]) -> None:
        """Deletes the records before the new log starts. This cannot be undone."""
        left = {each.partition: each.new_start for each in deletions}
        Deadline(self._cluster.timeout_s).retry(lambda: self._delete_records(topic, left))

    def _delete_records(self, topic: str, left: dict[int, int]) -> None:
        """One attempt, which removes from `left` what was deleted. RetriableError if a leader has moved."""
        by_leader: dict[int, list[dict[str, int]]] = {}
        for partition, new_start in left.items():
            leader = self._cluster.leader_of(TopicPartition(topic, partition))
            by_leader.setdefault(leader.node_id, []).append({"partition_index": partition, "offset": new_start})
        moved: RetriableError | None = None
        for node, rows in by_leader.items():
            topics = [{"name": topic, "partitions": rows}]
            try:
                response = self._cluster.call(
                    "delete_records", node=node, once=True, topics=topics, timeout_ms=_CHANGE_TIMEOUT_MS
                )
            except UnreachableError:  # it may lead no more
                moved = RetriableError(f"topic {topic!r}", ErrorCode.LEADER_NOT_AVAILABLE)
                continue
            for row in response.topics[0].partitions:
                what = f"partition {row.partition_index} of topic {topic!r}"
                if (code := error_code(row.error_code)).retriable:
                    moved = RetriableError(what, code)
                else:
                    check(what, row)
                    del left[row.partition_index]
        if moved is not None:
            self._cluster.refresh_leader(topic)
            raise moved

    # Settings

    def settings(self, resource: ConfigResource, name: str, names: Sequence[str] | None = None) -> list[ConfigEntry]:
        """Settings by name. For a broker, `name` is its id, or empty for the defaults of all brokers. The settings of
        BROKER_LOGGER are the levels of its loggers."""
        wanted = {"resource_type": int(resource), "resource_name": name, "configuration_keys": names}
        response = self._ask_about(
            resource, name, "describe_configs", resources=[wanted], include_synonyms=True, include_documentation=True
        )
        check(_called(resource, name), response.results[0])
        return sorted((_setting(row) for row in response.results[0].configs), key=lambda row: row.name)

    def setting(self, resource: ConfigResource, name: str, key: str) -> ConfigEntry:
        """One setting; RESOURCE_NOT_FOUND if the topic or broker does not have it."""
        found = next((row for row in self.settings(resource, name) if row.name == key), None)
        if found is None:
            raise refusal(_called(resource, name), ErrorCode.RESOURCE_NOT_FOUND, f"there is no setting {key!r}")
        return found

    def change(
        self, resource: ConfigResource, name: str, changes: Sequence[ConfigChange], *, validate_only: bool = False
    ) -> None:
        """Changes settings, all or none of them."""
        rows = [
            {"name": change.name, "config_operation": int(change.operation), "value": change.value}
            for change in changes
        ]
        wanted = {"resource_type": int(resource), "resource_name": name, "configs": rows}
        response = self._ask_about(
            resource, name, "incremental_alter_configs", resources=[wanted], validate_only=validate_only
        )
        check(_called(resource, name), response.responses[0])

    def _ask_about(self, resource: ConfigResource, name: str, api: str, **fields: Any) -> Message:
        """Sends a request about settings. Only the broker itself knows its settings and loggers."""
        if resource is not ConfigResource.TOPIC and name:
            if int(name) not in {row.node_id for row in self._cluster.brokers()}:
                raise refusal(f"broker {name}", ErrorCode.RESOURCE_NOT_FOUND, "there is no such broker")
            return self._cluster.call(api, node=int(name), **fields)
        return self._cluster.call(api, **fields)


def _setting(row: Message) -> ConfigEntry:
    source = _SOURCES.get(row.config_source, "UNKNOWN")
    return ConfigEntry(
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


def _called(resource: ConfigResource, name: str) -> str:
    if resource is ConfigResource.TOPIC:
        return f"topic {name!r}"
    return f"broker {name}" if name else "the cluster"
