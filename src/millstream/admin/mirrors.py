"""Mirror links and mirror topics of a cluster: create, list, status, pause, promote, fail over, reverse, delete.

Links are cluster-wide settings, the state of a mirror topic is in the topic's settings (docs/mirroring.md), so all
changes are plain AlterConfigs. Progress is read from the internal topic `__millstream_mirrors`. Comparing the records
of both sides is in `mirror_verification`.
"""

import contextlib
import json
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from millstream.admin.errors import AdminError, InvalidArgumentError, NotFoundError, check
from millstream.admin.report_topic import read_reports
from millstream.admin.topics import ConfigChange, ConfigOperation, ConfigResource, TopicAdmin
from millstream.config.setting import ConfigError
from millstream.config.table import mirror, topic
from millstream.formats.model.errors import ErrorCode
from millstream.raw_client import Cluster, TopicPartition, WireError
from millstream.raw_client.offsets import LATEST

REPORT_TOPIC = "__millstream_mirrors"
_TOPICS_AT_ONCE = 200
_POLL_SECONDS = 0.2
_HEARD_SECONDS = 2.0
_KNOWN_SECONDS = 10.0
"""Timeout for all brokers to know a link. The change is made by then: only a broker that is late is not waited for."""
_MIRROR_SETTINGS = (topic.MIRROR_LINK, topic.MIRROR_STATE, topic.MIRROR_REASON, topic.MIRROR_SOURCE_TOPIC)
_REPORTED = (
    "end", "source_end", "lag_records", "lag_bytes", "lag_seconds", "records_skipped", "records_truncated", "problem",
    "at_ms",
)  # fmt: skip


class MirrorError(AdminError):
    """A change of a link that its present state does not allow."""

    error = ErrorCode.INVALID_REQUEST


@dataclass(frozen=True, slots=True)
class MirrorLink:
    name: str
    settings: Mapping[str, str | None]
    """None for secrets, which are never shown."""

    @property
    def source(self) -> str:
        return self.settings.get(mirror.BOOTSTRAP_SERVERS.name) or ""

    @property
    def is_paused(self) -> bool:
        return self.settings.get(mirror.PAUSED.name) == "true"

    def setting(self, name: str, default: str = "") -> str:
        value = self.settings.get(name)
        return default if value is None else value

    def shown(self) -> dict[str, str]:
        """All settings, with *** for secrets."""
        return {name: "***" if value is None else value for name, value in sorted(self.settings.items())}


@dataclass(frozen=True, slots=True)
class MirrorTopic:
    name: str
    link: str
    state: str
    source_name: str
    reason: str


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """The last report on a partition. -1 where nothing is known."""

    topic: str
    partition: int
    state: str
    end: int = -1
    source_end: int = -1
    lag_records: int = -1
    lag_bytes: int = -1
    lag_seconds: float = -1.0
    records_skipped: int = 0
    records_truncated: int = 0
    problem: str = ""
    at_ms: int = 0

    def document(self) -> dict[str, Any]:
        return {
            "partition": self.partition,
            "end": self.end,
            "source_end": self.source_end,
            "lag_records": self.lag_records,
            "lag_bytes": self.lag_bytes,
            "lag_seconds": self.lag_seconds,
            "records_skipped": self.records_skipped,
            "records_truncated": self.records_truncated,
            "problem": self.problem or None,
            "reported_ms": self.at_ms,
        }


@dataclass(frozen=True, slots=True)
class LinkStatus:
    link: MirrorLink
    problem: str
    source_cluster: str
    conflicts: Mapping[str, str]
    topics: Sequence[MirrorTopic]
    partitions: Sequence[PartitionStatus]

    def document(self) -> dict[str, Any]:
        """The status as JSON, for the command line and over HTTP."""
        return {
            "name": self.link.name,
            "source": self.link.source,
            "source_cluster": self.source_cluster,
            "paused": self.link.is_paused,
            "problem": self.problem or None,
            "conflicts": dict(self.conflicts),
            "topics": [
                {
                    "name": each.name,
                    "source_name": each.source_name,
                    "state": each.state,
                    "reason": each.reason or None,
                    "partitions": [row.document() for row in self.partitions if row.topic == each.name],
                }
                for each in self.topics
            ],
        }


@dataclass(frozen=True, slots=True)
class Missing:
    """What a partition does not have of the other side, as far as it is known."""

    topic: str
    partition: int
    end: int
    source_end: int

    @property
    def records(self) -> int:
        """-1 if it is not known."""
        return max(0, self.source_end - self.end) if self.source_end >= 0 else -1

    def document(self) -> dict[str, Any]:
        """As JSON, for the command line and over HTTP."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "end": self.end,
            "source_end": self.source_end,
            "records": self.records,
        }


@dataclass(slots=True)
class _Reports:
    links: dict[str, dict[str, Any]] = field(default_factory=dict)
    partitions: dict[tuple[str, str, int], dict[str, Any]] = field(default_factory=dict)


class MirrorAdmin:
    """Thread safe; every method may raise WireError."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._topics = TopicAdmin(cluster)

    # Links

    def links(self) -> list[MirrorLink]:
        found: dict[str, dict[str, str | None]] = {}
        for entry in self._topics.settings(ConfigResource.BROKER, ""):
            if entry.name.startswith(mirror.LINK_PREFIX):
                link, setting = mirror.split_link_setting(entry.name)
                found.setdefault(link, {})[setting] = entry.value
        return [
            MirrorLink(name, settings)
            for name, settings in sorted(found.items())
            if mirror.BOOTSTRAP_SERVERS.name in settings
        ]

    def link(self, name: str) -> MirrorLink:
        found = {link.name: link for link in self.links()}
        if name not in found:
            raise NotFoundError(f"there is no mirror link {name!r}; links: {', '.join(found) or 'none'}")
        return found[name]

    def create(self, name: str, settings: Mapping[str, str]) -> None:
        """Creates a link. `settings` as in docs/settings.md, without the prefix."""
        if not mirror.is_link_name(name):
            raise InvalidArgumentError(f"{name!r} is not the name of a link: use letters, digits, '_' and '-'")
        if any(link.name == name for link in self.links()):
            raise MirrorError(f"the mirror link {name!r} exists already: delete it first, or choose another name")
        for setting in (mirror.BOOTSTRAP_SERVERS, mirror.TOPICS):
            if not settings.get(setting.name):
                raise InvalidArgumentError(f"a mirror link needs {setting.name}")
        try:
            re.compile(settings[mirror.TOPICS.name])
        except re.error as error:
            raise InvalidArgumentError(
                f"topics {settings[mirror.TOPICS.name]!r} is not a regular expression ({error}); 'orders.*' matches "
                "all names that begin with orders"
            ) from None
        self.change(name, settings)
        self._await_known(name, exists=True)

    def _await_known(self, name: str, *, exists: bool) -> None:
        """Waits until every broker knows that a link exists, or does not: the next request may go to any of them."""
        deadline = time.monotonic() + _KNOWN_SECONDS
        setting = f"{mirror.LINK_PREFIX}{name}.{mirror.BOOTSTRAP_SERVERS.name}"
        rows = [{"resource_type": int(ConfigResource.BROKER), "resource_name": "", "configuration_keys": [setting]}]
        for broker in self.cluster.brokers():
            with contextlib.suppress(WireError):
                while time.monotonic() < deadline:
                    left_s = deadline - time.monotonic()
                    response = self.cluster.call(
                        "describe_configs", node=broker.node_id, within_s=left_s, resources=rows
                    )
                    if any(row.configs for row in response.results) is exists:
                        break
                    time.sleep(_POLL_SECONDS / 4)

    def change(self, name: str, settings: Mapping[str, str | None], *, validate_only: bool = False) -> None:
        """Sets settings of a link; None removes one."""
        changes = []
        for setting, value in settings.items():
            full = f"{mirror.LINK_PREFIX}{name}.{setting}"
            declared = mirror.link_setting(full)
            if declared is None:
                known = ", ".join(mirror.LINK_SETTINGS)
                raise InvalidArgumentError(f"{setting} is not a setting of a mirror link; those are {known}")
            if value is not None and "${" not in value:
                try:
                    declared.parse(value)
                except ConfigError as error:
                    raise InvalidArgumentError(error.message) from None
            operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
            changes.append(ConfigChange(full, value, operation))
        self._topics.change(ConfigResource.BROKER, "", changes, validate_only=validate_only)

    def pause(self, name: str) -> None:
        self.link(name)
        self.change(name, {mirror.PAUSED.name: "true"})

    def resume(self, name: str) -> None:
        """Starts a paused link again. Failed topics are tried again, and promotions that wait are given up."""
        self.link(name)
        self.change(name, {mirror.PAUSED.name: None})
        again = [each.name for each in self.mirror_topics(name) if each.state in ("failed", "promoting")]
        self._set_states(again, "mirroring")

    def delete(self, name: str) -> None:
        """Removes a link. Its topics must be promoted or deleted first: they would stay closed for writes."""
        link = self.link(name)
        mirrors = self._not_promoted(name)
        if mirrors:
            raise MirrorError(
                f"{len(mirrors)} topics are still mirrors of {name!r} ({', '.join(mirrors[:5])}): promote them, fail "
                "over, or delete the topics first"
            )
        self.change(name, dict.fromkeys(link.settings))
        self._await_known(name, exists=False)

    # Topics

    def mirror_topics(self, link: str | None = None) -> list[MirrorTopic]:
        """The mirror topics of a link, or of all links, also promoted ones."""
        names = [info.name for info in self._topics.topics() if not info.name.startswith("__")]
        found = []
        for start in range(0, len(names), _TOPICS_AT_ONCE):
            rows = [
                {
                    "resource_type": int(ConfigResource.TOPIC),
                    "resource_name": name,
                    "configuration_keys": [each.name for each in _MIRROR_SETTINGS],
                }
                for name in names[start : start + _TOPICS_AT_ONCE]
            ]
            response = self.cluster.call("describe_configs", resources=rows)
            for row in response.results:
                values = {each.name: each.value or "" for each in row.configs}
                if row.error_code or not values.get(topic.MIRROR_LINK.name) or not values.get(topic.MIRROR_STATE.name):
                    continue
                found.append(
                    MirrorTopic(
                        row.resource_name,
                        values[topic.MIRROR_LINK.name],
                        values[topic.MIRROR_STATE.name],
                        values.get(topic.MIRROR_SOURCE_TOPIC.name, ""),
                        values.get(topic.MIRROR_REASON.name, ""),
                    )
                )
        return [each for each in found if link is None or each.link == link]

    def _not_promoted(self, link: str) -> list[str]:
        """The topics of a link that are still mirrors. The request is repeated for a short time: a broker may not have
        the metadata of a promotion yet."""
        deadline = time.monotonic() + _HEARD_SECONDS
        while True:
            found = [each.name for each in self.mirror_topics(link) if each.state != "promoted"]
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(_POLL_SECONDS)

    def is_compacted(self, name: str) -> bool:
        entry = self._topics.setting(ConfigResource.TOPIC, name, "cleanup.policy")
        return "compact" in (entry.value or "")

    def _set_states(self, names: Collection[str], state: str) -> None:
        if names:
            values = {topic.MIRROR_STATE.name: state, topic.MIRROR_REASON.name: None}
            self.alter_topics(dict.fromkeys(names, values))

    def alter_topics(self, topics: Mapping[str, Mapping[str, str | None]]) -> None:
        """Changes settings of topics, each topic's all or none; None removes one."""
        resources = [
            {
                "resource_type": int(ConfigResource.TOPIC),
                "resource_name": name,
                "configs": [
                    {
                        "name": setting,
                        "config_operation": int(ConfigOperation.DELETE if value is None else ConfigOperation.SET),
                        "value": value,
                    }
                    for setting, value in values.items()
                ],
            }
            for name, values in topics.items()
        ]
        response = self.cluster.call("incremental_alter_configs", resources=resources, validate_only=False)
        for row in response.responses:
            check(f"topic {row.resource_name!r}", row)

    # Progress

    def status(self, name: str) -> LinkStatus:
        link = self.link(name)
        topics = self.mirror_topics(name)
        reports = self._reports()
        about = reports.links.get(name, {})
        infos = self.cluster.topics([each.name for each in topics]) if topics else {}
        partitions = []
        for each in topics:
            for index in range(len(infos[each.name].partitions) if each.name in infos else 0):
                row = reports.partitions.get((name, each.name, index), {})
                known = {key: row[key] for key in _REPORTED if key in row}
                partitions.append(PartitionStatus(each.name, index, each.state, **known))
        problem = "" if link.is_paused else str(about.get("problem", ""))
        source_cluster = str(about.get("source_cluster", ""))
        return LinkStatus(link, problem, source_cluster, about.get("conflicts", {}), topics, partitions)

    def _reports(self) -> _Reports:
        found = _Reports()
        for key, value in self._report_records():
            try:
                document = json.loads(value)
            except ValueError:
                continue
            if "partition" in document:
                found.partitions[document["link"], document["topic"], document["partition"]] = document
            else:
                found.links[key] = document
        return found

    def _report_records(self) -> Iterator[tuple[str, bytes]]:
        for key, value in read_reports(self.cluster, REPORT_TOPIC):
            if value is not None:
                yield key, value

    # Promotion

    def promote(self, name: str, topics: Collection[str] = (), *, timeout_s: float) -> list[MirrorTopic]:
        """Ends mirroring of topics when they have everything that the source has. Waits for it."""
        names = self.begin_promotion(name, topics)
        deadline = time.monotonic() + timeout_s
        while True:
            now = [each for each in self.mirror_topics(name) if each.name in names]
            # A broker that has not heard of the change yet says "mirroring".
            waiting = [each for each in now if each.state in ("promoting", "mirroring")]
            if not waiting:
                return now
            if time.monotonic() > deadline:
                problems = {row.problem for row in self.status(name).partitions if row.problem}
                why = f" ({'; '.join(sorted(problems))})" if problems else ""
                raise MirrorError(
                    f"{len(waiting)} topics have not caught up within {timeout_s:g} s{why}: "
                    f"{', '.join(each.name for each in waiting[:5])}. They are promoted when they have caught up; "
                    "`millstream mirror failover` promotes them now"
                )
            time.sleep(_POLL_SECONDS)

    def begin_promotion(self, name: str, topics: Collection[str] = ()) -> set[str]:
        """The same without waiting; returns the names of the topics."""
        chosen = self._chosen(name, topics, ("mirroring", "promoting"))
        if self.link(name).is_paused:
            raise MirrorError(f"the link {name!r} is paused: resume it first, or use failover")
        self._set_states([each.name for each in chosen], "promoting")
        return {each.name for each in chosen}

    def failover(self, name: str, topics: Collection[str] = ()) -> list[Missing]:
        """Ends mirroring of topics at once; returns what was known to be missing in each partition."""
        chosen = self._chosen(name, topics, ("mirroring", "promoting", "failed"))
        names = [each.name for each in chosen]
        self._set_states(names, "promoted")
        reports = self._reports()
        places = self._partitions(names)
        ends = self.cluster.offsets(dict.fromkeys(places, LATEST), read_committed=False)
        missing = []
        for at in places:
            row = reports.partitions.get((name, at.topic, at.partition), {})
            missing.append(Missing(at.topic, at.partition, ends[at].offset, int(row.get("source_end", -1))))
        return missing

    def _partitions(self, names: Collection[str]) -> list[TopicPartition]:
        infos = self.cluster.topics(names)
        return [TopicPartition(name, index) for name in names for index in range(len(infos[name].partitions))]

    def comparable(self, name: str, topics: Collection[str] = ()) -> list[MirrorTopic]:
        """The topics of a link that can be compared with the source: all but failed ones."""
        return self._chosen(name, topics, ("mirroring", "promoting", "promoted"))

    def _chosen(self, name: str, topics: Collection[str], states: Collection[str]) -> list[MirrorTopic]:
        self.link(name)
        found = {each.name: each for each in self.mirror_topics(name)}
        unknown = [each for each in topics if each not in found]
        if unknown:
            raise NotFoundError(f"{', '.join(unknown)}: not a mirror topic of link {name!r}")
        chosen = [each for each in found.values() if not topics or each.name in topics]
        wrong = [each for each in chosen if topics and each.state not in states]
        if wrong:
            raise MirrorError(f"topic {wrong[0].name} is {wrong[0].state}; this needs {' or '.join(states)}")
        chosen = [each for each in chosen if each.state in states]
        if not chosen:
            raise MirrorError(f"link {name!r} has no topic that is {' or '.join(states)}")
        return chosen

    # Reverse

    def reverse(
        self, name: str, source: "MirrorAdmin", back: Mapping[str, str], *, dry_run: bool = False
    ) -> list[Missing]:
        """Makes the old source a mirror of this cluster: it removes what this cluster does not have, and follows.

        `source` administers the old source; `back` are the settings of its link to this cluster (`bootstrap.servers`,
        and the connection). Returns, for each partition, the records that the old source will remove: those from `end`
        to `source_end`.
        """
        link = self.link(name)
        if link.setting(mirror.PREFIX.name):
            raise MirrorError(f"link {name!r} has a prefix: topics with other names cannot be reversed")
        not_promoted = self._not_promoted(name)
        topics = self.mirror_topics(name)
        if not_promoted or not topics:
            raise MirrorError(
                f"link {name!r}: promote its topics, or fail over, before it is reversed "
                f"({', '.join(not_promoted[:5]) or 'it has no topics'})"
            )
        names = [each.name for each in topics]
        here, there = self.cluster.topics(names), source.cluster.topics(names)
        gone = [each for each in names if each not in there]
        if gone:
            raise MirrorError(f"the old source does not have {', '.join(gone[:5])} any more: create a new link there")
        source.check_can_mirror(names[0])
        cut = self._cut_by_reversal(names, source)
        if dry_run:
            return cut
        # The old source is changed first. So what would be refused here must be refused before that.
        self.change(name, dict.fromkeys(link.settings), validate_only=True)
        groups = link.setting(mirror.GROUPS.name, mirror.GROUPS.default)
        pattern = "|".join(re.escape(each) for each in names)
        source.create(name, {mirror.TOPICS.name: pattern, mirror.GROUPS.name: groups, **back})
        source.alter_topics(
            {
                each: {
                    topic.MIRROR_LINK.name: name,
                    topic.MIRROR_STATE.name: "mirroring",
                    topic.MIRROR_SOURCE_TOPIC.name: each,
                    topic.MIRROR_SOURCE_ID.name: str(here[each].topic_id),
                }
                for each in names
            }
        )
        self.change(name, dict.fromkeys(link.settings))
        self._await_known(name, exists=False)
        return cut

    def check_can_mirror(self, name: str) -> None:
        """Refuses a cluster that does not have the settings of mirror topics, such as an Apache Kafka."""
        entries = self._topics.settings(ConfigResource.TOPIC, name, [topic.MIRROR_STATE.name])
        if not any(entry.name == topic.MIRROR_STATE.name for entry in entries):
            raise MirrorError(
                "the old source is not a Millstream cluster with mirroring, so its topics cannot follow this one: "
                "start Kafka on the data directory of this node (docs/migration.md), or copy back with MirrorMaker 2"
            )

    def _cut_by_reversal(self, names: Collection[str], source: "MirrorAdmin") -> list[Missing]:
        """The records of the old source that this cluster does not have, found by their leader epochs."""
        places = source._partitions(names)
        ends = source.cluster.offsets(dict.fromkeys(places, LATEST), read_committed=False)
        cut = []
        for at in places:
            last = ends[at]
            common = self._end_of_epoch(at, last.leader_epoch) if last.offset > 0 and last.leader_epoch >= 0 else -1
            kept = last.offset if common < 0 else min(common, last.offset)
            cut.append(Missing(at.topic, at.partition, kept, last.offset))
        return cut

    def _end_of_epoch(self, at: TopicPartition, epoch: int) -> int:
        row = {"partition": at.partition, "leader_epoch": epoch}
        leader = self.cluster.leader_of(at).node_id
        response = self.cluster.call(
            "offset_for_leader_epoch", node=leader, topics=[{"topic": at.topic, "partitions": [row]}]
        )
        found = response.topics[0].partitions[0]
        check(f"leader epoch {epoch} of {at}", found)
        return int(found.end_offset)
