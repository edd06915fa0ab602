"""JSON values without a schema as typed columns: types come from the values themselves.

A sample of records gives the first types. The compiled reader (`schemas/json_columns.py`) then decodes batches of
records at once, and Arrow's reader those with new fields. Records with other types are decoded one by one, and
widen the types: integer and number become number, other mixtures become text (strings as they are, other values as
JSON, in which fields that a record does not have may be null). Texts stay texts, also those that look like times: cast
them (`placed::timestamptz`). Only a record that is not a JSON object has no columns.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from millstream.schemas.columns import order_of
from millstream.schemas.json_columns import columns_of
from millstream.schemas.json_format import as_lines

_MAX_DEPTH = 20
_MAX_FIELDS = 1000
"""An object with more fields is a map rather than a record: it becomes text."""
_INT64 = range(-(1 << 63), 1 << 63)
NOT_AN_OBJECT = "the value is not a JSON object"


class InferredJson:
    """The columns of JSON objects. Thread safe: a batch is decoded with the types known at that time."""

    def __init__(self, sample: Iterable[bytes], wanted: frozenset[str] | None) -> None:
        """`wanted`: the names, in lower case, of the columns that are needed, among others; None: all."""
        kind: pa.DataType = pa.struct([])
        for data in sample:
            document = _parsed(data)
            if document is not None:
                kind = merged(kind, type_of(document))
        sampled = {field.name: field.type for field in kind} if pa.types.is_struct(kind) else {}
        self._known = {name: each for name, each in sampled.items() if not pa.types.is_null(each)}
        names = {name.lower() for name in self._known}
        record_columns = {"_key", "_topic", "_partition", "_offset", "_timestamp", "_headers", "_error"}
        self._is_everything = wanted is None or bool(wanted - names - record_columns)
        """A name that no record of the sample has may be a rare field, so all fields are read."""
        if not self._is_everything:
            assert wanted is not None
            self._known = {name: each for name, each in self._known.items() if name.lower() in wanted}
        self.first_types = dict(self._known)

    @property
    def reads_values(self) -> bool:
        """Whether the values are needed at all: not for `select count(*)`."""
        return self._is_everything or bool(self._known)

    def decode(self, values: pa.Array) -> tuple[pa.Table, pa.Array]:
        """A row for each value, and null or the reason for which it has no columns. A null value is a row of nulls."""
        none = pa.nulls(len(values), pa.string())
        found = self._compiled(values)
        if found is None:
            return self._others(values)
        read, unread = found
        if not unread:
            return read, none
        others, reasons = self._others(values.take(pa.array(unread, pa.int64())))
        order = order_of(len(values), unread)
        return pa.concat_tables(unified([read, others])).take(order), pa.concat_arrays([none, reasons]).take(order)

    def _compiled(self, values: pa.Array) -> tuple[pa.Table, list[int]] | None:
        """The rows, and the places of those that were not read; None if the compiled reader cannot read any."""
        known = dict(self._known)
        columns = columns_of(pa.struct(list(known.items())), is_closed=self._is_everything) if known else None
        found = None if columns is None else columns.decode(values, None)
        if found is None or len(found[1]) == len(values):
            return None
        rows, unread = found
        return pa.Table.from_arrays(rows.flatten(), names=list(known)), unread

    def _others(self, values: pa.Array) -> tuple[pa.Table, pa.Array]:
        quick = self._together(values)
        if quick is not None:
            return quick, pa.nulls(len(values), pa.string())
        return self._singly(values)

    def _together(self, values: pa.Array) -> pa.Table | None:
        """None if Arrow's reader does not accept all values."""
        present = values.drop_null()
        if not len(present):
            return None
        if not pc.all(pc.and_(pc.starts_with(present, b"{"), pc.ends_with(present, b"}"))).as_py():
            return None
        text = as_lines(present)
        known = dict(self._known)
        found = self._read(text, known)
        if found is None:
            return None
        times = {field.name: pa.string() for field in found.schema if field.name not in known and _has_time(field.type)}
        if times:  # a new field that looks like a time is a text
            found = self._read(text, known | times)
        if found is None or found.num_rows != len(present):
            return None
        # Lists of nothing but nulls come out of Arrow's reader with wrong lengths.
        if any(_has_time(each.type) or _has_null_list(each.type) for each in found.schema):
            return None
        self.learn(found.schema)
        if len(present) < len(values):
            valid = values.is_valid()
            places = pc.subtract(pc.cumulative_sum(valid.cast(pa.int64())), 1)
            found = found.take(pc.if_else(valid, places, pa.scalar(None, pa.int64())))
        return found

    def _read(self, text: pa.Buffer, known: dict[str, pa.DataType]) -> pa.Table | None:
        behaviour = "infer" if self._is_everything else "ignore"
        try:
            return pyarrow.json.read_json(
                pa.BufferReader(text),
                pyarrow.json.ReadOptions(use_threads=False, block_size=text.size + 1),
                pyarrow.json.ParseOptions(
                    explicit_schema=pa.schema(list(known.items())), unexpected_field_behavior=behaviour
                ),
            )
        except pa.ArrowException:
            return None

    def _singly(self, values: pa.Array) -> tuple[pa.Table, pa.Array]:
        errors: list[str | None] = []
        documents: list[dict[str, Any]] = []
        kind: pa.DataType = pa.struct(list(self._known.items()))
        for data in values.to_pylist():
            document = None if data is None else _parsed(data)
            errors.append(NOT_AN_OBJECT if data is not None and document is None else None)
            documents.append(document or {})
            if document:
                kept = (
                    document if self._is_everything else {key: document[key] for key in self._known if key in document}
                )
                kind = merged(kind, type_of(kept))
        if not pa.types.is_struct(kind):  # too many fields
            kind = pa.struct(list(self._known.items()))
        columns = [
            pa.array([fitted(document.get(field.name), field.type) for document in documents], field.type)
            for field in kind
        ]
        found = pa.Table.from_arrays(columns, schema=pa.schema(list(kind)))
        if not len(kind):
            found = pa.table({"": pa.nulls(len(values))}).select([])
        self.learn(found.schema)
        return found, pa.array(errors, pa.string())

    def learn(self, schema: pa.Schema) -> None:
        """Later batches are decoded with these types at once."""
        for field in schema:
            if not pa.types.is_null(field.type):
                before = self._known.get(field.name)
                self._known[field.name] = field.type if before is None else merged(before, field.type)


def is_object(data: bytes | None) -> bool:
    return data is not None and _parsed(data) is not None


def _parsed(data: bytes) -> dict[str, Any] | None:
    try:
        found = orjson.loads(data)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def type_of(value: Any, depth: int = 0) -> pa.DataType:
    """The type of a parsed JSON value."""
    match value:
        case None:
            return pa.null()
        case bool():
            return pa.bool_()
        case int():
            return pa.int64() if value in _INT64 else pa.float64()
        case float():
            return pa.float64()
        case list() if depth < _MAX_DEPTH:
            kind = pa.null()
            for each in value:
                kind = merged(kind, type_of(each, depth + 1))
            return pa.list_(kind)
        case dict() if depth < _MAX_DEPTH and len(value) <= _MAX_FIELDS:
            return pa.struct([(name, type_of(each, depth + 1)) for name, each in value.items()])
    return pa.string()


def merged(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """The type for values of both types."""
    types = pa.types
    if left == right or types.is_null(right):
        return left
    if types.is_null(left):
        return right
    if types.is_struct(left) and types.is_struct(right):
        fields = {field.name: field.type for field in left}
        for field in right:
            fields[field.name] = merged(fields.get(field.name, pa.null()), field.type)
        return pa.struct(list(fields.items())) if len(fields) <= _MAX_FIELDS else pa.string()
    if types.is_list(left) and types.is_list(right):
        return pa.list_(merged(left.value_type, right.value_type))
    numbers = (pa.int64(), pa.float64())
    return pa.float64() if left in numbers and right in numbers else pa.string()


def fitted(value: Any, kind: pa.DataType) -> Any:
    """A JSON value for an array of this type."""
    if value is None or pa.types.is_null(kind):
        return None
    if pa.types.is_struct(kind):
        return {field.name: fitted(value.get(field.name), field.type) for field in kind}
    if pa.types.is_list(kind):
        return [fitted(each, kind.value_type) for each in value]
    if pa.types.is_string(kind):
        return value if isinstance(value, str) else json_text(value)
    return float(value) if pa.types.is_floating(kind) else value


def json_text(value: Any) -> str:
    return orjson.dumps(value, default=str).decode()


def unified(tables: Sequence[pa.Table]) -> list[pa.Table]:
    """The tables with the same columns, of types that all of their values fit."""
    kinds: dict[str, pa.DataType] = {}
    for schema in {table.schema: None for table in tables}:
        for field in schema:
            kinds[field.name] = merged(kinds.get(field.name, pa.null()), field.type)
    schema = pa.schema([(name, pa.string() if pa.types.is_null(kind) else kind) for name, kind in kinds.items()])
    return [table if table.schema == schema else _fitted_table(table, schema) for table in tables]


def _fitted_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = []
    for field in schema:
        if field.name not in table.schema.names:
            columns.append(pa.nulls(table.num_rows, field.type))
            continue
        column = table.column(field.name)
        if column.type != field.type:
            column = _cast(column, field.type)
        columns.append(column)
    if not columns:
        return table
    return pa.Table.from_arrays(columns, schema=schema)


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> Any:
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), kind)
    if pa.types.is_integer(column.type) and pa.types.is_floating(kind):
        return column.cast(kind, safe=False)
    return pa.array([fitted(value, kind) for value in column.to_pylist()], kind)


def _has_null_list(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind) and pa.types.is_null(kind.value_type):
        return True
    return any(_has_null_list(kind.field(place).type) for place in range(kind.num_fields))


def _has_time(kind: pa.DataType) -> bool:
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return True
    return any(_has_time(kind.field(place).type) for place in range(kind.num_fields))
