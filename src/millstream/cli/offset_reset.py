"""Where a group's offsets are to go: the options of `reset-offsets` turned into a plan, row by row.

Nothing is changed here. An offset that a partition does not have is brought to the partition's nearest end, as Kafka's
tool does, and the row says so.
"""

import csv
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from millstream.cli import exit_codes
from millstream.cli.group_admin import Place
from millstream.cli.terminal import CommandFailedError

if TYPE_CHECKING:
    from millstream.client import Client

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True)
class Target:
    """Exactly one of these: a word, an offset for all, a shift, a time, or offsets from a file."""

    word: str | None = None
    offset: int | None = None
    shift: int | None = None
    time: datetime | None = None
    file: Mapping[Place, int] | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """One partition: from where to where. `old` is None where the group had no offset."""

    topic: str
    partition: int
    old: int | None
    new: int
    is_clamped: bool = False


def plan(
    client: "Client", committed: Mapping[Place, int], topics: list[str], all_topics: bool, target: Target
) -> list[Move]:
    """The moves, in order of topic and partition."""
    moves = []
    for topic, partitions in _scope(client, committed, topics, all_topics, target).items():
        moves += _plan_topic(client, topic, partitions, committed, target)
    return moves


def _scope(
    client: "Client", committed: Mapping[Place, int], topics: list[str], all_topics: bool, target: Target
) -> dict[str, list[int]]:
    scope: dict[str, list[int]] = {}
    if target.file is not None:
        for topic, partition in sorted(target.file):
            scope.setdefault(topic, []).append(partition)
    elif all_topics:
        for topic, partition in sorted(committed):
            scope.setdefault(topic, []).append(partition)
        if not scope:
            raise CommandFailedError("the group has no offsets yet: name the topics with --topic", exit_codes.NOT_FOUND)
    for text in topics:
        topic, colon, numbers = text.partition(":")
        existing = client.topics.partitions(topic)
        if colon:
            if not re.fullmatch(r"\d+(,\d+)*", numbers):
                raise CommandFailedError(f"--topic {text}: write TOPIC or TOPIC:0,2,5", exit_codes.USAGE)
            scope[topic] = sorted({int(number) for number in numbers.split(",")})
        else:
            scope[topic] = existing
    for topic, partitions in scope.items():
        existing = client.topics.partitions(topic)
        for partition in partitions:
            if partition not in existing:
                raise CommandFailedError(
                    f"topic {topic!r} has partitions 0 to {len(existing) - 1}, not {partition}", exit_codes.NOT_FOUND
                )
    return scope


def _plan_topic(
    client: "Client", topic: str, partitions: list[int], committed: Mapping[Place, int], target: Target
) -> list[Move]:
    from millstream.client.topics import EARLIEST, LATEST, at_time

    earliest = client.topics.offsets(topic, dict.fromkeys(partitions, EARLIEST))
    latest = client.topics.offsets(topic, dict.fromkeys(partitions, LATEST))
    by_time: dict[int, int] = {}
    if target.time is not None:
        milliseconds = max(0, int(target.time.timestamp() * 1000))
        by_time = client.topics.offsets(topic, dict.fromkeys(partitions, at_time(milliseconds)))
    moves = []
    for partition in partitions:
        low, high = earliest[partition], latest[partition]
        old = committed.get((topic, partition))
        if target.word == "earliest":
            new = low
        elif target.word == "latest":
            new = high
        elif target.offset is not None:
            new = target.offset
        elif target.shift is not None:
            if old is None:
                continue  # there is nothing to shift
            new = old + target.shift
        elif target.time is not None:
            new = high if by_time[partition] < 0 else by_time[partition]  # all records are older: go to the end
        else:
            assert target.file is not None
            new = target.file[topic, partition]
        moves.append(Move(topic, partition, old, min(max(new, low), high), not low <= new <= high))
    return moves


# The words of the options


def target_of(
    *,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_time: str | None,
    by_duration: str | None,
    shift_by: int | None,
    from_file: str | None,
) -> Target:
    """Exactly one option decides; anything else is a usage error."""
    given = {
        "--to-earliest": to_earliest,
        "--to-latest": to_latest,
        "--to-offset": to_offset is not None,
        "--to-time": to_time is not None,
        "--by-duration": by_duration is not None,
        "--shift-by": shift_by is not None,
        "--from-file": from_file is not None,
    }
    if sum(given.values()) != 1:
        raise CommandFailedError(f"say where to: exactly one of {', '.join(given)}", exit_codes.USAGE)
    if to_earliest or to_latest:
        return Target(word="earliest" if to_earliest else "latest")
    if to_offset is not None:
        if to_offset < 0:
            raise CommandFailedError("--to-offset cannot be negative: use --shift-by to go back", exit_codes.USAGE)
        return Target(offset=to_offset)
    if shift_by is not None:
        return Target(shift=shift_by)
    if to_time is not None:
        return Target(time=moment(to_time))
    if by_duration is not None:
        return Target(time=datetime.now(UTC) - duration(by_duration))
    assert from_file is not None
    return Target(file=read_offsets(from_file))


def moment(text: str, option: str = "--to-time") -> datetime:
    """A time: ISO 8601 (local time unless it says otherwise) or @milliseconds."""
    if re.fullmatch(r"@\d+", text):
        return datetime.fromtimestamp(int(text[1:]) / 1000, UTC)
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise CommandFailedError(
            f"{option} {text}: write a time such as 2026-01-31T12:00, 2026-01-31T12:00:00Z or @milliseconds",
            exit_codes.USAGE,
        ) from None


def duration(text: str, option: str = "--by-duration") -> timedelta:
    """How far back, as 90s, 5m, 2h, 7d, or in ISO 8601 as Kafka's tool takes it (P1DT2H)."""
    short = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", text)
    if short:
        return timedelta(seconds=float(short[1]) * _UNITS[short[2]])
    iso = re.fullmatch(r"P(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", text, re.IGNORECASE)
    if iso and any(iso.groups()):
        days, hours, minutes, seconds = (float(part or 0) for part in iso.groups())
        return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    raise CommandFailedError(f"{option} {text}: write an age such as 90s, 5m, 2h, 7d, or P1DT2H", exit_codes.USAGE)


def read_offsets(path: str) -> dict[Place, int]:
    """`--from-file`: CSV lines `topic,partition,offset` (as Kafka's tool exports them), or the JSON that `lag --json`
    and `reset-offsets --json` print."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    try:
        if text.lstrip()[:1] in ("[", "{"):
            return dict(_json_offset(row) for row in _rows(json.loads(text)))
        offsets = {}
        for row in csv.reader(io.StringIO(text)):
            if not row or row[0].startswith("#") or [cell.strip() for cell in row[:2]] == ["topic", "partition"]:
                continue
            topic, partition, offset = (cell.strip() for cell in row)
            offsets[topic, int(partition)] = int(offset)
    except (ValueError, KeyError, TypeError) as error:
        raise CommandFailedError(
            f"{path}: {error}. Write lines of topic,partition,offset, or JSON such as"
            ' [{"topic": "orders", "partition": 0, "offset": 42}]',
            exit_codes.USAGE,
        ) from None
    if not offsets:
        raise CommandFailedError(f"{path} has no offsets in it", exit_codes.USAGE)
    return offsets


def _rows(document: Any) -> list[dict[str, Any]]:
    if isinstance(document, dict):
        document = document["partitions"]
    # `lag --json` prints a list of groups; its rows are one level down.
    rows: list[dict[str, Any]] = []
    for row in document:
        rows += row.get("partitions", [row])
    if not rows:
        raise ValueError("it has no offsets in it")
    return [row for row in rows if any(row.get(name) is not None for name in ("new", "offset"))]


def _json_offset(row: dict[str, Any]) -> tuple[Place, int]:
    offset = row["new"] if row.get("new") is not None else row["offset"]
    return (str(row["topic"]), int(row["partition"])), int(offset)
