"""Python functions that a pipeline names: found beside the file, and asked whether they can be called so."""

import sys
from pathlib import Path

import pytest

from millstream.pipeline.functions import FunctionError, resolve
from tests.system.pipeline.definitions import PAYMENTS, SOURCE, look_at, messages, pipeline_text

_MODULE = """
class StatefulProcessor: ...

def one(frame): return frame
def two(left, right, *, factor=1): return left
not_a_function = 5

class Good(StatefulProcessor):
    def __init__(self, limit=3): ...

class Plain: ...
"""


def problems_of(directory: Path, step: str) -> list[str]:
    (directory / "steps_of_mine.py").write_text(_MODULE)
    (directory / "broken_of_mine.py").write_text("x = 1\nraise RuntimeError('no luck')\n")
    (directory / "unparsed_of_mine.py").write_text("def f(:\n")
    (directory / "needing_of_mine.py").write_text("import package_that_is_not_there\n")
    text = pipeline_text(SOURCE + PAYMENTS, f"s: {step}", "out: {from: s, topic: out}\np: {from: payments, topic: p}")
    return messages(look_at(directory, text))


@pytest.mark.parametrize(
    "step",
    [
        "{python: {from: orders, function: 'steps_of_mine:one'}}",
        "{python: {from: [orders, payments], function: 'steps_of_mine:two', arguments: {factor: 2}}}",
        "{stateful: {from: orders, processor: 'steps_of_mine:Good', key: shop, output: a INT, arguments: {limit: 1}}}",
        "{python: {from: orders, function: 'copy:copy'}}",
    ],
)
def test_functions_with_right_arguments_have_no_problems(tmp_path: Path, step: str) -> None:
    assert problems_of(tmp_path, step) == []


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (
            "{python: {from: orders, function: 'steps_of_mine:onee'}}",
            "steps_of_mine has no 'onee'; did you mean 'one'?",
        ),
        ("{python: {from: orders, function: 'steps_of_min:one'}}", "there is no module 'steps_of_min'"),
        (
            "{python: {from: orders, function: 'steps_of_mine:two'}}",
            "takes (left, right, *, factor=1) (2 by position), but is given 1 DataFrame",
        ),
        ("{python: {from: orders, function: 'steps_of_mine:one', arguments: {x: 1}}}", "given 1 DataFrame and x"),
        ("{python: {from: orders, function: 'steps_of_mine:not_a_function'}}", "is not a function, but int"),
        (
            "{python: {from: orders, function: 'broken_of_mine:f'}}",
            "importing broken_of_mine failed at broken_of_mine.py:2",
        ),
        ("{python: {from: orders, function: 'unparsed_of_mine:f'}}", "failed at unparsed_of_mine.py:1"),
        (
            "{python: {from: orders, function: 'needing_of_mine:f'}}",
            "there is no module 'package_that_is_not_there'; install it",
        ),
        (
            "{stateful: {from: orders, processor: 'steps_of_mine:Plain', key: shop, output: a INT}}",
            "is not a pyspark.sql.streaming.StatefulProcessor",
        ),
        ("{stateful: {from: orders, processor: 'steps_of_mine:one', key: shop, output: a INT}}", "is not a class"),
        (
            "{stateful: {from: orders, processor: 'steps_of_mine:Good', key: shop, output: a INT, arguments: {x: 1}}}",
            "cannot be created with the arguments x",
        ),
    ],
)
def test_functions_with_wrong_arguments_are_named(tmp_path: Path, step: str, expected: str) -> None:
    found = problems_of(tmp_path, step)
    assert len(found) == 1 and expected in found[0], found


def test_nothing_of_a_check_stays(tmp_path: Path) -> None:
    path = list(sys.path)
    problems_of(tmp_path, "{python: {from: orders, function: 'steps_of_mine:one'}}")
    assert sys.path == path
    assert "steps_of_mine" not in sys.modules


def test_resolve_gives_the_function_itself(tmp_path: Path) -> None:
    (tmp_path / "resolved_of_mine.py").write_text("def double(x): return 2 * x\n")
    try:
        assert resolve("resolved_of_mine:double", tmp_path)(4) == 8
        with pytest.raises(FunctionError, match="has no 'triple'"):
            resolve("resolved_of_mine:triple", tmp_path)
    finally:
        sys.modules.pop("resolved_of_mine", None)
