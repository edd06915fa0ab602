"""Markers at the leaders of the partitions that a transaction wrote to: appended here, and answered once committed."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Protocol

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import Marker, TopicPartition
from millstream.node.environment import Environment
from millstream.node.metadata.topic_names import CONSUMER_OFFSETS_TOPIC
from millstream.node.replicas.acknowledgement import may_acknowledge, when_acknowledged
from millstream.node.replicas.partition_table import PartitionTable

PATIENCE_S = 30.0
"""So long a marker may take to be replicated; the coordinator sends it again, and that is harmless."""


class GroupOffsets(Protocol):
    """Who keeps the offsets that groups commit: it ends transactions in its partitions, and in its memory, itself."""

    async def end_transaction(self, index: int, marker: Marker) -> None:
        """Returns when the marker is committed in the partition of that index; KafkaError if it is not."""
        ...


class MarkerWriter:
    def __init__(self, partitions: PartitionTable, groups: GroupOffsets, environment: Environment) -> None:
        self._partitions = partitions
        self._groups = groups
        self._environment = environment

    def write(self, marker: Marker, partitions: Sequence[TopicPartition]) -> Awaitable[dict[TopicPartition, ErrorCode]]:
        """What became of the marker in each of the partitions; one that is not led here is refused.

        All that can be appended is, before this returns: the answer waits until it is committed.
        """
        results = dict.fromkeys(partitions, ErrorCode.NONE)
        waiting: dict[TopicPartition, Awaitable[KafkaError | None]] = {}
        for at in results:
            try:
                committed = self._begin(at, marker)
            except KafkaError as error:
                results[at] = error.code
            else:
                if committed is not None:
                    waiting[at] = committed
        return self._finish(results, waiting)

    async def _finish(
        self, results: dict[TopicPartition, ErrorCode], waiting: dict[TopicPartition, Awaitable[KafkaError | None]]
    ) -> dict[TopicPartition, ErrorCode]:
        for at, committed in waiting.items():
            failure = await committed
            if failure is not None:
                results[at] = failure.code
        return results

    def _begin(self, at: TopicPartition, marker: Marker) -> Awaitable[KafkaError | None] | None:
        if marker.producer_id < 0 or marker.producer_epoch < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a marker is a producer's, of one of its epochs")
        if at.topic == CONSUMER_OFFSETS_TOPIC:
            return asyncio.ensure_future(self._end_in_groups(at.partition, marker), loop=self._environment.loop)
        return self._append(at, marker)

    def _append(self, at: TopicPartition, marker: Marker) -> "asyncio.Future[KafkaError | None] | None":
        """Appends to a partition; what to wait for if it is not safe by that: the replicas, and where a client's
        batches wait for it, the disk. A marker that is lost after its transaction is forgotten would be missed for
        ever."""
        partition = self._partitions.find_led(at.topic, at.partition)
        partition.check_enough_in_sync()
        end = partition.append_marker(marker, self._environment.clock.now_ms()).last_offset + 1
        if may_acknowledge(partition, end):
            return None
        loop = self._environment.loop
        safe: asyncio.Future[KafkaError | None] = loop.create_future()

        def tell(error: KafkaError | None) -> None:
            if not safe.done():
                timer.cancel()
                safe.set_result(error)

        late = KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"the marker in {at} is not safe yet")
        timer = loop.call_later(PATIENCE_S, tell, late)
        when_acknowledged(partition, end, tell)
        return safe

    async def _end_in_groups(self, index: int, marker: Marker) -> KafkaError | None:
        try:
            await self._groups.end_transaction(index, marker)
        except KafkaError as error:
            return error
        return None
