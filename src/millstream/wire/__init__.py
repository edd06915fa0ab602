"""A blocking Kafka client over the protocol room: connections, metadata, raw fetch and produce, transactions."""

from millstream.model.errors import ErrorCode
from millstream.wire.cluster import Cluster
from millstream.wire.coordinators import CoordinatorKind
from millstream.wire.errors import (
    OffsetOutOfRangeError,
    RefusedError,
    SetupError,
    UnreachableError,
    UnreadableError,
    WireError,
)
from millstream.wire.fetch_codec import Fetched
from millstream.wire.log_offsets import EARLIEST, LATEST, OffsetAndTime
from millstream.wire.topics import BrokerInfo, PartitionInfo, TopicInfo, TopicPartition

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
