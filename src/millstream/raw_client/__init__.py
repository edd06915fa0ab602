"""A blocking Kafka client over the protocol room: connections, metadata, raw fetch and produce, transactions."""

from millstream.formats.model.errors import ErrorCode
from millstream.raw_client.cluster import Cluster
from millstream.raw_client.coordinators import CoordinatorKind
from millstream.raw_client.errors import (
    OffsetOutOfRangeError,
    RefusedError,
    SetupError,
    UnreachableError,
    UnreadableError,
    WireError,
)
from millstream.raw_client.fetch_codec import Fetched
from millstream.raw_client.log_offsets import EARLIEST, LATEST, OffsetAndTime
from millstream.raw_client.topics import BrokerInfo, PartitionInfo, TopicInfo, TopicPartition

__all__ = [
    "EARLIEST",
    "LATEST",
    "BrokerInfo",
    "Cluster",
    "CoordinatorKind",
    "ErrorCode",
    "Fetched",
    "OffsetAndTime",
    "OffsetOutOfRangeError",
    "PartitionInfo",
    "RefusedError",
    "SetupError",
    "TopicInfo",
    "TopicPartition",
    "UnreachableError",
    "UnreadableError",
    "WireError",
]
