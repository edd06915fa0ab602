"""Runs the tests of a pipeline: its graph on sample rows, as streaming queries, in one Spark session; no broker.

Each batch of a source is a JSON file, which Spark reads with the source's schema, one file for each micro-batch. So
watermarks, windows and late rows behave as they do in a run. Each output is a query that ends when all is read; the
rows are compared as they would be given to the sink, before they are encoded.

A part that Spark refuses is reported once, and the outputs that depend on it are not run.
"""

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.pipeline.cases import DEAD_LETTERS, Case
from millstream.pipeline.engine.decoding import RAW_KEY, RAW_VALUE, value_columns
from millstream.pipeline.engine.expectations import Quarantine
from millstream.pipeline.engine.failures import PartFailedError, attributed_to, spark_reason
from millstream.pipeline.engine.planned import PlannedQuery, planned_queries
from millstream.pipeline.engine.queries import Frames, output_rows
from millstream.pipeline.engine.run import ENGINE_SETTINGS, own_session
from millstream.pipeline.engine.sources import latest_rows, with_watermark
from millstream.pipeline.model import Format, Latest, Pipeline, Route, Sink, TableSource, TopicSink, TopicSource
from millstream.pipeline.row_diff import Row, RowDiff, compare
from millstream.spark.session.session import make_current

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TEST_SETTINGS = {"spark.sql.shuffle.partitions": "2"}
_RECORD = "_key STRING, _topic STRING, _partition INT, _offset BIGINT, _timestamp TIMESTAMP"
_RAW = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT"
_HEADERS = "_headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
_FIRST = "2026-01-01T00:00:00Z"


@dataclass
class CaseResult:
    """The result of one test: differences by output, and failures with the line of the file."""

    case: Case
    diffs: dict[str, RowDiff] = field(default_factory=dict)
    failures: list[tuple[int, str]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """Outputs that depend on a part that failed."""

    @property
    def has_passed(self) -> bool:
        return not self.failures and all(diff.is_equal for diff in self.diffs.values())


def run_case(session: "SparkSession", pipeline: Pipeline, case: Case) -> CaseResult:
    result = CaseResult(case)
    wanted = [plan for plan in planned_queries(pipeline) if _output_name(plan) in case.expected]
    settings = {**ENGINE_SETTINGS, **TEST_SETTINGS, **pipeline.spark}
    there: dict[str, list[Row]] = {name: [] for name in case.expected}
    with tempfile.TemporaryDirectory(prefix="millstream-test-") as directory:
        running = []
        for plan in wanted:
            name = _output_name(plan)
            try:
                query = _Query(own_session(session, settings), pipeline, case, plan, Path(directory) / plan.name)
                running.append((name, plan, query))
            except PartFailedError as error:
                result.skipped.append(name)
                problem = (error.line, str(error))
                if problem not in result.failures:
                    result.failures.append(problem)
        for name, plan, query in running:
            try:
                there[name] += query.rows()
            except PartFailedError as error:
                result.skipped.append(name)
                problem = (plan.part.line, error.reason)
                if problem not in result.failures:
                    result.failures.append(problem)
    for name, rows in case.expected.items():
        if name not in result.skipped:
            result.diffs[name] = compare(rows, there[name])
    return result


def _output_name(plan: PlannedQuery) -> str:
    return plan.of.name if isinstance(plan.of, Sink) else DEAD_LETTERS


class _Query:
    """One output as a started query, and the rows that it gave."""

    def __init__(
        self, session: "SparkSession", pipeline: Pipeline, case: Case, plan: PlannedQuery, directory: Path
    ) -> None:
        self._plan = plan
        self._found: list[Row] = []
        make_current(session)
        frames = _SampleFrames(session, pipeline, case, directory)
        of = plan.of
        if isinstance(of, Sink):
            rows = frames.frame(of.reads)
            with attributed_to(plan.part):
                rows = _shown(of, frames.checked(of, rows))
                output_rows(pipeline, of, frames)  # Spark analyses what the sink adds: keys, headers
        elif isinstance(of, Route | Quarantine):
            rows = output_rows(pipeline, of, frames)
        else:
            return  # bad records of a source: sample rows are decoded
        with attributed_to(plan.part):
            self._handle = (
                rows.writeStream.foreachBatch(self._take)
                .outputMode(plan.mode.value)
                .option("checkpointLocation", str(directory / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )

    def _take(self, batch: "DataFrame", number: int) -> None:
        self._found += [row.asDict(recursive=True) for row in batch.collect()]

    def rows(self) -> list[Row]:
        from pyspark.errors import PySparkException

        if isinstance(self._plan.of, TopicSource):
            return []
        try:
            self._handle.awaitTermination()
        except PySparkException as error:
            raise PartFailedError(self._plan.part, spark_reason(error)) from error
        if isinstance(self._plan.of, Sink):
            return self._found
        return [_letter(row) for row in self._found]


def _shown(sink: Sink, rows: "DataFrame") -> "DataFrame":
    """The rows as a test compares them: the columns of the value, and `_key` with the key of a topic's record."""
    from pyspark.sql.functions import col, expr

    if isinstance(sink, TopicSink) and sink.key is not None:
        return rows.withColumn("_key", expr(sink.key).cast("string"))
    return rows.select(*[col(name) for name in rows.columns]) if value_columns(rows) else rows


def _letter(row: Mapping[str, Any]) -> Row:
    """A dead letter: its fields, `_step` and `_reason`."""
    headers = {each["key"]: bytes(each["value"] or b"").decode("utf-8", "replace") for each in row["headers"] or []}
    try:
        value = json.loads(bytes(row["value"] or b"null"))
    except ValueError:
        value = None
    fields = value if isinstance(value, dict) else {"value": row["value"]}
    return {**fields, "_step": headers.get("millstream.step"), "_reason": headers.get("millstream.reason")}


class _SampleFrames(Frames):
    """The graph of a query with the sample rows of a test as sources."""

    def __init__(self, session: "SparkSession", pipeline: Pipeline, case: Case, directory: Path) -> None:
        super().__init__(session, pipeline, lambda source: "test")
        self._case = case
        self._files = directory

    def open_topic(self, source: TopicSource) -> "DataFrame":
        batches = self._case.batches.get(source.name, ())
        folder = self._files / f"source-{source.name}"
        _write(folder, [[_with_record(source, row, at) for at, row in rows] for rows in _numbered(batches)])
        reader = self.session.readStream.schema(self._schema(source)).option("maxFilesPerTrigger", 1)
        frame = reader.option("mode", "FAILFAST").json(str(folder))
        return with_watermark(frame, source)

    def open_latest(self, step: Latest, source: TopicSource) -> "DataFrame":
        folder = self._files / f"table-{step.name}"
        batches = self._case.batches.get(source.name, ())
        _write(folder, [[_with_record(source, row, at) for at, row in rows] for rows in _numbered(batches)])
        rows = self.session.read.schema(self._schema(source)).option("mode", "FAILFAST").json(str(folder))
        if source.format is Format.RAW:
            return latest_rows(rows, step, source)
        empty = " AND ".join(f"`{name}` IS NULL" for name in value_columns(rows))
        # A row with nothing but a key is a tombstone.
        contents = rows.selectExpr(
            "*", f"CASE WHEN {empty} THEN NULL ELSE CAST('' AS BINARY) END AS {RAW_VALUE}", f"_key AS {RAW_KEY}"
        )
        return latest_rows(contents, step, source)

    def open_table(self, source: TableSource) -> "DataFrame":
        if source.name not in self._case.batches:
            return super().open_table(source)
        folder = self._files / f"table-{source.name}"
        _write(folder, [list(rows) for rows in self._case.batches[source.name]])
        ddl = self._case.schemas.get(source.name) or source.schema
        reader = self.session.read if ddl is None else self.session.read.schema(ddl)
        return reader.json(str(folder))

    def _schema(self, source: TopicSource) -> str:
        if source.format is Format.RAW:
            return _RAW
        columns = (
            "value STRING" if source.format is Format.STRING else self._case.schemas.get(source.name) or source.schema
        )
        headers = f", {_HEADERS}" if source.headers else ""
        return f"{columns}, {_RECORD}{headers}"


def _numbered(batches: Sequence[Sequence[Row]]) -> list[list[tuple[int, Row]]]:
    found, at = [], 0
    for rows in batches:
        found.append([(at + index, row) for index, row in enumerate(rows)])
        at += len(rows)
    return found


def _with_record(source: TopicSource, row: Row, offset: int) -> Row:
    prefix = "" if source.format is Format.RAW else "_"
    record = {"topic": source.topics[0] if source.topics else "", "partition": 0, "offset": offset, "timestamp": _FIRST}
    return {**{f"{prefix}{name}": value for name, value in record.items()}, **row}


def _write(folder: Path, batches: Sequence[Sequence[Row]]) -> None:
    """A file for each batch; Spark reads files in the order of their times."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, rows in enumerate(batches):
        file = folder / f"{number:06}.json"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(file, (1_000_000_000 + number, 1_000_000_000 + number))
