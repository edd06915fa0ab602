"""The checker of compiled modules finds what is different when it is compiled, and nothing else."""

import ast
from pathlib import Path

import pytest

from tools.check_compiled import (
    Finding,
    cached_properties,
    callables,
    fields,
    generators,
    identities,
    replacements,
    subclasses,
    suspensions,
)

IDENTITIES = """
from enum import Enum
from typing import NamedTuple

NO_ENTRY = (-1, 0)

class Place(NamedTuple):
    x: int

class Kind(Enum):
    A = 1

class Thing:
    pass

def look(entry: tuple[int, int], place: Place | None, kind: Kind, one: Thing, two: Thing, n: int, text: str) -> None:
    print(entry is NO_ENTRY)  # wrong
    print(place is not Place(1))  # wrong
    print(n is 5)  # wrong
    print(text is "a")  # wrong
    print(place is None, kind is Kind.A, one is two, type(one) is Thing, (n == 1) is (n == 2), entry == NO_ENTRY)
"""


def test_comparisons_by_identity_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "looked_at.py"
    path.write_text(IDENTITIES)
    wrong = [number for number, line in enumerate(IDENTITIES.splitlines(), 1) if line.endswith("# wrong")]
    found = identities([str(path)])
    assert sorted(finding.line for finding in found) == wrong
    assert {finding.text.partition(":")[0].removeprefix("`is not` ").removeprefix("`is` ") for finding in found} == {
        "on a tuple",
        "on int",
        "on str",
    }


def test_generator_expressions_are_found() -> None:
    text = """
kept = (x for x in y)
f(x for x in y)
first = next((x for x in y), None)
a, b = (x for x in y)
t = (*(x for x in y), 1)
for z in (x for x in y): pass
s = ", ".join(x for x in y)
"""
    assert [finding.line for finding in generators("m.py", ast.parse(text))] == [2, 3]


def test_fields_of_type_object_are_found() -> None:
    text = """
class A(NamedTuple):
    a: object
    b: "object"
    c: int

@dataclass(slots=True)
class B:
    a: memoryview
    b: object | None

class C:
    a: object
"""
    found = list(fields("m.py", ast.parse(text)))
    assert found == [
        Finding("m.py", 3, 'a field of type object: write "object"'),
        Finding("m.py", 9, "a field of type memoryview: write memoryview | None"),
    ]


def test_subclasses_of_compiled_classes_are_found() -> None:
    text = """
from millstream.some import Base, Other as Else, Open

class A(Base): pass
class B(Else[int]): pass
class C(Open): pass
"""
    found = list(subclasses({"millstream.some": {"Base", "Other"}}, "m.py", ast.parse(text)))
    assert [(finding.line, finding.text.partition(" ")[0]) for finding in found] == [(4, "A"), (5, "B")]


def test_subclasses_that_become_callable_are_found() -> None:
    base = """
class Turn:
    def __init__(self): self.is_over = False

class Caller:
    def __call__(self): ...
"""
    text = """
from a import Caller, Turn as T

class A(T):
    def __call__(self): ...
class B(Caller):
    def __call__(self): ...
class C(A): pass
class D(object):
    def __call__(self): ...
class E(B): pass
class F(T): pass
"""
    found = list(callables({"a": ast.parse(base), "b": ast.parse(text)}))
    assert [(finding.path, finding.line, finding.text.partition(" ")[0]) for finding in found] == [("b.py", 4, "A")]


def test_cached_properties_are_found() -> None:
    text = """
class A:
    @functools.cached_property
    def a(self): ...
    @property
    def b(self): ...
"""
    assert [finding.line for finding in cached_properties("m.py", ast.parse(text))] == [4]


def test_suspensions_in_handlers_are_found() -> None:
    text = """
lock = asyncio.Lock()

async def f():
    try:
        await g()
    except OSError:
        await g()  # wrong
        def later():
            yield 1
        raise
    else:
        await g()
    finally:
        yield 2  # wrong
    async with lock, asyncio.timeout(1):
        await g()
    async with group:  # wrong
        await g()
    try:
        pass
    finally:
        async with lock:  # wrong
            pass
"""
    wrong = [number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# wrong")]
    assert [finding.line for finding in suspensions("m.py", ast.parse(text))] == wrong


MODULE = """
from elsewhere import imported

LIMIT = 5

def function(): ...

class Thing:
    def method(self): ...

class Kind(Enum):
    A = 1
"""

REPLACING = """
import pytest
from millstream import fast
from millstream.fast import Thing, Kind

def test_a(monkeypatch):
    monkeypatch.setattr(fast, "function", None)  # wrong
    monkeypatch.setattr(Thing, "method", None)  # wrong
    monkeypatch.setattr("millstream.fast.function", None)  # wrong
    monkeypatch.setattr("millstream.fast.Thing.method", None)  # wrong
    monkeypatch.setattr(fast, "LIMIT", 1)
    monkeypatch.setattr(fast, "imported", None)
    monkeypatch.setattr(Kind, "A", 2)
    monkeypatch.setattr(other, "function", None)

@pytest.mark.plain
def test_b(monkeypatch):
    monkeypatch.setattr(Thing, "method", None)

def planted(monkeypatch):
    monkeypatch.setattr(Thing, "method", None)
"""


def test_replacements_without_a_mark_are_found() -> None:
    modules = {"millstream.fast": ast.parse(MODULE)}
    wrong = [number for number, line in enumerate(REPLACING.splitlines(), 1) if line.endswith("# wrong")]
    found = replacements(modules, "m.py", ast.parse(REPLACING))
    assert [finding.line for finding in found] == wrong
    whole_file = ast.parse(REPLACING + "\npytestmark = pytest.mark.plain\n")
    assert list(replacements(modules, "m.py", whole_file)) == []
