"""Administration of a cluster: brokers, topics, groups, offsets and transactions. Public; the CLI and REST use it.

    from millstream.admin import Admin, ResetTarget

    with Admin("localhost:9092") as admin:
        admin.topics.create("orders", partitions=6)
        print(admin.cluster.read().brokers)
        admin.groups.reset_offsets("billing", ResetTarget.earliest(), admin.partitions_of("orders"))

Every call blocks until the response. All errors are `WireError`; its subclasses are exported here too.
"""

from collections.abc import Iterable, Mapping
from types import TracebackType

from millstream.admin.balance import PlannedReassignment
from millstream.admin.branches import Branching, BranchPoint
from millstream.admin.cluster import (
    Broker,
    ClusterAdmin,
    ClusterInfo,
    ClusterState,
    LogDirectories,
    Partition,
    Quorum,
    QuorumNode,
    Reassignment,
)
from millstream.admin.errors import (
    AdminError,
    GroupNotEmptyError,
    InvalidArgumentError,
    NoQuorumLeaderError,
    NotFoundError,
)
from millstream.admin.groups import Group, GroupAdmin, GroupListing, GroupMember, GroupOffset
from millstream.admin.moves import MoveError, Mover, assignment_plan, balance_plan, drain_plan
from millstream.admin.offsets import OffsetMove, ResetTarget, ResetTo, partitions_of
from millstream.admin.topics import ConfigChange, ConfigEntry, ConfigOperation, ConfigResource, TopicAdmin
from millstream.admin.transactions import OpenTransaction, Transaction, TransactionAdmin, TransactionListing
from millstream.raw_client import Cluster, RefusedError, TopicPartition, UnreachableError, WireError

__all__ = [
    "Admin",
    "AdminError",
    "BranchPoint",
    "Branching",
    "Broker",
    "ClusterAdmin",
    "ClusterInfo",
    "ClusterState",
    "ConfigChange",
    "ConfigEntry",
    "ConfigOperation",
    "ConfigResource",
    "Group",
    "GroupAdmin",
    "GroupListing",
    "GroupMember",
    "GroupNotEmptyError",
    "GroupOffset",
    "InvalidArgumentError",
    "LogDirectories",
    "MoveError",
    "Mover",
    "NoQuorumLeaderError",
    "NotFoundError",
    "OffsetMove",
    "OpenTransaction",
    "Partition",
    "PlannedReassignment",
    "Quorum",
    "QuorumNode",
    "Reassignment",
    "RefusedError",
    "ResetTarget",
    "ResetTo",
    "TopicAdmin",
    "TopicPartition",
    "Transaction",
    "TransactionAdmin",
    "TransactionListing",
    "UnreachableError",
    "WireError",
    "assignment_plan",
    "balance_plan",
    "drain_plan",
    "partitions_of",
]


class Admin:
    """The administration of one cluster. Thread safe. `close` it, or use it as a context manager."""

    def __init__(
        self, bootstrap: str = "localhost:9092", settings: Mapping[str, str] | None = None, *, timeout_s: float = 30.0
    ) -> None:
        """`settings` have the names of Kafka's Java client or of librdkafka. `timeout_s` bounds each call."""
        self._cluster = Cluster(bootstrap, settings or {}, client_id="millstream-admin", timeout_s=timeout_s)
        self.cluster = ClusterAdmin(self._cluster)
        self.topics = TopicAdmin(self._cluster)
        self.groups = GroupAdmin(self._cluster)
        self.transactions = TransactionAdmin(self._cluster)

    def partitions_of(self, topic: str, indexes: Iterable[int] | None = None) -> list[TopicPartition]:
        """The partitions of a topic, all or those given. NotFoundError if one does not exist."""
        return partitions_of(self._cluster, topic, indexes)

    def __enter__(self) -> "Admin":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes all connections."""
        self._cluster.close()
