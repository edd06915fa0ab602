"""A blocking Kafka client on raw batches: connections, metadata, fetch, produce, transactions, any request."""

from millstream.formats.model.errors import ErrorCode
from millstream.raw_client.cluster import Cluster
from millstream.raw_client.errors import (
    OffsetOutOfRangeError,
    RefusedError,
    SetupError,
    UnreachableError,
    UnreadableError,
    WireError,
)
from millstream.raw_client.fetching import Fetched
from millstream.raw_client.model import BrokerInfo, PartitionInfo, TopicInfo, TopicPartition
from millstream.raw_client.offsets import EARLIEST, LATEST, OffsetAndTime
from millstream.raw_client.routing import CoordinatorKind

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
