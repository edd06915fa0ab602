"""`.write` and `.writeStream.format("millstream")` in Spark: columns, partitions, headers, errors, exactly once."""

import json
import re
import shutil
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from millstream.columnar import partition_by_key
from millstream.raw_client import Cluster, WireError
from millstream.spark import start_query, write_batch
from millstream.spark.errors import SinkError
from millstream.spark.sink.decisions import TOPIC as DECISIONS
from millstream.spark.sink.sink import BatchWriter
from millstream.testing import EmbeddedBroker
from tests.system.spark.streams import failure_of, run_stream
from tests.system.spark_exactly_once.committed import committed_values, hidden
from tests.waiting import TIMEOUT_SECONDS
from tools.apache_kafka import ApacheKafkaBroker, resolve

pytestmark = pytest.mark.timeout(900)
_names = (f"sink-{number}" for number in count())


@pytest.fixture(scope="module")
def cluster(broker: EmbeddedBroker) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap_servers) as cluster:
        yield cluster


class Sink:
    """A topic of a test's own, written and read back in Spark."""

    def __init__(self, spark: SparkSession, cluster: Cluster, partitions: int = 3, **configs: str) -> None:
        self.spark, self.cluster, self.topic = spark, cluster, next(_names)
        cluster.create_topic(
            self.topic, partitions, 1, {name.replace("_", "."): value for name, value in configs.items()}
        )

    def options(self, more: dict[str, Any]) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.cluster.bootstrap, "topic": self.topic} | more

    def write(self, rows: DataFrame, **more: Any) -> None:
        rows.write.format("millstream").mode("append").options(**self.options(more)).save()

    def rows(self) -> DataFrame:
        given = {"kafka.bootstrap.servers": self.cluster.bootstrap, "subscribe": self.topic, "includeHeaders": "true"}
        return self.spark.read.format("millstream").options(**given).load()

    def values(self) -> list[str]:
        """What is committed, once the markers of transactions that were ended are written."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while hidden(self.cluster, self.topic) and time.monotonic() < deadline:
            time.sleep(0.02)
        return sorted(committed_values(self.cluster, self.topic))


@pytest.fixture
def sink(spark: SparkSession, cluster: Cluster) -> Sink:
    return Sink(spark, cluster)


def test_columns_arrive_as_they_were(sink: Sink, spark: SparkSession) -> None:
    rows = spark.sql(
        """
        SELECT * FROM VALUES
          ('a', cast('one' as binary), array(named_struct('key', 'h', 'value', cast('x' as binary))), 2,
           timestamp '2026-01-02 03:04:05.678'),
          (null, null, null, null, null)
        AS t(key, value, headers, partition, timestamp)
        """
    )
    sink.write(rows.coalesce(1))
    found = {row.key: row for row in sink.rows().collect()}
    one = found[b"a"]
    assert (bytes(one.value), one.partition, one.topic) == (b"one", 2, sink.topic)
    assert [(each.key, bytes(each.value)) for each in one.headers] == [("h", b"x")]
    assert one.timestamp.isoformat().startswith("2026-01-02T03:04:05.678")
    assert found[None].value is None
    assert found[None].headers is None


def test_keys_go_where_javas_producer_would_put_them(sink: Sink, spark: SparkSession) -> None:
    rows = spark.range(200).selectExpr("concat('key-', id) as key", "cast(id as string) as value")
    sink.write(rows.repartition(3), **{"kafka.compression.type": "lz4"})
    found = sink.rows().selectExpr("cast(key as string) as key", "partition").collect()
    assert len(found) == 200
    keys = pa.array([row.key for row in found])
    assert [row.partition for row in found] == partition_by_key(keys, 3).tolist()


def test_rows_say_which_topic(spark: SparkSession, cluster: Cluster) -> None:
    left, right = Sink(spark, cluster), Sink(spark, cluster)
    rows = spark.range(10).selectExpr(
        f"if(id % 2 = 0, '{left.topic}', '{right.topic}') as topic", "string(id) as value"
    )
    options = {"kafka.bootstrap.servers": cluster.bootstrap}
    rows.write.format("millstream").mode("append").options(**options).save()
    assert left.values() == ["0", "2", "4", "6", "8"]
    assert right.values() == ["1", "3", "5", "7", "9"]


@pytest.mark.parametrize(
    ("rows", "options", "told"),
    [
        ("SELECT string(null) AS topic, 'x' AS value", {}, "has null in the column `topic`"),
        ("SELECT 'no such topic' AS topic, 'x' AS value", {}, "INVALID_TOPIC"),
        ("SELECT 'x' AS value, 7 AS partition", {"topic": "*"}, "has partitions 0 to 2"),
        ("SELECT repeat('x', 3000000) AS value", {"topic": "*"}, "the limit is 1048576"),
        ("SELECT 'x' AS values", {"topic": "*"}, "rename 'values'"),
    ],
)
def test_bad_rows_are_told(sink: Sink, spark: SparkSession, rows: str, options: dict[str, str], told: str) -> None:
    given = {"kafka.bootstrap.servers": sink.cluster.bootstrap} | dict.fromkeys(options, sink.topic)
    with pytest.raises(PySparkException) as raised:
        spark.sql(rows).write.format("millstream").mode("append").options(**given).save()
    assert told in str(raised.value)


@pytest.mark.slow  # the other limit, of the option, is among the bad rows above
def test_a_row_larger_than_the_topic_allows(spark: SparkSession, cluster: Cluster) -> None:
    sink = Sink(spark, cluster, max_message_bytes="2000")
    with pytest.raises(PySparkException) as raised:
        sink.write(spark.sql("SELECT repeat('x', 3000) AS value"))
    assert re.search(r"a row takes 30\d\d bytes; the limit is 2000 \(max.message.bytes of topic", str(raised.value))
    sink.write(spark.range(500).selectExpr("repeat('y', 100) as value"))  # batches are made to fit
    assert len(sink.values()) == 500


def test_a_batch_write_exactly_once_shows_nothing_of_what_failed(sink: Sink, spark: SparkSession) -> None:
    failing = spark.range(100).repartition(2).selectExpr("string(id) as value", "if(id = 99, 9, 0) as partition")
    with pytest.raises(PySparkException, match="has partitions 0 to 2"):
        sink.write(failing, delivery="exactly-once")
    assert sink.values() == []
    sink.write(spark.range(100).selectExpr("string(id) as value"), delivery="exactly-once")
    assert sorted(map(int, sink.values())) == list(range(100))


@pytest.mark.parametrize("begun", [True, False])
def test_a_task_that_runs_on_after_a_batch_write_failed_leaves_nothing_open(sink: Sink, begun: bool) -> None:
    """Spark ends the other tasks when one has failed, but not before it tells the writer: they may go on."""
    writer = BatchWriter(sink.options({"delivery": "exactly-once"}), StructType().add("value", "string"), False)
    rows = pa.RecordBatch.from_pydict({"value": ["late"]})

    def late() -> Iterator[pa.RecordBatch]:
        if not begun:
            writer.abort([])
        yield rows
        if begun:
            writer.abort([])
        yield rows

    with pytest.raises((SinkError, WireError)):
        writer.write(late())
    assert not hidden(sink.cluster, sink.topic)
    assert sink.values() == []


def check_restarts(sink: Sink, spark: SparkSession, checkpoint: Path) -> None:
    """Runs a query twice; in between, Spark forgets that its last batch was committed."""
    source = Sink(spark, sink.cluster)

    def run() -> None:
        rows = (
            spark.readStream.format("millstream")
            .option("kafka.bootstrap.servers", sink.cluster.bootstrap)
            .option("subscribe", source.topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", 60)
            .load()
        )
        writer = (
            rows.selectExpr("uuid() as key", "value")  # other rows each time: what counts is where they are from
            .writeStream.format("millstream")
            .options(**sink.options({}))
            .option("checkpointLocation", str(checkpoint))
        )
        run_stream(writer.trigger(availableNow=True).start)

    source.write(spark.range(100).selectExpr("string(id) as key", "string(id) as value"))
    run()
    assert sorted(map(int, sink.values())) == list(range(100))
    last = max(int(each.name) for each in (checkpoint / "commits").iterdir() if each.name.isdigit())
    for name in (str(last), f".{last}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    source.write(spark.range(100, 130).selectExpr("string(id) as key", "string(id) as value"))
    run()
    assert sorted(map(int, sink.values())) == list(range(130))
    assert hidden(sink.cluster, sink.topic) == 0
    assert DECISIONS in sink.cluster.topics()


def test_a_stream_is_written_once_over_restarts(sink: Sink, spark: SparkSession, tmp_path: Path) -> None:
    check_restarts(sink, spark, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_apache_kafka_is_written_the_same(spark: SparkSession, tmp_path: Path) -> None:
    with ApacheKafkaBroker(resolve(), tmp_path / "kafka") as kafka, Cluster(kafka.bootstrap_servers) as cluster:
        check_restarts(Sink(spark, cluster), spark, tmp_path / "checkpoint")


def test_a_stream_at_least_once_needs_no_transactions(sink: Sink, spark: SparkSession, tmp_path: Path) -> None:
    source = Sink(spark, sink.cluster)
    source.write(spark.range(50).selectExpr("string(id) as value"))
    writer = (
        spark.readStream.format("millstream")
        .option("kafka.bootstrap.servers", sink.cluster.bootstrap)
        .option("subscribe", source.topic)
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("value")
        .writeStream.format("millstream")
        .options(**sink.options({"delivery": "at-least-once"}))
        .option("checkpointLocation", str(tmp_path))
    )
    query = run_stream(writer.trigger(availableNow=True).start)
    assert len(sink.values()) == 50
    response = sink.cluster.call(
        "list_transactions", state_filters=[], producer_id_filters=[], duration_filter=-1, transactional_id_pattern=None
    )
    assert not [row for row in response.transaction_states if query.id in row.transactional_id]


class Run:
    """A query from a topic, or from text files, into a sink; its checkpoint can be put back to an older state."""

    def __init__(self, sink: Sink, directory: Path, *, files: bool = False) -> None:
        self._sink, self._directory, self._files = sink, directory, files
        self._source = Sink(sink.spark, sink.cluster)
        self.checkpoint = directory / "checkpoint"
        (directory / "in").mkdir()

    def give(self, numbers: range) -> None:
        if self._files:
            (self._directory / "in" / f"{numbers.start}.txt").write_text("\n".join(map(str, numbers)))
            return
        rows = self._sink.spark.range(numbers.start, numbers.stop)
        self._source.write(rows.selectExpr("string(id) as key", "string(id) as value"))

    def run(self, **more: str) -> None:
        reader = self._sink.spark.readStream
        if self._files:
            rows = reader.text(str(self._directory / "in"))
        else:
            given = {"subscribe": self._source.topic, "startingOffsets": more.pop("startingOffsets", "earliest")}
            bootstrap = self._sink.cluster.bootstrap
            rows = reader.format("millstream").options(**given, **{"kafka.bootstrap.servers": bootstrap}).load()
        given = self._sink.options({"checkpointLocation": str(self.checkpoint), **more})
        writer = rows.selectExpr("value").writeStream.format("millstream").options(**given)
        run_stream(writer.trigger(availableNow=True).start)

    def keep(self) -> None:
        shutil.copytree(self.checkpoint, self._directory / "kept")

    def restore(self) -> None:
        shutil.rmtree(self.checkpoint)
        shutil.copytree(self._directory / "kept", self.checkpoint)

    def forget_last_commit(self) -> None:
        last = max(int(each.name) for each in (self.checkpoint / "commits").iterdir() if each.name.isdigit())
        for name in (str(last), f".{last}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)

    def written(self) -> list[int]:
        return sorted(map(int, self._sink.values()))


def test_a_checkpoint_older_than_the_topic_loses_nothing(sink: Sink, spark: SparkSession, tmp_path: Path) -> None:
    """The batch that is planned again has other rows than the one that was written under its id."""
    run = Run(sink, tmp_path)
    run.give(range(100))
    run.run()
    run.keep()
    run.give(range(100, 200))
    run.run()
    run.restore()
    run.give(range(200, 300))
    with pytest.raises(StreamingQueryException) as raised:
        run.run()
    assert "batch 1 of query" in str(raised.value)
    assert "was written already, with other input" in str(raised.value)
    assert run.written() == list(range(200))
    # What the error says to do.
    starting = re.search(r"startingOffsets=(\{.*?\}\})", str(raised.value))
    assert starting is not None
    assert sum(next(iter(json.loads(starting[1]).values())).values()) == 200
    run.checkpoint = tmp_path / "new checkpoint"
    run.run(startingOffsets=starting[1])
    assert run.written() == list(range(300))


def test_foreach_batch_writes_once_what_is_repeated(sink: Sink, spark: SparkSession, tmp_path: Path) -> None:
    """A batch fails after its write, and is repeated by the next run. Other rows under its id are refused."""
    broker = {"kafka.bootstrap.servers": sink.cluster.bootstrap}
    source = Sink(spark, sink.cluster)
    spark.range(10).selectExpr("string(id) AS value").write.format("millstream").mode("append").options(
        **broker, topic=source.topic
    ).save()
    seen: list[int] = []

    def copy(rows: DataFrame, batch_id: int) -> None:
        write_batch(rows.select("value"), batch_id, app_id="foreach", topic=sink.topic, **broker)
        seen.append(batch_id)
        if seen == [0]:
            raise RuntimeError("after the write")

    def start() -> StreamingQuery:
        rows = spark.readStream.format("millstream").options(**broker, subscribe=source.topic)
        frame = rows.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 6).load()
        writer = frame.writeStream.foreachBatch(copy).option("checkpointLocation", str(tmp_path / "checkpoint"))
        return writer.trigger(availableNow=True).start()

    assert "after the write" in str(failure_of(start_query(start)))
    once = len(sink.values())
    run_stream(start)
    assert seen[:2] == [0, 0] and seen[2:] == sorted(set(seen[2:]))
    assert 0 < once < 10 and sink.values() == [str(number) for number in range(10)]

    other = spark.sql("SELECT 'other' AS value")
    with pytest.raises(PySparkException, match="was written already, with other input"):
        write_batch(other, seen[-1], app_id="foreach", topic=sink.topic, **broker)
    with pytest.raises(PySparkException, match="older"):
        write_batch(other, seen[-1] - 1, app_id="foreach", topic=sink.topic, **broker)
    assert sink.values() == [str(number) for number in range(10)]


def test_a_source_without_known_offsets_is_told_by_its_rows(sink: Sink, spark: SparkSession, tmp_path: Path) -> None:
    run = Run(sink, tmp_path, files=True)
    run.give(range(100))
    run.run()
    run.keep()
    run.give(range(100, 200))
    run.run()
    run.forget_last_commit()
    run.run()  # the same rows: they count as written
    assert run.written() == list(range(200))
    run.restore()
    run.give(range(200, 300))
    with pytest.raises(StreamingQueryException, match="was written already, with other input"):
        run.run()
    assert run.written() == list(range(200))
    run.run(checkReplays="false")  # the user wants it so
    assert run.written() == list(range(200))
