"""Conditions on rows, all of which must hold: they skip files and row groups, and are then applied row by row."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from operator import and_
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from millstream.lake.column_ranges import Ranges

Operator = Literal["=", "<", "<=", ">", ">=", "in", "null", "not null"]


@dataclass(frozen=True)
class Condition:
    """One comparison of a column with a value; as in SQL, a null passes none but `null`."""

    column: str
    operator: Operator
    value: Any = None

    def may_hold(self, ranges: Ranges) -> bool:
        """Whether rows with these ranges can pass; a column that is unknown can."""
        if self.column not in ranges or self.operator in ("null", "not null"):
            return True
        low, high = (_plain(bound) for bound in ranges[self.column])
        try:
            match self.operator:
                case "=":
                    return bool(low <= _plain(self.value) <= high)
                case "<":
                    return bool(low < _plain(self.value))
                case "<=":
                    return bool(low <= _plain(self.value))
                case ">":
                    return bool(high > _plain(self.value))
                case ">=":
                    return bool(high >= _plain(self.value))
                case _:
                    return any(low <= _plain(value) <= high for value in self.value)
        except TypeError:  # a bound of another type than the value: say nothing
            return True

    def expression(self, schema: pa.Schema) -> pc.Expression:
        """The same for pyarrow."""
        field = pc.field(self.column)
        if self.operator == "null":
            return field.is_null()
        if self.operator == "not null":
            return ~field.is_null()
        kind = schema.field(self.column).type
        if self.operator == "in":
            return field.isin(pa.array(list(self.value), kind))
        scalar = pa.scalar(self.value, kind)
        return _compare(field, self.operator, scalar)


def _compare(field: pc.Expression, operator: Operator, scalar: pa.Scalar) -> pc.Expression:
    match operator:
        case "=":
            return field == scalar
        case "<":
            return field < scalar
        case "<=":
            return field <= scalar
        case ">":
            return field > scalar
        case _:
            return field >= scalar


def all_may_hold(conditions: Iterable[Condition], ranges: Ranges) -> bool:
    return all(condition.may_hold(ranges) for condition in conditions)


def keep_matching(rows: pa.RecordBatch, conditions: Sequence[Condition]) -> pa.RecordBatch:
    """The rows that pass all conditions."""
    if not conditions:
        return rows
    expression = reduce(and_, (condition.expression(rows.schema) for condition in conditions))
    return rows.filter(expression)


def iceberg_expression(conditions: Sequence[Condition]) -> Any:
    """The same for pyiceberg."""
    from pyiceberg import expressions as ice

    by_operator = {
        "=": ice.EqualTo,
        "<": ice.LessThan,
        "<=": ice.LessThanOrEqual,
        ">": ice.GreaterThan,
        ">=": ice.GreaterThanOrEqual,
        "in": ice.In,
    }
    is_null: Any = ice.IsNull
    is_not_null: Any = ice.NotNull
    result: Any = ice.AlwaysTrue()
    for condition in conditions:
        if condition.operator == "null":
            result = ice.And(result, is_null(condition.column))
        elif condition.operator == "not null":
            result = ice.And(result, is_not_null(condition.column))
        else:
            value = condition.value
            literal = [_literal(each) for each in value] if condition.operator == "in" else _literal(value)
            result = ice.And(result, by_operator[condition.operator](condition.column, literal))
    return result


def from_spark(filters: Iterable[Any], schema: pa.Schema) -> tuple[Condition, ...]:
    """Those of Spark's filters that can skip files; the others are left to Spark, which applies all of them anyway."""
    from pyspark.sql import datasource as spark

    operators: Mapping[type, Operator] = {
        spark.EqualTo: "=",
        spark.LessThan: "<",
        spark.LessThanOrEqual: "<=",
        spark.GreaterThan: ">",
        spark.GreaterThanOrEqual: ">=",
        spark.In: "in",
        spark.IsNull: "null",
        spark.IsNotNull: "not null",
    }
    found = []
    for each in filters:
        operator = operators.get(type(each))
        if operator is None or len(each.attribute) != 1 or each.attribute[0] not in schema.names:
            continue
        kind = schema.field(each.attribute[0]).type
        if not (pa.types.is_primitive(kind) or pa.types.is_string(kind)) or pa.types.is_floating(kind):
            continue  # of floating point numbers, NaN is the greatest and equal to itself in Spark, and nowhere else
        value: Any = getattr(each, "value", None)
        if operator == "in":
            value = tuple(item for item in value if item is not None)
        elif value is None and operator not in ("null", "not null"):
            continue
        found.append(Condition(each.attribute[0], operator, value))
    return tuple(found)


def _plain(value: Any) -> Any:
    """Times without a zone are taken as UTC, so that bounds and values can be compared."""
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return value


def _literal(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
