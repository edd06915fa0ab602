"""Mirroring on this node: a driver for each link, promoted logs, and the reports.

Follows the metadata: links, mirror topics, and which of their partitions this node leads. Without a link nothing runs.
"""

import asyncio
import logging
from collections.abc import Iterator

from millstream.formats.model.identifiers import TopicPartition
from millstream.node.cluster.topic_creation import InternalTopics
from millstream.node.data.internal_client import InternalProducer
from millstream.node.environment import Environment
from millstream.node.metadata.image import ALL_BROKERS, MetadataDelta, ResourceType
from millstream.node.mirror.cluster_access import ClusterAccess
from millstream.node.mirror.core.links import Link, MirrorState, MirrorTopic, links, mirror_topic, mirror_topics
from millstream.node.mirror.link_driver import LinkDriver
from millstream.node.mirror.promotion import close_mirrored
from millstream.node.mirror.pulled import PulledPartition
from millstream.node.mirror.reports import Report, Reports
from millstream.node.replicas.partition import Partition
from millstream.node.replicas.partition_table import PartitionTable

_log = logging.getLogger("millstream.mirror")
_REPORT_SECONDS = 1.0


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
        """The leader epoch in which a promoted partition was closed last (`promotion.py`)."""
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
