"""`format("millstream")`: Spark's side of the source, batch and streaming; what it does is in planners and reader.

Spark makes this object in one process, plans in another and reads in many more, so readers hold options, and make what
cannot be pickled when it is first needed.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from millstream.spark.options import ReadOptions, parse_read_options
from millstream.spark.source.batch_planner import plan_batch, plan_with_history
from millstream.spark.source.history import HistoryPart, HistoryPlanner, OpenHistory
from millstream.spark.source.positions import FromTable
from millstream.spark.source.ranges import Range
from millstream.spark.source.rows import Rows
from millstream.spark.source.stream_planner import StreamPlanner


class MillstreamSource(DataSource):
    """Reads topics; the writer is joined to it in `pyspark_millstream`, and so is what knows tables."""

    open_history: ClassVar[OpenHistory | None] = None

    @classmethod
    def name(cls) -> str:
        return "millstream"

    def schema(self) -> StructType:
        # Kept with this object, which Spark sends on: schemas of the registry are chosen here, once.
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
        return kept if kept is not None and kept.spark_schema == schema else Rows(options, schema)

    def _options(self) -> ReadOptions:
        given: Mapping[str, str] = dict(self.options)
        return parse_read_options(given)


class BatchReader(DataSourceReader):
    """One read between two sets of offsets, which are fixed when it is planned."""

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

    def __init__(self, options: ReadOptions, rows: Rows, opener: OpenHistory | None = None) -> None:
        self._options = options
        self._opener = opener
        self._rows = rows
        self._made: StreamPlanner | None = None

    @property
    def _planner(self) -> StreamPlanner:
        if self._made is None:
            history = _history(self._options, self._rows, self._opener)
            self._made = StreamPlanner(self._options, history=history)
        return self._made

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._planner.initial()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        # One limit can be told to Spark, several are known here: whatever comes back that is not "all" means these.
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
        return list(self._planner.parts(start, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._rows, partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._planner.finished(end)


def _read(rows: Rows, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if isinstance(partition, Range):
        return rows.read(partition)
    if isinstance(partition, HistoryPart):
        return partition.read(rows.arrow_schema)
    return iter(())  # Spark makes up a partition without anything in it when there is none to read


def _history(options: ReadOptions, rows: Rows, opener: OpenHistory | None) -> HistoryPlanner | None:
    if not isinstance(options.starting, FromTable):
        return None
    return HistoryPlanner(options.starting.location, dict(options.table_options), opener, rows.arrow_schema)
