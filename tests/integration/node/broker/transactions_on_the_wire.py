"""A transactional producer byte by byte, for tests: both transaction versions, and what a hanging one needs."""

import time
from typing import Any

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.formats.records.record import read_batches
from tests import wire as wires
from tests.waiting import TIMEOUT_SECONDS
from tests.wire import Wire, fetch_fields

PASSING = frozenset(
    (
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    )
)


class TransactionalProducer:
    """Talks to the coordinator over one connection and to a partition's leader over the same, or another."""

    def __init__(self, coordinator: Wire, name: str, *, adds: bool = True, leader: Wire | None = None) -> None:
        self.coordinator = coordinator
        self.leader = leader or coordinator
        self.name = name
        self.adds = adds
        """Whether Produce adds partitions by itself: transaction version 2."""
        self.sequences: dict[tuple[str, int], int] = {}
        coordinator.call("find_coordinator", 6, key_type=1, coordinator_keys=[name])  # makes the topic, if need be
        fields = {"transactional_id": name, "transaction_timeout_ms": 60_000, "producer_id": -1, "producer_epoch": -1}
        found = self._with_retries("init_producer_id", 5, **fields)
        self.producer_id, self.epoch = found.producer_id, found.producer_epoch

    def _with_retries(self, api: str, version: int, **fields: Any) -> Message:
        until = time.monotonic() + TIMEOUT_SECONDS
        while True:
            response = self.coordinator.call(api, version, **fields)
            if response.error_code not in PASSING or time.monotonic() > until:
                assert response.error_code == 0, ErrorCode(response.error_code)
                return response
            time.sleep(0.02)

    @property
    def _who(self) -> dict[str, Any]:
        return {"transactional_id": self.name, "producer_id": self.producer_id, "producer_epoch": self.epoch}

    def add(self, topic: str, *partitions: int) -> list[int]:
        """AddPartitionsToTxn, as the first transaction version does it."""
        who = {f"v3_and_below_{name}": value for name, value in self._who.items()}
        topics = [{"name": topic, "partitions": list(partitions)}]
        response = self.coordinator.call("add_partitions_to_txn", 3, v3_and_below_topics=topics, **who)
        return [row.partition_error_code for row in response.results_by_topic_v3_and_below[0].results_by_partition]

    def batch(self, topic: str, *values: bytes, partition: int = 0, sequence: int | None = None) -> bytes:
        first = self.sequences.get((topic, partition), 0) if sequence is None else sequence
        self.sequences[topic, partition] = first + len(values)
        return wires.batch(
            *values,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=first,
            transactional=True,
        )

    def fields(self, topic: str, partition: int, batch: bytes) -> dict[str, Any]:
        data = [{"name": topic, "partition_data": [{"index": partition, "records": batch}]}]
        return {"transactional_id": self.name, "acks": -1, "timeout_ms": 10_000, "topic_data": data}

    @property
    def produce_version(self) -> int:
        return 12 if self.adds else 10

    def send(self, topic: str, *values: bytes, partition: int = 0) -> Message:
        """One batch; what is only a matter of time is tried again."""
        batch = self.batch(topic, *values, partition=partition)
        until = time.monotonic() + TIMEOUT_SECONDS
        while True:
            response = self.leader.call("produce", self.produce_version, **self.fields(topic, partition, batch))
            row: Message = response.responses[0].partition_responses[0]
            if row.error_code not in PASSING or time.monotonic() > until:
                return row
            time.sleep(0.02)

    def put(self, topic: str, *values: bytes, partition: int = 0) -> int:
        """The offset of a batch that is accepted."""
        row = self.send(topic, *values, partition=partition)
        assert row.error_code == 0, (ErrorCode(row.error_code), row.error_message)
        offset: int = row.base_offset
        return offset

    def end(self, *, committed: bool) -> None:
        response = self._with_retries("end_txn", 5 if self.adds else 3, committed=committed, **self._who)
        if self.adds:
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
            self.sequences.clear()

    def commit(self) -> None:
        self.end(committed=True)

    def abort(self) -> None:
        self.end(committed=False)


def fetch_committed(wire: Wire, topic: str, offset: int = 0, partition: int = 0, **options: Any) -> Message:
    fields = fetch_fields([(topic, partition, offset)], **options) | {"isolation_level": 1}
    row: Message = wire.call("fetch", 12, **fields).responses[0].partitions[0]
    return row


def committed_values(wire: Wire, topic: str, partition: int = 0, start: int = 0) -> list[bytes]:
    """What a consumer with `read_committed` gets, from there to where it has to wait."""
    found: list[bytes] = []
    offset = start
    while True:
        row = fetch_committed(wire, topic, offset, partition)
        assert row.error_code == 0, ErrorCode(row.error_code)
        if not row.records:
            return found
        coming = sorted((each.first_offset, each.producer_id) for each in row.aborted_transactions)
        aborted: set[int] = set()
        for header, records in read_batches(row.records):
            while coming and coming[0][0] <= header.last_offset:
                aborted.add(coming.pop(0)[1])
            if header.is_control:
                aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                found += [record.value or b"" for record in records if record.offset >= offset]
            offset = max(offset, header.last_offset + 1)


def write_marker(
    wire: Wire,
    producer: tuple[int, int],
    topic: str,
    *partitions: int,
    committed: bool = False,
    coordinator_epoch: int = 0,
    version: int = 1,
    transaction_version: int = 0,
) -> list[int]:
    """WriteTxnMarkers, as a coordinator or an administrator sends it; the error of each partition."""
    marker = {
        "producer_id": producer[0],
        "producer_epoch": producer[1],
        "transaction_result": committed,
        "coordinator_epoch": coordinator_epoch,
        "transaction_version": transaction_version,
        "topics": [{"name": topic, "partition_indexes": list(partitions)}],
    }
    (row,) = wire.call("write_txn_markers", version, markers=[marker]).markers
    assert row.producer_id == producer[0]
    return [each.error_code for each in row.topics[0].partitions]


def producers(wire: Wire, topic: str, partition: int = 0) -> dict[int, Message]:
    """DescribeProducers: the producers of a partition by their ids."""
    topics = [{"name": topic, "partition_indexes": [partition]}]
    row = wire.call("describe_producers", 0, topics=topics).topics[0].partitions[0]
    assert row.error_code == 0, ErrorCode(row.error_code)
    return {each.producer_id: each for each in row.active_producers}


def end_offset(wire: Wire, topic: str, partition: int = 0, *, timestamp: int = -1, isolation: int = 1) -> Message:
    rows = [{"partition_index": partition, "timestamp": timestamp, "current_leader_epoch": -1}]
    topics = [{"name": topic, "partitions": rows}]
    response = wire.call("list_offsets", 7, replica_id=-1, isolation_level=isolation, topics=topics)
    row: Message = response.topics[0].partitions[0]
    return row
