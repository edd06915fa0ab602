"""The streaming queries of a pipeline: one for each sink and for each origin of dead letters, and their DataFrames.

Each query has its own Spark session (on the same cluster), so that its names are tables for its SQL alone.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.pipeline.engine import dead_letters, sinks, steps
from millstream.pipeline.engine.dead_letters import dead_letter_senders
from millstream.pipeline.engine.decoding import decoded_by_spark
from millstream.pipeline.engine.failures import Part, attributed_to
from millstream.pipeline.engine.sources import StaticTables, topic_stream
from millstream.pipeline.engine.steps import joined
from millstream.pipeline.model import (
    REST_DEAD_LETTERS,
    BadRecords,
    Dedup,
    Join,
    Latest,
    OutputMode,
    Pipeline,
    Python,
    Route,
    Sink,
    Source,
    Sql,
    Stateful,
    Step,
    TableSink,
    TableSource,
    TopicSink,
    TopicSource,
    Trigger,
    TriggerKind,
    Window,
)
from millstream.pipeline.state import checkpoint_location, consumer_group, dead_letter_query_name, query_name
from millstream.spark.session.session import make_current

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


class Frames:
    """The DataFrames of one query by name, each built once on first use."""

    def __init__(
        self,
        session: "SparkSession",
        pipeline: Pipeline,
        group_of: Callable[[TopicSource], str],
        letters_of: Collection[str] = (),
    ) -> None:
        self.session = session
        self.pipeline = pipeline
        self.tables = StaticTables()
        self.streams: list[TopicSource] = []
        """The topic sources that are read as streams, in the order in which they were first needed."""
        self._directory = Path(pipeline.file).absolute().parent
        self.group_of = group_of
        self.letters_of = letters_of
        """The sources whose dead letters this query sends; other queries send the rest."""
        self._sources: dict[str, Source] = {source.name: source for source in pipeline.sources}
        self._steps: dict[str, Step] = {name: step for step in pipeline.steps for name in step.gives}
        self._built: dict[str, DataFrame] = {}
        self._rests: dict[str, DataFrame] = {}

    def frame(self, name: str) -> "DataFrame":
        """The rows of a source, step or branch."""
        if name not in self._built:
            if name in self._sources:
                self._build_source(self._sources[name])
            else:
                self._build_step(self._steps[name])
        return self._built[name]

    def rest_of(self, route: Route) -> "DataFrame":
        """The rows that no branch of a route takes."""
        if route.name not in self._rests:
            self._build_step(route)
        return self._rests[route.name]

    def _build_source(self, source: Source) -> None:
        with attributed_to(Part("source", source.name, source.line)):
            if isinstance(source, TableSource):
                self._put(source.name, self.open_table(source))
            else:
                self.streams.append(source)
                self._put(source.name, self.open_topic(source))

    def _build_step(self, step: Step) -> None:
        if isinstance(step, Latest):
            source = self._sources[step.reads[0]]
            assert isinstance(source, TopicSource)
            with attributed_to(Part("step", step.name, step.line)):
                self._put(step.name, self.open_latest(step, source))
            return
        inputs = [self.frame(name) for name in step.reads]
        with attributed_to(Part("step", step.name, step.line, step if isinstance(step, Sql) else None)):
            if isinstance(step, Route):
                found = steps.branches(step, inputs[0])
                rest = found.pop(None)
                self._rests[step.name] = rest
                for name, frame in found.items():
                    assert name is not None
                    self._put(name, frame)
            else:
                self._put(step.name, self._result(step, inputs))

    def _result(
        self, step: "Sql | Python | Window | Join | Dedup | Stateful", inputs: "list[DataFrame]"
    ) -> "DataFrame":
        match step:
            case Sql():
                return steps.with_watermark(self.session.sql(step.query), step)
            case Python():
                return steps.with_watermark(steps.python(step, inputs, self._directory), step)
            case Join():
                return steps.with_watermark(joined(step, inputs[0], inputs[1]), step)
            case Window():
                return steps.window(step, inputs[0])
            case Dedup():
                return steps.dedup(step, inputs[0])
            case Stateful():
                return steps.stateful(step, inputs[0], self._directory)

    def _put(self, name: str, frame: "DataFrame") -> None:
        # Over Connect, Spark analyses the frame only here, and raises errors.
        frame.schema  # noqa: B018
        frame.createOrReplaceTempView(name)
        self._built[name] = frame

    def open_topic(self, source: TopicSource) -> "DataFrame":
        letters = source.name in self.letters_of
        return topic_stream(self.session, self.pipeline, source, group=self.group_of(source), send_letters=letters)

    def open_bad_records(self, source: TopicSource) -> "DataFrame":
        """The source with its bad records, unchanged and with the reason."""
        return topic_stream(self.session, self.pipeline, source, group=self.group_of(source), keep_bad=True)

    def open_table(self, source: TableSource) -> "DataFrame":
        return self.tables.table(self.session, source)

    def open_latest(self, step: Latest, source: TopicSource) -> "DataFrame":
        return self.tables.latest(self.session, self.pipeline, step, source)


OBSERVED = "millstream"
"""The name of the observation that counts the rows of a sink."""


@dataclass(frozen=True)
class PlannedQuery:
    """A query with a name and a checkpoint, without a DataFrame."""

    name: str
    sink: str
    """The name of the sink, or the origin of the dead letters, for people."""
    part: Part
    of: Sink | Route | TopicSource
    trigger: Trigger
    mode: OutputMode
    carries_dead_letters: bool = False
    letters_of: frozenset[str] = frozenset()
    """The sources that send their bad records to the dead letters while this query reads them."""


@dataclass
class BuiltQuery:
    """A query that Spark has analysed; not started."""

    plan: PlannedQuery
    frames: Frames
    writer: "DataStreamWriter"
    rows: "DataFrame"


@dataclass
class StartedQuery:
    plan: PlannedQuery
    frames: Frames
    handle: "StreamingQuery"


def planned_queries(pipeline: Pipeline, *, available_now: bool = False) -> list[PlannedQuery]:
    """The queries in the order of the file, dead letters last."""
    override = Trigger(kind=TriggerKind.AVAILABLE_NOW) if available_now else None
    usual = override or pipeline.trigger
    routes = list(_routes_with_dead_letters(pipeline))
    letters = dead_letter_senders(pipeline, [*pipeline.sinks, *(route for _, route in routes)])
    found = [
        PlannedQuery(
            name=query_name(pipeline.name, sink.name),
            sink=sink.name,
            part=Part("sink", sink.name, sink.line),
            of=sink,
            trigger=override or sink.trigger or pipeline.trigger,
            mode=sink.mode,
            letters_of=letters[index],
        )
        for index, sink in enumerate(pipeline.sinks)
    ]
    carriers: list[tuple[str, Route | TopicSource]] = [*routes]
    carriers += _sources_with_dead_letters(pipeline)
    for index, (kind, of) in enumerate(carriers, start=len(pipeline.sinks)):
        found.append(
            PlannedQuery(
                name=dead_letter_query_name(pipeline.name, of.name),
                sink=f"{of.name} (dead letters)",
                part=Part(kind, of.name, of.line),
                of=of,
                trigger=usual,
                mode=OutputMode.APPEND,
                carries_dead_letters=True,
                letters_of=letters[index] if isinstance(of, Route) else frozenset(),
            )
        )
    return found


def _routes_with_dead_letters(pipeline: Pipeline) -> Iterator[tuple[str, Route]]:
    for step in pipeline.steps:
        if isinstance(step, Route) and step.rest == REST_DEAD_LETTERS:
            yield "step", step


def _sources_with_dead_letters(pipeline: Pipeline) -> Iterator[tuple[str, TopicSource]]:
    """The sources whose records Spark decodes; other sources send dead letters themselves."""
    read_as_tables = {name for step in pipeline.steps if isinstance(step, Latest) for name in step.reads}
    others = {name for step in pipeline.steps if not isinstance(step, Latest) for name in step.reads}
    streamed = others | {sink.reads for sink in pipeline.sinks}
    for source in pipeline.sources:
        if not isinstance(source, TopicSource) or source.bad_records is not BadRecords.DEAD_LETTERS:
            continue
        if decoded_by_spark(source) and (source.name in streamed or source.name not in read_as_tables):
            yield "source", source


def build(
    session: "SparkSession",
    pipeline: Pipeline,
    plan: PlannedQuery,
    *,
    show: sinks.ShowRows | None,
    make_frames: type[Frames] = Frames,
) -> BuiltQuery:
    """Builds the DataFrames and the writer of a query; PartFailedError names the part that Spark refuses."""
    of = plan.of
    owner = of if not isinstance(of, TopicSource) else None

    def group_of(source: TopicSource) -> str:
        return plan.name if owner is None else consumer_group(pipeline.name, owner, source)

    make_current(session)
    frames = make_frames(session, pipeline, group_of, plan.letters_of)
    if isinstance(of, Route):
        rows = frames.rest_of(of)
        with attributed_to(plan.part):
            counted = _counted(dead_letters.of_route(pipeline, of, rows))
            return BuiltQuery(plan, frames, sinks.dead_letter_writer(pipeline, counted), counted)
    if isinstance(of, TopicSource):
        with attributed_to(plan.part):
            frames.streams.append(of)
            counted = _counted(dead_letters.of_source(pipeline, of, frames.open_bad_records(of)))
            return BuiltQuery(plan, frames, sinks.dead_letter_writer(pipeline, counted), counted)
    rows = frames.frame(of.reads)
    with attributed_to(plan.part):
        if isinstance(of, TopicSink):
            counted = _counted(sinks.topic_rows(of, rows))
            return BuiltQuery(plan, frames, sinks.topic_writer(pipeline, of, counted), counted)
        if isinstance(of, TableSink) and of.upsert is not None:
            rows = sinks.upsert_rows(of.upsert, rows)
        counted = _counted(rows)
        if isinstance(of, TableSink):
            return BuiltQuery(plan, frames, sinks.table_writer(of, counted), counted)
        return BuiltQuery(plan, frames, sinks.console_writer(of, counted, show), counted)


def _counted(rows: "DataFrame") -> "DataFrame":
    """Counts rows in the query's progress, because Python sinks do not report their number."""
    from pyspark.sql.functions import count, lit

    counted = rows.observe(OBSERVED, count(lit(1)).alias("rows"))
    counted.schema  # noqa: B018  # over Connect, errors are raised only here
    return counted


def start(pipeline: Pipeline, built: BuiltQuery, *, checkpoint_dir: str | None) -> StartedQuery:
    plan = built.plan
    location = checkpoint_location(pipeline, plan.name, checkpoint_dir)
    writer = built.writer.queryName(plan.name).outputMode(plan.mode.value).option("checkpointLocation", location)
    make_current(built.frames.session)
    with attributed_to(plan.part):
        return StartedQuery(plan, built.frames, _triggered(writer, plan.trigger).start())


def _triggered(writer: "DataStreamWriter", trigger: Trigger) -> "DataStreamWriter":
    if trigger.kind is TriggerKind.AVAILABLE_NOW:
        return writer.trigger(availableNow=True)
    if trigger.kind is TriggerKind.EVERY and trigger.every is not None:
        return writer.trigger(processingTime=trigger.every.interval)
    return writer
