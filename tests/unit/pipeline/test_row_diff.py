"""Rows of a test beside the rows that came: what counts as equal, and how differences are shown."""

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from millstream.pipeline.cases import load_cases
from millstream.pipeline.problems import InvalidPipelineError
from millstream.pipeline.row_diff import compare
from tests.system.pipeline.definitions import look_at, pipeline_text


def test_only_named_columns_count_and_the_order_does_not() -> None:
    there = [{"id": "b", "n": 2, "more": 1}, {"id": "a", "n": 1.0000000000001, "more": 2}]
    assert compare([{"id": "a", "n": 1}, {"id": "b"}], there).is_equal
    assert compare(
        [{"at": "2026-01-01T00:00:00Z", "price": 1.5}],
        [{"at": datetime(2026, 1, 1, tzinfo=UTC), "price": Decimal("1.50")}],
    ).is_equal
    assert not compare([{"id": "a"}, {"id": "a"}], [{"id": "a"}]).is_equal
    assert not compare([{"flag": True}], [{"flag": 1}]).is_equal


def test_differences_name_the_columns() -> None:
    diff = compare([{"id": "a", "n": 1}, {"id": "x", "n": 7}], [{"id": "a", "n": 2}, {"id": "z", "n": 9}])
    assert diff.lines() == [
        "~ {id: 'a'}  n: expected 1, got 2",
        "- {id: 'x', n: 7}",
        "+ {id: 'z', n: 9}",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "tests: {one: {inputs: {order: []}, expect: {out: []}}}",
            "'order', which is no source; did you mean 'orders'?",
        ),
        ("tests: {one: {inputs: {orders: []}, expect: {outt: []}}}", "'outt', which is no sink; did you mean 'out'?"),
        ("tests: {one: {inputs: {orders: [{amuont: 1}]}, expect: {out: []}}}", "has no column 'amuont'; did you mean"),
        ("tests: {one: {inputs: {orders: 5}, expect: {out: []}}}", "rows must be a list of mappings"),
        ("tests: {one: {expect: {out: []}}}", "test 'one' needs `inputs`"),
        ("test: {}", "the tests has no key 'test'"),
        ("", "the file is empty"),
    ],
)
def test_mistakes_in_the_file_are_told(tmp_path: Path, text: str, expected: str) -> None:
    pipeline = look_at(tmp_path, pipeline_text()).pipeline
    assert pipeline is not None
    file = tmp_path / "pipeline.test.yaml"
    file.write_text(text)
    with pytest.raises(InvalidPipelineError) as caught:
        load_cases(file, pipeline)
    assert expected in str(caught.value)


def test_inputs_may_be_batches_with_times(tmp_path: Path) -> None:
    pipeline = look_at(tmp_path, pipeline_text()).pipeline
    assert pipeline is not None
    file = tmp_path / "pipeline.test.yaml"
    file.write_text(
        "tests:\n  one:\n    inputs:\n      orders: [[{at: 2026-01-01T00:00:05Z}], []]\n    expect: {out: []}\n"
    )
    (case,) = load_cases(file, pipeline)
    assert case.batches["orders"] == (({"at": "2026-01-01T00:00:05+00:00"},), ())
