"""Where a stream of a topic is: positions of all its partitions, as the `id:` of its events spells them, and what
`from=` may ask for.

An id such as `0:17,1:5` has for each partition the next offset, so a stream that resumes there misses and repeats
nothing, whatever the order in which partitions came.
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
    """The id of events as positions move, one at a time: with many partitions, only one of its parts changes."""

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
            400, f"Last-Event-ID {text[:60]!r} is none of this API's", "send one as it came, such as 0:17,1:5, or none"
        )
    pairs = (pair.split(":") for pair in text.split(","))
    return {int(partition): min(int(offset), _MAX_OFFSET) for partition, offset in pairs}


class Start(NamedTuple):
    """Where to begin: at EARLIEST, LATEST or a time (ms), and so many records from there."""

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
        # A plus sign that was not written as %2B arrives as a space.
        moment = datetime.datetime.fromisoformat(re.sub(r" (\d\d:\d\d)$", r"+\1", text))
        zoned = moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
        return Start(max(0, int(zoned.timestamp() * 1000)))
    except (ValueError, OverflowError):
        raise ApiError(400, f"?from={text[:60]} is not known", _EXAMPLES) from None


def find_start(cluster: Cluster, topic: str, partitions: Sequence[int], start: Start) -> Positions:
    """Blocks. Offsets that are not in the log are moved to its nearer end."""
    places = {TopicPartition(topic, partition): partition for partition in partitions}
    found = {place: row.offset for place, row in cluster.offsets(dict.fromkeys(places, start.moment)).items()}
    if start.moment >= 0:  # a time: -1 is where nothing was written since
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
