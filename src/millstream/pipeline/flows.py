"""What flows through a pipeline, followed as far as it can be known without Spark.

That is whether rows are a stream or a table, which watermark they have, and which columns, where a schema says so.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

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
from millstream.pipeline.parts import Drafted
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
