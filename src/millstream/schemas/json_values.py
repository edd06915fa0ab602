"""Values out of JSON to values of an Arrow type, strictly: what is not of the type is refused, not bent to it.

JSON has no times, decimals and bytes. Times are ISO 8601 with or without a zone (UTC then), or milliseconds since 1970;
decimals are numbers or strings of digits; bytes are base64.
"""

import base64
import binascii
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from millstream.schemas.errors import SchemaError

Convert = Callable[[Any], Any]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class MisfitError(ValueError):
    """A value is not of its column's type."""


def converter(kind: pa.DataType, path: str = "") -> Convert:
    """A function from parsed JSON to what `pa.array` takes for this type; null stays null."""
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
    raise SchemaError(f"JSON has nothing for the type {kind} of column {path.lstrip('.')!r}.")


def _with_null(convert: Convert, path: str, wanted: str) -> Convert:
    def checked(value: Any) -> Any:
        if value is None:
            return None
        try:
            return convert(value)
        except (ValueError, TypeError, OverflowError, InvalidOperation, binascii.Error):
            shown = repr(value)
            raise MisfitError(
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
    """A misfit inside names the inner path already."""

    def checked(value: Any) -> Any:
        if value is None:
            return None
        try:
            return convert(value)
        except TypeError:
            shown = repr(value)
            raise MisfitError(f"{path.lstrip('.') or 'the record'} is {shown[:60]}, not {wanted}") from None

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
