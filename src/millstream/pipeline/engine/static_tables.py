"""Tables beside streams: `latest` and table sources, kept in Spark's cache and looked at again when it is time.

A join of a stream with a table is planned anew for every micro-batch, and Spark then uses what is cached of the table's
plan. So a table is cached once, and dropping it from the cache between two batches is all it takes to have the next one
read it again. Should Spark not recognise the plan, the table is read in every batch: slower, and not staler.

A batch that is run again after a failure may see a newer table than the first time: that is how every join of a stream
with a table is, in Spark as elsewhere.
"""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millstream.pipeline.engine.decoding import RAW_VALUE
from millstream.pipeline.engine.record_columns import KEY, OFFSET, PARTITION, TIMESTAMP, TOPIC, quoted
from millstream.pipeline.engine.sources import table, topic_contents
from millstream.pipeline.model import Format, Latest, Pipeline, TableFormat, TableSource, TopicSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass
class StaticTable:
    """One cached table, and when it was last looked at."""

    frame: "DataFrame"
    refresh_s: float
    path: str | None = None
    """Of files that Spark lists: the listing is cached too."""
    session: "SparkSession | None" = None
    clock: Callable[[], float] = time.monotonic
    looked_at: float = 0.0
    seen: object = None

    def __post_init__(self) -> None:
        self.looked_at = self.clock()
        self.seen = _fingerprint(self.path)
        self.frame.persist()

    def refresh_if_due(self) -> bool:
        """Called between batches; whether the next batch will read the table again."""
        if self.clock() - self.looked_at < self.refresh_s:
            return False
        self.looked_at = self.clock()
        if self.path is not None:
            now = _fingerprint(self.path)
            if now is not None and now == self.seen:
                return False
            self.seen = now
            if self.session is not None:
                self.session.catalog.refreshByPath(self.path)
        self.frame.unpersist()
        self.frame.persist()
        return True

    def forget(self) -> None:
        self.frame.unpersist()


@dataclass
class StaticTables:
    """All tables of one query."""

    tables: list[StaticTable] = field(default_factory=list)

    def latest(self, session: "SparkSession", pipeline: Pipeline, step: Latest, source: TopicSource) -> "DataFrame":
        frame = latest_rows(topic_contents(session, pipeline, source), step, source)
        self.tables.append(StaticTable(frame, step.refresh.seconds))
        return frame

    def table(self, session: "SparkSession", source: TableSource) -> "DataFrame":
        frame = table(session, source)
        # Delta and Iceberg are planned, and so looked at, in every batch.
        if source.format not in (TableFormat.DELTA, TableFormat.ICEBERG):
            self.tables.append(StaticTable(frame, 0.0, source.path, session))
        return frame

    def refresh_if_due(self) -> None:
        for each in self.tables:
            each.refresh_if_due()

    def forget(self) -> None:
        for each in self.tables:
            each.forget()


def latest_rows(contents: "DataFrame", step: Latest, source: TopicSource) -> "DataFrame":
    """Of each key the newest record, none where that is a tombstone.

    In a partition the offset says which is newer; between partitions (after their number was raised, or with keys that
    are columns of the value) only the time can. A record without a key is never replaced by another one's key.
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


def _fingerprint(path: str | None) -> object:
    """Names, sizes and times of the files below a local path; None where only Spark can tell."""
    if path is None or "://" in path:
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
