"""One link on one broker: copies the partitions that this broker leads, from the leaders at the source.

Each broker that leads partitions of the link's topics has one. One of the brokers also compares topics, settings and
groups (`upkeep.py`). The metadata of the source is read at an interval, and at once when the source has changed.
"""

import asyncio
import contextlib
import logging

from millstream.config.table import topic as topic_settings
from millstream.formats.model.errors import KafkaError
from millstream.formats.model.identifiers import TopicPartition
from millstream.node.environment import Environment
from millstream.node.mirror.cluster_access import ClusterAccess
from millstream.node.mirror.core.links import Link
from millstream.node.mirror.fetcher import UNKNOWN, PulledPartition, SourceFetcher, Totals
from millstream.node.mirror.source import SourceCluster, SourceMetadata
from millstream.node.mirror.upkeep import Upkeep

_log = logging.getLogger("millstream.mirror")
_SHORTEST_INTERVAL_SECONDS = 0.2
_LONGEST_INTERVAL_SECONDS = 10.0


class LinkDriver:
    def __init__(self, link: Link, cluster: ClusterAccess, environment: Environment) -> None:
        self.link = link
        self._cluster = cluster
        self._environment = environment
        view = cluster.view
        client_id = f"millstream-mirror-{link.name}-{view.node_id}"
        self._source = SourceCluster(link, view.config, environment, client_id)
        self.upkeep = Upkeep(self._source, cluster, environment)
        self.partitions: dict[TopicPartition, PulledPartition] = {}
        self._fetchers: dict[int, SourceFetcher] = {}
        self._ended = Totals()
        """Of partitions that another broker copies now."""
        self.problem = ""
        self._stale = asyncio.Event()
        self._allowed_at = 0.0
        self._throttle_changed = asyncio.Event()
        self._epochs_wanted: dict[str, int] = {}
        self._task = environment.loop.create_task(self._run())

    def close(self) -> None:
        self._task.cancel()
        for fetcher in self._fetchers.values():
            fetcher.close()
        self._fetchers.clear()
        self._source.close()

    @property
    def source_cluster_id(self) -> str:
        return self._source.metadata.cluster_id if self._source.metadata is not None else ""

    def totals(self) -> Totals:
        total = Totals(self._ended.bytes_copied, self._ended.records_skipped, self._ended.records_truncated)
        for pulled in self.partitions.values():
            total.add(pulled)
        return total

    def set_link(self, link: Link) -> None:
        """The definition has changed, but not the connection."""
        if link.throttle_bytes != self.link.throttle_bytes:
            self._allowed_at = 0.0
            self._throttle_changed.set()
            self._throttle_changed = asyncio.Event()
        self.link = link
        self.metadata_is_stale()

    def set_partitions(self, wanted: dict[TopicPartition, PulledPartition]) -> None:
        """The partitions that this broker copies. Those that were there keep their progress."""
        for at, pulled in tuple(self.partitions.items()):
            new = wanted.get(at)
            if new is None or new.partition is not pulled.partition or new.topic.source_id != pulled.topic.source_id:
                del self.partitions[at]
                self._ended.add(pulled)
                self._unassign(pulled)
            else:
                pulled.topic = new.topic
        for at, pulled in wanted.items():
            if at not in self.partitions:
                pulled.caught_up_at = self._environment.loop.time()
                self.partitions[at] = pulled
        if self._source.metadata is not None:
            self._assign(self._source.metadata)

    # The source's metadata

    def metadata_is_stale(self) -> None:
        self._stale.set()

    async def _run(self) -> None:
        pause_s = _SHORTEST_INTERVAL_SECONDS
        while True:
            self._stale.clear()
            try:
                metadata = await self._source.refresh()
                self._assign(metadata)
                if self._cluster.is_responsible(self.link.name):
                    await self.upkeep.run(self.link, metadata)
                self.problem = ""
                pause_s = _SHORTEST_INTERVAL_SECONDS
            except (OSError, KafkaError) as error:
                if str(error) != self.problem:
                    _log.warning("mirror_link_failed link=%s error=%s", self.link.name, error)
                self.problem = str(error) or type(error).__name__
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_INTERVAL_SECONDS)
                continue
            except Exception:
                _log.exception("mirror_link_failed link=%s", self.link.name)
                await asyncio.sleep(_LONGEST_INTERVAL_SECONDS)
            await asyncio.sleep(_SHORTEST_INTERVAL_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.link.interval_ms / 1000):
                    await self._stale.wait()

    def _assign(self, metadata: SourceMetadata) -> None:
        """Gives each partition to the fetcher of its leader at the source."""
        for pulled in self.partitions.values():
            topic = metadata.topics.get(pulled.topic.source_name)
            is_there = topic is not None and topic.id == pulled.topic.source_id and pulled.index < len(topic.partitions)
            leader, epoch = UNKNOWN, UNKNOWN
            if topic is not None and is_there:
                leader, epoch = topic.partitions[pulled.index].leader, topic.partitions[pulled.index].leader_epoch
            pulled.leader_epoch = epoch
            if leader != pulled.leader:
                self._unassign(pulled)
                pulled.leader = leader
            if leader == UNKNOWN:
                pulled.problem = (
                    "the partition has no leader at the source"
                    if is_there
                    else "the source does not have this topic, or does not let this cluster read it"
                )
                continue
            fetcher = self._fetchers.get(leader)
            if fetcher is None:
                fetcher = self._fetchers[leader] = SourceFetcher(
                    leader, self._source, self, self._environment, self.link.name
                )
            fetcher.add(pulled)
        for broker_id, fetcher in tuple(self._fetchers.items()):
            if not fetcher.partitions:
                fetcher.close()
                del self._fetchers[broker_id]

    def _unassign(self, pulled: PulledPartition) -> None:
        fetcher = self._fetchers.get(pulled.leader)
        if fetcher is not None:
            fetcher.remove(pulled)
        pulled.leader = UNKNOWN

    # For the fetchers

    @property
    def throttle_bytes(self) -> int:
        return self.link.throttle_bytes

    @property
    def next_producer_id(self) -> int:
        return self._cluster.image.next_producer_id

    async def throttle(self, size: int) -> None:
        now = self._environment.loop.time()
        self._allowed_at = max(self._allowed_at, now) + size / self.link.throttle_bytes
        if self._allowed_at > now:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._allowed_at - now):
                    await self._throttle_changed.wait()

    async def raise_epoch(self, pulled: PulledPartition, epoch: int) -> None:
        name = pulled.topic.name
        if epoch <= self._epochs_wanted.get(name, UNKNOWN):
            await asyncio.sleep(0.05)  # another partition of the topic has requested it
        self._epochs_wanted[name] = epoch
        try:
            await self._cluster.alter_topic(name, {topic_settings.MIRROR_LEADER_EPOCH.name: str(epoch)})
        finally:
            self._epochs_wanted.pop(name, None)

    async def raise_producer_ids(self, pulled: PulledPartition, producer_id: int) -> None:
        await self._cluster.alter_topic(pulled.topic.name, {topic_settings.MIRROR_PRODUCER_ID.name: str(producer_id)})

    def problem_of(self, pulled: PulledPartition) -> str:
        """What keeps a partition from being copied; empty if nothing does."""
        fetcher = self._fetchers.get(pulled.leader)
        return pulled.problem or (fetcher.problem if fetcher is not None else "") or self.problem
