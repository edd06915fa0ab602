"""Has Spark analyse a pipeline on empty tables with the right columns; no query is started.

The graph of each sink is analysed as for a run, with sources without rows, and checked by Spark's rules for streams
(output modes, watermarks, joins), which Spark itself checks only at the start of a query. Each problem is reported
once.
"""

from typing import TYPE_CHECKING

from millstream.pipeline.engine.decoding import decode, decoded_by_source, good_rows, key_decoded_by_source
from millstream.pipeline.engine.failures import PartFailedError, attributed_to
from millstream.pipeline.engine.planned import PlannedQuery, planned_queries
from millstream.pipeline.engine.queries import BuiltQuery, Frames, build
from millstream.pipeline.engine.run import ENGINE_SETTINGS, own_session
from millstream.pipeline.engine.sources import latest_rows, topic_contents, with_watermark
from millstream.pipeline.model import Latest, Pipeline, TableFormat, TableSource, TopicSource
from millstream.spark.session.session import is_remote, start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_RECORD = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT"
_HEADERS = "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"


def analyse(pipeline: Pipeline, session: "SparkSession | None" = None) -> list[tuple[int, str]]:
    """The problems that Spark finds: the line of the file, and the reason with Spark's suggestion."""
    settings = {**ENGINE_SETTINGS, **pipeline.spark}
    own = session is None
    if session is None:
        session = start_session(f"validate {pipeline.name}", master="local[1]", settings=settings, lifetime="short")
    try:
        found: dict[tuple[int, str], None] = {}
        for plan in planned_queries(pipeline):
            for problem in _problems_of(own_session(session, settings), pipeline, plan):
                found[problem] = None
        return sorted(found)
    finally:
        if own:
            session.stop()


def _problems_of(session: "SparkSession", pipeline: Pipeline, plan: PlannedQuery) -> list[tuple[int, str]]:
    try:
        built = build(session, pipeline, plan, show=None, make_frames=EmptyFrames)
        with attributed_to(plan.part):
            _check_stream_rules(session, built)
        built.frames.tables.forget()
    except PartFailedError as error:
        return [(error.line, str(error))]
    return []


def _check_stream_rules(session: "SparkSession", built: BuiltQuery) -> None:
    """Spark's rules for streaming plans and output modes, which `start` checks."""
    if is_remote(session):
        return  # the plan is on the server, which checks the rules at the start of a query
    plan = built.rows._jdf.queryExecution().analyzed()
    jvm = session._jvm
    assert jvm is not None
    mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, built.plan.mode.value.capitalize())()
    jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(plan, mode)


class EmptyFrames(Frames):
    """The graph of a query with sources that have the right columns and no rows; only schemas are fetched."""

    def open_topic(self, source: TopicSource) -> "DataFrame":
        if decoded_by_source(source) or key_decoded_by_source(source):
            return super().open_topic(source)
        decoded = decode(_empty_stream(self.session, source), source)
        return with_watermark(good_rows(decoded, source), source)

    def open_bad_records(self, source: TopicSource) -> "DataFrame":
        return decode(_empty_stream(self.session, source), source, keep_bytes=True)

    def open_latest(self, step: Latest, source: TopicSource) -> "DataFrame":
        if decoded_by_source(source) or key_decoded_by_source(source):
            contents = topic_contents(self.session, self.pipeline, source)
        else:
            contents = decode(_empty_table(self.session, source), source, keep_bytes=True)
        return latest_rows(contents, step, source)

    def open_table(self, source: TableSource) -> "DataFrame":
        if source.schema is not None and source.format in (TableFormat.CSV, TableFormat.JSON):
            return self.session.createDataFrame([], source.schema)
        return super().open_table(source)


def _columns(source: TopicSource) -> str:
    return f"{_RECORD}, {_HEADERS}" if source.headers else _RECORD


def _empty_stream(session: "SparkSession", source: TopicSource) -> "DataFrame":
    """A stream without rows: the rate source with our columns."""
    return _with_columns(session.readStream.format("rate").load(), source)


def _empty_table(session: "SparkSession", source: TopicSource) -> "DataFrame":
    return session.createDataFrame([], _columns(source))


def _with_columns(stream: "DataFrame", source: TopicSource) -> "DataFrame":
    from pyspark.sql.functions import lit

    names = [column.strip().split(" ", 1) for column in _RECORD.split(",")]
    columns = [lit(None).cast(kind).alias(name) for name, kind in names]
    if source.headers:
        columns.append(lit(None).cast(_HEADERS.removeprefix("headers ")).alias("headers"))
    return stream.select(*columns).where("offset IS NOT NULL")
