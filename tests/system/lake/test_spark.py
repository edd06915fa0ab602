"""Broker → Spark → table → another engine: the same rows, exactly once."""

import shutil
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millstream.client import Message, connect
from millstream.lake.errors import StaleWriteError
from millstream.lake.options import parse_options
from millstream.lake.table import open_table
from millstream.spark import start_query
from millstream.testing import EmbeddedBroker
from tests.system.lake.conftest import FORMATS, opened, records, rows_of, written
from tests.system.spark.conftest import broker, spark  # noqa: F401 - one session for all rooms

pytest.importorskip("pyspark")
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, Not
from pyspark.sql.types import LongType, StructType, TimestampType

from millstream.lake.spark_source import BatchTableWriter, PruningTableReader, StreamTableWriter
from tests.system.spark.streams import failure_of, run_stream

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]
BEGIN_MS = int(datetime(2026, 1, 1, 23, 59, tzinfo=UTC).timestamp() * 1000)


@pytest.fixture(scope="module")
def topic(broker: EmbeddedBroker) -> Iterator[str]:  # noqa: F811
    """Two partitions with records of two days; the second day begins in the middle."""
    with connect(broker.bootstrap_servers) as client:
        client.create_topic("lake-orders", partitions=2, config={"retention.ms": -1})
    _publish(broker, range(300))
    yield "lake-orders"


def _publish(broker: EmbeddedBroker, numbers: range) -> None:  # noqa: F811
    with connect(broker.bootstrap_servers) as client:
        client.publish_many(
            "lake-orders",
            [
                Message(f"v{number}".encode(), key=f"k{number % 7}".encode(), timestamp=BEGIN_MS + number * 1000)
                for number in numbers
            ],
        )


def _stream(spark: SparkSession, broker: EmbeddedBroker, topic: str, **options: str) -> DataFrame:  # noqa: F811
    reader = spark.readStream.format("millstream").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    for name, value in {"subscribe": topic, "startingOffsets": "earliest", **options}.items():
        reader = reader.option(name, value)
    return reader.load()


def _run(rows: DataFrame, path: Path, **options: str) -> None:
    """All there is, into the table; the checkpoint is beside it."""
    writer = rows.writeStream.format("millstream-table").option("checkpointLocation", f"{path}-checkpoint")
    for name, value in options.items():
        writer = writer.option(name, value)
    run_stream(lambda: writer.trigger(availableNow=True).start(str(path)))


def _read_elsewhere(path: Path, table_format: str) -> list[dict[str, Any]]:
    """By an engine that knows nothing of us."""
    import polars

    if table_format == "delta":
        return polars.read_delta(str(path)).to_arrow().to_pylist()
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("millstream", uri=f"sqlite:///{path.parent}/millstream-catalog.db")
    return catalog.load_table(("default", path.name)).scan().to_arrow().to_pylist()


def _numbers(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(int(bytes(row["value"]).decode()[1:]) for row in rows)


@pytest.mark.parametrize(
    "table_format", [each if each == "delta" else pytest.param(each, marks=pytest.mark.slow) for each in FORMATS]
)
def test_a_topic_becomes_a_table_exactly_once(
    spark: SparkSession,  # noqa: F811
    broker: EmbeddedBroker,  # noqa: F811
    topic: str,
    tmp_path: Path,
    table_format: str,
) -> None:
    path = tmp_path / "orders"
    columns = ("key", "value", "topic", "partition", "offset", "timestamp")
    rows = _stream(spark, broker, topic, maxOffsetsPerTrigger="200").select(*columns)
    _run(rows, path, tableFormat=table_format, partitionBy="_day")
    with connect(broker.bootstrap_servers) as client:
        count = sum(1 for _ in client.consume(topic, start="earliest", follow=False))
    found = _read_elsewhere(path, table_format)
    assert count >= 300 and _numbers(found) == list(range(count))
    for row in found:
        number = int(bytes(row["value"])[1:])
        assert bytes(row["key"]) == f"k{number % 7}".encode()
        assert row["timestamp"].astimezone(UTC) == datetime.fromtimestamp(BEGIN_MS / 1000 + number, UTC)
    places = {(row["partition"], row["offset"]) for row in found}
    assert len(places) == count

    # Spark forgets that the last batch was done, as when it is killed right after our commit: it is run again.
    commits = Path(f"{path}-checkpoint/commits")
    last = max(int(each.name) for each in commits.iterdir() if each.name.isdigit())
    assert last >= 1
    for name in (str(last), f".{last}.crc"):
        (commits / name).unlink(missing_ok=True)
    _publish(broker, range(count, count + 10))
    _run(rows, path)
    assert _numbers(_read_elsewhere(path, table_format)) == list(range(count + 10))

    # Read by Spark, with filters told to the source.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        table = spark.read.format("millstream-table").load(str(path))
        assert table.where("offset >= 100 and partition = 1").count() == sum(
            offset >= 100 and partition == 1 for partition, offset in places
        ) + sum(row["partition"] == 1 and row["offset"] >= 100 for row in _new(path, places))
        assert table.where("timestamp < TIMESTAMP '2026-01-02 00:00:00'").count() == 60
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    some = spark.read.format("millstream-table").option("columns", "offset,value").load(str(path))
    assert some.columns == ["offset", "value"] and some.count() == count + 10


def test_a_checkpoint_older_than_the_table_loses_nothing(
    spark: SparkSession,  # noqa: F811
    broker: EmbeddedBroker,  # noqa: F811
    tmp_path: Path,
) -> None:
    """A batch that is planned again has other rows than the one that was written under its id: it is refused, by all
    formats; and so is one that is older than the last, as a topic does it. `files` has no offsets that we know."""
    with connect(broker.bootstrap_servers) as client:
        client.create_topic("lake-older", partitions=1)
    (tmp_path / "in").mkdir()

    def give(numbers: range) -> None:
        (tmp_path / "in" / f"{numbers.start}.txt").write_text("\n".join(f"v{number}" for number in numbers))
        with connect(broker.bootstrap_servers) as client:
            client.publish_many("lake-older", [Message(f"v{number}".encode()) for number in numbers])

    def run(names: Iterable[str], checkpoint: str = "checkpoint", **options: str) -> dict[str, str]:
        """Runs all at once; what each failed with."""
        queries = {}
        for name in names:
            rows = _stream(spark, broker, "lake-older", **options).select("value")
            if name == "files":
                limit = "1" if options else "1000"
                rows = spark.readStream.option("maxFilesPerTrigger", limit).text(str(tmp_path / "in"))
            writer = rows.writeStream.format("millstream-table").option("checkpointLocation", place(checkpoint, name))
            writer = writer.option("tableFormat", "delta" if name == "files" else name)
            start = partial(writer.trigger(availableNow=True).start, str(tmp_path / "tables" / name))
            queries[name] = start_query(start)
        failures = {name: failure_of(query) for name, query in queries.items()}
        return {name: failure for name, failure in failures.items() if failure is not None}

    def place(checkpoint: str, name: str) -> str:
        return str(tmp_path / checkpoint / name)

    def found(name: str) -> list[int]:
        rows = rows_of(open_table(parse_options({"path": str(tmp_path / "tables" / name)})))
        return sorted(int((row["value"] if name == "files" else row["value"].decode())[1:]) for row in rows)

    def lose(batch: int) -> None:
        """The checkpoint as it was before the batch, which is also what a power cut may leave."""
        for name in ("offsets", "commits", "sources/0"):
            for file in (tmp_path / "checkpoint").glob(f"*/{name}/*"):
                if file.name.strip(".").removesuffix(".crc") == str(batch):
                    file.unlink()

    everything = (*FORMATS, "files")
    give(range(100))
    give(range(100, 200))
    assert run(everything, maxOffsetsPerTrigger="100") == {}
    lose(1)
    give(range(200, 300))
    refused = run(everything)
    for name in everything:
        assert "was written already, with other input" in refused.get(name, "no error"), name
        assert found(name) == list(range(200)), name
    lose(1)
    lose(0)
    too_old = run(everything)
    for name in everything:
        assert "batch 0 of query" in too_old.get(name, "no error"), name
        assert "is older than batch 1" in too_old[name], name
        assert found(name) == list(range(200)), name
        assert len(list((tmp_path / "tables" / name).glob("**/part-*"))) == 2, name  # what was refused is deleted
    # What the errors say to do.
    starting = '{"lake-older":{"0":200}}'
    for name in FORMATS:
        assert f"startingOffsets={starting}" in refused[name], name
        assert f"startingOffsets={starting}" in too_old[name], name
    assert run(FORMATS, "new checkpoint", startingOffsets=starting) == {}
    for name in FORMATS:
        assert found(name) == list(range(300)), name


def _new(path: Path, places: set[tuple[int, int]]) -> list[dict[str, Any]]:
    rows = rows_of(open_table(parse_options({"path": str(path)})), columns=["partition", "offset"])
    return [row for row in rows if (row["partition"], row["offset"]) not in places]


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_driver_that_dies_between_files_and_commit(
    tmp_path: Path,
    table_format: str,
) -> None:
    """What tasks wrote is there and no one sees it; the batch is written again, and `vacuum` finds the rest."""
    schema = StructType().add("id", LongType())
    options = parse_options({"path": str(tmp_path / "t"), "tableFormat": table_format, "txnAppId": "query"})
    rows = [pa.record_batch({"id": pa.array(range(100))})]

    def writer() -> StreamTableWriter:
        return StreamTableWriter(options, schema, replace=False)

    dead = writer().write(iter(rows))
    assert rows_of(open_table(options)) == []
    alive = writer()
    messages: list[Any] = [alive.write(iter(rows)), alive.write(iter([]))]
    alive.commit(messages, 0)
    writer().commit([writer().write(iter(rows))], 0)  # the same batch, once more
    assert len(rows_of(open_table(options))) == 100
    some = writer().write(iter(rows))
    writer().abort([some, None], 1)
    assert not any((tmp_path / "t" / file.path).exists() for file in some.files)
    from datetime import timedelta

    assert open_table(options).vacuum(timedelta(0)) >= 1
    assert not any((tmp_path / "t" / file.path).exists() for file in dead.files)
    assert len(rows_of(open_table(options))) == 100


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_batch_without_rows_is_compared_too(tmp_path: Path, table_format: str) -> None:
    """Otherwise the next batch would write again what is there under the number of this one."""
    schema = StructType().add("id", LongType())
    options = parse_options({"path": str(tmp_path / "t"), "tableFormat": table_format, "txnAppId": "query"})
    writer = StreamTableWriter(options, schema, replace=False)
    rows = [pa.record_batch({"id": pa.array(range(10))})]
    writer.commit([writer.write(iter([]))], 0)  # not in the table, and nothing to compare with
    writer.commit([writer.write(iter(rows))], 0)
    writer.commit([writer.write(iter(rows))], 0)
    with pytest.raises(StaleWriteError, match=r"with other input: 10 rows .* then, 0 rows"):
        writer.commit([writer.write(iter([]))], 0)
    writer.commit([writer.write(iter([]))], 1)
    assert len(rows_of(open_table(options))) == 10


def test_a_numbered_write_with_other_rows_is_refused(tmp_path: Path) -> None:
    schema = StructType().add("id", LongType())
    given = {"path": str(tmp_path / "t"), "txnAppId": "import", "txnVersion": "1"}

    def write(*numbers: int, **more: str) -> None:
        writer = BatchTableWriter(parse_options(given | more), schema, replace=False)
        # In two tasks, and in the other order: what counts is which rows they are.
        tasks = [writer.write(iter([pa.record_batch({"id": pa.array([number])})])) for number in numbers]
        writer.commit([*tasks])

    write(1, 2)
    write(2, 1)
    with pytest.raises(StaleWriteError, match="txnVersion 1 of txnAppId import was written already, with other rows"):
        write(1, 3)
    write(1, 3, checkReplays="false")
    write(3, 4, txnVersion="2")
    with pytest.raises(StaleWriteError, match="txnVersion 1 of txnAppId import is older than 2"):
        write(1, 2)
    assert sorted(row["id"] for row in rows_of(open_table(parse_options(given)))) == [1, 2, 3, 4]


@pytest.mark.parametrize("table_format", FORMATS)
def test_filters_skip_files(tmp_path: Path, table_format: str) -> None:
    table = opened(tmp_path / "t", table_format)
    for start in (0, 10, 20):
        table.commit(written(table, records(start, 10)), None, replace=False)
    options = parse_options({"path": str(tmp_path / "t"), "splitSize": "1"})
    reader = PruningTableReader(options, StructType().add("offset", LongType()).add("timestamp", TimestampType()))
    filters: list[Any] = [GreaterThanOrEqual(("offset",), 20), Not(EqualTo(("offset",), 25))]
    assert reader.pushFilters(filters) == filters  # Spark applies them again
    shares = reader.partitions()
    assert len(shares) == 1
    assert [row["offset"] for batch in reader.read(shares[0]) for row in batch.to_pylist()] == list(range(20, 30))


def test_batch_writes_and_evolution(spark: SparkSession, tmp_path: Path) -> None:  # noqa: F811
    path = str(tmp_path / "sales")

    def write(rows: DataFrame, mode: str = "append", **options: str) -> None:
        writer = rows.write.format("millstream-table").mode(mode)
        for name, value in options.items():
            writer = writer.option(name, value)
        writer.save(path)

    write(spark.sql("SELECT 1 AS id, 'a' AS shop, CAST(1.50 AS DECIMAL(9,2)) AS price"), partitionBy="shop")
    write(spark.sql("SELECT 2 AS id, 'b' AS shop, CAST(2.50 AS DECIMAL(9,2)) AS price, array('x') AS tags"))
    for _attempt in range(2):
        write(spark.sql("SELECT 3 AS id, 'b' AS shop"), txnAppId="import", txnVersion="1")
    found = spark.read.format("millstream-table").load(path).orderBy("id").collect()
    assert [row.asDict() for row in found] == [
        {"id": 1, "shop": "a", "price": found[0].price, "tags": None},
        {"id": 2, "shop": "b", "price": found[1].price, "tags": ["x"]},
        {"id": 3, "shop": "b", "price": None, "tags": None},
    ]
    with pytest.raises(AnalysisException, match="column id is int32 in the table and string in the rows"):
        write(spark.sql("SELECT 'x' AS id, 'b' AS shop"))
    with pytest.raises(AnalysisException, match="did you mean partitionBy"):
        write(spark.sql("SELECT 1 AS id"), partitonBy="id")
    with pytest.raises(AnalysisException, match="there is no table at"):
        spark.read.format("millstream-table").load(str(tmp_path / "none")).count()
    write(spark.sql("SELECT 9 AS id, 'z' AS shop"), mode="overwrite")
    assert [row.id for row in spark.read.format("millstream-table").load(path).collect()] == [9]
    old = spark.read.format("millstream-table").option("version", "1").load(path)
    assert [row.id for row in old.collect()] == [1]
    shutil.rmtree(path)


def test_a_topic_with_history_in_a_table(
    spark: SparkSession,  # noqa: F811
    broker: EmbeddedBroker,  # noqa: F811
    topic: str,
    tmp_path: Path,
) -> None:
    """startingOffsets=table:…: first the table, then what came after it, each record once; also after a restart."""
    _run(_stream(spark, broker, topic), tmp_path / "history", partitionBy="_day")
    before = len(rows_of(open_table(parse_options({"path": str(tmp_path / "history")})), columns=["offset"]))
    assert before >= 300
    _publish(broker, range(before, before + 25))
    rows = _stream(spark, broker, topic, startingOffsets=f"table:{tmp_path / 'history'}", maxOffsetsPerTrigger="150")
    try:
        _run(rows, tmp_path / "copy", tableFormat="iceberg")
    except (AnalysisException, StreamingQueryException) as error:
        pytest.fail(str(error))
    copied = rows_of(open_table(parse_options({"path": str(tmp_path / "copy")})))
    assert _numbers(copied) == list(range(before + 25))
    _publish(broker, range(before + 25, before + 30))
    _run(rows, tmp_path / "copy")
    copied = rows_of(open_table(parse_options({"path": str(tmp_path / "copy")})))
    assert _numbers(copied) == list(range(before + 30))
