"""Typed rows of topic sources: formats, schemas, the columns of the record, and the columns that a pipeline needs.

JSON, Avro and Protobuf are decoded by the source itself, which also sends dead letters; CSV is decoded by Spark. A bad
record has the reason in `_error`, or becomes a dead letter; it never ends a query.

Spark does not prune columns of a Python source, and `value` alone is read twice as fast as all columns. So only columns
that the file mentions are read; all of them if rows go to code or tables.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from millstream.pipeline.model import (
    REST_DEAD_LETTERS,
    Action,
    BadRecords,
    Dedup,
    Format,
    Join,
    Latest,
    Pipeline,
    Python,
    Route,
    Sql,
    Stateful,
    TopicSink,
    TopicSource,
    Window,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


KEY = "_key"
TOPIC = "_topic"
PARTITION = "_partition"
OFFSET = "_offset"
TIMESTAMP = "_timestamp"
HEADERS = "_headers"
ERROR = "_error"

RECORD_COLUMNS = (KEY, TOPIC, PARTITION, OFFSET, TIMESTAMP, HEADERS, ERROR)
"""Left out of the value of a topic sink, and of the right side of a join."""


def quoted(*names: str) -> str:
    """A column name quoted for SQL."""
    return ".".join(f"`{name.replace('`', '``')}`" for name in names)


_REGISTERED = (Format.AVRO, Format.PROTOBUF, Format.JSON)
_CORRUPT = "__corrupt"
RAW_VALUE = "__value"
RAW_KEY = "__key"


def decoded_by_source(source: TopicSource) -> bool:
    """Whether format("millstream") decodes the values."""
    return source.format in _REGISTERED


def key_decoded_by_source(source: TopicSource) -> bool:
    return source.key_format in _REGISTERED


def decoded_by_spark(source: TopicSource) -> bool:
    """Whether Spark decodes the values; then another query sends the bad records."""
    return source.format is Format.CSV


def source_options(pipeline: Pipeline, source: TopicSource, *, dead_letters: bool) -> dict[str, str]:
    """The options of format("millstream") for formats.

    With `dead_letters` the source sends bad records to the dead-letter topic; else they have the reason in `_error`.
    """
    options: dict[str, str] = {}
    if decoded_by_source(source):
        options["valueFormat"] = source.format.value
        if source.schema is not None:
            options["valueSchema"] = source.schema
        if source.subject is not None:
            options["valueSubject"] = source.subject
    if key_decoded_by_source(source):
        options["keyFormat"] = source.key_format.value
    if not options:
        return options
    if dead_letters and source.bad_records is BadRecords.DEAD_LETTERS:
        headers = {"millstream.pipeline": pipeline.name, "millstream.step": source.name}
        options["deadLetterTopic"] = pipeline.dead_letters.topic
        options["deadLetterHeaders"] = json.dumps(headers)
    else:
        options["badRecords"] = "column"
    return options | registry_options(pipeline)


def registry_options(pipeline: Pipeline) -> dict[str, str]:
    """Options of the schema registry, for sources and sinks."""
    if pipeline.registry is None:
        return {}
    options = {"schema.registry.url": pipeline.registry.url}
    if pipeline.registry.username is not None:
        user_info = f"{pipeline.registry.username}:{pipeline.registry.password or ''}"
        options["schema.registry.basic.auth.user.info"] = user_info
    return options


def decode(raw: "DataFrame", source: TopicSource, *, keep_bytes: bool = False) -> "DataFrame":
    """Rows with the value's columns, the record's, and `_error`; with `keep_bytes` also the raw key and value."""
    from pyspark.sql.functions import coalesce, col, expr, lit, when

    if source.format is Format.RAW:
        return raw
    errors: list[Column] = []
    if "_error" in raw.columns:
        errors.append(col("_error"))
    frame = raw
    if decoded_by_source(source):
        value = "value.*"
    elif source.format is Format.STRING:
        frame, value = frame.withColumn("__text", col("value").cast("string")), "__text AS value"
    else:
        frame = frame.withColumn("__parsed", _parsed(source, frame))
        value = "__parsed.*"
        reason = lit(f"the value is not CSV with the columns {source.schema}")
        errors.append(when(expr(f"__parsed.{_CORRUPT} IS NOT NULL"), reason))
    key = _key_expression(raw, source)
    error = coalesce(*errors) if errors else lit(None).cast("string")
    record = {
        "key": f"{key} AS {KEY}",
        "topic": f"topic AS {TOPIC}",
        "partition": f"partition AS {PARTITION}",
        "offset": f"offset AS {OFFSET}",
        "timestamp": f"timestamp AS {TIMESTAMP}",
        "headers": f"headers AS {HEADERS}",
    }
    columns = [f"value AS {RAW_VALUE}", f"key AS {RAW_KEY}"] if keep_bytes else []
    columns += [expression for name, expression in record.items() if name in raw.columns]
    typed = frame.withColumn("__error", error).select(
        expr_or_star(value), *map(expr, columns), col("__error").alias(ERROR)
    )
    return typed.drop(_CORRUPT)


def _key_expression(raw: "DataFrame", source: TopicSource) -> str:
    """A key whose schema is a single value is a struct of one field; the key is that field."""
    if source.key_format is Format.STRING:
        return "CAST(key AS STRING)"
    single = "key" in raw.columns and getattr(raw.schema["key"].dataType, "names", None) == ["key"]
    return "key.key" if single else "key"


def expr_or_star(text: str) -> "Column":
    from pyspark.sql.functions import col, expr

    return col(text) if text.endswith(".*") else expr(text)


def _parsed(source: TopicSource, frame: "DataFrame") -> "Column":
    """The value by Spark's parser; a value that does not fit is marked in a column, and raises no error."""
    from pyspark.sql.functions import from_csv

    options: Mapping[str, str] = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    return from_csv(frame["value"].cast("string"), f"{source.schema}, {_CORRUPT} STRING", options)


def good_rows(frame: "DataFrame", source: TopicSource) -> "DataFrame":
    """The rows for the steps: without bad records, unless the file keeps them."""
    if ERROR not in frame.columns or source.bad_records is BadRecords.KEEP:
        return frame
    return frame.where(f"{ERROR} IS NULL").drop(ERROR)


def value_columns(frame: "DataFrame") -> list[str]:
    """The columns of a row without those of the record."""
    return [name for name in frame.columns if name not in RECORD_COLUMNS]


_OF_RECORD = {
    KEY: "key",
    TOPIC: "topic",
    PARTITION: "partition",
    OFFSET: "offset",
    TIMESTAMP: "timestamp",
    HEADERS: "headers",
}


def columns_to_read(pipeline: Pipeline, source: TopicSource) -> list[str]:
    """For the option `columns` of the source; not for a raw source."""
    used = _used(pipeline)
    possible = {name: column for name, column in _OF_RECORD.items() if name != HEADERS or source.headers}
    return ["value", *(column for name, column in possible.items() if used is None or name in used)]


_NEED_ALL = (Action.QUARANTINE, Action.FAIL)
"""Dead letters and errors name the record."""


def _used(pipeline: Pipeline) -> set[str] | None:
    """The columns of the record that the file mentions; None if all may be used."""
    if any(isinstance(step, Python | Stateful) for step in pipeline.steps):
        return None
    if any(isinstance(step, Route) and step.rest == REST_DEAD_LETTERS for step in pipeline.steps):
        return None  # dead letters are the whole row
    if any(rule.action in _NEED_ALL for part in pipeline.parts_with_expectations for rule in part.expect):
        return None
    topic_sinks = [sink for sink in pipeline.sinks if isinstance(sink, TopicSink)]
    if len(topic_sinks) < len(pipeline.sinks) or any(sink.format is Format.RAW for sink in topic_sinks):
        return None
    words = {word for text in _texts(pipeline) for word in re.findall(r"\w+", text)}
    if any(sink.key is None for sink in topic_sinks):
        words.add(KEY)
    return words & set(_OF_RECORD)


def _texts(pipeline: Pipeline) -> Iterator[str]:
    for part in pipeline.parts_with_expectations:
        yield from (rule.condition for rule in part.expect)
    for part in (*pipeline.sources, *pipeline.steps):
        if part.watermark is not None:
            yield part.watermark.column
    for step in pipeline.steps:
        match step:
            case Sql():
                yield step.query
            case Window():
                yield step.time
                yield from (column.expression for column in (*step.group_by, *step.aggregate))
            case Join():
                yield from (name for key in step.on for name in (key.left, key.right))
                if step.within is not None:
                    yield from (step.within.left_time, step.within.right_time)
            case Dedup() | Latest():
                yield from step.key
            case Route():
                yield from (branch.condition for branch in step.branches)
            case Python() | Stateful():
                pass
    for sink in pipeline.sinks:
        if isinstance(sink, TopicSink):
            yield from (text for text in (sink.key, sink.timestamp) if text is not None)
            yield from (header.expression for header in sink.headers)
