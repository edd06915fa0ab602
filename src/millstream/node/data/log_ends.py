"""Where the log of a partition begins and how far it is committed, asked of its leader wherever that is."""

from typing import NamedTuple

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicName, TopicPartition
from millstream.node.cluster.cluster_view import ClusterView
from millstream.node.cluster.peer_requests import PeerRequests
from millstream.node.replicas.partition_table import PartitionTable

_PATIENCE_S = 5.0
_CONSUMER = -1
_LATEST, _EARLIEST = -1, -2


class Ends(NamedTuple):
    start: int
    high_watermark: int
    leader_epoch: int


class LogEnds:
    def __init__(self, view: ClusterView, partitions: PartitionTable, peers: PeerRequests) -> None:
        self._view = view
        self._partitions = partitions
        self._peers = peers

    async def find(self, topic: str, index: int) -> Ends:
        """KafkaError if the leader is not there or does not answer."""
        state = self._view.image.partition(TopicPartition(TopicName(topic), index))
        if state is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {index} of {topic} does not exist")
        if not state.has_leader:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"partition {index} of {topic} has no leader now")
        if state.leader == self._view.node_id:
            partition = self._partitions.find(topic, index)
            log = partition.log  # opened, or the high watermark is not known yet
            return Ends(log.log_start_offset, partition.high_watermark, state.leader_epoch)
        start = await self._asked(state.leader, topic, index, _EARLIEST)
        end = await self._asked(state.leader, topic, index, _LATEST)
        return Ends(start, end, state.leader_epoch)

    async def _asked(self, broker_id: int, topic: str, index: int, timestamp: int) -> int:
        fields = {
            "replica_id": _CONSUMER,
            "isolation_level": 0,
            "topics": [{"name": topic, "partitions": [{"partition_index": index, "timestamp": timestamp}]}],
        }
        try:
            answer = await self._peers.request(broker_id, "list_offsets", fields, timeout_s=_PATIENCE_S)
        except OSError as error:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, f"broker {broker_id}: {error}") from error
        row = answer.topics[0].partitions[0]
        if row.error_code:
            raise KafkaError(ErrorCode(row.error_code), f"broker {broker_id} does not tell of {topic}-{index}")
        offset: int = row.offset
        return offset
