"""Codecs compiled from structures: one Python function for each version of a message, generated as source.

Adjacent fields of fixed size are one call of `struct`; lengths, counts and positions are local variables. That is about
three times as fast as a function for each field, and most requests are small.

The bytes are not trusted. A reader checks each length and count against the remaining bytes before it allocates memory.
A field of fixed size may be read beyond the end of the message, within the buffer; the last check finds that. Invalid
bytes raise `MalformedMessage`, and nothing else.
"""

import struct
from collections.abc import Callable
from functools import partial
from operator import eq
from typing import Any, NoReturn

from millstream.formats.protocol.primitives import (
    Cursor,
    MalformedMessage,
    Reader,
    Writer,
    read_tag_count,
    read_unsigned_varint,
)
from millstream.formats.protocol.structure import Field, Message, Structure, cached_uuid
from millstream.formats.records.varint import append_unsigned, read_unsigned

_MAX_MESSAGE_LENGTH = 2000
"""Error messages may repeat a client's data, which may be too long for old versions."""
_FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")


def compile_reader(structure: Structure, version: int, flexible: bool) -> Reader:
    """A function that reads one structure at a cursor, and moves the cursor after it."""
    source = _ReaderSource(version, flexible)
    return source.function(lambda target: source.structure(structure, target))


def compile_writer(structure: Structure, version: int, flexible: bool) -> Writer:
    """A function that appends one structure, given as a dictionary, to a bytearray."""
    source = _WriterSource(version, flexible)
    return source.function(lambda value: source.structure(structure, value))


def field_reader(each: Field, version: int, flexible: bool) -> Reader:
    """A function that reads one field at a cursor."""
    source = _ReaderSource(version, flexible)
    return source.function(lambda target: source.value(each, target))


def field_writer(each: Field, version: int, flexible: bool) -> Writer:
    """A function that appends one field."""
    source = _WriterSource(version, flexible)
    return source.function(lambda value: source.value(each, value))


def item_reader(array: Field, version: int, flexible: bool) -> Reader:
    """A function that reads one item of an array."""
    return field_reader(_item(array), version, flexible)


def item_writer(array: Field, version: int, flexible: bool) -> Writer:
    """A function that appends one item of an array."""
    return field_writer(_item(array), version, flexible)


def _item(array: Field) -> Field:
    return Field(array.name, array.type[2:], array.versions, children=array.children)


class _Source:
    """The source lines of a function, and the objects it refers to."""

    def __init__(self, version: int, flexible: bool, names: dict[str, Any]) -> None:
        self.version = version
        self.flexible = flexible
        self._lines: list[str] = []
        self._indent = 0
        self._made = 0
        self._names = dict(names)

    def line(self, text: str) -> None:
        self._lines.append("    " * self._indent + text)

    def block(self, head: str, fill: Callable[[], None]) -> None:
        self.line(head)
        self._indent += 1
        fill()
        self._indent -= 1

    def local(self, prefix: str) -> str:
        """The name of a new local variable."""
        self._made += 1
        return f"{prefix}{self._made}"

    def name(self, value: Any) -> str:
        """The name of an object in the function."""
        found = self.local("K")
        self._names[found] = value
        return found

    def constant(self, value: Any) -> str:
        return repr(value) if value is None or isinstance(value, bool | int | str) else self.name(value)

    def build(self, name: str) -> Any:
        exec(compile("\n".join(self._lines), "<message codec>", "exec"), self._names)  # nosec B102: source from our schema
        return self._names[name]


def _is_fixed(each: Field) -> bool:
    return each.type in _FIXED


def _runs(fields: list[Field]) -> list[list[Field]]:
    """The fields in order: adjacent ones of fixed size together, others one by one."""
    runs: list[list[Field]] = []
    for each in fields:
        if runs and _is_fixed(each) and _is_fixed(runs[-1][-1]):
            runs[-1].append(each)
        else:
            runs.append([each])
    return runs


# Reading


def _short(count: int, position: int, end: int) -> NoReturn:
    raise MalformedMessage(f"{count} bytes expected at {position}, {end - position} left")


def _null(what: str) -> NoReturn:
    raise MalformedMessage(f"null or negative length where {what} is required")


def _too_many(count: int, left: int) -> NoReturn:
    raise MalformedMessage(f"array of {count} items in {left} bytes")


def _budget_spent(cursor: Cursor) -> NoReturn:
    raise MalformedMessage(f"more than {cursor.most_items} array items in one message; send several")


_Known = dict[int, tuple[str, Reader]]


def _read_tags(message: Message, cursor: Cursor, known: _Known) -> None:
    """Reads a section of tagged fields that is not empty. The cursor ends with a field while that is read."""
    end = cursor.end
    for _ in range(read_tag_count(cursor)):
        tag = read_unsigned_varint(cursor)
        start = cursor.take(read_unsigned_varint(cursor))
        found = known.get(tag)
        if found is not None:
            name, read = found
            after = cursor.end = cursor.position
            cursor.position = start
            setattr(message, name, read(cursor))
            cursor.position, cursor.end = after, end


_READER_NAMES: dict[str, Any] = {
    "MalformedMessage": MalformedMessage,
    "StructError": struct.error,
    "budget_spent": _budget_spent,
    "int16_at": _INT16.unpack_from,
    "int32_at": _INT32.unpack_from,
    "null": _null,
    "read_tags": _read_tags,
    "read_unsigned": read_unsigned,
    "short": _short,
    "too_many": _too_many,
    "unpack_from": struct.unpack_from,
    "uuid": cached_uuid,
}


class _ReaderSource(_Source):
    def __init__(self, version: int, flexible: bool) -> None:
        super().__init__(version, flexible, _READER_NAMES)

    def function(self, fill: Callable[[str], None]) -> Reader:
        """`fill` writes the lines that read a value into the variable it is given."""
        self.block("def read(cursor):", lambda: self._body(fill))
        reader: Reader = self.build("read")
        return reader

    def _body(self, fill: Callable[[str], None]) -> None:
        self.line("buffer, p, end, budget = cursor.buffer, cursor.position, cursor.end, cursor.budget")
        self.block("try:", lambda: fill("result"))
        self.line("except (IndexError, StructError):")
        self.line("    raise MalformedMessage(f'the message continues after its end at {end}') from None")
        self.line("except UnicodeDecodeError as error:")
        self.line("    raise MalformedMessage(f'string is not UTF-8: {error.reason}') from None")
        self.line("if p > end:")
        self.line("    raise MalformedMessage(f'{p - end} bytes are missing at {end}')")
        self.line("cursor.position = p")
        self.line("cursor.budget = budget")
        self.line("return result")

    def structure(self, structure: Structure, target: str) -> None:
        message = self.local("m")
        self.line(f"{message} = {self.name(structure.message_type)}()")
        plain = structure.plain(self.version)
        sent = {each.name for each in plain}
        for each in structure.fields:
            if each.name not in sent:
                self._default(each, f"{message}.{each.name}")
        for run in _runs(plain):
            if _is_fixed(run[0]):
                self._fixed(run, message)
            else:
                self._field(run[0], f"{message}.{run[0].name}")
        if self.flexible:
            known = {each.tag: (each.name, self._tagged(each)) for each in structure.tagged(self.version)}
            self.line("n = buffer[p]")
            self.line("p += 1")
            self.line("if n:")
            self.line("    cursor.position, cursor.budget = p - 1, budget")
            self.line(f"    read_tags({message}, cursor, {self.name(known)})")
            self.line("    p, budget = cursor.position, cursor.budget")
        self.line(f"{target} = {message}")

    def _default(self, each: Field, target: str) -> None:
        """The value of a field that was not sent; mutable values are made for each message."""
        default = each.default()
        if isinstance(default, Message):
            assert each.children is not None
            made = self.local("d")
            self.line(f"{made} = {self.name(each.children.message_type)}()")
            for child in each.children.fields:
                self._default(child, f"{made}.{child.name}")
            self.line(f"{target} = {made}")
        else:
            self.line(f"{target} = {'[]' if default == [] else self.constant(default)}")

    def _tagged(self, each: Field) -> Reader:
        return field_reader(each, self.version, self.flexible)

    def value(self, each: Field, target: str) -> None:
        if not _is_fixed(each):
            self._field(each, target)
            return
        layout = struct.Struct(">" + _FIXED[each.type])
        self.line(f"({target},) = {self.name(layout.unpack_from)}(buffer, p)")
        self.line(f"p += {layout.size}")
        if each.type == "uuid":
            self.line(f"{target} = uuid({target})")

    def _fixed(self, run: list[Field], message: str) -> None:
        """Fields of fixed size, with one call."""
        layout = struct.Struct(">" + "".join(_FIXED[each.type] for each in run))
        identifiers = {each.name: self.local("u") for each in run if each.type == "uuid"}
        targets = [identifiers.get(each.name, f"{message}.{each.name}") for each in run]
        self.line(f"{', '.join(targets)}, = {self.name(layout.unpack_from)}(buffer, p)")
        self.line(f"p += {layout.size}")
        for name, variable in identifiers.items():
            self.line(f"{message}.{name} = uuid({variable})")

    def _field(self, each: Field, target: str) -> None:
        """A field of variable size."""
        nullable = self.version in each.nullable
        if each.type.startswith("[]"):
            self._array(each, target, nullable)
        elif each.type == "{}":
            assert each.children is not None
            if nullable:
                self._nullable_structure(each.children, target)
            else:
                self.structure(each.children, target)
        else:
            self._text_or_bytes(each.type, target, nullable)

    def _nullable_structure(self, structure: Structure, target: str) -> None:
        self.line("n = buffer[p]")
        self.line("p += 1")
        self.block("if n == 1:", lambda: self.structure(structure, target))
        self.line("else:")
        self.line(f"    {target} = None")

    def _length(self, short: bool) -> None:
        """Reads a length into `n`, where -1 is null."""
        if self.flexible:
            self.line("n = buffer[p] - 1")
            self.line("p += 1")
            self.line("if n > 126:")
            self.line("    n, p = read_unsigned(buffer, p - 1)")
            self.line("    n -= 1")
        else:
            self.line(f"n = {'int16_at' if short else 'int32_at'}(buffer, p)[0]")
            self.line(f"p += {2 if short else 4}")

    def _unless_null(self, target: str, nullable: bool, what: str, fill: Callable[[], None]) -> None:
        """Reads a value unless the length in `n` means null."""
        if nullable:
            self.line("if n == -1:")
            self.line(f"    {target} = None")
            self.line("elif n < 0:")
            self.line(f"    null({what!r})")
            self.block("else:", fill)
        else:
            self.line("if n < 0:")
            self.line(f"    null({what!r})")
            fill()

    def _text_or_bytes(self, kind: str, target: str, nullable: bool) -> None:
        is_text = kind == "string"

        def fill() -> None:
            if is_text:
                self.line("if n > cursor.longest_text:")
                self.line("    cursor.text_length(n)")
            self.line("if n > end - p:")
            self.line("    short(n, p, end)")
            piece = "buffer[p : p + n]"
            self.line(f"{target} = " + (f"str({piece}, 'utf-8')" if is_text else f"bytes({piece})"))
            self.line("p += n")

        self._length(short=is_text)
        self._unless_null(target, nullable, "a string" if is_text else "bytes", fill)

    def _array(self, each: Field, target: str, nullable: bool) -> None:
        kind = each.type[2:]

        def fill() -> None:
            self.line("if n > end - p:")
            self.line("    too_many(n, end - p)")
            self.line("budget -= n")
            self.line("if budget < 0:")
            self.line("    budget_spent(cursor)")
            if kind in _FIXED and kind != "uuid":
                code = _FIXED[kind]
                self.line(f"{target} = list(unpack_from(f'>{{n}}{code}', buffer, p)) if n else []")
                self.line(f"p += n * {struct.calcsize('>' + code)}")
                return
            items = self.local("a")
            self.line(f"{items} = []")
            self.block("for _ in range(n):", lambda: self._append_item(each, items))
            self.line(f"{target} = {items}")

        self._length(short=False)
        self._unless_null(target, nullable, "an array", fill)

    def _append_item(self, each: Field, items: str) -> None:
        item = self.local("i")
        self.value(_item(each), item)
        self.line(f"{items}.append({item})")


# Writing


def _unknown(where: str, values: Any, known: frozenset[str]) -> NoReturn:
    raise KeyError(f"{where} has no field {sorted(set(values) - known)}")


_Tagged = list[tuple[str, Writer, Callable[[Any], bool], int]]


def _default_test(each: Field) -> Callable[[Any], bool]:
    """A function that returns whether a value is the default of a field, which is then not sent."""
    return each.is_default if each.is_mutable else partial(eq, each.default())


def _write_tags(out: bytearray, values: Any, tagged: _Tagged) -> None:
    present = 0
    count_at = len(out)
    out.append(0)
    for name, write, is_default, tag in tagged:
        if name not in values or is_default(values[name]):
            continue
        present += 1
        append_unsigned(out, tag)
        size_at = len(out)
        out.append(0)
        write(out, values[name])
        size = len(out) - size_at - 1
        if size < 128:
            out[size_at] = size
        else:
            length = bytearray()
            append_unsigned(length, size)
            out[size_at : size_at + 1] = length
    out[count_at] = present


_WRITER_NAMES: dict[str, Any] = {
    "append_unsigned": append_unsigned,
    "int16": _INT16.pack,
    "int32": _INT32.pack,
    "pack": struct.pack,
    "unknown": _unknown,
    "write_tags": _write_tags,
}


class _WriterSource(_Source):
    def __init__(self, version: int, flexible: bool) -> None:
        super().__init__(version, flexible, _WRITER_NAMES)

    def function(self, fill: Callable[[str], None]) -> Writer:
        """`fill` writes the lines that append the value in the variable it is given."""
        self.block("def write(out, value):", lambda: fill("value"))
        writer: Writer = self.build("write")
        return writer

    def structure(self, structure: Structure, values: str) -> None:
        known = self.name(frozenset(each.name for each in structure.fields))
        self.line(f"if not {known}.issuperset({values}):")
        self.line(f"    unknown({structure.name!r}, {values}, {known})")
        tagged: _Tagged = [
            (each.name, self._tagged(each), _default_test(each), each.tag) for each in structure.tagged(self.version)
        ]
        runs = _runs(structure.plain(self.version))
        has_no_tags = self.flexible and not tagged
        for number, run in enumerate(runs, 1):
            if _is_fixed(run[0]):
                # A structure without tagged fields ends in their count, a zero byte.
                ends_here = has_no_tags and number == len(runs)
                self._fixed(run, values, "x" if ends_here else "")
            else:
                each = self.local("v")
                self.line(f"{each} = {self._given(run[0], values)}")
                self._field(run[0], each)
        if tagged:
            names = self.name(frozenset(name for name, *_ in tagged))
            self.line(f"if {names}.isdisjoint({values}):")
            self.line("    out.append(0)")
            self.line("else:")
            self.line(f"    write_tags(out, {values}, {self.name(tagged)})")
        elif has_no_tags and not (runs and _is_fixed(runs[-1][0])):
            self.line("out.append(0)")

    def _tagged(self, each: Field) -> Writer:
        return field_writer(each, self.version, self.flexible)

    def _given(self, each: Field, values: str) -> str:
        """The expression for the given value, or for the default."""
        if each.is_mutable and each.unset(self.version) is not None:
            unset = f"{self.name(each.default)}()"
        else:
            unset = self.constant(each.unset(self.version))
        return f"{values}[{each.name!r}] if {each.name!r} in {values} else {unset}"

    def _fixed(self, run: list[Field], values: str, padding: str) -> None:
        layout = struct.Struct(">" + "".join(_FIXED[each.type] for each in run) + padding)
        given = [f"({self._given(each, values)}){'.int.to_bytes(16)' if each.type == 'uuid' else ''}" for each in run]
        self.line(f"out += {self.name(layout.pack)}({', '.join(given)})")

    def value(self, each: Field, value: str) -> None:
        """Any field."""
        if each.type == "uuid":
            self.line(f"out += {value}.int.to_bytes(16)")
        elif _is_fixed(each):
            self.line(f"out += {self.name(struct.Struct('>' + _FIXED[each.type]).pack)}({value})")
        else:
            self._field(each, value)

    def _field(self, each: Field, value: str) -> None:
        """A field of variable size."""
        nullable = self.version in each.nullable
        if each.type == "{}":
            children = each.children
            assert children is not None
            if not nullable:
                self.structure(children, value)
                return
            self.line(f"if {value} is None:")
            self.line("    out.append(0xFF)")
            self.block("else:", lambda: self._present_structure(children, value))
            return
        kind = "array" if each.type.startswith("[]") else "string" if each.type == "string" else "bytes"
        if nullable:
            self.line(f"if {value} is None:")
            self.line("    out.append(0)" if self.flexible else f"    out += {self._null_length(kind)}")
            self.block("else:", lambda: self._sized(each, kind, value))
        else:
            self.line(f"assert {value} is not None, 'null in field {each.name}, which cannot be null in this version'")
            self._sized(each, kind, value)

    def _present_structure(self, structure: Structure, value: str) -> None:
        self.line("out.append(1)")
        self.structure(structure, value)

    def _null_length(self, kind: str) -> str:
        return repr(b"\xff" * (2 if kind == "string" else 4))

    def _length(self, value: str, kind: str) -> None:
        if self.flexible:
            self.line(f"n = len({value}) + 1")
            self.line("if n < 128:")
            self.line("    out.append(n)")
            self.line("else:")
            self.line("    append_unsigned(out, n)")
        else:
            self.line(f"out += {'int16' if kind == 'string' else 'int32'}(len({value}))")

    def _sized(self, each: Field, kind: str, value: str) -> None:
        if kind == "array":
            self._length(value, kind)
            self._items(each, value)
            return
        if kind == "string":
            cut = f"[:{_MAX_MESSAGE_LENGTH}]" if each.name.endswith("error_message") else ""
            self.line(f"{value} = {value}{cut}.encode()")
        self._length(value, kind)
        self.line(f"out += {value}")

    def _items(self, each: Field, value: str) -> None:
        kind = each.type[2:]
        if kind in _FIXED and kind != "uuid":
            self.line(f"out += pack(f'>{{len({value})}}{_FIXED[kind]}', *{value})")
            return
        item = self.local("i")
        self.block(f"for {item} in {value}:", lambda: self.value(_item(each), item))
