"""Transactions as the command line sees them: what coordinators know of them, what partitions do, and ending them.

librdkafka has no admin calls for these, so they go over the wire room.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from millstream.cli import exit_codes
from millstream.cli.cluster_reading import Broker, ClusterAdmin, Partition, Place, check
from millstream.cli.terminal import CommandFailedError
from millstream.cli.wire_cluster import wire_cluster
from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message

if TYPE_CHECKING:
    from millstream.client.connection import Connection

STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead")
_OPEN_STATES = frozenset(("Ongoing", "PrepareCommit", "PrepareAbort"))
NOT_OPEN = -1
_FENCING_TIMEOUT_MS = 1
"""Of the transactions of a producer that only comes to fence another one: it has none."""
_PARTITIONS_PER_REQUEST = 500
_AS_WRITTEN = 0
"""The transaction version of a marker that has the epoch of the records it ends, as only older versions do."""


@dataclass(frozen=True, slots=True)
class Listed:
    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class Transaction:
    """As its coordinator knows it."""

    transactional_id: str
    coordinator: str
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    started_ms: int | None
    """When the transaction that is open began."""
    partitions: Sequence[Place] = field(default_factory=tuple)
    """Those that wait for the transaction's end, or its marker."""

    @property
    def is_open(self) -> bool:
        return self.state in _OPEN_STATES


@dataclass(frozen=True, slots=True)
class OpenIn:
    """An open transaction as one partition knows it."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_written_ms: int

    @property
    def place(self) -> Place:
        return self.topic, self.partition


class Transactions:
    def __init__(self, connection: "Connection") -> None:
        self._wire = wire_cluster(connection)
        self._cluster = ClusterAdmin(connection)

    # What coordinators know

    def listed(
        self,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        older_than_ms: int = -1,
        pattern: str | None = None,
    ) -> list[Listed]:
        found: dict[str, Listed] = {}
        answers = self._wire.call_every_broker(
            "list_transactions",
            state_filters=list(states),
            producer_id_filters=list(producer_ids),
            duration_filter=older_than_ms,
            transactional_id_pattern=pattern,
        )
        for broker, answer in answers.items():
            if answer.unknown_state_filters:
                raise CommandFailedError(
                    f"there is no state {', '.join(answer.unknown_state_filters)}; there are {', '.join(STATES)}",
                    exit_codes.USAGE,
                )
            if answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION:
                raise CommandFailedError(f"--match {pattern}: not a regular expression", exit_codes.USAGE)
            check(answer.error_code, None)
            for row in answer.transaction_states:
                found[row.transactional_id] = Listed(
                    row.transactional_id, broker, row.producer_id, row.transaction_state
                )
        return [found[name] for name in sorted(found)]

    def describe(self, transactional_id: str) -> Transaction | None:
        """None if its coordinator does not know it."""
        answer = self._ask_coordinator(transactional_id, "describe_transactions", transactional_ids=[transactional_id])
        row = answer.transaction_states[0]
        if row.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return None
        check(row.error_code, None)
        return Transaction(
            transactional_id,
            self._coordinator_of(transactional_id),
            row.producer_id,
            row.producer_epoch,
            row.transaction_state,
            row.transaction_timeout_ms,
            row.transaction_start_time_ms if row.transaction_state in _OPEN_STATES else None,
            tuple(sorted((topic.topic, number) for topic in row.topics for number in topic.partitions)),
        )

    # What partitions know

    def partitions(
        self, topic: str | None = None, number: int | None = None, broker: int | None = None
    ) -> list[Partition]:
        """Those that are led, as far as they are asked for."""
        found = [
            each
            for each in self._cluster.partitions()
            if (topic is None or each.topic == topic) and (number is None or each.number == number)
        ]
        if topic is not None and not found:
            wanted = topic if number is None else f"{topic}-{number}"
            raise CommandFailedError(f"there is no {wanted}", exit_codes.NOT_FOUND)
        if broker is not None and all(each.id != broker for each in self._cluster.brokers()[1]):
            raise CommandFailedError(f"there is no broker {broker}", exit_codes.NOT_FOUND)
        return [each for each in found if not each.is_offline and broker in (None, each.leader)]

    def open_in(self, partitions: Iterable[Partition]) -> list[OpenIn]:
        """All transactions that are open in these partitions, asked of their leaders."""
        live = {broker.id for broker in self._live_brokers()}
        by_leader: dict[int, list[Partition]] = {}
        for each in partitions:
            by_leader.setdefault(each.leader, []).append(each)
        found: list[OpenIn] = []
        for leader, led in sorted(by_leader.items()):
            if leader not in live:
                raise CommandFailedError(f"broker {leader} leads partitions but is not there", exit_codes.NO_BROKER)
            for at in range(0, len(led), _PARTITIONS_PER_REQUEST):
                found += self._open_at(leader, led[at : at + _PARTITIONS_PER_REQUEST])
        return sorted(found, key=lambda row: (row.topic, row.partition, row.start_offset))

    def hanging(self, candidates: Sequence[OpenIn]) -> list[OpenIn]:
        """Those of which no coordinator knows, so that nobody will ever end them."""
        if not candidates:
            return []
        known: dict[int, set[Place]] = {}
        for row in self.listed(producer_ids=sorted({each.producer_id for each in candidates})):
            transaction = self.describe(row.transactional_id)
            if transaction is not None:
                known.setdefault(row.producer_id, set()).update(transaction.partitions)
        # One that went its way while we looked is in no partition any more.
        still = set(self.open_in({each.place: self._partition(each.place) for each in candidates}.values()))
        return [each for each in candidates if each in still and each.place not in known.get(each.producer_id, ())]

    def _partition(self, place: Place) -> Partition:
        (found,) = self.partitions(*place)
        return found

    # Ending them

    def fence(self, transactional_id: str) -> None:
        """Aborts the transaction of this id, and fences its producer."""
        answer = self._ask_coordinator(
            transactional_id,
            "init_producer_id",
            transactional_id=transactional_id,
            transaction_timeout_ms=_FENCING_TIMEOUT_MS,
            producer_id=-1,
            producer_epoch=-1,
        )
        check(answer.error_code, None)

    def abort_in(self, hanging: OpenIn) -> None:
        """Writes the marker that nobody else will."""
        marker = {
            "producer_id": hanging.producer_id,
            "producer_epoch": hanging.producer_epoch,
            "transaction_result": False,
            "topics": [{"name": hanging.topic, "partition_indexes": [hanging.partition]}],
            "coordinator_epoch": max(0, hanging.coordinator_epoch),
            "transaction_version": _AS_WRITTEN,
        }
        leader = self._partition(hanging.place).leader
        answer = self._wire.call("write_txn_markers", node=leader, once=True, markers=[marker])
        check(answer.markers[0].topics[0].partitions[0].error_code, None)

    def _live_brokers(self) -> list[Broker]:
        return [broker for broker in self._cluster.brokers()[1] if not broker.fenced]

    def _coordinator_of(self, transactional_id: str) -> str:
        from millstream.raw_client import CoordinatorKind

        return str(self._wire.coordinator_of(transactional_id, CoordinatorKind.TRANSACTION))

    def _ask_coordinator(self, key: str, api: str, **fields: Any) -> Message:
        from millstream.raw_client import CoordinatorKind

        return self._wire.call_coordinator(key, CoordinatorKind.TRANSACTION, api, **fields)

    def _open_at(self, leader: int, partitions: Sequence[Partition]) -> list[OpenIn]:
        topics: dict[str, list[int]] = {}
        for each in partitions:
            topics.setdefault(each.topic, []).append(each.number)
        rows = [{"name": name, "partition_indexes": numbers} for name, numbers in topics.items()]
        return _open_transactions(self._wire.call("describe_producers", node=leader, once=True, topics=rows))


def _open_transactions(producers: Message) -> list[OpenIn]:
    found: list[OpenIn] = []
    for topic in producers.topics:
        for row in topic.partitions:
            if row.error_code:
                reason = row.error_message or ErrorCode(row.error_code).name
                raise CommandFailedError(f"{topic.name}-{row.partition_index}: {reason}. Try again.")
            found += [
                OpenIn(
                    topic.name,
                    row.partition_index,
                    producer.producer_id,
                    producer.producer_epoch,
                    producer.coordinator_epoch,
                    producer.current_txn_start_offset,
                    producer.last_timestamp,
                )
                for producer in row.active_producers
                if producer.current_txn_start_offset != NOT_OPEN
            ]
    return found


def now_ms() -> int:
    return int(time.time() * 1000)
