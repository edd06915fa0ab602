"""The checker of sets finds iterations whose order is different in each process, and nothing else."""

from pathlib import Path

import pytest

from tools.check_order import iterations

TEXT = """
from asyncio import Task
from uuid import UUID

class Thing:
    pass

def look(tasks: set[Task[None]], names: frozenset[str], numbers: set[int], ids: set[tuple[UUID, int]]) -> object:
    for task in tasks:  # wrong
        task.cancel()
    for number in numbers:
        print(number)
    for pair in ids:
        print(pair)
    for name in sorted(names):
        print(name)
    for name in names:  # any order
        print(name)
    listed = [name for name in names]  # wrong
    lengths = {name: len(name) for name in names}  # wrong
    again = {name.upper() for name in names}
    print(list(names), any(name for name in names), len(names))  # wrong
    print([*names])  # wrong
    print({*names}, *names)  # wrong
    print(sorted(names, key=len))  # wrong
    print(max(names), sum(len(name) for name in names), names | {"a"}, "a" in names)
    print(tasks.pop(), numbers.pop(), [1].pop())  # wrong
    print(",".join(names))  # wrong
    known: dict[str, int] = {}
    for name in known:
        print(name)
    for name in known.keys() & names:  # wrong
        print(name)
    return listed, lengths, again

def each(things: set[Thing] | None):  # type: ignore[no-untyped-def]
    if things:
        yield from things  # wrong
"""


def test_iterations_over_sets_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "looked_at.py"
    path.write_text(TEXT)
    wrong = [number for number, line in enumerate(TEXT.splitlines(), 1) if line.endswith("# wrong")]
    assert sorted({finding.line for finding in iterations([str(path)])}) == wrong
