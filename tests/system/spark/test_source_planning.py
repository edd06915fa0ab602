"""What the source plans and reads, against a real broker and without Spark: offsets, limits, loss, leaders that die."""

import json
import pickle
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic
from deltalake import write_deltalake
from pyspark.serializers import CPickleSerializer, SpecialLengths, read_int, write_with_length
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.streaming.python_streaming_source_runner import (
    EMPTY_PYARROW_RECORD_BATCHES,
    NON_EMPTY_PYARROW_RECORD_BATCHES,
    PREFETCHED_RECORDS_NOT_FOUND,
    partitions_func,
)
from pyspark.sql.types import StructType

from millstream.columnar import ArrowDecoder
from millstream.gateway.server import Gateway, GatewayOptions
from millstream.lake.errors import LakeError
from millstream.raw_client import Cluster, ErrorCode, Fetched, RefusedError, UnreachableError
from millstream.raw_client import TopicPartition as WirePartition
from millstream.raw_client.errors import refusal
from millstream.schemas import RegistryClient, Schema, SchemaNotFoundError, make_format
from millstream.spark.connections import cluster_of
from millstream.spark.errors import (
    BadRecordError,
    CheckpointError,
    DataLossError,
    MissingTopicError,
    OptionError,
    SourceError,
)
from millstream.spark.options import ReadOptions, parse_read_options
from millstream.spark.source.limits import Range
from millstream.spark.source.log_view import LogView
from millstream.spark.source.offsets import HistoryPart, HistoryPlanner
from millstream.spark.source.planner import IDLE_WAIT_SECONDS, StreamPlanner, plan_batch, plan_with_history
from millstream.spark.source.positions import FromTable
from millstream.spark.source.range_reader import RangeReader
from millstream.spark.source.source import Rows, StreamReader
from millstream.testing import EmbeddedBroker, EmbeddedCluster
from pyspark_millstream import DefaultSource
from tests.waiting import TIMEOUT_SECONDS, until

Document = dict[str, Any]
_names = (f"planned-{number}" for number in count())


class Topic:
    """A topic of a test's own."""

    def __init__(self, bootstrap: str, partitions: int = 1, replicas: int = 1, **config: str) -> None:
        self.bootstrap = bootstrap
        self.name = next(_names)
        self._partitions, self._replicas, self._config = partitions, replicas, config
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self.create()

    def create(self) -> None:
        config = {name.replace("_", "."): value for name, value in self._config.items()}
        new = NewTopic(self.name, self._partitions, self._replicas, config=config)
        self._admin.create_topics([new], operation_timeout=30)[self.name].result(TIMEOUT_SECONDS)

    def delete(self) -> None:
        self._admin.delete_topics([self.name], operation_timeout=30)[self.name].result(TIMEOUT_SECONDS)

    def smaller(self) -> None:
        """Created again with one partition."""
        self._partitions = 1
        self.create()

    def grow(self, partitions: int) -> None:
        self._admin.create_partitions([NewPartitions(self.name, partitions)])[self.name].result(TIMEOUT_SECONDS)

    def delete_records(self, partition: int, before: int) -> None:
        where = TopicPartition(self.name, partition, before)
        next(iter(self._admin.delete_records([where]).values())).result(TIMEOUT_SECONDS)

    def produce(self, number: int, partition: int = 0, *, size: int = 10, timestamp: int = 0, **settings: Any) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5, "log_level": 0} | settings)
        for index in range(number):
            text = str(index).zfill(size)
            producer.produce(self.name, text, partition=partition, timestamp=timestamp + index if timestamp else 0)
        assert producer.flush(TIMEOUT_SECONDS) == 0

    def options(self, **more: str) -> ReadOptions:
        given = {"kafka.bootstrap.servers": self.bootstrap, "subscribe": self.name, "fetchOffset.retryIntervalMs": "20"}
        return parse_read_options(given | more)

    def planner(self, **more: str) -> StreamPlanner:
        return StreamPlanner(self.options(**{"startingOffsets": "earliest"} | more).for_stream())

    def positions(self, document: Document) -> dict[int, int]:
        return {int(partition): offset for partition, offset in document.get(self.name, {}).items()}


@pytest.fixture
def topic(broker: EmbeddedBroker) -> Callable[..., Topic]:
    return lambda partitions=1, **config: Topic(broker.bootstrap_servers, partitions, **config)


def stored(document: Document) -> Document:
    """As it comes back from a checkpoint."""
    loaded: Document = json.loads(json.dumps(document))
    return loaded


def spans(ranges: list[Range]) -> dict[int, tuple[int, int]]:
    return {each.partition: (each.start, each.stop) for each in ranges}


def offsets_read(options: ReadOptions, ranges: list[Range]) -> list[int]:
    return [
        offset for each in ranges for offset in column(RangeReader(options, each).batches(ArrowDecoder(["offset"])))
    ]


def column(batches: Iterator[pa.RecordBatch]) -> list[Any]:
    return [value for batch in batches for value in batch.column(0).to_pylist()]


@contextmanager
def away(broker: EmbeddedBroker) -> Iterator[None]:
    """The broker is killed, and comes back a second later."""
    broker.kill()
    back = threading.Timer(1.0, broker.start)
    back.start()
    yield
    back.join()


class TestStream:
    def test_the_first_batch_is_limited_too_and_all_is_read_once(self, topic: Callable[..., Topic]) -> None:
        orders = topic(2)
        orders.produce(90, 0)
        orders.produce(10, 1)
        planner = orders.planner(maxOffsetsPerTrigger="50")
        start, batches = planner.initial(), []
        while (end := stored(planner.latest(start, limited=True))) != start:
            batches.append(spans(planner.ranges(start, end)))
            start = end
        assert batches == [{0: (0, 45), 1: (0, 5)}, {0: (45, 90), 1: (5, 10)}]
        assert planner.report_latest() is not None and orders.positions(planner.report_latest() or {}) == {0: 90, 1: 10}

    def test_limits_are_left_out_when_spark_asks_for_all(self, topic: Callable[..., Topic]) -> None:
        orders = topic()
        orders.produce(90)
        planner = orders.planner(maxOffsetsPerTrigger="50")
        assert orders.positions(planner.latest(planner.initial(), limited=False)) == {0: 90}

    def test_bytes_are_estimated_from_what_comes_next(self, topic: Callable[..., Topic]) -> None:
        orders = topic(2)
        orders.produce(1000, 0, size=1000)
        orders.produce(1000, 1, size=100)
        planner = orders.planner(maxBytesPerTrigger="100k")
        end = orders.positions(planner.latest(planner.initial(), limited=True))
        taken = end[0] * 1000 + end[1] * 100
        assert 70_000 < taken < 120_000 and end[1] < 110

    def test_a_batch_waits_for_enough_records_but_not_forever(self, topic: Callable[..., Topic]) -> None:
        orders = topic()
        orders.produce(5)
        clock = [0.0]
        options = orders.options(startingOffsets="earliest", minOffsetsPerTrigger="10", maxTriggerDelay="60s")
        planner = StreamPlanner(options, now=lambda: clock[0])
        first = planner.latest(planner.initial(), limited=True)  # nothing was read before: it does not wait
        assert orders.positions(first) == {0: 5}
        orders.produce(5)
        clock[0] = 30.0
        assert planner.latest(first, limited=True) == first
        clock[0] = 61.0
        assert orders.positions(planner.latest(first, limited=True)) == {0: 10}
        orders.produce(1)
        clock[0] = 62.0
        now = orders.planner(minOffsetsPerTrigger="10")
        now.prepare_available_now()
        assert orders.positions(now.latest(first, limited=True)) == {0: 11}

    def test_available_now_ends_with_what_was_there(self, topic: Callable[..., Topic]) -> None:
        orders = topic()
        orders.produce(10)
        planner = orders.planner()
        planner.prepare_available_now()
        orders.produce(10)
        orders.grow(2)
        orders.produce(3, 1)
        end = planner.latest(planner.initial(), limited=True)
        assert orders.positions(end)[0] == 10
        assert planner.latest(end, limited=True) == end

    def test_new_partitions_are_read_from_their_beginning(self, topic: Callable[..., Topic]) -> None:
        orders = topic()
        orders.produce(3)
        planner = orders.planner(startingOffsets="latest")
        start = planner.latest(planner.initial(), limited=True)
        orders.grow(2)
        orders.produce(4, 1)
        # Metadata is asked for again after a second.
        until(lambda: spans(planner.ranges(start, planner.latest(start, limited=True))) == {1: (0, 4)})

    def test_a_batch_is_the_same_after_a_restart(self, topic: Callable[..., Topic]) -> None:
        orders = topic()
        orders.produce(3)
        planner = orders.planner(startingOffsets="latest")
        start = planner.initial()
        orders.produce(4)
        end = stored(planner.latest(start, limited=True))
        orders.produce(5)
        again = orders.planner(startingOffsets="latest")
        # Spark does not keep the start of a first batch: it asks again, and now `latest` is another place.
        assert orders.positions(again.initial()) == {0: 12}
        assert spans(again.ranges(again.initial(), end)) == spans(planner.ranges(start, end)) == {0: (3, 7)}
        assert again.parts(end, end) == []

    def test_offsets_of_spark_sql_kafka_are_taken_over(self, topic: Callable[..., Topic]) -> None:
        orders = topic()
        orders.produce(5)
        start = {orders.name: {"0": 2}}
        planner = orders.planner()
        assert spans(planner.ranges(start, planner.latest(start, limited=True))) == {0: (2, 5)}

    def test_a_batch_of_spark_sql_kafka_with_a_new_partition_is_finished(self, topic: Callable[..., Topic]) -> None:
        orders = topic(2)
        orders.produce(5)
        orders.produce(4, 1)
        start, end = {orders.name: {"0": 2}}, {orders.name: {"0": 5, "1": 4}}
        assert spans(orders.planner().ranges(start, end)) == {0: (2, 5), 1: (0, 4)}

    def test_a_checkpoint_of_another_query_is_told_of(self, topic: Callable[..., Topic]) -> None:
        planner = topic().planner()
        with pytest.raises(CheckpointError, match="a query that reads clicks; this query reads planned"):
            planner.latest({"clicks": {"0": 5}}, limited=True)

    def test_a_topic_that_was_added_must_exist(self, topic: Callable[..., Topic]) -> None:
        orders = topic()
        start = orders.planner().initial()
        with pytest.raises(MissingTopicError, match="'planned-nowhere' does not exist"):
            orders.planner(subscribe=f"{orders.name},planned-nowhere").latest(start, limited=True)

    def test_a_cluster_that_does_not_respond_for_a_while_is_waited_for(self) -> None:
        with EmbeddedBroker() as broker:
            orders = Topic(broker.bootstrap_servers)
            short_timeout = {"kafka.default.api.timeout.ms": "200"}
            planner = orders.planner(**short_timeout)
            start = planner.initial()
            orders.produce(3)
            with away(broker):
                end = planner.latest(start, limited=True)
            with away(broker):
                assert offsets_read(orders.options(**short_timeout), planner.ranges(start, end)) == [0, 1, 2]

    def test_progress_is_committed_when_a_batch_is_done_and_not_before(self, topic: Callable[..., Topic]) -> None:
        orders = topic()
        orders.produce(5)
        planner = orders.planner(groupId="planned-progress")
        cluster = Cluster(orders.bootstrap)

        def committed() -> int:
            (offset,) = cluster.committed_offsets("planned-progress", [WirePartition(orders.name, 0)]).values()
            return offset

        end = planner.latest(planner.initial(), limited=True)
        planner.ranges(planner.initial(), end)
        assert committed() == 0
        assert planner.latest(end, limited=True) == end  # Spark asks again only when the batch is done
        assert committed() == 5
        assert spans(plan_batch(orders.options(startingOffsets="committed", groupId="planned-progress"))) == {}
        cluster.close()

    @pytest.mark.parametrize(
        ("small", "method"), [("1m", "look"), ("0", "wait_for_records")], ids=["with the records", "the end only"]
    )
    def test_an_idle_query_waits_for_records(
        self, topic: Callable[..., Topic], monkeypatch: pytest.MonkeyPatch, small: str, method: str
    ) -> None:
        orders = topic(2)
        clock = [0.0]
        planner = StreamPlanner(orders.options(smallBatchBytes=small).for_stream(), now=lambda: clock[0])
        waits: list[float] = []
        wait = getattr(LogView, method)

        def waiting(view: LogView, ends: Mapping[WirePartition, int], wait_s: float, *more: int) -> Any:
            if not wait_s:
                return wait(view, ends, wait_s, *more)
            waits.append(wait_s)
            arrival = threading.Thread(target=orders.produce, args=(1, 1))
            arrival.start()
            found = wait(view, ends, TIMEOUT_SECONDS, *more)
            arrival.join()
            return found

        monkeypatch.setattr(LogView, method, waiting)
        start = planner.initial()
        assert planner.latest(start, limited=True) is start
        clock[0] = 1.0  # a batch ran, or the trigger has an interval: Spark does nothing but call only after this call
        assert planner.latest(start, limited=True) is start and not waits
        end = planner.latest(start, limited=True)
        assert (orders.positions(end), waits) == ({0: 0, 1: 1}, [IDLE_WAIT_SECONDS])

    def test_an_idle_query_with_too_few_records_waits_for_more(
        self, topic: Callable[..., Topic], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Not for those that are there, which would not be a wait."""
        orders = topic()
        orders.produce(1)
        options = orders.options(startingOffsets="earliest", minOffsetsPerTrigger="3")
        planner = StreamPlanner(options.for_stream(), now=lambda: 0.0)
        waited: list[dict[WirePartition, int]] = []
        monkeypatch.setattr(LogView, "wait_for_records", lambda view, ends, wait_s: waited.append(dict(ends)))
        start = planner.latest(planner.initial(), limited=True)
        orders.produce(1)
        assert planner.latest(start, limited=True) is start
        assert planner.latest(start, limited=True) is start
        assert [list(each.values()) for each in waited] == [[2]]

    def test_ends_of_several_leaders(self) -> None:
        with EmbeddedCluster(2) as cluster:
            orders = Topic(cluster.bootstrap_servers, 4)
            options = orders.options()
            client = cluster_of(options.connection)
            view = LogView(options, client)
            ends = view.latest(view.topics().partitions)
            view.wait_for_records(ends, 0.01)
            orders.produce(3, 1)
            looked = view.look(ends, 0.01, 1 << 20)
            assert looked is not None and len({client.leader_of(each).node_id for each in looked}) == 2
            assert {each.partition: found.end for each, found in looked.items()} == {0: 0, 1: 3, 2: 0, 3: 0}
            assert all(found.has_all_before(found.end) for found in looked.values())
            client.close()


class Planned:
    """What Spark is told of a batch, by Spark's own function."""

    def __init__(self, reader: Any, source: Any, start: Document, end: Document) -> None:
        self.reader, (infile, outfile) = reader, (BytesIO(), BytesIO())
        for each in (start, end):
            write_with_length(json.dumps(each).encode(), infile)
        infile.seek(0)
        partitions_func(reader, source, source.schema(), 10_000, infile, outfile)
        outfile.seek(0)
        self.parts = [CPickleSerializer()._read_with_length(outfile) for _ in range(read_int(outfile))]
        self.kind = read_int(outfile)
        self.rows: list[dict[str, Any]] = []
        if self.kind == NON_EMPTY_PYARROW_RECORD_BATCHES:
            assert read_int(outfile) == SpecialLengths.START_ARROW_STREAM
            self.rows = pa.ipc.open_stream(outfile).read_all().to_pylist()

    @property
    def rows_of_tasks(self) -> list[dict[str, Any]]:
        return [row for part in self.parts for batch in self.reader.read(part) for row in batch.to_pylist()]


class TestSmallBatches:
    """Rows that travel with the plan, through the function of PySpark that sends the plan."""

    def planned(self, orders: Topic, **more: str) -> Planned:
        given = {"kafka.bootstrap.servers": orders.bootstrap, "subscribe": orders.name, "startingOffsets": "earliest"}
        source = DefaultSource(given | more)
        reader = source.streamReader(source.schema())
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        found = Planned(reader, source, start, end)
        # In all other functions it is an ordinary reader, which reports the latest offsets.
        assert isinstance(reader, StreamReader) and not isinstance(reader, _SimpleStreamReaderWrapper)
        assert (reader.reportLatestOffset() or {}).get(orders.name) == end[orders.name]
        return found

    def test_the_same_rows_with_the_plan_and_by_tasks(self, topic: Callable[..., Topic]) -> None:
        orders = topic(3)
        orders.produce(20, 0)
        compressed: dict[str, Any] = {"compression.type": "zstd"}
        orders.produce(5, 2, **compressed)
        small = self.planned(orders, includeHeaders="true")
        assert (len(small.rows), len(small.parts)) == (25, 1)
        assert small.rows_of_tasks == small.rows  # if Spark loses the rows of the plan
        ordinary = self.planned(orders, includeHeaders="true", smallBatchBytes="0")
        assert (ordinary.kind, len(ordinary.parts)) == (PREFETCHED_RECORDS_NOT_FOUND, 2)
        assert ordinary.rows_of_tasks == small.rows

    def test_one_fetch_finds_the_ends_and_brings_the_records(
        self, topic: Callable[..., Topic], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A batch of a running query sends no other request."""
        orders = topic(2)
        given = {"kafka.bootstrap.servers": orders.bootstrap, "subscribe": orders.name, "startingOffsets": "earliest"}
        source = DefaultSource(given)
        reader = source.streamReader(source.schema())
        start = reader.initialOffset()
        reader.latestOffset(start, ReadAllAvailable())
        orders.produce(4, 1)
        sent: list[str] = []
        monkeypatch.setattr(Cluster, "offsets", lambda *_, **__: sent.append("offsets"))
        monkeypatch.setattr(Cluster, "fetch", lambda *_, **__: sent.append("fetch"))
        end = reader.latestOffset(start, ReadAllAvailable())
        assert len(Planned(reader, source, start, end).rows) == 4
        assert not sent

    def test_what_was_fetched_of_another_topic_or_offset_is_not_used(self, topic: Callable[..., Topic]) -> None:
        orders = topic()
        orders.produce(5)
        options = orders.options()
        view = LogView(options, cluster_of(options.connection))
        place = WirePartition(orders.name, 0)
        looked = (view.look({place: 2}, 0.0, 1 << 20) or {})[place]
        for start, topic_id, expected in ((2, looked.topic_id, [2, 3, 4]), (1, looked.topic_id, [1, 2, 3, 4])):
            reader = RangeReader(options, Range(orders.name, 0, start, 5, topic_id), looked=looked)
            assert column(reader.batches(ArrowDecoder(["offset"]))) == expected
        other = RangeReader(options, Range(orders.name, 0, 2, 5, str(UUID(int=7))), looked=looked)
        with pytest.raises(DataLossError):
            list(other.batches(ArrowDecoder(["offset"])))

    @pytest.mark.parametrize(
        "more", [{"smallBatchBytes": "300"}, {"minPartitions": "2"}, {"maxRecordsPerPartition": "15"}]
    )
    def test_large_batches_and_wishes_for_tasks(self, topic: Callable[..., Topic], more: dict[str, str]) -> None:
        orders = topic()
        orders.produce(20)
        found = self.planned(orders, **more)
        assert (found.kind, len(found.rows_of_tasks)) == (PREFETCHED_RECORDS_NOT_FOUND, 20)

    def test_typed_rows_and_errors(self, topic: Callable[..., Topic]) -> None:
        orders = topic()
        orders.produce(2)  # "0000000001" is no JSON
        json_value = {"valueFormat": "json", "valueSchema": "id INT"}
        assert [row["_error"] is None for row in self.planned(orders, **json_value).rows] == [False, False]
        failing = self.planned(orders, **json_value, badRecords="fail")
        assert failing.kind == PREFETCHED_RECORDS_NOT_FOUND
        with pytest.raises(BadRecordError):  # the task reports it
            _ = failing.rows_of_tasks

    def test_only_aborted_records(self, topic: Callable[..., Topic]) -> None:
        orders = topic()
        producer = Producer({"bootstrap.servers": orders.bootstrap, "transactional.id": "small", "log_level": 0})
        producer.init_transactions(TIMEOUT_SECONDS)
        producer.begin_transaction()
        producer.produce(orders.name, "x")
        producer.flush(TIMEOUT_SECONDS)
        producer.abort_transaction(TIMEOUT_SECONDS)
        assert self.planned(orders).kind == EMPTY_PYARROW_RECORD_BATCHES

    def test_other_versions_of_spark_get_ordinary_tasks(
        self, topic: Callable[..., Topic], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        orders = topic()
        orders.produce(3)
        monkeypatch.setattr("millstream.spark.source.small_batches.WRAPPER", None)
        found = self.planned(orders)
        assert (found.kind, len(found.rows_of_tasks)) == (PREFETCHED_RECORDS_NOT_FOUND, 3)


class TestLoss:
    """Each once with failOnDataLoss, and once without."""

    def both(self, orders: Topic, start: Document, says: str) -> Document:
        with pytest.raises(DataLossError, match=says):
            orders.planner().latest(start, limited=True)
        planner = orders.planner(failOnDataLoss="false")
        end = planner.latest(start, limited=True)
        options = orders.options(failOnDataLoss="false")
        self.read = offsets_read(options, planner.ranges(start, end))
        assert planner.latest(stored(end), limited=True) == end
        return end

    def test_retention_was_faster(self, topic: Callable[..., Topic], caplog: pytest.LogCaptureFixture) -> None:
        orders = topic()
        orders.produce(20)
        orders.delete_records(0, 12)
        self.both(orders, {orders.name: {"0": 5}}, r"starts at 12 now; the offsets 5 to 11 are gone.*false")
        assert self.read == list(range(12, 20))
        assert "continues without them" in caplog.text

    def test_retention_was_faster_than_the_task(self, topic: Callable[..., Topic]) -> None:
        orders = topic()
        orders.produce(20)
        planner = orders.planner()
        start = planner.initial()
        end = planner.latest(start, limited=True)
        ranges = planner.ranges(start, end)
        orders.delete_records(0, 12)
        with pytest.raises(DataLossError, match="the offsets 0 to 11 are gone"):
            offsets_read(orders.options(), ranges)
        assert offsets_read(orders.options(failOnDataLoss="false"), ranges) == list(range(12, 20))
        with pytest.raises(DataLossError, match="the offsets 0 to 11 are gone"):
            orders.planner().ranges(start, end)  # after a restart

    def test_a_recreated_topic_is_a_loss(self, topic: Callable[..., Topic]) -> None:
        orders = topic()
        orders.produce(7)
        planner = orders.planner()
        first = planner.initial()
        start = stored(planner.latest(first, limited=True))
        orders.delete()
        orders.create()
        orders.produce(7)
        with pytest.raises(DataLossError, match="the topic was deleted and recreated"):
            offsets_read(orders.options(), planner.ranges(first, start))
        self.both(orders, start, "was deleted and recreated")
        assert self.read == list(range(7))
        # A group knows the topic by its name only: what was read of the old one says nothing of the new one.
        with Cluster(orders.bootstrap) as cluster:
            planner = orders.planner(failOnDataLoss="false", groupId="planned-again")
            end = planner.latest(start, limited=True)
            assert cluster.committed_offsets("planned-again", [WirePartition(orders.name, 0)]) == {}
            planner.latest(end, limited=True)
            assert cluster.committed_offsets("planned-again", [WirePartition(orders.name, 0)]) == {(orders.name, 0): 7}

    def test_topic_created_again_with_fewer_partitions(self, topic: Callable[..., Topic]) -> None:
        orders = topic(2)
        orders.produce(3, 1)
        planner = orders.planner()
        first = planner.initial()
        start = stored(planner.latest(first, limited=True))
        orders.delete()
        orders.smaller()
        for plan in (
            lambda: orders.planner().latest(start, limited=True),
            lambda: orders.planner().ranges(first, start),
        ):
            with pytest.raises(DataLossError, match="was deleted and recreated") as raised:
                plan()
            assert str(raised.value).count("deleted") == 1

    def test_a_batch_query_has_no_checkpoint(self, topic: Callable[..., Topic]) -> None:
        orders = topic()
        orders.produce(5)
        ranges = plan_batch(orders.options().for_batch())
        orders.delete_records(0, 3)
        with pytest.raises(DataLossError, match="offsets 0 to 2 are gone") as raised:
            offsets_read(orders.options().for_batch(), ranges)
        assert "checkpoint" not in str(raised.value)
        with pytest.raises(DataLossError, match="change the starting and ending offsets") as raised:
            plan_batch(orders.options(startingOffsets=json.dumps({orders.name: {"0": 1}})).for_batch())
        assert "checkpoint" not in str(raised.value)

    def test_a_deleted_topic_is_a_loss(self, topic: Callable[..., Topic]) -> None:
        orders = topic()
        orders.produce(7)
        start = stored(orders.planner().latest(orders.planner().initial(), limited=True))
        orders.delete()
        assert self.both(orders, start, f"{orders.name}-0 was deleted") == {}

    def test_gaps_are_not_loss(self, topic: Callable[..., Topic]) -> None:
        orders = topic()
        for _ in range(4):
            orders.produce(5)

        class Compacted:
            """A log that compaction took two batches from: who asks for them gets the next one."""

            def __init__(self, cluster: Cluster) -> None:
                self.cluster = cluster

            def fetch(self, partition: Any, offset: int, **settings: Any) -> Fetched:
                return self.cluster.fetch(partition, 10 if 3 <= offset < 10 else offset, **settings | {"max_bytes": 1})

        with Cluster(orders.bootstrap) as cluster:
            options = orders.options()
            for stop, found in ((20, [0, 1, 2, 3, 4, *range(10, 20)]), (8, [0, 1, 2, 3, 4])):
                reader = RangeReader(options, Range(orders.name, 0, 0, stop), Compacted(cluster))  # type: ignore[arg-type]
                assert column(reader.batches(ArrowDecoder(["offset"]))) == found


class TestTransactions:
    def test_open_ones_hold_a_stream_up_and_aborted_ones_are_left_out(self, topic: Callable[..., Topic]) -> None:
        orders = topic()
        producer = Producer(
            {"bootstrap.servers": orders.bootstrap, "transactional.id": orders.name, "log_level": 0, "linger.ms": 0}
        )
        producer.init_transactions(TIMEOUT_SECONDS)
        for number in range(3):
            producer.begin_transaction()
            for _ in range(2):
                producer.produce(orders.name, f"transaction {number}")
            producer.flush(TIMEOUT_SECONDS)
            if number == 0:
                producer.commit_transaction(TIMEOUT_SECONDS)
            elif number == 1:
                producer.abort_transaction(TIMEOUT_SECONDS)
        planner = orders.planner()
        end = planner.latest(planner.initial(), limited=True)
        assert orders.positions(end) == {0: 6}
        assert offsets_read(orders.options(), planner.ranges(planner.initial(), end)) == [0, 1]
        dirty = {"kafka.isolation.level": "read_uncommitted"}
        assert offsets_read(orders.options(**dirty), plan_batch(orders.options(**dirty))) == [0, 1, 3, 4, 6, 7]
        # A query that was ahead, because it read uncommitted records before, waits; nothing is lost.
        ahead = {orders.name: {"0": 8}}
        assert orders.positions(orders.planner().latest(ahead, limited=True)) == {0: 8}
        producer.commit_transaction(TIMEOUT_SECONDS)
        after = orders.planner().latest(end, limited=True)
        assert orders.positions(after) == {0: 9}
        assert offsets_read(orders.options(), planner.ranges(end, after)) == [6, 7]


class TestHistory:
    """A table that a topic was copied to up to some offset, and the topic from there on."""

    columns = "topic,partition,offset,value"

    @pytest.fixture
    def table(self, topic: Callable[..., Topic], tmp_path: Path) -> tuple[Topic, Path]:
        orders = topic(2)
        orders.produce(30, 0)
        orders.produce(8, 1)
        for first in (0, 10):  # two files, of the first partition's first twenty records
            offsets = list(range(first, first + 10))
            names, values = [orders.name] * 10, [str(number).zfill(10).encode() for number in offsets]
            rows = {"topic": names, "partition": pa.array([0] * 10, pa.int32()), "offset": offsets, "value": values}
            write_deltalake(str(tmp_path), pa.table(rows), mode="append")
        return orders, tmp_path

    def history(self, options: ReadOptions) -> HistoryPlanner:
        assert isinstance(options.starting, FromTable)
        schema = Rows(options).arrow_schema
        return HistoryPlanner(
            options.starting.location, dict(options.table_options), DefaultSource.open_history, schema
        )

    def values(self, options: ReadOptions, parts: Sequence[object]) -> list[tuple[int, int]]:
        rows = Rows(options)
        found = []
        for part in parts:
            batches = part.read(rows.arrow_schema) if isinstance(part, HistoryPart) else rows.read(part)  # type: ignore[arg-type]
            for row in (row for batch in batches for row in batch.to_pylist()):
                assert int(row["value"]) == row["offset"]
                found.append((row["partition"], row["offset"]))
        return found

    def test_a_stream_reads_the_table_and_then_the_tail(self, table: tuple[Topic, Path]) -> None:
        orders, path = table
        options = orders.options(startingOffsets=f"table:{path}", columns=self.columns, maxOffsetsPerTrigger="12")
        planner = StreamPlanner(options, history=self.history(options))
        start, batches = stored(planner.initial()), []
        while (end := stored(planner.latest(start, limited=True))) != start:
            batches.append(self.values(options, planner.parts(start, end)))
            again = StreamPlanner(options, history=self.history(options))
            assert self.values(options, again.parts(start, end)) == batches[-1]
            start = end
        expected = [(0, number) for number in range(30)] + [(1, number) for number in range(8)]
        assert sorted(row for batch in batches for row in batch) == expected
        assert batches[:2] == [[(0, n) for n in range(10)], [(0, n) for n in range(10, 20)]]
        assert max(map(len, batches)) <= 12
        with pytest.raises(CheckpointError, match="has not read its table to the end"):
            orders.planner().latest(planner.initial(), limited=True)
        begin = planner.initial()
        with pytest.raises(CheckpointError, match="has not read its table to the end"):
            orders.planner().parts(begin, stored(planner.latest(begin, limited=False)))

    def test_a_batch_reads_both_at_once(self, table: tuple[Topic, Path]) -> None:
        orders, path = table
        options = orders.options(startingOffsets=f"table:{path}", columns=self.columns)
        parts = plan_with_history(options, self.history(options))
        expected = [(0, number) for number in range(30)] + [(1, number) for number in range(8)]
        assert sorted(self.values(options, parts)) == expected

    def test_a_tail_that_retention_took_is_loss(self, table: tuple[Topic, Path]) -> None:
        orders, path = table
        orders.delete_records(0, 25)
        options = orders.options(startingOffsets=f"table:{path}", columns=self.columns)
        with pytest.raises(DataLossError, match="the offsets 20 to 24 are gone"):
            StreamPlanner(options, history=self.history(options)).initial()

    def test_columns_that_the_table_has_not_are_told_of(self, table: tuple[Topic, Path]) -> None:
        orders, path = table
        options = orders.options(startingOffsets=f"table:{path}")
        with pytest.raises(LakeError, match="has no column key"):
            StreamPlanner(options, history=self.history(options)).initial()


class TestTypedColumns:
    """JSON stands for all formats here: what they can read is tested where they are."""

    @pytest.fixture
    def orders(self, topic: Callable[..., Topic]) -> Topic:
        made = topic()
        producer = Producer({"bootstrap.servers": made.bootstrap, "log_level": 0})
        for value in ('{"id": "a", "amount": 1.5}', "{", None, '{"id": "b", "amount": "much"}', '{"id": "c"}'):
            producer.produce(made.name, value, key="k", headers={"trace": b"1"})
        assert producer.flush(TIMEOUT_SECONDS) == 0
        return made

    def rows(self, orders: Topic, **more: str) -> list[dict[str, Any]]:
        schema = {"valueFormat": "json", "valueSchema": "id STRING, amount DOUBLE"}
        options = orders.options(**schema | more)
        rows = Rows(options)
        batches = [batch for each in plan_batch(options) for batch in rows.read(each)]
        assert all(batch.schema == rows.arrow_schema for batch in batches)
        return [row for batch in batches for row in batch.to_pylist()]

    def test_a_column_says_what_is_wrong(self, orders: Topic) -> None:
        rows = self.rows(orders, columns="offset,value,_error")
        assert [row["value"] and row["value"]["id"] for row in rows] == ["a", None, None, None, "c"]
        good = [True, False, True, False, True]
        assert [row["_error"] is None for row in rows] == good
        assert rows[1]["_error"].startswith("value: no JSON") and "amount" in rows[3]["_error"]
        assert [row["_error"] is None for row in self.rows(orders, columns="_error")] == good

    def test_dead_letters_are_as_they_came_and_say_from_where(self, orders: Topic, topic: Callable[..., Topic]) -> None:
        letters = topic()
        more = {"deadLetterTopic": letters.name, "deadLetterHeaders": '{"team": "shop"}', "columns": "value"}
        assert [row["value"] and row["value"]["id"] for row in self.rows(orders, **more)] == ["a", None, "c"]
        options = letters.options(includeHeaders="true")
        (batch,) = (batch for each in plan_batch(options) for batch in Rows(options).read(each))
        first, second = batch.to_pylist()
        assert (first["key"], first["value"], second["value"][:12]) == (b"k", b"{", b'{"id": "b", ')
        headers = {each["key"]: each["value"] for each in first["headers"]}
        assert headers.pop("millstream.reason").startswith(b"value: no JSON")
        place = {"millstream.topic": orders.name.encode(), "millstream.partition": b"0", "millstream.offset": b"1"}
        assert headers == {"trace": b"1", "team": b"shop"} | place

    def test_fail_names_the_record(self, orders: Topic) -> None:
        with pytest.raises(BadRecordError, match=rf"{orders.name}-0@1 cannot be decoded: value: no JSON.*badRecords"):
            self.rows(orders, badRecords="fail")

    def test_dead_letters_need_a_topic_that_exists(self, orders: Topic) -> None:
        with pytest.raises(MissingTopicError, match="deadLetterTopic: topic 'planned-none' does not exist"):
            self.rows(orders, deadLetterTopic="planned-none")

    def test_several_topics_need_one_schema(self, orders: Topic) -> None:
        registry = {"schema.registry.url": "http://127.0.0.1:1", "valueFormat": "avro"}
        with pytest.raises(OptionError, match="valueFormat avro of several topics needs valueSubject or valueSchema"):
            Rows(orders.options(subscribe="a,b", **registry))

    def test_a_schema_that_changed_meanwhile_is_read_as_it_was(self, orders: Topic) -> None:
        schema = {"valueFormat": "json", "valueSchema": "amount DOUBLE, more INT, id STRING", "columns": "value"}
        options = orders.options(**schema)
        value = StructType().add("id", "string").add("amount", "double").add("gone", "integer")
        rows = Rows(options, StructType().add("value", value))
        (batch,) = (batch for each in plan_batch(options) for batch in rows.read(each))
        assert batch.schema == rows.arrow_schema
        assert batch.to_pylist()[0]["value"] == {"id": "a", "amount": 1.5, "gone": None}


@pytest.fixture(scope="module")
def registry(broker: EmbeddedBroker) -> Iterator[str]:
    with Gateway(GatewayOptions(broker.bootstrap_servers)) as gateway:
        yield gateway.url


class TestRegistry:
    """Avro by the registry's schemas, through a change of schema in the middle of a topic."""

    def test_records_of_all_versions_have_the_newest_ones_columns(
        self, topic: Callable[..., Topic], registry: str
    ) -> None:
        orders = topic()
        client = RegistryClient(registry)
        fields = ['{"name": "id", "type": "string"}', '{"name": "amount", "type": "double", "default": 0.5}']
        values: list[bytes] = [b"\x00\x00\x01\x00\x00what?", b"no prefix"]
        for number in (1, 2):
            text = f'{{"type": "record", "name": "Order", "fields": [{", ".join(fields[:number])}]}}'
            client.register(f"{orders.name}-value", Schema(text, "AVRO"))
            rows = [{"id": f"v{number}"} | ({"amount": 2.5} if number == 2 else {})]
            written = make_format("avro", topic=orders.name, registry_url=registry).encode(pa.array(rows))
            values += written.to_pylist()
        producer = Producer({"bootstrap.servers": orders.bootstrap, "log_level": 0})
        for value in values:
            producer.produce(orders.name, value)
        assert producer.flush(TIMEOUT_SECONDS) == 0

        more = {"valueFormat": "avro", "schema.registry.url": registry, "columns": "value,_error"}
        options = orders.options(**more)
        carried = pickle.loads(pickle.dumps(Rows(options)))
        (batch,) = (batch for each in plan_batch(options) for batch in carried.read(each))
        *bad, first, second = batch.to_pylist()
        assert first == {"value": {"id": "v1", "amount": 0.5}, "_error": None}
        assert second == {"value": {"id": "v2", "amount": 2.5}, "_error": None}
        assert [row["value"] for row in bad] == [None, None]
        assert "65536" in bad[0]["_error"] and bad[1]["_error"]

    def test_a_schema_that_the_registry_does_not_have(self, topic: Callable[..., Topic], registry: str) -> None:
        orders = topic()
        with pytest.raises(SchemaNotFoundError, match=f"{orders.name}-value"):
            Rows(orders.options(valueFormat="avro", **{"schema.registry.url": registry}))


class TestBatch:
    def test_a_batch_begins_and_ends_at_the_given_positions(self, topic: Callable[..., Topic]) -> None:
        orders = topic(2)
        now = int(time.time() * 1000)
        orders.produce(10, 0, timestamp=now)
        orders.produce(10, 1, timestamp=now + 5)

        def planned(**more: str) -> dict[int, tuple[int, int]]:
            return spans(plan_batch(orders.options(**more).for_batch()))

        def each(first: int, second: int) -> str:
            return json.dumps({orders.name: {"0": first, "1": second}})

        assert planned() == {0: (0, 10), 1: (0, 10)}
        assert planned(startingOffsets=each(-2, 3), endingOffsets=each(5, -1)) == {0: (0, 5), 1: (3, 10)}
        assert planned(startingTimestamp=str(now + 4), endingTimestamp=str(now + 7)) == {0: (4, 7), 1: (0, 2)}
        by_time = each(now + 9, now + 99)
        with pytest.raises(SourceError, match=rf"-1 has no record at or after {now + 99}.*Strategy to latest"):
            planned(startingOffsetsByTimestamp=by_time)
        more = {"startingOffsetsByTimestamp": by_time, "startingOffsetsByTimestampStrategy": "latest"}
        assert planned(**more) == {0: (9, 10)}
        assert planned(endingOffsetsByTimestamp=by_time) == {0: (0, 9), 1: (0, 10)}
        with pytest.raises(OptionError, match=r"lacks planned-\d+-1"):
            planned(startingOffsets=json.dumps({orders.name: {"0": 1}}))
        with pytest.raises(DataLossError, match="ends at 10, before offset 99 of endingOffsets"):
            planned(endingOffsets=each(99, 1))
        assert planned(endingOffsets=each(99, 1), failOnDataLoss="false") == {0: (0, 10), 1: (0, 1)}

    def test_ranges_of_one_partition_read_all_of_it_once(self, topic: Callable[..., Topic]) -> None:
        orders = topic()
        orders.produce(1000, 0, size=200, timestamp=0, **{"batch.size": 20_000, "compression.type": "lz4"})
        options = orders.options(minPartitions="7", **{"kafka.max.partition.fetch.bytes": "8k"})
        ranges = plan_batch(options)
        assert len(ranges) == 7 and offsets_read(options, ranges) == list(range(1000))

    def test_patterns_and_assignments_choose_partitions(
        self, topic: Callable[..., Topic], broker: EmbeddedBroker
    ) -> None:
        orders, clicks = topic(2), topic()
        orders.produce(1, 1)
        clicks.produce(2)
        base = {"kafka.bootstrap.servers": broker.bootstrap_servers}

        def planned(**more: str) -> set[tuple[str, int, int]]:
            return {(each.topic, each.partition, each.stop) for each in plan_batch(parse_read_options(base | more))}

        pattern = f"({orders.name}|{clicks.name})"
        assert planned(subscribePattern=pattern) == {(orders.name, 1, 1), (clicks.name, 0, 2)}
        assert planned(assign=json.dumps({orders.name: [1]})) == {(orders.name, 1, 1)}
        with pytest.raises(MissingTopicError, match=r"-2 does not exist; .* has partitions 0 to 1"):
            planned(assign=json.dumps({orders.name: [2]}))
        with pytest.raises(MissingTopicError, match="no topic matches"):
            planned(subscribePattern=r"nothing\d{7}")
        with pytest.raises(MissingTopicError, match=f"did you mean '{orders.name}'"):
            planned(subscribe=f"{orders.name}x", **{"fetchOffset.numRetries": "0"})

    def test_leaving_early_ends_the_fetching(self, topic: Callable[..., Topic]) -> None:
        orders = topic()
        orders.produce(2000, size=1000)
        options = orders.options(**{"kafka.max.partition.fetch.bytes": "16k"})
        batches = RangeReader(options, plan_batch(options)[0]).batches(ArrowDecoder(["value"]))
        assert next(batches).num_rows
        assert isinstance(batches, Generator)
        batches.close()


def test_no_one_there_is_told_in_time_with_the_address() -> None:
    nowhere = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "orders", "kafka.default.api.timeout.ms": "500"}
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1"):
        plan_batch(parse_read_options(nowhere))


def test_a_refusal_is_told_at_once_and_not_asked_again() -> None:
    class Closed(Cluster):
        asked = 0

        def topics(self, names: object = None) -> dict[str, Any]:
            self.asked += 1
            raise refusal("topic 'orders'", ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    closed = Closed("127.0.0.1:1")
    options = parse_read_options({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "orders"})
    with pytest.raises(RefusedError, match=r"'orders' .* \(TOPIC_AUTHORIZATION_FAILED\)"):
        plan_batch(options, closed)
    with pytest.raises(RefusedError, match="TOPIC_AUTHORIZATION_FAILED"):
        StreamPlanner(options, closed).latest({"orders": {"0": 1}}, limited=True)
    assert closed.asked == 2


@pytest.mark.timeout(300)
def test_a_leader_that_dies_in_the_middle_of_a_read_is_not_noticed() -> None:
    settings: Mapping[str, Any] = {"default.replication.factor": 3, "min.insync.replicas": 2}
    with EmbeddedCluster(3, settings) as cluster:
        orders = Topic(cluster.bootstrap_servers, 1, 3)
        orders.produce(5000, size=1000, acks="all")
        options = orders.options(**{"kafka.max.partition.fetch.bytes": "64k"})
        ranges = plan_batch(options)
        decoder = ArrowDecoder(["offset"], max_rows=50)
        batches = RangeReader(options, ranges[0]).batches(decoder)
        read = list(next(batches).column(0).to_pylist())
        with Cluster(cluster.bootstrap_servers) as wire:
            leader = wire.topics([orders.name])[orders.name].partitions[0].leader
        cluster.kill(leader)
        read += column(batches)
        assert read == list(range(5000))
