"""Planned queries of a pipeline: names, triggers and what they write; without Spark."""

from collections.abc import Iterator
from dataclasses import dataclass

from millstream.pipeline.engine.dead_letters import dead_letter_senders
from millstream.pipeline.engine.decoding import decoded_by_spark
from millstream.pipeline.engine.expectations import Quarantine, quarantines_of
from millstream.pipeline.engine.failures import Part
from millstream.pipeline.model import (
    REST_DEAD_LETTERS,
    BadRecords,
    Latest,
    OutputMode,
    Pipeline,
    Route,
    Sink,
    TopicSource,
    Trigger,
    TriggerKind,
)
from millstream.pipeline.state import dead_letter_query_name, quarantine_query_name, query_name

Output = Sink | Route | TopicSource | Quarantine
"""A sink; or the dead letters of a route, of a source that Spark decodes, or of the rules of a part."""


@dataclass(frozen=True)
class PlannedQuery:
    """A query with a name and a checkpoint, without a DataFrame."""

    name: str
    sink: str
    """The name of the sink, or the origin of the dead letters, for people."""
    part: Part
    of: Output
    trigger: Trigger
    mode: OutputMode
    carries_dead_letters: bool = False
    letters_of: frozenset[str] = frozenset()
    """The sources that send their bad records to the dead letters while this query reads them."""
    counts_of: frozenset[tuple[str, str]] = frozenset()
    """The parts whose rules this query counts, by kind and name."""
    steps: frozenset[str] = frozenset()
    """The rows of steps that this query counts, by their names: the step, or a branch of a route."""
    members: "tuple[PlannedQuery, ...]" = ()
    """The outputs of a query that several share; empty if it has one."""
    trunk: str | None = None
    """Of a shared query: the part whose rows all outputs are computed from."""
    apart: frozenset[str] = frozenset()
    """Of a shared query: outputs with a write of their own, because an interrupted batch was begun like that."""
    starting: str | None = None
    """The `startingOffsets` of a query that continues others; only for its first batch."""


def planned_queries(pipeline: Pipeline, *, available_now: bool = False) -> list[PlannedQuery]:
    """A query for each output, in the order of the file, dead letters last. `sharing.py` puts them together."""
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
    return [*found, *_quarantines(pipeline, usual, override)]


def _quarantines(pipeline: Pipeline, usual: Trigger, override: Trigger | None) -> Iterator[PlannedQuery]:
    for each in quarantines_of(pipeline.parts_with_expectations):
        part = each.part
        of_sink = isinstance(part, Sink)
        yield PlannedQuery(
            name=quarantine_query_name(pipeline.name, part.name, of_sink=of_sink),
            sink=f"{part.name} (quarantine)",
            part=Part("sink" if of_sink else "step", part.name, part.line),
            of=each,
            trigger=override or (part.trigger if isinstance(part, Sink) else None) or usual,
            mode=part.mode if isinstance(part, Sink) else OutputMode.APPEND,
            carries_dead_letters=True,
        )


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
