"""The model of a pipeline: plain values, from a file that was read and checked, that the engine turns into DataFrames.

Every part has the `line` of the file, so that a failure at run time can name it. Names of sources, steps and branches
share one namespace: each is a table for SQL and `from`. docs/pipelines.md describes the parts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """A duration, written as "90 seconds" or "5m"."""

    milliseconds: int

    @property
    def interval(self) -> str:
        """For Spark SQL and `withWatermark`."""
        return f"{self.milliseconds} milliseconds"

    @property
    def seconds(self) -> float:
        return self.milliseconds / 1000

    def __str__(self) -> str:
        for name, size in (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000)):
            if self.milliseconds and self.milliseconds % size == 0:
                count = self.milliseconds // size
                return f"{count} {name}" if count == 1 else f"{count} {name}s"
        return f"{self.milliseconds} ms"


class Format(StrEnum):
    """The format of values or keys."""

    RAW = "raw"
    STRING = "string"
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"
    CSV = "csv"


class TableFormat(StrEnum):
    PARQUET = "parquet"
    DELTA = "delta"
    ICEBERG = "iceberg"
    CSV = "csv"
    JSON = "json"


class BadRecords(StrEnum):
    """What happens to a record that cannot be decoded."""

    DEAD_LETTERS = "dead_letters"
    DROP = "drop"
    KEEP = "keep"
    """The row stays with null columns, and the column `_error` has the reason."""


class Delivery(StrEnum):
    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"


class OutputMode(StrEnum):
    APPEND = "append"
    UPDATE = "update"
    COMPLETE = "complete"


class TableMode(StrEnum):
    """How rows get into a table."""

    APPEND = "append"
    UPSERT = "upsert"


class Envelope(StrEnum):
    """How a record wraps a change."""

    DEBEZIUM = "debezium"


class WindowKind(StrEnum):
    TUMBLING = "tumbling"
    SLIDING = "sliding"
    SESSION = "session"


class JoinType(StrEnum):
    INNER = "inner"
    LEFT = "left"
    RIGHT = "right"
    FULL = "full"
    LEFT_SEMI = "left_semi"
    LEFT_ANTI = "left_anti"


class TimeMode(StrEnum):
    """The clock of the timers of a stateful step."""

    NONE = "none"
    PROCESSING_TIME = "processing_time"
    EVENT_TIME = "event_time"


class TriggerKind(StrEnum):
    AS_SOON_AS_POSSIBLE = "as_soon_as_possible"
    EVERY = "every"
    AVAILABLE_NOW = "available_now"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    kind: TriggerKind = TriggerKind.AS_SOON_AS_POSSIBLE
    every: Duration | None = None
    """Only of EVERY."""
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """Rows whose `column` is more than `delay` older than the newest may be dropped."""

    column: str
    delay: Duration
    line: int


class Latency(StrEnum):
    """How soon a record is processed."""

    STANDARD = "standard"
    """With its batch; exactly once."""
    REALTIME = "realtime"
    """When it arrives, by Spark's real-time mode and Spark's own Kafka connector; at least once."""


class Action(StrEnum):
    """What happens to a row that does not meet an expectation."""

    WARN = "warn"
    """It is counted."""
    DROP = "drop"
    QUARANTINE = "quarantine"
    """It becomes a dead letter."""
    FAIL = "fail"
    """The query ends with an error, and its batch is not written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """A rule for the rows of a part: a SQL condition that is true for good rows; null is not true."""

    name: str
    condition: str
    action: Action = Action.WARN
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    url: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """Where OpenLineage events go; a file, an endpoint, or both."""

    file: str | None = None
    url: str | None = None
    """The address to which events are posted."""
    api_key: str | None = field(default=None, repr=False)
    namespace: str = "default"
    """The namespace of the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters:
    """The topic for records that cannot be decoded, and for rows that no branch of a `route` takes."""

    topic: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where a source starts without a checkpoint; exactly one of the three is set."""

    position: str | None = None
    """`earliest`, `latest` or `table:PATH` (rows of that table, then the topic, without a gap)."""
    timestamp_ms: int | None = None
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """topic -> partition -> offset (-2 earliest, -1 latest)."""


# --- sources ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSource:
    """A stream of records. Columns: the value's fields, then `_key`, `_topic`, `_partition`, `_offset`, `_timestamp`,
    with `headers` also `_headers`; format `raw` has spark-sql-kafka's columns instead (key, value, topic, …)."""

    kind: ClassVar[str] = "topic"
    name: str
    line: int
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    """Instead of topics: a regular expression that names of topics match as a whole."""
    format: Format = Format.RAW
    key_format: Format = Format.STRING
    schema: str | None = None
    """Columns as Spark's DDL (`id STRING, amount DOUBLE`); without it they come from the registry."""
    subject: str | None = None
    """In the registry; by default `<topic>-value`."""
    starting: Start = field(default_factory=lambda: Start(position="earliest"))
    watermark: Watermark | None = None
    max_records_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    group: str | None = None
    """Instead of the derived consumer group."""
    bad_records: BadRecords = BadRecords.DEAD_LETTERS
    headers: bool = False
    expect: tuple[Expectation, ...] = ()
    """For the rows of the stream, after decoding."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Further options of format("millstream")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource:
    """A table that is joined to streams; it is read again when it changes."""

    kind: ClassVar[str] = "table"
    name: str
    line: int
    path: str
    format: TableFormat = TableFormat.PARQUET
    schema: str | None = None
    """For csv and json."""
    watermark: ClassVar[None] = None
    expect: ClassVar[tuple[Expectation, ...]] = ()
    options: Mapping[str, str] = field(default_factory=dict)


Source = TopicSource | TableSource


# --- steps -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBase:
    name: str
    line: int
    reads: tuple[str, ...]
    """Names of the sources, steps and branches that it reads, in the order of the file."""
    watermark: Watermark | None = None
    """For sql, python, join and route: on the result. For window, dedup and stateful: on the input."""
    expect: tuple[Expectation, ...] = ()
    """For the rows of its result; of a route, for the rows that it reads."""

    @property
    def gives(self) -> tuple[str, ...]:
        """The names of its results, which others can read."""
        return (self.name,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sql(StepBase):
    kind: ClassVar[str] = "sql"
    query: str
    query_line: int
    """The first line of the text (a block scalar starts a line below its key)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Python(StepBase):
    """`function(*frames, **arguments)`, one DataFrame for each of `reads`, returns a DataFrame."""

    kind: ClassVar[str] = "python"
    function: str
    """module:name; modules are also looked for in the directory of the pipeline's file."""
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A named SQL expression: a grouping column or an aggregate."""

    name: str
    expression: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Window(StepBase):
    """Returns `window_start`, `window_end`, the columns of `group_by`, then the aggregates."""

    kind: ClassVar[str] = "window"
    window: WindowKind
    size: Duration
    """Of a session: the gap that ends it."""
    slide: Duration | None = None
    """Only of SLIDING."""
    time: str
    """The column with the event time."""
    group_by: tuple[Column, ...] = ()
    aggregate: tuple[Column, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBound:
    """right's time is between left's time - before and left's time + after; the columns are those of the watermarks."""

    left_time: str
    right_time: str
    before: Duration
    after: Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinKey:
    left: str
    right: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(StepBase):
    """`reads` is (left, right). With `within`, two streams; without, right is a table (a table source or `latest`).

    Keys of the same name are one column. Another column of right that left has too is called `<right>_<column>`.
    """

    kind: ClassVar[str] = "join"
    on: tuple[JoinKey, ...]
    type: JoinType = JoinType.INNER
    within: TimeBound | None = None

    @property
    def left(self) -> str:
        return self.reads[0]

    @property
    def right(self) -> str:
        return self.reads[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest(StepBase):
    """A TopicSource read from its beginning as a table: the newest record of each key, or none if that is a tombstone.
    Checked for changes every `refresh`."""

    kind: ClassVar[str] = "latest"
    key: tuple[str, ...] = ()
    """Columns; empty: the record's key."""
    refresh: Duration = Duration(60_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dedup(StepBase):
    """The first row of each key; duplicates within the watermark's delay are dropped."""

    kind: ClassVar[str] = "dedup"
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    name: str
    condition: str
    line: int


REST_DEAD_LETTERS = "dead_letters"
REST_DROP = "drop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route(StepBase):
    """Each row goes to the first branch whose condition is true; other rows go to `rest`."""

    kind: ClassVar[str] = "route"
    branches: tuple[Branch, ...]
    rest: str = REST_DEAD_LETTERS
    """REST_DEAD_LETTERS, REST_DROP, or the name of another branch."""

    @property
    def gives(self) -> tuple[str, ...]:
        names = tuple(branch.name for branch in self.branches)
        return names if self.rest in (REST_DEAD_LETTERS, REST_DROP) else (*names, self.rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stateful(StepBase):
    """transformWithStateInPandas with the StatefulProcessor `Processor(**arguments)`."""

    kind: ClassVar[str] = "stateful"
    processor: str
    """module:Class."""
    key: tuple[str, ...]
    output: str
    """DDL of the result."""
    mode: OutputMode = OutputMode.APPEND
    time: TimeMode = TimeMode.NONE
    arguments: Mapping[str, Any] = field(default_factory=dict)


Step = Sql | Python | Window | Join | Latest | Dedup | Route | Stateful


# --- sinks: each of them is one streaming query ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkBase:
    name: str
    line: int
    reads: str
    """The source, step or branch that it writes."""
    mode: OutputMode = OutputMode.APPEND
    trigger: Trigger | None = None
    """Instead of the pipeline's."""
    expect: tuple[Expectation, ...] = ()
    """For the rows that it writes."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Further options of the writer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSink(SinkBase):
    kind: ClassVar[str] = "topic"
    topic: str
    format: Format = Format.JSON
    """RAW: the rows have `value` (binary or string) and perhaps `key`, `headers`, `partition`, `timestamp`."""
    key: str | None = None
    """A SQL expression; its text is the key of the record."""
    headers: tuple[Column, ...] = ()
    timestamp: str | None = None
    """The column with the timestamp of the record."""
    delivery: Delivery = Delivery.EXACTLY_ONCE
    subject: str | None = None
    schema: str | None = None
    """Avro or Protobuf text to register, when the registry has none for the subject."""


TOMBSTONE = "tombstone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Upsert:
    """Rows of a table sink are changes of rows with the same keys."""

    keys: tuple[str, ...]
    sequence_by: str | None = None
    """None: the offset of the record."""
    delete_when: str | None = None
    """A SQL condition, or TOMBSTONE: all columns of the value are null."""
    history: bool = False
    envelope: Envelope | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSink(SinkBase):
    kind: ClassVar[str] = "table"
    format: TableFormat = TableFormat.DELTA
    """DELTA or ICEBERG."""
    path: str
    partition_by: tuple[str, ...] = ()
    """Columns, or days(column), hours(column), months(column)."""
    upsert: Upsert | None = None
    """None: rows are appended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSink(SinkBase):
    kind: ClassVar[str] = "console"
    rows: int = 20
    truncate: bool = True


Sink = TopicSink | TableSink | ConsoleSink


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    name: str
    file: str
    """The path of the file. Paths in the file are relative to its directory; here they are absolute."""
    description: str = ""
    bootstrap: str = "localhost:9092"
    connection: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Kafka client settings (security.protocol, sasl.…), for sources, sinks and dead letters."""
    registry: Registry | None = None
    spark: Mapping[str, str] = field(default_factory=dict)
    trigger: Trigger = field(default_factory=Trigger)
    checkpoint: str | None = None
    """A directory or URI; by default below the pipeline's state directory (see `state`)."""
    dead_letters: DeadLetters
    latency: Latency = Latency.STANDARD
    lineage: Lineage | None = None
    share_reads: bool = True
    """Whether sinks that read the same rows are one query."""
    sources: tuple[Source, ...]
    steps: tuple[Step, ...]
    """Ordered: each step comes after the steps that it reads."""
    sinks: tuple[Sink, ...]

    @property
    def is_realtime(self) -> bool:
        return self.latency is Latency.REALTIME

    @property
    def parts_with_expectations(self) -> "tuple[Source | Step | Sink, ...]":
        return tuple(part for part in (*self.sources, *self.steps, *self.sinks) if part.expect)
