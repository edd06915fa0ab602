"""Where reading begins and ends, resolved to offsets before the first record is asked for.

A start is 'earliest', 'latest', an offset, a negative number ("the last N"), a `datetime`, or a `timedelta` ("that long
ago"); or a mapping from partition to one of these, which also chooses the partitions.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple, TypeAlias

from millstream.client.errors import MillstreamError, OffsetOutOfRangeError, TopicNotFoundError
from millstream.client.topics import EARLIEST, LATEST, Topics, at_time

Start: TypeAlias = Literal["earliest", "latest"] | int | datetime | timedelta


class Span(NamedTuple):
    """The offsets of one partition to read: from `start`, and to `end` (exclusive) unless reading goes on forever."""

    start: int
    end: int


def resolve(
    topics: Topics, topic: str, start: Start | Mapping[int, Start], partition: int | Iterable[int] | None
) -> dict[int, Span]:
    """The span of each partition as it is now. Raises if a partition or an offset does not exist."""
    existing = topics.partitions(topic)
    wanted = _wanted(existing, start, partition)
    for number in wanted:
        if number not in existing:
            raise TopicNotFoundError(
                f"topic {topic!r} has partitions 0 to {len(existing) - 1}, not {number}", "UNKNOWN_TOPIC_OR_PART"
            )
    earliest = topics.offsets(topic, dict.fromkeys(wanted, EARLIEST))
    latest = topics.offsets(topic, dict.fromkeys(wanted, LATEST))
    by_time = topics.offsets(
        topic,
        {
            number: at_time(_milliseconds(begin))
            for number, begin in wanted.items()
            if isinstance(begin, (datetime, timedelta))
        },
    )
    # One number for all partitions of a topic rarely suits them all: it is wrong only if it suits none.
    elsewhere = (
        partition is None
        and isinstance(start, int)
        and any(earliest[number] <= start <= latest[number] for number in wanted)
    )
    spans = {}
    for number, begin in wanted.items():
        low, high = earliest[number], latest[number]
        if begin == "earliest":
            offset = low
        elif begin == "latest":
            offset = high
        elif isinstance(begin, int) and not isinstance(begin, bool):
            offset = max(low, high + begin) if begin < 0 else begin
            if not low <= offset <= high and elsewhere:
                offset = min(max(offset, low), high)
            if not low <= offset <= high:
                raise OffsetOutOfRangeError(
                    f"{topic}-{number} has offsets {low} to {high - 1}, not {offset}: start at 'earliest' or 'latest'"
                    if high > low
                    else f"{topic}-{number} is empty (next offset {high}), it has no offset {offset}",
                    "OFFSET_OUT_OF_RANGE",
                )
        elif isinstance(begin, (datetime, timedelta)):
            offset = high if by_time[number] < 0 else by_time[number]
        else:
            raise MillstreamError(
                f"start is 'earliest', 'latest', an offset, -N, a datetime or a timedelta, not {begin!r}"
            )
        spans[number] = Span(offset, high)
    return spans


def _wanted(
    existing: list[int], start: Start | Mapping[int, Start], partition: int | Iterable[int] | None
) -> dict[int, Start]:
    if isinstance(start, Mapping):
        if partition is not None:
            raise MillstreamError("give the partitions either in `start` or in `partition`, not in both")
        return dict(start)
    if partition is None:
        return dict.fromkeys(existing, start)
    return dict.fromkeys([partition] if isinstance(partition, int) else partition, start)


def _milliseconds(begin: datetime | timedelta) -> int:
    moment = datetime.now(UTC) - begin if isinstance(begin, timedelta) else begin
    return max(0, int(moment.timestamp() * 1000))
