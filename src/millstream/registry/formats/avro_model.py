"""An Avro schema as a tree of types, from its JSON and back to the one way in which Java's Avro writes it.

fastavro judges whether the JSON is a schema; this room needs more than its answer: defaults, aliases, and who is who
among named types, also where a type contains itself.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NO_DEFAULT = object()
_NAMED = frozenset({"record", "error", "enum", "fixed"})


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


def build(document: Any, names: dict[str, AvroType]) -> AvroType:
    """The tree of a document that fastavro has found good; `names` gains the types that it defines."""
    return _build(document, "", names)


def _build(document: Any, namespace: str, names: dict[str, AvroType]) -> AvroType:
    if isinstance(document, str):
        return AvroType(document) if document in PRIMITIVES else _named(document, namespace, names)
    if isinstance(document, list):
        return AvroType("union", branches=[_build(branch, namespace, names) for branch in document])
    kind = document["type"]
    if not isinstance(kind, str):
        return _build(kind, namespace, names)  # {"type": {...}} says no more than what is inside
    rest = {name: value for name, value in document.items() if name != "type"}
    if kind in _NAMED:
        return _build_named(kind, rest, namespace, names)
    if kind == "array":
        return AvroType(kind, items=_build(rest.pop("items"), namespace, names), properties=rest)
    if kind == "map":
        return AvroType(kind, items=_build(rest.pop("values"), namespace, names), properties=rest)
    if kind in PRIMITIVES:
        return AvroType(kind, properties=rest)
    return _named(kind, namespace, names)


def _named(name: str, namespace: str, names: dict[str, AvroType]) -> AvroType:
    full = name if "." in name or not namespace else f"{namespace}.{name}"
    return names[full] if full in names else names[name]


def _build_named(kind: str, rest: dict[str, Any], namespace: str, names: dict[str, AvroType]) -> AvroType:
    given, own_namespace = rest.pop("name"), rest.pop("namespace", None)
    if "." in given:
        full = given
    else:
        space = namespace if own_namespace is None else own_namespace
        full = f"{space}.{given}" if space else given
    inner = full.rpartition(".")[0]
    aliases = tuple(alias if "." in alias or not inner else f"{inner}.{alias}" for alias in _names(rest, "aliases"))
    node = AvroType("record" if kind == "error" else kind, full, aliases, rest.pop("doc", None))
    names[full] = node
    if kind == "enum":
        node.symbols = _names(rest, "symbols")
        node.default = rest.pop("default", NO_DEFAULT)
    elif kind == "fixed":
        node.size = rest.pop("size")
    else:
        node.fields = [_build_field(row, inner, names) for row in rest.pop("fields")]
    node.properties = rest
    return node


def _build_field(row: dict[str, Any], namespace: str, names: dict[str, AvroType]) -> AvroField:
    rest = dict(row)
    return AvroField(
        rest.pop("name"),
        _build(rest.pop("type"), namespace, names),
        rest.pop("doc", None),
        rest.pop("default", NO_DEFAULT),
        rest.pop("order", None),
        _names(rest, "aliases"),
        rest,
    )


def _names(rest: dict[str, Any], what: str) -> tuple[str, ...]:
    """A list of names, which fastavro does not look into."""
    given = rest.pop(what, ())
    if not isinstance(given, (list, tuple)) or not all(isinstance(name, str) for name in given):
        raise ValueError(f"{what!r} must be a list of names")
    return tuple(given)


class AvroWriter:
    """Writes a tree as JSON without spaces. Each named type is spelt out once, where it is first met."""

    def __init__(self, *, sort_properties: bool = False, inline_external: bool = False) -> None:
        """`inline_external`: types of other schemas are spelt out as well, so that the text stands alone."""
        self._sort = sort_properties
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
            return {"type": node.kind} | self._others(node.properties)
        return node.kind

    def _named(self, node: AvroType, namespace: str) -> Any:
        own = node.name.rpartition(".")[0]
        if node.name in self._seen or (node.external and not self._inline):
            return node.short_name if own == namespace else node.name
        self._seen.add(node.name)
        out: dict[str, Any] = {"type": node.kind, "name": node.short_name}
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
        return out

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
