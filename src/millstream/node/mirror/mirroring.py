"""Mirroring on this node: a driver for each link, promoted logs, and the reports.

Follows the metadata: links, mirror topics, and which of their partitions this node leads. Without a link nothing runs.

Promoted topics: a transaction of the source that was open at the promotion is aborted by a marker, because its
coordinator is at the source and cannot end it here. The producers of the source are forgotten, because a producer of
this cluster may have the same id. Both are found by the leader epochs: those of this cluster since the promotion begin
at a multiple of 2^20.
"""

import asyncio
import json
import logging
from collections.abc import Iterator, Mapping, Sequence

from millstream.formats.model.errors import KafkaError
from millstream.formats.model.identifiers import Marker, TopicName, TopicPartition
from millstream.formats.records.record import Record, build_batch
from millstream.node.cluster.topic_creation import InternalTopics
from millstream.node.data.internal_client import InternalProducer
from millstream.node.environment import Environment
from millstream.node.metadata.image import ALL_BROKERS, MetadataDelta, ResourceType
from millstream.node.metadata.mirrors import EPOCHS_OF_A_CLUSTER
from millstream.node.metadata.topic_names import MIRRORS_TOPIC
from millstream.node.mirror.cluster_access import ClusterAccess
from millstream.node.mirror.core.links import Link, MirrorState, MirrorTopic, links, mirror_topic, mirror_topics
from millstream.node.mirror.fetcher import PulledPartition
from millstream.node.mirror.link_driver import LinkDriver
from millstream.node.replicas.partition import Partition
from millstream.node.replicas.partition_table import PartitionTable
from millstream.node.storage.log.partition_log import PartitionLog

_log = logging.getLogger("millstream.mirror")
_REPORT_SECONDS = 1.0


def promotion_offset(log: PartitionLog, leader_epoch: int) -> int:
    """The offset at which the records of this cluster begin."""
    first = leader_epoch // EPOCHS_OF_A_CLUSTER * EPOCHS_OF_A_CLUSTER
    return next((start for epoch, start in log.epochs.entries() if epoch >= first), log.log_end_offset)


def close_mirrored(partition: Partition, environment: Environment) -> bool:
    """Aborts open transactions of the source and forgets its producers; whether that is done."""
    try:
        log = partition.log
        since = promotion_offset(log, partition.leader_epoch)
        for producer_id, first_offset in log.open_transactions().items():
            if first_offset >= since:
                continue
            entry = log.producers.entries[producer_id]
            marker = Marker(
                producer_id=producer_id,
                producer_epoch=entry.epoch,
                coordinator_epoch=max(entry.coordinator_epoch, 0),
                committed=False,
                transaction_version=0,
            )
            partition.append_marker(marker, environment.clock.now_ms())
            _log.warning(
                "mirrored_transaction_aborted partition=%s producer=%d first_offset=%d",
                partition.topic_partition,
                producer_id,
                first_offset,
            )
        log.producers.forget_before(since)
    except (KafkaError, OSError) as error:
        _log.warning("promotion_not_completed partition=%s error=%s", partition.topic_partition, error)
        return False
    return True


REPORT_TOPIC = TopicName(MIRRORS_TOPIC)
REPORT_SETTINGS = {
    "cleanup.policy": "compact,delete",
    "retention.ms": str(7 * 24 * 60 * 60 * 1000),
    "segment.ms": str(60 * 60 * 1000),
    "segment.bytes": str(16 << 20),
}
REPORT_REPLICAS = 3
_RECORDS_AT_ONCE = 500

Report = tuple[str, Mapping[str, object]]


class Reports:
    """Reports on mirroring, in the internal topic `__millstream_mirrors`, where any Kafka client can read them.

    The leader of each mirrored partition reports how far it is; one broker per link reports on the link. A record is
    written when something changed, at most once a second. The key is `link/topic/partition`, or the link's name.
    """

    def __init__(self, topics: InternalTopics, producer: InternalProducer, environment: Environment) -> None:
        self._topics = topics
        self._producer = producer
        self._environment = environment
        self._written: dict[str, Mapping[str, object]] = {}

    async def write(self, reports: Sequence[Report]) -> None:
        """Writes the reports that have changed."""
        changed = [(key, value) for key, value in reports if self._written.get(key) != value]
        if not changed:
            return
        now_ms = self._environment.clock.now_ms()
        try:
            await self._topics.ensure(REPORT_TOPIC, 1, REPORT_REPLICAS, REPORT_SETTINGS)
            for start in range(0, len(changed), _RECORDS_AT_ONCE):
                part = changed[start : start + _RECORDS_AT_ONCE]
                records = [
                    Record(key.encode(), json.dumps({**value, "at_ms": now_ms}).encode(), timestamp=now_ms)
                    for key, value in part
                ]
                await self._producer.append(REPORT_TOPIC, 0, build_batch(records))
                self._written.update(part)
        except KafkaError as error:
            _log.warning("mirror_reports_not_written error=%s", error)

    def forget(self, keys: set[str]) -> None:
        """Keeps only these keys: another broker reports on the others now."""
        self._written = {key: value for key, value in self._written.items() if key in keys}


class Mirroring:
    def __init__(
        self,
        cluster: ClusterAccess,
        partitions: PartitionTable,
        internal_topics: InternalTopics,
        internal_producer: InternalProducer,
        environment: Environment,
    ) -> None:
        self._cluster = cluster
        self._partitions = partitions
        self._environment = environment
        self._reports = Reports(internal_topics, internal_producer, environment)
        self.links: dict[str, LinkDriver] = {}
        self._topics: dict[str, MirrorTopic] = {}
        """All mirror topics of the cluster, also promoted ones."""
        self._closed: dict[TopicPartition, int] = {}
        """The leader epoch in which a promoted partition was closed last."""
        self._reporting: asyncio.Task[None] | None = None

    def now(self) -> float:
        """The time of the loop, in which lag is counted."""
        return self._environment.loop.time()

    def start(self) -> None:
        """Called once, when the metadata is up to date."""
        self._take_topics()
        self._take_links()

    def follow(self, delta: MetadataDelta) -> None:
        is_link_change = ALL_BROKERS in delta.configs
        names = {resource.name for resource in delta.configs if resource.type == ResourceType.TOPIC}
        names.update(delta.created, delta.changed, (topic.name for topic in delta.deleted.values()))
        changed = [name for name in sorted(names) if self._take_topic(name)]
        if is_link_change:
            self._take_links()
        elif changed:
            self._take_partitions()
        if changed:
            self._close_promoted()

    def close(self) -> None:
        if self._reporting is not None:
            self._reporting.cancel()
        for driver in self.links.values():
            driver.close()
        self.links.clear()

    # The metadata

    def _take_topics(self) -> None:
        self._topics = {topic.name: topic for topic in mirror_topics(self._cluster.image)}
        self._close_promoted()

    def _take_topic(self, name: str) -> bool:
        """Whether a topic is or was a mirror."""
        image = self._cluster.image
        before = self._topics.pop(name, None)
        found = mirror_topic(name, image.topic_config(name)) if name in image.topics else None
        if found is not None:
            self._topics[name] = found
        return found is not None or before is not None

    def _take_links(self) -> None:
        current = links(self._cluster.image)
        for name, driver in tuple(self.links.items()):
            link = current.get(name)
            if link is None or link.problem is not None or link.connection != driver.link.connection:
                driver.close()
                del self.links[name]
        for name, link in current.items():
            if link.problem is not None:
                _log.error("mirror_link_unusable link=%s reason=%s", name, link.problem)
                continue
            if name in self.links:
                self.links[name].set_link(link)
            else:
                self.links[name] = LinkDriver(link, self._cluster, self._environment)
        self._take_partitions()
        if self.links and self._reporting is None:
            self._reporting = self._environment.loop.create_task(self._report())

    def _take_partitions(self) -> None:
        for name, driver in self.links.items():
            driver.set_partitions(dict(self._led(driver.link)) if not driver.link.is_paused else {})
            if any(topic.state is MirrorState.PROMOTING for topic in self._topics.values() if topic.link == name):
                driver.metadata_is_stale()

    def _led(self, link: Link) -> Iterator[tuple[TopicPartition, PulledPartition]]:
        for topic in self._topics.values():
            if topic.link == link.name and topic.is_pulled:
                for partition in self._partitions.by_name.get(topic.name.encode(), {}).values():
                    if partition.is_leader:
                        yield partition.topic_partition, PulledPartition(partition, topic)

    # Promotion

    def _close_promoted(self) -> None:
        for topic in self._topics.values():
            if topic.state is MirrorState.PROMOTED:
                for partition in self._partitions.by_name.get(topic.name.encode(), {}).values():
                    self._close_partition(partition)

    def _close_partition(self, partition: Partition) -> None:
        at, epoch = partition.topic_partition, partition.leader_epoch
        is_open = partition.is_leader and self._closed.get(at) != epoch
        if is_open and close_mirrored(partition, self._environment):
            self._closed[at] = epoch

    # Reports

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            try:
                self._close_promoted()  # again, where it failed
                reports = list(self._current_reports())
                self._reports.forget({key for key, _ in reports})
                await self._reports.write(reports)
            except Exception:
                _log.exception("mirror_report_failed")

    def _current_reports(self) -> Iterator[Report]:
        now = self._environment.loop.time()
        for name, driver in self.links.items():
            if self._cluster.is_responsible(name):
                yield (
                    name,
                    {
                        "link": name,
                        "source_cluster": driver.source_cluster_id,
                        "problem": driver.problem,
                        "conflicts": driver.upkeep.conflicts,
                    },
                )
            for at, pulled in driver.partitions.items():
                yield (
                    f"{name}/{at.topic}/{at.partition}",
                    {
                        "link": name,
                        "topic": at.topic,
                        "partition": at.partition,
                        "node": self._cluster.view.node_id,
                        "source_end": pulled.source_end,
                        "end": pulled.end,
                        "lag_records": pulled.lag_records,
                        "lag_bytes": pulled.lag_bytes,
                        "lag_seconds": round(pulled.lag_seconds(now), 1),
                        "records_skipped": pulled.records_skipped,
                        "records_truncated": pulled.records_truncated,
                        "problem": driver.problem_of(pulled),
                    },
                )
