"""The partitions of a query as the cluster has them: topics, offsets, and records that are gone.

Data loss: the log starts after the query's offset (retention, DeleteRecords) or ends before it (an unclean election); a
partition or topic was deleted; a topic was recreated. Not data loss: offsets missing because of compaction or
transactions; topics that the query does not read any more; topics that are new to the query.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from millstream.formats.protocol.schema import Message
from millstream.raw_client import (
    EARLIEST,
    LATEST,
    Cluster,
    ErrorCode,
    Fetched,
    RefusedError,
    TopicInfo,
    TopicPartition,
    WireError,
)
from millstream.raw_client.fetching import LAST_WITH_NAMES as LAST_FETCH_WITH_NAMES
from millstream.raw_client.routing import Leader
from millstream.spark.errors import DataLossError, MissingTopicError
from millstream.spark.options import ReadOptions
from millstream.spark.source.limits import frames
from millstream.spark.source.offsets import StreamOffset
from millstream.spark.source.positions import Resolver, named

_log = logging.getLogger("millstream.spark")

_MOST_WAITERS = 16
METADATA_AGE_SECONDS = 1.0
"""Age after which the list of topics is fetched again, and new partitions are found."""


@dataclass(frozen=True, slots=True)
class Topics:
    """The existing topics and partitions of a subscription."""

    partitions: frozenset[TopicPartition]
    ids: Mapping[str, str]
    """By topic; an id is empty if brokers are too old for topic ids."""
    missing: tuple[str, ...] = ()
    """Topics that are subscribed by name and do not exist."""


@dataclass(frozen=True, slots=True)
class Looked:
    """A partition as one fetch showed it."""

    topic_id: str
    start: int
    """The offset of the fetch."""
    end: int
    """The end for readers, as from `LogView.latest`."""
    fetched: Fetched

    def has_all_before(self, stop: int) -> bool:
        """Whether the fetch brought all records up to this offset."""
        return self.start >= stop or (offset_after(self.fetched) or self.start) >= stop


def offset_after(fetched: Fetched) -> int | None:
    """The offset after the last complete batch; None if there is none."""
    left, following = len(fetched.data), None
    for frame in frames(fetched.data):
        left -= frame.size
        if left < 0:
            break
        following = frame.last_offset + 1
    return following


class LogView:
    """Topics and offsets for one query, on the driver."""

    def __init__(self, options: ReadOptions, cluster: Cluster) -> None:
        self._options = options
        self._cluster = cluster
        if ignored := cluster.settings.ignored:
            _log.warning("these settings have no effect here: %s", ", ".join(f"kafka.{each}" for each in ignored))
        self._topics: Topics | None = None
        self._heard_at = 0.0
        self._waiters: ThreadPoolExecutor | None = None

    def topics(self, *, fresh: bool = False) -> Topics:
        if fresh or self._topics is None or time.monotonic() - self._heard_at > METADATA_AGE_SECONDS:
            self._topics = self._ask()
            self._heard_at = time.monotonic()
        return self._topics

    def existing(self) -> Topics:
        """The topics; MissingTopicError if a subscribed topic does not exist."""
        return self._ask(all_of_them=True)

    def earliest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return self._offsets(partitions, EARLIEST)

    def latest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The end offsets for readers: the last stable offset, or the high watermark with read_uncommitted."""
        return self._offsets(partitions, LATEST)

    def written(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The high watermarks, open transactions included."""
        return self._offsets(partitions, LATEST, read_committed=False)

    def wait_for_records(self, ends: Mapping[TopicPartition, int], wait_s: float) -> None:
        """Returns when a partition has a record after its end offset, and after `wait_s` at the latest.

        Each leader is asked once, by a fetch that waits. Errors end the wait: the next request reports them.
        """
        by_leader: dict[int, dict[TopicPartition, Leader]] = {}
        try:
            for partition in ends:
                leader = self._cluster.leader_of(partition)
                by_leader.setdefault(leader.node_id, {})[partition] = leader
        except WireError:
            return
        if len(by_leader) == 1:
            self._wait_at(*next(iter(by_leader.items())), ends, wait_s)
        elif by_leader:
            calls = [self._threads().submit(self._wait_at, node, led, ends, wait_s) for node, led in by_leader.items()]
            wait(calls, timeout=wait_s, return_when=FIRST_COMPLETED)

    def _wait_at(
        self, node: int, led: Mapping[TopicPartition, Leader], ends: Mapping[TopicPartition, int], wait_s: float
    ) -> None:
        try:
            self._fetch(node, led, ends, wait_s, max_bytes=1)
        except WireError as error:
            _log.debug("the wait for records ended: %s", error)

    def look(
        self, positions: Mapping[TopicPartition, int], wait_s: float, max_bytes: int
    ) -> dict[TopicPartition, Looked] | None:
        """What one fetch from each leader says of all partitions: where they start and end, and their next records.

        If there are none, it waits like `wait_for_records`. None after any error: other requests report it.
        """
        by_leader: dict[int, dict[TopicPartition, Leader]] = {}
        try:
            for partition in positions:
                leader = self._cluster.leader_of(partition)
                by_leader.setdefault(leader.node_id, {})[partition] = leader
            if len(by_leader) > 1 and wait_s:
                self.wait_for_records(positions, wait_s)
                wait_s = 0.0
            fetch = partial(self._look_at, positions=positions, wait_s=wait_s, max_bytes=max_bytes)
            if len(by_leader) == 1:
                parts = [fetch(*next(iter(by_leader.items())))]
            else:
                parts = list(self._threads().map(lambda led: fetch(*led), by_leader.items()))
        except WireError as error:
            _log.debug("the look at the ends failed: %s", error)
            return None
        found: dict[TopicPartition, Looked] = {}
        for part in parts:
            if part is None:
                return None
            found |= part
        return found

    def _look_at(
        self,
        node: int,
        led: Mapping[TopicPartition, Leader],
        positions: Mapping[TopicPartition, int],
        wait_s: float,
        max_bytes: int,
    ) -> dict[TopicPartition, Looked] | None:
        response = self._fetch(node, led, positions, wait_s, max_bytes=max_bytes)
        by_name = {(each.topic, each.partition): each for each in led}
        by_id = {(leader.topic_id, each.partition): each for each, leader in led.items()}
        found: dict[TopicPartition, Looked] = {}
        for topic in response.responses:
            for row in topic.partitions:
                partition = by_id.get((topic.topic_id, row.partition_index)) or by_name.get(
                    (topic.topic, row.partition_index)
                )
                end = row.last_stable_offset if self._options.read_committed else row.high_watermark
                if partition is None or row.error_code or end < 0 or row.log_start_offset < 0:
                    return None
                aborted = tuple((each.producer_id, each.first_offset) for each in row.aborted_transactions or ())
                fetched = Fetched(
                    memoryview(row.records or b""),
                    row.high_watermark,
                    row.last_stable_offset,
                    row.log_start_offset,
                    aborted,
                )
                topic_id = led[partition].topic_id
                found[partition] = Looked(str(topic_id) if topic_id.int else "", positions[partition], end, fetched)
        return found if not response.error_code and len(found) == len(led) else None

    def _fetch(
        self,
        node: int,
        led: Mapping[TopicPartition, Leader],
        positions: Mapping[TopicPartition, int],
        wait_s: float,
        max_bytes: int,
    ) -> Message:
        topics: dict[str, dict[str, Any]] = {}
        for partition, leader in led.items():
            topic = topics.setdefault(
                partition.topic, {"topic": partition.topic, "topic_id": leader.topic_id, "partitions": []}
            )
            topic["partitions"].append(
                {
                    "partition": partition.partition,
                    "current_leader_epoch": leader.epoch,
                    "fetch_offset": positions[partition],
                    "last_fetched_epoch": -1,
                    "log_start_offset": -1,
                    "partition_max_bytes": max_bytes,
                }
            )
        return self._cluster.call(
            "fetch",
            node=node,
            at_most=None if all(leader.topic_id.int for leader in led.values()) else LAST_FETCH_WITH_NAMES,
            once=True,
            replica_id=-1,
            max_wait_ms=int(wait_s * 1000),
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=int(self._options.read_committed),
            session_id=0,
            session_epoch=-1,
            topics=list(topics.values()),
            forgotten_topics_data=[],
            rack_id="",
        )

    def _threads(self) -> ThreadPoolExecutor:
        if self._waiters is None:
            self._waiters = ThreadPoolExecutor(_MOST_WAITERS, thread_name_prefix="wait-for-records")
        return self._waiters

    def resolver(self) -> Resolver:
        options = self._options
        return Resolver(self._cluster, options.read_committed, options.group, options.latest_when_too_late)

    def _ask(self, *, all_of_them: bool = False) -> Topics:
        subscription = self._options.subscription
        found = subscription.find(self._cluster)
        if all_of_them:
            for attempt in range(self._options.retries):
                if not subscription.missing(found):
                    break
                # A new topic may not be known to every broker yet.
                time.sleep(self._options.retry_interval_s * (attempt + 1) / 4)
                found = subscription.find(self._cluster)
            subscription.must_exist(self._cluster, found, self._options.subscription_option)
            letters = self._options.dead_letter_topic
            if letters is not None and letters not in self._cluster.topics([letters]):
                raise MissingTopicError(f"deadLetterTopic: topic {letters!r} does not exist; create it first")
        ids = {name: _id(info) for name, info in found.items()}
        return Topics(frozenset(subscription.partitions(found)), ids, tuple(subscription.missing(found)))

    def _offsets(
        self, partitions: Collection[TopicPartition], at: int, *, read_committed: bool | None = None
    ) -> dict[TopicPartition, int]:
        """Partitions that are deleted during the request are left out."""
        committed = self._options.read_committed if read_committed is None else read_committed
        try:
            found = self._cluster.offsets(dict.fromkeys(partitions, at), read_committed=committed) if partitions else {}
        except RefusedError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            rest = self.topics(fresh=True).partitions & set(partitions)
            if len(rest) == len(partitions):
                raise
            return self._offsets(rest, at, read_committed=committed)
        return {partition: each.offset for partition, each in found.items()}


def _id(info: TopicInfo) -> str:
    return str(info.topic_id) if info.topic_id.int else ""


@dataclass(slots=True)
class Losses:
    """Data losses, as sentences for the error or the warning."""

    found: list[str] = field(default_factory=list)

    def add(self, sentence: str) -> None:
        self.found.append(sentence)

    def settle(self, *, fail: bool, streaming: bool) -> None:
        """DataLossError, or a warning."""
        if not self.found:
            return
        what = "; ".join(self.found)
        if fail and streaming:
            raise DataLossError(
                f"records that this query has not read were removed from the topic: {what}. "
                "The checkpoint is unchanged. To continue "
                f"with the "
                "remaining records, restart the query with failOnDataLoss=false, and set it back afterwards. To avoid "
                "data loss, raise retention.ms and retention.bytes of the topic, or read sooner"
            )
        if fail:
            raise DataLossError(
                f"records that this query has to read were removed from the topic: {what}. To read the remaining "
                "records, change the "
                "starting and ending offsets, or set failOnDataLoss=false"
            )
        _log.warning("records that this query has not read are gone; it continues without them: %s", what)


def overtaken(partition: TopicPartition, offset: int, log_start: int, stop: int | None = None) -> str:
    last = log_start if stop is None else min(stop, log_start)
    return (
        f"{partition.topic}-{partition.partition} starts at {log_start} now; the offsets {offset} to {last - 1} are "
        "gone (retention or deleted records)"
    )


@dataclass(frozen=True, slots=True)
class Continuation:
    """Where a query continues, from its last offsets and the current log."""

    starts: Mapping[TopicPartition, int]
    begin: Mapping[TopicPartition, int]
    """The starts that differ from the last offsets."""
    losses: Losses


def resume(
    before: StreamOffset,
    now: Topics,
    earliest: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    wants: Callable[[str], bool],
) -> Continuation:
    """The offset to continue at for each existing partition (those without an earliest offset are being deleted)."""
    losses = Losses()
    starts: dict[TopicPartition, int] = {}
    begin: dict[TopicPartition, int] = {}
    known_topics = {each.topic for each in before.positions}
    recreated = {topic for topic, topic_id in now.ids.items() if was_recreated(before.topic_ids.get(topic), topic_id)}
    for topic in sorted(recreated):
        losses.add(f"topic {topic!r} was deleted and recreated; unread records of the old topic are gone")
    for partition in sorted(now.partitions & earliest.keys() & ends.keys()):
        low, high = earliest[partition], ends[partition]
        name = f"{partition.topic}-{partition.partition}"
        position = None if partition.topic in recreated else before.positions.get(partition)
        if position is None:
            if low > 0 and partition.topic in known_topics and partition.topic not in recreated:
                losses.add(f"{name} is new, but starts at {low}")
            starts[partition] = begin[partition] = low
        elif position < low:
            losses.add(overtaken(partition, position, low))
            starts[partition] = begin[partition] = low
        elif position > high:
            losses.add(f"{name} ends at {high} now, before offset {position} of the query (an unclean election?)")
            starts[partition] = begin[partition] = high
        else:
            starts[partition] = position
    gone = {each for each in before.positions if each not in now.partitions and each.topic not in recreated}
    if deleted := {each for each in gone if wants(each.topic)}:
        losses.add(f"{named(deleted)} was deleted")
    return Continuation(starts, begin, losses)


def was_recreated(before: str | None, now: str | None) -> bool:
    """Whether the ids show that a topic was recreated; False if an id is unknown."""
    return bool(before and now and before != now)


def unsubscribed_topics(before: StreamOffset, now: Topics, wants: Callable[[str], bool]) -> Collection[str]:
    """Topics that the query has read and does not subscribe to any more."""
    return sorted({each.topic for each in before.positions if each not in now.partitions and not wants(each.topic)})
