"""Records of a topic as rows of its table: bytes, or the fields of the newest schema in the registry.

A record that cannot become a row is a dead letter: one that cannot be decoded, and in a table with keys one without
them. A record with a null value (a tombstone) is a row with nulls, and in a table with keys a deletion.

A `Conversion` is made on the driver for each batch, so a new schema in the registry is used from the next batch on. It
is pickled and used by tasks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from millstream.columnar.schema import HEADERS_TYPE
from millstream.lake.errors import LakeError
from millstream.lake.row_crc import Sums, row_sums
from millstream.schemas import SchemaNotFoundError
from millstream.tables.settings import TopicTable

READ_COLUMNS: Final = ("key", "value", "headers", "timestamp", "partition", "offset")
_TIME: Final = pa.timestamp("us", "UTC")
RAW: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", _TIME),
    ]
)
KEY, PARTITION, OFFSET, TIMESTAMP, HEADERS = "_key", "_partition", "_offset", "_timestamp", "_headers"
SEQUENCE: Final = "_sequence"
DELETED: Final = "_deleted"
_GENERATION_BITS: Final = 48
_RESERVED: Final = (KEY, PARTITION, OFFSET, TIMESTAMP, HEADERS, SEQUENCE, DELETED)


class Format(Protocol):
    def arrow_type(self) -> pa.StructType: ...
    def decode(self, values: pa.Array) -> tuple[pa.Array, pa.Array]: ...


@dataclass(frozen=True)
class Converted:
    """The rows of records, and the records that could not become rows with the reason for each."""

    rows: pa.RecordBatch
    bad: pa.RecordBatch | None
    reasons: pa.Array | None


@dataclass(frozen=True)
class Conversion:
    """How records of a topic become rows."""

    topic: str
    value: Format | None = None
    """None: as bytes."""
    key: Format | None = None
    upsert_keys: tuple[str, ...] | None = None
    """None: rows are appended."""
    generation: int = 0

    @property
    def is_typed(self) -> bool:
        return self.value is not None

    @property
    def place_columns(self) -> tuple[str, str]:
        """The columns with the partition and the offset of a record."""
        return (PARTITION, OFFSET) if self.is_typed else ("partition", "offset")

    @property
    def key_columns(self) -> tuple[str, ...] | None:
        if self.upsert_keys is None:
            return None
        return self.upsert_keys or (KEY if self.is_typed else "key",)

    def schema(self) -> pa.Schema:
        """The columns of `convert`. LakeError if names are taken."""
        if self.value is None:
            fields = list(RAW)
        else:
            own = list(self.value.arrow_type())
            if taken := {each.name for each in own} & set(_RESERVED):
                raise LakeError(
                    f"the schema of {self.topic}-value has a field {min(taken)}, which is a column of the record: "
                    "rename the field, or set millstream.table.columns=raw"
                )
            fields = [
                *own,
                pa.field(KEY, self._key_type()),
                pa.field(HEADERS, HEADERS_TYPE),
                pa.field(PARTITION, pa.int32()),
                pa.field(OFFSET, pa.int64()),
                pa.field(TIMESTAMP, _TIME),
            ]
        if self.upsert_keys is not None:
            names = [each.name for each in fields]
            if missing := [name for name in self.upsert_keys if name not in names]:
                raise LakeError(
                    f"millstream.table.keys: {self.topic} has no column {missing[0]}; columns are {', '.join(names)}"
                )
            fields += [pa.field(SEQUENCE, pa.int64()), pa.field(DELETED, pa.bool_())]
        return pa.schema(fields)

    def _key_type(self) -> pa.DataType:
        if self.key is None:
            return pa.binary()
        kind = self.key.arrow_type()
        return kind[0].type if _is_single(kind) else kind

    def convert(self, records: pa.RecordBatch) -> Converted:
        """`records`: with READ_COLUMNS."""
        schema = self.schema()
        columns = {
            name: records.column(name).cast(RAW.field(name).type) for name in ("partition", "offset", "timestamp")
        }
        columns["headers"] = records.column("headers").cast(HEADERS_TYPE)
        reasons = pa.nulls(records.num_rows, pa.string())
        if self.value is None:
            columns |= {"key": records.column("key"), "value": records.column("value")}
            columns["topic"] = pa.repeat(pa.scalar(self.topic), records.num_rows)
        else:
            columns = {f"_{name}": column for name, column in columns.items()}
            values, reasons = self.value.decode(records.column("value"))
            reasons = _named("value", reasons)
            for field, child in zip(self.value.arrow_type(), values.flatten(), strict=True):
                columns[field.name] = child
            columns[KEY], reasons = self._decoded_key(records.column("key"), reasons)
        if self.upsert_keys is not None:
            reasons = self._add_change(columns, records, reasons)
        rows = pa.RecordBatch.from_arrays([columns[each.name].cast(each.type) for each in schema], schema=schema)
        if reasons.null_count == len(reasons):
            return Converted(rows, None, None)
        bad = reasons.is_valid()
        return Converted(rows.filter(pc.invert(bad)), records.filter(bad), reasons.filter(bad))

    def _decoded_key(self, keys: pa.Array, reasons: pa.Array) -> tuple[pa.Array, pa.Array]:
        if self.key is None:
            return keys, reasons
        found, errors = self.key.decode(keys)
        if _is_single(found.type):
            found = pc.struct_field(found, "key")
        return found, pc.coalesce(reasons, _named("key", errors))

    def _add_change(self, columns: dict[str, pa.Array], records: pa.RecordBatch, reasons: pa.Array) -> pa.Array:
        """Adds the sequence and the mark of a deletion. A key that is null is a reason not to take the record."""
        deleted = records.column("value").is_null()
        columns[SEQUENCE] = pc.add(records.column("offset").cast(pa.int64()), self.generation << _GENERATION_BITS)
        columns[DELETED] = deleted
        keys = self.key_columns
        assert keys is not None
        for name in keys:
            if name not in (KEY, "key") and pc.any(deleted).as_py():
                columns[name] = pc.if_else(deleted, self._from_key(name, columns), columns[name])
            missing = pa.array([f"the key column {name} is null"]).take(pa.array([0] * records.num_rows))
            reasons = pc.coalesce(reasons, pc.if_else(columns[name].is_null(), missing, pa.scalar(None, pa.string())))
        return reasons

    def _from_key(self, name: str, columns: Mapping[str, pa.Array]) -> pa.Array:
        """The key column of a deletion, which has no value: from the key of the record."""
        wanted = columns[name].type
        key = columns[KEY] if self.is_typed else columns["key"]
        if pa.types.is_struct(key.type):
            if key.type.get_field_index(name) < 0:
                return pa.nulls(len(key), wanted)
            return pc.struct_field(key, name).cast(wanted)
        if len(self.upsert_keys or ()) != 1:
            return pa.nulls(len(key), wanted)
        return pa.array([_parsed(value, wanted) for value in key.to_pylist()], wanted)


def _parsed(value: Any, wanted: pa.DataType) -> Any:
    """A key of bytes as text or number; None if it is neither."""
    try:
        if isinstance(value, bytes) and not pa.types.is_binary(wanted):
            value = value.decode()
        return pa.scalar(value).cast(wanted).as_py() if value is not None else None
    except (ValueError, pa.ArrowException):
        return None


def _is_single(kind: pa.DataType) -> bool:
    """Whether the schema of a key is no record: then it is a field `key`."""
    return bool(pa.types.is_struct(kind)) and [each.name for each in kind] == ["key"]


def _named(side: str, errors: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(f"{side}: ", errors, "")


def record_sums(records: pa.RecordBatch) -> Sums:
    """The checksum of each record, as the topic has it."""
    columns = [
        pa.array(records.column("partition")).cast(pa.int32()),
        records.column("offset"),
        records.column("key"),
        records.column("value"),
    ]
    return row_sums(pa.RecordBatch.from_arrays(columns, names=["partition", "offset", "key", "value"]))


@dataclass(frozen=True)
class Registry:
    """The schema registry, by the options of `schemas.make_format`."""

    options: tuple[tuple[str, str], ...] = ()

    def format_of(self, topic: str, role: str) -> Format | None:
        """The format of the newest schema of a subject; None if there is none."""
        from millstream.schemas.formats import client_of, make_format

        if not self.options:
            return None
        given = dict(self.options)
        try:
            kind = client_of(given["registry.url"], given).latest(f"{topic}-{role}").schema.kind
        except SchemaNotFoundError:
            return None
        return make_format(kind.lower(), role=role, topic=topic, options=given)


def conversion_of(table: TopicTable, registry: Registry, columns: str, generation: int) -> Conversion:
    """The conversion for the next batch. `columns`: raw or registry."""
    keys = table.keys if table.is_upsert else None
    made = Conversion(table.topic, upsert_keys=keys, generation=generation)
    if columns == "raw":
        return made
    value = registry.format_of(table.topic, "value")
    if value is None:
        where = dict(registry.options).get("registry.url")
        raise LakeError(
            f"millstream.table.columns=registry: the registry at {where} has no subject {table.topic}-value; register "
            "a schema, or set millstream.table.columns=raw"
            if where
            else "millstream.table.columns=registry needs the registry: start the server with --registry URL"
        )
    return replace(made, value=value, key=registry.format_of(table.topic, "key"))
