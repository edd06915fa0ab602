"""`format("millstream")` for reading: the classes that Spark calls, the schema, and the rows of a range.

Spark creates the source in one process, plans in another and reads in many more. So readers hold options, and create
objects that cannot be pickled on first use.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from millstream.columnar import ArrowDecoder
from millstream.spark.errors import OptionError
from millstream.spark.options import ReadOptions, parse_read_options
from millstream.spark.read_options import ERROR_COLUMN
from millstream.spark.source.limits import Range
from millstream.spark.source.offsets import HistoryPart, HistoryPlanner, OpenHistory
from millstream.spark.source.planner import StreamPlanner, plan_batch, plan_with_history
from millstream.spark.source.positions import FromTable
from millstream.spark.source.range_reader import RangeReader
from millstream.spark.source.small_batches import WRAPPER, SmallBatch, SmallBatches

if TYPE_CHECKING:
    from millstream.spark.source.typed_columns import Format


_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
    ERROR_COLUMN: StringType(),
}


def spark_schema(options: ReadOptions, typed: dict[str, DataType]) -> StructType:
    """`typed`: the types of `key` and `value` if they are not bytes."""
    return StructType([StructField(name, typed.get(name, _TYPES[name])) for name in options.columns])


def check_schema_unchanged(given: StructType, options: ReadOptions) -> None:
    """A schema of the user is refused; a schema that Spark got from this source is accepted."""
    sides = {"key": options.key, "value": options.value}
    typed = {side: given[side].dataType for side, each in sides.items() if each.format != "raw" and side in given.names}
    own = spark_schema(options, typed)
    if given.simpleString() != own.simpleString():
        raise OptionError(
            f"the schema of this source is {own.simpleString()}, not {given.simpleString()}; remove .schema(…), and "
            f"use "
            "the option columns, or valueFormat and valueSchema"
        )


class Rows:
    """The schema of a query's rows, and how tasks read them. Pickled and sent to tasks.

    Modules for typed columns are imported only if a query has some, because every process of a task pays for imports.
    """

    def __init__(self, options: ReadOptions, given: StructType | None = None) -> None:
        """`given`: the schema that Spark already has for this query."""
        self.options = options
        self._formats: dict[str, Format] = {}
        types = {}
        if options.typed:
            from millstream.spark.source.typed_columns import formats_of, spark_types

            self._formats = formats_of(options)
            types = spark_types(self._formats)
        if given is not None:
            check_schema_unchanged(given, options)
        self.spark_schema: StructType = given or spark_schema(options, types)

    @property
    def arrow_schema(self) -> pa.Schema:
        """The exact schema that Spark expects of record batches."""
        return to_arrow_schema(self.spark_schema, timezone="UTC")

    def read(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        """All records of a range."""
        reader = RangeReader(self.options, wanted)
        return self.convert(reader.batches(ArrowDecoder(self.raw_columns)), wanted.topic)

    @property
    def raw_columns(self) -> Sequence[str]:
        """The columns of records that `convert` needs."""
        if not self.options.typed:
            return self.options.columns
        from millstream.spark.source.typed_columns import raw_columns

        return raw_columns(self.options)

    def convert(self, batches: Iterator[pa.RecordBatch], topic: str) -> Iterator[pa.RecordBatch]:
        """Records of a topic as rows with the query's columns."""
        expected = self.arrow_schema
        if self.options.typed:
            from millstream.spark.source.typed_columns import TypedColumns

            yield from TypedColumns(self.options, expected, self._formats).convert(batches, topic)
            return
        for batch in batches:
            yield batch if batch.schema == expected else pa.RecordBatch.from_arrays(batch.columns, schema=expected)


class MillstreamSource(DataSource):
    """Reads topics. `pyspark_millstream` adds the writer and the reading of tables."""

    open_history: ClassVar[OpenHistory | None] = None

    @classmethod
    def name(cls) -> str:
        return "millstream"

    def schema(self) -> StructType:
        # Kept, because Spark pickles this object: schemas of the registry are chosen once, here.
        self._rows = Rows(self._options())
        return self._rows.spark_schema

    def reader(self, schema: StructType) -> "BatchReader":
        options = self._options().for_batch()
        return BatchReader(options, self._rows_of(options, schema), self.open_history)

    def streamReader(self, schema: StructType) -> "StreamReader":  # noqa: N802
        options = self._options().for_stream()
        return StreamReader(options, self._rows_of(options, schema), self.open_history)

    def _rows_of(self, options: ReadOptions, schema: StructType) -> Rows:
        kept: Rows | None = getattr(self, "_rows", None)
        if kept is None or kept.spark_schema != schema:
            return Rows(options, schema)
        kept.options = options
        return kept

    def _options(self) -> ReadOptions:
        given: Mapping[str, str] = dict(self.options)
        return parse_read_options(given)


class BatchReader(DataSourceReader):
    """A batch query between two sets of offsets, which are fixed when it is planned."""

    def __init__(self, options: ReadOptions, rows: Rows, opener: OpenHistory | None = None) -> None:
        self._options = options
        self._opener = opener
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        history = _history(self._options, self._rows, self._opener)
        return list(plan_batch(self._options) if history is None else plan_with_history(self._options, history))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._rows, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of micro-batches."""

    _in_plan: list[pa.RecordBatch] | None = None
    """The rows of the batch that is being planned, if they travel with the plan."""

    def __init__(self, options: ReadOptions, rows: Rows, opener: OpenHistory | None = None) -> None:
        self._options = options
        self._opener = opener
        self._rows = rows
        self._made: StreamPlanner | None = None
        self._small: SmallBatches | None = None

    @property  # type: ignore[misc]
    def __class__(self) -> type[Any]:
        """Spark checks by `isinstance` whether there are rows for the plan, and then calls `getCache` (ADR 38)."""
        return StreamReader if WRAPPER is None or self._in_plan is None else WRAPPER

    @property
    def _planner(self) -> StreamPlanner:
        if self._made is None:
            history = _history(self._options, self._rows, self._opener)
            self._made = StreamPlanner(self._options, history=history)
        return self._made

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._planner.initial()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        # Spark takes one limit, this source has several: any limit but "all available" means ours.
        options = self._options
        if options.max_offsets is None and options.max_bytes is None and options.min_offsets <= 1:
            return ReadAllAvailable()
        return ReadMaxRows(options.max_offsets or (1 << 62))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        return self._planner.latest(start, limited=not isinstance(limit, ReadAllAvailable))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._planner.report_latest()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._planner.prepare_available_now()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        parts = self._planner.parts(start, end)
        ranges = [each for each in parts if isinstance(each, Range)]
        if self._options.small_batch_bytes and ranges and len(ranges) == len(parts):
            if self._small is None:
                self._small = SmallBatches(self._options, self._rows.raw_columns, self._rows.convert)
            self._in_plan = self._small.read(ranges, self._planner.looked)
            if self._in_plan is not None:
                return [SmallBatch(tuple(ranges))]
        return list(parts)

    def getCache(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[pa.RecordBatch]:  # noqa: N802
        """The rows for the plan; Spark calls this right after `partitions`, with the same offsets."""
        rows, self._in_plan = self._in_plan or [], None
        return iter(rows)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._rows, partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._planner.finished(end)


def _read(rows: Rows, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if isinstance(partition, Range):
        return rows.read(partition)
    if isinstance(partition, SmallBatch):
        return chain.from_iterable(rows.read(each) for each in partition.ranges)
    if isinstance(partition, HistoryPart):
        return partition.read(rows.arrow_schema)
    return iter(())  # Spark makes an empty partition if there is none


def _history(options: ReadOptions, rows: Rows, opener: OpenHistory | None) -> HistoryPlanner | None:
    if not isinstance(options.starting, FromTable):
        return None
    return HistoryPlanner(options.starting.location, dict(options.table_options), opener, rows.arrow_schema)
