"""Joins: of two streams within a time, and of a stream with a table."""

from typing import TYPE_CHECKING

from millstream.pipeline.engine.record_columns import RECORD_COLUMNS, quoted
from millstream.pipeline.model import Join, JoinType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SPARK_TYPES = {
    JoinType.INNER: "inner",
    JoinType.LEFT: "left_outer",
    JoinType.RIGHT: "right_outer",
    JoinType.FULL: "full_outer",
    JoinType.LEFT_SEMI: "left_semi",
    JoinType.LEFT_ANTI: "left_anti",
}


def joined(step: Join, left: "DataFrame", right: "DataFrame") -> "DataFrame":
    """Keys of one name are one column; other names that both have get the right side's name in front.

    Of what the record was (`_offset` and the like) the left side's is kept.
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
            # The key is known all the same.
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
