"""Evolution of a table's schema: new columns are added, and types are widened if the format can do that.

Other changes are refused with the column and both types. Older rows have null in a new column.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from millstream.lake.errors import SchemaChangeError

Widening = Callable[[pa.DataType, pa.DataType], bool]
"""Whether a column of the first type may become one of the second."""

_WHOLE_NUMBERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())


def can_hold(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Whether the wide type has all values of the narrow type, and is of the same kind."""
    if narrow in _WHOLE_NUMBERS and wide in _WHOLE_NUMBERS:
        return bool(narrow.bit_width < wide.bit_width)
    if narrow == pa.float32() and wide == pa.float64():
        return True
    if pa.types.is_decimal(narrow) and pa.types.is_decimal(wide):
        return bool(narrow.scale == wide.scale and narrow.precision < wide.precision)
    return False


def never(_narrow: pa.DataType, _wide: pa.DataType) -> bool:
    """For formats that cannot change column types."""
    return False


@dataclass
class Evolution:
    """The new schema of a table, and its changes."""

    schema: pa.Schema
    added: list[str] = field(default_factory=list)
    widened: list[str] = field(default_factory=list)

    @property
    def changes(self) -> bool:
        return bool(self.added or self.widened)


def storable(schema: pa.Schema) -> pa.Schema:
    """The types of a table for the rows of Spark: microseconds in UTC, all nullable; raises for other types."""
    return pa.schema([pa.field(each.name, _storable_type(each.type, each.name)) for each in schema])


def evolve(table: pa.Schema, incoming: pa.Schema, widening: Widening, *, name: str) -> Evolution:
    """The schema for both the rows of the table and the incoming ones (both `storable`)."""
    evolution = Evolution(table)
    evolution.schema = pa.schema(_merge_fields(list(table), list(incoming), widening, evolution, "", name))
    return evolution


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows with exactly the columns of the schema: cast if types differ, null if a column is missing."""
    columns = [
        _conform_array(batch.column(each.name), each.type)
        if each.name in batch.schema.names
        else pa.nulls(batch.num_rows, each.type)
        for each in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _storable_type(kind: pa.DataType, path: str) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _storable_type(each.type, f"{path}.{each.name}")) for each in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", _storable_type(kind.value_type, f"{path}.element")))
    if pa.types.is_map(kind):
        return pa.map_(
            _storable_type(kind.key_type, f"{path}.key"),
            pa.field("value", _storable_type(kind.item_type, f"{path}.value")),
        )
    if pa.types.is_null(kind) or pa.types.is_duration(kind) or pa.types.is_interval(kind):
        raise SchemaChangeError(f"column {path} has type {kind}, which tables do not support: cast it before the write")
    return kind


def _merge_fields(
    ours: list[pa.Field], theirs: list[pa.Field], widening: Widening, evolution: Evolution, prefix: str, name: str
) -> list[pa.Field]:
    merged = {each.name: each for each in ours}
    by_lower = {each.name.lower(): each.name for each in ours}
    for each in theirs:
        path = f"{prefix}{each.name}"
        if each.name in merged:
            old = merged[each.name]
            kind = _merge_types(old.type, each.type, widening, evolution, path, name)
            merged[each.name] = pa.field(each.name, kind, nullable=old.nullable, metadata=old.metadata)
        elif each.name.lower() in by_lower:
            raise SchemaChangeError(
                f"{name} has a column {prefix}{by_lower[each.name.lower()]}, and the rows have {path}: only the case"
                " differs, which engines treat differently. Rename one"
            )
        else:
            evolution.added.append(path)
            merged[each.name] = pa.field(each.name, each.type)
    present = {each.name for each in theirs}
    for each in ours:
        if not each.nullable and each.name not in present:
            raise SchemaChangeError(
                f"{name} requires a value in column {prefix}{each.name}, which the rows do not have; add it"
            )
    return list(merged.values())


def _merge_types(
    old: pa.DataType, new: pa.DataType, widening: Widening, evolution: Evolution, path: str, name: str
) -> pa.DataType:
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        return pa.struct(_merge_fields(list(old), list(new), widening, evolution, f"{path}.", name))
    if _is_list(old) and _is_list(new):
        inner = _merge_types(old.value_type, new.value_type, widening, evolution, f"{path}.element", name)
        return pa.list_(old.value_field.with_type(inner))
    if pa.types.is_map(old) and pa.types.is_map(new):
        key = _merge_types(old.key_type, new.key_type, never, evolution, f"{path}.key", name)
        item = _merge_types(old.item_type, new.item_type, widening, evolution, f"{path}.value", name)
        return pa.map_(key, old.item_field.with_type(item))
    if old.equals(new) or can_hold(new, old):
        return old
    if widening(old, new):
        evolution.widened.append(f"{path} from {old} to {new}")
        return new
    raise SchemaChangeError(
        f"{name}: column {path} is {old} in the table and {new} in the rows."
        f" Cast it to {old} before the write, or write to a new table"
    )


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _conform_array(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if array.type.equals(kind):
        return array
    if pa.types.is_dictionary(array.type):
        return _conform_array(array.dictionary_decode(), kind)
    if pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        have = {array.type.field(number).name: number for number in range(array.type.num_fields)}
        children = [
            _conform_array(pc.struct_field(array, [have[each.name]]), each.type)
            if each.name in have
            else pa.nulls(len(array), each.type)
            for each in kind
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    if _is_list(kind) and _is_list(array.type):
        # flatten() and value_lengths() ignore slices and nulls, so offsets are computed.
        values = _conform_array(array.flatten(), kind.value_type)
        lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int32())
        ends = pc.cumulative_sum(lengths)
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
        return pa.ListArray.from_arrays(offsets, values, type=kind, mask=array.is_null())
    if pa.types.is_map(kind) and pa.types.is_map(array.type):
        whole = array.take(pa.array(range(len(array)))) if array.offset else array  # offsets that start at 0
        keys = _conform_array(whole.keys, kind.key_type)
        items = _conform_array(whole.items, kind.item_type)
        return pa.MapArray.from_arrays(whole.offsets, keys, items, type=kind, mask=whole.is_null())
    return array.cast(kind)
