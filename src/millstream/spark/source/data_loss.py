"""Records that are gone before a query read them: how that is told from a gap, and what is said of it.

What counts: the log begins behind the query's offset (retention, DeleteRecords), the log ends before it (an unclean
election), a partition or topic was deleted, a topic was deleted and created anew. What does not: offsets that
compaction, transactions or their markers leave out; topics that the query does not ask for any more; topics that are
new to it, wherever they begin.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from millstream.raw_client import TopicPartition
from millstream.spark.errors import DataLossError
from millstream.spark.source.log_view import Topics
from millstream.spark.source.offsets import StreamOffset
from millstream.spark.source.positions import named

log = logging.getLogger("millstream.spark")


@dataclass(slots=True)
class Losses:
    """What was found to be lost, in sentences."""

    found: list[str] = field(default_factory=list)

    def add(self, sentence: str) -> None:
        self.found.append(sentence)

    def settle(self, *, fail: bool) -> None:
        """DataLossError, or a warning."""
        if not self.found:
            return
        what = "; ".join(self.found)
        if fail:
            raise DataLossError(
                f"records that this query has not read are gone: {what}. The checkpoint is as it was. To go on with "
                "what is there, restart the query with failOnDataLoss=false (and set it back afterwards); to lose "
                "nothing next time, keep records longer (retention.ms, retention.bytes) or read them sooner"
            )
        log.warning("records that this query has not read are gone, and it goes on without them: %s", what)


def overtaken(partition: TopicPartition, offset: int, log_start: int, stop: int | None = None) -> str:
    last = log_start if stop is None else min(stop, log_start)
    return (
        f"{partition.topic}-{partition.partition} begins at {log_start} now, so the offsets {offset} to {last - 1} are "
        "gone (retention or deleted records)"
    )


@dataclass(frozen=True, slots=True)
class Continuation:
    """Where a query goes on, given where it was and what is there now."""

    starts: Mapping[TopicPartition, int]
    begin: Mapping[TopicPartition, int]
    """Those of the starts that are not what the offset before says."""
    losses: Losses


def go_on(
    before: StreamOffset,
    now: Topics,
    earliest: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    wants: Callable[[str], bool],
) -> Continuation:
    """Where to read on in each partition that exists (those without an earliest offset are going)."""
    losses = Losses()
    starts: dict[TopicPartition, int] = {}
    begin: dict[TopicPartition, int] = {}
    known_topics = {each.topic for each in before.positions}
    anew = {topic for topic, topic_id in now.ids.items() if created_anew(before.topic_ids.get(topic), topic_id)}
    for topic in sorted(anew):
        losses.add(f"topic {topic!r} was deleted and created anew, so what was not read of the old one is gone")
    for partition in sorted(now.partitions & earliest.keys() & ends.keys()):
        low, high = earliest[partition], ends[partition]
        name = f"{partition.topic}-{partition.partition}"
        position = None if partition.topic in anew else before.positions.get(partition)
        if position is None:
            if low > 0 and partition.topic in known_topics and partition.topic not in anew:
                losses.add(f"{name} is new, but begins at {low} already")
            starts[partition] = begin[partition] = low
        elif position < low:
            losses.add(overtaken(partition, position, low))
            starts[partition] = begin[partition] = low
        elif position > high:
            losses.add(f"{name} ends at {high} now, before the {position} that were read (an unclean election?)")
            starts[partition] = begin[partition] = high
        else:
            starts[partition] = position
    gone = {each for each in before.positions if each not in now.partitions}
    if deleted := {each for each in gone if wants(each.topic)}:
        losses.add(f"{named(deleted)} was deleted")
    return Continuation(starts, begin, losses)


def created_anew(before: str | None, now: str | None) -> bool:
    """Whether two ids of a topic tell that it is not the same; where either is unknown, they do not."""
    return bool(before and now and before != now)


def left_behind(before: StreamOffset, now: Topics, wants: Callable[[str], bool]) -> Collection[str]:
    """Topics that the query has read but does not ask for any more."""
    return sorted({each.topic for each in before.positions if each not in now.partitions and not wants(each.topic)})
