"""Many records at once (Avro, Protobuf, JSON): the tree of a schema for the compiled reader, and its columns as Arrow
arrays.

Schemas are turned into trees in `avro_columns.py`, `protobuf_columns.py` and `json_columns.py`. What the compiled
reader (`_columns.pyx`) cannot read is read by the format in another way, also if there was no compiler.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

import pyarrow as pa

from millstream.compilation import REFUSE, wanted

KINDS = ("boolean", "int", "long", "float", "double", "bytes", "string", "enum", "fixed", "decimal", "fixed_decimal",
         "record", "array", "map", "timestamp")  # fmt: skip
NUMBERS = {name: number for number, name in enumerate(KINDS)}
NOT_A_UNION = -1
MAX_NODES = 1000


class Form(IntEnum):
    """The bytes of a record."""

    AVRO = 0
    PROTOBUF = 1
    JSON = 2


class Need(IntEnum):
    """What a JSON object must have. An object without it is not read by the compiled reader."""

    NOTHING = 0
    PRESENT = 1
    NOT_NULL = 2
    """Also of the element of an array."""


class Node(NamedTuple):
    """A value in the tree of a schema. Its children follow it."""

    kind: int
    """The place in `KINDS`."""
    null_branch: int = NOT_A_UNION
    """Avro: of a union with null, the number of null."""
    is_kept: bool = True
    """Whether it becomes a column. Others are read past."""
    size: int = 0
    """The bytes of a fixed, the number of symbols of an enum."""
    children: int = 0
    after: int = 0
    """The node behind its tree."""
    field_number: int = 0
    """Protobuf: of the field; also its type, as descriptors number it, and whether it can be unset."""
    field_type: int = 0
    has_presence: bool = False
    name: bytes = b""
    """JSON: of the field."""
    need: int = Need.NOTHING


class UnsupportedError(Exception):
    """The schema has something that the compiled reader does not read."""


Names = Callable[[pa.Array], pa.Array]
"""The numbers of an enum as names."""


def is_compiled() -> bool:
    if wanted() == REFUSE:
        return False
    try:
        from millstream.schemas import _columns  # noqa: F401
    except ImportError:
        return False
    return True


class Columns:
    """Reads arrays of records of one schema. Not thread safe."""

    def __init__(
        self,
        tree: Sequence[Node],
        names: Mapping[int, Names],
        kind: pa.StructType,
        form: Form,
        *,
        is_closed: bool = False,
    ) -> None:
        """`names`: of each enum, by its node; `kind`: the columns that are kept, with Avro's times as numbers, and
        JSON's as texts. `is_closed`: JSON objects with other fields are not read."""
        from millstream.schemas._columns import ColumnReader

        self._tree = list(tree)
        self._names = names
        self._kind = kind
        self._reader = ColumnReader(self._tree, form, is_closed)

    def decode(self, values: pa.Array, prefixes: list[bytes] | None) -> tuple[pa.Array, list[int]] | None:
        """The rows, and the places of those that could not be read, which are null. `prefixes`: what records of this
        schema begin with; None if they have no prefix. None if a decimal has too many digits."""
        unread = self._reader.decode(values, prefixes)
        try:
            return self._array(0, self._kind), unread
        except pa.ArrowInvalid:
            return None

    def _array(self, at: int, kind: pa.DataType) -> pa.Array:
        rows, nulls, validity, offsets, content = self._reader.column(at)
        node = self._tree[at]
        name = KINDS[node.kind]
        if name == "record":
            kept = [child for child in self._children(at) if self._tree[child].is_kept]
            children = [self._array(child, field.type) for child, field in zip(kept, kind, strict=True)]
            return pa.Array.from_buffers(kind, rows, [validity], nulls, children=children)
        if name == "array":
            items = self._array(at + 1, kind.value_type)
            return pa.Array.from_buffers(kind, rows, [validity, offsets], nulls, children=[items])
        if name == "map":
            keys = self._array(at + 1, kind.key_type)
            items = self._array(self._tree[at + 1].after, kind.item_type)
            entries = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
            return pa.Array.from_buffers(kind, rows, [validity, offsets], nulls, children=[entries])
        if name == "enum":
            return self._names[at](pa.Array.from_buffers(pa.int32(), rows, [validity, content], nulls))
        if name in ("bytes", "string", "fixed"):
            return pa.Array.from_buffers(kind, rows, [validity, offsets, content], nulls)
        found = pa.Array.from_buffers(kind, rows, [validity, content], nulls)
        if pa.types.is_decimal(kind):
            found.validate(full=True)
        return found

    def _children(self, at: int) -> list[int]:
        found, child = [], at + 1
        for _ in range(self._tree[at].children):
            found.append(child)
            child = self._tree[child].after
        return found


Decode = Callable[[pa.Array], tuple[pa.Array, pa.Array]]


def merged(values: pa.Array, rows: pa.Array, unread: list[int], decode: Decode) -> tuple[pa.Array, pa.Array]:
    """The rows and errors of all values, where `decode` reads those that could not be read together."""
    none = pa.nulls(len(values), pa.string())
    if not unread:
        return rows, none
    others, reasons = decode(values.take(pa.array(unread, pa.int64())))
    order = order_of(len(values), unread)
    return pa.concat_arrays([rows, others]).take(order), pa.concat_arrays([none, reasons]).take(order)


def order_of(count: int, unread: list[int]) -> pa.Array:
    """The places of `count` rows, where those that were not read stand after all others."""
    places = list(range(count))
    for number, place in enumerate(unread):
        places[place] = count + number
    return pa.array(places, pa.int64())
