"""Leaves out records that a condition of the query refuses, before all of their columns are decoded.

`select * from orders where order_id = 7` decodes `order_id` of all records, and the other columns of those few that are
left. DuckDB evaluates all conditions again, so a filter may keep too many records and never too few: it looks only at
comparisons that Arrow and DuckDB decide alike, and only at columns of the types that it knows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

_LARGEST = 1 << 53
"""Integers up to here are exact as doubles: a column of integers becomes one of doubles if a later record has one."""
_COMPARE: dict[str, Callable[[pa.ChunkedArray, pa.Scalar], pa.ChunkedArray]] = {
    "COMPARE_EQUAL": pc.equal,
    "COMPARE_LESSTHAN": pc.less,
    "COMPARE_LESSTHANOREQUALTO": pc.less_equal,
    "COMPARE_GREATERTHAN": pc.greater,
    "COMPARE_GREATERTHANOREQUALTO": pc.greater_equal,
}
_OF_FLOATS = frozenset(("COMPARE_EQUAL", "COMPARE_LESSTHAN", "COMPARE_LESSTHANOREQUALTO", "COMPARE_IN"))
"""Not those that NaN passes in DuckDB, where it is greater than all numbers."""
_OF_TEXTS = frozenset(("COMPARE_EQUAL", "COMPARE_IN"))
_LARGEST_SHARE = 0.5
"""If more of the records are left, decoding twice costs more than it saves."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of a column with constants, which must be true for a record to count."""

    column: str
    """In lower case."""
    kind: str
    """Of DuckDB's syntax tree."""
    values: tuple[int | str, ...]
    """All of one type."""

    def mask(self, table: pa.Table) -> pa.ChunkedArray | None:
        """True for rows that may count; None if it says nothing about this table."""
        places = [place for place, name in enumerate(table.schema.names) if name.lower() == self.column]
        if len(places) != 1:
            return None
        column, types = table.column(places[0]), pa.types
        if isinstance(self.values[0], str):
            fits = types.is_string(column.type) and self.kind in _OF_TEXTS
        elif types.is_float64(column.type):
            fits = self.kind in _OF_FLOATS and self._is_small
        else:
            fits = (types.is_int64(column.type) or types.is_int32(column.type)) and self._is_small
        if not fits:
            return None
        wide = pa.int64() if types.is_integer(column.type) else column.type
        if self.kind == "COMPARE_IN":
            return pc.is_in(column.cast(wide), pa.array(self.values).cast(wide))
        return _COMPARE[self.kind](column, pa.scalar(self.values[0]).cast(wide))

    @property
    def _is_small(self) -> bool:
        return all(isinstance(value, int) and abs(value) <= _LARGEST for value in self.values)


def simple_condition(column: str, kind: str, literals: Sequence[tuple[str, str]]) -> Condition | None:
    """Of literals as DuckDB's syntax tree has them: kind and text."""
    if kind != "COMPARE_IN" and kind not in _COMPARE:
        return None
    kinds = {each for each, _ in literals}
    if kinds == {"INTEGER"}:
        return Condition(column, kind, tuple(int(text) for _, text in literals))
    if kinds == {"STRING"}:
        return Condition(column, kind, tuple(text for _, text in literals))
    return None


class EarlyFilter:
    """Thread safe."""

    def __init__(self, conditions: Sequence[Condition], decode: Callable[[pa.Array], pa.Table]) -> None:
        """`decode`: the columns of the conditions, of values."""
        self._conditions = conditions
        self._decode = decode
        self._is_useful = True

    def kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The records that may count."""
        if not self._is_useful or not batch.num_rows:
            return batch
        table = self._decode(batch.column("value"))
        found: pa.ChunkedArray | None = None
        for each in self._conditions:
            mask = each.mask(table)
            if mask is not None:
                found = mask if found is None else pc.and_kleene(found, mask)
        if found is None:
            return batch
        found = pc.fill_null(found, False)
        left = pc.sum(found).as_py() or 0
        self._is_useful = left <= _LARGEST_SHARE * batch.num_rows
        return batch.filter(found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found)
