"""The topology of a streams group: subtopologies with their topics; its validation against the topics of the cluster.

`Topology` is what members send and the group's record has. `configure` compares it with the topics that exist: it finds
the number of tasks of each subtopology, the number of partitions of each internal topic, and what is missing or does
not fit. The handler creates missing internal topics; nothing is created here.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import cached_property
from heapq import heappop, heappush
from typing import Any, NamedTuple

from millstream.common.lazy_dataclass import dataclass
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.schema import Message
from millstream.node.coordination.core.state_machine import TopicCatalog
from millstream.node.groups.core.group import MAX_TEXT_LENGTH
from millstream.node.metadata.topic_names import INTERNAL_TOPICS, is_topic_name

MAX_TASKS = 20_000
"""Of a group. A heartbeat may name thousands of subtopologies, and each has a task for each partition that it reads."""
_SHOWN_TOPICS = 3
"""The number of topics in the text of a status."""


class StatusCode(IntEnum):
    """The states that a heartbeat response reports, with Kafka's numbers."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5


class Status(NamedTuple):
    code: StatusCode
    detail: str

    def row(self) -> dict[str, Any]:
        return {"status_code": self.code, "status_detail": self.detail}


class TopicInfo(NamedTuple):
    """An internal topic as the application wants it. 0 partitions or replicas: the broker decides."""

    name: str
    partitions: int
    replication_factor: int
    configs: tuple[tuple[str, str], ...]

    def fields(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "partitions": self.partitions,
            "replication_factor": self.replication_factor,
            "topic_configs": [{"key": key, "value": value} for key, value in self.configs],
        }


class CopartitionGroup(NamedTuple):
    """Source topics that must have the same number of partitions, as positions in the lists of the subtopology."""

    source_topics: tuple[int, ...]
    source_topic_regex: tuple[int, ...]
    repartition_source_topics: tuple[int, ...]


class Subtopology(NamedTuple):
    id: str
    source_topics: tuple[str, ...]
    source_topic_regex: tuple[str, ...]
    changelogs: tuple[TopicInfo, ...]
    repartition_sinks: tuple[str, ...]
    repartition_sources: tuple[TopicInfo, ...]
    copartition_groups: tuple[CopartitionGroup, ...]

    @property
    def inputs(self) -> list[str]:
        return [*self.source_topics, *(topic.name for topic in self.repartition_sources)]

    @property
    def topics(self) -> list[str]:
        """All topics that it names."""
        return [*self.inputs, *self.repartition_sinks, *(topic.name for topic in self.changelogs)]

    def copartitioned(self) -> list[frozenset[str]]:
        return [
            frozenset(
                [
                    *(self.source_topics[at] for at in group.source_topics),
                    *(self.repartition_sources[at].name for at in group.repartition_source_topics),
                ]
            )
            for group in self.copartition_groups
        ]


@dataclass(frozen=True)
class Topology:
    epoch: int
    subtopologies: Mapping[str, Subtopology]
    """By id, sorted."""

    @property
    def required_topics(self) -> set[str]:
        """Topics that are read or written by tasks, except sinks: those are the repartition sources of others."""
        return {
            name
            for each in self.subtopologies.values()
            for name in (*each.inputs, *(topic.name for topic in each.changelogs))
        }

    @cached_property
    def readers(self) -> Mapping[str, str]:
        """The id of the subtopology that reads a topic."""
        return {name: each.id for each in self.subtopologies.values() for name in each.inputs}

    def value(self) -> dict[str, Any]:
        """The value of the topology record."""
        return {
            "epoch": self.epoch,
            "subtopologies": [
                {
                    "subtopology_id": each.id,
                    "source_topics": list(each.source_topics),
                    "source_topic_regex": list(each.source_topic_regex),
                    "state_changelog_topics": [topic.fields() for topic in each.changelogs],
                    "repartition_sink_topics": list(each.repartition_sinks),
                    "repartition_source_topics": [topic.fields() for topic in each.repartition_sources],
                    "copartition_groups": [
                        {name: list(positions) for name, positions in group._asdict().items()}
                        for group in each.copartition_groups
                    ],
                }
                for each in self.subtopologies.values()
            ],
        }


def read_topology(message: Any) -> Topology:
    """The topology of a heartbeat request or of a record: both have the same fields. Lists are sorted, so that equal
    topologies are equal whatever the order in which a client sends them."""
    found = sorted((_subtopology(row) for row in message.subtopologies), key=lambda each: each.id)
    return Topology(message.epoch, {each.id: each for each in found})


def _subtopology(row: Message) -> Subtopology:
    return Subtopology(
        row.subtopology_id,
        tuple(row.source_topics),
        tuple(row.source_topic_regex),
        tuple(_topic_info(topic) for topic in row.state_changelog_topics),
        tuple(row.repartition_sink_topics),
        tuple(_topic_info(topic) for topic in row.repartition_source_topics),
        tuple(
            CopartitionGroup(
                tuple(group.source_topics), tuple(group.source_topic_regex), tuple(group.repartition_source_topics)
            )
            for group in row.copartition_groups
        ),
    )


def _topic_info(row: Message) -> TopicInfo:
    configs = tuple(sorted((each.key, each.value) for each in row.topic_configs))
    return TopicInfo(row.name, row.partitions, row.replication_factor, configs)


# Checks of a request


def topics_of(message: Any) -> dict[str, None]:
    """The topics that the topology of a request names, each once."""
    return {
        name: None
        for row in message.subtopologies
        for name in (
            *row.source_topics,
            *row.repartition_sink_topics,
            *(topic.name for topic in row.repartition_source_topics),
            *(topic.name for topic in row.state_changelog_topics),
        )
    }


def topic_names_problem(names: Iterable[str]) -> str:
    """The reason why an application may not use these topics; empty if it may."""
    names = list(names)
    if prohibited := [name for name in names if name in INTERNAL_TOPICS]:
        return f"Use of Kafka internal topics {','.join(prohibited)} in a Kafka Streams topology is prohibited."
    if invalid := [name for name in names if not is_topic_name(name)]:
        return f"Topic names {','.join(invalid)} are not valid topic names."
    return ""


def check_topology(message: Any) -> None:
    """STREAMS_INVALID_TOPOLOGY for a topology that is invalid whatever the topics of the cluster are."""
    seen: set[str] = set()
    for row in message.subtopologies:
        _refuse_if(row.subtopology_id in seen, f"Subtopology {row.subtopology_id} is in the topology twice.")
        _refuse_if(len(row.subtopology_id) > MAX_TEXT_LENGTH, "The id of a subtopology is too long.")
        seen.add(row.subtopology_id)
        for topic in row.state_changelog_topics:
            _refuse_if(
                topic.partitions != 0,
                f"Changelog topic {topic.name} must have an undefined partition count, but it is set to "
                f"{topic.partitions}.",
            )
        for topic in (*row.state_changelog_topics, *row.repartition_source_topics):
            _refuse_if(
                topic.partitions < 0 or topic.replication_factor < -1,
                f"Internal topic {topic.name} has a negative number of partitions or replicas.",
            )
        for group in row.copartition_groups:
            fits = all(0 <= at < len(row.source_topics) for at in group.source_topics) and all(
                0 <= at < len(row.repartition_source_topics) for at in group.repartition_source_topics
            )
            _refuse_if(
                not fits,
                f"A copartition group of subtopology {row.subtopology_id} names a topic that it does not have.",
            )
    _refuse_if(message.epoch < 0, "Topology epoch must be non-negative.")


def _refuse_if(wrong: bool, message: str) -> None:
    if wrong:
        raise KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, message)


# The topology and the topics of the cluster


class InternalTopic(NamedTuple):
    name: str
    partition_count: int
    replication_factor: int
    """-1: the default of the broker."""
    configs: Mapping[str, str]


class ConfiguredSubtopology(NamedTuple):
    task_count: int
    inputs: tuple[str, ...]
    is_stateful: bool


@dataclass(frozen=True)
class ConfiguredTopology:
    topology: Topology
    catalog_version: int
    subtopologies: Mapping[str, ConfiguredSubtopology]
    """Empty if source topics are missing, if topics are not partitioned as they must be, or if there are too many
    tasks."""
    partition_counts: Mapping[str, int]
    """Of the internal topics."""
    missing: Sequence[InternalTopic]
    """Internal topics to create."""
    status: Status | None
    """Why the group cannot get tasks; None if it can."""

    @property
    def is_ready(self) -> bool:
        return self.status is None


class _Unfit(Exception):
    def __init__(self, code: StatusCode, detail: str) -> None:
        super().__init__(detail)
        self.status = Status(code, detail)


def configure(topology: Topology, topics: TopicCatalog) -> ConfiguredTopology:
    """STREAMS_INVALID_TOPOLOGY if no topics can make the topology valid."""
    try:
        counts = _PartitionCounts(topology, topics).decide()
        missing = _missing_topics(topology, topics, counts)
    except _Unfit as unfit:
        return ConfiguredTopology(topology, topics.version, {}, {}, (), unfit.status)

    def count_of(name: str) -> int:
        topic = topics.get(name)
        return counts[name] if topic is None else topic.partition_count

    configured = {
        each.id: ConfiguredSubtopology(
            max(count_of(name) for name in each.inputs), tuple(sorted(set(each.inputs))), bool(each.changelogs)
        )
        for each in topology.subtopologies.values()
    }
    status = None
    tasks = sum(each.task_count for each in configured.values())
    if tasks > MAX_TASKS:
        detail = f"The application has {tasks} tasks; {MAX_TASKS} are allowed in a group."
        status = Status(StatusCode.INCORRECTLY_PARTITIONED_TOPICS, detail)
        return ConfiguredTopology(topology, topics.version, {}, {}, (), status)
    if missing:
        detail = f"Internal topics are missing: {_shown([topic.name for topic in missing])}"
        status = Status(StatusCode.MISSING_INTERNAL_TOPICS, detail)
    return ConfiguredTopology(topology, topics.version, configured, counts, missing, status)


class _PartitionCounts:
    """Decides the number of partitions of each internal topic."""

    def __init__(self, topology: Topology, topics: TopicCatalog) -> None:
        self._subtopologies = list(topology.subtopologies.values())
        self._topics = topics
        self._decided: dict[str, int] = {}
        self._fixed = {
            topic.name for each in self._subtopologies for topic in each.repartition_sources if topic.partitions
        }

    def decide(self) -> dict[str, int]:
        missing = {
            name for each in self._subtopologies for name in each.source_topics if self._topics.get(name) is None
        }
        if missing:
            detail = f"Source topics {_shown(sorted(missing))} are missing."
            raise _Unfit(StatusCode.MISSING_SOURCE_TOPICS, detail)
        self._repartition_topics()
        for each in self._subtopologies:
            for group in each.copartitioned():
                self._copartition(group)
        for each in self._subtopologies:
            if not each.inputs:
                _refuse_if(True, f"No source topics found for subtopology {each.id}")
            count = max(self._known(name) for name in each.inputs)
            self._decided.update((topic.name, count) for topic in each.changelogs)
        return self._decided

    def _count(self, name: str) -> int | None:
        topic = self._topics.get(name)
        return self._decided.get(name) if topic is None else topic.partition_count

    def _known(self, name: str) -> int:
        count = self._count(name)
        if count is None:
            raise KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, f"Number of partitions is not set for topic: {name}")
        return count

    def _repartition_topics(self) -> None:
        """A repartition topic without a wish gets the partitions of the inputs of the subtopology that writes it."""
        counts = self._decided
        for each in self._subtopologies:
            counts.update((topic.name, topic.partitions) for topic in each.repartition_sources if topic.partitions)
        writers = [each for each in self._subtopologies if any(sink not in counts for sink in each.repartition_sinks)]
        readers: dict[str, list[int]] = {}
        for at, each in enumerate(writers):
            for topic in each.repartition_sources:
                readers.setdefault(topic.name, []).append(at)
        # In rounds, in the order of the ids, as Kafka does. Only subtopologies with an input that is known have their
        # turn: else a long chain of them would cost a round for each.
        turns = [(0, at) for at, each in enumerate(writers) if self._known_inputs(each)]
        is_planned = {at for _, at in turns}
        while turns:
            turn, at = heappop(turns)
            count = max(self._known_inputs(writers[at]))
            for sink in writers[at].repartition_sinks:
                if sink in counts:
                    continue
                counts[sink] = count
                for reader in readers.get(sink, ()):
                    if reader not in is_planned:
                        is_planned.add(reader)
                        heappush(turns, (turn if reader > at else turn + 1, reader))
        _refuse_if(
            len(is_planned) < len(writers),
            "Failed to compute number of partitions for all repartition topics. There may be loops in the topology "
            "that cannot be resolved.",
        )
        _refuse_if(
            any(topic.name not in counts for each in self._subtopologies for topic in each.repartition_sources),
            "Failed to compute number of partitions for all repartition topics, because a repartition source topic is "
            "never used as a sink topic.",
        )

    def _known_inputs(self, each: Subtopology) -> list[int]:
        """The numbers of partitions of its inputs, as far as they are known."""
        known = [self._decided[topic.name] for topic in each.repartition_sources if topic.name in self._decided]
        known += [count for name in each.source_topics if (count := self._count(name)) is not None]
        return known

    def _copartition(self, group: frozenset[str]) -> None:
        internal = {name: self._known(name) for name in sorted(group) if name in self._decided}
        external = {name: self._known(name) for name in sorted(group) if name not in internal}
        if not group:
            return
        if external:
            count = _same(external)
        elif fixed := {name: internal[name] for name in internal if name in self._fixed}:
            count = _same(fixed)
        else:
            count = max(internal.values())
        for name, had in internal.items():
            if name in self._fixed and had != count:
                raise _Unfit(
                    StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                    f"Number of partitions [{had}] of repartition topic [{name}] doesn't match number of partitions "
                    f"[{count}] of the source topic.",
                )
            self._decided[name] = count


def _same(counts: Mapping[str, int]) -> int:
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"{name}={count}" for name, count in counts.items())
        raise _Unfit(
            StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
            f"Following topics do not have the same number of partitions: [{{{shown}}}]",
        )
    return next(iter(counts.values()))


def _missing_topics(topology: Topology, topics: TopicCatalog, counts: Mapping[str, int]) -> list[InternalTopic]:
    missing = []
    wanted = {
        topic.name: topic
        for each in topology.subtopologies.values()
        for topic in (*each.repartition_sources, *each.changelogs)
    }
    for name, topic in sorted(wanted.items()):
        count = topic.partitions or counts[name]
        known = topics.get(name)
        if known is None:
            missing.append(InternalTopic(name, count, topic.replication_factor or -1, dict(topic.configs)))
        elif known.partition_count != count:
            raise _Unfit(
                StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                f"Existing topic {name} has different number of partitions: expected {count}, found "
                f"{known.partition_count}",
            )
    return missing


def _shown(names: Sequence[str]) -> str:
    text = ", ".join(names[:_SHOWN_TOPICS])
    return text if len(names) <= _SHOWN_TOPICS else f"{text} and {len(names) - _SHOWN_TOPICS} additional topics"


# Descriptions


def described(topology: Topology, configured: ConfiguredTopology | None) -> dict[str, Any]:
    """The topology in StreamsGroupDescribe: internal topics have their real number of partitions once they exist."""
    counts = configured.partition_counts if configured is not None and configured.is_ready else {}

    def topic_rows(infos: Iterable[TopicInfo], count: Callable[[TopicInfo], int]) -> list[dict[str, Any]]:
        return [{**info.fields(), "partitions": count(info)} for info in sorted(infos)]

    return {
        "epoch": topology.epoch,
        "subtopologies": [
            {
                "subtopology_id": each.id,
                "source_topics": sorted(each.source_topics),
                "repartition_sink_topics": sorted(each.repartition_sinks),
                "state_changelog_topics": topic_rows(
                    each.changelogs, lambda info: counts.get(info.name, info.partitions)
                ),
                "repartition_source_topics": topic_rows(
                    each.repartition_sources, lambda info: counts.get(info.name, info.partitions)
                ),
            }
            for each in topology.subtopologies.values()
        ],
    }
