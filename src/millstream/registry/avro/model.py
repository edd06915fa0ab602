"""An Avro schema as a tree of types, built from its JSON and written as Java's Avro writes it.

A document is refused here only if no tree can be built. The other rules are in `schema`: other registries may have
stored schemas that break them, and records written with these are still read.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from millstream.schemas import avro_decimal

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NO_DEFAULT = object()
_NAMED = frozenset({"record", "error", "enum", "fixed"})
_TYPE_NAMES = PRIMITIVES | {"record", "enum", "fixed", "array", "map", "union"}
"""A name that is one of these is written in full, or it would be taken for the type."""
_MAX_SHOWN = 100


@dataclass(slots=True, eq=False)
class AvroType:
    kind: str
    """`int`, `record`, `union` …"""
    name: str = ""
    """In full, of a named type."""
    aliases: tuple[str, ...] = ()
    doc: str | None = None
    fields: list["AvroField"] = field(default_factory=list)
    symbols: tuple[str, ...] = ()
    default: Any = NO_DEFAULT
    """Of an enum."""
    size: int = 0
    items: "AvroType | None" = None
    """Of an array; of a map its values."""
    branches: list["AvroType"] = field(default_factory=list)
    properties: dict[str, Any] = field(default_factory=dict)
    """All else that was said of it, such as `logicalType`."""
    external: bool = False
    """Defined by another schema that this one refers to."""
    error: bool = False
    """A record that was written as `error`."""

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def label(self) -> str:
        """How messages call it."""
        return self.name or self.kind


@dataclass(slots=True, eq=False)
class AvroField:
    name: str
    type: AvroType
    doc: str | None = None
    default: Any = NO_DEFAULT
    order: str | None = None
    aliases: tuple[str, ...] = ()
    properties: dict[str, Any] = field(default_factory=dict)


class NotAvroError(ValueError):
    """The document is not an Avro schema; the text says why."""


def build(document: Any, names: dict[str, AvroType]) -> AvroType:
    """The tree of a document; `names` gains the types that it defines. NotAvroError if it is no schema."""
    return _build(document, "", names)


def _build(document: Any, namespace: str, names: dict[str, AvroType]) -> AvroType:
    if isinstance(document, str):
        return AvroType(document) if document in PRIMITIVES else _named(document, namespace, names)
    if isinstance(document, list):
        return AvroType("union", branches=[_build(branch, namespace, names) for branch in document])
    if not isinstance(document, dict):
        raise NotAvroError(f"{_shown(document)} is not a type: give a name, an object or a list")
    rest = dict(document)
    kind = _member(rest, "type", document)
    if not isinstance(kind, str):
        return _build(kind, namespace, names)  # {"type": {...}} says no more than what is inside
    if kind in _NAMED:
        return _build_named(kind, rest, namespace, names)
    if kind == "array":
        return AvroType(kind, items=_build(_member(rest, "items", document), namespace, names), properties=rest)
    if kind == "map":
        return AvroType(kind, items=_build(_member(rest, "values", document), namespace, names), properties=rest)
    if kind in PRIMITIVES:
        return AvroType(kind, properties=rest)
    return _named(kind, namespace, names)


def _named(name: str, namespace: str, names: dict[str, AvroType]) -> AvroType:
    for full in (_full_name(name, namespace), name):
        if full in names:
            return names[full]
    raise NotAvroError(
        f"type {name!r} is unknown{f' in namespace {namespace!r}' if namespace else ''}: "
        "define it before it is used, or add a reference to it"
    )


def _full_name(name: str, namespace: str | None) -> str:
    """A name that begins with its only dot has no namespace."""
    if "." in name:
        return name[1:] if name.rindex(".") == 0 else name
    return f"{namespace}.{name}" if namespace else name


def _build_named(kind: str, rest: dict[str, Any], namespace: str, names: dict[str, AvroType]) -> AvroType:
    document = dict(rest)
    given, own_namespace = _member(rest, "name", document), rest.pop("namespace", None)
    if not isinstance(given, str) or not isinstance(own_namespace, str | None):
        raise NotAvroError(f"name and namespace must be strings in {_shown(document)}")
    full = _full_name(given, namespace if own_namespace is None else own_namespace)
    if full in names:
        raise NotAvroError(f"type {full!r} is defined twice: define it once, and use its name after that")
    inner = full.rpartition(".")[0]
    aliases = tuple(dict.fromkeys(_full_name(alias, inner) for alias in _names(rest, "aliases")))
    node = AvroType("record" if kind == "error" else kind, full, aliases, _doc(rest), error=kind == "error")
    names[full] = node
    if kind == "enum":
        if "symbols" not in rest:
            raise NotAvroError(f"'symbols' is missing in {_shown(document)}")
        node.symbols = _names(rest, "symbols")
        node.default = rest.pop("default", NO_DEFAULT)
    elif kind == "fixed":
        node.size = _member(rest, "size", document)
    else:
        rows = _member(rest, "fields", document)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise NotAvroError(f"'fields' must be a list of objects in {_shown(document)}")
        node.fields = [_build_field(row, inner, names) for row in rows]
    node.properties = rest
    return node


def _build_field(row: dict[str, Any], namespace: str, names: dict[str, AvroType]) -> AvroField:
    rest = dict(row)
    name = _member(rest, "name", row)
    if not isinstance(name, str):
        raise NotAvroError(f"the name of a field must be a string in {_shown(row)}")
    kind = _build(_member(rest, "type", row), namespace, names)
    default, order = rest.pop("default", NO_DEFAULT), rest.pop("order", None)
    if "order" in row:
        order = order.lower() if isinstance(order, str) else str(order)  # Java takes any case
    aliases = tuple(dict.fromkeys(_names(rest, "aliases")))
    return AvroField(name, kind, _doc(rest), default, order, aliases, rest)


def _member(rest: dict[str, Any], name: str, document: dict[str, Any]) -> Any:
    if name not in rest:
        raise NotAvroError(f"{name!r} is missing in {_shown(document)}")
    return rest.pop(name)


def _doc(rest: dict[str, Any]) -> str | None:
    """Java leaves out what is no text."""
    doc = rest.pop("doc", None)
    return doc if isinstance(doc, str) else None


def _names(rest: dict[str, Any], what: str) -> tuple[str, ...]:
    given = rest.pop(what, ())
    if not isinstance(given, (list, tuple)) or not all(isinstance(name, str) for name in given):
        raise NotAvroError(f"{what!r} must be a list of names")
    return tuple(given)


def _shown(document: Any) -> str:
    text = json.dumps(document, ensure_ascii=False)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


class AvroWriter:
    """Writes a tree as JSON without spaces. Each named type is spelt out once, where it is first met."""

    def __init__(
        self, *, sort_properties: bool = False, inline_external: bool = False, valid_decimals: bool = False
    ) -> None:
        """`inline_external`: types of other schemas are spelt out as well, so that the text stands alone.
        `valid_decimals`: decimals that do not count are left out, for libraries that refuse them."""
        self._sort = sort_properties
        self._valid_decimals = valid_decimals
        self._inline = inline_external
        self._seen: set[str] = set()

    def text(self, node: AvroType) -> str:
        return json.dumps(self._type(node, ""), separators=(",", ":"), ensure_ascii=False)

    def _type(self, node: AvroType, namespace: str) -> Any:
        if node.kind == "union":
            return [self._type(branch, namespace) for branch in node.branches]
        if node.name:
            return self._named(node, namespace)
        if node.items is not None:
            inner = "items" if node.kind == "array" else "values"
            return {"type": node.kind, inner: self._type(node.items, namespace)} | self._others(node.properties)
        if node.properties:
            return self._decimal({"type": node.kind} | self._others(node.properties))
        return node.kind

    def _decimal(self, document: dict[str, Any]) -> dict[str, Any]:
        if self._valid_decimals and document.get("logicalType") == "decimal" and not avro_decimal.is_valid(document):
            del document["logicalType"]
        return document

    def _named(self, node: AvroType, namespace: str) -> Any:
        own = node.name.rpartition(".")[0]
        if node.name in self._seen or (node.external and not self._inline):
            return node.short_name if own == namespace and node.short_name not in _TYPE_NAMES else node.name
        self._seen.add(node.name)
        out: dict[str, Any] = {"type": "error" if node.error else node.kind, "name": node.short_name}
        if own != namespace:
            out["namespace"] = own
        if node.doc is not None:
            out["doc"] = node.doc
        if node.kind == "enum":
            out["symbols"] = list(node.symbols)
            if node.default is not NO_DEFAULT:
                out["default"] = node.default
        elif node.kind == "fixed":
            out["size"] = node.size
        else:
            out["fields"] = [self._field(row, own) for row in node.fields]
        out |= self._others(node.properties)
        if node.aliases:
            out["aliases"] = self._aliases(node.aliases, own)
        return self._decimal(out)

    def _field(self, row: AvroField, namespace: str) -> dict[str, Any]:
        out: dict[str, Any] = {"name": row.name, "type": self._type(row.type, namespace)}
        if row.doc is not None:
            out["doc"] = row.doc
        if row.default is not NO_DEFAULT:
            out["default"] = row.default
        if row.order is not None and row.order != "ascending":
            out["order"] = row.order
        if row.aliases:
            out["aliases"] = list(row.aliases)
        return out | self._others(row.properties)

    def _others(self, properties: dict[str, Any]) -> dict[str, Any]:
        return dict(sorted(properties.items())) if self._sort else properties

    @staticmethod
    def _aliases(aliases: Sequence[str], namespace: str) -> list[str]:
        prefix = f"{namespace}."
        return [alias.removeprefix(prefix) if "." not in alias.removeprefix(prefix) else alias for alias in aliases]
