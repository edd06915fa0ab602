"""Brokers, partitions, log directories and the metadata quorum: reading them, moving replicas, electing leaders."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from millstream.admin.errors import NoQuorumLeaderError, NotFoundError, check
from millstream.formats.model.errors import ErrorCode
from millstream.formats.model.placement import Place, default_machine
from millstream.formats.protocol.schema import Message
from millstream.raw_client import Cluster, TopicPartition, UnreachableError, WireError
from millstream.raw_client.errors import RefusedError, error_code
from millstream.raw_client.model import NO_LEADER

_METADATA_TOPIC = "__cluster_metadata"
_TOPIC, _BROKER = 2, 4
_MIN_IN_SYNC = "min.insync.replicas"
_QUORUM_FEATURE, _DYNAMIC_QUORUM = "kraft.version", 1
_CORDONED, _ALL_DIRECTORIES = "cordoned.log.dirs", "*"
_PREFERRED_ELECTION = 0
_TOPICS_PER_REQUEST = 500
_QUORUM_TIMEOUT_SECONDS = 10.0
"""For a response of the quorum's leader: longer than an election takes."""
_FENCED_TIMEOUT_SECONDS = 2.0
"""For a response of a fenced broker. Most of them do not run."""


@dataclass(frozen=True, slots=True)
class QuorumNode:
    """A voter or observer of the metadata quorum."""

    id: int
    directory_id: UUID
    log_end_offset: int
    lag: int | None
    """Records behind the leader; None if the leader has no report of this node."""
    behind_ms: int | None
    """Time since it had all records of the leader; None if it never had."""
    is_voter: bool
    is_leader: bool


@dataclass(frozen=True, slots=True)
class Quorum:
    """The metadata quorum. `leader` is -1 if there is none."""

    leader: int
    epoch: int
    high_watermark: int
    nodes: list[QuorumNode]
    addresses: dict[int, str] = field(default_factory=dict)

    def has_node(self, node_id: int) -> bool:
        return any(node.id == node_id for node in self.nodes)

    @property
    def voters(self) -> list[QuorumNode]:
        return [node for node in self.nodes if node.is_voter]

    @property
    def observers(self) -> list[QuorumNode]:
        return [node for node in self.nodes if not node.is_voter]


NO_QUORUM = Quorum(NO_LEADER, -1, -1, [])
"""The quorum when it has no leader."""


@dataclass(frozen=True, slots=True)
class Broker:
    """A registered broker."""

    id: int
    host: str
    port: int
    rack: str | None
    fenced: bool
    machine_id: str | None = None
    """Millstream only; None if the broker names none."""

    @property
    def machine(self) -> str:
        """The machine; a broker that names none is a machine of its own."""
        return self.machine_id or default_machine(self.id)

    @property
    def place(self) -> Place:
        return Place(self.rack, self.machine)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition with its replicas. `leader` is -1 if there is none."""

    topic: str
    index: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    is_internal: bool
    leader_epoch: int = -1

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.index)

    @property
    def is_offline(self) -> bool:
        return self.leader == NO_LEADER

    @property
    def is_under_replicated(self) -> bool:
        return len(self.isr) < len(self.replicas)

    @property
    def is_led_as_preferred(self) -> bool:
        """Whether the first replica leads. True for an offline partition, which an election cannot help."""
        return self.is_offline or self.leader == self.replicas[0]


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """One log directory of a broker."""

    path: str
    is_offline: bool
    is_cordoned: bool
    total_bytes: int | None
    """None if the broker does not report it."""
    free_bytes: int | None
    sizes: Mapping[TopicPartition, int]
    """Bytes of each replica in it."""
    moving_in: Mapping[TopicPartition, int]
    """Replicas that are being moved into it, with the offsets that are still to be copied."""


@dataclass(frozen=True, slots=True)
class LogDirectories:
    """The log directories of one broker, added up."""

    used_bytes: int
    total_bytes: int | None
    """None if the broker does not report it."""
    free_bytes: int | None
    is_cordoned: bool
    """Whether the broker gets no new replicas."""
    sizes: Mapping[TopicPartition, int]
    """Bytes of each replica."""
    lags: Mapping[TopicPartition, int]
    """Offsets by which each replica is behind."""
    offline: tuple[str, ...] = ()
    directories: tuple[LogDirectory, ...] = ()
    """Directories whose disk failed."""


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A partition whose replicas are being moved."""

    partition: TopicPartition
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The id of the cluster, its controller as clients see it, and all registered brokers."""

    cluster_id: str
    controller_id: int
    brokers: list[Broker]


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Everything about a cluster. It comes from several responses, so it is only almost of one moment."""

    cluster_id: str
    quorum: Quorum
    brokers: list[Broker]
    partitions: list[Partition]
    min_in_sync: dict[str, int]
    """`min.insync.replicas` by topic."""
    sizes: dict[tuple[str, int, int], int]
    """Bytes by topic, partition and broker, of brokers that responded."""
    unresponsive: list[int] = field(default_factory=list)
    """Brokers that are not fenced and did not respond."""
    cordoned: list[int] = field(default_factory=list)
    """Brokers that get no new replicas."""
    offline_directories: dict[int, list[str]] = field(default_factory=dict)
    """Log directories whose disk failed, by broker."""

    @property
    def live(self) -> list[Broker]:
        return [broker for broker in self.brokers if not broker.fenced]

    def check_quorum(self) -> None:
        """Raises NoQuorumLeaderError if the quorum has no leader."""
        if self.quorum.leader == NO_LEADER:
            raise NoQuorumLeaderError

    def broker(self, broker_id: int) -> Broker:
        for each in self.brokers:
            if each.id == broker_id:
                return each
        known = ", ".join(str(each.id) for each in self.brokers)
        raise NotFoundError(f"there is no broker {broker_id}; the brokers are {known}")

    def size(self, partition: Partition) -> int:
        """Bytes of one replica, the largest if they differ."""
        held = (self.sizes.get((*partition.topic_partition, broker), 0) for broker in partition.replicas)
        return max(held, default=0)

    def bytes_on(self, broker_id: int) -> int | None:
        """Bytes on a broker; None if that is not known."""
        if broker_id in self.unresponsive or broker_id in self.offline_directories or self.broker(broker_id).fenced:
            return None
        return sum(size for (_, _, at), size in self.sizes.items() if at == broker_id)

    def is_under_min_in_sync(self, partition: Partition) -> bool:
        required = min(self.min_in_sync.get(partition.topic, 1), len(partition.replicas))
        return not partition.is_offline and len(partition.isr) < required


class ClusterAdmin:
    """Reads and changes the cluster. Thread safe; every method may raise WireError."""

    def __init__(self, cluster: Cluster, *, attempts: int | None = None, timeout_s: float | None = None) -> None:
        """Requests are repeated until the timeout of `cluster`, or `attempts` times at most.

        `timeout_s` bounds each attempt; by default it is the timeout of `cluster`.
        """
        self._cluster = cluster
        self._attempts = attempts
        self._timeout_s = timeout_s or cluster.timeout_s

    @property
    def client(self) -> Cluster:
        return self._cluster

    def _call(self, api: str, *, node: int | None = None, timeout_s: float | None = None, **fields: Any) -> Message:
        """Sends a request to one broker or to any. An attempt that times out is repeated on another broker."""
        within_s = timeout_s or self._timeout_s
        if self._attempts is None:
            return self._cluster.call(api, node=node, within_s=within_s, **fields)
        for left in reversed(range(self._attempts if node is None else 1)):
            try:
                return self._cluster.call(api, node=node, once=True, within_s=within_s, **fields)
            except UnreachableError as error:
                if not error.late or not left:
                    raise
        raise AssertionError("the last attempt returns or raises")

    # Reading

    def read(self) -> ClusterState:
        """Everything at once. Works without a leader of the quorum and with brokers that do not respond."""
        info = self.describe()
        partitions = self.partitions()
        sizes: dict[tuple[str, int, int], int] = {}
        unresponsive: list[int] = []
        cordoned: list[int] = []
        offline: dict[int, list[str]] = {}
        for broker in info.brokers:
            try:
                directories = self.log_directories(broker)
            except WireError:
                if not broker.fenced:
                    unresponsive.append(broker.id)
                continue
            if directories.offline:
                offline[broker.id] = list(directories.offline)
            if directories.is_cordoned:
                cordoned.append(broker.id)
            for partition, size in directories.sizes.items():
                sizes[(*partition, broker.id)] = size
        try:
            quorum = self.quorum()
        except NoQuorumLeaderError:
            quorum = NO_QUORUM
        names = list(dict.fromkeys(partition.topic for partition in partitions))
        return ClusterState(
            info.cluster_id,
            quorum,
            info.brokers,
            partitions,
            self.min_in_sync(names),
            sizes,
            unresponsive,
            cordoned,
            offline,
        )

    def describe(self) -> ClusterInfo:
        """The cluster's id, its controller and its brokers, in the order of their ids, fenced ones too."""
        response = self._call("describe_cluster", include_fenced_brokers=True)
        check("the cluster", response)
        brokers = [
            Broker(
                row.broker_id,
                row.host,
                row.port,
                row.rack,
                getattr(row, "is_fenced", False),
                getattr(row, "machine_id", None),
            )
            for row in response.brokers
        ]
        return ClusterInfo(response.cluster_id, response.controller_id, sorted(brokers, key=lambda row: row.id))

    def partitions(self) -> list[Partition]:
        """All partitions, in the order of topic and index."""
        response = self._call("metadata", topics=None, allow_auto_topic_creation=False)
        return [
            Partition(
                topic.name,
                row.partition_index,
                row.leader_id,
                tuple(row.replica_nodes),
                tuple(row.isr_nodes),
                topic.is_internal,
                row.leader_epoch,
            )
            for topic in sorted(response.topics, key=lambda topic: str(topic.name))
            for row in sorted(topic.partitions, key=lambda row: int(row.partition_index))
        ]

    def quorum(self) -> Quorum:
        """The metadata quorum; NoQuorumLeaderError if it has no leader."""
        topics = [{"topic_name": _METADATA_TOPIC, "partitions": [{"partition_index": 0}]}]
        try:
            response = self._call(
                "describe_quorum", timeout_s=min(self._timeout_s, _QUORUM_TIMEOUT_SECONDS), topics=topics
            )
        except UnreachableError as error:
            if not error.late:
                raise
            raise NoQuorumLeaderError from error
        if response.error_code == ErrorCode.REQUEST_TIMED_OUT:
            raise NoQuorumLeaderError
        check("the metadata quorum", response)
        row = response.topics[0].partitions[0]
        check("the metadata quorum", row)
        ends = {each.replica_id: each.log_end_offset for each in row.current_voters}
        newest = ends.get(row.leader_id, row.high_watermark)
        # The leader's own timestamp is its present time.
        now_ms = max((each.last_caught_up_timestamp for each in row.current_voters), default=-1)

        def nodes(rows: Iterable[Message], *, voters: bool) -> Iterator[QuorumNode]:
            for each in rows:
                end, caught_up_ms = each.log_end_offset, each.last_caught_up_timestamp
                yield QuorumNode(
                    each.replica_id,
                    each.replica_directory_id,
                    end,
                    None if end < 0 else max(0, newest - end),
                    None if caught_up_ms < 0 else max(0, now_ms - caught_up_ms),
                    voters,
                    each.replica_id == row.leader_id,
                )

        addresses = {
            node.node_id: f"{listener.host}:{listener.port}"
            for node in getattr(response, "nodes", ())
            for listener in node.listeners[:1]
        }
        found = [*nodes(row.current_voters, voters=True), *nodes(row.observers, voters=False)]
        found.sort(key=lambda node: (not node.is_voter, node.id))
        return Quorum(row.leader_id, row.leader_epoch, row.high_watermark, found, addresses)

    def log_directories(self, broker: Broker) -> LogDirectories:
        """The log directories of a broker. A fenced one responds too if it runs: its disk may have failed."""
        if broker.fenced:
            timeout_s = min(self._timeout_s, _FENCED_TIMEOUT_SECONDS)  # the metadata does not have its address any more
            with self._cluster.only(broker.address) as alone:
                response = alone.call("describe_log_dirs", once=True, within_s=timeout_s, topics=None)
        else:
            response = self._call("describe_log_dirs", node=broker.id, topics=None)
        sizes: dict[TopicPartition, int] = {}
        lags: dict[TopicPartition, int] = {}
        directories = tuple(map(_log_directory, response.results))
        for directory in response.results:
            for topic in directory.topics:
                for row in topic.partitions:
                    if row.is_future_key:
                        continue  # the copy of a replica that moves between directories
                    partition = TopicPartition(topic.name, row.partition_index)
                    sizes[partition] = sizes.get(partition, 0) + row.partition_size
                    lags[partition] = row.offset_lag
        totals = [each.total_bytes for each in directories if each.total_bytes is not None]
        free = [each.free_bytes for each in directories if each.free_bytes is not None]
        return LogDirectories(
            sum(sizes.values()),
            sum(totals) if totals else None,
            sum(free) if free else None,
            bool(directories) and all(each.is_cordoned or each.is_offline for each in directories),
            sizes,
            lags,
            tuple(each.path for each in directories if each.is_offline),
            directories,
        )

    def move_to_directory(self, broker_id: int, partition: TopicPartition, path: str) -> None:
        """Moves a replica to another log directory of its broker. The move continues in the background."""
        wanted = [{"path": path, "topics": [{"name": partition.topic, "partitions": [partition.partition]}]}]
        response = self._call("alter_replica_log_dirs", node=broker_id, dirs=wanted)
        code = response.results[0].partitions[0].error_code
        match code:
            case ErrorCode.NONE:
                return
            case ErrorCode.LOG_DIR_NOT_FOUND:
                problem = f"broker {broker_id} has no log directory {path}: `millstream broker disks` lists them"
            case ErrorCode.REPLICA_NOT_AVAILABLE:
                problem = f"broker {broker_id} has no replica of {partition}"
            case ErrorCode.KAFKA_STORAGE_ERROR:
                problem = f"the log of {partition} on broker {broker_id}, or {path}, is offline: check the disk"
            case ErrorCode.INVALID_REPLICA_ASSIGNMENT:
                problem = f"{path} of broker {broker_id} is cordoned (cordoned.log.dirs) and gets no new replicas"
            case _:
                problem = f"{partition} cannot be moved to {path} of broker {broker_id}"
        raise RefusedError(problem, ErrorCode(code))

    def min_in_sync(self, topics: Sequence[str]) -> dict[str, int]:
        """`min.insync.replicas` of topics."""
        found = self.topic_settings(topics, [_MIN_IN_SYNC])
        return {name: int(values[_MIN_IN_SYNC]) for name, values in found.items() if _MIN_IN_SYNC in values}

    def topic_settings(self, topics: Sequence[str], names: Sequence[str]) -> dict[str, dict[str, str]]:
        """The values of some settings of topics, by topic. Values that are not set are left out."""
        found: dict[str, dict[str, str]] = {}
        for at in range(0, len(topics), _TOPICS_PER_REQUEST):
            resources = [
                {"resource_type": _TOPIC, "resource_name": name, "configuration_keys": list(names)}
                for name in topics[at : at + _TOPICS_PER_REQUEST]
            ]
            for row in self._call("describe_configs", resources=resources).results:
                values = {config.name: config.value for config in row.configs if config.value is not None}
                found[row.resource_name] = {name: values[name] for name in names if name in values}
        return found

    # Moving replicas and leaders

    def reassignments(self) -> list[Reassignment]:
        """The partitions whose replicas are being moved."""
        response = self._call("list_partition_reassignments", topics=None)
        check("the reassignments", response)
        return [
            Reassignment(
                TopicPartition(topic.name, row.partition_index),
                tuple(row.replicas),
                tuple(row.adding_replicas),
                tuple(row.removing_replicas),
            )
            for topic in response.topics
            for row in topic.partitions
        ]

    def reassign(self, targets: Mapping[TopicPartition, Sequence[int] | None]) -> dict[TopicPartition, str]:
        """Starts to move replicas; None cancels the reassignment. The result has the partitions that were refused, each
        with the reason."""
        rows = {
            partition: {
                "partition_index": partition.partition,
                "replicas": None if replicas is None else list(replicas),
            }
            for partition, replicas in targets.items()
        }
        response = self._call("alter_partition_reassignments", topics=_by_topic(rows, "name", "partitions"))
        check("the reassignment", response)
        return {
            TopicPartition(topic.name, row.partition_index): row.error_message or error_code(row.error_code).name
            for topic in response.responses
            for row in topic.partitions
            if row.error_code
        }

    def elect_preferred(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """Elects the first replica of each partition as its leader. The result has those refused, with the reason."""
        rows = {partition: partition.partition for partition in partitions}
        response = self._call(
            "elect_leaders",
            election_type=_PREFERRED_ELECTION,
            topic_partitions=_by_topic(rows, "topic", "partitions"),
        )
        if getattr(response, "error_code", 0):
            check("the election", response)
        return {
            TopicPartition(topic.topic, row.partition_id): row.error_message or error_code(row.error_code).name
            for topic in response.replica_election_results
            for row in topic.partition_result
            if row.error_code not in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)
        }

    # Settings and registrations

    def alter_configs(
        self, topics: Mapping[str, Mapping[str, str | None]], brokers: Mapping[int, Mapping[str, str | None]]
    ) -> None:
        """Changes settings of several topics and brokers. None removes a value."""
        resources = [(_TOPIC, name, configs) for name, configs in topics.items()]
        resources += [(_BROKER, str(broker_id), configs) for broker_id, configs in brokers.items()]
        response = self._call(
            "incremental_alter_configs",
            resources=[
                {
                    "resource_type": kind,
                    "resource_name": name,
                    "configs": [
                        {"name": key, "config_operation": 1 if value is None else 0, "value": value}
                        for key, value in configs.items()
                    ],
                }
                for kind, name, configs in resources
            ],
        )
        for row in response.responses:
            what = "topic" if row.resource_type == _TOPIC else "broker"
            check(f"{what} {row.resource_name!r}", row)

    def cordon(self, broker_id: int) -> None:
        """From now on the broker gets no new replicas."""
        self.alter_configs({}, {broker_id: {_CORDONED: _ALL_DIRECTORIES}})

    def uncordon(self, broker_id: int) -> None:
        """The broker gets new replicas again."""
        self.alter_configs({}, {broker_id: {_CORDONED: None}})

    def unregister(self, broker_id: int) -> None:
        """Removes the registration of a broker that does not run any more."""
        check(f"broker {broker_id}", self._call("unregister_broker", broker_id=broker_id))

    # The quorum

    def upgrade_quorum(self) -> None:
        """Lets voters be added and removed at run time (kraft.version 1). This cannot be undone."""
        update = {"feature": _QUORUM_FEATURE, "max_version_level": _DYNAMIC_QUORUM, "upgrade_type": 1}
        response = self._call("update_features", timeout_ms=int(self._timeout_s * 1000), feature_updates=[update])
        check("the quorum", response)
        for row in response.results:
            check("the quorum", row)

    def add_voter(self, node_id: int, directory_id: UUID, listener: str, host: str, port: int) -> None:
        """Makes an observer a voter."""
        response = self._call(
            "add_raft_voter",
            cluster_id=None,
            timeout_ms=int(self._timeout_s * 1000),
            voter_id=node_id,
            voter_directory_id=directory_id,
            listeners=[{"name": listener, "host": host, "port": port}],
        )
        _check_dynamic(node_id, response)

    def remove_voter(self, node_id: int, directory_id: UUID) -> None:
        """Removes a voter, whether it runs or not."""
        response = self._call("remove_raft_voter", cluster_id=None, voter_id=node_id, voter_directory_id=directory_id)
        _check_dynamic(node_id, response)


def _check_dynamic(node_id: int, response: Message) -> None:
    if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
        raise RefusedError(
            "the voters of this quorum are fixed by controller.quorum.voters:"
            " `millstream cluster quorum upgrade` makes them changeable at run time",
            ErrorCode.UNSUPPORTED_VERSION,
        )
    check(f"node {node_id}", response)


def _by_topic(rows: Mapping[TopicPartition, object], name_field: str, rows_field: str) -> list[dict[str, object]]:
    topics: dict[str, list[object]] = {}
    for partition, row in rows.items():
        topics.setdefault(partition.topic, []).append(row)
    return [{name_field: topic, rows_field: found} for topic, found in topics.items()]


def _log_directory(row: Message) -> LogDirectory:
    """One row of DescribeLogDirs. Older brokers report no sizes of disks, and no cordons."""
    total, free = getattr(row, "total_bytes", -1), getattr(row, "usable_bytes", -1)
    replicas = [
        (TopicPartition(topic.name, each.partition_index), each) for topic in row.topics for each in topic.partitions
    ]
    return LogDirectory(
        row.log_dir,
        row.error_code == ErrorCode.KAFKA_STORAGE_ERROR,
        getattr(row, "is_cordoned", False),
        total if total >= 0 else None,
        free if free >= 0 else None,
        {at: each.partition_size for at, each in replicas if not each.is_future_key},
        {at: each.offset_lag for at, each in replicas if each.is_future_key},
    )
