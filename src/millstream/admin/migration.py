"""What of a running Kafka cluster would not fit here: settings, groups, users; and its size. Changes nothing.

Topics, records, committed offsets and ACLs come over with a mirror link (docs/migration.md); this finds what does not.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from millstream.admin.errors import check
from millstream.admin.topics import ConfigEntry, ConfigResource, TopicAdmin
from millstream.config.catalog import TOPIC_SETTINGS, broker_setting
from millstream.config.setting import ConfigError, Setting
from millstream.raw_client import Cluster, TopicInfo
from millstream.raw_client.errors import WireError

FETCH_API = 1
FIRST_FETCH_VERSION = 13
MIRRORED_SETTINGS = frozenset(
    {
        "cleanup.policy", "compression.type", "delete.retention.ms", "max.compaction.lag.ms", "max.message.bytes",
        "message.timestamp.type", "min.cleanable.dirty.ratio", "min.compaction.lag.ms", "retention.bytes",
        "retention.ms", "segment.bytes", "segment.ms",
    }
)  # fmt: skip
"""The settings of a topic that a mirror link copies (`node/mirror/core/links.py`)."""
_OF_THE_MACHINE = ("advertised.", "broker.", "controller.", "host", "listener", "log.dir", "node.", "port", "process.",
                   "metadata.log.dir", "zookeeper.", "security.inter", "inter.broker", "early.start", "ssl.",
                   "sasl.jaas", "super.users", "num.", "group.initial", "cluster.id")  # fmt: skip
"""Beginnings of broker settings that belong to one machine and are written again for the new one."""


class Severity(StrEnum):
    BLOCKS = "blocks"
    """It cannot be moved as it is."""
    BY_HAND = "by hand"
    """It does not come over by itself."""
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """What there is to move."""

    cluster_id: str
    brokers: int
    topics: int
    partitions: int
    bytes: int
    """Of all leaders; replicas are not counted."""
    groups: int | None
    """None if they were not counted."""


class MigrationCheck:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._admin = TopicAdmin(cluster)

    def inventory(self) -> Inventory:
        found = self._admin.cluster()
        topics = self._topics()
        leaders = {(topic.name, row.index): row.leader for topic in topics for row in topic.partitions}
        size = 0
        for node, response in self._cluster.call_every_broker("describe_log_dirs", topics=None).items():
            for directory in response.results:
                for topic in directory.topics:
                    for row in topic.partitions:
                        if leaders.get((topic.name, row.partition_index)) == node:
                            size += row.partition_size
        return Inventory(
            found.cluster_id,
            len(found.brokers),
            len(topics),
            sum(len(topic.partitions) for topic in topics),
            size,
            len(self._groups()),
        )

    def findings(self) -> list[Finding]:
        """All that does not come over by itself; what blocks first."""
        found = [
            *self._protocol(),
            *self._topic_settings(),
            *self._broker_settings(),
            *self._group_kinds(),
            *self._open_transactions(),
            *self._users_and_quotas(),
        ]
        order = list(Severity)
        return sorted(found, key=lambda each: order.index(each.severity))

    def _topics(self) -> list[TopicInfo]:
        return [topic for topic in self._admin.topics() if not topic.is_internal and not topic.name.startswith("__")]

    def _groups(self) -> dict[str, str]:
        """The kind of each group."""
        return {
            row.group_id: getattr(row, "group_type", "") or "classic"
            for response in self._cluster.call_every_broker("list_groups", states_filter=[], types_filter=[]).values()
            for row in response.groups
        }

    # Findings

    def _protocol(self) -> Iterator[Finding]:
        response = self._cluster.call(
            "api_versions", client_software_name="millstream", client_software_version="migration"
        )
        newest = {row.api_key: row.max_version for row in response.api_keys}.get(FETCH_API, -1)
        if newest < FIRST_FETCH_VERSION:
            text = f"Fetch up to version {newest}: a mirror link needs {FIRST_FETCH_VERSION} (Kafka 3.1 and later)"
            yield Finding(Severity.BLOCKS, "protocol", f"{text}; upgrade it first, or use MirrorMaker 2")

    def _topic_settings(self) -> Iterator[Finding]:
        for topic in self._topics():
            for entry in self._admin.settings(ConfigResource.TOPIC, topic.name):
                if entry.is_own:
                    yield from _about(entry, TOPIC_SETTINGS.get(entry.name), f"topic {topic.name}")
            if any(row.leader < 0 for row in topic.partitions):
                yield Finding(Severity.BLOCKS, f"topic {topic.name}", "a partition has no leader, so it cannot be read")

    def _broker_settings(self) -> Iterator[Finding]:
        for broker in self._cluster.brokers():
            for entry in self._admin.settings(ConfigResource.BROKER, str(broker.node_id)):
                if entry.is_default or entry.name.startswith(_OF_THE_MACHINE):
                    continue
                yield from _about(entry, broker_setting(entry.name), f"broker {broker.node_id}", is_topic=False)

    def _group_kinds(self) -> Iterator[Finding]:
        kinds: dict[str, int] = {}
        for kind in self._groups().values():
            kinds[kind.lower()] = kinds.get(kind.lower(), 0) + 1
        for kind in sorted(kinds.keys() - {"classic", "consumer"}):
            text = f"{kinds[kind]} groups of type {kind}: their progress is not mirrored; let them finish first"
            yield Finding(Severity.BY_HAND, "groups", text)

    def _open_transactions(self) -> Iterator[Finding]:
        responses = self._cluster.call_every_broker(
            "list_transactions", state_filters=["Ongoing"], producer_id_filters=[]
        )
        count = sum(len(response.transaction_states) for response in responses.values())
        if count:
            text = f"{count} transactions are open now: stop their producers before the promotion, which aborts them"
            yield Finding(Severity.NOTE, "transactions", text)

    def _users_and_quotas(self) -> Iterator[Finding]:
        try:
            response = self._cluster.call("describe_user_scram_credentials", users=[])
            if not response.error_code and response.results:
                text = f"{len(response.results)} SCRAM users: passwords cannot be read; add them with `millstream user`"
                yield Finding(Severity.BY_HAND, "users", text)
            response = self._cluster.call("describe_client_quotas", components=[], strict=False)
            check("quotas", response)
            if response.entries:
                text = f"{len(response.entries)} quotas are not mirrored: set them with `millstream quota`"
                yield Finding(Severity.BY_HAND, "quotas", text)
        except WireError as error:
            yield Finding(Severity.NOTE, "users", f"users and quotas cannot be read: {error}")


def _about(
    entry: ConfigEntry, setting: Setting[object] | None, subject: str, is_topic: bool = True
) -> Iterable[Finding]:
    """What is to be said about a setting that is not the default."""
    shown = f"{entry.name}={'***' if entry.is_sensitive else entry.value}"
    if setting is None:
        yield Finding(Severity.NOTE, subject, f"{shown}: there is no such setting here")
        return
    try:
        if entry.value is not None and not entry.is_sensitive:
            setting.parse(entry.value)
    except ConfigError as error:
        yield Finding(Severity.BLOCKS if is_topic else Severity.BY_HAND, subject, error.message)
        return
    if setting.without_effect:
        yield Finding(Severity.NOTE, subject, f"{shown} has no effect here: {setting.without_effect}")
    elif is_topic and entry.name not in MIRRORED_SETTINGS:
        yield Finding(Severity.BY_HAND, subject, f"{shown} is not copied by a link: set it after the promotion")
    elif not is_topic:
        yield Finding(Severity.BY_HAND, subject, f"{shown}: write it into the new brokers' configuration")
