"""Sinks of a pipeline: rows in the columns of each sink, and the writer."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from millstream.pipeline.engine.decoding import KEY, OFFSET, RECORD_COLUMNS, quoted, registry_options, value_columns
from millstream.pipeline.engine.sources import connection_options
from millstream.pipeline.model import TOMBSTONE, ConsoleSink, Envelope, Format, Pipeline, TableSink, TopicSink, Upsert

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

ShowRows = Callable[[str, int, list[str], list[list[str]], int], None]
"""Arguments: name of a console sink, batch, columns, some rows as text, and the total number."""

_REGISTERED = (Format.AVRO, Format.PROTOBUF)
_WRITER_COLUMNS = ("topic", "key", "value", "headers", "partition", "timestamp")


def topic_rows(sink: TopicSink, frame: "DataFrame") -> "DataFrame":
    """The columns of the writer: key, value, headers, timestamp."""
    from pyspark.sql.functions import array, col, expr, lit, struct, to_json

    columns: dict[str, Column]
    if sink.format is Format.RAW:
        named = [name for name in frame.columns if name in _WRITER_COLUMNS and name != "topic"]
        columns = {name: col(quoted(name)) for name in named}
        if "partition" in columns and "offset" in frame.columns:
            # Rows of a raw source have the partition of the source, not of the target.
            del columns["partition"]
    else:
        columns = {}
        own = value_columns(frame)
        if sink.format in _REGISTERED:
            columns["value"] = struct(*[col(quoted(name)) for name in own])
        elif sink.format is Format.STRING:
            columns["value"] = col(quoted("value" if "value" in own else own[0])).cast("string")
        else:
            columns["value"] = to_json(struct(*[col(quoted(name)) for name in own]))
        if KEY in frame.columns:
            columns["key"] = col(KEY)
    if sink.key is not None:
        columns["key"] = expr(sink.key).cast("string")
    if sink.timestamp is not None:
        columns["timestamp"] = col(quoted(sink.timestamp)).cast("timestamp")
    if sink.headers:
        entries = [
            struct(lit(each.name).alias("key"), expr(each.expression).cast("string").cast("binary").alias("value"))
            for each in sink.headers
        ]
        columns["headers"] = array(*entries)
    return frame.select(*[column.alias(name) for name, column in columns.items()])


def topic_options(pipeline: Pipeline, sink: TopicSink) -> dict[str, str]:
    options = {
        **connection_options(pipeline),
        "topic": sink.topic,
        "delivery": sink.delivery.value.replace("_", "-"),
        **sink.options,
    }
    if sink.format in _REGISTERED:
        options["valueFormat"] = sink.format.value
        if sink.subject is not None:
            options["valueSubject"] = sink.subject
        if sink.schema is not None:
            options["valueSchema"] = sink.schema
        options |= registry_options(pipeline)
    return options


def encoded_rows(pipeline: Pipeline, sink: TopicSink, rows: "DataFrame") -> "DataFrame":
    """The same rows with values as bytes, if they have a schema: so they can be written together with other topics."""
    from pyspark.sql.types import BinaryType, StructField, StructType

    from millstream.spark.sink.options import parse_write_options
    from millstream.spark.sink.rows import EncodeValues, shape_of

    if sink.format not in _REGISTERED:
        return rows
    shape = shape_of(rows.schema, parse_write_options(topic_options(pipeline, sink), streaming=True))
    kept = [rows.schema[name] for name in _WRITER_COLUMNS if name in rows.columns]
    bytes_of_value = [StructField("value", BinaryType()) if each.name == "value" else each for each in kept]
    return rows.mapInArrow(EncodeValues(shape), StructType(bytes_of_value))


def topic_writer(pipeline: Pipeline, sink: TopicSink, rows: "DataFrame") -> "DataStreamWriter":
    return rows.writeStream.format("millstream").options(**topic_options(pipeline, sink))


def dead_letter_options(pipeline: Pipeline) -> dict[str, str]:
    return {**connection_options(pipeline), "topic": pipeline.dead_letters.topic}


def dead_letter_writer(pipeline: Pipeline, rows: "DataFrame") -> "DataStreamWriter":
    return rows.writeStream.format("millstream").options(**dead_letter_options(pipeline))


def table_writer(sink: TableSink, rows: "DataFrame") -> "DataStreamWriter":
    return rows.writeStream.format("millstream-table").options(**table_options(sink, rows))


def table_options(sink: TableSink, rows: "DataFrame") -> dict[str, str]:
    options = {"path": sink.path, "tableFormat": sink.format.value, **sink.options}
    if sink.upsert is not None:
        options |= {"keys": ",".join(sink.upsert.keys), "history": str(sink.upsert.history).lower()}
        sequence = sink.upsert.sequence_by or (OFFSET if OFFSET in rows.columns else None)
        if sequence is not None:
            options["sequenceBy"] = sequence
        if _DELETED in rows.columns:
            options["deleteColumn"] = _DELETED
    if sink.partition_by:
        options["partitionBy"] = ",".join(re.sub(r"^day\(", "days(", column) for column in sink.partition_by)
    return options


_DELETED = "__deleted"
_TRUNCATED = "a truncation (op t of Debezium) cannot be applied to a table with keys: make the table again"


def upsert_rows(upsert: Upsert, frame: "DataFrame") -> "DataFrame":
    """The changes of a table: its columns, and a column that is true for deletions."""
    from pyspark.sql.functions import coalesce, expr, lit

    if upsert.envelope is Envelope.DEBEZIUM:
        return _out_of_envelope(frame)
    if upsert.delete_when is None:
        return frame
    condition = upsert.delete_when
    if condition == TOMBSTONE:
        condition = " AND ".join(f"{quoted(name)} IS NULL" for name in value_columns(frame))
    return frame.withColumn(_DELETED, coalesce(expr(condition).cast("boolean"), lit(False)))


def _out_of_envelope(frame: "DataFrame") -> "DataFrame":
    """Debezium's envelope: `after`, or for a deletion `before`. With the schema in each record it is in `payload`.

    A tombstone follows each deletion, and has no `op`; messages (m) are not about rows.
    """
    from pyspark.sql.functions import expr

    record = [quoted(name) for name in frame.columns if name in RECORD_COLUMNS]
    if "op" not in frame.columns and "payload" in frame.columns:
        frame = frame.select(*record, "payload.*")
    refused = f"CAST(raise_error('{_TRUNCATED}') AS BOOLEAN)"
    changes = frame.where(f"CASE WHEN op = 't' THEN {refused} ELSE op IN ('c', 'r', 'u', 'd') END")
    with_row = changes.withColumn(_DELETED, expr("op = 'd'")).withColumn("__row", expr("IF(op = 'd', before, after)"))
    return with_row.select(*record, "__row.*", _DELETED)


def console_writer(sink: ConsoleSink, rows: "DataFrame", show: ShowRows | None) -> "DataStreamWriter":
    """Shows rows in the live view; over Connect the function would run on the server, so Spark's console is used."""
    if show is None:
        writer = rows.writeStream.format("console")
        return writer.option("numRows", sink.rows).option("truncate", str(sink.truncate).lower())

    def show_rows(batch: "DataFrame", batch_id: int) -> None:
        # Persisted, because a second read of a source would send its dead letters again.
        batch.persist()
        try:
            show_batch(sink, batch, batch_id, show)
        finally:
            batch.unpersist()

    return rows.writeStream.foreachBatch(show_rows)


def show_batch(sink: ConsoleSink, batch: "DataFrame", batch_id: int, show: ShowRows | None) -> None:
    """Shows some rows of a batch, and their number."""
    total = batch.count()
    found = batch.limit(sink.rows).collect() if show is not None else []
    texts = [[_shortened(str(value), sink.truncate) for value in row] for row in found]
    if show is not None and texts:
        show(sink.name, batch_id, list(batch.columns), texts, total)


def _shortened(text: str, truncate: bool) -> str:
    return text if not truncate or len(text) <= 40 else f"{text[:39]}…"
