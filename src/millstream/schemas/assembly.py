"""Decoded records as an Arrow struct array; rows that do not fit are found by halving."""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

Row = dict[str, Any] | None
Finish = Callable[[pa.Array], pa.Array]
CONVERSION_ERRORS = (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError)


def binary_values(values: pa.Array) -> list[bytes | None]:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if not pa.types.is_binary(values.type):
        values = values.cast(pa.binary())
    found: list[bytes | None] = values.to_pylist()
    return found


def rows_of(array: pa.Array) -> list[Row]:
    """The rows of a struct array, converted by column, which is several times as fast."""
    names = [field.name for field in array.type]
    columns = [_values_of(array.field(place)) for place in range(len(names))]
    rows: list[Row] = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    if array.null_count:
        for place, valid in enumerate(array.is_valid().to_pylist()):
            if not valid:
                rows[place] = None
    return rows


def _values_of(array: pa.Array) -> list[Any]:
    values: list[Any]
    # Without options Arrow is faster; only maps need one.
    values = array.to_pylist(maps_as_pydicts="strict") if _has_map(array.type) else array.to_pylist()
    return values


def _has_map(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) or any(_has_map(kind.field(place).type) for place in range(kind.num_fields))


def with_times(array: pa.Array, change: Finish) -> pa.Array:
    """The array with `change` applied to all timestamps except those in maps: Python's datetime objects are slow, so
    times are converted to text or numbers in Arrow."""
    kind = array.type
    if pa.types.is_timestamp(kind):
        return change(array)
    if pa.types.is_struct(kind) and kind.num_fields:
        fields = [with_times(array.field(place), change) for place in range(kind.num_fields)]
        names = [field.name for field in kind]
        return pa.StructArray.from_arrays(fields, names, mask=array.is_null() if array.null_count else None)
    if pa.types.is_list(kind) and not array.offset:
        inner = with_times(array.values, change)
        if inner.type != kind.value_type:
            mask = array.is_null() if array.null_count else None
            return pa.ListArray.from_arrays(array.offsets, inner, pa.list_(inner.type), mask=mask)
    return array


def assemble(rows: list[Row], errors: list[str | None], kind: pa.DataType, finish: Finish) -> tuple[pa.Array, pa.Array]:
    """Rows as an array of type `kind`, changed by `finish`; a row that does not fit is null, with a text in
    `errors`."""
    chunks = _build(rows, errors, 0, kind, finish)
    array = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
    return array, pa.array(errors, pa.string())


def _build(
    rows: Sequence[Row], errors: list[str | None], first: int, kind: pa.DataType, finish: Finish
) -> list[pa.Array]:
    try:
        return [finish(pa.array(rows, kind))]
    except CONVERSION_ERRORS as error:
        if len(rows) == 1:
            errors[first] = f"the value does not fit its type: {error}"
            return [finish(pa.array([None], kind))]
    half = len(rows) // 2  # few are bad: halving finds them with few attempts
    return [
        *_build(rows[:half], errors, first, kind, finish),
        *_build(rows[half:], errors, first + half, kind, finish),
    ]
