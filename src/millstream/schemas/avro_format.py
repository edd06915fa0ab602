"""Avro records as typed columns: read with the writer's schema, resolved to one reader schema.

Records of the reader's own schema are read all at once (`columns.py`), if that is possible; others, and those that
it cannot read, one at a time by fastavro, which also finds what is wrong with them.
"""

from io import BytesIO
from typing import Any

import pyarrow as pa
from fastavro import schemaless_reader, schemaless_writer

from millstream.schemas import avro_columns, avro_schema, framing
from millstream.schemas.assembly import Row, assemble, binary_values, rows_of
from millstream.schemas.columns import Columns, Form, is_compiled, merged
from millstream.schemas.errors import EncodingError, SchemaError, SchemaNotFoundError
from millstream.schemas.formats import ResolvedSchema, SchemaChoice
from millstream.schemas.spark_types import struct_of

_MAX_ERROR = 300


class AvroFormat:
    """With a registry, records have its prefix; without one they are plain Avro of the given schema."""

    def __init__(self, choice: SchemaChoice) -> None:
        self._choice = choice
        self._reader: ResolvedSchema | None = None
        self._kept: frozenset[str] | None = None
        self._begin()

    def _begin(self) -> None:
        self._columns: pa.StructType | None = None
        self._parsed: Any = None
        self._bare = False
        """The schema is a single value, not a record: one column named `key` or `value`."""
        self._writers: dict[int, tuple[Any, Any]] = {}
        """By id: the writer's schema, and the reader's if it differs."""
        self._writing: tuple[pa.DataType, Any, pa.DataType, bytes, bool] | None = None
        self._together: Columns | None = None
        """Reads many records at once."""

    def __getstate__(self) -> dict[str, Any]:
        return {"_choice": self._choice, "_reader": self._reader, "_kept": self._kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def arrow_type(self) -> pa.StructType:
        return avro_schema.in_microseconds(self._prepare())

    def keep_only(self, names: frozenset[str]) -> None:
        """Leaves other columns out. Their bytes are read past."""
        self._kept = names
        self._begin()

    def _prepare(self) -> pa.StructType:
        if self._columns is None:
            if self._reader is None:
                self._reader = self._choice.reader()
            self._parsed = avro_schema.parse(self._reader)
            kind = avro_schema.column_type(self._reader)
            self._bare = not pa.types.is_struct(kind)
            columns = struct_of([(self._choice.role, kind)]) if self._bare else kind
            if self._kept is not None:
                columns = struct_of([(each.name, each.type) for each in columns if each.name in self._kept])
            self._columns = columns
            tree = avro_columns.tree_of(self._parsed, self._kept) if is_compiled() else None
            if tree is not None:
                self._together = Columns(*tree, avro_schema.raw(columns), Form.AVRO)
        return self._columns

    def decode(self, values: pa.Array) -> tuple[pa.Array, pa.Array]:
        columns = self._prepare()
        found = self._decode_together(values, columns)
        return self._decode_singly(values, columns) if found is None else found

    def _decode_together(self, values: pa.Array, columns: pa.StructType) -> tuple[pa.Array, pa.Array] | None:
        """None if each record has to be read by itself."""
        if self._together is None or isinstance(values, pa.ChunkedArray) or values.type != pa.binary():
            return None
        found = self._together.decode(values, self._own_prefixes(values))
        if found is None or len(found[1]) == len(values) > 0:
            return None
        rows, unread = found
        return merged(values, _finished(rows, columns), unread, lambda rest: self._decode_singly(rest, columns))

    def _own_prefixes(self, values: pa.Array) -> list[bytes] | None:
        """The prefixes that are known to be of the reader's schema; None if records have no prefix."""
        if self._choice.client is None:
            return None
        if not self._writers:
            try:
                for data in values.drop_null()[:1].to_pylist():
                    self._writer(framing.split(data)[0])
            except (framing.UnframedError, _BadRecordError):
                pass  # it is read by itself, which finds the reason
        return [framing.prefix(number) for number, (_, reader) in self._writers.items() if reader is None]

    def _decode_singly(self, values: pa.Array, columns: pa.StructType) -> tuple[pa.Array, pa.Array]:
        rows: list[Row] = []
        errors: list[str | None] = []
        registered = self._choice.client is not None
        for data in binary_values(values):
            row, error = None, None
            if data is not None:
                try:
                    row = self._read_registered(data) if registered else self._read(data, self._parsed, None)
                except (framing.UnframedError, _BadRecordError) as bad:
                    error = str(bad)
            rows.append(row)
            errors.append(error)
        return assemble(rows, errors, avro_schema.raw(columns), lambda array: _finished(array, columns))

    def _read_registered(self, data: bytes) -> Row:
        schema_id, payload = framing.split(data)
        return self._read(payload, *self._writer(schema_id))

    def _writer(self, schema_id: int) -> tuple[Any, Any]:
        """The writer's schema, and the reader's if it differs."""
        writer = self._writers.get(schema_id)
        if writer is None:
            # If the registry cannot be reached, the record is not bad: the error is raised.
            try:
                parsed = avro_schema.parse(self._choice.by_id(schema_id))
            except SchemaNotFoundError as error:
                raise _BadRecordError(str(error)) from None
            except SchemaError as error:
                if type(error) is not SchemaError:
                    raise
                raise _BadRecordError(f"schema {schema_id}: {error}") from None
            writer = self._writers[schema_id] = (parsed, None if parsed == self._parsed else self._parsed)
        return writer

    def _read(self, payload: bytes, writer: Any, reader: Any) -> Row:
        stream = BytesIO(payload)
        try:
            row = schemaless_reader(stream, writer, reader)
        except EOFError:  # its text has the address of the stream, another one each time
            raise _BadRecordError(f"no Avro of its schema: it ends too early, after {len(payload)} bytes") from None
        except Exception as error:  # fastavro raises many kinds of errors for wrong bytes
            # Some messages of fastavro end with the stream: "cannot read boolean from <_io.BytesIO object at 0x7f…>".
            reason = str(error).partition(" from <_io.")[0]
            raise _BadRecordError(
                f"no Avro of its schema: {type(error).__name__} {reason}"[:_MAX_ERROR].strip()
            ) from None
        rest = len(payload) - stream.tell()
        if rest:
            raise _BadRecordError(f"no Avro of its schema: {rest} bytes are left over")
        if self._bare:
            return {self._choice.role: row}
        if not isinstance(row, dict):
            raise _BadRecordError("not a record")
        return row

    def encode(self, rows: pa.Array) -> pa.Array:
        schema, plain, prefix, bare = self._writing_schema(rows.type)
        if not pa.types.is_struct(rows.type):
            rows = pa.StructArray.from_arrays([rows], [self._choice.role])
        try:
            raw_rows = rows.cast(plain, safe=False) if rows.type != plain else rows
        except pa.ArrowException as error:
            raise EncodingError(f"The columns {rows.type} do not fit the Avro schema's {plain}: {error}.") from None
        raw_rows = _numbers_for_times(raw_rows)
        out: list[bytes | None] = []
        for place, row in enumerate(rows_of(raw_rows)):
            value = next(iter(row.values())) if bare and row is not None else row
            if value is None:
                out.append(None)
                continue
            stream = BytesIO()
            stream.write(prefix)
            try:
                schemaless_writer(stream, schema, value)
            except Exception as error:  # fastavro raises many kinds of errors for wrong values
                raise EncodingError(
                    f"Row {place} does not fit the Avro schema: {type(error).__name__} {error}."
                ) from None
            out.append(stream.getvalue())
        return pa.array(out, pa.binary())

    def _writing_schema(self, kind: pa.DataType) -> tuple[Any, pa.DataType, bytes, bool]:
        """For rows of this type: the schema for fastavro, the columns, the prefix, and whether the schema is a single
        value."""
        if self._writing is None or self._writing[0] != kind:
            made = None
            if self._choice.given is None:
                made = avro_schema.schema_text(kind, self._choice.subject or "record")
            resolved, schema_id = self._choice.writer(made)
            wanted = avro_schema.column_type(resolved)
            bare = not pa.types.is_struct(wanted)
            names = [field.name for field in kind] if pa.types.is_struct(kind) else [self._choice.role]
            if bare:
                if len(names) != 1:
                    raise EncodingError(
                        f"The Avro schema is {wanted}, which one column is written as, not {len(names)}."
                    )
                wanted = struct_of([(names[0], wanted)])
            _check_names(names, wanted)
            plain = pa.struct([wanted.field(name) for name in names])
            prefix = b"" if schema_id is None else framing.prefix(schema_id)
            self._writing = (kind, avro_schema.parse(resolved), plain, prefix, bare)
        return self._writing[1:]


class _BadRecordError(ValueError):
    """This record is bad; others may be good."""


def _check_names(names: list[str], wanted: pa.StructType) -> None:
    known = {field.name for field in wanted}
    for name in names:
        if name not in known:
            raise EncodingError(f"The Avro schema has no field {name!r}; it has {', '.join(sorted(known))}.")


def _finished(rows: pa.Array, columns: pa.StructType) -> pa.Array:
    """Rows with Avro's numbers as rows with times, in microseconds."""
    return rows.cast(columns).cast(avro_schema.in_microseconds(columns), safe=False)


def _numbers_for_times(rows: pa.Array) -> pa.Array:
    return rows.cast(avro_schema.raw(rows.type))
