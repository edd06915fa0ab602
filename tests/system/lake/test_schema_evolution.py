"""Rows are brought into a table's columns, however deep they are nested."""

from typing import Any

import pyarrow as pa
import pytest

from millstream.lake.errors import SchemaChangeError
from millstream.lake.schema_evolution import can_hold, conform, evolve, never, storable

OLD = pa.struct([pa.field("x", pa.int32())])
NEW = pa.struct([pa.field("x", pa.int64()), pa.field("y", pa.string())])


@pytest.mark.parametrize(
    ("old", "new", "values"),
    [
        (pa.list_(OLD), pa.list_(NEW), [[{"x": 1}], None, [], [{"x": 2}, None]]),
        (pa.map_(pa.string(), OLD), pa.map_(pa.string(), NEW), [[("a", {"x": 1})], None, [], [("b", None)]]),
        (OLD, NEW, [{"x": 1}, None, {"x": None}, {"x": 3}]),
        (
            pa.list_(pa.list_(pa.int32())),
            pa.list_(pa.list_(pa.int64())),
            [[[1], None], None, [], [[], [2, None]]],
        ),
        (pa.large_string(), pa.string(), ["a", None, "", "b"]),
    ],
)
@pytest.mark.parametrize("start", [0, 1, 3])
def test_nested_rows_get_new_fields_as_null(old: Any, new: Any, values: list[Any], start: int) -> None:
    rows = pa.record_batch({"c": pa.array(values, old)}).slice(start)
    got = conform(rows, pa.schema([pa.field("c", new), pa.field("more", pa.int8())]))
    got.validate(full=True)
    assert got.column("more").null_count == len(rows)
    assert got.column("c").to_pylist() == pa.array(_with_y(values), new).slice(start).to_pylist()


def _with_y(value: Any) -> Any:
    if isinstance(value, dict):
        return {**value, "y": None}
    if isinstance(value, tuple):
        return (value[0], _with_y(value[1]))
    return [_with_y(each) for each in value] if isinstance(value, list) else value


def test_a_table_gets_the_new_columns() -> None:
    table = pa.schema([pa.field("a", pa.int32()), pa.field("m", pa.map_(pa.string(), OLD))])
    rows = storable(pa.schema([pa.field("m", pa.map_(pa.string(), NEW)), pa.field("b", pa.float32(), nullable=False)]))
    evolution = evolve(table, rows, can_hold, name="t")
    assert evolution.added == ["m.value.y", "b"]
    assert evolution.widened == ["m.value.x from int32 to int64"]
    assert evolution.schema.field("b").nullable and evolution.schema.names == ["a", "m", "b"]
    with pytest.raises(SchemaChangeError, match=r"column m\.value\.x is int32 in the table and int64 in the rows"):
        evolve(table, rows, never, name="t")
    with pytest.raises(SchemaChangeError, match="requires a value in column a"):
        evolve(table.set(0, pa.field("a", pa.int32(), nullable=False)), rows, can_hold, name="t")
    with pytest.raises(SchemaChangeError, match="column t has type duration"):
        storable(pa.schema([pa.field("t", pa.duration("us"))]))
