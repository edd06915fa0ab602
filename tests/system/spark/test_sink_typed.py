"""Typed columns on their way into records: JSON by the columns' own types, Avro by a schema and by a registry."""

import json

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from millstream.schemas import make_format
from millstream.spark.errors import OptionError, SinkError
from millstream.spark.sink.options import WriteOptions, parse_write_options
from millstream.spark.sink.rows import shape_of
from tests.unit.schemas.tiny_registry import running

GIVEN = {"kafka.bootstrap.servers": "localhost:9092", "topic": "orders"}
COLUMNS = StructType().add("key", StringType()).add("order", LongType()).add("item", StringType())
ROWS = pa.record_batch({"key": ["a", "b"], "order": pa.array([1, 2], pa.int64()), "item": ["book", None]})
AVRO = json.dumps(
    {
        "type": "record",
        "name": "order",
        "fields": [{"name": "order", "type": "long"}, {"name": "item", "type": ["null", "string"]}],
    }
)


def options(**more: str) -> WriteOptions:
    return parse_write_options(GIVEN | more, streaming=True)


def test_json_needs_no_registry() -> None:
    made = shape_of(COLUMNS, options(valueFormat="json")).transform()(ROWS)
    assert made.schema.names == ["key", "value"]
    assert made.column("key").to_pylist() == ["a", "b"]
    values = [json.loads(each) for each in made.column("value").to_pylist()]
    assert values[0] == {"order": 1, "item": "book"}
    assert values[1]["order"] == 2


def test_a_struct_called_value_is_the_value() -> None:
    schema = StructType().add("value", StructType().add("x", LongType())).add("other", StringType())
    rows = pa.record_batch({"value": pa.array([{"x": 5}, None]), "other": ["left", "out"]})
    made = shape_of(schema, options(valueFormat="json")).transform()(rows)
    first, tombstone = made.column("value").to_pylist()
    assert json.loads(first) == {"x": 5}
    assert tombstone is None


def test_avro_by_a_given_schema_reads_back() -> None:
    made = shape_of(COLUMNS, options(valueFormat="avro", valueSchema=AVRO)).transform()(ROWS)
    rows, errors = make_format("avro", options={"schema": AVRO}).decode(made.column("value").cast(pa.binary()))
    assert errors.null_count == 2
    assert rows.to_pylist() == [{"order": 1, "item": "book"}, {"order": 2, "item": None}]
    parsed = fastavro.schema.parse_schema(json.loads(AVRO))
    assert isinstance(parsed, dict)
    assert parsed["name"] == "order"


def test_rows_that_do_not_fit_are_told() -> None:
    rows = pa.record_batch({"key": ["a"], "order": pa.array([None], pa.int64()), "item": ["book"]})
    with pytest.raises(SinkError, match="does not fit its schema"):
        shape_of(COLUMNS, options(valueFormat="avro", valueSchema=AVRO)).transform()(rows)


def test_missing_columns_of_the_sink_are_named() -> None:
    with pytest.raises(SinkError, match="no column `key`"):
        shape_of(StructType().add("x", LongType()), options(keyFormat="json", valueFormat="json"))
    with pytest.raises(SinkError, match="no columns for the value"):
        shape_of(StructType().add("key", StringType()), options(valueFormat="json"))
    with pytest.raises(SinkError, match="`partition` is string"):
        shape_of(StructType().add("x", IntegerType()).add("partition", StringType()), options(valueFormat="json"))
    with pytest.raises(OptionError, match="needs a subject"):
        parse_write_options(
            {"kafka.bootstrap.servers": "a:1", "valueFormat": "avro", "schema.registry.url": "http://a"}, streaming=True
        )


def test_a_registry_is_given_the_schema_and_records_its_id() -> None:
    with running() as registry:
        given = options(valueFormat="avro", **{"schema.registry.url": registry.url})
        made = shape_of(COLUMNS, given).transform()(ROWS)
        values = made.column("value").to_pylist()
        assert all(each[:5] == b"\x00\x00\x00\x00\x01" for each in values)
        assert list(registry.subjects) == ["orders-value"]
        rows, errors = make_format("avro", topic="orders", registry_url=registry.url).decode(
            pa.array(values, pa.binary())
        )
        assert errors.null_count == 2
        assert rows.to_pylist() == [{"order": 1, "item": "book"}, {"order": 2, "item": None}]
