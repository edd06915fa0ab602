"""From names to a graph: every reference is looked up, steps are put in order, and what nobody uses is found.

What flows through a pipeline, followed as far as it can be known without Spark.

That is whether rows are a stream or a table, which watermark they have, and which columns, where a schema says so.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter

from millstream.pipeline.ddl import TIMESTAMPS
from millstream.pipeline.model import (
    Dedup,
    Format,
    Join,
    JoinType,
    Latest,
    Route,
    Sink,
    Source,
    Sql,
    Stateful,
    Step,
    TableSink,
    TableSource,
    TimeMode,
    TopicSink,
    TopicSource,
    Watermark,
    Window,
)
from millstream.pipeline.parts import Drafted, unknown_reference
from millstream.pipeline.problems import Place, Problems, nearest
from millstream.pipeline.sql_names import plain_column

RECORD_COLUMNS = ("_key", "_topic", "_partition", "_offset", "_timestamp")
RAW_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


@dataclass(frozen=True, slots=True)
class Flow:
    """What is known of the rows behind a name."""

    is_stream: bool
    watermarks: tuple[Watermark, ...] = ()
    columns: frozenset[str] | None = None
    """None: only Spark knows."""


class Following:
    """Goes through the parts in order and knows what flows behind each name so far."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self.flows: dict[str, Flow] = {}
        self._sources: dict[str, Source] = {}

    def source(self, drafted: Drafted[Source]) -> None:
        source = drafted.part
        self._sources[source.name] = source
        if isinstance(source, TableSource):
            columns = frozenset(column.name.lower() for column in drafted.columns) if drafted.columns else None
            self.flows[source.name] = Flow(is_stream=False, columns=columns)
            return
        columns = self._source_columns(source, drafted)
        if source.watermark is not None:
            place = drafted.place_for("watermark")
            self._need_columns((source.watermark.column,), columns, place, f"source {source.name!r}")
            types = {column.name.lower(): column.type for column in drafted.columns or ()}
            found = types.get(source.watermark.column.lower())
            if found is not None and found not in TIMESTAMPS:
                self._problems.error(
                    place,
                    f"a watermark needs a TIMESTAMP; {source.watermark.column!r} is {found.upper()} in the schema",
                )
        watermarks = (source.watermark,) if source.watermark else ()
        self.flows[source.name] = Flow(is_stream=True, watermarks=watermarks, columns=columns)

    @staticmethod
    def _source_columns(source: TopicSource, drafted: Drafted[Source]) -> frozenset[str] | None:
        if source.format is Format.RAW:
            return frozenset(name.lower() for name in (*RAW_COLUMNS, *(("headers",) if source.headers else ())))
        record = (*RECORD_COLUMNS, "_error", *(("_headers",) if source.headers else ()))
        if source.format is Format.STRING:
            return frozenset(("value", *record))
        if drafted.columns is None:
            return None
        return frozenset((*(column.name.lower() for column in drafted.columns), *record))

    def step(self, drafted: Drafted[Step]) -> Step:
        step = drafted.part
        inputs = [self.flows[name] for name in step.reads if name in self.flows]
        if isinstance(step, Latest):
            self._latest(drafted, step)
            columns = inputs[0].columns if inputs else None
            self.flows[step.name] = Flow(is_stream=False, columns=columns)
            return step
        watermarks = tuple(dict.fromkeys(mark for flow in inputs for mark in flow.watermarks))
        if step.watermark is not None:
            self._second_watermark(drafted, step, watermarks)
            watermarks = (*watermarks, step.watermark)
        is_stream = any(flow.is_stream for flow in inputs) or not inputs
        columns = self._passed_on(step, inputs)
        if isinstance(step, Window):
            step = self._window(drafted, step, inputs, watermarks)
            watermarks = tuple(replace(mark, column="window_end") for mark in watermarks[:1])
        elif isinstance(step, Join):
            step = self._join(drafted, step)
        elif isinstance(step, Dedup):
            self._need_stream(drafted, is_stream, inputs)
            self._need_watermark(drafted, watermarks, inputs, "forgets keys when the watermark has passed")
            self._need_columns(step.key, _only(inputs), drafted.place_for("key"), repr(step.reads[0] if inputs else ""))
        elif isinstance(step, Stateful):
            self._need_stream(drafted, is_stream, inputs)
            if step.time is TimeMode.EVENT_TIME:
                self._need_watermark(drafted, watermarks, inputs, "has timers by event time")
            self._need_columns(step.key, _only(inputs), drafted.place_for("key"), repr(step.reads[0] if inputs else ""))
            if drafted.columns is not None:
                columns = frozenset(column.name.lower() for column in drafted.columns)
        if step.watermark is not None and not isinstance(step, Window | Dedup | Stateful):
            self._need_columns((step.watermark.column,), columns, drafted.place_for("watermark"), f"step {step.name!r}")
        for name in step.gives:
            self.flows[name] = Flow(is_stream=is_stream, watermarks=watermarks, columns=columns)
        return step

    def _passed_on(self, step: Step, inputs: list[Flow]) -> frozenset[str] | None:
        if isinstance(step, Route | Dedup):
            return _only(inputs)
        if isinstance(step, Window):
            named = (column.name.lower() for column in (*step.group_by, *step.aggregate))
            return frozenset(("window_start", "window_end", *named))
        if isinstance(step, Join) and len(inputs) == 2:
            return _joined_columns(step, inputs[0].columns, inputs[1].columns)
        return None

    def _second_watermark(self, drafted: Drafted[Step], step: Step, watermarks: tuple[Watermark, ...]) -> None:
        if watermarks and not isinstance(step, Sql | Join):
            first = watermarks[0]
            self._problems.error(
                drafted.place_for("watermark"),
                f"the rows of step {step.name!r} have a watermark already ({first.column}, from line {first.line}); "
                "remove one of the two",
            )

    def _need_stream(self, drafted: Drafted[Step], is_stream: bool, inputs: list[Flow]) -> None:
        if inputs and not is_stream:
            self._problems.error(
                drafted.place_for("from"),
                f"{drafted.part.kind} step {drafted.part.name!r} takes a stream; {drafted.part.reads[0]!r} is a table",
            )

    def _need_watermark(
        self, drafted: Drafted[Step], watermarks: tuple[Watermark, ...], inputs: list[Flow], why: str
    ) -> None:
        if watermarks or not inputs or not any(flow.is_stream for flow in inputs):
            return
        step = drafted.part
        self._problems.error(
            drafted.place,
            f"{step.kind} step {step.name!r} {why}, and there is none on the way to it; add to the source "
            f"(or to this step) `watermark: {{column: …, delay: 2 minutes}}`",
        )

    def _need_columns(self, wanted: Iterable[str], columns: frozenset[str] | None, place: Place, where: str) -> None:
        if columns is None:
            return
        for column in wanted:
            if column and column.lower() not in columns:
                self._problems.error(
                    place, f"{where} has no column {column!r}; {nearest(column, sorted(columns), noun='it has')}"
                )

    def _window(
        self, drafted: Drafted[Step], step: Window, inputs: list[Flow], watermarks: tuple[Watermark, ...]
    ) -> Window:
        self._need_stream(drafted, any(flow.is_stream for flow in inputs), inputs)
        self._need_watermark(drafted, watermarks, inputs, "ends windows when the watermark has passed")
        columns = {mark.column for mark in watermarks}
        time = step.time
        if not time and len(columns) == 1:
            time = columns.pop()
        elif not time and len(columns) > 1:
            self._problems.error(
                drafted.place, f"window step {step.name!r} must say `time`: there are {' and '.join(sorted(columns))}"
            )
        if inputs:
            known, where = inputs[0].columns, repr(step.reads[0])
            self._need_columns((time,), known, drafted.place_for("time"), where)
            grouped = (plain_column(column.expression) or "" for column in step.group_by)
            self._need_columns(grouped, known, drafted.place_for("group_by"), where)
        return replace(step, time=time)

    def _join(self, drafted: Drafted[Step], step: Join) -> Join:
        left, right = (self.flows.get(name) for name in step.reads)
        if left is None or right is None:
            return step
        for key in step.on:
            self._need_columns((key.left,), left.columns, drafted.place_for("on"), repr(step.left))
            self._need_columns((key.right,), right.columns, drafted.place_for("on"), repr(step.right))
        if not left.is_stream and right.is_stream:
            self._problems.error(
                drafted.place_for("left"),
                f"{step.left!r} is a table and {step.right!r} a stream; put the stream on the left",
            )
            return step
        if step.within is None:
            if left.is_stream and right.is_stream:
                self._problems.error(
                    drafted.place,
                    f"join step {step.name!r} brings two streams together and must say how far apart they may be: "
                    f"`within: 10 minutes` (or make a table of {step.right!r} with `latest`)",
                )
            elif step.type in (JoinType.RIGHT, JoinType.FULL) and left.is_stream:
                self._problems.error(
                    drafted.place_for("type"),
                    f"a {step.type} join would have to know that a row of the table {step.right!r} never meets one of "
                    "the stream; use inner, left, left_semi or left_anti",
                )
            return step
        if not right.is_stream:
            self._problems.error(
                drafted.place_for("within"), f"{step.right!r} is a table, which has no time; remove `within`"
            )
            return step
        return replace(
            step,
            within=replace(
                step.within,
                left_time=step.within.left_time or self._time_of(drafted, step, step.left, left, "left_time"),
                right_time=step.within.right_time or self._time_of(drafted, step, step.right, right, "right_time"),
            ),
        )

    def _time_of(self, drafted: Drafted[Step], step: Join, side: str, flow: Flow, key: str) -> str:
        columns = {mark.column for mark in flow.watermarks}
        if len(columns) == 1:
            return columns.pop()
        if columns:
            reason = f"{side!r} has several ({', '.join(sorted(columns))}); say `{key}` in `within`"
        else:
            reason = f"{side!r} has none; add `watermark: {{column: …, delay: 10 minutes}}` to its source"
        self._problems.error(drafted.place, f"join step {step.name!r} needs the watermark of both sides: {reason}")
        return ""

    def _latest(self, drafted: Drafted[Step], step: Latest) -> None:
        name = step.reads[0] if step.reads else ""
        flow = self.flows.get(name)
        if flow is None:
            return
        source = self._sources.get(name)
        if not isinstance(source, TopicSource):
            topics = [each.name for each in self._sources.values() if isinstance(each, TopicSource)]
            self._problems.error(
                drafted.place_for("from"),
                f"latest step {step.name!r} reads a topic source, which {name!r} is not; "
                f"{nearest(name, topics, noun='topic sources are')}",
            )
            return
        self._need_columns(step.key, flow.columns, drafted.place_for("key"), repr(name))

    def sink(self, drafted: Drafted[Sink]) -> None:
        sink = drafted.part
        flow = self.flows.get(sink.reads)
        if flow is None:
            return
        if not flow.is_stream:
            self._problems.error(
                drafted.place_for("from"),
                f"sink {sink.name!r} takes a stream; {sink.reads!r} is a table (join it to a stream)",
            )
        place = drafted.place_for
        if isinstance(sink, TopicSink) and sink.timestamp:
            self._need_columns((sink.timestamp,), flow.columns, place("timestamp"), repr(sink.reads))
        if isinstance(sink, TopicSink) and sink.format is Format.RAW:
            self._need_columns(("value",), flow.columns, place("format"), repr(sink.reads))
        if isinstance(sink, TableSink):
            named = (part.partition("(")[2].rstrip(")") or part for part in sink.partition_by)
            self._need_columns(named, flow.columns, place("partition_by"), repr(sink.reads))


def _only(inputs: list[Flow]) -> frozenset[str] | None:
    return inputs[0].columns if inputs else None


def _joined_columns(step: Join, left: frozenset[str] | None, right: frozenset[str] | None) -> frozenset[str] | None:
    if step.type in (JoinType.LEFT_SEMI, JoinType.LEFT_ANTI):
        return left
    if left is None or right is None:
        return None
    once = {key.right.lower() for key in step.on if key.left.lower() == key.right.lower()}
    once |= left & {*RECORD_COLUMNS, "_error", "_headers"}
    return left | {f"{step.right}_{column}" if column in left else column for column in right - once}


@dataclass(slots=True)
class Wired:
    """The parts of a pipeline, joined."""

    steps: list[Step]
    sinks: list[Sink]
    flows: dict[str, Flow]


def wire(
    sources: list[Drafted[Source]], steps: list[Drafted[Step]], sinks: list[Drafted[Sink]], problems: Problems
) -> Wired:
    """Look up, put in order, follow; all that is wrong goes to `problems`."""
    givers = _givers(sources, steps, problems)
    routes = {step.part.name: step.part for step in steps if isinstance(step.part, Route)}
    _check_references(steps, sinks, givers, routes, problems)
    ordered = _in_order(steps, givers, problems)
    wiring = Following(problems)
    for source in sources:
        wiring.source(source)
    finished = [wiring.step(step) for step in ordered]
    for sink in sinks:
        wiring.sink(sink)
    if not problems.has_errors:  # after a wrong name, whatever it should have named looks unused
        _check_use(sources, steps, sinks, givers, problems)
    _check_groups(sources, steps, sinks, givers, problems)
    return Wired(finished, [sink.part for sink in sinks], wiring.flows)


def _givers(sources: list[Drafted[Source]], steps: list[Drafted[Step]], problems: Problems) -> dict[str, str]:
    """For each table's name, the source or step that gives it."""
    givers: dict[str, str] = {}
    places: dict[str, Place] = {}
    entries: list[tuple[str, str, Place]] = [(source.part.name, source.part.name, source.place) for source in sources]
    for step in steps:
        entries += [(name, step.part.name, step.place_for(name)) for name in step.part.gives]
        if isinstance(step.part, Route) and step.part.name in givers:
            entries.append((step.part.name, step.part.name, step.place))
    for name, giver, place in entries:
        if name in givers:
            problems.error(place, f"the name {name!r} is taken: line {places[name].line} has it too")
            continue
        givers[name] = giver
        places[name] = place
    return givers


def _check_references(
    steps: list[Drafted[Step]],
    sinks: list[Drafted[Sink]],
    givers: dict[str, str],
    routes: dict[str, Route],
    problems: Problems,
) -> None:
    drafts: Iterable[Drafted[Step] | Drafted[Sink]] = (*steps, *sinks)
    for drafted in drafts:
        for word in drafted.refers_to:
            if word.text in givers or not word.text:
                continue
            if word.text in routes:
                branches = ", ".join(routes[word.text].gives)
                problems.error(
                    word.place, f"{word.text!r} is a route: its rows are in its branches; say one of {branches}"
                )
            else:
                problems.error(word.place, unknown_reference(word.text, list(givers)))


def _in_order(steps: list[Drafted[Step]], givers: dict[str, str], problems: Problems) -> list[Drafted[Step]]:
    """Each step after those it reads; the file's order where that leaves a choice."""
    by_name = {step.part.name: step for step in steps}
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for step in steps:
        sorter.add(step.part.name, *(givers[name] for name in step.part.reads if givers.get(name) in by_name))
    try:
        return [by_name[name] for name in sorter.static_order()]
    except CycleError as error:
        circle = list(reversed(error.args[1]))
        first = min(range(len(circle) - 1), key=lambda index: by_name[circle[index]].place)
        turned = [*circle[first:-1], *circle[:first], circle[first]]
        problems.error(
            by_name[turned[0]].place,
            "these steps wait for each other: " + " <- ".join(repr(name) for name in turned) + "; one of them must read"
            " something else",
        )
        return []


def reached_from(names: Iterable[str], parts: Iterable[Step], givers: dict[str, str]) -> set[str]:
    """All tables that are read, directly or not, to make `names`; these included."""
    by_name = {part.name: part for part in parts}
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        giver = by_name.get(givers.get(name, ""))
        if giver is not None:
            waiting.extend(giver.reads)
    return found


def _check_use(
    sources: list[Drafted[Source]],
    steps: list[Drafted[Step]],
    sinks: list[Drafted[Sink]],
    givers: dict[str, str],
    problems: Problems,
) -> None:
    """What no sink has a use for is not an error, but hardly meant."""
    parts = [step.part for step in steps]
    dead = [step.part.reads[0] for step in steps if isinstance(step.part, Route) and step.part.reads]
    used = reached_from([sink.part.reads for sink in sinks], parts, givers)
    used |= reached_from([name for name in dead if givers.get(name)], parts, givers) if sinks else set()
    for source in sources:
        if source.part.name not in used:
            problems.warning(source.place, f"source {source.part.name!r} is not used by any sink")
    for step in steps:
        unused = [name for name in step.part.gives if name not in used]
        if isinstance(step.part, Route):
            for name in unused:
                problems.warning(step.place_for(name), f"no sink takes the rows of branch {name!r}; they go nowhere")
        elif unused:
            problems.warning(step.place, f"step {step.part.name!r} is not used by any sink")


def _check_groups(
    sources: list[Drafted[Source]],
    steps: list[Drafted[Step]],
    sinks: list[Drafted[Sink]],
    givers: dict[str, str],
    problems: Problems,
) -> None:
    """Two queries that commit to one group would overwrite each other's progress."""
    parts = [step.part for step in steps]
    for source in sources:
        if not isinstance(source.part, TopicSource) or source.part.group is None:
            continue
        readers = [
            sink.part.name for sink in sinks if source.part.name in reached_from([sink.part.reads], parts, givers)
        ]
        if len(readers) > 1:
            problems.error(
                source.place_for("group"),
                f"the group {source.part.group!r} would have the progress of {len(readers)} sinks "
                f"({', '.join(readers)}); remove `group`, and each has one of its own",
            )
