"""Finds iterations over plain sets whose order is different in each process: `python tools/check_order.py [files]`.

A set of objects, text or bytes has an order that depends on addresses, or on the hash seed of the process. Where nodes
or the simulator go through such a set, the same seed gives another run in another process, and a failure cannot be
replayed. Numbers and UUIDs have the same order everywhere. Write `sorted(…)`, or keep an `OrderedSet` or a dict.

Found are loops, comprehensions, `list(…)` and other calls that keep the order, `*set`, `yield from` and `pop()`. Not
found are calls for which the order makes no difference (`any`, `sum`, `sorted` without a key, another set). Where a
loop gives the same result in any order, the comment `# any order` at the end of its line says so.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mypy import build, nodes, types
from mypy.main import process_options

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "millstream"
PACKAGES = ("access", "common", "config", "formats", "node", "registry", "simulator")
"""What a simulated node runs."""
MARK = "# any order"
_SETS = {"builtins.set", "builtins.frozenset", "typing.AbstractSet", "typing.MutableSet"}
_SAME_EVERYWHERE = {"builtins.int", "builtins.float", "builtins.bool", "uuid.UUID"}
_WITHOUT_ORDER = {"all", "any", "frozenset", "len", "max", "min", "set", "sorted", "sum"}
_WITHOUT_ORDER |= {"difference", "difference_update", "intersection", "intersection_update", "isdisjoint", "issubset"}
_WITHOUT_ORDER |= {"issuperset", "symmetric_difference", "union", "wait"}
_WITH_ORDER = {"chain", "deque", "dict", "enumerate", "extend", "filter", "from_iterable", "fromkeys", "iter", "join"}
_WITH_ORDER |= {"list", "map", "OrderedSet", "tuple", "zip"}


class Finding(NamedTuple):
    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


class _Iterations:
    """The iterations in one file, in the tree of mypy: its nodes are the keys of the types."""

    def __init__(self, known: dict[nodes.Expression, types.Type]) -> None:
        self._known = known
        self._harmless: set[int] = set()
        """The ids of generators and starred expressions that are consumed where the order makes no difference."""
        self.found: list[tuple[int, str]] = []

    def walk(self, root: nodes.Node) -> None:
        waiting, seen = [root], {id(root)}
        while waiting:
            node = waiting.pop()
            self._visit(node)
            for child in _children(node):
                if id(child) not in seen:
                    seen.add(id(child))
                    waiting.append(child)

    def _look(self, expression: nodes.Expression, line: int) -> None:
        item = _item_of_set(self._known.get(expression))
        if item is not None:
            self.found.append((line, item))

    def _visit(self, node: nodes.Node) -> None:
        match node:
            case nodes.ForStmt() | nodes.YieldFromExpr():
                self._look(node.expr, node.line)
            case nodes.GeneratorExpr() if id(node) not in self._harmless:
                for sequence in node.sequences:
                    self._look(sequence, node.line)
            case nodes.DictionaryComprehension():
                for sequence in node.sequences:
                    self._look(sequence, node.line)
            case nodes.SetComprehension():
                self._harmless.add(id(node.generator))
            case nodes.SetExpr():
                self._harmless.update(id(each) for each in node.items)
            case nodes.StarExpr() if id(node) not in self._harmless:
                self._look(node.expr, node.line)
            case nodes.CallExpr():
                self._visit_call(node)

    def _visit_call(self, call: nodes.CallExpr) -> None:
        callee = call.callee
        name = callee.name if isinstance(callee, nodes.NameExpr | nodes.MemberExpr) else ""
        has_order = name in _WITH_ORDER or (name in ("max", "min", "sorted") and "key" in call.arg_names)
        if name in _WITHOUT_ORDER and not has_order:
            for argument in call.args:
                generator = argument.generator if isinstance(argument, nodes.ListComprehension) else argument
                self._harmless.add(id(generator))
        else:
            for argument, kind in zip(call.args, call.arg_kinds, strict=True):
                if kind == nodes.ARG_STAR or has_order:
                    self._look(argument, call.line)
        if name == "pop" and not call.args and isinstance(callee, nodes.MemberExpr):
            self._look(callee.expr, call.line)


_ELSEWHERE = {"analyzed", "def_var", "expanded", "info", "node", "original_def", "unanalyzed_items", "var"}
"""Attributes of nodes that lead to definitions, perhaps in another file."""


def _children(node: nodes.Node) -> Iterator[nodes.Node]:
    """The nodes inside a node. The visitors of mypy are compiled, and cannot be extended here."""
    for name in type(node).__mypyc_attrs__:  # type: ignore[attr-defined]
        if name not in _ELSEWHERE:
            yield from _nodes_in(getattr(node, name, None))


def _nodes_in(value: object) -> Iterator[nodes.Node]:
    if isinstance(value, nodes.Statement | nodes.Expression | nodes.FuncItem | nodes.Argument):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _nodes_in(each)


def _item_of_set(found: types.Type | None) -> str | None:
    """The type of the items of a set whose order is not the same everywhere; None for anything else."""
    if found is None:
        return None
    found = types.get_proper_type(found)
    if isinstance(found, types.UnionType):
        return next((item for each in found.items if (item := _item_of_set(each)) is not None), None)
    if not isinstance(found, types.Instance) or found.type.fullname not in _SETS:
        return None
    return None if _is_same_everywhere(found.args[0]) else str(found.args[0])


def _is_same_everywhere(item: types.Type) -> bool:
    item = types.get_proper_type(item)
    if isinstance(item, types.TupleType):
        return all(map(_is_same_everywhere, item.items))
    if isinstance(item, types.UnionType):
        return all(map(_is_same_everywhere, item.items))
    if isinstance(item, types.LiteralType):
        item = item.fallback
    if isinstance(item, types.Instance):
        return any(each.fullname in _SAME_EVERYWHERE for each in item.type.mro)
    return isinstance(item, types.NoneType | types.UninhabitedType)


def iterations(paths: list[str]) -> Iterator[Finding]:
    """All that are found in source files."""
    sources, options = process_options(["--config-file", str(ROOT / "pyproject.toml"), *paths])
    options.incremental = False
    options.export_types = True
    options.preserve_asts = True
    result = build.build(sources, options)
    wanted = {os.path.abspath(path) for path in paths}
    for file in result.files.values():
        if os.path.abspath(file.path) not in wanted:
            continue
        visitor = _Iterations(result.types)
        visitor.walk(file)
        lines = Path(file.path).read_text().splitlines()
        for line, item in set(visitor.found):
            if MARK not in lines[line - 1]:
                name = os.path.relpath(file.path, ROOT)
                yield Finding(name, line, f"goes through a set of {item}: its order is different in each process")


def main(paths: list[str]) -> int:
    if not paths:
        paths = [str(path) for package in PACKAGES for path in sorted((SOURCE / package).rglob("*.py"))]
    found = sorted(iterations(paths))
    for finding in found:
        print(finding)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
