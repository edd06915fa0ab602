"""The tree of a Protobuf message for the compiled reader (`columns.py`).

It has no maps, wrappers, durations, oneofs of several fields, required fields and closed enums: they need rules that
the reader does not know.
"""

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from millstream.schemas import protobuf_schema as proto
from millstream.schemas.columns import MAX_NODES, NUMBERS, Names, Node, UnsupportedError

_F = FieldDescriptor
_KINDS = {
    _F.TYPE_DOUBLE: "double", _F.TYPE_FLOAT: "float", _F.TYPE_INT64: "long", _F.TYPE_SINT64: "long",
    _F.TYPE_SFIXED64: "long", _F.TYPE_INT32: "int", _F.TYPE_SINT32: "int", _F.TYPE_SFIXED32: "int",
    _F.TYPE_UINT32: "long", _F.TYPE_FIXED32: "long", _F.TYPE_UINT64: "decimal", _F.TYPE_FIXED64: "decimal",
    _F.TYPE_BOOL: "boolean", _F.TYPE_STRING: "string", _F.TYPE_BYTES: "bytes", _F.TYPE_ENUM: "enum",
}  # fmt: skip


def tree_of(message: Descriptor, kept: frozenset[str] | None) -> tuple[list[Node], dict[int, Names]] | None:
    """The nodes of a message, and the names of its enums; None if it is not for the compiled reader. `kept`: the names
    of the columns that are needed; None: all."""
    builder = _Builder()
    try:
        builder.message(message, 0, True, kept)
    except UnsupportedError:
        return None
    return builder.tree, builder.names


class _Builder:
    def __init__(self) -> None:
        self.tree: list[Node] = []
        self.names: dict[int, Names] = {}

    def _open(self) -> int:
        if len(self.tree) >= MAX_NODES:
            raise UnsupportedError
        self.tree.append(Node(0))
        return len(self.tree) - 1

    def message(self, message: Descriptor, number: int, is_kept: bool, kept: frozenset[str] | None = None) -> None:
        if message.is_extendable:
            raise UnsupportedError
        at = self._open()
        for field in message.fields:
            self._field(field, is_kept and (kept is None or field.name in kept))
        self.tree[at] = Node(
            NUMBERS["record"],
            is_kept=is_kept,
            children=len(message.fields),
            after=len(self.tree),
            field_number=number,
            field_type=_F.TYPE_MESSAGE,
            has_presence=True,
        )

    def _field(self, field: FieldDescriptor, is_kept: bool) -> None:
        oneof = field.containing_oneof
        if proto.is_map(field) or field.is_required or (oneof is not None and len(oneof.fields) > 1):
            raise UnsupportedError
        if not field.is_repeated:
            self._single(field, field.number, is_kept)
            return
        at = self._open()
        self._single(field, 0, is_kept)
        number = NUMBERS["array"]
        self.tree[at] = Node(number, is_kept=is_kept, children=1, after=len(self.tree), field_number=field.number)

    def _single(self, field: FieldDescriptor, number: int, is_kept: bool) -> None:
        if field.message_type is not None:
            name = field.message_type.full_name
            if name == proto.TIMESTAMP_NAME:
                self._leaf("timestamp", field, number, is_kept)
            elif field.type != _F.TYPE_MESSAGE or name.startswith("google.protobuf."):
                raise UnsupportedError
            else:
                self.message(field.message_type, number, is_kept)
            return
        if field.enum_type is not None:
            if field.enum_type.is_closed:
                raise UnsupportedError
            self.names[len(self.tree)] = _names(field)
        self._leaf(_KINDS[field.type], field, number, is_kept)

    def _leaf(self, kind: str, field: FieldDescriptor, number: int, is_kept: bool) -> None:
        at = self._open()
        self.tree[at] = Node(
            NUMBERS[kind],
            is_kept=is_kept,
            after=at + 1,
            field_number=number,
            field_type=field.type,
            has_presence=bool(field.has_presence) and not field.is_repeated,
        )


def _names(field: FieldDescriptor) -> Names:
    known = {number: value.name for number, value in field.enum_type.values_by_number.items()}

    def named(numbers: pa.Array) -> pa.Array:
        encoded = numbers.dictionary_encode()
        texts = [known.get(number, str(number)) for number in encoded.dictionary.to_pylist()]
        return pa.array(texts, pa.string()).take(encoded.indices)

    return named
