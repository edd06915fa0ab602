"""The broker as a client of partition leaders, on this node or another: writes records, looks offsets up."""

import asyncio
from typing import Any, NamedTuple

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicName, TopicPartition
from millstream.node.cluster.cluster_view import BrokerChannels, ClusterView
from millstream.node.environment import Environment
from millstream.node.metadata.records import NO_LEADER
from millstream.node.replicas.acknowledgement import may_acknowledge, when_acknowledged
from millstream.node.replicas.partition import Partition
from millstream.node.replicas.partition_table import PartitionTable

_APPEND_TIMEOUT_SECONDS = 10.0
_ALL_IN_SYNC = -1
_LAST_VERSION_WITH_NAMES = 12


class InternalProducer:
    """Appends records of the broker itself, as acks=all does."""

    def __init__(
        self, view: ClusterView, partitions: PartitionTable, peers: BrokerChannels, environment: Environment
    ) -> None:
        self._view = view
        self._partitions = partitions
        self._peers = peers
        self._environment = environment

    async def append(self, topic: str, index: int, batch: bytes | bytearray) -> None:
        """Returns when all in-sync replicas have the batch; KafkaError if they have not, or if that is not known."""
        state = self._view.image.partition(TopicPartition(TopicName(topic), index))
        if state is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {index} of {topic} does not exist")
        if state.leader == NO_LEADER:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"partition {index} of {topic} has no leader now")
        if state.leader == self._view.node_id:
            await self._append_locally(self._partitions.find(topic, index), batch)
        else:
            await self._append_remotely(state.leader, topic, index, batch)

    async def _append_locally(self, partition: Partition, batch: bytes | bytearray) -> None:
        partition.check_may_write(by_broker=True)
        partition.check_enough_in_sync()
        partition.append(memoryview(batch), self._environment.clock.now_ms())
        end = partition.log.log_end_offset
        if may_acknowledge(partition, end):
            return
        safe: asyncio.Future[KafkaError | None] = self._environment.loop.create_future()
        when_acknowledged(partition, end, lambda error: None if safe.done() else safe.set_result(error))
        try:
            async with asyncio.timeout(_APPEND_TIMEOUT_SECONDS):
                error = await safe
        except TimeoutError:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, f"{partition.topic_partition} is not replicated, or not on disk"
            ) from None
        if error is not None:
            raise error

    async def _append_remotely(self, broker_id: int, topic: str, index: int, batch: bytes | bytearray) -> None:
        fields: dict[str, Any] = {
            "transactional_id": None,
            "acks": _ALL_IN_SYNC,
            "timeout_ms": int(_APPEND_TIMEOUT_SECONDS * 1000),
            "topic_data": [{"name": topic, "partition_data": [{"index": index, "records": batch}]}],
        }
        try:
            response = await self._peers.request(
                broker_id, "produce", fields, timeout_s=_APPEND_TIMEOUT_SECONDS + 1, version=_LAST_VERSION_WITH_NAMES
            )
        except OSError as error:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, f"broker {broker_id}: {error}") from error
        for row in response.responses:
            for partition in row.partition_responses:
                if partition.error_code:
                    code = ErrorCode(partition.error_code)
                    raise KafkaError(code, partition.error_message or f"broker {broker_id} refused: {code.name}")


_LOOKUP_TIMEOUT_SECONDS = 5.0
_CONSUMER = -1
_LATEST, _EARLIEST = -1, -2


class Ends(NamedTuple):
    start: int
    high_watermark: int
    leader_epoch: int


class OffsetLookup:
    """Finds the log start offset and the high watermark of a partition at its leader."""

    def __init__(self, view: ClusterView, partitions: PartitionTable, peers: BrokerChannels) -> None:
        self._view = view
        self._partitions = partitions
        self._peers = peers

    async def find(self, topic: str, index: int) -> Ends:
        """KafkaError if there is no leader, or it does not respond."""
        state = self._view.image.partition(TopicPartition(TopicName(topic), index))
        if state is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {index} of {topic} does not exist")
        if not state.has_leader:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"partition {index} of {topic} has no leader now")
        if state.leader == self._view.node_id:
            partition = self._partitions.find(topic, index)
            log = partition.log  # opens it: before, the high watermark is not known
            return Ends(log.log_start_offset, partition.high_watermark, state.leader_epoch)
        start = await self._list_offset(state.leader, topic, index, _EARLIEST)
        end = await self._list_offset(state.leader, topic, index, _LATEST)
        return Ends(start, end, state.leader_epoch)

    async def _list_offset(self, broker_id: int, topic: str, index: int, timestamp: int) -> int:
        fields = {
            "replica_id": _CONSUMER,
            "isolation_level": 0,
            "topics": [{"name": topic, "partitions": [{"partition_index": index, "timestamp": timestamp}]}],
        }
        try:
            response = await self._peers.request(broker_id, "list_offsets", fields, timeout_s=_LOOKUP_TIMEOUT_SECONDS)
        except OSError as error:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, f"broker {broker_id}: {error}") from error
        row = response.topics[0].partitions[0]
        if row.error_code:
            raise KafkaError(ErrorCode(row.error_code), f"broker {broker_id} refused ListOffsets of {topic}-{index}")
        offset: int = row.offset
        return offset
