"""Records that this broker writes on its own account, into partitions wherever they are led; as acks=all would."""

import asyncio
from typing import Any

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicName, TopicPartition
from millstream.node.cluster.cluster_view import ClusterView
from millstream.node.cluster.peer_requests import PeerRequests
from millstream.node.environment import Environment
from millstream.node.metadata.records import NO_LEADER
from millstream.node.replicas.acknowledgement import may_acknowledge, when_acknowledged
from millstream.node.replicas.partition import Partition
from millstream.node.replicas.partition_table import PartitionTable

_PATIENCE_S = 10.0
_ALL_IN_SYNC = -1
_LAST_VERSION_WITH_NAMES = 12


class OwnRecords:
    def __init__(
        self, view: ClusterView, partitions: PartitionTable, peers: PeerRequests, environment: Environment
    ) -> None:
        self._view = view
        self._partitions = partitions
        self._peers = peers
        self._environment = environment

    async def append(self, topic: str, index: int, batch: bytes | bytearray) -> None:
        """Returns when the batch is as safe as acks=all promises; KafkaError if it is not, or if that is not known."""
        state = self._view.image.partition(TopicPartition(TopicName(topic), index))
        if state is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {index} of {topic} does not exist")
        if state.leader == NO_LEADER:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"partition {index} of {topic} has no leader now")
        if state.leader == self._view.node_id:
            await self._append_here(self._partitions.find(topic, index), batch)
        else:
            await self._append_there(state.leader, topic, index, batch)

    async def _append_here(self, partition: Partition, batch: bytes | bytearray) -> None:
        partition.check_enough_in_sync()
        partition.append(memoryview(batch), self._environment.clock.now_ms())
        end = partition.log.log_end_offset
        if may_acknowledge(partition, end):
            return
        safe: asyncio.Future[KafkaError | None] = self._environment.loop.create_future()
        when_acknowledged(partition, end, lambda error: None if safe.done() else safe.set_result(error))
        try:
            async with asyncio.timeout(_PATIENCE_S):
                error = await safe
        except TimeoutError:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, f"{partition.topic_partition} is not replicated, or not on disk"
            ) from None
        if error is not None:
            raise error

    async def _append_there(self, broker_id: int, topic: str, index: int, batch: bytes | bytearray) -> None:
        fields: dict[str, Any] = {
            "transactional_id": None,
            "acks": _ALL_IN_SYNC,
            "timeout_ms": int(_PATIENCE_S * 1000),
            "topic_data": [{"name": topic, "partition_data": [{"index": index, "records": batch}]}],
        }
        try:
            answer = await self._peers.request(
                broker_id, "produce", fields, timeout_s=_PATIENCE_S + 1, version=_LAST_VERSION_WITH_NAMES
            )
        except OSError as error:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, f"broker {broker_id}: {error}") from error
        for row in answer.responses:
            for partition in row.partition_responses:
                if partition.error_code:
                    code = ErrorCode(partition.error_code)
                    raise KafkaError(code, partition.error_message or f"broker {broker_id} refused: {code.name}")
