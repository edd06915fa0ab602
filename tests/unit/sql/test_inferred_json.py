"""Columns of JSON without a schema: no value is lost, whatever comes after the sample."""

from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from millstream.sql.inferred_json import InferredJson, json_text, unified
from tests.examples import examples


def decoded(sample: list[Any], *batches: list[Any], wanted: frozenset[str] | None = None) -> pa.Table:
    columns = InferredJson([orjson.dumps(each) for each in sample], wanted)
    tables = []
    for batch in batches:
        values = [each if isinstance(each, bytes) or each is None else orjson.dumps(each) for each in batch]
        table, errors = columns.decode(pa.array(values, pa.binary()))
        assert table.num_rows == len(batch) == len(errors)
        tables.append(table)
    return pa.concat_tables(unified(tables))


def test_types_widen_and_new_fields_appear() -> None:
    found = decoded(
        [{"n": 1, "s": "a"}],
        [{"n": 1, "s": "a"}, {"n": 2, "s": None}],
        [{"n": 2.5, "s": "b", "rare": "2026-01-01T00:00:00Z"}, None],
        [{"n": 3, "s": 7, "deep": {"a": [1, {"b": 2}]}}],
    )
    assert found.to_pydict() == {
        "n": [1.0, 2.0, 2.5, None, 3.0],
        "s": ["a", None, "b", None, "7"],
        "rare": [None, None, "2026-01-01T00:00:00Z", None, None],
        "deep": [None, None, None, None, {"a": ["1", '{"b":2}']}],
    }


def test_a_value_that_is_no_object_has_a_reason() -> None:
    columns = InferredJson([b'{"a": 1}'], None)
    table, errors = columns.decode(pa.array([b'{"a": 1}', b"broken", b"[1]", None, b'{"a": 2}{"a": 3}'], pa.binary()))
    assert table.column("a").to_pylist() == [1, None, None, None, None]
    assert [each is None for each in errors.to_pylist()] == [True, False, False, True, False]


def test_only_the_columns_of_the_query_are_decoded() -> None:
    found = decoded([{"a": 1, "b": 2}], [{"a": 1, "b": "x"}], wanted=frozenset({"a", "_offset"}))
    assert found.to_pydict() == {"a": [1]}
    rare = decoded([{"a": 1}], [{"a": 1}, {"a": 2, "rare": True}], wanted=frozenset({"rare"}))
    assert rare.column("rare").to_pylist() == [None, True]


_LEAVES = some.none() | some.booleans() | some.integers(-(2**53), 2**53) | some.text(max_size=5)
_VALUES = some.recursive(
    _LEAVES,
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.sampled_from("ab"), inner),
    max_leaves=6,
)
_OBJECTS = some.lists(some.dictionaries(some.sampled_from("xyz"), _VALUES, max_size=3), min_size=1, max_size=6)


@given(_OBJECTS, _OBJECTS)
@settings(max_examples=examples(60), deadline=None)
def test_any_objects_are_decoded(first: list[Any], second: list[Any]) -> None:
    found = decoded(first[:2], first, second)
    for name in found.schema.names:
        for document, value in zip(first + second, found.column(name).to_pylist(), strict=True):
            given_value = document.get(name)
            assert (value is None) == (given_value is None)
            if isinstance(value, str) and not isinstance(given_value, (list, dict)):
                assert value == (given_value if isinstance(given_value, str) else json_text(given_value))


@pytest.mark.parametrize("times", ["2026-01-01", "2026-01-01 10:00:00"])
def test_texts_that_look_like_times_stay_texts(times: str) -> None:
    found = decoded([{"a": 1}], [{"a": 1, "at": times}, {"a": 1, "at": "soon"}], [{"a": 1, "at": times}])
    assert found.column("at").to_pylist() == [times, "soon", times]
