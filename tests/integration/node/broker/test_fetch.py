"""Fetch: long polls, limits, positions out of range, epochs, and sessions over the wire."""

import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.testing import EmbeddedBroker
from tests.waiting import TIMEOUT_SECONDS
from tests.wire import Wire, batch, fetch_fields, values

BATCH = batch(bytes(1000))


@pytest.fixture
def filled(wire: Wire, topic: str) -> str:
    """A topic whose partition 0 has ten batches of one record each."""
    for _ in range(10):
        assert wire.produce(topic, BATCH).error_code == 0
    return topic


@pytest.fixture
def other(broker: EmbeddedBroker) -> Iterator[Wire]:
    with Wire(broker.bootstrap_servers) as connected:
        yield connected


@pytest.mark.parametrize("version", [4, 5, 7, 9, 11, 12])
def test_fetch_begins_at_any_offset(wire: Wire, filled: str, version: int) -> None:
    for offset in (0, 1, 9):
        row = wire.fetch(filled, offset, version=version)
        assert (row.error_code, row.high_watermark, len(values(row.records))) == (0, 10, 10 - offset)


@pytest.mark.parametrize("version", [13, 15, 18])
def test_fetch_finds_topics_by_id(wire: Wire, new_name: Callable[[], str], version: int) -> None:
    topic_id, unknown = wire.create_topic(new_name()), uuid4()
    fields = fetch_fields([(topic_id, 0, 0), (topic_id, 7, 0), (unknown, 0, 0)], by_id=True)
    first, second = wire.call("fetch", version, **fields).responses
    assert [row.error_code for row in first.partitions] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert (second.topic_id, second.partitions[0].error_code) == (unknown, ErrorCode.UNKNOWN_TOPIC_ID)


@pytest.mark.parametrize("offset", [-1, 11, 2**62, -(2**63)])
def test_an_offset_out_of_range(wire: Wire, filled: str, offset: int) -> None:
    row = wire.fetch(filled, offset)
    assert row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert row.records in (None, b"")


def test_at_the_end_there_is_nothing_and_no_error(wire: Wire, filled: str) -> None:
    row = wire.fetch(filled, 10)
    assert (row.error_code, row.high_watermark, row.log_start_offset, row.records) == (0, 10, 0, b"")


def test_fetch_checks_the_leader_epoch(wire: Wire, filled: str) -> None:
    assert wire.fetch(filled, leader_epoch=0).error_code == 0
    assert wire.fetch(filled, leader_epoch=5).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert wire.fetch(filled, leader_epoch=-2).error_code == ErrorCode.FENCED_LEADER_EPOCH


# Waiting


def test_a_partition_that_is_named_often_is_read_once(wire: Wire, other: Wire, filled: str, new_name: Any) -> None:
    """As in Kafka, the last row counts. A fetch that waits would be read again as a whole at each append."""
    empty = new_name()
    wire.create_topic(empty, 1)
    rows = [(filled, 0, offset % 3) for offset in range(10_000)] + [(empty, 0, 0)] * 5000
    response = wire.call("fetch", 12, **fetch_fields(rows))
    found = [[row.partition_index for row in topic.partitions] for topic in response.responses]
    assert found == [[0], [0]]
    once = wire.call("fetch", 12, **fetch_fields([(filled, 0, 9999 % 3)])).responses[0].partitions[0]
    assert bytes(response.responses[0].partitions[0].records) == bytes(once.records)
    wire.send("fetch", 12, **fetch_fields([(empty, 0, 0)] * 5000, max_wait_ms=60_000))
    assert other.produce(empty, batch(b"x")).error_code == 0
    (topic,) = wire.receive("fetch", 12)[1].responses
    assert len(topic.partitions) == 1 and topic.partitions[0].records


def test_a_fetch_waits_for_min_bytes(wire: Wire, other: Wire, topic: str) -> None:
    sent = wire.send("fetch", 12, **fetch_fields([(topic, 0, 0)], max_wait_ms=20_000, min_bytes=2000))
    assert other.produce(topic, BATCH).error_code == 0
    wire.socket.settimeout(0.3)
    with pytest.raises(TimeoutError):
        wire.socket.recv(1)
    wire.socket.settimeout(TIMEOUT_SECONDS)
    assert other.produce(topic, BATCH).error_code == 0
    correlation_id, response = wire.receive("fetch", 12)
    assert correlation_id == sent
    assert len(values(response.responses[0].partitions[0].records)) == 2


def test_a_fetch_waits_no_longer_than_asked(wire: Wire, topic: str) -> None:
    started = time.monotonic()
    row = wire.fetch(topic, max_wait_ms=300)
    assert time.monotonic() - started >= 0.29
    assert (row.error_code, row.records) == (0, b"")


def test_an_error_does_not_wait(wire: Wire, topic: str) -> None:
    wanted = [(topic, 0, 0), (topic, 9, 0)]
    rows = wire.call("fetch", 12, **fetch_fields(wanted, max_wait_ms=2**31 - 1)).responses[0].partitions
    assert [row.error_code for row in rows] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_a_deleted_topic_ends_the_wait(wire: Wire, other: Wire, new_name: Callable[[], str]) -> None:
    name = new_name()
    topic_id = wire.create_topic(name)
    wire.send("fetch", 13, **fetch_fields([(topic_id, 0, 0)], by_id=True, max_wait_ms=2**31 - 1))
    other.call("delete_topics", 6, topics=[{"name": name}], timeout_ms=1000)
    _, response = wire.receive("fetch", 13)
    assert response.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


# Limits


def test_the_first_batch_is_returned_however_large_it_is(wire: Wire, filled: str) -> None:
    for limits in ({"partition_max_bytes": 1}, {"max_bytes": 1}, {"partition_max_bytes": 0}, {"max_bytes": 0}):
        assert len(values(wire.fetch(filled, 3, **limits).records)) == 1, limits


def test_a_partition_gives_no_more_than_its_limit(wire: Wire, filled: str) -> None:
    row = wire.fetch(filled, partition_max_bytes=len(BATCH) * 3)
    assert len(values(row.records)) == 3


def test_a_fetch_gives_no_more_than_its_limit(wire: Wire, filled: str) -> None:
    for _ in range(5):
        wire.produce(filled, BATCH, 1)
    wanted = [(filled, 0, 0), (filled, 1, 0)]
    rows = wire.call("fetch", 12, **fetch_fields(wanted, max_bytes=len(BATCH) * 12)).responses[0].partitions
    assert sum(len(row.records) for row in rows) <= len(BATCH) * 12
    assert [len(values(row.records)) for row in rows] == [10, 2]
    # The second one is behind the limit: nothing, not even one batch.
    rows = wire.call("fetch", 12, **fetch_fields(wanted, max_bytes=1)).responses[0].partitions
    assert [len(values(row.records)) for row in rows] == [1, 0]


def test_partitions_of_a_large_fetch_have_their_turn(wire: Wire, filled: str) -> None:
    """A session puts who got something behind the others."""
    for _ in range(10):
        wire.produce(filled, BATCH, 1)
    wanted = [(filled, 0, 0), (filled, 1, 0)]
    first = wire.call("fetch", 12, **fetch_fields(wanted, max_bytes=1, session_epoch=0))
    assert got(first) == {0: 1}
    second = wire.call("fetch", 12, **fetch_fields([], max_bytes=1, session_id=first.session_id, session_epoch=1))
    assert got(second) == {1: 1}


def got(response: Message) -> dict[int, int]:
    """How many records each partition brought; those without any are left out."""
    rows = [row for topic in response.responses for row in topic.partitions]
    return {row.partition_index: len(values(row.records)) for row in rows if row.records}


# Sessions


class Session:
    def __init__(self, wire: Wire, wanted: list[tuple[Any, int, int]]) -> None:
        self._wire = wire
        self.first = wire.call("fetch", 12, **fetch_fields(wanted, session_epoch=0))
        self.id = self.first.session_id
        self.epoch = 0

    def next(self, wanted: list[tuple[Any, int, int]] | None = None, **options: Any) -> Message:
        self.epoch += 1
        fields = fetch_fields(wanted or [], session_id=self.id, session_epoch=self.epoch, **options)
        return self._wire.call("fetch", 12, **fields)


def told(response: Message) -> set[int]:
    return {row.partition_index for topic in response.responses for row in topic.partitions}


def test_a_session_speaks_only_of_what_changed(wire: Wire, topic: str) -> None:
    session = Session(wire, [(topic, 0, 0), (topic, 1, 0)])
    assert session.id > 0 and told(session.first) == {0, 1}
    assert told(session.next()) == set()
    wire.produce(topic, BATCH, 1)
    response = session.next()
    assert told(response) == {1} and got(response) == {1: 1}
    assert got(session.next()) == {1: 1}  # until the client moves on, the records are there
    assert told(session.next([(topic, 1, 1)])) == set()


def test_partitions_are_added_and_forgotten(wire: Wire, topic: str) -> None:
    session = Session(wire, [(topic, 0, 0)])
    wire.produce(topic, BATCH, 1)
    assert got(session.next([(topic, 1, 0)])) == {1: 1}
    assert got(session.next(forgotten=[(topic, [1])])) == {}
    wire.produce(topic, BATCH, 0)
    assert got(session.next()) == {0: 1}


def test_a_session_ends_with_its_last_partition_or_when_the_client_says(wire: Wire, topic: str) -> None:
    session = Session(wire, [(topic, 0, 0)])
    session.next(forgotten=[(topic, [0])])
    assert session.next().error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    session = Session(wire, [(topic, 0, 0)])
    response = wire.call("fetch", 12, **fetch_fields([(topic, 0, 0)], session_id=session.id, session_epoch=-1))
    assert (response.error_code, response.session_id) == (0, 0)
    assert session.next().error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_wrong_epoch_and_an_unknown_session(wire: Wire, topic: str) -> None:
    session = Session(wire, [(topic, 0, 0)])
    response = wire.call("fetch", 12, **fetch_fields([], session_id=session.id, session_epoch=7))
    assert (response.error_code, response.responses) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, [])
    response = wire.call("fetch", 12, **fetch_fields([], session_id=12345, session_epoch=1))
    assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert session.next().error_code == 0


def test_a_session_of_names_is_not_continued_with_ids(wire: Wire, topic: str) -> None:
    session = Session(wire, [(topic, 0, 0)])
    response = wire.call("fetch", 13, **fetch_fields([], by_id=True, session_id=session.id, session_epoch=1))
    assert response.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_without_a_free_slot_the_fetch_gets_no_session(new_name: Callable[[], str]) -> None:
    with (
        EmbeddedBroker({"max.incremental.fetch.session.cache.slots": 2}) as broker,
        Wire(broker.bootstrap_servers) as wire,
    ):
        name = new_name()
        wire.create_topic(name)
        ids = [Session(wire, [(name, 0, 0)]).id for _ in range(3)]
        assert all(ids[:2]) and ids[2] == 0


def test_long_polls_that_no_one_waits_for_leave_nothing_behind(broker: EmbeddedBroker, wire: Wire, topic: str) -> None:
    fields = fetch_fields([(topic, 0, 0)], max_wait_ms=2**31 - 1)
    for _ in range(50):
        with Wire(broker.bootstrap_servers) as leaving:
            leaving.send("fetch", 12, **fields)
    for _ in range(3):
        assert wire.produce(topic, BATCH).error_code == 0
    assert len(values(wire.fetch(topic).records)) == 3
