"""Batches whose records cannot be read: refused when that is cheap to see, else found out when consumers are stuck."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import pytest

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicName, TopicPartition
from millstream.formats.protocol.schema import Message
from millstream.formats.records.compression import Codec
from millstream.formats.records.opening import OpeningLimits
from millstream.node.replicas.unreadable_batches import (
    MAX_COUNTED,
    MAX_KNOWN,
    SUSPICIOUS,
    RepeatedReads,
    Unreadable,
    UnreadableBatches,
)
from millstream.node.storage.log.log_reader import Slice
from millstream.testing import EmbeddedBroker
from tests.integration.node.broker.unreadable import GARBAGE, records_with, sealed, unreadable
from tests.waiting import TIMEOUT_SECONDS
from tests.wire import Wire, batch, fetch_fields, values

GOOD = batch(b"a", b"b", b"c")
STUCK = 3 * SUSPICIOUS
"""More fetches than it takes; the look into the batch is beside them."""


def until_refused(wire: Wire, topic: str, offset: int, **options: Any) -> Message:
    """Fetches as a consumer that is stuck does, until the broker says why."""
    for _ in range(1000):
        row = wire.fetch(topic, offset, **options)
        if row.error_code:
            return row
    raise AssertionError("the broker sent the batch a thousand times, without a word")


@pytest.fixture
def stuck(wire: Wire, topic: str) -> str:
    """A topic with a batch that cannot be read between two that can: offsets 3 to 5 of partition 0."""
    for data in (GOOD, unreadable(), GOOD):
        assert wire.produce(topic, data).error_code == 0
    return topic


# When it is sent


@pytest.mark.parametrize(
    ("records", "count"),
    [
        (GARBAGE, 3),
        (records_with(0, 1, 2), 5),
        (records_with(0, 1, 2, 3, 4), 3),
        (records_with(2, 1, 0), 3),
        (records_with(0, 0, 0), 3),
        (records_with(0, 1, 9), 3),
        (records_with(0, 1, 2) + b"\x00", 3),
        (records_with(0, 1)[:-1] + records_with(0)[:8], 2),
    ],
)
def test_uncompressed_records_that_are_not_what_the_header_says_are_refused(
    wire: Wire, topic: str, records: bytes, count: int
) -> None:
    row = wire.produce(topic, sealed(records, count))
    assert row.error_code == ErrorCode.INVALID_RECORD
    assert "the records are not what their batch says" in row.error_message or "cannot be in" in row.error_message
    assert wire.fetch(topic).high_watermark == 0


# When it is read


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_consumer_that_is_stuck_is_told(wire: Wire, topic: str, codec: Codec) -> None:
    for data in (GOOD, unreadable(codec), GOOD):
        assert wire.produce(topic, data).error_code == 0
    assert until_refused(wire, topic, 3).error_code == ErrorCode.INVALID_RECORD
    for offset in (3, 4, 5):
        assert wire.fetch(topic, offset).error_code == ErrorCode.INVALID_RECORD
    assert values(wire.fetch(topic, 0).records) == [b"a", b"b", b"c"]  # and nothing that cannot be read behind it
    assert values(wire.fetch(topic, 6).records) == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    "data",
    [
        sealed(GARBAGE, 3, Codec.GZIP, is_compressed=True),
        sealed(records_with(0, 1, 2), 5, Codec.ZSTD),
        sealed(records_with(0, 1, 2, 3, 4), 3, Codec.LZ4),
        sealed(records_with(2, 1, 0), 3, Codec.GZIP),
        sealed(records_with(0, 1, 9), 3, Codec.GZIP),
    ],
    ids=["not compressed", "too few", "too many", "deltas descend", "deltas beyond"],
)
def test_every_unreadable_batch_is_found_by_its_consumers(wire: Wire, topic: str, data: bytes) -> None:
    assert wire.produce(topic, data).error_code == 0
    assert until_refused(wire, topic, 0).error_code == ErrorCode.INVALID_RECORD


def test_a_client_that_drops_what_came_before_it_in_the_same_response(wire: Wire, stuck: str) -> None:
    """It asks for the good batch again and again: from then on it gets that one alone."""
    for _ in range(1000):
        row = wire.fetch(stuck, 0)
        if len(row.records) == len(GOOD):
            break
    assert values(row.records) == [b"a", b"b", b"c"]
    assert wire.fetch(stuck, 3).error_code == ErrorCode.INVALID_RECORD


def test_other_partitions_go_on(wire: Wire, stuck: str) -> None:
    assert wire.produce(stuck, GOOD, 1).error_code == 0
    until_refused(wire, stuck, 3)
    response = wire.call("fetch", 12, **fetch_fields([(stuck, 0, 3), (stuck, 1, 0)]))
    first, second = response.responses[0].partitions
    assert (first.error_code, second.error_code) == (ErrorCode.INVALID_RECORD, 0)
    assert values(second.records) == [b"a", b"b", b"c"]


def test_in_a_session_and_for_read_committed(wire: Wire, stuck: str) -> None:
    until_refused(wire, stuck, 3)
    fields = fetch_fields([(stuck, 0, 3)], session_epoch=0) | {"isolation_level": 1}
    response = wire.call("fetch", 12, **fields)
    assert response.responses[0].partitions[0].error_code == ErrorCode.INVALID_RECORD
    again = fetch_fields([], session_id=response.session_id, session_epoch=1)
    response = wire.call("fetch", 12, **again)
    assert response.responses[0].partitions[0].error_code == ErrorCode.INVALID_RECORD


def test_deleting_records_gets_everyone_past_it(wire: Wire, stuck: str) -> None:
    until_refused(wire, stuck, 3)
    rows = [{"name": stuck, "partitions": [{"partition_index": 0, "offset": 6}]}]
    deleted = wire.call("delete_records", 2, topics=rows, timeout_ms=10_000)
    assert deleted.topics[0].partitions[0].error_code == 0
    assert wire.fetch(stuck, 3).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert values(wire.fetch(stuck, 6).records) == [b"a", b"b", b"c"]


def test_the_log_and_the_metrics_name_the_offset_to_go_on_from(broker: EmbeddedBroker, wire: Wire, stuck: str) -> None:
    until_refused(wire, stuck, 3)
    (line,) = [each for each in broker.log_file.read_text().splitlines() if f"batch_unreadable topic={stuck} " in each]
    assert "partition=0 offsets=3-5 producer_id=-1" in line and "seek to offset 6" in line
    page = urlopen(f"http://{broker.bootstrap_servers}/metrics", timeout=TIMEOUT_SECONDS).read().decode()
    labels = f'topic="{stuck}",partition="0",first_offset="3",last_offset="5",producer_id="-1"'
    assert f"millstream_partition_unreadable_batch{{{labels}}} 1\n" in page


def test_a_batch_that_many_read_is_sound(broker: EmbeddedBroker, wire: Wire, topic: str) -> None:
    assert wire.produce(topic, batch(*(b"value",) * 100, codec=Codec.GZIP)).error_code == 0
    for _ in range(STUCK):
        row = wire.fetch(topic, 0)
        assert (row.error_code, len(values(row.records))) == (0, 100)
    assert f"batch_unreadable topic={topic} " not in broker.log_file.read_text()


def test_searching_by_time_does_not_fail_for_it(wire: Wire, stuck: str) -> None:
    rows: list[dict[str, Any]] = [{"name": stuck, "partitions": [{"partition_index": 0, "timestamp": 1}]}]
    (found,) = wire.call("list_offsets", 7, replica_id=-1, isolation_level=0, topics=rows).topics[0].partitions
    assert (found.error_code, found.offset) == (0, 0)
    rows[0]["partitions"][0]["timestamp"] = -3  # the greatest
    (found,) = wire.call("list_offsets", 7, replica_id=-1, isolation_level=0, topics=rows).topics[0].partitions
    assert found.error_code == 0


# What is kept in memory


def known(*spans: tuple[int, int]) -> UnreadableBatches:
    batches = UnreadableBatches()
    batches.add(Unreadable(first, last, -1, "reason") for first, last in spans)
    return batches


def test_a_fetch_ends_before_an_unreadable_batch() -> None:
    batches = known((10, 14), (20, 20))
    assert [batches.limit(offset, 100) for offset in (0, 9, 15, 19, 21)] == [10, 10, 20, 20, 100]
    assert batches.limit(0, 5) == 5
    for offset in (10, 12, 14, 20):
        with pytest.raises(KafkaError) as caught:
            batches.limit(offset, 100)
        assert caught.value.code == ErrorCode.INVALID_RECORD
    assert batches.add([Unreadable(20, 20, -1, "reason"), Unreadable(3, 4, -1, "reason")])[0].first == 3


def test_known_unreadable_batches_are_bounded() -> None:
    batches = known(*((number, number) for number in range(MAX_KNOWN + 10)))
    assert [each.first for each in batches.batches] == list(range(10, MAX_KNOWN + 10))


class FakePartition:
    unreadable: UnreadableBatches | None = None
    topic_partition = TopicPartition(TopicName("t"), 0)
    leader_epoch = 4


class Watched:
    """Repeated reads with files that are never there, and threads that work when they are let."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], asyncio.Future[Any]]] = []
        environment: Any = SimpleNamespace(offload=self._offload)
        self.reads = RepeatedReads(environment, OpeningLimits)
        self.partition = FakePartition()

    def _offload(self, work: Callable[[], Any]) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.jobs.append((work, future))
        return future

    def read(self, position: int, times: int = 1) -> None:
        file: Any = SimpleNamespace(path="log")
        for _ in range(times):
            self.reads.note(self.partition, Slice(file, position, 100, True))

    async def finish(self, found: list[Unreadable]) -> None:
        self.jobs.pop(0)[1].set_result(found)
        await asyncio.sleep(0)


def test_it_is_looked_into_once_however_many_come_back() -> None:
    async def scene() -> None:
        it = Watched()
        it.read(7, SUSPICIOUS - 1)
        assert not it.jobs
        it.read(7, 20)
        it.read(8, 20)
        assert len(it.jobs) == 1, "one look at a time"
        await it.finish([])
        assert it.partition.unreadable is None
        it.read(7, 100)
        assert not it.jobs, "it is sound"
        it.read(8)
        assert len(it.jobs) == 1, "the other one's turn"
        await it.finish([Unreadable(3, 5, -1, "reason")])
        assert it.partition.unreadable is not None

    asyncio.run(scene())


def test_what_was_found_of_another_epoch_is_not_believed() -> None:
    async def scene() -> None:
        it = Watched()
        it.read(7, SUSPICIOUS)
        it.partition.leader_epoch += 1
        await it.finish([Unreadable(3, 5, -1, "reason")])
        assert it.partition.unreadable is None

    asyncio.run(scene())


def test_counts_are_bounded_and_outlive_many_other_reads() -> None:
    async def scene() -> None:
        it = Watched()
        for number in range(SUSPICIOUS):
            it.read(0)
            for other in range(MAX_COUNTED // 2):
                it.read(1 + number * MAX_COUNTED + other)
        assert len(it.jobs) == 1
        assert len(it.reads._counts) <= MAX_COUNTED and len(it.reads._older) <= MAX_COUNTED

    asyncio.run(scene())
