"""Steps of a pipeline as DataFrames: a function for each kind."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.pipeline.engine.decoding import RECORD_COLUMNS, quoted
from millstream.pipeline.functions import load
from millstream.pipeline.model import (
    Dedup,
    Join,
    JoinType,
    OutputMode,
    Python,
    Route,
    Sql,
    Stateful,
    StepBase,
    TimeMode,
    Window,
    WindowKind,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_BRANCH = "__branch"
_TIME_MODES = {
    TimeMode.NONE: "None",
    TimeMode.PROCESSING_TIME: "ProcessingTime",
    TimeMode.EVENT_TIME: "EventTime",
}
_OUTPUT_MODES = {OutputMode.APPEND: "Append", OutputMode.UPDATE: "Update", OutputMode.COMPLETE: "Complete"}


def with_watermark(frame: "DataFrame", step: StepBase) -> "DataFrame":
    if step.watermark is None:
        return frame
    return frame.withWatermark(step.watermark.column, step.watermark.delay.interval)


def python(step: Python, frames: Sequence["DataFrame"], directory: Path) -> "DataFrame":
    """The DataFrame that the user's function returns."""
    function = load(step.function, directory)
    result = function(*frames, **step.arguments)
    if not hasattr(result, "writeStream"):
        raise TypeError(f"{step.function} must return a DataFrame, and returned {type(result).__name__}")
    return _as_frame(result)


def _as_frame(result: Any) -> "DataFrame":
    frame: DataFrame = result
    return frame


def window(step: Window, frame: "DataFrame") -> "DataFrame":
    """window_start, window_end, the columns of group_by, the aggregates."""
    from pyspark.sql.functions import col, expr, session_window
    from pyspark.sql.functions import window as time_window

    frame = with_watermark(frame, step)
    time = col(quoted(step.time))
    if step.window is WindowKind.SESSION:
        spans = session_window(time, step.size.interval)
    elif step.window is WindowKind.SLIDING:
        assert step.slide is not None
        spans = time_window(time, step.size.interval, step.slide.interval)
    else:
        spans = time_window(time, step.size.interval)
    groups = [expr(column.expression).alias(column.name) for column in step.group_by]
    aggregates = [expr(column.expression).alias(column.name) for column in step.aggregate]
    return (
        frame.groupBy(spans.alias("__window"), *groups)
        .agg(*aggregates)
        .select(
            col("__window.start").alias("window_start"),
            col("__window.end").alias("window_end"),
            *[col(quoted(column.name)) for column in (*step.group_by, *step.aggregate)],
        )
    )


def dedup(step: Dedup, frame: "DataFrame") -> "DataFrame":
    return with_watermark(frame, step).dropDuplicatesWithinWatermark(list(step.key))


def branches(step: Route, frame: "DataFrame") -> dict[str | None, "DataFrame"]:
    """The rows of each branch by name; under None the rows that no branch takes. A null condition is not true."""
    from pyspark.sql.functions import expr

    cases = " ".join(f"WHEN ({branch.condition}) THEN {index}" for index, branch in enumerate(step.branches))
    decided = frame.withColumn(_BRANCH, expr(f"CASE {cases} ELSE {len(step.branches)} END"))

    def rows(index: int) -> "DataFrame":
        return with_watermark(decided.where(f"{_BRANCH} = {index}").drop(_BRANCH), step)

    found: dict[str | None, DataFrame] = {branch.name: rows(index) for index, branch in enumerate(step.branches)}
    rest = rows(len(step.branches))
    found[None] = rest
    if step.rest in step.gives:
        found[step.rest] = rest
    return found


def stateful(step: Stateful, frame: "DataFrame", directory: Path) -> "DataFrame":
    """transformWithStateInPandas with the state in RocksDB, by the settings of the session."""
    processor = load(step.processor, directory)
    made: Any = processor(**step.arguments)
    return (
        with_watermark(frame, step)
        .groupBy(*[quoted(name) for name in step.key])
        .transformWithStateInPandas(
            statefulProcessor=made,
            outputStructType=step.output,
            outputMode=_OUTPUT_MODES[step.mode],
            timeMode=_TIME_MODES[step.time],
        )
    )


_SPARK_TYPES = {
    JoinType.INNER: "inner",
    JoinType.LEFT: "left_outer",
    JoinType.RIGHT: "right_outer",
    JoinType.FULL: "full_outer",
    JoinType.LEFT_SEMI: "left_semi",
    JoinType.LEFT_ANTI: "left_anti",
}


def joined(step: Join, left: "DataFrame", right: "DataFrame") -> "DataFrame":
    """Keys of the same name become one column; other common names get the name of the right side as a prefix.

    Columns of the record (`_offset` and others) are those of the left side.
    """
    from pyspark.sql.functions import expr

    condition = " AND ".join(f"{quoted('l', key.left)} = {quoted('r', key.right)}" for key in step.on)
    if step.within is not None:
        bound = step.within
        here, there = quoted("l", bound.left_time), quoted("r", bound.right_time)
        condition += (
            f" AND {there} >= {here} - INTERVAL {bound.before.milliseconds} MILLISECONDS"
            f" AND {there} <= {here} + INTERVAL {bound.after.milliseconds} MILLISECONDS"
        )
    both = left.alias("l").join(right.alias("r"), expr(condition), _SPARK_TYPES[step.type])
    if step.type in (JoinType.LEFT_SEMI, JoinType.LEFT_ANTI):
        return both
    return both.select(*[expr(column) for column in _columns(step, left.columns, right.columns)])


def _columns(step: Join, left: list[str], right: list[str]) -> list[str]:
    shared_keys = {key.left for key in step.on if key.left == key.right}
    left_may_miss = step.type in (JoinType.RIGHT, JoinType.FULL)
    columns = []
    for name in left:
        if name in shared_keys and left_may_miss:
            # The key is in the other side.
            columns.append(f"coalesce({quoted('l', name)}, {quoted('r', name)}) AS {quoted(name)}")
        else:
            columns.append(f"{quoted('l', name)} AS {quoted(name)}")
    taken = set(left)
    for name in right:
        if name in shared_keys or (name in RECORD_COLUMNS and name in taken):
            continue
        new = name if name not in taken else f"{step.right}_{name}"
        columns.append(f"{quoted('r', name)} AS {quoted(new)}")
    return columns


_WITHOUT_STATE = frozenset(
    (
        "CTERelationDef",
        "CTERelationRef",
        "CollectMetrics",
        "EventTimeWatermark",
        "Filter",
        "Generate",
        "Project",
        "ResolvedHint",
        "SubqueryAlias",
        "Union",
        "WithCTE",
    )
)


def sql_keeps_state(session: "SparkSession", step: Sql) -> bool:
    """Whether a SQL step on streams keeps state, or is not known to be without: it must then run as a stream.

    By the nodes of Spark's analysed plan above the step's inputs, which are views.
    """
    waiting = [session.sql(step.query)._jdf.queryExecution().analyzed()]
    while waiting:
        node = waiting.pop()
        name = str(node.nodeName())
        if name == "View" or not node.isStreaming():
            continue
        if not node.subqueries().isEmpty():
            return True
        children = [node.children().apply(index) for index in range(node.children().size())]
        if name == "Join":
            if all(child.isStreaming() for child in children):
                return True
        elif name not in _WITHOUT_STATE:
            return True
        waiting.extend(children)
    return False
