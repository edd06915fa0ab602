"""Data files of Iceberg tables: field ids, partition values, and entries of manifests."""

from datetime import UTC, date, datetime
from typing import Any, Final

import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform, MonthTransform, Transform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BooleanType,
    DateType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
)
from pyiceberg.utils.datetime import micros_to_timestamp, micros_to_timestamptz

from millstream.lake.data_files import WrittenFile
from millstream.lake.errors import LakeError
from millstream.lake.partitioning import Partitioning, PartitionValue, Term
from millstream.lake.scan import EXACT_TEXT

_TRANSFORMS: Final[dict[str | None, Transform[Any, Any]]] = {
    None: IdentityTransform(),
    "day": DayTransform(),
    "hour": HourTransform(),
    "month": MonthTransform(),
}
_EPOCH: Final = date(1970, 1, 1)


def add_terms(change: Any, partitioning: Partitioning) -> None:
    """Sets the partitioning of a new table; hidden fields are named as by Spark and Java."""
    if partitioning.terms:
        with change.update_spec() as spec:
            for term in partitioning.terms:
                name = term.source if term.unit is None else f"{term.source}_{term.unit}"
                spec.add_field(term.source, _TRANSFORMS[term.unit], name)


def from_spec(spec: PartitionSpec, schema: Schema, name: str) -> Partitioning:
    """Iceberg's partitioning as ours; refuses transforms that are not supported."""
    units = {repr(transform): unit for unit, transform in _TRANSFORMS.items()}
    terms = []
    for each in spec.fields:
        if repr(each.transform) not in units:
            raise LakeError(
                f"{name} is partitioned by {each.transform}({each.name}), which millstream-table does not support; "
                f"write to a new table"
            )
        terms.append(Term(schema.find_column_name(each.source_id) or each.name, units[repr(each.transform)]))
    return Partitioning(tuple(terms))


def file_schema(schema: Schema) -> pa.Schema:
    """The columns of files, with Iceberg's field ids, by which engines find them after renames."""
    return pa.schema([_small(each) for each in schema_to_pyarrow(schema, include_field_ids=True)])


def to_data_file(file: WrittenFile, uri: str, metadata: Any) -> DataFile:
    """The manifest entry of a written file, from its footer, without reading it again."""
    schema, spec = metadata.schema(), metadata.spec()
    partitioning = from_spec(spec, schema, uri)
    found = data_file_statistics_from_parquet_metadata(
        parquet_metadata=file.footer,
        stats_columns=compute_statistics_plan(schema, metadata.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(schema),
    )
    values = [_internal(term, value) for term, value in zip(partitioning.terms, file.partition, strict=True)]
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=uri,
        file_format=FileFormat.PARQUET,
        partition=Record(*values),
        file_size_in_bytes=file.size,
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **found.to_serialized_dict(),
    )


def ranges(file: DataFile, schema: Schema) -> dict[str, tuple[Any, Any]]:
    """Bounds of columns from a manifest; texts only if they are not truncated."""
    found: dict[str, tuple[Any, Any]] = {}
    lower, upper = file.lower_bounds or {}, file.upper_bounds or {}
    for each in schema.fields:
        if each.field_id in lower and each.field_id in upper and isinstance(each.field_type, PrimitiveType):
            low = _value(each.field_type, lower[each.field_id])
            high = _value(each.field_type, upper[each.field_id])
            if low is not None and high is not None:
                found[each.name] = (low, high)
    return found


def _value(kind: PrimitiveType, data: bytes) -> Any:
    if not isinstance(
        kind, BooleanType | IntegerType | LongType | StringType | DateType | TimestampType | TimestamptzType
    ):
        return None
    value: Any = from_bytes(kind, data)
    if isinstance(kind, StringType):
        return value if len(value) < EXACT_TEXT else None
    if isinstance(kind, DateType):
        return date.fromordinal(_EPOCH.toordinal() + value)
    if isinstance(kind, TimestamptzType):
        return micros_to_timestamptz(value)
    if isinstance(kind, TimestampType):
        return micros_to_timestamp(value)
    return value


def _internal(term: Term, value: PartitionValue) -> Any:
    """A partition value as Iceberg stores it: times as counts since 1970."""
    if value is None:
        return None
    if term.unit == "hour":
        hour = datetime.strptime(str(value), "%Y-%m-%d-%H").replace(tzinfo=UTC)
        return int(hour.timestamp()) // 3600
    if term.unit == "month":
        year, month = str(value).split("-")
        return (int(year) - _EPOCH.year) * 12 + int(month) - 1
    if isinstance(value, date):
        return (value - _EPOCH).days
    return value


def _small(each: pa.Field) -> pa.Field:
    """Replaces the large strings and lists of pyiceberg with normal ones, which need less memory."""
    kind = each.type
    if pa.types.is_large_string(kind):
        kind = pa.string()
    elif pa.types.is_large_binary(kind):
        kind = pa.binary()
    elif pa.types.is_struct(kind):
        kind = pa.struct([_small(child) for child in kind])
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = pa.list_(_small(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(_small(kind.key_field), _small(kind.item_field))
    return each.with_type(kind)
