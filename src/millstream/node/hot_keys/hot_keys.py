"""Hot keys: finds the partitions and keys with most of a topic's traffic, without work on the produce path.

Once a second the log end offsets are compared with the previous ones, which gives the rates. Some of the new records
are chosen with equal probability. A thread reads their blocks and updates a sketch. Reports are written to the internal
topic `__millstream_hot_keys`, where any Kafka client can read them (docs/adr/0010). Everything is bounded: followed
topics, samples per second, keys, bytes of a key, age and size of the report topic. Only the reports survive a restart.
"""

import asyncio
import json
import logging
import time
from collections import deque
from typing import NamedTuple

from millstream.config.table import log as settings
from millstream.config.table import topic as topic_settings
from millstream.config.topic_config import value_from_broker
from millstream.formats.model.errors import KafkaError
from millstream.formats.model.identifiers import TopicName, TopicPartition
from millstream.formats.records.opening import OpeningLimits
from millstream.formats.records.record import Record, build_batch
from millstream.node.cluster.cluster_view import ClusterView
from millstream.node.cluster.topic_creation import InternalTopics
from millstream.node.data.internal_client import InternalProducer
from millstream.node.environment import Environment
from millstream.node.hot_keys.topic_statistics import HALF_LIFE_SECONDS, MOST, TopicKeyStatistics, sample_block
from millstream.node.metadata.image import MetadataDelta
from millstream.node.metadata.topic_names import HOT_KEYS_TOPIC
from millstream.node.replicas.partition import Partition
from millstream.node.replicas.partition_table import PartitionTable
from millstream.node.storage.log.log_reader import Slice
from millstream.node.storage.log.partition_log import PartitionLog
from millstream.node.storage.opening_limits import opening_limits

REPORT_TOPIC = TopicName(HOT_KEYS_TOPIC)
REPORT_SETTINGS = {
    # Reports repeat keys of other topics, so they are forgotten soon, also where the cleaner has not been yet.
    "cleanup.policy": "compact,delete",
    "retention.ms": str(60 * 60 * 1000),
    "retention.bytes": str(64 << 20),
    "segment.ms": str(10 * 60 * 1000),
    "segment.bytes": str(8 << 20),
}
REPORT_REPLICAS = 3
FOLLOWED_TOPICS = 100
SAMPLES_PER_TICK = 8
PARTITIONS_PER_TICK = 2000
IDLE_SECONDS = 10 * HALF_LIFE_SECONDS

_log = logging.getLogger("millstream.hot_keys")


class Mark(NamedTuple):
    """The end of a log at the last check."""

    end_offset: int
    segment_base: int
    segment_bytes: int


class Chosen(NamedTuple):
    """One block of records to sample: its position, and the number of the topic's records that it represents."""

    statistics: TopicKeyStatistics
    slice: Slice
    offset: int
    records_of_topic: float


class HotKeys:
    def __init__(
        self,
        view: ClusterView,
        partitions: PartitionTable,
        internal_topics: InternalTopics,
        writer: InternalProducer,
        environment: Environment,
    ) -> None:
        self._view = view
        self._partitions = partitions
        self._internal_topics = internal_topics
        self._writer = writer
        self._environment = environment
        self._statistics: dict[str, TopicKeyStatistics] = {}
        self._marks: dict[TopicPartition, Mark] = {}
        self._to_visit: deque[bytes] = deque()
        self._reported: set[str] = set()
        self._reports_due_s = 0.0
        self._busy = False
        self._writing: asyncio.Task[None] | None = None

    def follow(self, delta: MetadataDelta) -> None:
        """Removes deleted topics."""
        for topic in delta.deleted.values():
            self._statistics.pop(topic.name, None)
        if delta.deleted:
            topics = self._partitions.by_name
            # A copy: a thread may open logs at the same time.
            self._marks = {at: mark for at, mark in list(self._marks.items()) if at.topic.encode() in topics}

    def opened(self, log: PartitionLog) -> None:
        """Called when a log is opened: existing records do not count as traffic."""
        at = log.topic_partition
        if not at.topic.startswith("__"):
            self._marks[at] = _mark(log)

    def tick(self) -> None:
        """Called about once a second, on the loop; reading and counting happen in a thread."""
        if self._busy:
            return
        now_s = self._environment.clock.now_ms() / 1000
        if self._view.config[settings.HOT_KEYS_ENABLE]:
            chosen = self._look(now_s)
        else:
            # Statistics are dropped, and tombstones are written for the reports when they are due.
            chosen = []
            self._marks.clear()
            self._statistics.clear()
        reports = self._due_reports(now_s)
        if not chosen and not reports:
            return
        self._busy = True
        node_id = self._view.config.node_id
        allowed = opening_limits(self._view.config)
        limits = OpeningLimits(*map(min, allowed, MOST))

        def work() -> list[Record]:
            for one in chosen:
                _count(one, now_s, limits)
                time.sleep(0)  # gives the interpreter lock to the event loop
            return [_report(name, statistics, rates, node_id, now_s) for name, statistics, rates in reports]

        self._environment.offload(work).add_done_callback(self._finished)

    # Checking the logs

    def _look(self, now_s: float) -> list[Chosen]:
        if not self._to_visit:
            self._to_visit.extend(name for name in self._partitions.by_name if not name.startswith(b"__"))
        seen = 0
        busy: list[tuple[TopicKeyStatistics, list[tuple[PartitionLog, int, int]]]] = []
        while self._to_visit and seen < PARTITIONS_PER_TICK:
            name = self._to_visit.popleft()
            partitions = self._partitions.by_name.get(name, {})
            seen += len(partitions) + 1
            ranges = self._visit(name.decode(), partitions, now_s)
            if ranges:
                busy.append((self._statistics[name.decode()], ranges))
        return self._choose(busy)

    def _visit(self, topic: str, partitions: dict[int, Partition], now_s: float) -> list[tuple[PartitionLog, int, int]]:
        """Updates the rates of a topic; returns the ranges of new offsets if the topic is followed."""
        appended: dict[int, tuple[int, int]] = {}
        ranges: list[tuple[PartitionLog, int, int]] = []
        for index, partition in partitions.items():
            log = partition.opened_log
            at = partition.topic_partition
            if log is None or not partition.is_leader:
                self._marks.pop(at, None)  # followers do not count: the leader does
                continue
            mark = self._marks.get(at)
            if mark is not None and mark.end_offset == log.log_end_offset:
                continue  # the usual case
            self._marks[at] = _mark(log)
            # A truncated log got no records.
            if mark is not None and log.log_end_offset > mark.end_offset:
                appended[index] = (log.log_end_offset - mark.end_offset, _bytes_since(log, mark))
                ranges.append((log, mark.end_offset, log.log_end_offset))
        statistics = self._statistics.get(topic)
        if statistics is None and ranges and self._is_enabled(topic):
            statistics = self._follow_topic(topic, now_s)
        if statistics is None:
            return []
        if not self._is_enabled(topic):
            del self._statistics[topic]
            return []
        statistics.note(appended, len(partitions), now_s)
        return ranges

    def _follow_topic(self, topic: str, now_s: float) -> TopicKeyStatistics | None:
        if len(self._statistics) >= FOLLOWED_TOPICS:
            coldest = min(self._statistics, key=lambda name: self._statistics[name].total.bytes_per_second)
            if self._statistics[coldest].busy_s > now_s - HALF_LIFE_SECONDS:
                return None
            del self._statistics[coldest]
        statistics = self._statistics[topic] = TopicKeyStatistics(now_s - 1.0)
        return statistics

    def _choose(self, busy: "list[tuple[TopicKeyStatistics, list[tuple[PartitionLog, int, int]]]]") -> list[Chosen]:
        """Chooses records of each topic with equal probability. With many topics, only some topics are sampled."""
        chance = self._environment.randomness
        chosen = []
        weight = max(1.0, len(busy) / SAMPLES_PER_TICK)
        if weight > 1:
            busy = chance.sample(busy, SAMPLES_PER_TICK)
        samples = max(1, SAMPLES_PER_TICK // len(busy)) if busy else 0
        for statistics, ranges in busy:
            count = sum(end - start for _, start, end in ranges)
            for _ in range(samples):
                position = chance.randrange(count)
                for log, start, end in ranges:
                    if position < end - start:
                        piece = _slice_at(log, start + position)
                        if piece is not None:
                            chosen.append(Chosen(statistics, piece, start + position, weight * count / samples))
                        break
                    position -= end - start
        return chosen

    def _is_enabled(self, topic: str) -> bool:
        setting = topic_settings.HOT_KEYS_ENABLE
        own = self._view.image.topic_config(TopicName(topic)).get(setting.name)
        return bool(value_from_broker(setting, self._view.config) if own is None else setting.parse(own))

    # Reports

    def _due_reports(self, now_s: float) -> "list[tuple[str, TopicKeyStatistics | None, dict[str, object]]]":
        """Topics with traffic since their last report; None for a topic whose report gets a tombstone."""
        if now_s < self._reports_due_s:
            return []
        interval_s = self._view.config[settings.HOT_KEYS_INTERVAL_MS] / 1000
        first, self._reports_due_s = self._reports_due_s == 0.0, now_s + interval_s
        if first:
            return []
        for topic, statistics in tuple(self._statistics.items()):
            if statistics.busy_s < now_s - IDLE_SECONDS:
                del self._statistics[topic]
        reports: list[tuple[str, TopicKeyStatistics | None, dict[str, object]]] = []
        for topic, statistics in self._statistics.items():
            if statistics.reported_s is None or statistics.busy_s > statistics.reported_s:
                reports.append((topic, statistics, statistics.rates_document()))
                statistics.reported_s = now_s
        reports += [(topic, None, {}) for topic in sorted(self._reported - self._statistics.keys())]
        self._reported = set(self._statistics)
        return reports

    def _finished(self, done: "asyncio.Future[list[Record]]") -> None:
        self._busy = False
        if done.cancelled():
            return
        if done.exception() is not None:
            _log.error("sampling_failed", exc_info=done.exception())
        elif records := done.result():
            self._writing = self._environment.loop.create_task(self._write(records))

    async def _write(self, records: list[Record]) -> None:
        try:
            await self._internal_topics.ensure(REPORT_TOPIC, 1, REPORT_REPLICAS, REPORT_SETTINGS)
            for record in records:
                await self._writer.append(REPORT_TOPIC, 0, build_batch([record]))
        except KafkaError as error:
            _log.warning("reports_not_written error=%s", error)


def _mark(log: PartitionLog) -> Mark:
    active = log.segments.active
    return Mark(log.log_end_offset, active.base_offset, active.size)


def _bytes_since(log: PartitionLog, mark: Mark) -> int:
    total = 0
    for slot in range(len(log.segments) - 1, -1, -1):
        segment = log.segments[slot]
        if segment.base_offset <= mark.segment_base:
            return total + max(0, segment.size - mark.segment_bytes)
        total += segment.size
    return total


def _slice_at(log: PartitionLog, offset: int) -> Slice | None:
    try:
        return log.read(offset, 1, up_to=log.log_end_offset, at_least_one=True)
    except KafkaError:
        return None  # the segment was deleted, or the disk failed (which other code reports)


def _count(chosen: Chosen, now_s: float, limits: OpeningLimits) -> None:
    try:
        chosen.slice.prepare()
        sample = sample_block(chosen.slice.read(), chosen.offset, limits)
    except (KafkaError, OSError):
        return
    if sample is not None:
        # The probability of a block is proportional to its number of records, so the weight is divided by it.
        weight = chosen.records_of_topic / len(sample.records)
        chosen.statistics.keys.add(sample.records, weight, now_s)


def _report(
    topic: str, statistics: TopicKeyStatistics | None, rates: dict[str, object], node_id: int, now_s: float
) -> Record:
    key = f"{topic}/{node_id}".encode()
    now_ms = int(now_s * 1000)
    if statistics is None:
        return Record(key, None, timestamp=now_ms)
    document = {
        "topic": topic,
        "node": node_id,
        "time_ms": now_ms,
        "half_life_s": HALF_LIFE_SECONDS,
        **rates,
        **statistics.keys.document(now_s),
    }
    return Record(key, json.dumps(document, ensure_ascii=False).encode(), timestamp=now_ms)
