"""Keeps a link's topics, settings, groups and ACLs in step with the source; one broker of the cluster does it.

    topics       new ones are created as mirrors, with the source's settings (an allow list) and number of partitions
    settings     of the allow list follow the source; partitions are added
    failures     a topic that the source deleted or created again becomes `failed`, with the reason
    promotions   a topic in the state `promoting` becomes `promoted` when all its partitions have caught up
    groups       committed offsets of groups without members here, up to the mirror's end
    ACLs         of the mirrored topics and the groups, if the link says so (`core/links.py`)

Everything here can be repeated: another broker may do the same when the responsible one has changed.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import astuple
from typing import Any

from millstream.config.setting import ConfigError
from millstream.config.table import topic as topic_settings
from millstream.config.topic_config import topic_setting
from millstream.formats.model.access_control import AclOperation, AclPatternType, AclPermission, AclResourceType
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicName
from millstream.node.environment import Environment
from millstream.node.metadata.image import ResourceType
from millstream.node.metadata.topics import NewTopic
from millstream.node.mirror.cluster_access import ClusterAccess
from millstream.node.mirror.core.links import (
    TOPIC_CONFIGS,
    Link,
    MirrorState,
    MirrorTopic,
    acl_changes,
    mirror_topic,
    mirror_topics,
    new_mirror_settings,
)
from millstream.node.mirror.groups import GroupOffsets
from millstream.node.mirror.source import SourceCluster, SourceMetadata, SourceTopic
from millstream.node.security.core.changes import AclBinding

_log = logging.getLogger("millstream.mirror")
_DEFAULT_CONFIG = 5
_CONFIGS_AT_ONCE = 200
_ACLS_AT_ONCE = 1000
_MISSING_SECONDS = 15.0
"""How long the source does not have a topic before the mirror fails: a broker that has just started may not know it."""


class Upkeep:
    def __init__(self, source: SourceCluster, cluster: ClusterAccess, environment: Environment) -> None:
        self._source = source
        self._cluster = cluster
        self._groups = GroupOffsets(source, cluster)
        self._environment = environment
        self._missing: dict[TopicName, float] = {}
        """Since when the source does not have a topic."""
        self._promotions: dict[TopicName, dict[int, int]] = {}
        """The ends at the source that a topic must reach before it is promoted."""
        self.conflicts: dict[str, str] = {}
        """Topics of the source that cannot be mirrored, and why."""

    async def run(self, link: Link, metadata: SourceMetadata) -> None:
        """One comparison. KafkaError and OSError if it could not be completed."""
        if metadata.cluster_id and metadata.cluster_id == self._cluster.image.cluster_id:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "the source is this cluster itself: bootstrap.servers names its own brokers"
            )
        mirrors = {mirror.name: mirror for mirror in mirror_topics(self._cluster.image) if mirror.link == link.name}
        await self._check_sources(link, mirrors.values(), metadata)
        if link.is_paused:
            return
        pulled = [mirror for mirror in mirrors.values() if mirror.is_pulled]
        wanted = [topic for name, topic in sorted(metadata.topics.items()) if link.wants(name)]
        configs = await self._source_configs({topic.name for topic in wanted} | {each.source_name for each in pulled})
        await self._create_missing(link, wanted, configs)
        for mirror in pulled:
            topic = metadata.topics.get(mirror.source_name)
            if topic is not None and topic.id == mirror.source_id:
                await self._keep_in_step(mirror, topic, configs.get(topic.name))
        await self._promote(pulled, metadata)
        await self._groups.run(link, pulled, metadata)
        if link.syncs_acls:
            await self._copy_acls(link, pulled)

    # Topics

    async def _check_sources(self, link: Link, mirrors: Iterable[MirrorTopic], metadata: SourceMetadata) -> None:
        for mirror in mirrors:
            if not mirror.is_pulled:
                continue
            topic = metadata.topics.get(mirror.source_name)
            if topic is None:
                now = self._environment.loop.time()
                if now - self._missing.setdefault(mirror.name, now) >= _MISSING_SECONDS:
                    await self._fail(
                        link,
                        mirror,
                        f"the source does not have topic {mirror.source_name} any more, or does not let this cluster "
                        "describe it",
                    )
                continue
            self._missing.pop(mirror.name, None)
            if topic.id != mirror.source_id:
                await self._fail(
                    link,
                    mirror,
                    f"topic {mirror.source_name} was deleted and created again at the source (id {topic.id} instead "
                    f"of {mirror.source_id}): promote this topic to keep it, or delete it to mirror the new one",
                )

    async def _fail(self, link: Link, mirror: MirrorTopic, reason: str) -> None:
        _log.error("mirror_topic_failed link=%s topic=%s reason=%s", link.name, mirror.name, reason)
        await self._cluster.alter_topic(
            mirror.name,
            {
                topic_settings.MIRROR_STATE.name: MirrorState.FAILED,
                topic_settings.MIRROR_REASON.name: reason,
            },
        )

    async def _source_configs(self, names: Iterable[str]) -> dict[str, dict[str, str | None]]:
        """The settings of topics at the source that are not its defaults."""
        found: dict[str, dict[str, str | None]] = {}
        ordered = sorted(names)
        for start in range(0, len(ordered), _CONFIGS_AT_ONCE):
            fields = {
                "resources": [
                    {"resource_type": int(ResourceType.TOPIC), "resource_name": name, "configuration_keys": None}
                    for name in ordered[start : start + _CONFIGS_AT_ONCE]
                ]
            }
            response = await self._source.any_request("describe_configs", fields)
            for row in response.results:
                if not row.error_code:
                    found[row.resource_name] = {
                        each.name: each.value for each in row.configs if each.config_source != _DEFAULT_CONFIG
                    }
        return found

    async def _create_missing(
        self, link: Link, wanted: Iterable[SourceTopic], configs: Mapping[str, Mapping[str, str | None]]
    ) -> None:
        self.conflicts = {}
        for topic in wanted:
            name = TopicName(link.prefix + topic.name)
            source_configs = configs.get(topic.name)
            if name in self._cluster.image.topics:
                mirror = mirror_topic(name, self._cluster.image.topic_config(name))
                if mirror is None or mirror.link != link.name:
                    self.conflicts[topic.name] = f"topic {name} exists here and is not a mirror of this link"
                elif mirror.state is MirrorState.PROMOTED:
                    self.conflicts[topic.name] = f"topic {name} was promoted here"
                continue
            if source_configs is None:
                self.conflicts[topic.name] = "the source does not let this cluster describe its settings"
                continue
            if _is_mirror(source_configs):
                self.conflicts[topic.name] = "it is a mirror itself: mirror its own source, so that no loop arises"
                continue
            try:
                await self._cluster.create_topic(
                    NewTopic(
                        name=name,
                        partition_count=len(topic.partitions),
                        replication_factor=link.replication_factor,
                        configs=_copied(source_configs) | new_mirror_settings(link.name, topic.name, topic.id),
                    )
                )
            except KafkaError as error:
                if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                    self.conflicts[topic.name] = f"it cannot be created here: {error.message}"
                continue
            _log.info("mirror_topic_created link=%s topic=%s partitions=%d", link.name, name, len(topic.partitions))

    async def _keep_in_step(
        self, mirror: MirrorTopic, topic: SourceTopic, configs: Mapping[str, str | None] | None
    ) -> None:
        image = self._cluster.image
        here = image.topics.get(mirror.name)
        if here is None:
            return
        if len(topic.partitions) > len(here.partitions):
            await self._cluster.add_partitions(mirror.name, len(topic.partitions))
        changes: dict[str, str | None] = {}
        if configs is not None:
            own = image.topic_config(mirror.name)
            wanted = _copied(configs)
            for name in TOPIC_CONFIGS:
                if own.get(name) != wanted.get(name):
                    changes[name] = wanted.get(name)
        if topic.latest_epoch > min((each.leader_epoch for each in here.partitions), default=topic.latest_epoch):
            changes[topic_settings.MIRROR_LEADER_EPOCH.name] = str(topic.latest_epoch)
        if changes:
            await self._cluster.alter_topic(mirror.name, changes)

    # Promotion

    async def _promote(self, mirrors: Iterable[MirrorTopic], metadata: SourceMetadata) -> None:
        promoting = [mirror for mirror in mirrors if mirror.state is MirrorState.PROMOTING]
        for name in sorted(self._promotions.keys() - {mirror.name for mirror in promoting}):
            del self._promotions[name]
        for mirror in promoting:
            topic = metadata.topics.get(mirror.source_name)
            if topic is None:
                continue
            goal = self._promotions.get(mirror.name)
            if goal is None or len(goal) < len(topic.partitions):
                ends = await self._source.ends([topic])
                goal = self._promotions[mirror.name] = {index: end for (_, index), end in ends.items()}
            if len(goal) == len(topic.partitions) and await self._has_reached(mirror, goal):
                await self._cluster.alter_topic(mirror.name, {topic_settings.MIRROR_STATE.name: MirrorState.PROMOTED})
                _log.info("mirror_topic_promoted topic=%s ends=%s", mirror.name, goal)

    async def _has_reached(self, mirror: MirrorTopic, goal: Mapping[int, int]) -> bool:
        for index, end in goal.items():
            if await self._cluster.committed_end(mirror.name, index) < end:
                return False
        return True

    # ACLs

    async def _copy_acls(self, link: Link, mirrors: Iterable[MirrorTopic]) -> None:
        fields = {
            "resource_type_filter": int(AclResourceType.ANY),
            "resource_name_filter": None,
            "pattern_type_filter": int(AclPatternType.ANY),
            "principal_filter": None,
            "host_filter": None,
            "operation": int(AclOperation.ANY),
            "permission_type": int(AclPermission.ANY),
        }
        response = await self._source.any_request("describe_acls", fields)
        if response.error_code:
            message = response.error_message or ErrorCode(response.error_code).name
            raise KafkaError(ErrorCode(response.error_code), f"ACLs of the source: {message}")
        source = (
            AclBinding(
                resource.resource_type,
                resource.resource_name,
                resource.pattern_type,
                acl.principal,
                acl.host,
                acl.operation,
                acl.permission_type,
            )
            for resource in response.resources
            for acl in resource.acls
        )
        changes = acl_changes(link, mirrors, source, self._cluster.image.acls.values())
        for start in range(0, len(changes.additions), _ACLS_AT_ONCE):
            rows = [_acl(binding) for binding in changes.additions[start : start + _ACLS_AT_ONCE]]
            result = await self._cluster.controller_request(
                "create_acls", {"creations": rows, "mirror_link": link.name}
            )
            _check_acls(result.results, "created")
        for start in range(0, len(changes.removals), _ACLS_AT_ONCE):
            rows = [_acl_filter(binding) for binding in changes.removals[start : start + _ACLS_AT_ONCE]]
            result = await self._cluster.controller_request("delete_acls", {"filters": rows})
            _check_acls(result.filter_results, "removed")
        if changes.additions or changes.removals:
            _log.info(
                "mirror_acls_changed link=%s added=%d removed=%d",
                link.name,
                len(changes.additions),
                len(changes.removals),
            )


def _check_acls(rows: Iterable[Any], what: str) -> None:
    for row in rows:
        if row.error_code:
            message = row.error_message or ErrorCode(row.error_code).name
            raise KafkaError(ErrorCode(row.error_code), f"ACLs cannot be {what} here: {message}")


def _acl(binding: AclBinding) -> dict[str, Any]:
    names = ("resource_type", "resource_name", "resource_pattern_type", "principal", "host", "operation")
    return dict(zip((*names, "permission_type"), astuple(binding), strict=True))


def _acl_filter(binding: AclBinding) -> dict[str, Any]:
    names = (
        "resource_type_filter", "resource_name_filter", "pattern_type_filter", "principal_filter", "host_filter",
        "operation", "permission_type",
    )  # fmt: skip
    return dict(zip(names, astuple(binding), strict=True))


def _is_mirror(configs: Mapping[str, str | None]) -> bool:
    """Whether a topic of the source, which may be a Millstream too, is a mirror itself."""
    return configs.get(topic_settings.MIRROR_STATE.name) not in (None, "", MirrorState.PROMOTED)


def _copied(configs: Mapping[str, str | None]) -> dict[str, str]:
    """The settings of the allow list, as far as they are valid here."""
    copied: dict[str, str] = {}
    for name in TOPIC_CONFIGS:
        value = configs.get(name)
        if value is None:
            continue
        try:
            topic_setting(name).parse(value)
        except ConfigError:
            continue
        copied[name] = value
    return copied
