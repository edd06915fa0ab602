"""Links and mirror topics, read from the metadata image, and the ACLs that a link copies.

A link is a set of cluster-wide settings (`config/table/mirror.py`); a mirror topic has settings that name its link, its
state, and its name and id at the source. Both are in the metadata log, so they survive restarts and failovers.

States of a mirror topic:

    mirroring ──promote──> promoting ──caught up──> promoted
        │ └──────failover──────────────────────────────^
        └──the source's topic was deleted or created again──> failed ──failover──> promoted
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any
from uuid import UUID

from millstream.common.lazy_dataclass import dataclass
from millstream.config.setting import ConfigError
from millstream.config.table import mirror, topic
from millstream.formats.model.access_control import AclPatternType, AclResourceType
from millstream.formats.model.errors import KafkaError
from millstream.formats.model.identifiers import TopicName
from millstream.node.coordination.core.expression import Expression
from millstream.node.metadata.image import MetadataImage, ResourceType
from millstream.node.metadata.records import AccessControlEntryRecord
from millstream.node.metadata.topic_names import INTERNAL_TOPICS, check_topic_name
from millstream.node.security.core.changes import AclBinding, binding_of, mirrored_id

TOPIC_CONFIGS = (
    "cleanup.policy",
    "compression.type",
    "delete.retention.ms",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.ms",
)
"""The settings of a topic that are kept in step with the source."""


class MirrorState(StrEnum):
    MIRRORING = "mirroring"
    PROMOTING = "promoting"
    FAILED = "failed"
    PROMOTED = "promoted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The definition of a link."""

    name: str
    settings: Mapping[str, str]
    """All its settings as text, also those of the connection."""
    bootstrap_servers: tuple[str, ...] = ()
    topics: str = ""
    groups: str = ".*"
    prefix: str = ""
    is_paused: bool = False
    syncs_acls: bool = False
    replication_factor: int = -1
    throttle_bytes: int = mirror.THROTTLE.default
    interval_ms: int = mirror.INTERVAL_MS.default
    problem: str | None = None
    """Why the link cannot be used."""
    _topics: Expression | None = field(default=None, repr=False, compare=False)
    _groups: Expression | None = field(default=None, repr=False, compare=False)

    def wants(self, name: str) -> bool:
        """Whether a topic of the source is mirrored."""
        if self._topics is None or name in INTERNAL_TOPICS or name.startswith("__"):
            return False
        return self._topics.is_match(name) and self._has_legal_name(name)

    def _has_legal_name(self, name: str) -> bool:
        try:
            check_topic_name(self.prefix + name)
        except KafkaError:
            return False
        return True

    def wants_group(self, group: str) -> bool:
        return self._groups is not None and self._groups.is_match(group)

    @property
    def connection(self) -> Mapping[str, str]:
        """What a change of requires new connections."""
        return {
            name: value
            for name, value in self.settings.items()
            if name.startswith(("ssl.", "sasl.", "security.")) or name == mirror.BOOTSTRAP_SERVERS.name
        }


def links(image: MetadataImage) -> dict[str, Link]:
    """All links by name."""
    found: dict[str, dict[str, str]] = {}
    for name, text in image.default_broker_config.items():
        if name.startswith(mirror.LINK_PREFIX):
            link, setting = mirror.split_link_setting(name)
            found.setdefault(link, {})[setting] = text
    return {
        name: _link(name, settings) for name, settings in found.items() if mirror.BOOTSTRAP_SERVERS.name in settings
    }


def _link(name: str, settings: Mapping[str, str]) -> Link:
    values: dict[str, Any] = {}
    try:
        for setting in mirror.SETTINGS:
            text = settings.get(setting.name)
            values[setting.name] = setting.default if text is None else setting.parse(text)
        topics = Expression(values["topics"], "topics") if values["topics"] else None
        groups = Expression(values["groups"], "groups") if values["groups"] else None
    except (ConfigError, KafkaError) as error:
        return Link(name=name, settings=settings, problem=error.message)
    return Link(
        name=name,
        settings=settings,
        bootstrap_servers=values["bootstrap.servers"],
        topics=values["topics"],
        groups=values["groups"],
        prefix=values["prefix"],
        is_paused=values["paused"],
        syncs_acls=values["acls"],
        replication_factor=values["replication.factor"],
        throttle_bytes=values["throttle.bytes.per.second"],
        interval_ms=values["interval.ms"],
        _topics=topics,
        _groups=groups,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorTopic:
    """A mirror topic, as its settings describe it."""

    name: TopicName
    link: str
    state: MirrorState
    source_name: str
    source_id: UUID
    reason: str = ""

    @property
    def is_pulled(self) -> bool:
        return self.state in (MirrorState.MIRRORING, MirrorState.PROMOTING)


def mirror_topic(name: str, settings: Mapping[str, str]) -> MirrorTopic | None:
    """The mirror topic with these settings; None if it is none."""
    link, state = settings.get(topic.MIRROR_LINK.name), settings.get(topic.MIRROR_STATE.name)
    if not link or not state:
        return None
    try:
        return MirrorTopic(
            name=TopicName(name),
            link=link,
            state=MirrorState(state),
            source_name=settings.get(topic.MIRROR_SOURCE_TOPIC.name, name),
            source_id=UUID(settings.get(topic.MIRROR_SOURCE_ID.name, "")),
            reason=settings.get(topic.MIRROR_REASON.name, ""),
        )
    except ValueError:
        return None


def mirror_topics(image: MetadataImage) -> Iterator[MirrorTopic]:
    for resource, settings in image.configs.items():
        if resource.type == ResourceType.TOPIC:
            found = mirror_topic(resource.name, settings)
            if found is not None:
                yield found


def new_mirror_settings(link: str, source_name: str, source_id: UUID) -> dict[str, str]:
    """The settings that make a topic a mirror."""
    return {
        topic.MIRROR_LINK.name: link,
        topic.MIRROR_STATE.name: MirrorState.MIRRORING,
        topic.MIRROR_SOURCE_TOPIC.name: source_name,
        topic.MIRROR_SOURCE_ID.name: str(source_id),
    }


@dataclass(frozen=True, slots=True)
class AclChanges:
    additions: tuple[AclBinding, ...] = ()
    removals: tuple[AclBinding, ...] = ()


def acl_changes(
    link: Link,
    mirrors: Iterable[MirrorTopic],
    source: Iterable[AclBinding],
    here: Iterable[AccessControlEntryRecord],
) -> AclChanges:
    """Which ACLs a link adds and removes here, so that they are as at the source: whole states are compared each time.

    The id of an ACL says whether a link copied it (`security/core/changes.py`), so a link removes only ACLs of its own,
    and another broker, or a broker after a restart, removes the same ones. An ACL that was made here stays, also if the
    source had the same one. ACLs of promoted topics stay as they were at the promotion: the source does not decide on
    them then.

    `mirrors`: the topics that follow the source now; `source`: all its ACLs; `here`: all ACLs of this cluster.
    """
    names = {mirror.source_name: mirror.name for mirror in mirrors}
    if not names:
        return AclChanges()  # all were promoted, or none was made yet
    wanted = dict.fromkeys(_wanted(link, names, source))
    existing = {binding_of(acl): acl.id for acl in here}
    removals = (
        binding
        for binding, acl_id in existing.items()
        if binding not in wanted and acl_id == mirrored_id(link.name, binding) and _follows(binding, names.values())
    )
    return AclChanges(tuple(binding for binding in wanted if binding not in existing), tuple(removals))


def _wanted(link: Link, names: Iterable[str], source: Iterable[AclBinding]) -> Iterator[AclBinding]:
    """The ACLs of the source for its mirrored topics and groups, under the names of this cluster."""
    for acl in source:
        is_prefix = acl.pattern_type == AclPatternType.PREFIXED
        if acl.resource_type == AclResourceType.TOPIC:
            if _is_for(acl, names):
                yield _renamed(acl, link.prefix + acl.resource_name)
        elif acl.resource_type == AclResourceType.GROUP and (is_prefix or link.wants_group(acl.resource_name)):
            yield acl


def _is_for(acl: AclBinding, names: Iterable[str]) -> bool:
    if acl.pattern_type == AclPatternType.PREFIXED:
        return any(name.startswith(acl.resource_name) for name in names)
    return acl.resource_name in names


def _follows(acl: AclBinding, names: Iterable[str]) -> bool:
    """Whether the source decides on an ACL of this cluster."""
    return acl.resource_type == AclResourceType.GROUP or _is_for(acl, names)


def _renamed(acl: AclBinding, name: str) -> AclBinding:
    return AclBinding(acl.resource_type, name, acl.pattern_type, acl.principal, acl.host, acl.operation, acl.permission)
