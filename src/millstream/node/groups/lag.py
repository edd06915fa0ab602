"""The lag of groups: committed offsets compared with the high watermarks of their partitions.

The coordinator of a group has the committed offsets. It has the high watermarks of partitions with a replica on this
broker. For other partitions it sends ListOffsets to their leaders, when lag is read, at most once in a few seconds. Lag
costs nothing while it is not read.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

from millstream.formats.model.errors import KafkaError
from millstream.formats.model.identifiers import NO_TOPIC_ID, TopicName, TopicPartition
from millstream.node.cluster.cluster_view import BrokerChannels, ClusterView
from millstream.node.environment import Environment
from millstream.node.groups.coordinator import GroupCoordinator
from millstream.node.groups.core.records import CommittedOffset
from millstream.node.metadata.image import TopicImage
from millstream.node.replicas.partition_table import PartitionTable

REFRESH_SECONDS = 5.0
"""How long the offsets of other brokers are used before they are requested again."""
_TIMEOUT_SECONDS = 2.0
_MAX_PARTITIONS_PER_REQUEST = 2000
_ROWS_PER_TURN = 100
_CONSUMER = -1
_LATEST = -1
PartitionKey = tuple[str, int]


class Lag(NamedTuple):
    group_id: str
    topic: str
    partition: int
    committed: int
    end: int | None
    """The high watermark; None if it is not known."""

    @property
    def records(self) -> int | None:
        return None if self.end is None else max(self.end - self.committed, 0)


class GroupLag:
    def __init__(
        self,
        view: ClusterView,
        partitions: PartitionTable,
        peers: BrokerChannels,
        groups: GroupCoordinator,
        environment: Environment,
    ) -> None:
        self._view = view
        self._partitions = partitions
        self._peers = peers
        self._groups = groups
        self._now = environment.loop.time
        self._remote_ends: dict[PartitionKey, int] = {}
        self._refreshed_at = -REFRESH_SECONDS

    async def refresh(self, pause: Callable[[], Awaitable[None]]) -> None:
        """Requests the high watermarks of other brokers, unless done recently. `pause` lets other tasks run."""
        wanted: dict[PartitionKey, None] = {}
        for count, (_, topic, index, _) in enumerate(self._committed()):
            wanted[topic.name, index] = None
            if count % _ROWS_PER_TURN == 0:
                await pause()
        unknown: dict[int, dict[str, list[int]]] = {}
        is_due = self._now() - self._refreshed_at >= REFRESH_SECONDS
        for count, (name, index) in enumerate(wanted):
            if count % _ROWS_PER_TURN == 0:
                await pause()
            partition = self._partitions.by_name.get(name.encode(), {}).get(index)
            if partition is not None:
                try:
                    await partition.open()  # opening loads the high watermark
                except KafkaError:
                    continue
            elif is_due:
                state = self._view.image.partition(TopicPartition(TopicName(name), index))
                if state is not None and state.has_leader:
                    unknown.setdefault(state.leader, {}).setdefault(name, []).append(index)
        if is_due:
            self._refreshed_at = self._now()
            found = await asyncio.gather(*(self._request_ends(leader, topics) for leader, topics in unknown.items()))
            self._remote_ends = {at: end for ends in found for at, end in ends.items()}

    def rows(self) -> Iterator[Lag]:
        """The lag of all groups that this broker coordinates. Call `refresh` first."""
        for group_id, topic, index, committed in self._committed():
            yield Lag(group_id, topic.name, index, committed.offset, self._end(topic.name, index))

    def _committed(self) -> Iterator[tuple[str, TopicImage, int, CommittedOffset]]:
        topics = self._view.image.topics
        for shard in self._groups.loaded_shards():
            for group_id, by_topic in list(shard.offsets.by_group.items()):
                for name, partitions in list(by_topic.items()):
                    topic = topics.get(TopicName(name))
                    if topic is None:
                        continue
                    for index, committed in list(partitions.items()):
                        of_another = committed.topic_id not in (NO_TOPIC_ID, topic.id)
                        if index < len(topic.partitions) and not of_another:
                            yield group_id, topic, index, committed

    def _end(self, topic: str, index: int) -> int | None:
        partition = self._partitions.by_name.get(topic.encode(), {}).get(index)
        if partition is None:
            return self._remote_ends.get((topic, index))
        return partition.high_watermark if partition.opened_log is not None else None

    async def _request_ends(self, leader: int, topics: dict[str, list[int]]) -> dict[PartitionKey, int]:
        """The high watermarks of a leader; empty if it does not respond in time."""
        every = [(topic, index) for topic, indexes in topics.items() for index in indexes]
        ends: dict[PartitionKey, int] = {}
        for first in range(0, len(every), _MAX_PARTITIONS_PER_REQUEST):
            wanted: dict[str, list[dict[str, int]]] = {}
            for topic, index in every[first : first + _MAX_PARTITIONS_PER_REQUEST]:
                wanted.setdefault(topic, []).append({"partition_index": index, "timestamp": _LATEST})
            fields = {
                "replica_id": _CONSUMER,
                "isolation_level": 0,
                "topics": [{"name": topic, "partitions": rows} for topic, rows in wanted.items()],
            }
            try:
                response = await self._peers.request(leader, "list_offsets", fields, timeout_s=_TIMEOUT_SECONDS)
            except (OSError, KafkaError):
                break
            for topic_row in response.topics:
                ends |= {
                    (topic_row.name, row.partition_index): row.offset
                    for row in topic_row.partitions
                    if not row.error_code
                }
        return ends
