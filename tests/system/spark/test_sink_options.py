"""Options and columns of the sink: what is accepted, and what a mistake is told. No Spark session is needed."""

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
)

from millstream.formats.records.compression import Codec
from millstream.spark.errors import OptionError, SinkError
from millstream.spark.sink.options import WRITE_OPTIONS, WriteOptions, parse_write_options
from millstream.spark.sink.rows import shape_of
from millstream.spark.sink.sink import BatchWriter, StreamWriter
from tests.repository import REPOSITORY

GIVEN = {"kafka.bootstrap.servers": "localhost:9092", "topic": "orders"}


def parsed(streaming: bool = True, **more: str) -> WriteOptions:
    return parse_write_options(
        GIVEN | {name.replace("_", "."): value for name, value in more.items()}, streaming=streaming
    )


def test_a_stream_is_written_exactly_once_by_default() -> None:
    stream, batch = parsed(), parsed(streaming=False)
    assert stream.exactly_once
    assert not batch.exactly_once
    assert stream.codec is Codec.NONE
    assert stream.acks == -1
    assert stream.idempotent
    assert stream.transaction_timeout_ms is None


def test_names_in_any_case_and_kafka_settings() -> None:
    options = parse_write_options(
        {
            "KAFKA.BOOTSTRAP.SERVERS": "a:1",
            "delivery": "At-Least-Once",
            "kafka.compression.type": "zstd",
            "kafka.compression.zstd.level": "7",
            "kafka.linger.ms": "5",
            "kafka.security.protocol": "PLAINTEXT",
            "checkpointlocation": "/tmp/x",
        },
        streaming=True,
    )
    assert not options.exactly_once
    assert (options.codec, options.level) == (Codec.ZSTD, 7)
    assert dict(options.connection.settings) == {"linger.ms": "5", "security.protocol": "PLAINTEXT"}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"delivery": "exactly-onec"}, "did you mean exactly-once"),
        ({"delivery": "maybe"}, "use one of exactly-once, at-least-once"),
        ({"deliveri": "exactly-once"}, "did you mean 'delivery'"),
        ({"txnAppId": "bills", "txnVersion": "3"}, "txnAppId is for batch writes"),
        ({"acks": "1"}, "did you mean 'kafka.acks'"),
        ({"zzz": "1"}, "docs/spark-sink.md lists all options"),
        ({"kafka.compression.type": "brotli"}, "use one of none, gzip"),
        ({"kafka.acks": "1"}, "does not work with exactly-once"),
        ({"kafka.acks": "0", "delivery": "at-least-once"}, "cannot detect lost records"),
        ({"kafka.enable.idempotence": "false"}, "does not work with exactly-once"),
        ({"kafka.transactional.id": "mine"}, "names its transactions itself"),
        ({"kafka.key.serializer": "x"}, "keyFormat"),
        ({"subscribe": "orders"}, "set topic to write"),
        ({"path": "/tmp"}, "take no path"),
        ({"kafka.transaction.timeout.ms": "soon"}, "is not a whole number"),
        ({"valueFormat": "avro"}, "needs a schema; set schema.registry.url or valueSchema"),
        ({"valueFormat": "arvo"}, "did you mean avro"),
        ({"valueSubject": "x"}, "has no effect without valueFormat"),
        ({"topic": " "}, "topic is empty"),
    ],
)
def test_mistakes_are_told(given: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError) as raised:
        parse_write_options(GIVEN | given, streaming=True)
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"txnAppId": "bills"}, "belong together"),
        ({"txnAppId": "bills.task", "txnVersion": "1"}, "must have 1 to 100 letters"),
        ({"txnAppId": "bills", "txnVersion": "-1"}, "is not a whole number of at least 0"),
        ({"txnAppId": "bills", "txnVersion": "1", "delivery": "at-least-once"}, "does not work with delivery"),
    ],
)
def test_mistakes_in_the_name_of_a_write_are_told(given: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        parse_write_options(GIVEN | given, streaming=False)


def test_a_named_write_is_exactly_once() -> None:
    first, second = (parsed(False, txnAppId="bills", txnVersion=str(number)) for number in (0, 1))
    assert first.exactly_once and first == second  # what a process keeps serves all batches


def test_bootstrap_servers_are_required() -> None:
    with pytest.raises(OptionError, match=r"kafka\.bootstrap\.servers is missing"):
        parse_write_options({"topic": "x"}, streaming=True)


TEXT, NUMBER, LONG = StringType(), IntegerType(), LongType()


def columns_of(**types: DataType) -> StructType:
    schema = StructType()
    for name, kind in types.items():
        schema.add(name, kind)
    return schema


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"values": TEXT}, "rename 'values'"),
        ({"key": TEXT}, "no column `value`"),
        ({"value": NUMBER}, "`value` is int; it must be string or binary"),
        ({"value": TEXT, "key": LONG}, "`key` is bigint"),
        ({"value": TEXT, "partition": LONG}, "`partition` is bigint; it must be int"),
        ({"value": TEXT, "timestamp": TEXT}, "`timestamp` is string"),
        ({"value": TEXT, "headers": MapType(TEXT, TEXT)}, "array<struct<key:string,value:binary>>"),
        (
            {"value": TEXT, "headers": ArrayType(StructType().add("k", TEXT).add("v", BinaryType()))},
            "array<struct<key:string,value:binary>>",
        ),
        ({"value": TEXT, "topic": NUMBER}, "`topic` is int"),
    ],
)
def test_columns_that_cannot_be_written(columns: dict[str, DataType], told: str) -> None:
    with pytest.raises(SinkError) as raised:
        shape_of(columns_of(**columns), parsed())
    assert told in str(raised.value)


def test_a_topic_is_needed() -> None:
    schema = columns_of(value=TEXT)
    options = parse_write_options({"kafka.bootstrap.servers": "a:1"}, streaming=True)
    with pytest.raises(SinkError, match="set the option topic"):
        shape_of(schema, options)


def test_overwriting_a_topic_is_refused() -> None:
    schema = columns_of(value=TEXT)
    with pytest.raises(OptionError, match="mode overwrite"):
        BatchWriter(GIVEN, schema, True)
    with pytest.raises(OptionError, match="output mode complete"):
        StreamWriter(GIVEN, schema, True)


def test_every_option_is_explained() -> None:
    page = (REPOSITORY / "docs" / "spark-sink.md").read_text()
    for option in WRITE_OPTIONS.options:
        assert option.help.endswith(".")
        assert option.use in ("batch", "stream", "both")
        assert f"| `{option.name}` | {option.kind} | {option.default} | {option.help} |" in page
