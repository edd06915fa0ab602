"""DescribeProducers (61): who writes to a partition, and since which offset in a transaction."""

from typing import Any, Protocol

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.schema import Message
from millstream.node.metadata.image import PartitionState
from millstream.node.metadata.topic_names import check_topic_name
from millstream.node.replicas.local_partition import Role
from millstream.node.replicas.partition import Partition
from millstream.node.replicas.partition_table import PartitionTable
from millstream.node.server.request import Context, Response


class PartitionDirectory(Protocol):
    def state_elsewhere(self, topic: bytes, by_id: bool, index: int) -> PartitionState | None:
        """A partition that this node has no replica of, if there is one."""
        ...


class ProducerHandlers:
    def __init__(self, partitions: PartitionTable, cluster: PartitionDirectory) -> None:
        self._partitions = partitions
        self._cluster = cluster

    def describe_producers(self, request: Message, context: Context) -> Response:
        """Followers answer too: a hanging transaction may be looked for at any replica."""
        topics = []
        for topic in request.topics:
            rows = []
            # Each once, however often it is named: the response is far longer than the request.
            for index in dict.fromkeys(topic.partition_indexes):
                try:
                    found = self._producers(self._find(topic.name, index))
                    rows.append({"partition_index": index, "active_producers": found})
                except (KafkaError, OSError) as error:
                    code = error.code if isinstance(error, KafkaError) else ErrorCode.KAFKA_STORAGE_ERROR
                    rows.append({"partition_index": index, "error_code": code, "error_message": str(error)})
            topics.append({"name": topic.name, "partitions": rows})
        return {"topics": topics}

    def _find(self, topic: str, index: int) -> Partition:
        check_topic_name(topic)
        name = topic.encode()
        if index not in self._partitions.by_name.get(name, {}) and self._cluster.state_elsewhere(name, False, index):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this node has no replica of the partition")
        partition = self._partitions.find(topic, index)
        if partition.role is Role.OFFLINE:
            raise partition.not_leader()
        return partition

    @staticmethod
    def _producers(partition: Partition) -> list[dict[str, Any]]:
        return [
            {
                "producer_id": entry.producer_id,
                "producer_epoch": entry.epoch,
                "last_sequence": entry.last_sequence,
                "last_timestamp": entry.last_timestamp,
                "coordinator_epoch": entry.coordinator_epoch,
                "current_txn_start_offset": entry.transaction_start,
            }
            for entry in partition.log.producers.entries.values()
        ]
