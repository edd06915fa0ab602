"""JSON records as typed columns: with a schema of the registry (and its prefix), or with given column types.

The compiled reader decodes all records at once (`json_columns.py`). What it does not read, and everything where there
is none, is decoded by Arrow's reader. Batches that this refuses, too, are decoded one record at a time, and each bad
record gets a reason: values are converted to the type of their column, or the path and the value are reported.
"""

import base64
import binascii
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from millstream.schemas import framing, json_schema
from millstream.schemas.assembly import CONVERSION_ERRORS, Row, assemble, binary_values, rows_of, with_times
from millstream.schemas.columns import Columns, merged
from millstream.schemas.errors import EncodingError, SchemaError
from millstream.schemas.formats import SchemaChoice
from millstream.schemas.json_columns import columns_of
from millstream.schemas.json_schema import NO_RULE, Check, checker, has_all_required
from millstream.schemas.spark_types import parse_struct, struct_of

Convert = Callable[[Any], Any]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ConversionError(ValueError):
    """A value is not of its column's type."""


def converter(kind: pa.DataType, path: str = "") -> Convert:
    """A function from parsed JSON to a value for `pa.array` of this type; null stays null."""
    types = pa.types
    if types.is_struct(kind):
        return _struct(kind, path)
    if types.is_map(kind):
        return _map(kind, path)
    if types.is_list(kind):
        return _list(kind, path)
    if types.is_timestamp(kind):
        return _with_null(_timestamp if kind.tz else _local_timestamp, path, "a time")
    if types.is_date(kind):
        return _with_null(_date, path, "a date")
    if types.is_decimal(kind):
        return _with_null(_decimal, path, "a decimal")
    if types.is_binary(kind):
        return _with_null(_bytes, path, "base64")
    for fits, accepted, name in (
        (types.is_boolean, (bool,), "true or false"),
        (types.is_integer, (int,), "an integer"),
        (types.is_floating, (float, int), "a number"),
        (types.is_string, (str,), "a string"),
    ):
        if fits(kind):
            return _with_null(_plain(accepted, bool in accepted, types.is_floating(kind)), path, name)
    raise SchemaError(f"JSON has no type for {kind} of column {path.lstrip('.')!r}.")


def _with_null(convert: Convert, path: str, wanted: str) -> Convert:
    def checked(value: Any) -> Any:
        if value is None:
            return None
        try:
            return convert(value)
        except (ValueError, TypeError, OverflowError, InvalidOperation, binascii.Error):
            shown = repr(value)
            raise ConversionError(
                f"{path.lstrip('.') or 'the value'} is {shown[:60]}{'…' if len(shown) > 60 else ''}, not {wanted}"
            ) from None

    return checked


def _plain(accepted: tuple[type[Any], ...], takes_bool: bool, as_float: bool) -> Convert:
    def check(value: Any) -> Any:
        if not isinstance(value, accepted) or (isinstance(value, bool) and not takes_bool):
            raise TypeError
        return float(value) if as_float else value

    return check


def _struct(kind: pa.StructType, path: str) -> Convert:
    fields = [(field.name, converter(field.type, f"{path}.{field.name}")) for field in kind]

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            raise TypeError
        return {name: each(value.get(name)) for name, each in fields}

    return _passing_misfits(convert, path, "an object")


def _map(kind: pa.MapType, path: str) -> Convert:
    if not pa.types.is_string(kind.key_type):
        raise SchemaError(f"Keys of JSON objects are strings; column {path.lstrip('.')!r} wants {kind.key_type}.")
    item = converter(kind.item_type, f"{path}.*")

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            raise TypeError
        return [(key, item(each)) for key, each in value.items()]

    return _passing_misfits(convert, path, "an object")


def _list(kind: pa.ListType, path: str) -> Convert:
    item = converter(kind.value_type, f"{path}[]")

    def convert(value: Any) -> Any:
        if not isinstance(value, list):
            raise TypeError
        return [item(each) for each in value]

    return _passing_misfits(convert, path, "an array")


def _passing_misfits(convert: Convert, path: str, wanted: str) -> Convert:
    """An inner error already has its path."""

    def checked(value: Any) -> Any:
        if value is None:
            return None
        try:
            return convert(value)
        except TypeError:
            shown = repr(value)
            raise ConversionError(f"{path.lstrip('.') or 'the record'} is {shown[:60]}, not {wanted}") from None

    return checked


def _timestamp(value: Any) -> datetime:
    if isinstance(value, bool):
        raise TypeError
    if isinstance(value, int | float):
        return _EPOCH + timedelta(milliseconds=value)
    moment = datetime.fromisoformat(value)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _local_timestamp(value: Any) -> datetime:
    return _timestamp(value).replace(tzinfo=None)


def _date(value: Any) -> date:
    return date.fromisoformat(value)


def _decimal(value: Any) -> Decimal:
    if isinstance(value, bool):
        raise TypeError
    found = Decimal(str(value))
    if not found.is_finite():
        raise ValueError
    return found


def _bytes(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError
    return base64.b64decode(value, validate=True)


_PREFIX_BYTE = b"\x00"
"""No JSON text begins with it."""
_MAX_ERROR = 300
_SINGLY = 128
"""Up to this number, records are decoded one at a time at once."""
_ALL_BYTES = 1 << 30
"""The end of a slice of a value. Without an end, `binary_slice` fails."""
_CALLS_SINGLY = 20


class JsonFormat:
    def __init__(self, choice: SchemaChoice) -> None:
        self._choice = choice
        self._type: pa.StructType | None = None
        self._bare = False
        """The schema is a single value, not an object: one column named `key` or `value`."""
        self._convert: Any = None
        self._rule = NO_RULE
        self._nullable = True
        self._check: Check | None = None
        self._writing: tuple[pa.DataType, bytes] | None = None
        self._calls = 0
        self._singly_until = 0
        self._extra: list[pa.Field] = []
        """Columns that are left out and required: Arrow's reader reads them, to see whether they are there."""
        self._together: Columns | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_convert": None, "_check": None, "_together": None}

    def arrow_type(self) -> pa.StructType:
        if self._type is None:
            given = self._choice.given
            if given is not None and not json_schema.is_json_schema(given):
                self._type = parse_struct(given)
            else:
                kind, self._rule, self._nullable = json_schema.column_of(self._choice.reader())
                self._bare = not pa.types.is_struct(kind)
                self._type = struct_of([(self._choice.role, kind)]) if self._bare else kind
        return self._type

    def keep_only(self, names: frozenset[str]) -> None:
        """Leaves other columns out: whether their values have the right types is not checked. What the schema requires
        is, so columns with required values in them stay."""
        whole = pa.struct([*self.arrow_type(), *self._extra])
        if self._bare:
            return
        kept = [field for field in whole if field.name in names or field.name in self._rule.properties]
        self._extra = [field for field in whole if field.name in self._rule.required and field not in kept]
        self._type = pa.struct(kept)

    def decode(self, values: pa.Array) -> tuple[pa.Array, pa.Array]:
        values = _binary(values)
        kind = self.arrow_type()
        if self._together is None and not self._bare:
            plain = _readable_type(kind)
            self._together = None if plain is None else columns_of(plain, self._rule)
        found = None if self._together is None else self._together.decode(self._texts(values), None)
        if found is None or len(found[1]) == len(values):
            return self._decode_others(values)
        rows, unread = found
        try:
            rows = _with_times(rows, kind)
        except CONVERSION_ERRORS:  # a text that is no time
            return self._decode_others(values)
        return merged(values, rows, unread, self._decode_others)

    def _texts(self, values: pa.Array) -> pa.Array:
        """Without the prefix, if all have one."""
        if self._choice.client is not None and pc.all(pc.starts_with(values, _PREFIX_BYTE)).as_py():
            return pc.binary_slice(values, framing.PREFIX.size, _ALL_BYTES)
        return values

    def _decode_others(self, values: pa.Array) -> tuple[pa.Array, pa.Array]:
        self._calls += 1
        if self._calls < self._singly_until:
            return self._decode_singly(values)
        parts = self._decode_parts(values)
        if len(parts) == 1:
            return parts[0]
        return pa.concat_arrays([rows for rows, _ in parts]), pa.concat_arrays([errors for _, errors in parts])

    def _decode_parts(self, values: pa.Array) -> list[tuple[pa.Array, pa.Array]]:
        """Halves batches that Arrow's reader refuses, so that one bad record does not slow down all others."""
        quick = self._decode_together(values)
        if quick is not None:
            return [self._with_required(quick, values)]
        if len(values) <= _SINGLY:
            rows, errors = self._decode_singly(values)
            if errors.null_count > len(values) // 2:  # good records that only the slow way can decode
                self._singly_until = self._calls + _CALLS_SINGLY
            return [(rows, errors)]
        half = len(values) // 2
        return self._decode_parts(values[:half]) + self._decode_parts(values[half:])

    def _decode_together(self, values: pa.Array) -> pa.Array | None:
        """None if Arrow's reader cannot be used."""
        kind = pa.struct([*self.arrow_type(), *self._extra])
        plain = _readable_type(kind)
        present = values.drop_null()
        if plain is None or self._bare or not len(present):
            return None
        present = self._texts(present)
        # With these two checks, each record is one row.
        if not pc.all(pc.and_(pc.starts_with(present, b"{"), pc.ends_with(present, b"}"))).as_py():
            return None
        try:
            present.cast(pa.string())  # the reader does not check UTF-8
            text = as_lines(present)
            table = pyarrow.json.read_json(
                pa.BufferReader(text),
                pyarrow.json.ReadOptions(use_threads=False, block_size=text.size + 1),
                pyarrow.json.ParseOptions(explicit_schema=pa.schema(plain), unexpected_field_behavior="ignore"),
            )
            if table.num_rows != len(present):
                return None
            rows = table.combine_chunks().to_struct_array()
            rows = rows.combine_chunks() if isinstance(rows, pa.ChunkedArray) else rows
            rows.validate(full=True)
            if _has_infinity(rows):
                return None  # a number that is too large
            rows = _with_times(rows, kind)
        except CONVERSION_ERRORS:
            return None
        if len(present) == len(values):
            return rows
        places = pc.subtract(pc.cumulative_sum(values.is_valid().cast(pa.int64())), 1)
        return rows.take(pc.if_else(values.is_valid(), places, pa.scalar(None, pa.int64())))

    def _with_required(self, rows: pa.Array, values: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Rows without required values are null, with the reason."""
        is_whole = has_all_required(rows, self._rule)
        if self._extra:
            count = len(self.arrow_type())
            children = [rows.field(place) for place in range(count)]
            rows = pa.StructArray.from_arrays(children, fields=list(self.arrow_type()), mask=rows.is_null())
        if is_whole:
            return rows, pa.nulls(len(values), pa.string())
        texts = (None if data is None else self._without_prefix(data) for data in values.to_pylist())
        errors = pa.array([None if text is None else self._missing(orjson.loads(text)) for text in texts], pa.string())
        places = pc.if_else(errors.is_null(), pa.array(range(len(rows)), pa.int64()), pa.scalar(None, pa.int64()))
        return rows.take(places), errors

    def _missing(self, parsed: Any) -> str | None:
        if parsed is None and not self._nullable:
            return "the record is null, which the schema does not allow"
        if self._check is None:
            self._check = checker(self._rule)
        return self._check(parsed)

    def _without_prefix(self, data: bytes) -> bytes:
        framed = self._choice.client is not None and data[:1] == _PREFIX_BYTE
        return data[framing.PREFIX.size :] if framed else data

    def _decode_singly(self, values: pa.Array) -> tuple[pa.Array, pa.Array]:
        kind = self.arrow_type()
        if self._convert is None:
            self._convert = converter(kind)
        rows: list[Row] = []
        errors: list[str | None] = []
        for data in binary_values(values):
            row, error = None, None
            if data is not None:
                try:
                    parsed = orjson.loads(self._without_prefix(data))
                    row = self._convert({self._choice.role: parsed} if self._bare else parsed)
                    error = self._missing(parsed)
                    row = row if error is None else None
                except ConversionError as misfit:
                    error = str(misfit)
                except orjson.JSONDecodeError as broken:
                    error = f"no JSON: {broken}"[:_MAX_ERROR]
                except RecursionError:
                    error = "no JSON: nested too deeply"
            rows.append(row)
            errors.append(error)
        return assemble(rows, errors, kind, lambda array: array)

    def encode(self, rows: pa.Array) -> pa.Array:
        prefix = self._prefix_for(rows.type)
        out: list[bytes | None] = []
        rows = with_times(rows, _time_text)
        values = rows_of(rows) if pa.types.is_struct(rows.type) else rows.to_pylist()
        nested = any(pa.types.is_nested(field.type) for field in rows.type) if pa.types.is_struct(rows.type) else True
        without_nulls = _without_nulls if nested else _without_null_fields
        for place, row in enumerate(values):
            if row is None:
                out.append(None)
                continue
            try:
                text = orjson.dumps(without_nulls(row), _plain_value, orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS)
            except (TypeError, orjson.JSONEncodeError) as error:
                raise EncodingError(f"Row {place} cannot be written as JSON: {error}.") from None
            out.append(prefix + text)
        return pa.array(out, pa.binary())

    def _prefix_for(self, kind: pa.DataType) -> bytes:
        if self._choice.client is None:
            return b""
        if self._writing is None or self._writing[0] != kind:
            made = json_schema.schema_text(kind, self._choice.subject or "record")
            choice = self._choice
            if choice.given is not None and not json_schema.is_json_schema(choice.given):
                choice = replace(choice, given=made)
            _, schema_id = choice.writer(made)
            assert schema_id is not None, "a registry gives ids"
            self._writing = (kind, framing.prefix(schema_id))
        return self._writing[1]


def as_lines(values: pa.Array) -> pa.Buffer:
    """JSON values, none of them null, as lines for Arrow's reader. Arrow joins them without the interpreter."""
    whole = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    return pc.binary_join(whole, b"\n")[0].as_buffer()


def _binary(values: pa.Array) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    return values if pa.types.is_binary(values.type) else values.cast(pa.binary())


def _readable_type(kind: pa.DataType) -> pa.DataType | None:
    """The type for Arrow's reader, with times as text. None if JSON and Arrow differ in more than times."""
    types = pa.types
    if types.is_struct(kind):
        fields = [(field.name, _readable_type(field.type)) for field in kind]
        return None if any(each is None for _, each in fields) else pa.struct(fields)
    if types.is_list(kind):
        inner = _readable_type(kind.value_type)
        return None if inner is None else pa.list_(pa.field("element", inner))
    if types.is_timestamp(kind) or types.is_date(kind):
        return pa.string()
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_string(kind):
        return kind
    return None


def _has_infinity(array: pa.Array) -> bool:
    if pa.types.is_floating(array.type):
        return bool(pc.any(pc.is_inf(array)).as_py())
    if pa.types.is_list(array.type):
        return _has_infinity(array.values)
    return any(_has_infinity(array.field(place)) for place in range(array.type.num_fields))


def _with_times(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Casts texts to times."""
    if array.type == kind:
        return array
    if pa.types.is_struct(kind):
        children = [_with_times(array.field(place), field.type) for place, field in enumerate(kind)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    if pa.types.is_list(kind):
        inner = _with_times(array.values, kind.value_type)
        return pa.ListArray.from_arrays(array.offsets, inner, kind, mask=array.is_null() if array.null_count else None)
    if pa.types.is_timestamp(kind):
        try:
            found = array.cast(pa.timestamp("us", "UTC"))
        except pa.ArrowInvalid:
            found = array.cast(pa.timestamp("us"))  # without a zone: UTC
        return found.cast(pa.int64()).cast(kind)
    return array.cast(kind)


def _time_text(times: pa.Array) -> pa.Array:
    """ISO 8601, in UTC where they have a zone; whole seconds without a fraction."""
    zone = "Z" if times.type.tz else ""
    times = times.cast(pa.timestamp("us", "UTC" if zone else None), safe=False)
    text = pc.replace_substring(times.cast(pa.string()), " ", "T")
    return pc.replace_substring_regex(text, rf"\.000000{zone}$", zone)


def _without_nulls(value: Any) -> Any:
    """Fields that are null are left out, as Spark's to_json does: few schemas allow them to be null."""
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    return value


def _without_null_fields(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if value is not None}


def _plain_value(value: Any) -> Any:
    if isinstance(value, Decimal):
        return orjson.Fragment(str(value))
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} has no JSON type")
