"""The tree of an Avro schema for the compiled reader (`columns.py`).

It has unions with null only, and no items without bytes: a few bytes could hold any number of them.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from millstream.schemas.columns import MAX_NODES, NOT_A_UNION, NUMBERS, Names, Node, UnsupportedError

_PLAIN = ("boolean", "int", "long", "float", "double", "bytes", "string")
_MAX_DIGITS = 38


def tree_of(parsed: Any, kept: frozenset[str] | None) -> tuple[list[Node], dict[int, Names]] | None:
    """The nodes of a schema that fastavro has parsed, and the names of its enums; None if it is not for the compiled
    reader. `kept`: the names of the columns that are needed; None: all."""
    if not isinstance(parsed, dict) or parsed.get("type") != "record":
        return None
    builder = _Builder(parsed.get("__named_schemas", {}))
    try:
        builder.record(parsed, True, NOT_A_UNION, kept)
    except UnsupportedError:
        return None
    return builder.tree, builder.names


class _Builder:
    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self.tree: list[Node] = []
        self.names: dict[int, Names] = {}

    def _open(self) -> int:
        if len(self.tree) >= MAX_NODES:
            raise UnsupportedError
        self.tree.append(Node(0))
        return len(self.tree) - 1

    def _close(self, at: int, name: str, null_branch: int, is_kept: bool, size: int = 0, children: int = 0) -> None:
        self.tree[at] = Node(NUMBERS[name], null_branch, is_kept, size, children, len(self.tree))

    def record(self, schema: Any, is_kept: bool, null_branch: int, kept: frozenset[str] | None = None) -> None:
        at = self._open()
        if not schema["fields"]:
            raise UnsupportedError
        for field in schema["fields"]:
            self.value(field["type"], is_kept and (kept is None or field["name"] in kept))
        self._close(at, "record", null_branch, is_kept, children=len(schema["fields"]))

    def value(self, schema: Any, is_kept: bool, null_branch: int = NOT_A_UNION) -> None:
        if isinstance(schema, list):
            if null_branch != NOT_A_UNION or len(schema) != 2 or schema.count("null") != 1:
                raise UnsupportedError
            null = schema.index("null")
            self.value(schema[1 - null], is_kept, null)
        elif isinstance(schema, dict):
            self._complex(schema, is_kept, null_branch)
        elif schema in _PLAIN:
            self._close(self._open(), schema, null_branch, is_kept)
        elif schema in self._named:
            self._complex(self._named[schema], is_kept, null_branch)
        else:
            raise UnsupportedError  # null, among others

    def _complex(self, schema: Mapping[str, Any], is_kept: bool, null_branch: int) -> None:
        name = schema["type"]
        if name in ("record", "error"):
            self.record(schema, is_kept, null_branch)
        elif name == "array":
            at = self._open()
            self.value(schema["items"], is_kept)
            self._close(at, "array", null_branch, is_kept, children=1)
        elif name == "map":
            at = self._open()
            self.value("string", is_kept)
            self.value(schema["values"], is_kept)
            self._close(at, "map", null_branch, is_kept, children=2)
        elif name == "enum":
            at = self._open()
            self.names[at] = pa.array(schema["symbols"], pa.string()).take
            self._close(at, "enum", null_branch, is_kept, len(schema["symbols"]))
        elif schema.get("logicalType") == "decimal":
            if schema["precision"] > _MAX_DIGITS:
                raise UnsupportedError
            kind = "fixed_decimal" if name == "fixed" else "decimal"
            self._close(self._open(), kind, null_branch, is_kept, schema.get("size", 0))
        elif name == "fixed":
            if not schema["size"]:
                raise UnsupportedError
            self._close(self._open(), "fixed", null_branch, is_kept, schema["size"])
        else:
            self.value(name, is_kept, null_branch)
