"""`format("millstream")` in Spark: rows, streams, restarts and errors as a user sees them."""

import json
import re
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millstream.raw_client import Cluster, TopicPartition, UnreadableError
from millstream.spark import start_query
from millstream.spark.progress_listener import GroupProgressListener
from millstream.testing import EmbeddedBroker
from tests.integration.node.broker.unreadable import unreadable
from tests.repository import REPOSITORY
from tests.system.spark.streams import run_stream
from tests.waiting import TIMEOUT_SECONDS, until
from tests.wire import Wire, batch
from tools.apache_kafka import ApacheKafkaBroker, resolve

_names = (f"source-{number}" for number in count())


class Topic:
    """A topic of a test's own, and the ways to read it in Spark."""

    def __init__(self, spark: SparkSession, bootstrap: str, partitions: int = 1, name: str | None = None) -> None:
        self.spark, self.bootstrap, self.name = spark, bootstrap, name or next(_names)
        self.admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        new = NewTopic(self.name, partitions, 1)
        self.admin.create_topics([new], operation_timeout=30)[self.name].result(TIMEOUT_SECONDS)

    def produce(self, *values: str, partition: int = 0, **more: Any) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 0, "linger.ms": 5})
        for value in values:
            producer.produce(self.name, value, partition=partition, **more)
        assert producer.flush(TIMEOUT_SECONDS) == 0

    def options(self, **more: Any) -> dict[str, str]:
        given = {"kafka.bootstrap.servers": self.bootstrap, "subscribe": self.name, "fetchOffset.retryIntervalMs": "20"}
        return given | {name: str(value) for name, value in more.items()}

    def read(self, **more: Any) -> DataFrame:
        return self.spark.read.format("millstream").options(**self.options(**more)).load()

    def stream(self, **more: Any) -> DataFrame:
        given = self.options(**{"startingOffsets": "earliest"} | more)
        return self.spark.readStream.format("millstream").options(**given).load()

    def available_now(self, checkpoint: Path, write: Callable[[DataFrame, int], None], **more: Any) -> StreamingQuery:
        """One run over what is there, to its end; raises what stopped it."""
        writer = self.stream(**more).writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint))
        return run_stream(writer.trigger(availableNow=True).start)

    def committed(self, group: str) -> dict[int, int]:
        with Cluster(self.bootstrap) as cluster:
            partitions = [TopicPartition(self.name, number) for number in range(cluster.partitions_of(self.name))]
            return {each.partition: at for each, at in cluster.committed_offsets(group, partitions).items()}


@pytest.fixture
def topic(spark: SparkSession, broker: EmbeddedBroker) -> Callable[..., Topic]:
    return lambda partitions=1: Topic(spark, broker.bootstrap_servers, partitions)


class Collected:
    """What batches brought, value by value."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def __call__(self, rows: DataFrame, _number: int) -> None:
        self.batches.append(sorted(bytes(row.value).decode() for row in rows.select("value").collect()))

    @property
    def values(self) -> list[str]:
        return sorted(value for batch in self.batches for value in batch)


def text(number: int) -> list[str]:
    return [f"{index:04}" for index in range(number)]


def test_rows_are_those_of_spark_sql_kafka(topic: Callable[..., Topic]) -> None:
    orders = topic(2)
    headers = [("trace", b"\x00\x01"), ("trace", None)]
    at_ms = int(time.time()) * 1000 + 123
    orders.produce("one", key="k", headers=headers, timestamp=at_ms)
    orders.produce("two", partition=1)
    table = orders.read(includeHeaders=True)
    assert table.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int,"
        "headers:array<struct<key:string,value:binary>>>"
    )
    first, second = table.orderBy("partition").collect()
    assert (bytes(first.key), bytes(first.value), first.topic, first.offset) == (b"k", b"one", orders.name, 0)
    assert (first.timestamp.timestamp(), first.timestampType) == (at_ms / 1000, 0)
    assert [(each.key, each.value) for each in first.headers] == headers
    assert (second.key, bytes(second.value), second.partition, second.headers) == (None, b"two", 1, None)
    only = orders.read(columns="offset, value")
    assert only.columns == ["offset", "value"] and sorted(only.collect())[0].offset == 0
    assert orders.read(minPartitions=2, columns="value").rdd.getNumPartitions() == 2
    # Nothing at all is a table, too.
    assert orders.read(startingOffsets=json.dumps({orders.name: {"0": 1, "1": 1}})).count() == 0


def test_a_stream_goes_on_where_it_was_and_its_lag_shows(topic: Callable[..., Topic], tmp_path: Path) -> None:
    orders = topic(2)
    values = text(100)
    orders.produce(*values[:60])
    orders.produce(*values[60:], partition=1)
    seen = Collected()
    query = orders.available_now(tmp_path, seen, maxOffsetsPerTrigger=50, groupId="source-lag")
    assert (seen.values, len(seen.batches)) == (values, 2)
    assert orders.committed("source-lag") == {0: 60, 1: 40}
    first, *_ = query.recentProgress
    (source,) = first.sources
    assert json.loads(source.endOffset)[orders.name] == {"0": 30, "1": 20}
    assert json.loads(source.latestOffset)[orders.name] == {"0": 60, "1": 40}

    orders.produce("more")
    again = Collected()
    orders.available_now(tmp_path, again, maxOffsetsPerTrigger=50, groupId="source-lag")
    assert again.values == ["more"]
    assert orders.committed("source-lag") == {0: 61, 1: 40}


def test_a_batch_that_fails_is_read_again_and_not_committed(topic: Callable[..., Topic], tmp_path: Path) -> None:
    orders = topic()
    orders.produce(*text(10))

    def broken(rows: DataFrame, number: int) -> None:
        if number == 1:
            raise RuntimeError("the sink is full")

    with pytest.raises(Exception, match="the sink is full"):
        orders.available_now(tmp_path, broken, maxOffsetsPerTrigger=4, groupId="source-failed")
    assert orders.committed("source-failed") == {0: 4}
    seen = Collected()
    orders.available_now(tmp_path, seen, maxOffsetsPerTrigger=4, groupId="source-failed")
    assert seen.batches == [text(10)[4:8], text(10)[8:]]
    assert orders.committed("source-failed") == {0: 10}


def test_retention_overtakes_a_stopped_query(topic: Callable[..., Topic], tmp_path: Path) -> None:
    orders = topic()
    orders.produce(*text(10))
    orders.available_now(tmp_path, Collected())
    orders.produce(*text(10))
    next(iter(orders.admin.delete_records([Place(orders.name, 0, 15)]).values())).result(TIMEOUT_SECONDS)
    with pytest.raises(Exception, match=r"offsets 10 to 14 are gone[^$]*failOnDataLoss=false"):
        orders.available_now(tmp_path, Collected())
    seen = Collected()  # the checkpoint is as it was: all that is left is read, and only that
    orders.available_now(tmp_path, seen, failOnDataLoss=False)
    assert seen.values == text(10)[5:]


def test_a_running_stream_takes_what_comes_and_a_listener_commits_at_once(
    spark: SparkSession, topic: Callable[..., Topic], tmp_path: Path
) -> None:
    orders = topic()
    listener = GroupProgressListener({"kafka.bootstrap.servers": orders.bootstrap})
    spark.streams.addListener(listener)
    seen = Collected()
    writer = orders.stream(groupId="source-listener", startingOffsets="latest").writeStream.foreachBatch(seen)
    # The next trigger is far away: only the listener can have told the group.
    query = start_query(writer.option("checkpointLocation", str(tmp_path)).trigger(processingTime="1 hour").start)
    try:
        eventually(lambda: orders.committed("source-listener") == {0: 0} and query.lastProgress is not None)
    finally:
        query.stop()
        spark.streams.removeListener(listener)
    orders.produce("one")
    query = start_query(writer.trigger(processingTime="0 seconds").start)
    try:
        eventually(lambda: seen.values == ["one"])
        orders.produce("two")
        eventually(lambda: seen.values == ["one", "two"])
        eventually(lambda: orders.committed("source-listener") == {0: 2})
    finally:
        query.stop()


def eventually(check: Callable[[], object], seconds: float = TIMEOUT_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def test_mistakes_come_through_to_the_user(spark: SparkSession, topic: Callable[..., Topic]) -> None:
    orders = topic()
    with pytest.raises(Exception, match="no option 'startingoffset'; did you mean 'startingOffsets'"):
        orders.read(startingOffset="earliest")
    with pytest.raises(Exception, match=f"topic '{orders.name}x' does not exist; did you mean '{orders.name}'"):
        orders.read(subscribe=f"{orders.name}x", **{"fetchOffset.numRetries": 0}).count()
    with pytest.raises(Exception, match="the schema of this source is"):
        spark.read.format("millstream").options(**orders.options()).schema("value string").load().count()
    nowhere = orders.options() | {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.default.api.timeout.ms": "300"}
    with pytest.raises(Exception, match=r"127\.0\.0\.1:1.*refused"):
        spark.read.format("millstream").options(**nowhere).load().count()


def test_programs_of_the_page_run(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> None:
    page = REPOSITORY.joinpath("docs", "spark.md").read_text()
    programs = dict(re.findall(r"^```python (\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    assert set(programs) == {"batch", "stream", "typed", "listener"}
    typed = Topic(spark, broker.bootstrap_servers, name="json-orders")
    typed.produce('{"id": "a", "amount": 1.5, "at": "2026-01-01T00:00:00Z"}', "{")
    orders = Topic(spark, broker.bootstrap_servers, name="orders")
    orders.produce(*text(5))
    names: dict[str, Any] = {"spark": spark}

    def run(program: str) -> Any:
        # A table in memory cannot be filled from a checkpoint that was used before.
        names["checkpoint"] = str(tmp_path / uuid4().hex)
        exec(programs[program].replace("localhost:9092", broker.bootstrap_servers), names)
        return names.get("query")

    for program in programs:
        if program == "stream":
            run_stream(lambda: run("stream"))
        else:
            run(program)
    assert [row["count"] for row in spark.sql("SELECT * FROM counts").collect()] == [5]
    eventually(lambda: orders.committed("orders-per-minute") == {0: 5})
    good, bad = names["orders"].orderBy("offset").collect()
    assert (good.value.id, good.value.amount, good.value["at"].year, good._error) == ("a", 1.5, 2026, None)
    assert bad.value is None and bad._error.startswith("value: no JSON")


def test_the_readme_runs_as_printed(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> None:
    """And the topic that it writes to does not exist yet."""
    (program,) = re.findall(r"## Spark\n```python\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
    orders = Topic(spark, broker.bootstrap_servers, name="orders-of-readme")
    program = (
        program.replace("localhost:9092", broker.bootstrap_servers)
        .replace("/tmp/", f"{tmp_path}/")
        .replace('subscribe="orders"', f'subscribe="{orders.name}"')
        .replace(".start()", ".start\n")
    )
    names: dict[str, Any] = {}
    *before, last = program.strip().splitlines()
    exec("\n".join([*before, f"start = {last}"]), names)
    query = start_query(names["start"])
    with Cluster(broker.bootstrap_servers) as cluster:
        until(lambda: orders.committed("revenue") == {0: 0}, "the query has its start offsets")
        orders.produce('{"id": 1, "amount": 5.0}', '{"id": 2, "amount": 500.0}')
        until(lambda: "big-orders" in cluster.topics(["big-orders"]), "the topic is created")
        written = spark.read.format("millstream").options(
            **{"kafka.bootstrap.servers": broker.bootstrap_servers}, subscribe="big-orders"
        )
        until(lambda: written.load().count() > 0, "the order is written")
        assert [json.loads(row.value) for row in written.load().collect()] == [{"id": 2, "amount": 500.0}]
    query.stop()


def test_a_record_without_a_required_property_is_a_bad_record(topic: Callable[..., Topic]) -> None:
    orders = topic()
    orders.produce('{"id": "a", "amount": 1.5}', '{"amount": 2.5}', '{"id": null}')
    schema = {
        "type": "object",
        "properties": {"id": {"type": "string"}, "amount": {"type": "number"}},
        "required": ["id"],
    }
    rows = orders.read(valueFormat="json", valueSchema=json.dumps(schema)).orderBy("offset").collect()
    assert [row.value and row.value.id for row in rows] == ["a", None, None]
    assert [row._error and row._error.split(",")[0] for row in rows] == [
        None,
        "value: id is missing",
        "value: id is null",
    ]


@pytest.fixture
def apache_kafka(tmp_path: Path) -> Iterator[ApacheKafkaBroker]:
    with ApacheKafkaBroker(resolve(), tmp_path / "kafka") as running:
        yield running


@pytest.mark.slow
def test_apache_kafka_is_read_the_same(spark: SparkSession, apache_kafka: ApacheKafkaBroker, tmp_path: Path) -> None:
    orders = Topic(spark, apache_kafka.bootstrap_servers, 2)
    orders.produce(*text(300))
    orders.produce(*text(300), partition=1)
    assert sorted(bytes(row.value).decode() for row in orders.read(columns="value").collect()) == sorted(2 * text(300))
    seen = Collected()
    orders.available_now(tmp_path / "checkpoint", seen, maxBytesPerTrigger="5k", groupId="spark")
    assert seen.values == sorted(2 * text(300)) and len(seen.batches) > 1
    assert orders.committed("spark") == {0: 300, 1: 300}


def test_a_batch_that_cannot_be_read_ends_the_query_with_its_offsets(
    topic: Callable[..., Topic], tmp_path: Path
) -> None:
    """Right checksum, records that cannot be parsed: offsets 3 to 5. Before the broker knows of it, and after."""
    orders = topic()
    with Wire(orders.bootstrap) as wire:
        for data in (batch(b"a", b"b", b"c"), unreadable(), batch(b"d")):
            assert wire.produce(orders.name, data).error_code == 0
    stopped = f'{orders.name}-0@3: .*The offsets 3 to 5 cannot be read.*startingOffsets at "0": 6 for topic'
    with pytest.raises(Exception, match=stopped):
        orders.read().collect()
    with pytest.raises(Exception, match=stopped):
        orders.available_now(tmp_path / "checkpoint", Collected())
    with Cluster(orders.bootstrap) as cluster:  # ten fetches, and the broker opens the batch
        position = TopicPartition(orders.name, 0)
        deadline = time.monotonic() + TIMEOUT_SECONDS
        with pytest.raises(UnreadableError):
            while time.monotonic() < deadline:
                cluster.fetch(position, 3, max_bytes=1 << 20, max_wait_ms=50)
    with pytest.raises(Exception, match=r"cannot be read at offset 3.*startingOffsets at the offset after it"):
        orders.read().collect()
    rows = orders.read(startingOffsets=json.dumps({orders.name: {"0": 6}})).collect()
    assert [bytes(row.value) for row in rows] == [b"d"]


class _Query:
    """A query that is in a state."""

    def __init__(self, error: str | None) -> None:
        self.isActive = error is None
        self.status = {"message": "Waiting for data to arrive"}
        self._error = error

    def exception(self) -> str | None:
        return self._error


def test_a_query_whose_python_process_is_late_is_started_again() -> None:
    late = "Python worker failed to connect back."
    made: list[Any] = [_Query(late), _Query(late), _Query("the topic is gone"), _Query(None)]
    states = iter(made)
    assert start_query(lambda: next(states)) is made[2], "another error is a result"
    assert start_query(lambda: next(states)) is made[3]
