"""The topics and partitions of a query, and the offsets at which it starts and ends: parsing of options, and resolving.

Positions are the same for all partitions, per partition, by time, the committed offsets of a group, or a table.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from millstream.common.close_match import close_match
from millstream.raw_client import EARLIEST, LATEST, Cluster, TopicInfo, TopicPartition
from millstream.spark.errors import MissingTopicError, OptionError, SourceError


@dataclass(frozen=True, slots=True)
class AllPartitions:
    """`earliest` or `latest`, for all partitions."""

    offset: int


@dataclass(frozen=True, slots=True)
class PerPartition:
    """An offset for each partition; -2 is the earliest, -1 the latest."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record at or after a time in milliseconds: one for all partitions, or one for each."""

    timestamps: int | Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Committed:
    """The committed offsets of `groupId`; the earliest offset if there is none."""


@dataclass(frozen=True, slots=True)
class FromTable:
    """The rows of a table first, then the records after it in the topic."""

    location: str


Position = AllPartitions | PerPartition | AtTime | Committed | FromTable


def parse_offsets(option: str, text: str) -> Position:
    """`earliest`, `latest`, `committed`, `table:<path>`, or JSON: {"topic": {"0": 23, "1": -2}}."""
    word = text.strip().lower()
    if word.startswith("table:") and word != "table:":
        return FromTable(text.strip()[len("table:") :])
    if word in ("earliest", "latest"):
        return AllPartitions(EARLIEST if word == "earliest" else LATEST)
    if word == "committed":
        return Committed()
    if not word.startswith("{"):
        raise OptionError(
            f"{option}: {text.strip()!r} is not known; use earliest, latest, or an offset for each partition "
            'as JSON: {"topic": {"0": 23, "1": -2}} (-2: earliest, -1: latest)'
        )
    found = _numbers_by_partition(option, text, least=EARLIEST)
    return PerPartition(found)


def parse_timestamps(option: str, text: str) -> AtTime:
    """JSON: {"topic": {"0": 1500000000000}}, in milliseconds."""
    return AtTime(_numbers_by_partition(option, text, least=0))


def parse_timestamp(option: str, text: str) -> AtTime:
    """One time for all partitions, in milliseconds."""
    try:
        timestamp = int(text.strip())
    except ValueError:
        raise OptionError(f"{option}: {text.strip()!r} is not a time; give milliseconds since 1970") from None
    if timestamp < 0:
        raise OptionError(f"{option}: {timestamp} is before 1970; give milliseconds since then")
    return AtTime(timestamp)


def parse_assignment(option: str, text: str) -> frozenset[TopicPartition]:
    """JSON: {"topic": [0, 1]}."""
    example = 'give JSON such as {"orders": [0, 1]}'
    document = _object(option, text, example)
    found: set[TopicPartition] = set()
    for topic, partitions in document.items():
        if not isinstance(partitions, list) or not all(_is_number(each) and each >= 0 for each in partitions):
            raise OptionError(f"{option}: {topic!r} must have a list of partition numbers; {example}")
        found.update(TopicPartition(topic, each) for each in partitions)
    if not found:
        raise OptionError(f"{option} has no partition; {example}")
    return frozenset(found)


def parse_headers(option: str, text: str) -> tuple[tuple[str, str], ...]:
    """JSON: {"name": "text"}."""
    example = 'give JSON such as {"team": "orders"}'
    document = _object(option, text, example)
    if not all(isinstance(value, str) for value in document.values()):
        raise OptionError(f"{option}: values must be strings; {example}")
    return tuple(document.items())


def _numbers_by_partition(option: str, text: str, *, least: int) -> dict[TopicPartition, int]:
    example = 'give JSON such as {"orders": {"0": 23, "1": 42}}'
    found = {}
    for topic, partitions in _object(option, text, example).items():
        if not isinstance(partitions, dict):
            raise OptionError(f"{option}: {topic!r} must have an object of partitions; {example}")
        for partition, number in partitions.items():
            if not (partition.isascii() and partition.isdigit()):
                raise OptionError(f"{option}: {partition!r} of topic {topic!r} is not a partition number; {example}")
            if not _is_number(number) or number < least:
                meaning = "-2 (earliest), -1 (latest) or an offset" if least < 0 else "milliseconds since 1970"
                raise OptionError(f"{option}: {topic}-{partition} has {number!r}; it must be {meaning}")
            found[TopicPartition(topic, int(partition))] = number
    if not found:
        raise OptionError(f"{option} has no partition; {example}")
    return found


def _object(option: str, text: str, example: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise OptionError(f"{option} is not JSON ({error}); {example}") from None
    if not isinstance(document, dict):
        raise OptionError(f"{option} must be a JSON object; {example}")
    return document


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# Positions to offsets


@dataclass(frozen=True, slots=True)
class Resolver:
    """Resolves positions to offsets of the current partitions of a subscription."""

    cluster: Cluster
    read_committed: bool
    group: str | None = None
    latest_when_too_late: bool = False
    """A starting time after the last record is the latest offset, not an error."""

    def start(
        self, option: str, position: Position, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        def too_late(partition: TopicPartition, timestamp: int) -> int:
            if self.latest_when_too_late:
                return LATEST
            raise SourceError(
                f"{option}: {partition.topic}-{partition.partition} has no record at or after {timestamp}; set an "
                f"earlier "
                "time, or set startingOffsetsByTimestampStrategy to latest"
            )

        return self._resolve(option, position, partitions, too_late)

    def end(self, option: str, position: Position, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return self._resolve(option, position, partitions, lambda _partition, _timestamp: LATEST)

    def _resolve(
        self,
        option: str,
        position: Position,
        partitions: Collection[TopicPartition],
        too_late: Callable[[TopicPartition, int], int],
    ) -> dict[TopicPartition, int]:
        match position:
            case AllPartitions(offset):
                return self._logical(dict.fromkeys(partitions, offset))
            case PerPartition(offsets):
                _must_cover(option, offsets, partitions)
                return self._logical(offsets)
            case AtTime(timestamps):
                if isinstance(timestamps, int):
                    timestamps = dict.fromkeys(partitions, timestamps)
                _must_cover(option, timestamps, partitions)
                found = self.cluster.offsets(timestamps, read_committed=self.read_committed)
                return self._logical(
                    {
                        each: offset.offset if offset.offset >= 0 else too_late(each, timestamps[each])
                        for each, offset in found.items()
                    }
                )
            case Committed():
                if self.group is None:
                    raise OptionError(f"{option}: committed needs a group; set groupId")
                known = self.cluster.committed_offsets(self.group, partitions)
                return self._logical({each: known.get(each, EARLIEST) for each in partitions})
            case FromTable():
                raise OptionError(f"{option}: table: works in startingOffsets only")

    def after(
        self, seam: Mapping[tuple[str, int], int], partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """The offsets after a table; partitions that are not in the table are read from their beginning."""
        return self._logical({each: seam.get((each.topic, each.partition), EARLIEST) for each in partitions})

    def _logical(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Replaces earliest and latest with offsets."""
        open_ended = {partition: offset for partition, offset in offsets.items() if offset < 0}
        found = self.cluster.offsets(open_ended, read_committed=self.read_committed) if open_ended else {}
        return {each: found[each].offset if each in found else offset for each, offset in offsets.items()}


def _must_cover(option: str, given: Mapping[TopicPartition, int], partitions: Collection[TopicPartition]) -> None:
    missing = sorted(set(partitions) - set(given))
    unknown = sorted(set(given) - set(partitions))
    if not missing and not unknown:
        return
    parts = []
    if missing:
        parts.append(f"lacks {named(missing)}")
    if unknown:
        parts.append(f"has {named(unknown)}, which the query does not read or which does not exist")
    raise OptionError(
        f"{option} {', and '.join(parts)}; name each partition of the query once (-2: earliest, -1: latest)"
    )


def named(partitions: Collection[TopicPartition], most: int = 10) -> str:
    """Names of partitions for messages, at most `most`."""
    ordered = sorted(partitions)
    shown = ", ".join(f"{each.topic}-{each.partition}" for each in ordered[:most])
    return shown if len(ordered) <= most else f"{shown} and {len(ordered) - most} more"


@dataclass(frozen=True, slots=True)
class Subscription:
    """The topics and partitions that a query reads: one of `topics`, `pattern` and `assigned`."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: frozenset[TopicPartition] = field(default_factory=frozenset)

    def wants(self, topic: str) -> bool:
        """Whether the query reads this topic if it exists."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.topics or any(each.topic == topic for each in self.assigned)

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"topics that match {self.pattern}"
        return ", ".join(self.topics) or named(self.assigned)

    def find(self, cluster: Cluster) -> dict[str, TopicInfo]:
        """The existing topics of the subscription."""
        if self.pattern is not None:
            return {name: info for name, info in cluster.topics().items() if not info.is_internal and self.wants(name)}
        names = self.topics or tuple({each.topic for each in self.assigned})
        return dict(cluster.topics(names))

    def partitions(self, found: Mapping[str, TopicInfo]) -> set[TopicPartition]:
        """The partitions of the subscription, in the topics that were found."""
        existing = {TopicPartition(name, each.index) for name, info in found.items() for each in info.partitions}
        return existing & self.assigned if self.assigned else existing

    def missing(self, found: Mapping[str, TopicInfo]) -> Collection[str]:
        """Topics that are subscribed by name and were not found."""
        names = self.topics or {each.topic for each in self.assigned}
        return sorted(set(names) - set(found))

    def must_exist(self, cluster: Cluster, found: Mapping[str, TopicInfo], option: str) -> None:
        """MissingTopicError names missing topics, and existing topics with similar names."""
        if self.pattern is not None:
            if not found:
                raise MissingTopicError(
                    f"{option}: no topic matches {self.pattern!r}; {_near(self.pattern, cluster)}the pattern must "
                    "match the whole name"
                )
            return
        if missing := self.missing(found):
            raise MissingTopicError(
                "; ".join(f"topic {name!r} does not exist{_hint(name, cluster)}" for name in missing)
            )
        if lost := self.assigned - self.partitions(found):
            topic = min(lost).topic
            count = len(found[topic].partitions)
            raise MissingTopicError(f"assign: {named(lost)} does not exist; {topic!r} has partitions 0 to {count - 1}")


def parse_subscription(given: Mapping[str, str]) -> Subscription:
    """The subscription, from one of `subscribe`, `subscribePattern` and `assign`."""
    if len(given) != 1:
        which = "none is set" if not given else f"{' and '.join(given)} are set"
        raise OptionError(f"set exactly one of subscribe, subscribePattern and assign; {which}")
    ((option, text),) = given.items()
    if option == "assign":
        return Subscription(assigned=parse_assignment(option, text))
    if option == "subscribe":
        topics = tuple(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))
        if not topics:
            raise OptionError("subscribe is empty; give topics, separated by commas")
        return Subscription(topics=topics)
    pattern = text.strip()
    if not pattern:
        raise OptionError(
            "subscribePattern is empty; give a regular expression for whole topic names, such as orders-.*"
        )
    try:
        re.compile(pattern)
    except re.error as error:
        raise OptionError(f"subscribePattern: {pattern!r} is not a regular expression: {error}") from None
    return Subscription(pattern=pattern)


def _hint(name: str, cluster: Cluster) -> str:
    others = sorted(other for other, info in cluster.topics().items() if not info.is_internal)
    if near := close_match(name, others):
        return f"; did you mean {near!r}?"
    if not others:
        return "; the cluster has no topics; create it first"
    shown = ", ".join(others[:5]) + (" …" if len(others) > 5 else "")
    return f"; create it first, or use an existing topic: {shown}"


def _near(pattern: str, cluster: Cluster) -> str:
    near = close_match(re.sub(r"[^a-zA-Z0-9._-]|\.[*+]", "", pattern), [*cluster.topics()])
    return f"the most similar name is {near!r}; " if near else ""
