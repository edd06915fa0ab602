"""Connects the parts of a pipeline: looks up references, orders steps, and checks what flows between them.

Checked without Spark: whether rows are a stream or a table, their watermarks, and their columns if a schema is known.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter

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
from millstream.pipeline.parts import ParsedPart, unknown_reference
from millstream.pipeline.problems import Position, Problems, nearest
from millstream.pipeline.sql_names import plain_column
from millstream.schemas.ddl import TIMESTAMPS

RECORD_COLUMNS = ("_key", "_topic", "_partition", "_offset", "_timestamp")
RAW_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


@dataclass(frozen=True, slots=True)
class Flow:
    """What is known of the rows of a source, step or branch."""

    is_stream: bool
    watermarks: tuple[Watermark, ...] = ()
    columns: frozenset[str] | None = None
    """None: only Spark knows them."""


class FlowChecker:
    """Goes through the parts in order and keeps what is known of each one's rows."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self.flows: dict[str, Flow] = {}
        self._sources: dict[str, Source] = {}

    def source(self, drafted: ParsedPart[Source]) -> None:
        source = drafted.part
        self._sources[source.name] = source
        if isinstance(source, TableSource):
            columns = frozenset(column.name.lower() for column in drafted.columns) if drafted.columns else None
            self.flows[source.name] = Flow(is_stream=False, columns=columns)
            return
        columns = self._source_columns(source, drafted)
        if source.watermark is not None:
            position = drafted.position_for("watermark")
            self._need_columns((source.watermark.column,), columns, position, f"source {source.name!r}")
            types = {column.name.lower(): column.type.name for column in drafted.columns or ()}
            found = types.get(source.watermark.column.lower())
            if found is not None and found not in TIMESTAMPS:
                self._problems.error(
                    position,
                    f"a watermark needs a TIMESTAMP; {source.watermark.column!r} is {found.upper()} in the schema",
                )
        watermarks = (source.watermark,) if source.watermark else ()
        self.flows[source.name] = Flow(is_stream=True, watermarks=watermarks, columns=columns)

    @staticmethod
    def _source_columns(source: TopicSource, drafted: ParsedPart[Source]) -> frozenset[str] | None:
        if source.format is Format.RAW:
            return frozenset(name.lower() for name in (*RAW_COLUMNS, *(("headers",) if source.headers else ())))
        record = (*RECORD_COLUMNS, "_error", *(("_headers",) if source.headers else ()))
        if source.format is Format.STRING:
            return frozenset(("value", *record))
        if drafted.columns is None:
            return None
        return frozenset((*(column.name.lower() for column in drafted.columns), *record))

    def step(self, drafted: ParsedPart[Step]) -> Step:
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
            self._need_columns(
                step.key, _only(inputs), drafted.position_for("key"), repr(step.reads[0] if inputs else "")
            )
        elif isinstance(step, Stateful):
            self._need_stream(drafted, is_stream, inputs)
            if step.time is TimeMode.EVENT_TIME:
                self._need_watermark(drafted, watermarks, inputs, "has timers by event time")
            self._need_columns(
                step.key, _only(inputs), drafted.position_for("key"), repr(step.reads[0] if inputs else "")
            )
            if drafted.columns is not None:
                columns = frozenset(column.name.lower() for column in drafted.columns)
        if step.watermark is not None and not isinstance(step, Window | Dedup | Stateful):
            self._need_columns(
                (step.watermark.column,), columns, drafted.position_for("watermark"), f"step {step.name!r}"
            )
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

    def _second_watermark(self, drafted: ParsedPart[Step], step: Step, watermarks: tuple[Watermark, ...]) -> None:
        if watermarks and not isinstance(step, Sql | Join):
            first = watermarks[0]
            self._problems.error(
                drafted.position_for("watermark"),
                f"the rows of step {step.name!r} already have a watermark ({first.column}, from line {first.line}); "
                "remove one of the two",
            )

    def _need_stream(self, drafted: ParsedPart[Step], is_stream: bool, inputs: list[Flow]) -> None:
        if inputs and not is_stream:
            self._problems.error(
                drafted.position_for("from"),
                f"{drafted.part.kind} step {drafted.part.name!r} needs a stream; {drafted.part.reads[0]!r} is a table",
            )

    def _need_watermark(
        self, drafted: ParsedPart[Step], watermarks: tuple[Watermark, ...], inputs: list[Flow], why: str
    ) -> None:
        if watermarks or not inputs or not any(flow.is_stream for flow in inputs):
            return
        step = drafted.part
        self._problems.error(
            drafted.position,
            f"{step.kind} step {step.name!r} {why}, but its input has no watermark; add to the source "
            f"(or to this step) `watermark: {{column: …, delay: 2 minutes}}`",
        )

    def _need_columns(
        self, wanted: Iterable[str], columns: frozenset[str] | None, position: Position, where: str
    ) -> None:
        if columns is None:
            return
        for column in wanted:
            if column and column.lower() not in columns:
                self._problems.error(
                    position, f"{where} has no column {column!r}; {nearest(column, sorted(columns), noun='it has')}"
                )

    def _window(
        self, drafted: ParsedPart[Step], step: Window, inputs: list[Flow], watermarks: tuple[Watermark, ...]
    ) -> Window:
        self._need_stream(drafted, any(flow.is_stream for flow in inputs), inputs)
        self._need_watermark(drafted, watermarks, inputs, "ends windows when the watermark has passed")
        columns = {mark.column for mark in watermarks}
        time = step.time
        if not time and len(columns) == 1:
            time = columns.pop()
        elif not time and len(columns) > 1:
            self._problems.error(
                drafted.position,
                f"window step {step.name!r} needs `time`, because there are two watermarks: "
                f"{' and '.join(sorted(columns))}",
            )
        if inputs:
            known, where = inputs[0].columns, repr(step.reads[0])
            self._need_columns((time,), known, drafted.position_for("time"), where)
            grouped = (plain_column(column.expression) or "" for column in step.group_by)
            self._need_columns(grouped, known, drafted.position_for("group_by"), where)
        return replace(step, time=time)

    def _join(self, drafted: ParsedPart[Step], step: Join) -> Join:
        left, right = (self.flows.get(name) for name in step.reads)
        if left is None or right is None:
            return step
        for key in step.on:
            self._need_columns((key.left,), left.columns, drafted.position_for("on"), repr(step.left))
            self._need_columns((key.right,), right.columns, drafted.position_for("on"), repr(step.right))
        if not left.is_stream and right.is_stream:
            self._problems.error(
                drafted.position_for("left"),
                f"{step.left!r} is a table and {step.right!r} a stream; put the stream on the left",
            )
            return step
        if step.within is None:
            if left.is_stream and right.is_stream:
                self._problems.error(
                    drafted.position,
                    f"join step {step.name!r} joins two streams and needs a limit for the time between them: "
                    f"`within: 10 minutes` (or make a table of {step.right!r} with `latest`)",
                )
            elif step.type in (JoinType.RIGHT, JoinType.FULL) and left.is_stream:
                self._problems.error(
                    drafted.position_for("type"),
                    f"a {step.type} join of a stream with the table {step.right!r} is not possible, because later "
                    f"rows of "
                    "the stream may match; use inner, left, left_semi or left_anti",
                )
            return step
        if not right.is_stream:
            self._problems.error(
                drafted.position_for("within"), f"{step.right!r} is a table, which has no event time; remove `within`"
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

    def _time_of(self, drafted: ParsedPart[Step], step: Join, side: str, flow: Flow, key: str) -> str:
        columns = {mark.column for mark in flow.watermarks}
        if len(columns) == 1:
            return columns.pop()
        if columns:
            reason = f"{side!r} has several ({', '.join(sorted(columns))}); set `{key}` in `within`"
        else:
            reason = f"{side!r} has none; add `watermark: {{column: …, delay: 10 minutes}}` to its source"
        self._problems.error(drafted.position, f"join step {step.name!r} needs the watermark of both sides: {reason}")
        return ""

    def _latest(self, drafted: ParsedPart[Step], step: Latest) -> None:
        name = step.reads[0] if step.reads else ""
        flow = self.flows.get(name)
        if flow is None:
            return
        source = self._sources.get(name)
        if not isinstance(source, TopicSource):
            topics = [each.name for each in self._sources.values() if isinstance(each, TopicSource)]
            self._problems.error(
                drafted.position_for("from"),
                f"latest step {step.name!r} needs a topic source, and {name!r} is not one; "
                f"{nearest(name, topics, noun='topic sources are')}",
            )
            return
        if source.expect:
            self._problems.error(
                drafted.position_for("from"),
                f"latest step {step.name!r} reads all records of {name!r}, without its expectations; put `expect` on "
                "the step that joins the table, or read the topic as a second source",
            )
        self._need_columns(step.key, flow.columns, drafted.position_for("key"), repr(name))

    def sink(self, drafted: ParsedPart[Sink]) -> None:
        sink = drafted.part
        flow = self.flows.get(sink.reads)
        if flow is None:
            return
        if not flow.is_stream:
            self._problems.error(
                drafted.position_for("from"),
                f"sink {sink.name!r} needs a stream; {sink.reads!r} is a table; join it to a stream",
            )
        position = drafted.position_for
        if isinstance(sink, TopicSink) and sink.timestamp:
            self._need_columns((sink.timestamp,), flow.columns, position("timestamp"), repr(sink.reads))
        if isinstance(sink, TopicSink) and sink.format is Format.RAW:
            self._need_columns(("value",), flow.columns, position("format"), repr(sink.reads))
        if isinstance(sink, TableSink):
            named = (part.partition("(")[2].rstrip(")") or part for part in sink.partition_by)
            self._need_columns(named, flow.columns, position("partition_by"), repr(sink.reads))
            self._upsert(sink, flow.columns, position)

    def _upsert(self, sink: TableSink, columns: frozenset[str] | None, position: Callable[[str], Position]) -> None:
        if sink.upsert is None or sink.upsert.envelope is not None:  # the columns are inside the envelope
            return
        self._need_columns(sink.upsert.keys, columns, position("keys"), repr(sink.reads))
        if sink.upsert.sequence_by is not None:
            self._need_columns((sink.upsert.sequence_by,), columns, position("sequence_by"), repr(sink.reads))


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
    """The connected parts of a pipeline."""

    steps: list[Step]
    sinks: list[Sink]
    flows: dict[str, Flow]


def wire(
    sources: list[ParsedPart[Source]], steps: list[ParsedPart[Step]], sinks: list[ParsedPart[Sink]], problems: Problems
) -> Wired:
    """Looks up references, orders steps, checks rows; problems go to `problems`."""
    givers = _givers(sources, steps, problems)
    routes = {step.part.name: step.part for step in steps if isinstance(step.part, Route)}
    _check_references(steps, sinks, givers, routes, problems)
    ordered = _in_order(steps, givers, problems)
    wiring = FlowChecker(problems)
    for source in sources:
        wiring.source(source)
    finished = [wiring.step(step) for step in ordered]
    for sink in sinks:
        wiring.sink(sink)
    if not problems.has_errors:  # after a wrong reference, its target would be reported as unused
        _check_use(sources, steps, sinks, givers, problems)
    _check_groups(sources, steps, sinks, givers, problems)
    return Wired(finished, [sink.part for sink in sinks], wiring.flows)


def _givers(sources: list[ParsedPart[Source]], steps: list[ParsedPart[Step]], problems: Problems) -> dict[str, str]:
    """For each table's name, the source or step that provides it."""
    givers: dict[str, str] = {}
    positions: dict[str, Position] = {}
    entries: list[tuple[str, str, Position]] = [
        (source.part.name, source.part.name, source.position) for source in sources
    ]
    for step in steps:
        entries += [(name, step.part.name, step.position_for(name)) for name in step.part.gives]
        if isinstance(step.part, Route) and step.part.name in givers:
            entries.append((step.part.name, step.part.name, step.position))
    for name, giver, position in entries:
        if name in givers:
            problems.error(
                position, f"the name {name!r} is used twice: line {positions[name].line} has it too; rename one"
            )
            continue
        givers[name] = giver
        positions[name] = position
    return givers


def _check_references(
    steps: list[ParsedPart[Step]],
    sinks: list[ParsedPart[Sink]],
    givers: dict[str, str],
    routes: dict[str, Route],
    problems: Problems,
) -> None:
    drafts: Iterable[ParsedPart[Step] | ParsedPart[Sink]] = (*steps, *sinks)
    for drafted in drafts:
        for word in drafted.refers_to:
            if word.text in givers or not word.text:
                continue
            if word.text in routes:
                branches = ", ".join(routes[word.text].gives)
                problems.error(
                    word.position, f"{word.text!r} is a route, whose rows are in its branches; use one of {branches}"
                )
            else:
                problems.error(word.position, unknown_reference(word.text, list(givers)))


def _in_order(steps: list[ParsedPart[Step]], givers: dict[str, str], problems: Problems) -> list[ParsedPart[Step]]:
    """Each step after the steps it reads, otherwise in the order of the file."""
    by_name = {step.part.name: step for step in steps}
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for step in steps:
        sorter.add(step.part.name, *(givers[name] for name in step.part.reads if givers.get(name) in by_name))
    try:
        return [by_name[name] for name in sorter.static_order()]
    except CycleError as error:
        circle = list(reversed(error.args[1]))
        first = min(range(len(circle) - 1), key=lambda index: by_name[circle[index]].position)
        turned = [*circle[first:-1], *circle[:first], circle[first]]
        problems.error(
            by_name[turned[0]].position,
            "these steps read each other: " + " <- ".join(repr(name) for name in turned) + "; change one of them",
        )
        return []


def reached_from(names: Iterable[str], parts: Iterable[Step], givers: dict[str, str]) -> set[str]:
    """All tables that `names` read, directly or not, and `names` themselves."""
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
    sources: list[ParsedPart[Source]],
    steps: list[ParsedPart[Step]],
    sinks: list[ParsedPart[Sink]],
    givers: dict[str, str],
    problems: Problems,
) -> None:
    """Warns of parts that no sink uses."""
    parts = [step.part for step in steps]
    dead = [step.part.reads[0] for step in steps if isinstance(step.part, Route) and step.part.reads]
    used = reached_from([sink.part.reads for sink in sinks], parts, givers)
    used |= reached_from([name for name in dead if givers.get(name)], parts, givers) if sinks else set()
    for source in sources:
        if source.part.name not in used:
            problems.warning(source.position, f"source {source.part.name!r} is not used by any sink")
    for step in steps:
        unused = [name for name in step.part.gives if name not in used]
        if isinstance(step.part, Route):
            for name in unused:
                problems.warning(step.position_for(name), f"no sink reads branch {name!r}; its rows are dropped")
        elif unused:
            problems.warning(step.position, f"step {step.part.name!r} is not used by any sink")


def _check_groups(
    sources: list[ParsedPart[Source]],
    steps: list[ParsedPart[Step]],
    sinks: list[ParsedPart[Sink]],
    givers: dict[str, str],
    problems: Problems,
) -> None:
    """Two queries that commit to one group would overwrite each other's offsets."""
    parts = [step.part for step in steps]
    for source in sources:
        if not isinstance(source.part, TopicSource) or source.part.group is None:
            continue
        readers = [
            sink.part.name for sink in sinks if source.part.name in reached_from([sink.part.reads], parts, givers)
        ]
        if len(readers) > 1:
            problems.error(
                source.position_for("group"),
                f"{len(readers)} sinks ({', '.join(readers)}) would commit to the group {source.part.group!r}; remove "
                "`group`, then each sink has its own group",
            )
