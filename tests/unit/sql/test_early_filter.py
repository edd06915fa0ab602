"""Records that are left out early change no result."""

from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from millstream.columnar.schema import record_schema
from millstream.sql.engine import define, open_engine
from millstream.sql.statement import parse_statement
from millstream.sql.topic_columns import TopicColumns
from tests.examples import examples

pytest.importorskip("duckdb")


def columns_of(text: str, sample: list[Any]) -> TopicColumns:
    return TopicColumns("t", parse_statement(text), [(None, orjson.dumps(each)) for each in sample], None, None)


def rows(columns: TopicColumns, text: str, batches: list[list[Any]]) -> list[Any]:
    """The result of the query over these records, as sorted text."""
    import duckdb

    tables = []
    first = 0
    for batch in batches:
        raw = {"offset": list(range(first, first + len(batch))), "value": [orjson.dumps(each) for each in batch]}
        schema = record_schema(columns.raw_columns)
        tables.append(columns.typed(pa.RecordBatch.from_pydict({name: raw[name] for name in schema.names}, schema)))
        first += len(batch)
    with open_engine() as engine:
        define(engine, ("t",), columns.unify(tables))
        try:
            return sorted(map(repr, engine.execute(text).fetchall()))
        except duckdb.Error as error:
            return [type(error).__name__]


def both(text: str, sample: list[Any], batches: list[list[Any]]) -> tuple[list[Any], list[Any]]:
    with_filter, without = columns_of(text, sample), columns_of(text, sample)
    assert with_filter._early is not None, "no condition was found"
    without._early = None
    return rows(with_filter, text, batches), rows(without, text, batches)


ORDERS = [{"id": number, "name": f"n{number % 7}", "total": number / 2} for number in range(100)]


@pytest.mark.parametrize(
    ("where", "left"),
    [
        ("id = 7", 1),
        ("7 = id", 1),
        ("ID in (1, 2, 300)", 2),
        ("id between 10 and 12", 3),
        ("name = 'n3' and id < 20", 3),
        ("t.name in ('n1', 'n2') and id >= 98 and _offset > 3", 1),
        ("total = 4", 1),
        ("total < 1", 2),
        ("id = 7 and (name = 'x' or total > 1)", 1),
    ],
)
def test_the_same_rows_are_found(where: str, left: int) -> None:
    text = f"select id, name, total, _offset from t where {where}"
    found, expected = both(text, ORDERS[:5], [ORDERS[:50], ORDERS[50:]])
    assert found == expected and len(found) == left


@pytest.mark.parametrize(
    "text",
    [
        "select * from t",
        "select id from t where id = 1",  # no other column is needed
        "select * from t where total > 1",  # NaN
        "select * from t where name > 'a'",
        "select * from t where id = 1.5",
        "select * from t where id = 99999999999999999999",
        "select * from t where not id = 1",
        "select * from t where id = 1 or name = 'x'",
        "select * from t where missing = 1",
        "select * from t where id = 1 and rare = 2",  # a column that the sample does not have
        "select * from t a join t b using (id) where a.id = 1",
        "select * from t tablesample 10% where id = 1",
        "select * from t left join (select 1 as k) on true where k = 1",
    ],
)
def test_nothing_is_left_out_where_it_might_be_wrong(text: str) -> None:
    columns = columns_of(text, ORDERS[:5])
    batch = pa.RecordBatch.from_pydict({"value": pa.array([orjson.dumps(each) for each in ORDERS], pa.binary())})
    assert columns._early is None or columns._early.kept(batch).num_rows == len(ORDERS)


def test_it_stops_when_most_records_are_left() -> None:
    columns = columns_of("select * from t where id >= 20", ORDERS[:5])
    assert columns._early is not None
    batch = pa.RecordBatch.from_pydict({"value": pa.array([orjson.dumps(each) for each in ORDERS], pa.binary())})
    assert columns._early.kept(batch).num_rows == 80
    assert columns._early.kept(batch).num_rows == 100


_VALUES = some.none() | some.booleans() | some.integers(-9, 9) | some.floats(-3, 3) | some.sampled_from(["", "a", "5"])
_ROWS = some.lists(some.fixed_dictionaries({}, optional={"a": _VALUES, "b": _VALUES}), max_size=6)
_CONDITIONS = some.sampled_from(
    ["a = 5", "a in (1, 2, 3)", "a < 2", "a <= -1", "a > 1", "a >= 0", "a = '5'", "a in ('', 'a')", "a = 1 and b = 2"]
)


@settings(max_examples=examples(150), deadline=None)
@given(_CONDITIONS, _ROWS, _ROWS)
def test_an_early_filter_changes_no_rows(where: str, first: list[Any], second: list[Any]) -> None:
    sample = [*first[:2], {"a": 1, "b": 1}]
    # Whether b is null, and not b: the types of columns without a condition come from the records that are left.
    text = f"select a, b is null, _offset from t where {where}"
    with_filter, without = columns_of(text, sample), columns_of(text, sample)
    without._early = None
    expected = rows(without, text, [first, second])
    found = rows(with_filter, text, [first, second])
    # A column of mixed types is text: a record that is left out early cannot fail to be cast to a number.
    assert found == expected or expected == ["ConversionException"]
