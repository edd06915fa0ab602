"""Offset resets: the rules by which a group's offsets are moved, the same for the CLI, REST and the console.

A reset moves each partition to its earliest or latest offset, to an offset, to the first record at or after a time, by
a number of records, or to the offsets of a file. An offset outside of a log is moved to the nearest offset of the log.
The latest offset is the last stable offset, so a reset never skips records of an open transaction.
"""

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

from millstream.admin.errors import InvalidArgumentError, NotFoundError
from millstream.common import quantities
from millstream.formats.model.errors import ErrorCode
from millstream.raw_client import EARLIEST, LATEST, Cluster, TopicPartition
from millstream.raw_client.errors import refusal


class ResetTo(Enum):
    """The kind of an offset reset."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    TIME = "time"
    SHIFT = "shift"
    OFFSETS = "offsets"


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """Where offsets are moved to. Use one of the class methods to make one."""

    to: ResetTo
    value: int = 0
    """An offset, a time in ms since 1970, or a number of records."""
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)

    @classmethod
    def earliest(cls) -> "ResetTarget":
        """The first offset of the log."""
        return cls(ResetTo.EARLIEST)

    @classmethod
    def latest(cls) -> "ResetTarget":
        """The end of the log, as consumers of committed records see it."""
        return cls(ResetTo.LATEST)

    @classmethod
    def to_offset(cls, offset: int) -> "ResetTarget":
        """The same offset in every partition."""
        if offset < 0:
            raise InvalidArgumentError(f"offset {offset} is negative: shift by a negative number to go back")
        return cls(ResetTo.OFFSET, offset)

    @classmethod
    def to_time(cls, time: datetime | int) -> "ResetTarget":
        """The first record at or after a time (ms since 1970 as a number); the end if all records are older."""
        return cls(ResetTo.TIME, max(0, time if isinstance(time, int) else int(time.timestamp() * 1000)))

    @classmethod
    def by_duration(cls, duration: timedelta) -> "ResetTarget":
        """The first record at or after a time in the past."""
        return cls.to_time(datetime.now(UTC) - duration)

    @classmethod
    def shift_by(cls, records: int) -> "ResetTarget":
        """Forward, or back if negative, from the committed offset. Partitions without one are left out."""
        return cls(ResetTo.SHIFT, records)

    @classmethod
    def to_offsets(cls, offsets: Mapping[TopicPartition, int]) -> "ResetTarget":
        """An offset for each partition."""
        return cls(ResetTo.OFFSETS, offsets=dict(offsets))


@dataclass(frozen=True, slots=True)
class OffsetMove:
    """The reset of one partition. `old` is None if the group had no offset."""

    partition: TopicPartition
    old: int | None
    new: int
    is_clamped: bool = False
    """Whether the target was outside of the log, so that the nearest offset was taken."""


def plan_reset(
    cluster: Cluster,
    committed: Mapping[TopicPartition, int],
    partitions: Iterable[TopicPartition],
    target: ResetTarget,
) -> list[OffsetMove]:
    """The moves, in the order of topic and partition. Nothing is changed."""
    wanted = sorted(partitions)
    if not wanted:
        return []
    lows = cluster.offsets(dict.fromkeys(wanted, EARLIEST))
    highs = cluster.offsets(dict.fromkeys(wanted, LATEST), read_committed=False)
    found = lows
    if target.to is ResetTo.LATEST or target.to is ResetTo.TIME:
        found = cluster.offsets(dict.fromkeys(wanted, LATEST))
    if target.to is ResetTo.TIME:
        at_time = cluster.offsets(dict.fromkeys(wanted, target.value))
        found = {each: at_time[each] if at_time[each].offset >= 0 else found[each] for each in wanted}
    moves = []
    for each in wanted:
        low, high, old = lows[each].offset, highs[each].offset, committed.get(each)
        match target.to:
            case ResetTo.EARLIEST | ResetTo.LATEST | ResetTo.TIME:
                new = found[each].offset
            case ResetTo.OFFSET:
                new = target.value
            case ResetTo.SHIFT:
                if old is None:
                    continue
                new = old + target.value
            case ResetTo.OFFSETS:
                new = target.offsets[each]
        moves.append(OffsetMove(each, old, min(max(new, low), high), not low <= new <= high))
    return moves


# Which partitions


def partitions_of(cluster: Cluster, topic: str, indexes: Iterable[int] | None = None) -> list[TopicPartition]:
    """The partitions of a topic, all or those given. NotFoundError if one does not exist."""
    found = cluster.topics([topic]).get(topic)
    if found is None:
        raise refusal(f"topic {topic!r}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    count = len(found.partitions)
    if indexes is None:
        return [TopicPartition(topic, index) for index in range(count)]
    for index in indexes:
        if not 0 <= index < count:
            raise NotFoundError(f"topic {topic!r} has partitions 0 to {count - 1}, not {index}")
    return [TopicPartition(topic, index) for index in sorted(set(indexes))]


def parse_partitions(cluster: Cluster, text: str) -> list[TopicPartition]:
    """The partitions that `TOPIC` or `TOPIC:0,2,5` names."""
    topic, colon, numbers = text.partition(":")
    if not colon:
        return partitions_of(cluster, topic)
    if not re.fullmatch(r"\d+(,\d+)*", numbers):
        raise InvalidArgumentError(f"{text}: write TOPIC or TOPIC:0,2,5")
    return partitions_of(cluster, topic, [int(number) for number in numbers.split(",")])


# Times, durations and files


def parse_time(text: str) -> datetime:
    """A time: ISO 8601 (local time unless it has a zone) or @milliseconds since 1970."""
    if re.fullmatch(r"@\d+", text):
        return datetime.fromtimestamp(int(text[1:]) / 1000, UTC)
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError, OSError):
        raise InvalidArgumentError(
            f"{text}: write a time such as 2026-01-31T12:00, 2026-01-31T12:00:00Z or @milliseconds"
        ) from None


def parse_duration(text: str) -> timedelta:
    """A duration: 90s, 5m, 2h, 7d, or ISO 8601 as in Kafka's tools (P1DT2H)."""
    try:
        return quantities.parse_duration(text)
    except ValueError:
        raise InvalidArgumentError(f"{text}: write a duration such as 90s, 5m, 2h, 7d or P1DT2H") from None


def read_offsets(path: str) -> dict[TopicPartition, int]:
    """Offsets from a file: CSV lines `topic,partition,offset` as Kafka's tools export them, or JSON as
    `millstream group lag --json` and `millstream group reset-offsets --json` print it."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    try:
        if text.lstrip()[:1] in ("[", "{"):
            return dict(_json_offset(row) for row in _json_rows(json.loads(text)))
        offsets = {}
        for row in csv.reader(io.StringIO(text)):
            if not row or row[0].startswith("#") or [cell.strip() for cell in row[:2]] == ["topic", "partition"]:
                continue
            topic, partition, offset = (cell.strip() for cell in row)
            offsets[TopicPartition(topic, int(partition))] = int(offset)
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidArgumentError(
            f"{path}: {error}. Write lines of topic,partition,offset, or JSON such as"
            ' [{"topic": "orders", "partition": 0, "offset": 42}]'
        ) from None
    if not offsets:
        raise InvalidArgumentError(f"{path} has no offsets")
    return offsets


def _json_rows(document: Any) -> list[dict[str, Any]]:
    if isinstance(document, dict):
        document = document["partitions"]
    # `lag --json` prints a list of groups; its rows are one level down.
    rows: list[dict[str, Any]] = []
    for row in document:
        rows += row.get("partitions", [row])
    if not rows:
        raise ValueError("it has no offsets")
    return [row for row in rows if any(row.get(name) is not None for name in ("new", "offset"))]


def _json_offset(row: dict[str, Any]) -> tuple[TopicPartition, int]:
    offset = row["new"] if row.get("new") is not None else row["offset"]
    return TopicPartition(str(row["topic"]), int(row["partition"])), int(offset)
