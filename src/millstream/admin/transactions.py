"""Transactions: what coordinators and partitions know of them, hanging transactions, and aborting them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from millstream.admin.cluster import ClusterAdmin, Partition
from millstream.admin.errors import InvalidArgumentError, NotFoundError, check
from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.raw_client import Cluster, CoordinatorKind, TopicPartition, UnreachableError
from millstream.raw_client.errors import error_code, refusal

STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead")
_OPEN_STATES = frozenset(("Ongoing", "PrepareCommit", "PrepareAbort"))
_NOT_OPEN = -1
_FENCING_TIMEOUT_MS = 1
"""Transaction timeout of the producer that only fences another one. It has no transactions."""
_PARTITIONS_PER_REQUEST = 500
_MARKER_VERSION = 0
"""Transaction version of a marker with the epoch of the records that it ends, as in the older versions."""


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id in a list."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id as its coordinator knows it."""

    transactional_id: str
    coordinator: str
    """HOST:PORT."""
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    started_ms: int | None
    """Start of the open transaction, None if there is none."""
    partitions: Sequence[TopicPartition] = field(default_factory=tuple)
    """Partitions of the open transaction, or those whose marker is not written yet."""

    @property
    def is_open(self) -> bool:
        return self.state in _OPEN_STATES


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """An open transaction as the leader of a partition knows it."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_written_ms: int


class TransactionAdmin:
    """Reads and aborts transactions. Thread safe; every method may raise WireError."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._admin = ClusterAdmin(cluster, attempts=1)

    # What coordinators know

    def transactions(
        self,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        older_than_ms: int = -1,
        pattern: str | None = None,
    ) -> list[TransactionListing]:
        """Transactional ids of all coordinators, by id. `pattern` is a regular expression (RE2) for the whole id."""
        found: dict[str, TransactionListing] = {}
        responses = self._cluster.call_every_broker(
            "list_transactions",
            state_filters=list(states),
            producer_id_filters=list(producer_ids),
            duration_filter=older_than_ms,
            transactional_id_pattern=pattern,
        )
        for broker, response in responses.items():
            if response.unknown_state_filters:
                unknown = ", ".join(response.unknown_state_filters)
                raise InvalidArgumentError(f"there is no state {unknown}; the states are {', '.join(STATES)}")
            if response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION:
                raise InvalidArgumentError(f"{pattern} is not a regular expression")
            check("the list of transactions", response)
            for row in response.transaction_states:
                found[row.transactional_id] = TransactionListing(
                    row.transactional_id, broker, row.producer_id, row.transaction_state
                )
        return [found[name] for name in sorted(found)]

    def find(self, transactional_id: str) -> Transaction | None:
        """The transactional id as its coordinator knows it; None if it does not."""
        response = self._cluster.call_coordinator(
            transactional_id,
            CoordinatorKind.TRANSACTION,
            "describe_transactions",
            transactional_ids=[transactional_id],
        )
        row = response.transaction_states[0]
        if row.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return None
        check(f"transactional id {transactional_id!r}", row)
        return Transaction(
            transactional_id,
            str(self._cluster.coordinator_of(transactional_id, CoordinatorKind.TRANSACTION)),
            row.producer_id,
            row.producer_epoch,
            row.transaction_state,
            row.transaction_timeout_ms,
            row.transaction_start_time_ms if row.transaction_state in _OPEN_STATES else None,
            tuple(sorted(TopicPartition(topic.topic, index) for topic in row.topics for index in topic.partitions)),
        )

    # What partitions know

    def partitions(
        self, topic: str | None = None, index: int | None = None, broker: int | None = None
    ) -> list[Partition]:
        """Partitions with a leader: all, or those of a topic, of an index in it, or led by a broker."""
        found = [
            each
            for each in self._admin.partitions()
            if (topic is None or each.topic == topic) and (index is None or each.index == index)
        ]
        if topic is not None and not found:
            raise NotFoundError(f"there is no {'topic ' + topic if index is None else f'partition {topic}-{index}'}")
        if broker is not None and all(each.id != broker for each in self._admin.describe().brokers):
            raise NotFoundError(f"there is no broker {broker}")
        return [each for each in found if not each.is_offline and broker in (None, each.leader)]

    def open_in(self, partitions: Iterable[Partition]) -> list[OpenTransaction]:
        """The transactions that are open in these partitions, as their leaders report them."""
        live = {broker.id for broker in self._admin.describe().brokers if not broker.fenced}
        by_leader: dict[int, list[Partition]] = {}
        for each in partitions:
            by_leader.setdefault(each.leader, []).append(each)
        found: list[OpenTransaction] = []
        for leader, led in sorted(by_leader.items()):
            if leader not in live:
                raise UnreachableError(f"broker {leader} leads partitions but is not running")
            for at in range(0, len(led), _PARTITIONS_PER_REQUEST):
                found += self._open_on(leader, led[at : at + _PARTITIONS_PER_REQUEST])
        return sorted(found, key=lambda row: (row.partition, row.start_offset))

    def hanging(self, candidates: Sequence[OpenTransaction]) -> list[OpenTransaction]:
        """Those that no coordinator knows. They stay open until `abort_in` ends them."""
        if not candidates:
            return []
        known: dict[int, set[TopicPartition]] = {}
        for row in self.transactions(producer_ids=sorted({each.producer_id for each in candidates})):
            transaction = self.find(row.transactional_id)
            if transaction is not None:
                known.setdefault(row.producer_id, set()).update(transaction.partitions)
        # A transaction that has ended in the meantime is not open in its partition any more.
        partitions = {each.partition: self._partition(each.partition) for each in candidates}
        still_open = set(self.open_in(partitions.values()))
        return [
            each for each in candidates if each in still_open and each.partition not in known.get(each.producer_id, ())
        ]

    def _partition(self, partition: TopicPartition) -> Partition:
        found = self.partitions(*partition)
        if not found:
            raise refusal(str(partition), ErrorCode.LEADER_NOT_AVAILABLE)
        return found[0]

    def _open_on(self, leader: int, partitions: Sequence[Partition]) -> list[OpenTransaction]:
        topics: dict[str, list[int]] = {}
        for each in partitions:
            topics.setdefault(each.topic, []).append(each.index)
        rows = [{"name": name, "partition_indexes": indexes} for name, indexes in topics.items()]
        return _open_transactions(self._cluster.call("describe_producers", node=leader, once=True, topics=rows))

    # Aborting

    def abort(self, transactional_id: str) -> None:
        """Aborts the transaction of this id in all its partitions, and fences its producer."""
        response = self._cluster.call_coordinator(
            transactional_id,
            CoordinatorKind.TRANSACTION,
            "init_producer_id",
            transactional_id=transactional_id,
            transaction_timeout_ms=_FENCING_TIMEOUT_MS,
            producer_id=-1,
            producer_epoch=-1,
        )
        check(f"transactional id {transactional_id!r}", response)

    def abort_in(self, hanging: OpenTransaction) -> None:
        """Aborts a hanging transaction in its partition, by writing the marker that no coordinator will write."""
        marker = {
            "producer_id": hanging.producer_id,
            "producer_epoch": hanging.producer_epoch,
            "transaction_result": False,
            "topics": [{"name": hanging.partition.topic, "partition_indexes": [hanging.partition.partition]}],
            "coordinator_epoch": max(0, hanging.coordinator_epoch),
            "transaction_version": _MARKER_VERSION,
        }
        leader = self._partition(hanging.partition).leader
        response = self._cluster.call("write_txn_markers", node=leader, once=True, markers=[marker])
        check(str(hanging.partition), response.markers[0].topics[0].partitions[0])


def _open_transactions(producers: Message) -> list[OpenTransaction]:
    found: list[OpenTransaction] = []
    for topic in producers.topics:
        for row in topic.partitions:
            partition = TopicPartition(topic.name, row.partition_index)
            if row.error_code:
                raise refusal(str(partition), error_code(row.error_code), row.error_message)
            found += [
                OpenTransaction(
                    partition,
                    producer.producer_id,
                    producer.producer_epoch,
                    producer.coordinator_epoch,
                    producer.current_txn_start_offset,
                    producer.last_timestamp,
                )
                for producer in row.active_producers
                if producer.current_txn_start_offset != _NOT_OPEN
            ]
    return found
