"""Positions of a stream: the next offset of each partition, in the `id:` of events, and the start positions of `from=`.

An id such as `0:17,1:5` has the next offset of each partition, so a stream that resumes there repeats and misses
nothing, whatever the order of the partitions was.
"""

import datetime
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from millstream.gateway.http.errors import ApiError
from millstream.raw_client import EARLIEST, LATEST, Cluster, TopicPartition

Positions = dict[int, int]
"""By partition, the next offset."""
_ID = re.compile(r"\d{1,10}:\d{1,19}(,\d{1,10}:\d{1,19})*")
_MAX_OFFSET = 2**63 - 1
_EXAMPLES = "give earliest, latest, an offset, -N for the last N records, or a time such as 2026-01-31T12:00:00Z"


def format_positions(positions: Mapping[int, int]) -> str:
    return ",".join(f"{partition}:{positions[partition]}" for partition in sorted(positions))


class EventId:
    """The id of events while positions move. Each event changes only one part of it."""

    def __init__(self, positions: Mapping[int, int]) -> None:
        numbers = sorted(positions)
        self._parts = [f"{number}:{positions[number]}" for number in numbers]
        self._places = {number: place for place, number in enumerate(numbers)}

    def move(self, partition: int, offset: int) -> bytes:
        self._parts[self._places[partition]] = f"{partition}:{offset}"
        return ",".join(self._parts).encode()


def parse_event_id(text: str) -> Positions:
    if not _ID.fullmatch(text):
        raise ApiError(
            400, f"Last-Event-ID {text[:60]!r} is invalid", "send the id of an event, such as 0:17,1:5, or none"
        )
    pairs = (pair.split(":") for pair in text.split(","))
    return {int(partition): min(int(offset), _MAX_OFFSET) for partition, offset in pairs}


class Start(NamedTuple):
    """A start position: EARLIEST, LATEST or a time (ms), an offset, or `back` records before the end."""

    moment: int
    back: int = 0
    offset: int | None = None


def parse_start(text: str) -> Start:
    if text in ("", "latest"):
        return Start(LATEST)
    if text == "earliest":
        return Start(EARLIEST)
    if re.fullmatch(r"-?\d{1,18}", text):
        number = int(text)
        return Start(LATEST, back=-number) if text.startswith("-") else Start(EARLIEST, offset=number)
    try:
        # A plus sign that was not encoded as %2B arrives as a space.
        moment = datetime.datetime.fromisoformat(re.sub(r" (\d\d:\d\d)$", r"+\1", text))
        zoned = moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
        return Start(max(0, int(zoned.timestamp() * 1000)))
    except (ValueError, OverflowError):
        raise ApiError(400, f"?from={text[:60]} is invalid", _EXAMPLES) from None


def find_start(cluster: Cluster, topic: str, partitions: Sequence[int], start: Start) -> Positions:
    """Blocks. Offsets outside of the log are moved to its nearer end."""
    places = {TopicPartition(topic, partition): partition for partition in partitions}
    found = {place: row.offset for place, row in cluster.offsets(dict.fromkeys(places, start.moment)).items()}
    if start.moment >= 0:  # a time: -1 means no record since
        late = [place for place, offset in found.items() if offset < 0]
        found |= {place: row.offset for place, row in cluster.offsets(dict.fromkeys(late, LATEST)).items()}
    if start.back or start.offset is not None:
        first = cluster.offsets(dict.fromkeys(places, EARLIEST))
        end = cluster.offsets(dict.fromkeys(places, LATEST))
        for place in places:
            wanted = end[place].offset - start.back if start.offset is None else start.offset
            found[place] = min(max(wanted, first[place].offset), end[place].offset)
    return {partition: found[place] for place, partition in places.items()}


def find_ends(cluster: Cluster, topic: str, partitions: Sequence[int]) -> Positions:
    places = [TopicPartition(topic, partition) for partition in partitions]
    return {place.partition: row.offset for place, row in cluster.offsets(dict.fromkeys(places, LATEST)).items()}
