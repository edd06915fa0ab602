"""The streaming queries of a pipeline with their DataFrames: for one output each, or for several that share a read.

Each query has its own Spark session (on the same cluster), so that its names are tables for its SQL alone.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.pipeline.engine import dead_letters, expectations, realtime, sinks, steps
from millstream.pipeline.engine.expectations import Quarantine, kind_of
from millstream.pipeline.engine.failures import Part, attributed_to
from millstream.pipeline.engine.fan_out import FanOut
from millstream.pipeline.engine.planned import Output, PlannedQuery
from millstream.pipeline.engine.sharing import Graph, rows_of
from millstream.pipeline.engine.sources import StaticTables, topic_stream
from millstream.pipeline.engine.steps import joined
from millstream.pipeline.model import (
    Dedup,
    Join,
    Latest,
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
from millstream.pipeline.state import checkpoint_location, consumer_group
from millstream.spark.session.session import make_current

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation, SparkSession
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
        counts_of: Collection[tuple[str, str]] = (),
        starting: str | None = None,
        counted_steps: Collection[str] = (),
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
        self._counts_of = counts_of
        self._counted_steps = counted_steps
        self._starting = starting
        self._sources: dict[str, Source] = {source.name: source for source in pipeline.sources}
        self._steps: dict[str, Step] = {name: step for step in pipeline.steps for name in step.gives}
        self._built: dict[str, DataFrame] = {}
        self._unchecked: dict[str, DataFrame] = {}
        self._rests: dict[str, DataFrame] = {}

    def frame(self, name: str) -> "DataFrame":
        """The rows of a source, step or branch."""
        if name not in self._built:
            if name in self._sources:
                self._build_source(self._sources[name])
            else:
                self._build_step(self._steps[name])
        return self._built[name]

    def built(self, name: str) -> "DataFrame | None":
        """The rows of a part, if this query uses them."""
        return self._built.get(name)

    def trunk_rows(self, name: str) -> "DataFrame":
        """The rows of a part without its expectations, which are applied to each batch."""
        return self._unchecked[name]

    def rest_of(self, route: Route) -> "DataFrame":
        """The rows that no branch of a route takes."""
        if route.name not in self._rests:
            self._build_step(route)
        return self._rests[route.name]

    def unchecked(self, part: "Source | Step | Sink") -> "DataFrame":
        """The rows to which the expectations of a part apply."""
        if isinstance(part, Sink):
            return self.frame(part.reads)
        if isinstance(part, Route):
            return self.frame(part.reads[0])
        self.frame(part.name)
        return self._unchecked[part.name]

    def checked(self, part: "Source | Step | Sink", rows: "DataFrame") -> "DataFrame":
        """The rows without those that the expectations of a part leave out."""
        counts = (kind_of(part), part.name) in self._counts_of
        return expectations.checked(part, rows, self.observe if counts else None)

    def observe(self, rows: "DataFrame", name: str, counts: "list[Column]") -> "DataFrame":
        return rows.observe(name, *counts)

    def _build_source(self, source: Source) -> None:
        with attributed_to(Part("source", source.name, source.line)):
            if isinstance(source, TableSource):
                self._put(source.name, self.open_table(source))
            else:
                self.streams.append(source)
                self._put_checked(source, self.open_topic(source))

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
                found = steps.branches(step, self.checked(step, inputs[0]))
                rest = found.pop(None)
                self._rests[step.name] = rest
                for name, frame in found.items():
                    assert name is not None
                    self._put(name, self._with_count(name, frame))
            else:
                self._put_checked(step, self._result(step, inputs))

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

    def _put_checked(self, part: "Source | Step", frame: "DataFrame") -> None:
        self._unchecked[part.name] = frame
        self._put(part.name, self._with_count(part.name, self.checked(part, frame)))

    def _with_count(self, name: str, rows: "DataFrame") -> "DataFrame":
        """The rows of a step, which are counted for its rate if this query is the one that does so."""
        from pyspark.sql.functions import count, lit

        if name not in self._counted_steps:
            return rows
        return self.observe(rows, f"{STEP}{name}", [count(lit(1)).alias("rows")])

    def _put(self, name: str, frame: "DataFrame") -> None:
        # Over Connect, Spark analyses the frame only here, and raises errors.
        frame.schema  # noqa: B018
        frame.createOrReplaceTempView(name)
        self._built[name] = frame

    def open_topic(self, source: TopicSource) -> "DataFrame":
        if self.pipeline.is_realtime:
            return realtime.topic_stream(self.session, self.pipeline, source)
        letters = source.name in self.letters_of
        return topic_stream(
            self.session,
            self.pipeline,
            source,
            group=self.group_of(source),
            send_letters=letters,
            starting=self._starting,
        )

    def open_bad_records(self, source: TopicSource) -> "DataFrame":
        """The source with its bad records, unchanged and with the reason."""
        return topic_stream(self.session, self.pipeline, source, group=self.group_of(source), keep_bad=True)

    def open_table(self, source: TableSource) -> "DataFrame":
        return self.tables.table(self.session, source)

    def open_latest(self, step: Latest, source: TopicSource) -> "DataFrame":
        return self.tables.latest(self.session, self.pipeline, step, source)


class BatchFrames(Frames):
    """The frames of one batch of a shared query: its trunk is given, and the parts after it are computed from that.

    The session is Spark's clone for the query, which has the tables of the query as views.
    """

    def __init__(self, outer: Frames, plan: PlannedQuery, batch: "DataFrame") -> None:
        super().__init__(
            batch.sparkSession,
            outer.pipeline,
            outer.group_of,
            counts_of=plan.counts_of,
            counted_steps=plan.steps,
        )
        self._batch = batch
        self._trunk = plan.trunk
        self.observations: dict[str, Observation] = {}

    def frame(self, name: str) -> "DataFrame":
        if name == self._trunk and name not in self._built:
            step = self._steps.get(name)
            part = step if step is not None else self._sources[name]
            self._put_checked(part, self._batch)
        elif name not in self._built and self._is_table(name):
            self._built[name] = self.session.table(name)
        return super().frame(name)

    def _is_table(self, name: str) -> bool:
        return isinstance(self._sources.get(name), TableSource) or isinstance(self._steps.get(name), Latest)

    def observe(self, rows: "DataFrame", name: str, counts: "list[Column]") -> "DataFrame":
        from pyspark.sql import Observation

        self.observations[name] = Observation(name)
        return rows.observe(self.observations[name], *counts)


class StatefulSqlError(Exception):
    """A SQL step after the trunk keeps state, so it must be in the trunk."""

    def __init__(self, step: str) -> None:
        self.step = step
        super().__init__(f"SQL step {step!r} keeps state")


STEP = "step:"
"""The observation with the number of rows of a step: this, and the name of the rows."""
OBSERVED = "millstream"
"""The name of the observation that counts the rows of a sink."""


@dataclass
class BuiltQuery:
    """A query that Spark has analysed; not started."""

    plan: PlannedQuery
    frames: Frames
    writer: "DataStreamWriter"
    rows: "DataFrame"
    fan_out: FanOut | None = None
    """Of a shared query: writes its outputs."""


@dataclass
class StartedQuery:
    plan: PlannedQuery
    frames: Frames
    handle: "StreamingQuery"
    fan_out: FanOut | None = None


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

    def group_of(source: TopicSource) -> str:
        if plan.members or isinstance(of, TopicSource | Quarantine):
            return plan.name
        return consumer_group(pipeline.name, of, source)

    make_current(session)
    frames = make_frames(session, pipeline, group_of, plan.letters_of, plan.counts_of, plan.starting, plan.steps)
    if plan.members:
        return _build_shared(pipeline, plan, frames, show)
    if pipeline.is_realtime and isinstance(of, TopicSink):
        rows = output_rows(pipeline, of, frames)
        return BuiltQuery(plan, frames, realtime.topic_writer(pipeline, of, rows), rows)
    counted = counted_rows(pipeline, plan, frames)
    with attributed_to(plan.part):
        if isinstance(of, TopicSink):
            return BuiltQuery(plan, frames, sinks.topic_writer(pipeline, of, counted), counted)
        if isinstance(of, TableSink):
            return BuiltQuery(plan, frames, sinks.table_writer(of, counted), counted)
        if isinstance(of, Sink):
            return BuiltQuery(plan, frames, sinks.console_writer(of, counted, show), counted)
        return BuiltQuery(plan, frames, sinks.dead_letter_writer(pipeline, counted), counted)


def _build_shared(pipeline: Pipeline, plan: PlannedQuery, frames: Frames, show: sinks.ShowRows | None) -> BuiltQuery:
    """All outputs are built as streams too, so that Spark analyses them before a batch is read."""
    assert plan.trunk is not None
    for member in plan.members:
        output_rows(pipeline, member.of, frames)
    downstream = _after_trunk(pipeline, plan)
    for step in pipeline.steps:
        after = isinstance(step, Sql) and step.name != plan.trunk and step.name in downstream
        if isinstance(step, Sql) and after and steps.sql_keeps_state(frames.session, step):
            raise StatefulSqlError(step.name)
    trunk = frames.trunk_rows(plan.trunk)
    fan_out = FanOut(
        pipeline, plan.members, lambda batch: BatchFrames(frames, plan, batch), output_rows, show, plan.apart
    )
    with attributed_to(plan.part):
        return BuiltQuery(plan, frames, trunk.writeStream.foreachBatch(fan_out.write), trunk, fan_out)


def _after_trunk(pipeline: Pipeline, plan: PlannedQuery) -> set[str]:
    """The names of rows between the trunk and the outputs, which are computed for each batch."""
    graph = Graph(pipeline)
    found: set[str] = set()
    waiting = [rows_of(member.of) for member in plan.members if not isinstance(member.of, TopicSource)]
    while waiting:
        name = waiting.pop()
        step = graph.steps.get(name)
        if name != plan.trunk and step is not None and name not in found:
            found.add(name)
            waiting.extend(step.reads)
    return found


def counted_rows(pipeline: Pipeline, plan: PlannedQuery, frames: Frames) -> "DataFrame":
    """The rows of an output; Python sinks do not report their number, so the query's progress counts them."""
    from pyspark.sql.functions import count, lit

    rows = output_rows(pipeline, plan.of, frames)
    with attributed_to(plan.part):
        counted = frames.observe(rows, OBSERVED, [count(lit(1)).alias("rows")])
        counted.schema  # noqa: B018  # over Connect, errors are raised only here
        return counted


def output_rows(pipeline: Pipeline, of: Output, frames: Frames) -> "DataFrame":
    """The rows of an output in the columns of its writer."""
    if isinstance(of, Route):
        rest = frames.rest_of(of)
        with attributed_to(Part("step", of.name, of.line)):
            return dead_letters.of_route(pipeline, of, rest)
    if isinstance(of, TopicSource):
        with attributed_to(Part("source", of.name, of.line)):
            frames.streams.append(of)
            return dead_letters.of_source(pipeline, of, frames.open_bad_records(of))
    if isinstance(of, Quarantine):
        rows = frames.unchecked(of.part)
        with attributed_to(Part("sink" if isinstance(of.part, Sink) else "step", of.name, of.line)):
            return dead_letters.of_quarantine(pipeline, of, rows)
    rows = frames.frame(of.reads)
    with attributed_to(Part("sink", of.name, of.line)):
        rows = frames.checked(of, rows)
        if isinstance(of, TopicSink):
            return sinks.topic_rows(of, rows)
        if isinstance(of, TableSink) and of.upsert is not None:
            return sinks.upsert_rows(of.upsert, rows)
        return rows


def start(pipeline: Pipeline, built: BuiltQuery, *, checkpoint_dir: str | None) -> StartedQuery:
    plan = built.plan
    location = checkpoint_location(pipeline, plan.name, checkpoint_dir)
    # Real-time mode knows only `update`, which is the same for rows without state.
    mode = "update" if pipeline.is_realtime else plan.mode.value
    writer = built.writer.queryName(plan.name).outputMode(mode).option("checkpointLocation", location)
    if built.fan_out is not None:
        built.fan_out.checkpoint = location
    make_current(built.frames.session)
    with attributed_to(plan.part):
        if pipeline.is_realtime:
            timed: DataStreamWriter = writer.trigger(realTime=realtime.CHECKPOINT_EVERY)  # type: ignore[call-overload]
            return StartedQuery(plan, built.frames, timed.start())
        return StartedQuery(plan, built.frames, _triggered(writer, plan.trigger).start(), built.fan_out)


def _triggered(writer: "DataStreamWriter", trigger: Trigger) -> "DataStreamWriter":
    if trigger.kind is TriggerKind.AVAILABLE_NOW:
        return writer.trigger(availableNow=True)
    if trigger.kind is TriggerKind.EVERY and trigger.every is not None:
        return writer.trigger(processingTime=trigger.every.interval)
    return writer
