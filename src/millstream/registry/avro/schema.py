"""Avro schemas: parsing, the rules of the specification, and compatibility by schema resolution.

The rules are those of Avro 1.12 that Java's parser enforces. A schema that breaks one is not registered, because Java
consumers would fail on its id. One rule is stricter than Java's: a default must be a usable value. Java accepts enum
defaults that are not symbols, and texts of the wrong length for fixed, and fails when the default is needed.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from millstream.registry.avro.model import NO_DEFAULT, PRIMITIVES, AvroField, AvroType, AvroWriter, NotAvroError, build
from millstream.registry.formats import TOO_COMPLEX, Budget, Dependency, InvalidSchemaError, Problem, TooComplexError

_PROMOTIONS = {
    "int": frozenset({"long", "float", "double"}),
    "long": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}
"""Data written as the key can be read as any of the values."""


def problems_reading(reader: AvroType, writer: AvroType) -> list[Problem]:
    try:
        return list(_Comparison().compare(reader, writer, ""))
    except TooComplexError:
        return [TOO_COMPLEX]


class _Comparison:
    def __init__(self) -> None:
        self._under_way: set[tuple[int, int]] = set()
        """Pairs of named types that are being compared: types may contain themselves."""
        self._budget = Budget()

    def compare(self, reader: AvroType, writer: AvroType, path: str) -> Iterator[Problem]:
        self._budget.step()
        if writer.kind == "union":
            for index, branch in enumerate(writer.branches):
                if reader.kind == "union" and not self._matching_branch(reader, branch):
                    yield Problem(
                        "MISSING_UNION_BRANCH",
                        path or "/",
                        f"the reader's union has no branch for {branch.label}, which may have been written: "
                        f"add {branch.label} to the union",
                    )
                elif reader.kind != "union":
                    yield from self.compare(reader, branch, f"{path}/{index}" if len(writer.branches) > 1 else path)
        elif reader.kind == "union":
            if not self._matching_branch(reader, writer):
                yield Problem(
                    "MISSING_UNION_BRANCH",
                    path or "/",
                    f"no branch of the reader's union takes {writer.label}: add {writer.label} to the union",
                )
        elif reader.kind != writer.kind:
            if reader.kind not in _PROMOTIONS.get(writer.kind, ()):
                yield Problem(
                    "TYPE_MISMATCH",
                    path or "/",
                    f"the reader wants {reader.label}, the writer wrote {writer.label}: "
                    f"keep {writer.label}, or read a union of both",
                )
        else:
            yield from self._same_kind(reader, writer, path)

    def _same_kind(self, reader: AvroType, writer: AvroType, path: str) -> Iterator[Problem]:
        if reader.items is not None and writer.items is not None:
            yield from self.compare(
                reader.items, writer.items, f"{path}/{'items' if reader.kind == 'array' else 'values'}"
            )
        if not reader.name:
            return
        if (id(reader), id(writer)) in self._under_way:
            return
        if not _same_name(reader, writer):
            yield Problem(
                "NAME_MISMATCH",
                f"{path}/name",
                f"the reader's {reader.kind} is {reader.name}, the writer's is {writer.name}: "
                f"keep the name, or add {writer.name!r} to the aliases of {reader.name}",
            )
        self._under_way.add((id(reader), id(writer)))
        if reader.kind == "record":
            for index, row in enumerate(reader.fields):
                yield from self._field(row, writer, f"{path}/fields/{index}")
        elif reader.kind == "enum":
            missing = [symbol for symbol in writer.symbols if symbol not in reader.symbols]
            if missing and reader.default is NO_DEFAULT:
                yield Problem(
                    "MISSING_ENUM_SYMBOLS",
                    f"{path}/symbols",
                    f"the reader's enum {reader.name} lacks {', '.join(missing)}: add them, or give the enum a default",
                )
        elif reader.size != writer.size:
            yield Problem(
                "FIXED_SIZE_MISMATCH",
                f"{path}/size",
                f"{reader.name} has {reader.size} bytes for the reader and {writer.size} for the writer: "
                "keep the size, or add a type with another name",
            )
        self._under_way.discard((id(reader), id(writer)))

    def _field(self, row: AvroField, writer: AvroType, path: str) -> Iterator[Problem]:
        written = _field_of(row, writer)
        if written is not None:
            yield from self.compare(row.type, written.type, f"{path}/type")
        elif row.default is NO_DEFAULT:
            yield Problem(
                "READER_FIELD_MISSING_DEFAULT_VALUE",
                path,
                f"field {row.name!r} was not written and has no default: give it one",
            )

    def _matching_branch(self, union: AvroType, written: AvroType) -> bool:
        return any(not list(self.compare(branch, written, "")) for branch in union.branches)


def _same_name(reader: AvroType, writer: AvroType) -> bool:
    """Names match without their namespace, as Avro's specification has it; or by an alias of the reader."""
    return reader.short_name == writer.short_name or writer.name in reader.aliases


def _field_of(row: AvroField, writer: AvroType) -> AvroField | None:
    by_name = {written.name: written for written in writer.fields}
    return next((by_name[name] for name in (row.name, *row.aliases) if name in by_name), None)


_ORDERS = frozenset({"ascending", "descending", "ignore"})
_MAX_SIZE = 2**31 - 9
"""Of fixed: the longest array that Java makes."""
_WHOLE_NUMBERS = {"int": 2**31, "long": 2**63}
_NO_NUMBERS = ("NaN", "Infinity", "-Infinity")


def rule_violations(root: AvroType) -> Iterator[str]:
    """What is wrong with a schema: where, and what to do. Types of other schemas were checked when they came."""
    return _Walk().type(root, "/")


class _Walk:
    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._open: list[AvroType] = []
        """The records around: a default cannot have their fields, which are not all known yet."""

    def type(self, node: AvroType, path: str) -> Iterator[str]:
        if node.external or id(node) in self._seen:
            around = self._open[-1].name.rpartition(".")[0] if self._open else ""
            if around and "." not in node.name:
                yield (
                    f"{path}: type {node.name!r} has no namespace, so it cannot be used within namespace {around!r}: "
                    "give it a namespace"
                )
            return
        if node.kind in ("record", "enum", "fixed"):
            self._seen.add(id(node))
            yield from _names(node, path)
        if node.kind == "union":
            yield from self._union(node, path)
        elif node.kind == "record":
            yield from self._record(node, path)
        elif node.kind == "enum":
            yield from _enum(node, path)
        elif node.kind == "fixed":
            yield from _fixed(node, path)
        if node.items is not None:
            yield from self.type(node.items, _below(path, "items" if node.kind == "array" else "values"))

    def _union(self, node: AvroType, path: str) -> Iterator[str]:
        for index, branch in enumerate(node.branches):
            if branch.kind == "union":
                yield f"{path}: branch {index} of the union is itself a union: put its branches into the outer one"
            yield from self.type(branch, _below(path, index))
        for twice in _twice(branch.label for branch in node.branches if branch.kind != "union"):
            yield f"{path}: the union has {twice} twice: a union may have each unnamed type and each name once"

    def _record(self, node: AvroType, path: str) -> Iterator[str]:
        for twice in _twice(row.name for row in node.fields):
            yield f"{path}: record {node.name} has two fields named {twice!r}: give one of them another name"
        self._open.append(node)
        for row in node.fields:
            yield from self._field(row, _below(path, row.name))
        self._open.pop()

    def _field(self, row: AvroField, path: str) -> Iterator[str]:
        yield from _name(row.name, f"{path}: field name")
        if row.order is not None and row.order not in _ORDERS:
            yield f"{path}: order is {row.order!r}: it must be one of {', '.join(sorted(_ORDERS))}"
        yield from self.type(row.type, path)
        if row.type.kind in ("float", "double") and row.default in _NO_NUMBERS:
            return  # only so, not within unions and lists
        if row.default is not NO_DEFAULT and not self._fits(row.type, row.default):
            yield f"{path}: the default {row.default!r} is not a value of type {row.type.label}"

    def _fits(self, node: AvroType, value: Any) -> bool:
        match node.kind:
            case "null":
                return value is None
            case "boolean":
                return isinstance(value, bool)
            case "int" | "long":
                limit = _WHOLE_NUMBERS[node.kind]
                return type(value) is int and -limit <= value < limit
            case "float" | "double":
                return type(value) in (int, float)
            case "string":
                return isinstance(value, str)
            case "bytes":
                return _is_bytes(value)
            case "fixed":
                return _is_bytes(value) and len(value) == node.size
            case "enum":
                return value in node.symbols
            case "array":
                assert node.items is not None
                return isinstance(value, list) and all(self._fits(node.items, each) for each in value)
            case "map":
                assert node.items is not None
                return isinstance(value, dict) and all(self._fits(node.items, each) for each in value.values())
            case "union":
                return any(self._fits(branch, value) for branch in node.branches)
        if not isinstance(value, dict) or node in self._open:
            return False
        values = [(row.type, value.get(row.name, row.default)) for row in node.fields]
        return all(each is not NO_DEFAULT and self._fits(kind, each) for kind, each in values)


def _names(node: AvroType, path: str) -> Iterator[str]:
    if node.name in PRIMITIVES:
        yield f"{path}: a {node.kind} cannot be named {node.name!r}, which is a primitive type"
    namespace, dot, short = node.name.rpartition(".")
    yield from _name(short, f"{path}: name")
    for part in namespace.split(".") if dot else ():
        yield from _name(part, f"{path}: a part of namespace {namespace!r}")
    for alias in node.aliases:  # of which Java does not check the namespace
        yield from _name(alias.rpartition(".")[2], f"{path}: alias")


def _name(name: str, what: str) -> Iterator[str]:
    if not name:
        yield f"{what} is empty"
    elif not (_is_letter(name[0]) and all(_is_letter(each) or each.isdecimal() for each in name)):
        yield f"{what} {name!r} is illegal: use letters, digits and _, and no digit at the start"


def _is_letter(character: str) -> bool:
    """As Java sees it: letters of all scripts, one UTF-16 unit each."""
    return character == "_" or (character.isalpha() and ord(character) < 0x10000)


def _enum(node: AvroType, path: str) -> Iterator[str]:
    for symbol in node.symbols:
        yield from _name(symbol, f"{path}: symbol")
    for twice in _twice(node.symbols):
        yield f"{path}: enum {node.name} has the symbol {twice!r} twice"
    if node.default is not NO_DEFAULT and node.default not in node.symbols:
        yield f"{path}: the default {node.default!r} of enum {node.name} is not one of its symbols"


def _fixed(node: AvroType, path: str) -> Iterator[str]:
    if type(node.size) is not int or not 0 <= node.size <= _MAX_SIZE:
        yield f"{path}: the size of fixed {node.name} is {node.size!r}: it must be an integer from 0 to {_MAX_SIZE}"


def _is_bytes(value: Any) -> bool:
    """Bytes are texts with one character per byte."""
    return isinstance(value, str) and all(ord(character) < 256 for character in value)


def _twice(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _below(path: str, name: object) -> str:
    return f"{path.rstrip('/')}/{name}"


RESOLVED = "resolved"


class AvroSchema:
    def __init__(self, root: AvroType) -> None:
        self.root = root

    @property
    def canonical(self) -> str:
        return AvroWriter().text(self.root)

    def normalized(self) -> str:
        return AvroWriter(sort_properties=True).text(self.root)

    def rendered(self, form: str) -> str:
        return AvroWriter(inline_external=form == RESOLVED).text(self.root)

    def rule_violation(self) -> str | None:
        return next(rule_violations(self.root), None)

    def for_fastavro(self) -> Any:
        """Alone, as a document that fastavro takes: it refuses decimals that the specification says to ignore."""
        return json.loads(AvroWriter(inline_external=True, valid_decimals=True).text(self.root))

    def problems_reading(self, writer: "AvroSchema") -> list[Problem]:
        return problems_reading(self.root, writer.root)


class AvroFormat:
    name = "AVRO"
    forms = frozenset({RESOLVED})

    def parse(self, text: str, dependencies: Sequence[Dependency]) -> AvroSchema:
        names: dict[str, AvroType] = {}
        for dependency in dependencies:
            _parse_one(dependency.text, names, f"reference {dependency.name!r}: ")
        for node in names.values():
            node.external = True
        return AvroSchema(_parse_one(text, names, ""))


def _parse_one(text: str, names: dict[str, AvroType], where: str) -> AvroType:
    document = load_json(text, where)
    try:
        return build(document, names)
    except NotAvroError as error:
        raise InvalidSchemaError(f"{where}{error}") from None
    except RecursionError:
        raise InvalidSchemaError(f"{where}nested too deeply") from None


def load_json(text: str, where: str = "") -> Any:
    """A bare type name such as `string` counts as JSON too, as in Java's parser."""
    try:
        return json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        if text.strip().isidentifier():
            return text.strip()
        raise InvalidSchemaError(f"{where}not JSON: {error.msg} at line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise InvalidSchemaError(f"{where}nested too deeply") from None
    except ValueError as error:
        raise InvalidSchemaError(f"{where}not JSON: {error}") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number in JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text} is too large")
    return number
