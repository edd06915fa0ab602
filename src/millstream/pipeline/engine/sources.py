"""Sources of a pipeline as DataFrames: topics as streams or bounded reads, and tables that are joined to streams.

Spark plans the reading of a table once for the life of a streaming query: later batches read the same offsets or files.
So a table (`latest`, or a table source) is cached. When it has changed, its query is stopped between two batches, built
again and continued from its checkpoint, which takes a few seconds.

A batch that is repeated after a failure may see a newer table than the first time, as with every join of a stream and a
table in Spark.
"""

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from millstream.pipeline.engine.decoding import (
    ERROR,
    KEY,
    OFFSET,
    PARTITION,
    RAW_VALUE,
    TIMESTAMP,
    TOPIC,
    columns_to_read,
    decode,
    good_rows,
    quoted,
    source_options,
)
from millstream.pipeline.model import Format, Latest, Pipeline, Start, TableFormat, TableSource, TopicSource
from millstream.raw_client import LATEST, Cluster, TopicPartition, WireError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


ALL_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp")
_SPARK_FORMATS = (TableFormat.PARQUET, TableFormat.CSV, TableFormat.JSON)


def connection_options(pipeline: Pipeline) -> dict[str, str]:
    """Options of the connection, for sources and sinks."""
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
    starting: str | None = None,
) -> "DataFrame":
    """The source as a stream of typed rows.

    send_letters  bad records are sent to the dead-letter topic while they are read; otherwise they are left out
    keep_bad      records that Spark cannot decode are among the rows, with their bytes, for a query that sends them
    starting      `startingOffsets` instead of the source's own
    """
    options = {
        **connection_options(pipeline),
        **subscription_options(source),
        **(starting_options(source.starting) if starting is None else {"startingOffsets": starting}),
        **({} if keep_bad else source_options(pipeline, source, dead_letters=send_letters)),
        "groupId": group,
        **source.options,
    }
    if source.format is not Format.RAW and "columns" not in source.options:
        errors = [] if "deadLetterTopic" in options or "badRecords" not in options else [ERROR]
        columns = [*ALL_COLUMNS, *errors] if keep_bad else [*columns_to_read(pipeline, source), *errors]
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
    """The current records of a topic as a table; without bad records, and with null in all columns of a tombstone."""
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
    """The table as it is when it is read. Delta and Iceberg are read by our own reader, which needs no jars."""
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


_FILES_EVERY_SECONDS = 1.0
_UNSEEN_EVERY_SECONDS = 60.0
"""Tables in stores whose changes cannot be detected are read again after this time."""

UNAVAILABLE = object()


@dataclass
class StaticTable:
    """One cached table, and its state when it was read.

    `look` returns None if changes cannot be detected, and UNAVAILABLE if the brokers do not respond: then the query
    must not be rebuilt.
    """

    frame: "DataFrame"
    refresh_s: float
    look: Callable[[], object]
    clock: Callable[[], float] = time.monotonic
    looked_at: float = 0.0
    seen: object = None

    def __post_init__(self) -> None:
        self.looked_at = self.clock()
        self.seen = self.look()
        self.frame.persist()

    def is_outdated(self) -> bool:
        """Whether the refresh time has passed and the table has changed."""
        if self.clock() - self.looked_at < self.refresh_s:
            return False
        self.looked_at = self.clock()
        now = self.look()
        return now is not UNAVAILABLE and (now is None or now != self.seen)

    def forget(self) -> None:
        self.frame.unpersist()


@dataclass
class StaticTables:
    """All tables of one query."""

    tables: list[StaticTable] = field(default_factory=list)
    outdated: bool = False

    def latest(self, session: "SparkSession", pipeline: Pipeline, step: Latest, source: TopicSource) -> "DataFrame":
        # The end offsets are fetched before the read, so that later records count as new.
        ends = partial(_ends, pipeline, source)
        before = ends()
        frame = latest_rows(topic_contents(session, pipeline, source), step, source)
        self.tables.append(StaticTable(frame, step.refresh.seconds, ends))
        self.tables[-1].seen = before
        return frame

    def table(self, session: "SparkSession", source: TableSource) -> "DataFrame":
        look = partial(_fingerprint, source.path)
        before = look()
        frame = table(session, source)
        self.tables.append(StaticTable(frame, _UNSEEN_EVERY_SECONDS if before is None else _FILES_EVERY_SECONDS, look))
        self.tables[-1].seen = before
        return frame

    def are_outdated(self) -> bool:
        self.outdated = self.outdated or any(each.is_outdated() for each in self.tables)
        return self.outdated

    def forget(self) -> None:
        for each in self.tables:
            each.forget()


def _ends(pipeline: Pipeline, source: TopicSource) -> object:
    """The end offsets of the topics of a source."""
    try:
        with Cluster(pipeline.bootstrap, pipeline.connection, timeout_s=10.0) as cluster:
            topics = cluster.topics(source.topics) if source.topics else cluster.topics()
            if source.pattern:
                topics = {name: each for name, each in topics.items() if re.fullmatch(source.pattern, name)}
            wanted = {
                TopicPartition(name, each.index): LATEST for name, topic in topics.items() for each in topic.partitions
            }
            return tuple(sorted((at.topic, at.partition, end.offset) for at, end in cluster.offsets(wanted).items()))
    except WireError:
        return UNAVAILABLE


def latest_rows(contents: "DataFrame", step: Latest, source: TopicSource) -> "DataFrame":
    """The newest record of each key, or none if that is a tombstone.

    Within a partition the offset decides which is newer. Between partitions (after partitions were added, or with keys
    that are columns of the value) the timestamp decides. Records without a key are all kept.
    """
    raw = source.format is Format.RAW
    names = {
        "key": "key" if raw else KEY,
        "topic": "topic" if raw else TOPIC,
        "partition": "partition" if raw else PARTITION,
        "offset": "offset" if raw else OFFSET,
        "timestamp": "timestamp" if raw else TIMESTAMP,
        "value": "value" if raw else RAW_VALUE,
    }
    of = {name: quoted(column) for name, column in names.items()}
    own = f"CASE WHEN {of['key']} IS NULL THEN {of['offset']} END"
    newest = _newest(contents, [of["topic"], of["partition"], of["key"], own], of["offset"])
    when = f"struct({of['timestamp']}, {of['offset']})"
    alive = f"{of['value']} IS NOT NULL"
    if step.key:
        rows = _newest(newest.where(alive), [quoted(name) for name in step.key], when)
    else:
        rows = _newest(newest.where(f"{of['key']} IS NOT NULL"), [of["key"]], when).where(alive)
    return rows if raw else rows.drop("__value", "__key")


def _newest(frame: "DataFrame", keys: list[str], order: str) -> "DataFrame":
    from pyspark.sql.functions import expr

    grouped = frame.groupBy(*[expr(key).alias(f"__g{index}") for index, key in enumerate(keys)])
    everything = ", ".join(quoted(name) for name in frame.columns)
    return grouped.agg(expr(f"max_by(struct({everything}), {order})").alias("__row")).select("__row.*")


def _fingerprint(path: str) -> object:
    """Names, sizes and times of the files below a local path; None for a path in a store."""
    if "://" in path:
        return None
    return tuple(sorted(_files(path.removeprefix("file:"))))


def _files(path: str) -> Iterator[tuple[str, int, int]]:
    if os.path.isfile(path):
        found = os.stat(path)
        yield path, found.st_size, found.st_mtime_ns
        return
    for directory, _, names in os.walk(path):
        for name in names:
            try:
                found = os.stat(os.path.join(directory, name))
            except FileNotFoundError:
                continue
            yield os.path.join(directory, name), found.st_size, found.st_mtime_ns
