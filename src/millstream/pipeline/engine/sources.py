"""Sources of a pipeline as DataFrames: topics as streams or as bounded reads, and tables."""

import json
from typing import TYPE_CHECKING

from millstream.pipeline.engine.decoding import decode, good_rows, source_options
from millstream.pipeline.engine.record_columns import ERROR
from millstream.pipeline.engine.record_use import columns_to_read
from millstream.pipeline.model import Format, Pipeline, Start, TableFormat, TableSource, TopicSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ALL_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp")
_SPARK_FORMATS = (TableFormat.PARQUET, TableFormat.CSV, TableFormat.JSON)


def connection_options(pipeline: Pipeline) -> dict[str, str]:
    """Where the brokers are and how to talk to them, for sources and sinks alike."""
    return {
        "kafka.bootstrap.servers": pipeline.bootstrap,
        **{f"kafka.{name}": value for name, value in pipeline.connection.items()},
    }


def topic_stream(
    session: "SparkSession",
    pipeline: Pipeline,
    source: TopicSource,
    *,
    group: str,
    send_letters: bool = False,
    keep_bad: bool = False,
) -> "DataFrame":
    """The source as a stream of typed rows.

    send_letters  bad records go to the dead letters while they are read; otherwise they are left out
    keep_bad      those that Spark cannot read are among the rows, with their bytes, for a query that sends them
    """
    options = {
        **connection_options(pipeline),
        **subscription_options(source),
        **starting_options(source.starting),
        **({} if keep_bad else source_options(pipeline, source, dead_letters=send_letters)),
        "groupId": group,
        **source.options,
    }
    if source.format is not Format.RAW and "columns" not in source.options:
        told = [] if "deadLetterTopic" in options or "badRecords" not in options else [ERROR]
        columns = [*ALL_COLUMNS, *told] if keep_bad else [*columns_to_read(pipeline, source), *told]
        options["columns"] = ",".join(columns)
        options.pop("includeHeaders", None)
    if source.max_records_per_trigger is not None:
        options["maxOffsetsPerTrigger"] = str(source.max_records_per_trigger)
    if source.max_bytes_per_trigger is not None:
        options["maxBytesPerTrigger"] = str(source.max_bytes_per_trigger)
    raw = session.readStream.format("millstream").options(**options).load()
    decoded = decode(raw, source, keep_bytes=keep_bad)
    return decoded if keep_bad else with_watermark(good_rows(decoded, source), source)


def topic_contents(session: "SparkSession", pipeline: Pipeline, source: TopicSource) -> "DataFrame":
    """All that is in the topic now, as a table; bad records are left out, and tombstones have null in every column."""
    options = {
        **connection_options(pipeline),
        **subscription_options(source),
        **source_options(pipeline, source, dead_letters=False),
        "startingOffsets": "earliest",
        **source.options,
    }
    raw = session.read.format("millstream").options(**options).load()
    decoded = decode(raw, source, keep_bytes=True)
    return decoded if source.format is Format.RAW else decoded.where("_error IS NULL").drop("_error")


def with_watermark(frame: "DataFrame", source: TopicSource) -> "DataFrame":
    if source.watermark is None:
        return frame
    return frame.withWatermark(source.watermark.column, source.watermark.delay.interval)


def subscription_options(source: TopicSource) -> dict[str, str]:
    options = {"subscribePattern": source.pattern} if source.pattern else {"subscribe": ",".join(source.topics)}
    if source.headers:
        options["includeHeaders"] = "true"
    return options


def starting_options(start: Start) -> dict[str, str]:
    if start.timestamp_ms is not None:
        return {"startingTimestamp": str(start.timestamp_ms), "startingOffsetsByTimestampStrategy": "latest"}
    if start.offsets:
        offsets = {topic: {str(at): offset for at, offset in of.items()} for topic, of in start.offsets.items()}
        return {"startingOffsets": json.dumps(offsets)}
    return {"startingOffsets": start.position or "earliest"}


def table(session: "SparkSession", source: TableSource) -> "DataFrame":
    """The table as it is when it is read; Delta and Iceberg by our own reader, which needs no further jars."""
    if source.format in _SPARK_FORMATS:
        reader = session.read.format(source.format.value)
        if source.schema is not None:
            reader = reader.schema(source.schema)
        if source.format is TableFormat.CSV and "header" not in source.options:
            reader = reader.option("header", "true")
        return reader.options(**source.options).load(source.path)
    return (
        session.read.format("millstream-table")
        .option("tableFormat", source.format.value)
        .options(**source.options)
        .load(source.path)
    )
