"""Which outputs of a pipeline are one query: those that can be computed from the same rows, batch by batch.

The *trunk* of an output is the last part of its way through the graph that must be a stream: a source, a step with
state (window, dedup, stateful, a join of two streams), a Python step, or a step that puts several streams together.
What comes after the trunk (SQL without state, routes, joins with tables, expectations) can be computed from each batch
of the trunk. So outputs with the same trunk, output mode and trigger need one query, which reads its sources once.

Pure: Spark is asked elsewhere (`queries.py`) whether a SQL step has state. `fan_out.py` writes the outputs of a batch,
`shared_checkpoints.py` keeps which outputs a checkpoint has.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from millstream.pipeline.engine.expectations import Part, Quarantine, kind_of
from millstream.pipeline.engine.planned import Output, PlannedQuery
from millstream.pipeline.model import (
    Dedup,
    Join,
    Latest,
    Pipeline,
    Python,
    Route,
    Sink,
    Stateful,
    Step,
    TableSource,
    TopicSource,
    Window,
)


@dataclass(frozen=True, slots=True)
class Graph:
    """The parts of a pipeline by the names of their rows."""

    pipeline: Pipeline
    with_state: frozenset[str] = frozenset()
    """SQL steps of which Spark says that they keep state."""

    @property
    def steps(self) -> Mapping[str, Step]:
        return {name: step for step in self.pipeline.steps for name in step.gives}

    @property
    def tables(self) -> Collection[str]:
        static = {source.name for source in self.pipeline.sources if isinstance(source, TableSource)}
        return static | {step.name for step in self.pipeline.steps if isinstance(step, Latest)}

    def is_stream_only(self, step: Step) -> bool:
        if isinstance(step, Join):
            return step.within is not None
        return isinstance(step, Window | Dedup | Stateful | Python) or step.name in self.with_state

    def trunk(self, name: str) -> str | None:
        """The trunk of rows; None for a table."""
        if name in self.tables:
            return None
        step = self.steps.get(name)
        if step is None or self.is_stream_only(step):
            return name
        trunks = {found for each in step.reads if (found := self.trunk(each)) is not None}
        return trunks.pop() if len(trunks) == 1 else name

    def parts_of(self, output: Output) -> set[tuple[str, str]]:
        """The parts whose rules apply to the rows of an output, by kind and name."""
        found: set[tuple[str, str]] = set()
        if isinstance(output, Sink):
            found.add(("sink", output.name))
        if isinstance(output, Quarantine):
            found.add((kind_of(output.part), output.name))
        waiting = [] if isinstance(output, TopicSource) else [rows_of(output)]
        if isinstance(output, Route):
            found.add(("part", output.name))
        while waiting:
            name = waiting.pop()
            step = self.steps.get(name)
            found.add(("part", step.name if step is not None else name))
            if step is not None and not isinstance(step, Latest):
                waiting.extend(step.reads)
        return found

    def rows_on_the_way(self, output: Output) -> set[str]:
        """The rows of steps from which an output is computed: of steps, and of branches of routes."""
        found: set[str] = set()
        waiting = [] if isinstance(output, TopicSource) else [rows_of(output)]
        while waiting:
            name = waiting.pop()
            step = self.steps.get(name)
            if step is None or isinstance(step, Latest) or name in found:
                continue
            found.add(name)
            waiting.extend(step.reads)
        return found

    @property
    def counted_elsewhere(self) -> set[str]:
        """The rows that only sinks without expectations read: a sink counts its own rows."""
        read = {name for step in self.pipeline.steps for name in step.reads}
        read |= {sink.reads for sink in self.pipeline.sinks if sink.expect}
        return {sink.reads for sink in self.pipeline.sinks} - read


def rows_of(output: "Sink | Route | Quarantine") -> str:
    """The name of the rows from which an output is computed."""
    part: Part = output.part if isinstance(output, Quarantine) else output
    if isinstance(part, Sink):
        return part.reads
    if isinstance(part, Route):
        return part.reads[0]
    return part.name


def shared(pipeline: Pipeline, plans: Sequence[PlannedQuery], with_state: Collection[str] = ()) -> list[PlannedQuery]:
    """Puts queries together that have the same trunk; a query that is alone stays as it is."""
    graph = Graph(pipeline, frozenset(with_state))
    groups: dict[object, list[PlannedQuery]] = {}
    shares = pipeline.share_reads and not pipeline.is_realtime
    for plan in plans:
        groups.setdefault(_identity(graph, plan) if shares else plan.name, []).append(plan)
    return [joined(pipeline, graph, members) for members in groups.values()]


def _identity(graph: Graph, plan: PlannedQuery) -> object:
    if isinstance(plan.of, TopicSource):  # reads the bytes of records, which no other output needs
        return plan.name
    # The trigger of the file: --once must not put queries together that a later run would have to separate.
    part = plan.of.part if isinstance(plan.of, Quarantine) else plan.of
    trigger = (part.trigger if isinstance(part, Sink) else None) or graph.pipeline.trigger
    return (graph.trunk(rows_of(plan.of)), plan.mode, trigger.kind, trigger.every)


def joined(pipeline: Pipeline, graph: Graph, members: Sequence[PlannedQuery]) -> PlannedQuery:
    first = members[0]
    if len(members) == 1:
        return first
    assert not isinstance(first.of, TopicSource)
    trunk = graph.trunk(rows_of(first.of))
    return replace(
        first,
        name=f"{pipeline.name}.{trunk}.sinks",
        sink=", ".join(each.sink for each in members),
        carries_dead_letters=False,
        letters_of=frozenset().union(*(each.letters_of for each in members)),
        members=tuple(members),
        trunk=trunk,
    )


def counted(pipeline: Pipeline, plans: Sequence[PlannedQuery]) -> list[PlannedQuery]:
    """Each rule, and the rows of each step, are counted by the first query that has them: no row counts twice."""
    graph = Graph(pipeline)
    wanted = {(kind_of(part), part.name) for part in pipeline.parts_with_expectations}
    steps = set() if pipeline.is_realtime else {*graph.steps} - graph.counted_elsewhere
    found = []
    for plan in plans:
        applied: set[tuple[str, str]] = set()
        computed: set[str] = set()
        for each in plan.members or (plan,):
            applied |= graph.parts_of(each.of)
            computed |= graph.rows_on_the_way(each.of)
        found.append(replace(plan, counts_of=frozenset(applied & wanted), steps=frozenset(computed & steps)))
        wanted -= applied
        steps -= computed
    return found
