"""Finds what works in plain Python and not when it is compiled: `python tools/check_compiled.py [source files]`.

The compiled modules are in `millstream/compilation.py`; without arguments, all of them are checked. mypyc keeps the
meaning of nearly all Python. What is found here it does not keep, and mypyc itself reports none of it as an error:

- `is` on tuples, numbers, text or bytes. Compiled code has tuples and numbers as plain C values. Each time one is
  needed as an object, a new one is made, so that `x is NO_ENTRY` is false for an entry that is NO_ENTRY.
- A generator expression that is not consumed where it stands. mypyc makes a list of it. That is slower for many items,
  and wrong for endless ones, or if making an item has an effect.
- A field `object` or `memoryview` of a NamedTuple or a dataclass. mypyc does not find the name when it makes the class.
- A class in a module that is not compiled whose base is compiled: it cannot be made at run time.
- A compiled class with `__call__` whose compiled base has none. Objects that can be called have one more field, before
  the others. The base does not know it, and writes its own fields there: a call jumps to nowhere.
- `functools.cached_property`. mypyc makes an ordinary property of it, which computes its value each time.
- `await` or `yield` while an exception is handled: in `except`, in `finally`, or in the exit of `async with`. In Python
  each coroutine has its own current exception; a compiled one has that of the thread. It leaves its own there when
  it waits, and finds another one, or none, when it goes on. A `raise` then raises that. If there was none, it
  overwrites the type of None, and the interpreter crashes later, somewhere else.
- A test that replaces a method or function of a compiled module, and is not marked `plain`: the replacement is not
  called, or cannot be set.
"""

import ast
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mypy import build, nodes, types
from mypy.main import process_options

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
_VALUES = {"builtins.int", "builtins.float", "builtins.str", "builtins.bytes", "builtins.complex"}
_CONSUMERS = frozenset(
    {"all", "any", "bytes", "dict", "enumerate", "extend", "frozenset", "fromkeys", "join", "list", "max", "min"}
    | {"next", "set", "sorted", "sum", "tuple", "update"}
)
"""Calls that take all items at once, or for which it makes no difference."""
_NOT_FOUND = {"object", "memoryview"}


class Finding(NamedTuple):
    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


# Identity, by the types that mypy finds


def _is_singleton(expression: nodes.Expression) -> bool:
    return isinstance(expression, nodes.NameExpr) and expression.name in ("None", "True", "False")


def _kind(found: types.Type | None) -> str | None:
    """The name of a type whose values have no identity when they are compiled."""
    if found is None:
        return None
    found = types.get_proper_type(found)
    if isinstance(found, types.UnionType):
        return next((kind for item in found.items if (kind := _kind(item)) is not None), None)
    if isinstance(found, types.LiteralType):
        found = found.fallback
    if isinstance(found, types.TupleType) or (
        isinstance(found, types.Instance) and found.type.has_base("builtins.tuple")
    ):
        return "a tuple"
    if isinstance(found, types.Instance) and not found.type.is_enum and found.type.fullname in _VALUES:
        return found.type.name
    return None


def identities(paths: list[str]) -> list[Finding]:
    """Identity tests of values, in source files."""
    sources, options = process_options(["--config-file", str(ROOT / "pyproject.toml"), *paths])
    options.incremental = False
    options.export_types = True
    options.preserve_asts = True
    result = build.build(sources, options)
    # mypy's result does not say which file an expression is in, so they are found by their place.
    tests: dict[tuple[int, int, int | None, int | None], nodes.ComparisonExpr] = {}
    for expression in result.types:
        if isinstance(expression, nodes.ComparisonExpr) and not {"is", "is not"}.isdisjoint(expression.operators):
            tests[expression.line, expression.column, expression.end_line, expression.end_column] = expression
    found = []
    for path in paths:
        for node in ast.walk(ast.parse(Path(path).read_text())):
            if isinstance(node, ast.Compare):
                place = node.lineno, node.col_offset, node.end_lineno, node.end_col_offset
                if place in tests:
                    name = os.path.relpath(path, ROOT)
                    found += [Finding(name, node.lineno, text) for text in _identity_tests(tests[place], result.types)]
    return found


def _identity_tests(comparison: nodes.ComparisonExpr, known: dict[nodes.Expression, types.Type]) -> Iterator[str]:
    for operator, left, right in comparison.pairwise():
        # None, True and False are one object each, always.
        if operator in ("is", "is not") and not _is_singleton(left) and not _is_singleton(right):
            kind = _kind(known.get(left)) or _kind(known.get(right))
            if kind is not None:
                yield f"`{operator}` on {kind}: compare with == or !="


# The others, by the syntax alone


def generators(path: str, tree: ast.Module) -> Iterator[Finding]:
    """Generator expressions that are kept or passed on."""
    consumed = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in _CONSUMERS:
                consumed.update(node.args)
        elif isinstance(node, ast.For | ast.comprehension):
            consumed.add(node.iter)
        elif isinstance(node, ast.Starred | ast.Assign) and isinstance(node.value, ast.GeneratorExp):
            is_unpacked = isinstance(node, ast.Starred) or isinstance(node.targets[0], ast.Tuple)
            if is_unpacked:
                consumed.add(node.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.GeneratorExp) and node not in consumed:
            yield Finding(path, node.lineno, "a generator expression that is kept: make a list of it, or write a loop")


def fields(path: str, tree: ast.Module) -> Iterator[Finding]:
    """Fields whose type mypyc does not find when it makes the class."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        is_tuple = any(ast.unparse(base) == "NamedTuple" for base in node.bases)
        if is_tuple or any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
            for statement in node.body:
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.annotation, ast.Name):
                    name = statement.annotation.id
                    if name in _NOT_FOUND:
                        advice = f'"{name}"' if is_tuple else f"{name} | None"
                        yield Finding(path, statement.lineno, f"a field of type {name}: write {advice}")


def cached_properties(path: str, tree: ast.Module) -> Iterator[Finding]:
    """Properties that are computed each time when they are compiled."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                if ast.unparse(decorator).rpartition(".")[2] == "cached_property":
                    text = f"the cached_property {node.name} would not be cached: keep its value in an attribute"
                    yield Finding(path, node.lineno, text)


_EXITS_WITHOUT_WAITING = {"asyncio.timeout", "asyncio.timeout_at", "asyncio.Lock", "asyncio.Semaphore"}


def suspensions(path: str, tree: ast.Module) -> Iterator[Finding]:
    """Places where a coroutine or generator may wait while it handles an exception."""
    harmless = _EXITS_WITHOUT_WAITING | {
        ast.unparse(target)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func) in _EXITS_WITHOUT_WAITING
        for target in node.targets
    }

    def look(node: ast.AST, is_handling: bool) -> Iterator[Finding]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            is_handling = False
        elif is_handling and isinstance(node, ast.Await | ast.Yield | ast.YieldFrom | ast.AsyncFor | ast.AsyncWith):
            yield Finding(path, node.lineno, "waits while an exception is handled: leave `except` or `finally` first")
        elif isinstance(node, ast.AsyncWith):
            for item in node.items:
                manager = item.context_expr.func if isinstance(item.context_expr, ast.Call) else item.context_expr
                if ast.unparse(manager) not in harmless:
                    text = f"the exit of {ast.unparse(manager)} may wait while an exception is handled: use `try`"
                    yield Finding(path, node.lineno, text)
        handlers = [*node.handlers, *node.finalbody] if isinstance(node, ast.Try) else []
        for child in ast.iter_child_nodes(node):
            yield from look(child, is_handling or child in handlers)

    yield from look(tree, False)


def by_syntax(path: str, tree: ast.Module) -> list[Finding]:
    """What is found in a compiled module without types."""
    checks = (generators, fields, cached_properties, suspensions)
    return [finding for check_one in checks for finding in check_one(path, tree)]


def subclasses(classes: dict[str, set[str]], path: str, tree: ast.Module) -> Iterator[Finding]:
    """Classes of a module that is not compiled, of bases that are; `classes` has those of each compiled module."""
    compiled = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in classes
        for alias in node.names
        if alias.name in classes[node.module]
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for base in node.bases:
                if ast.unparse(base).partition("[")[0] in compiled:
                    text = f"{node.name} has the compiled base {ast.unparse(base)}: compile this module too"
                    yield Finding(path, node.lineno, text)


def callables(modules: dict[str, ast.Module]) -> Iterator[Finding]:
    """Compiled classes that can be called, of a compiled base that cannot."""
    classes = {
        (module, node.name): node
        for module, tree in modules.items()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name in _classes(tree)
    }
    imported = {
        (module, alias.asname or alias.name): (node.module, alias.name)
        for module, tree in modules.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }

    def bases(module: str, node: ast.ClassDef) -> Iterator[tuple[str, str]]:
        for base in node.bases:
            name = ast.unparse(base).partition("[")[0]
            found = imported.get((module, name), (module, name))
            if found in classes:
                yield found

    def can_be_called(key: tuple[str, str]) -> bool:
        own = any(isinstance(each, ast.FunctionDef) and each.name == "__call__" for each in classes[key].body)
        return own or any(can_be_called(base) for base in bases(key[0], classes[key]))

    for (module, name), node in classes.items():
        if can_be_called((module, name)):
            for base in bases(module, node):
                if not can_be_called(base):
                    text = f"{name} has __call__, and its base {base[1]} has none: give it a method with a name"
                    yield Finding(module.replace(".", "/") + ".py", node.lineno, text)


_REPLACING = {"setattr", "object"}
"""The last words of `monkeypatch.setattr` and `mock.patch.object`."""


def replacements(modules: dict[str, ast.Module], path: str, tree: ast.Module) -> Iterator[Finding]:
    """Tests that replace what `modules` define, and are not marked `plain`. Constants, and names that a module only
    imports from one that is not compiled, can be replaced."""
    known: dict[str, str] = {}  # a name in this file, and the module or class that it stands for
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if f"{node.module}.{alias.name}" in modules or node.module in modules:
                    known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    if any(isinstance(node, ast.Assign) and _is_plain(node) for node in tree.body):
        return
    for test in tree.body:
        if not isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef) or not test.name.startswith("test_"):
            continue
        if any(_is_plain(decorator) for decorator in test.decorator_list):
            continue
        for node in ast.walk(test):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _REPLACING:
                replaced = _replaced(known, modules, node.args)
                if replaced is not None:
                    text = f"{test.name} replaces {replaced}, which is compiled: mark the test `plain`"
                    yield Finding(path, node.lineno, text)


def _is_plain(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Attribute) and ast.unparse(part) == "pytest.mark.plain" for part in ast.walk(node))


def _replaced(known: dict[str, str], modules: dict[str, ast.Module], arguments: list[ast.expr]) -> str | None:
    """The name of a compiled function or method that such a call replaces."""
    match arguments:
        case [ast.Constant(value=str(dotted)), *_]:
            owner, _, name = dotted.rpartition(".")
        case [ast.Name(id=local), ast.Constant(value=str(name)), *_] if local in known:
            owner = known[local]
        case _:
            return None
    if owner in modules:
        functions = {node.name for node in modules[owner].body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        return f"{owner}.{name}" if name in functions else None
    module, _, class_name = owner.rpartition(".")
    is_class = module in modules and class_name in _classes(modules[module])
    return f"{class_name}.{name}" if is_class and not name.isupper() else None


def _classes(tree: ast.Module) -> set[str]:
    """Classes that are compiled to native ones; exceptions, protocols, enums and named tuples stay open."""
    return {
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        and not any(ast.unparse(base).partition("[")[0] in _OPEN_BASES for base in node.bases)
    }


_OPEN_BASES = {"Protocol", "Enum", "IntEnum", "NamedTuple", "Exception", "TypedDict"}


def check(modules: list[str]) -> list[Finding]:
    """Everything that is found in the compiled modules, and in others about them."""
    paths = {SOURCE.joinpath(*name.split(".")).with_suffix(".py"): name for name in modules}
    trees = {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}
    classes = {name: _classes(trees[path]) for path, name in paths.items()}
    found = identities([str(path) for path in paths])
    for path, tree in trees.items():
        name = str(path.relative_to(ROOT))
        if path in paths:
            found += by_syntax(name, tree)
        else:
            found += subclasses(classes, name, tree)
    compiled = {name: trees[path] for path, name in paths.items()}
    found += callables(compiled)
    for path in sorted((ROOT / "tests").rglob("*.py")):
        found += replacements(compiled, str(path.relative_to(ROOT)), ast.parse(path.read_text()))
    return sorted(found)


def main(paths: list[str]) -> int:
    if paths:
        found = identities(paths)
        for path in paths:
            tree = ast.parse(Path(path).read_text())
            found += by_syntax(path, tree)
    else:
        from millstream.compilation import MODULES

        found = check(list(MODULES))
    for finding in found:
        print(finding)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
