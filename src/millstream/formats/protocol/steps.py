"""Codecs for long messages: generators that pause after some hundred array items.

`schema.py` reads and writes a message at once, which is faster. A message of 100,000 items takes tenths of a second
that way, and blocks the event loop. Between two steps, the event loop serves other requests.
"""

import struct
from collections.abc import Callable, Generator, Mapping
from functools import cache
from types import NoneType
from typing import Any
from uuid import UUID

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol import primitives
from millstream.formats.protocol.codec import field_reader, field_writer, item_reader, item_writer
from millstream.formats.protocol.primitives import Cursor, MalformedMessage, Reader, Writer
from millstream.formats.protocol.schema import Field, Message, Schema, Structure
from millstream.formats.records.varint import append_unsigned

ITEMS_PER_STEP = 250

Steps = Generator[None, None, Any]


class _Count:
    """Counts items over all levels of a message, up to the end of a step."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = ITEMS_PER_STEP

    def is_full(self) -> bool:
        self.left -= 1
        if self.left > 0:
            return False
        self.left = ITEMS_PER_STEP
        return True


StepReader = Callable[[Cursor, _Count], Steps]
StepWriter = Callable[[bytearray, Any, _Count], Steps]


def read_in_steps(schema: Schema, cursor: Cursor, version: int) -> Generator[None, None, Message]:
    """As `schema.read`."""
    message: Message = yield from _message_reader(schema, version)(cursor, _Count())
    return message


def write_in_steps(
    schema: Schema, out: bytearray, values: Mapping[str, Any], version: int
) -> Generator[None, None, None]:
    """As `schema.write`."""
    try:
        yield from _message_writer(schema, version)(out, values, _Count())
    except struct.error as error:
        raise ValueError(f"{schema.name} v{version}: a value does not fit its field: {error}") from error


def is_long(values: Any, most: int = ITEMS_PER_STEP) -> bool:
    """Whether the fields of a message have more list items than fit into a step. Stops when that is known."""
    return _left_after(values, most) < 0


_PLAIN = frozenset({bool, int, float, str, bytes, bytearray, memoryview, UUID, NoneType, ErrorCode})
"""Types without items. Every small response is looked at, and `isinstance` of an abstract class is slow."""


def _left_after(value: Any, left: int) -> int:
    kind = type(value)
    if kind is dict or (kind is not list and isinstance(value, Mapping)):
        for each in value.values():
            if type(each) not in _PLAIN:
                left = _left_after(each, left)
                if left < 0:
                    break
    elif kind is list or isinstance(value, list | tuple):
        left -= len(value)
        if left >= 0 and value and type(value[0]) not in _PLAIN:
            for each in value:
                left = _left_after(each, left)
                if left < 0:
                    break
    return left


@cache
def _message_reader(schema: Schema, version: int) -> StepReader:
    return _structure_reader(schema.root, version, schema.is_flexible(version))


@cache
def _message_writer(schema: Schema, version: int) -> StepWriter:
    return _structure_writer(schema.root, version, schema.is_flexible(version))


def _has_arrays(structure: Structure, version: int) -> bool:
    return any(
        version in each.versions and (each.type.startswith("[]") or _is_parent(each, version))
        for each in structure.fields
    )


def _is_parent(each: Field, version: int) -> bool:
    """Whether it is a structure with arrays, itself read or written in steps. A nullable structure is not: no message
    has long arrays in one."""
    return (
        each.type == "{}"
        and version not in each.nullable
        and each.children is not None
        and _has_arrays(each.children, version)
    )


# Reading


def _structure_reader(structure: Structure, version: int, flexible: bool) -> StepReader:
    plain = [
        (each.name, *_readers(each, version, flexible))
        for each in structure.fields
        if version in each.versions and version not in each.tagged
    ]
    tagged = {
        each.tag: (each.name, *_readers(each, version, flexible)) for each in structure.fields if version in each.tagged
    }

    def read(cursor: Cursor, count: _Count) -> Steps:
        message = structure.new()
        for name, whole, steps in plain:
            setattr(message, name, whole(cursor) if steps is None else (yield from steps(cursor, count)))
        if flexible:
            for _ in range(primitives.read_tag_count(cursor)):
                tag, inner = primitives.read_tag(cursor)
                known = tagged.get(tag)
                if known is not None:
                    name, whole, steps = known
                    setattr(message, name, whole(inner) if steps is None else (yield from steps(inner, count)))
                    cursor.budget = inner.budget
        return message

    return read


def _readers(each: Field, version: int, flexible: bool) -> tuple[Reader, StepReader | None]:
    whole = field_reader(each, version, flexible)
    if each.type.startswith("[]"):
        return whole, _array_reader(each, version, flexible)
    if _is_parent(each, version):
        assert each.children is not None
        return whole, _structure_reader(each.children, version, flexible)
    return whole, None


def _array_reader(each: Field, version: int, flexible: bool) -> StepReader:
    read_length = primitives.read_length_compact if flexible else primitives.read_length_int32
    is_nullable = version in each.nullable
    whole = item_reader(each, version, flexible)
    steps = None
    if each.children is not None and _has_arrays(each.children, version):
        steps = _structure_reader(each.children, version, flexible)

    def read(cursor: Cursor, count: _Count) -> Steps:
        length = read_length(cursor)
        if length < 0:
            if is_nullable and length == -1:
                return None
            raise MalformedMessage("null or negative length where an array is required")
        items: list[Any] = []
        for _ in range(cursor.array_count(length)):
            items.append(whole(cursor) if steps is None else (yield from steps(cursor, count)))
            if count.is_full():
                yield
        return items

    return read


# Writing


def _structure_writer(structure: Structure, version: int, flexible: bool) -> StepWriter:
    plain = [
        (each, *_writers(each, version, flexible))
        for each in structure.fields
        if version in each.versions and version not in each.tagged
    ]
    tagged = sorted(
        ((each.tag, each, *_writers(each, version, flexible)) for each in structure.fields if version in each.tagged),
        key=lambda row: row[0],
    )
    known = frozenset(each.name for each in structure.fields)

    def write(out: bytearray, values: Mapping[str, Any], count: _Count) -> Steps:
        if not known.issuperset(values):
            raise KeyError(f"{structure.name} has no field {sorted(set(values) - known)}")
        for each, whole, steps in plain:
            value = values[each.name] if each.name in values else each.unset(version)
            if steps is None or value is None:
                whole(out, value)
            else:
                yield from steps(out, value, count)
        if not flexible:
            return
        present = [row for row in tagged if row[1].name in values and not row[1].is_default(values[row[1].name])]
        append_unsigned(out, len(present))
        for tag, each, whole, steps in present:
            content, value = bytearray(), values[each.name]
            if steps is None or value is None:
                whole(content, value)
            else:
                yield from steps(content, value, count)
            append_unsigned(out, tag)
            append_unsigned(out, len(content))
            out += content

    return write


def _writers(each: Field, version: int, flexible: bool) -> tuple[Writer, StepWriter | None]:
    whole = field_writer(each, version, flexible)
    if each.type.startswith("[]"):
        return whole, _array_writer(each, version, flexible)
    if _is_parent(each, version):
        assert each.children is not None
        return whole, _structure_writer(each.children, version, flexible)
    return whole, None


def _array_writer(each: Field, version: int, flexible: bool) -> StepWriter:
    write_length = primitives.write_length_compact if flexible else primitives.write_length_int32
    whole = item_writer(each, version, flexible)
    steps = None
    if each.children is not None and _has_arrays(each.children, version):
        steps = _structure_writer(each.children, version, flexible)

    def write(out: bytearray, items: Any, count: _Count) -> Steps:
        write_length(out, len(items))
        for item in items:
            if steps is None:
                whole(out, item)
            else:
                yield from steps(out, item, count)
            if count.is_full():
                yield

    return write
