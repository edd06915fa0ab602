"""Reading a topic for people, on a real broker: backwards, forwards, by time, and what arrives."""

import itertools
import time
from collections.abc import Iterator, Sequence

import pytest

from millstream.console.messages.query import RecordFilter
from millstream.console.messages.reading import FoundRecord, Range, ReadLimit, RecordReader, RecordTail
from millstream.console.messages.writing import InvalidInputError, RecordWriter
from millstream.formats.records.compression import Codec
from millstream.formats.records.record import Record, build_batch
from millstream.raw_client import Cluster, TopicPartition, UnreadableError
from millstream.raw_client.producing import Producer
from millstream.raw_client.transactions import Transactions
from millstream.registry.decoding import Decoded, decode_without_schema
from millstream.testing import EmbeddedBroker
from tests.integration.node.broker.unreadable import unreadable

pytestmark = pytest.mark.timeout(300)
_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with EmbeddedBroker() as broker, Cluster(broker.bootstrap_servers) as cluster:
        yield cluster


@pytest.fixture
def reader(cluster: Cluster) -> RecordReader:
    return RecordReader(cluster)


def decode(data: bytes | None) -> Decoded:
    return Decoded("null", None) if data is None else decode_without_schema(data)


def make_topic(cluster: Cluster, partitions: int = 1) -> str:
    name = f"topic-{next(_numbers)}"
    cluster.create_topic(name, partitions, 1, {"retention.ms": "-1"})  # times here are of 1970
    return name


def write(
    cluster: Cluster, topic: str, partition: int, values: Sequence[bytes], first_ms: int, step_ms: int = 1
) -> None:
    producer = Producer(cluster)
    records = [Record(None, value, (), first_ms + step_ms * index) for index, value in enumerate(values)]
    producer.send(TopicPartition(topic, partition), build_batch(records, codec=Codec.GZIP), len(records))
    producer.flush()
    producer.close()


def values(records: Sequence[FoundRecord]) -> list[bytes | None]:
    return [record.value for record in records]


def test_partitions_are_merged_by_time_in_both_directions(cluster: Cluster, reader: RecordReader) -> None:
    topic = make_topic(cluster, 3)
    for partition in range(3):  # 0, 3, 6… here, 1, 4, 7… there
        write(cluster, topic, partition, [b"%d" % number for number in range(partition, 300, 3)], 1000 + partition, 3)
    ranges = reader.ranges(topic)
    newest = reader.backwards(topic, ranges, 50)
    assert values(newest.records) == [b"%d" % number for number in range(299, 249, -1)]
    assert newest.more and not newest.stopped_early
    older = reader.backwards(
        topic, {index: Range(span.start, newest.following[index]) for index, span in ranges.items()}, 1000
    )
    assert values(older.records) == [b"%d" % number for number in range(249, -1, -1)]
    assert not older.more
    oldest = reader.forwards(topic, ranges, 100)
    assert values(oldest.records) == [b"%d" % number for number in range(100)]
    rest = reader.forwards(
        topic, {index: Range(oldest.following[index], span.end) for index, span in ranges.items()}, 1000
    )
    assert values(rest.records) == [b"%d" % number for number in range(100, 300)]


def test_a_time_leads_to_the_first_record_that_is_not_older(cluster: Cluster, reader: RecordReader) -> None:
    topic = make_topic(cluster, 2)
    write(cluster, topic, 0, [b"a", b"b", b"c"], 10_000, 1000)
    ranges = reader.ranges(topic)
    starts = reader.starts_at(topic, 10_500, ranges)
    assert starts == {0: 1, 1: 0}
    spans = {index: Range(starts[index], span.end) for index, span in ranges.items()}
    assert values(reader.forwards(topic, spans, 10).records) == [b"b", b"c"]
    assert reader.starts_at(topic, 99_000, ranges) == {0: 3, 1: 0}


def test_looking_for_something_rare_stops_and_goes_on(cluster: Cluster, reader: RecordReader) -> None:
    topic = make_topic(cluster)
    for batch in range(20):
        write(cluster, topic, 0, [b"needle" if batch == 2 and at == 7 else b"hay" for at in range(500)], batch * 1000)
    ranges = reader.ranges(topic)
    searched, asked = 0, 0
    wanted = RecordFilter(decode, "needle")
    while True:
        page = reader.backwards(topic, ranges, 1, wanted, ReadLimit(records=2000))
        searched, asked = searched + page.searched, asked + 1
        if page.records:
            break
        assert page.stopped_early and page.more
        ranges = {0: Range(0, page.following[0])}
    assert [record.offset for record in page.records] == [1007]
    assert asked > 1
    assert searched == 10_000 - 1007


def test_a_batch_that_cannot_be_read_is_told_and_left_out(cluster: Cluster, reader: RecordReader) -> None:
    """Before the broker knows of it, and after."""
    topic = make_topic(cluster)
    topic_partition = TopicPartition(topic, 0)
    write(cluster, topic, 0, [b"a", b"b"], 1000)
    producer = Producer(cluster)
    producer.send(topic_partition, bytearray(unreadable()), 3)
    producer.flush()
    producer.close()
    write(cluster, topic, 0, [b"c", b"d"], 2000)
    ranges = reader.ranges(topic)
    for read in (reader.forwards, reader.backwards):
        page = read(topic, ranges, 10)
        assert sorted(value or b"" for value in values(page.records)) == [b"a", b"b", b"c", b"d"]
        assert len(page.problems) == 1 and f"{topic_partition}: offsets 2 to 4 are skipped" in page.problems[0]
    with pytest.raises(UnreadableError, match=f"{topic_partition} cannot be read at offset 2"):
        for _ in range(1000):
            cluster.fetch(topic_partition, 2, max_bytes=1000, max_wait_ms=0)
    page = reader.backwards(topic, ranges, 10)
    assert sorted(value or b"" for value in values(page.records))[:2] == [b"a", b"b"]
    assert "cannot be read at offset 2" in page.problems[0]
    assert values(reader.forwards(topic, {0: Range(5, 7)}, 10).records) == [b"c", b"d"]


def test_nothing_is_there(cluster: Cluster, reader: RecordReader) -> None:
    topic = make_topic(cluster, 2)
    page = reader.backwards(topic, reader.ranges(topic), 10)
    assert (page.records, page.more, page.stopped_early, page.problems) == ([], False, False, [])


def test_aborted_transactions_are_left_out(cluster: Cluster, reader: RecordReader) -> None:
    topic = make_topic(cluster)
    topic_partition = TopicPartition(topic, 0)
    transactions = Transactions(cluster, timeout_ms=60_000)
    for commit in (True, False, True):
        identity = transactions.take(f"{topic}-id", two_phase=False)
        transactions.add_partitions(identity, [topic_partition])
        producer = Producer(
            cluster, transactional_id=identity.transactional_id, at_most=transactions.max_produce_version
        )
        records = [Record(None, b"%s" % str(commit).encode(), (), 5)] * 3
        batch = build_batch(
            records,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=0,
            transactional=True,
        )
        producer.send(topic_partition, batch, 3)
        producer.flush()
        producer.close()
        transactions.end(identity, commit=commit)
    page = reader.backwards(topic, reader.ranges(topic), 100)
    assert values(page.records) == [b"True"] * 6
    assert not page.more


def test_large_records_are_read_one_stretch_at_a_time(cluster: Cluster, reader: RecordReader) -> None:
    topic = make_topic(cluster)
    for number in range(8):
        write(cluster, topic, 0, [bytes([number]) * 900_000], number)
    page = reader.backwards(topic, reader.ranges(topic), 3)
    assert [record.offset for record in page.records] == [7, 6, 5]
    assert [len(record.value or b"") for record in page.records] == [900_000] * 3


def test_the_tail_shows_what_arrives_and_skips_what_is_too_much(cluster: Cluster, reader: RecordReader) -> None:
    topic = make_topic(cluster, 2)
    write(cluster, topic, 0, [b"before"], 1)
    tail = RecordTail(reader, topic)
    assert tail.step().records == []
    assert tail.step().records == []
    write(cluster, topic, 0, [b"a"], 10)
    write(cluster, topic, 1, [b"b"], 11)
    step = tail.step()
    assert (values(step.records), step.skipped) == ([b"a", b"b"], 0)
    write(cluster, topic, 1, [b"%d" % number for number in range(500)], 20)
    step = tail.step(100)
    assert values(step.records) == [b"%d" % number for number in range(400, 500)]
    assert step.skipped == 400
    assert tail.step().records == []


def test_one_record_is_written_where_its_key_belongs(cluster: Cluster, reader: RecordReader) -> None:
    topic = make_topic(cluster, 4)
    writer = RecordWriter(cluster)
    before_ms = time.time() * 1000
    where = {writer.write(topic, b"customer-1", b"%d" % number).partition for number in range(3)}
    assert len(where) == 1  # one key, one partition
    at = writer.write(topic, None, None, (("trace", b"x"),), partition=3)
    (record,) = reader.backwards(topic, {3: reader.ranges(topic)[3]}, 1).records
    assert record[:2] == (3, at.offset) and record[3:] == (None, None, (("trace", b"x"),))
    assert record.timestamp_ms >= int(before_ms)
    with pytest.raises(InvalidInputError, match="0 to 3"):
        writer.write(topic, None, b"", partition=4)
