"""Transactions on the paths of records: produce, read_committed, offsets, markers and producers, on the raw wire."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.testing import EmbeddedBroker
from tests import wire as wires
from tests.integration.node.broker.test_share import Group
from tests.integration.node.broker.transactions_on_the_wire import (
    TransactionalProducer,
    committed_values,
    end_offset,
    fetch_committed,
    producers,
    write_marker,
)
from tests.waiting import TIMEOUT_SECONDS
from tests.wire import Wire, fetch_fields, values

BOTH_VERSIONS = pytest.mark.parametrize("adds", [False, True], ids=["version-1", "version-2"])


@pytest.fixture
def producer(wire: Wire, new_name: Callable[[], str]) -> TransactionalProducer:
    return TransactionalProducer(wire, new_name())


@pytest.fixture
def reader(broker: EmbeddedBroker) -> Iterator[Wire]:
    with Wire(broker.bootstrap_servers) as connected:
        yield connected


def eventually(attempt: Callable[[], bool], seconds: float = TIMEOUT_SECONDS) -> None:
    until = time.monotonic() + seconds
    while not attempt():
        assert time.monotonic() < until
        time.sleep(0.02)


# Produce


@BOTH_VERSIONS
def test_committed_records_are_seen_and_aborted_ones_are_not(
    wire: Wire, topic: str, new_name: Callable[[], str], adds: bool
) -> None:
    producer = TransactionalProducer(wire, new_name(), adds=adds)
    for number in range(6):
        if not adds:
            assert producer.add(topic, 0, 1) == [0, 0]
        producer.put(topic, b"a%d" % number, b"b%d" % number)
        producer.put(topic, b"c%d" % number, partition=1)
        producer.put(topic, b"d%d" % number)
        producer.end(committed=number % 3 != 1)
    expected = [b"%c%d" % (letter, number) for number in (0, 2, 3, 5) for letter in b"abd"]
    eventually(lambda: committed_values(wire, topic) == expected)
    assert committed_values(wire, topic, 1) == [b"c0", b"c2", b"c3", b"c5"]
    uncommitted = wire.fetch(topic)
    assert uncommitted.aborted_transactions is None
    assert {b"a1", b"b1", b"d1"} < set(values(uncommitted.records))


@BOTH_VERSIONS
def test_pipelined_requests_of_a_new_transaction_are_taken_in_order(
    wire: Wire, topic: str, new_name: Callable[[], str], adds: bool
) -> None:
    producer = TransactionalProducer(wire, new_name(), adds=adds)
    for _ in range(3):
        if not adds:
            assert producer.add(topic, 0) == [0]
        batches = [producer.batch(topic, b"%d" % number) for number in range(5)]
        for batch in batches:
            wire.send("produce", producer.produce_version, **producer.fields(topic, 0, batch))
        rows = [
            wire.receive("produce", producer.produce_version)[1].responses[0].partition_responses[0] for _ in batches
        ]
        if rows[0].error_code in (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS):
            pytest.skip("the coordinator took very long over the transaction before")
        assert [row.error_code for row in rows] == [0] * 5
        first = rows[0].base_offset
        assert [row.base_offset for row in rows] == list(range(first, first + 5))
        producer.commit()


def test_a_partition_that_was_not_added_is_refused_to_old_clients(
    wire: Wire, topic: str, new_name: Callable[[], str]
) -> None:
    producer = TransactionalProducer(wire, new_name(), adds=False)
    assert producer.send(topic, b"x").error_code == ErrorCode.INVALID_TXN_STATE
    assert producer.add(topic, 1) == [0]
    assert producer.send(topic, b"x").error_code == ErrorCode.INVALID_TXN_STATE
    assert producer.add(topic, 0) == [0]
    producer.sequences.clear()
    producer.put(topic, b"y")
    assert wire.fetch(topic).high_watermark == 1


def test_a_client_that_knows_of_it_is_told_to_abort(wire: Wire, topic: str, new_name: Callable[[], str]) -> None:
    producer = TransactionalProducer(wire, new_name(), adds=False)
    response = wire.call("produce", 11, **producer.fields(topic, 0, producer.batch(topic, b"x")))
    assert response.responses[0].partition_responses[0].error_code == ErrorCode.TRANSACTION_ABORTABLE


@BOTH_VERSIONS
def test_a_zombie_is_fenced(wire: Wire, topic: str, new_name: Callable[[], str], adds: bool) -> None:
    name = new_name()
    zombie = TransactionalProducer(wire, name, adds=adds)
    if not adds:
        zombie.add(topic, 0)
    zombie.put(topic, b"of the zombie")
    heir = TransactionalProducer(wire, name, adds=adds)
    eventually(lambda: end_offset(wire, topic).offset == 2)
    assert zombie.send(topic, b"late").error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    if not adds:
        heir.add(topic, 0)
    heir.put(topic, b"of the heir")
    heir.commit()
    eventually(lambda: committed_values(wire, topic) == [b"of the heir"])


def test_a_transactional_id_no_one_knows_and_a_wrong_producer(
    wire: Wire, topic: str, new_name: Callable[[], str]
) -> None:
    producer = TransactionalProducer(wire, new_name())
    producer.producer_id += 1000
    assert producer.send(topic, b"x").error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    producer.name = new_name()
    assert producer.send(topic, b"x").error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert wire.fetch(topic).high_watermark == 0


def test_a_transactional_batch_needs_an_id_and_all_replicas(
    wire: Wire, topic: str, producer: TransactionalProducer
) -> None:
    batch = producer.batch(topic, b"x", sequence=0)
    refused = wire.produce(topic, batch)
    assert refused.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    response = wire.call("produce", 12, **producer.fields(topic, 0, batch) | {"acks": 1})
    assert response.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_REQUIRED_ACKS


def test_a_client_that_leaves_while_it_waits_hurts_no_one(
    broker: EmbeddedBroker, wire: Wire, topic: str, producer: TransactionalProducer
) -> None:
    with Wire(broker.bootstrap_servers) as gone:
        gone.send("produce", 12, **producer.fields(topic, 0, producer.batch(topic, b"left behind")))
    eventually(lambda: wire.fetch(topic).high_watermark == 1)
    producer.put(topic, b"and on")
    producer.commit()
    eventually(lambda: committed_values(wire, topic) == [b"left behind", b"and on"])


# Reading


def test_the_last_stable_offset_holds_back_what_is_not_decided(
    wire: Wire, topic: str, producer: TransactionalProducer, new_name: Callable[[], str]
) -> None:
    wire.produce(topic, wires.batch(b"before"))
    producer.put(topic, b"in the transaction")
    wire.produce(topic, wires.batch(b"after"))
    other = TransactionalProducer(wire, new_name())
    other.put(topic, b"aborted")
    other.abort()
    eventually(lambda: wire.fetch(topic).high_watermark == 5)
    row = fetch_committed(wire, topic)
    assert (row.high_watermark, row.last_stable_offset, row.aborted_transactions) == (5, 1, [])
    assert values(row.records) == [b"before"]
    assert wire.fetch(topic).last_stable_offset == 1
    beyond = fetch_committed(wire, topic, 3)
    assert (beyond.error_code, beyond.records or b"", beyond.aborted_transactions) == (0, b"", [])
    producer.commit()
    eventually(lambda: fetch_committed(wire, topic).last_stable_offset == 6)
    row = fetch_committed(wire, topic)
    assert [(each.producer_id, each.first_offset) for each in row.aborted_transactions] == [(other.producer_id, 3)]
    assert committed_values(wire, topic) == [b"before", b"in the transaction", b"after"]
    assert fetch_committed(wire, topic, 5).aborted_transactions == []


@pytest.mark.parametrize("version", [4, 5, 11, 13, 18])
def test_all_versions_tell_what_was_aborted(
    wire: Wire, topic: str, producer: TransactionalProducer, version: int
) -> None:
    producer.put(topic, b"aborted")
    producer_id = producer.producer_id
    producer.abort()
    eventually(lambda: end_offset(wire, topic).offset == 2)
    topic_id = wire.call("metadata", 12, topics=[{"name": topic}]).topics[0].topic_id
    by_id = version >= 13
    fields = fetch_fields([(topic_id if by_id else topic, 0, 0)], by_id=by_id) | {"isolation_level": 1}
    if version >= 15:
        fields.pop("replica_id")
    row = wire.call("fetch", version, **fields).responses[0].partitions[0]
    assert [(each.producer_id, each.first_offset) for each in row.aborted_transactions] == [(producer_id, 0)]
    assert row.last_stable_offset == 2


def test_a_waiting_reader_is_woken_by_the_marker_and_not_by_what_it_may_not_read(
    wire: Wire, reader: Wire, topic: str, producer: TransactionalProducer
) -> None:
    producer.put(topic, b"first")
    fields = fetch_fields([(topic, 0, 0)], max_wait_ms=20_000) | {"isolation_level": 1}
    reader.send("fetch", 12, **fields)
    producer.put(topic, b"second")
    wire.produce(topic, wires.batch(b"plain"))
    reader.socket.settimeout(0.3)
    with pytest.raises(TimeoutError):
        reader.socket.recv(1)
    reader.socket.settimeout(TIMEOUT_SECONDS)
    producer.commit()
    _, response = reader.receive("fetch", 12)
    row = response.responses[0].partitions[0]
    assert row.last_stable_offset == 4 and values(row.records)[:3] == [b"first", b"second", b"plain"]


def test_a_session_hears_when_the_last_stable_offset_moves(
    wire: Wire, reader: Wire, topic: str, producer: TransactionalProducer
) -> None:
    producer.put(topic, b"x")
    committed = {"isolation_level": 1}
    response = reader.call("fetch", 12, **fetch_fields([(topic, 0, 0)], session_epoch=0) | committed)
    assert response.responses[0].partitions[0].last_stable_offset == 0
    quiet = fetch_fields([], session_id=response.session_id, session_epoch=1) | committed
    assert reader.call("fetch", 12, **quiet).responses == []
    producer.commit()
    waiting = fetch_fields([], session_id=response.session_id, session_epoch=2, max_wait_ms=20_000) | committed
    row = reader.call("fetch", 12, **waiting).responses[0].partitions[0]
    assert row.last_stable_offset == 2 and values(row.records)[:1] == [b"x"]


def test_offsets_as_read_committed_sees_them(wire: Wire, topic: str, producer: TransactionalProducer) -> None:
    hour = 3_600_000
    wire.produce(topic, wires.batch(b"old", timestamp=wires.now_ms() - hour))
    producer.put(topic, b"open")
    now = wires.now_ms() - 60_000
    assert [end_offset(wire, topic, isolation=level).offset for level in (0, 1)] == [2, 1]
    assert end_offset(wire, topic, timestamp=now, isolation=0).offset == 1
    assert end_offset(wire, topic, timestamp=now, isolation=1).offset == -1
    assert end_offset(wire, topic, timestamp=now - 2 * hour, isolation=1).offset == 0
    assert end_offset(wire, topic, timestamp=-3, isolation=0).offset == 1
    assert end_offset(wire, topic, timestamp=-3, isolation=1).offset == -1
    producer.commit()
    eventually(lambda: end_offset(wire, topic).offset == 3)
    assert end_offset(wire, topic, timestamp=now).offset == 1


def test_deleting_records_of_an_open_transaction(wire: Wire, topic: str, producer: TransactionalProducer) -> None:
    producer.put(topic, b"a", b"b", b"c")
    rows = [{"partition_index": 0, "offset": 2}]
    response = wire.call("delete_records", 2, topics=[{"name": topic, "partitions": rows}], timeout_ms=5000)
    assert response.topics[0].partitions[0].low_watermark == 2
    row = fetch_committed(wire, topic, 2)
    assert (row.log_start_offset, row.last_stable_offset, row.records or b"") == (2, 2, b"")
    producer.commit()
    eventually(lambda: committed_values(wire, topic, start=2) == [b"c"])


# Markers and producers


def test_a_hanging_transaction_is_found_and_aborted(wire: Wire, topic: str, producer: TransactionalProducer) -> None:
    producer.put(topic, b"hanging", partition=1)
    found = producers(wire, topic, 1)[producer.producer_id]
    assert (found.producer_epoch, found.last_sequence, found.current_txn_start_offset) == (producer.epoch, 0, 0)
    assert abs(found.last_timestamp - wires.now_ms()) < 60_000
    who = (producer.producer_id, found.producer_epoch)
    same_epoch = write_marker(wire, who, topic, 1, version=2, transaction_version=2)
    assert same_epoch == [ErrorCode.INVALID_PRODUCER_EPOCH], (
        "with the second transaction version markers have a new one"
    )
    assert write_marker(wire, who, topic, 1, coordinator_epoch=max(found.coordinator_epoch, 0)) == [0]
    assert producers(wire, topic, 1)[producer.producer_id].current_txn_start_offset == -1
    assert end_offset(wire, topic, 1).offset == 2
    assert committed_values(wire, topic, 1) == []
    assert write_marker(wire, who, topic, 1) == [0], "once more does no harm"


def test_markers_that_are_refused(wire: Wire, topic: str) -> None:
    batch = wires.batch(b"x", producer_id=991, producer_epoch=5, base_sequence=0)
    assert wire.produce(topic, batch).error_code == 0
    assert write_marker(wire, (991, 4), topic, 0) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert write_marker(wire, (991, 5), topic, 0) == [0]
    fenced = write_marker(wire, (991, 5), topic, 0, coordinator_epoch=-1)
    assert fenced == [ErrorCode.TRANSACTION_COORDINATOR_FENCED]
    beyond = write_marker(wire, (991, 5), topic, 0, coordinator_epoch=2**31 - 1)
    assert beyond == [ErrorCode.NOT_LEADER_OR_FOLLOWER], "no coordinator has this epoch"
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert write_marker(wire, (991, 5), topic, 0, 7) == [0, unknown]
    assert write_marker(wire, (-1, 5), topic, 0) == [ErrorCode.INVALID_REQUEST]
    assert write_marker(wire, (991, -1), topic, 0) == [ErrorCode.INVALID_REQUEST]
    assert write_marker(wire, (991, 6), topic, 0, version=2, transaction_version=2) == [0]


def test_several_markers_in_a_request(wire: Wire, topic: str) -> None:
    markers = [
        {
            "producer_id": producer_id,
            "producer_epoch": 0,
            "transaction_result": True,
            "coordinator_epoch": 0,
            "topics": [{"name": topic, "partition_indexes": partitions}],
        }
        for producer_id, partitions in ((995, [0]), (996, [0, 5]), (995, [1]))
    ]
    rows = wire.call("write_txn_markers", 1, markers=markers).markers
    told = {
        row.producer_id: {each.partition_index: each.error_code for each in row.topics[0].partitions} for row in rows
    }
    assert told == {995: {0: 0, 1: 0}, 996: {0: 0, 5: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}}


def test_describing_producers_of_what_is_not_there(wire: Wire, topic: str, new_name: Callable[[], str]) -> None:
    topics = [{"name": topic, "partition_indexes": [0, 9]}, {"name": new_name(), "partition_indexes": [0]}]
    response = wire.call("describe_producers", 0, topics=topics)
    errors = [[row.error_code for row in each.partitions] for each in response.topics]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert errors == [[0, unknown], [unknown]]


def test_a_partition_is_described_once_however_often_it_is_named(wire: Wire, topic: str) -> None:
    """Unlike in Kafka: the response would be far longer than the request."""
    response = wire.call("describe_producers", 0, topics=[{"name": topic, "partition_indexes": [1, 0, 1]}])
    assert [row.partition_index for row in response.topics[0].partitions] == [1, 0]


# Share groups


@pytest.fixture
def queue(wire: Wire, topic: str, new_name: Callable[[], str]) -> Group:
    member = Group(wire, topic, new_name())
    settings = {"share.auto.offset.reset": "earliest", "share.isolation.level": "read_committed"}
    assert member.configure(**settings) == 0
    return member


def acquired(response: Any) -> list[int]:
    rows = [row for topic in response.responses for row in topic.partitions]
    return [
        offset
        for row in rows
        for each in row.acquired_records
        for offset in range(each.first_offset, each.last_offset + 1)
    ]


def test_a_queue_gets_committed_records_only(queue: Group, topic: str, producer: TransactionalProducer) -> None:
    producer.put(topic, b"aborted", b"aborted too")  # 0, 1
    producer.abort()  # 2
    producer.put(topic, b"committed", b"and another")  # 3, 4
    assert acquired(queue.fetch(max_wait_ms=0)) == []
    queue.wire.produce(topic, wires.batch(b"plain"))  # 5
    assert acquired(queue.fetch(max_wait_ms=0)) == []
    producer.commit()  # 6
    assert acquired(queue.fetch(max_wait_ms=20_000)) == [3, 4, 5]
    producer.put(topic, b"open")  # 7
    assert acquired(queue.fetch((3, 5, [1]), max_wait_ms=0)) == []
    producer.abort()  # 8
    queue.wire.produce(topic, wires.batch(b"last"))  # 9
    assert acquired(queue.fetch(max_wait_ms=20_000)) == [9]


def test_a_queue_that_begins_to_read_only_what_is_committed(
    queue: Group, topic: str, producer: TransactionalProducer
) -> None:
    assert queue.configure(**{"share.isolation.level": "read_uncommitted"}) == 0
    producer.put(topic, b"to be aborted")  # 0
    assert acquired(queue.fetch(max_wait_ms=20_000)) == [0]
    assert queue.configure(**{"share.isolation.level": "read_committed"}) == 0
    producer.abort()  # 1
    queue.wire.produce(topic, wires.batch(b"plain"))  # 2
    eventually(lambda: end_offset(queue.wire, topic).offset == 3)
    with contextlib.suppress(AssertionError):
        queue.acknowledge((0, 0, [2]))  # released: it is handed out to no one any more
    assert acquired(queue.fetch(max_wait_ms=20_000)) == [2]


@pytest.mark.parametrize("setting", ["share.key.order"])
def test_a_queue_whose_records_are_looked_at(
    queue: Group, topic: str, producer: TransactionalProducer, setting: str
) -> None:
    assert queue.configure(**{setting: "true"}) == 0
    producer.put(topic, b"aborted")  # 0
    producer.abort()  # 1
    producer.put(topic, b"committed")  # 2
    producer.commit()  # 3
    assert acquired(queue.fetch(max_wait_ms=20_000)) == [2]
