"""The graph of one query: every source, step and branch that its sink needs, as a DataFrame under its name.

A query has a Spark session of its own (they share the cluster), so that its names are tables for its SQL alone.
"""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.pipeline.engine import steps
from millstream.pipeline.engine.failures import Part, blamed_on
from millstream.pipeline.engine.joins import joined
from millstream.pipeline.engine.sources import topic_stream
from millstream.pipeline.engine.static_tables import StaticTables
from millstream.pipeline.model import (
    Dedup,
    Join,
    Latest,
    Pipeline,
    Python,
    Route,
    Source,
    Sql,
    Stateful,
    Step,
    TableSource,
    TopicSource,
    Window,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Frames:
    """Builds frames when they are first asked for; each once."""

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
        """The sources whose dead letters this query sends; another one does so for the rest."""
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
        with blamed_on(Part("source", source.name, source.line)):
            if isinstance(source, TableSource):
                self._put(source.name, self.open_table(source))
            else:
                self.streams.append(source)
                self._put(source.name, self.open_topic(source))

    def _build_step(self, step: Step) -> None:
        if isinstance(step, Latest):
            source = self._sources[step.reads[0]]
            assert isinstance(source, TopicSource)
            with blamed_on(Part("step", step.name, step.line)):
                self._put(step.name, self.open_latest(step, source))
            return
        inputs = [self.frame(name) for name in step.reads]
        with blamed_on(Part("step", step.name, step.line, step if isinstance(step, Sql) else None)):
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
        # Over Connect this is the first time that Spark looks at the frame: its mistakes are told here.
        frame.schema  # noqa: B018
        frame.createOrReplaceTempView(name)
        self._built[name] = frame

    def open_topic(self, source: TopicSource) -> "DataFrame":
        letters = source.name in self.letters_of
        return topic_stream(self.session, self.pipeline, source, group=self.group_of(source), send_letters=letters)

    def open_bad_records(self, source: TopicSource) -> "DataFrame":
        """The source with its bad records, each as it came and with the reason."""
        return topic_stream(self.session, self.pipeline, source, group=self.group_of(source), keep_bad=True)

    def open_table(self, source: TableSource) -> "DataFrame":
        return self.tables.table(self.session, source)

    def open_latest(self, step: Latest, source: TopicSource) -> "DataFrame":
        return self.tables.latest(self.session, self.pipeline, step, source)
