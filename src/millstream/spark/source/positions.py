"""Where reading begins and ends, as options say it: everywhere the same, per partition, by time, or as a group left it.

Parsing is here, and so is turning a position into offsets once the partitions are known.
"""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from millstream.raw_client import EARLIEST, LATEST, Cluster, TopicPartition
from millstream.spark.errors import OptionError, SourceError


@dataclass(frozen=True, slots=True)
class Everywhere:
    """`earliest` or `latest`, for all partitions."""

    offset: int


@dataclass(frozen=True, slots=True)
class Given:
    """An offset for each partition; -2 is the earliest, -1 the latest."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record at or after a time in milliseconds: one for all partitions, or one for each."""

    timestamps: int | Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Committed:
    """Where the group of `groupId` is; the earliest offset where it has not committed any."""


@dataclass(frozen=True, slots=True)
class FromTable:
    """What a table has comes first; where it ends, the brokers take over."""

    location: str


Position = Everywhere | Given | AtTime | Committed | FromTable


def parse_offsets(option: str, text: str) -> Position:
    """`earliest`, `latest`, `committed`, `table:<path>`, or JSON: {"topic": {"0": 23, "1": -2}}."""
    word = text.strip().lower()
    if word.startswith("table:") and word != "table:":
        return FromTable(text.strip()[len("table:") :])
    if word in ("earliest", "latest"):
        return Everywhere(EARLIEST if word == "earliest" else LATEST)
    if word == "committed":
        return Committed()
    if not word.startswith("{"):
        raise OptionError(
            f"{option}: {text.strip()!r} is no position; give earliest, latest, or an offset for each partition "
            'as JSON: {"topic": {"0": 23, "1": -2}} (-2: earliest, -1: latest)'
        )
    found = _numbers_by_partition(option, text, least=EARLIEST)
    return Given(found)


def parse_timestamps(option: str, text: str) -> AtTime:
    """JSON: {"topic": {"0": 1500000000000}}, in milliseconds."""
    return AtTime(_numbers_by_partition(option, text, least=0))


def parse_timestamp(option: str, text: str) -> AtTime:
    """One time for all partitions, in milliseconds."""
    try:
        timestamp = int(text.strip())
    except ValueError:
        raise OptionError(f"{option}: {text.strip()!r} is no time; give milliseconds since 1970") from None
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
        raise OptionError(f"{option}: there is no partition in it; {example}")
    return frozenset(found)


def parse_headers(option: str, text: str) -> tuple[tuple[str, str], ...]:
    """JSON: {"name": "text"}."""
    example = 'give JSON such as {"team": "orders"}'
    document = _object(option, text, example)
    if not all(isinstance(value, str) for value in document.values()):
        raise OptionError(f"{option}: values must be texts; {example}")
    return tuple(document.items())


def _numbers_by_partition(option: str, text: str, *, least: int) -> dict[TopicPartition, int]:
    example = 'give JSON such as {"orders": {"0": 23, "1": 42}}'
    found = {}
    for topic, partitions in _object(option, text, example).items():
        if not isinstance(partitions, dict):
            raise OptionError(f"{option}: {topic!r} must have an object of partitions; {example}")
        for partition, number in partitions.items():
            if not (partition.isascii() and partition.isdigit()):
                raise OptionError(f"{option}: {partition!r} of topic {topic!r} is no partition number; {example}")
            if not _is_number(number) or number < least:
                meaning = "-2 (earliest), -1 (latest) or an offset" if least < 0 else "milliseconds since 1970"
                raise OptionError(f"{option}: {topic}-{partition} has {number!r}; it must be {meaning}")
            found[TopicPartition(topic, int(partition))] = number
    if not found:
        raise OptionError(f"{option}: there is no partition in it; {example}")
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
    """Turns positions into offsets for the partitions of a subscription, as they are now."""

    cluster: Cluster
    read_committed: bool
    group: str | None = None
    latest_when_too_late: bool = False
    """What a starting time after the last record means: the latest offset, or an error."""

    def start(
        self, option: str, position: Position, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        def too_late(partition: TopicPartition, timestamp: int) -> int:
            if self.latest_when_too_late:
                return LATEST
            raise SourceError(
                f"{option}: no record of {partition.topic}-{partition.partition} is at or after {timestamp}; choose an "
                "earlier time, or set startingOffsetsByTimestampStrategy to latest"
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
            case Everywhere(offset):
                return self._logical(dict.fromkeys(partitions, offset))
            case Given(offsets):
                _must_cover(option, offsets, partitions)
                return self._logical(offsets)
            case AtTime(timestamps):
                if isinstance(timestamps, int):
                    timestamps = dict.fromkeys(partitions, timestamps)
                _must_cover(option, timestamps, partitions)
                found = self.cluster.offsets(timestamps, read_committed=self.read_committed)
                return self._logical(
                    {
                        each: answer.offset if answer.offset >= 0 else too_late(each, timestamps[each])
                        for each, answer in found.items()
                    }
                )
            case Committed():
                if self.group is None:
                    raise OptionError(f"{option}: committed needs groupId, the group whose offsets are meant")
                known = self.cluster.committed_offsets(self.group, partitions)
                return self._logical({each: known.get(each, EARLIEST) for each in partitions})
            case FromTable():
                raise OptionError(f"{option}: a table can only be where a query starts")

    def after(
        self, seam: Mapping[tuple[str, int], int], partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Where the brokers take over from a table; partitions that it does not have are read from their beginning."""
        return self._logical({each: seam.get((each.topic, each.partition), EARLIEST) for each in partitions})

    def _logical(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Earliest and latest replaced by numbers."""
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
        parts.append(f"says nothing of {named(missing)}")
    if unknown:
        parts.append(f"speaks of {named(unknown)}, which the query does not read or which does not exist")
    raise OptionError(f"{option} {', and '.join(parts)}; give each partition once (-2: earliest, -1: latest)")


def named(partitions: Collection[TopicPartition], most: int = 10) -> str:
    """Partitions in words, not more than a few."""
    ordered = sorted(partitions)
    shown = ", ".join(f"{each.topic}-{each.partition}" for each in ordered[:most])
    return shown if len(ordered) <= most else f"{shown} and {len(ordered) - most} more"
