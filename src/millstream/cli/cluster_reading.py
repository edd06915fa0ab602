"""What a cluster looks like from outside: quorum, brokers, partitions and their sizes, asked over the wire."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from millstream.cli import exit_codes
from millstream.cli.options import assignments
from millstream.cli.terminal import CommandFailedError
from millstream.cli.wire_cluster import wire_cluster
from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.node.metadata.topic_names import CLUSTER_METADATA_TOPIC

if TYPE_CHECKING:
    from millstream.client.connection import Connection

NO_LEADER = -1
_TOPIC, _BROKER = 2, 4
_MIN_IN_SYNC = "min.insync.replicas"
_QUORUM_FEATURE, _DYNAMIC = "kraft.version", 1
_CORDON, _ALL_DIRECTORIES = "cordoned.log.dirs", "*"
_TOPICS_PER_REQUEST = 500
_QUORUM_S = 10.0
"""How long to wait for the quorum's leader: longer than an election takes."""
_FENCED_S = 2.0
"""How long a fenced broker may take to say what is wrong with it. Most do not run."""

Place = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True, slots=True)
class QuorumNode:
    id: int
    directory_id: UUID
    log_end_offset: int
    lag: int | None
    """Records behind the leader; None if it was never heard of."""
    behind_ms: int | None
    """How long ago it had all that the leader has; None if it never had."""
    is_voter: bool
    is_leader: bool


@dataclass(frozen=True, slots=True)
class Quorum:
    leader: int
    epoch: int
    high_watermark: int
    nodes: list[QuorumNode]
    addresses: dict[int, str] = field(default_factory=dict)

    def follows(self, number: int) -> bool:
        return any(node.id == number for node in self.nodes)

    @property
    def voters(self) -> list[QuorumNode]:
        return [node for node in self.nodes if node.is_voter]

    @property
    def observers(self) -> list[QuorumNode]:
        return [node for node in self.nodes if not node.is_voter]


@dataclass(frozen=True, slots=True)
class Broker:
    id: int
    host: str
    port: int
    rack: str | None
    fenced: bool

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Partition:
    topic: str
    number: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    is_internal: bool

    @property
    def place(self) -> Place:
        return self.topic, self.number

    @property
    def is_offline(self) -> bool:
        return self.leader == NO_LEADER

    @property
    def is_under_replicated(self) -> bool:
        return len(self.isr) < len(self.replicas)

    @property
    def is_led_as_preferred(self) -> bool:
        return self.is_offline or self.leader == self.replicas[0]


@dataclass(frozen=True, slots=True)
class Cluster:
    """All of it at one moment, or nearly: it is put together from several answers."""

    cluster_id: str
    quorum: Quorum
    brokers: list[Broker]
    partitions: list[Partition]
    min_in_sync: dict[str, int]
    sizes: dict[tuple[str, int, int], int]
    """Bytes by topic, partition and broker, of brokers that answered."""
    silent: list[int] = field(default_factory=list)
    """Brokers that should answer and do not."""
    cordoned: list[int] = field(default_factory=list)
    """Brokers that get no new replicas, since they are to be emptied."""
    offline_directories: dict[int, list[str]] = field(default_factory=dict)
    """Log directories that have failed, by broker."""

    @property
    def live(self) -> list[Broker]:
        return [broker for broker in self.brokers if not broker.fenced]

    def check_quorum(self) -> None:
        if self.quorum.leader == NO_LEADER:
            raise no_quorum_leader()

    def broker(self, number: int) -> Broker:
        for each in self.brokers:
            if each.id == number:
                return each
        known = ", ".join(str(each.id) for each in self.brokers)
        raise CommandFailedError(f"there is no broker {number}; there are {known}", exit_codes.NOT_FOUND)

    def size(self, partition: Partition) -> int:
        """Bytes of one replica, the largest where they differ."""
        held = (self.sizes.get((*partition.place, number), 0) for number in partition.replicas)
        return max(held, default=0)

    def bytes_on(self, number: int) -> int | None:
        if number in self.silent or number in self.offline_directories or self.broker(number).fenced:
            return None
        return sum(size for (_, _, at), size in self.sizes.items() if at == number)

    def is_under_min_in_sync(self, partition: Partition) -> bool:
        wanted = min(self.min_in_sync.get(partition.topic, 1), len(partition.replicas))
        return not partition.is_offline and len(partition.isr) < wanted


def no_quorum_leader() -> CommandFailedError:
    return CommandFailedError(
        "the metadata quorum has no leader, so nothing can be changed: start most of its controllers",
        exit_codes.TIMED_OUT,
    )


class ClusterAdmin:
    """The cluster behind a client's bootstrap servers."""

    def __init__(self, connection: "Connection") -> None:
        self._timeout = connection.timeout
        self._connection = connection
        self._wire = wire_cluster(connection)

    def call(self, api: str, **fields: Any) -> Message:
        """Asks any broker; what concerns the controller reaches it from there."""
        return self._wire.call(api, once=True, **fields)

    # Reading

    def read(self) -> Cluster:
        from millstream.raw_client import WireError

        cluster_id, brokers = self.brokers()
        partitions = self.partitions()
        sizes: dict[tuple[str, int, int], int] = {}
        silent: list[int] = []
        cordoned: list[int] = []
        offline: dict[int, list[str]] = {}
        for broker in brokers:
            try:
                directories = self._directories(broker)
            except WireError:
                if not broker.fenced:
                    silent.append(broker.id)
                continue
            for directory in directories:
                if directory.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
                    offline.setdefault(broker.id, []).append(directory.log_dir)
                if getattr(directory, "is_cordoned", False) and broker.id not in cordoned:
                    cordoned.append(broker.id)
                for topic in directory.topics:
                    for row in topic.partitions:
                        sizes[topic.name, row.partition_index, broker.id] = row.partition_size
        names = list(dict.fromkeys(partition.topic for partition in partitions))
        return Cluster(
            cluster_id,
            self._quorum_if_led(),
            brokers,
            partitions,
            self._min_in_sync(names),
            sizes,
            silent,
            cordoned,
            offline,
        )

    def _quorum_if_led(self) -> Quorum:
        """Brokers tell what they know also when the quorum is gone, which is when somebody wants to know."""
        try:
            return self.quorum()
        except CommandFailedError as error:
            if error.exit_code != exit_codes.TIMED_OUT:
                raise
            return Quorum(NO_LEADER, -1, -1, [])

    def brokers(self) -> tuple[str, list[Broker]]:
        answer = self.call("describe_cluster", include_fenced_brokers=True)
        check(answer.error_code, answer.error_message)
        rows = [Broker(row.broker_id, row.host, row.port, row.rack, row.is_fenced) for row in answer.brokers]
        return answer.cluster_id, sorted(rows, key=lambda row: row.id)

    def partitions(self) -> list[Partition]:
        return [
            Partition(
                topic.name,
                row.partition_index,
                row.leader_id,
                tuple(row.replica_nodes),
                tuple(row.isr_nodes),
                topic.is_internal,
            )
            for topic in sorted(self.call("metadata", topics=None).topics, key=lambda topic: str(topic.name))
            for row in sorted(topic.partitions, key=lambda row: int(row.partition_index))
        ]

    def quorum(self) -> Quorum:
        from millstream.raw_client import UnreachableError

        asked = [{"topic_name": CLUSTER_METADATA_TOPIC, "partitions": [{"partition_index": 0}]}]
        try:
            answer = self._wire.call("describe_quorum", once=True, within_s=min(self._timeout, _QUORUM_S), topics=asked)
        except UnreachableError as error:
            if not error.late:
                raise
            raise no_quorum_leader() from error
        if answer.error_code == ErrorCode.REQUEST_TIMED_OUT:
            raise no_quorum_leader()
        check(answer.error_code, getattr(answer, "error_message", None))
        row = answer.topics[0].partitions[0]
        check(row.error_code, getattr(row, "error_message", None))
        ends = {each.replica_id: each.log_end_offset for each in row.current_voters}
        newest = ends.get(row.leader_id, row.high_watermark)
        now_ms = max((each.last_caught_up_timestamp for each in row.current_voters), default=-1)  # the leader's time

        def nodes(rows: Iterable[Message], *, voters: bool) -> Iterator[QuorumNode]:
            for each in rows:
                end = each.log_end_offset
                yield QuorumNode(
                    each.replica_id,
                    each.replica_directory_id,
                    end,
                    None if end < 0 else max(0, newest - end),
                    None if each.last_caught_up_timestamp < 0 else now_ms - each.last_caught_up_timestamp,
                    voters,
                    each.replica_id == row.leader_id,
                )

        addresses = {
            node.node_id: f"{listener.host}:{listener.port}"
            for node in getattr(answer, "nodes", ())
            for listener in node.listeners[:1]
        }
        found = [*nodes(row.current_voters, voters=True), *nodes(row.observers, voters=False)]
        return Quorum(row.leader_id, row.leader_epoch, row.high_watermark, sorted(found, key=_voters_first), addresses)

    def _directories(self, broker: Broker) -> list[Message]:
        if not broker.fenced:
            return list(self._wire.call("describe_log_dirs", node=broker.id, once=True, topics=None).results)
        within_s = min(self._timeout, _FENCED_S)  # the metadata does not name it any more
        with wire_cluster(self._connection, only=broker.address) as alone:
            return list(alone.call("describe_log_dirs", once=True, within_s=within_s, topics=None).results)

    def _min_in_sync(self, topics: Sequence[str]) -> dict[str, int]:
        found: dict[str, int] = {}
        for at in range(0, len(topics), _TOPICS_PER_REQUEST):
            resources = [
                {"resource_type": _TOPIC, "resource_name": name, "configuration_keys": [_MIN_IN_SYNC]}
                for name in topics[at : at + _TOPICS_PER_REQUEST]
            ]
            for row in self.call("describe_configs", resources=resources).results:
                for config in row.configs:
                    if config.name == _MIN_IN_SYNC and config.value is not None:
                        found[row.resource_name] = int(config.value)
        return found

    # Changing

    def reassignments(self) -> dict[Place, tuple[tuple[int, ...], tuple[int, ...]]]:
        """What moves now: where to and where from."""
        answer = self.call("list_partition_reassignments", topics=None)
        check(answer.error_code, answer.error_message)
        return {
            (topic.name, row.partition_index): (tuple(row.adding_replicas), tuple(row.removing_replicas))
            for topic in answer.topics
            for row in topic.partitions
        }

    def reassign(self, wanted: Sequence[tuple[Place, tuple[int, ...]]]) -> dict[Place, str]:
        """Begins moves; what was refused, and why."""
        rows = {place: {"partition_index": place[1], "replicas": list(replicas)} for place, replicas in wanted}
        answer = self.call("alter_partition_reassignments", topics=_by_topic(rows, "name", "partitions"))
        check(answer.error_code, answer.error_message)
        return {
            (topic.name, row.partition_index): row.error_message or ErrorCode(row.error_code).name
            for topic in answer.responses
            for row in topic.partitions
            if row.error_code
        }

    def elect_preferred(self, places: Sequence[Place]) -> dict[Place, str]:
        """Has each be led by the first of its replicas; what could not be, and why."""
        rows = {place: place[1] for place in places}
        answer = self.call("elect_leaders", election_type=0, topic_partitions=_by_topic(rows, "topic", "partitions"))
        check(getattr(answer, "error_code", 0), None)
        return {
            (topic.topic, row.partition_id): row.error_message or ErrorCode(row.error_code).name
            for topic in answer.replica_election_results
            for row in topic.partition_result
            if row.error_code not in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)
        }

    def alter_configs(
        self, topics: dict[str, dict[str, str | None]], brokers: dict[int, dict[str, str | None]]
    ) -> None:
        """Sets settings of topics and brokers; None takes one back."""
        resources = [(_TOPIC, name, configs) for name, configs in topics.items()]
        resources += [(_BROKER, str(number), configs) for number, configs in brokers.items()]
        answer = self.call(
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
        for row in answer.responses:
            check(row.error_code, row.error_message)

    def cordon(self, number: int, *, lift: bool = False) -> None:
        """Sees to it that a broker gets no new replicas, or may get some again."""
        self.alter_configs({}, {number: {_CORDON: None if lift else _ALL_DIRECTORIES}})

    def unregister(self, number: int) -> None:
        answer = self.call("unregister_broker", broker_id=number)
        check(answer.error_code, answer.error_message)

    def upgrade_quorum(self) -> None:
        """From now on voters are what the log says, not what the files say."""
        update = {"feature": _QUORUM_FEATURE, "max_version_level": _DYNAMIC, "upgrade_type": 1}
        answer = self.call("update_features", timeout_ms=int(self._timeout * 1000), feature_updates=[update])
        check(answer.error_code, answer.error_message)
        for row in answer.results:
            check(row.error_code, row.error_message)

    def add_voter(self, number: int, directory_id: UUID, listener: str, host: str, port: int) -> None:
        answer = self.call(
            "add_raft_voter",
            cluster_id=None,
            timeout_ms=int(self._timeout * 1000),
            voter_id=number,
            voter_directory_id=directory_id,
            listeners=[{"name": listener, "host": host, "port": port}],
        )
        _check_dynamic(answer)

    def remove_voter(self, number: int, directory_id: UUID) -> None:
        answer = self.call("remove_raft_voter", cluster_id=None, voter_id=number, voter_directory_id=directory_id)
        _check_dynamic(answer)


def check(code: int, message: str | None) -> None:
    """Fails the command if the answer is a refusal."""
    if code:
        name = ErrorCode(code).name
        raise CommandFailedError(f"refused: {message} ({name})" if message else f"refused: {name}")


def _check_dynamic(answer: Message) -> None:
    if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
        raise CommandFailedError(
            "the voters of this quorum are those that controller.quorum.voters names: "
            "`millstream cluster quorum upgrade` lets them be changed while it runs"
        )
    check(answer.error_code, answer.error_message)


def _voters_first(node: QuorumNode) -> tuple[bool, int]:
    return not node.is_voter, node.id


def open_admin(bootstrap: str, timeout: float, settings: list[str] | None) -> ClusterAdmin:
    """The cluster that the shared options name."""
    from millstream.client.connection import Connection

    connection = Connection(bootstrap, assignments(settings, "-X"), timeout)
    connection.probe()
    return ClusterAdmin(connection)


def _by_topic(rows: "Mapping[Place, object]", name_field: str, rows_field: str) -> list[dict[str, object]]:
    topics: dict[str, list[object]] = {}
    for (topic, _), row in rows.items():
        topics.setdefault(topic, []).append(row)
    return [{name_field: topic, rows_field: found} for topic, found in topics.items()]
