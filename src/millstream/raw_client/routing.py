"""Leaders, coordinators and addresses of brokers: cached, and read again when they have changed."""

import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Any, NamedTuple
from uuid import UUID

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.raw_client.deadline import Deadline
from millstream.raw_client.errors import ConnectionLostError, RetriableError, WireError, error_code, refusal
from millstream.raw_client.model import NO_LEADER, Address, BrokerInfo, PartitionInfo, TopicInfo, TopicPartition
from millstream.raw_client.pool import ConnectionPool

UNKNOWN_TOPIC_GRACE_SECONDS = 5.0
"""A topic that is unknown for so long does not exist. A new topic takes a while to reach all brokers."""

MOVED = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Errors after which the leader must be read again."""


class Leader(NamedTuple):
    address: Address
    node_id: int
    epoch: int
    topic_id: UUID


class Routing:
    def __init__(self, bootstrap: Sequence[Address], pool: ConnectionPool) -> None:
        self._bootstrap = tuple(bootstrap)
        self._pool = pool
        self._lock = threading.Lock()
        self._brokers: dict[int, BrokerInfo] = {}
        self._topics: dict[str, TopicInfo] = {}
        self._doubted: set[str] = set()
        self._failed: dict[Address, float] = {}
        self._failures = 0
        self.cluster_id: str | None = None
        self.controller_id = -1

    # Brokers

    def call_any(self, api: str, fields: dict[str, Any], deadline: Deadline, at_most: int | None = None) -> Message:
        """Sends a request to any broker, first to those whose last failure is longest ago."""
        failures: list[ConnectionLostError] = []
        for address in self._candidates():
            try:
                return self._pool.call(address, api, fields, deadline, at_most)
            except ConnectionLostError as error:
                self.note_failure(address)
                failures.append(error)
        for failure in failures[:-1]:
            deadline.note(failure)
        raise failures[-1]

    def _candidates(self) -> list[Address]:
        with self._lock:
            known = [Address(each.host, each.port) for each in self._brokers.values()]
            every = list(dict.fromkeys((*known, *self._bootstrap)))
            return sorted(every, key=lambda address: self._failed.get(address, 0))

    def note_failure(self, address: Address) -> None:
        with self._lock:
            self._failures += 1
            self._failed[address] = self._failures

    def address_of(self, node_id: int, deadline: Deadline) -> Address:
        """The address of a broker. Reads the metadata if it is not known."""
        found = self._brokers.get(node_id)
        if found is None:
            self.refresh((), deadline)
            found = self._brokers.get(node_id)
        if found is None:
            raise RetriableError(f"broker {node_id} of the cluster", ErrorCode.BROKER_NOT_AVAILABLE)
        return Address(found.host, found.port)

    def brokers(self) -> list[BrokerInfo]:
        with self._lock:
            return [self._brokers[number] for number in sorted(self._brokers)]

    # Topics

    def refresh(self, names: Collection[str] | None, deadline: Deadline) -> dict[str, TopicInfo]:
        """Reads the metadata of these topics (None: all) and of the brokers. Topics that do not exist are absent."""
        rows = None if names is None else [{"name": name} for name in names]
        response = self.call_any("metadata", {"topics": rows, "allow_auto_topic_creation": False}, deadline)
        if response.error_code:
            raise RetriableError("the cluster's metadata", error_code(response.error_code))
        found: dict[str, TopicInfo] = {}
        for row in response.topics:
            code = error_code(row.error_code)
            if code in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
                found[row.name] = _topic(row)
            elif code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise refusal(f"topic {row.name!r}", code)
        with self._lock:
            if response.brokers:
                self._brokers = {
                    row.node_id: BrokerInfo(row.node_id, row.host, row.port, row.rack) for row in response.brokers
                }
            self.cluster_id = response.cluster_id
            self.controller_id = response.controller_id
            for name in list(self._topics) if names is None else names:
                if name not in found:
                    self._topics.pop(name, None)
            for name, topic in found.items():
                found[name] = self._topics[name] = _newest(self._topics.get(name), topic)
            self._doubted.difference_update(found)
        return found

    def forget(self, topic: str) -> None:
        """Marks the metadata of a topic as outdated: it is read again before its next use."""
        with self._lock:
            self._doubted.add(topic)

    def knows(self, topic: str) -> bool:
        return topic in self._topics and topic not in self._doubted

    def topic(self, name: str, deadline: Deadline) -> TopicInfo:
        """The topic as last known, or from the brokers. RetriableError at first if it does not exist."""
        found = None if name in self._doubted else self._topics.get(name)
        if found is None:
            found = self.refresh([name], deadline).get(name)
        if found is None:
            raise self.unknown(f"topic {name!r}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, deadline)
        return found

    def leader(self, topic_partition: TopicPartition, deadline: Deadline) -> Leader:
        """The leader of a partition; RetriableError while there is none."""
        topic = self.topic(topic_partition.topic, deadline)
        if topic_partition.partition < 0 or topic_partition.partition >= len(topic.partitions):
            self.forget(topic_partition.topic)
            name, index = topic_partition
            what = f"partition {index} of topic {name!r}, which has {len(topic.partitions)},"
            raise self.unknown(what, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, deadline)
        partition = topic.partitions[topic_partition.partition]
        broker = self._brokers.get(partition.leader)
        if partition.leader == NO_LEADER or broker is None:
            self.forget(topic_partition.topic)
            raise RetriableError(str(topic_partition), ErrorCode.LEADER_NOT_AVAILABLE)
        return Leader(Address(broker.host, broker.port), partition.leader, partition.leader_epoch, topic.topic_id)

    def lost(self, leader: Leader, topic: str) -> None:
        """The connection to a leader was lost: another broker may lead soon."""
        self.note_failure(leader.address)
        self.forget(topic)

    def classify(self, what: str, topic: str, code: ErrorCode, deadline: Deadline) -> WireError:
        """The error for an error code of a leader: retriable or not."""
        if code in MOVED:
            self.forget(topic)
            return RetriableError(what, code)
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self.forget(topic)
            return self.unknown(what, code, deadline)
        return RetriableError(what, code) if code.retriable else refusal(what, code)

    def unknown(self, what: str, code: ErrorCode, deadline: Deadline) -> WireError:
        """The error for an unknown topic: retriable at first, then final."""
        if deadline.elapsed_s < min(UNKNOWN_TOPIC_GRACE_SECONDS, deadline.timeout_s / 2):
            return RetriableError(what, code)
        return refusal(what, code)


def _topic(row: Message) -> TopicInfo:
    partitions = [
        PartitionInfo(
            each.partition_index, each.leader_id, each.leader_epoch, tuple(each.replica_nodes), tuple(each.isr_nodes)
        )
        for each in sorted(row.partitions, key=lambda each: int(each.partition_index))
    ]
    is_branch = row.branch_of is not None
    return TopicInfo(
        row.name,
        row.topic_id,
        partitions,
        row.is_internal,
        row.branch_of,
        row.branch_of_id if is_branch else None,
        tuple(row.branch_offsets),
    )


def _newest(known: TopicInfo | None, heard: TopicInfo) -> TopicInfo:
    """The newer of two states: a broker that is behind may report an older leader than the one known."""
    if known is None or known.topic_id != heard.topic_id:
        return heard
    older = {each.index: each for each in known.partitions if each.leader_epoch >= 0}
    partitions = [
        before if (before := older.get(each.index)) is not None and before.leader_epoch > each.leader_epoch else each
        for each in heard.partitions
    ]
    return replace(heard, partitions=partitions)


class CoordinatorKind(IntEnum):
    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


_MOVED = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})
_RETRIABLE = _MOVED | {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.CONCURRENT_TRANSACTIONS}


class Coordinators:
    def __init__(self, routing: Routing, pool: ConnectionPool) -> None:
        self._routing = routing
        self._pool = pool
        self._lock = threading.Lock()
        self._known: dict[tuple[str, CoordinatorKind], Address] = {}

    def call(
        self,
        key: str,
        kind: CoordinatorKind,
        api: str,
        fields: dict[str, Any],
        deadline: Deadline,
        at_most: int | None = None,
    ) -> Message:
        """One attempt; RetriableError while the coordinator is loading, moving, or ending the last transaction."""
        address = self.find(key, kind, deadline)
        try:
            response = self._pool.call(address, api, fields, deadline, at_most)
        except ConnectionLostError:
            self._routing.note_failure(address)
            self._forget(key, kind)
            raise
        code = retriable_code(response)
        if code is not None:
            if code in _MOVED:
                self._forget(key, kind)
            raise RetriableError(f"the coordinator of {_name(key, kind)}", code)
        return response

    def find(self, key: str, kind: CoordinatorKind, deadline: Deadline) -> Address:
        """The address of the coordinator, as last known."""
        known = self._known.get((key, kind))
        if known is not None:
            return known
        # Old versions have a field for one key, newer ones for several.
        fields = {"key": key, "key_type": int(kind), "coordinator_keys": [key]}
        response = self._routing.call_any("find_coordinator", fields, deadline)
        row = response.coordinators[0] if response.coordinators else response
        code = error_code(row.error_code)
        if code in _RETRIABLE:
            raise RetriableError(f"the coordinator of {_name(key, kind)}", code)
        if row.error_code:
            raise refusal(_name(key, kind), code)
        found = Address(row.host, row.port)
        with self._lock:
            self._known[key, kind] = found
        return found

    def _forget(self, key: str, kind: CoordinatorKind) -> None:
        with self._lock:
            self._known.pop((key, kind), None)


def retriable_code(response: Message) -> ErrorCode | None:
    """The first retriable error code of a coordinator in a response."""
    return next((code for code in codes_in(response) if code in _RETRIABLE), None)


def codes_in(response: Message) -> Iterator[ErrorCode]:
    """All error codes in a response, at any depth."""
    for name in response.__slots__:
        value = getattr(response, name)
        if name == "error_code":
            yield error_code(value)
        elif isinstance(value, Message):
            yield from codes_in(value)
        elif isinstance(value, list):
            for each in value:
                if isinstance(each, Message):
                    yield from codes_in(each)


def _name(key: str, kind: CoordinatorKind) -> str:
    return f"transactional id {key!r}" if kind is CoordinatorKind.TRANSACTION else f"group {key!r}"
