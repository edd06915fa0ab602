"""The columns of a topic for SQL: the fields of the value, typed, and those of the record.

The value is typed by its schema in the registry (subject `<topic>-value`, or the schema that the records name), else by
its JSON objects, else it is one column `value` with text. Columns of the record: `_key`, `_topic`, `_partition`,
`_offset`, `_timestamp`, `_headers`, and `_error` (why a value has no columns), as in pipelines. Bytes that are not
UTF-8 are base64.

A mask of the caller is applied before anything is typed. A masked value is JSON, whatever its format was.
"""

import base64
import copy
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from millstream.access.masking import Decode, Mask
from millstream.columnar.schema import HEADERS_TYPE, TIMESTAMP_TYPE, record_schema
from millstream.common.close_match import did_you_mean
from millstream.schemas import framing
from millstream.schemas.errors import RegistryError, RegistryUnreachableError, SchemaError, SchemaNotFoundError
from millstream.schemas.formats import Format, SchemaChoice
from millstream.schemas.registry_client import RegistryClient
from millstream.sql.early_filter import EarlyFilter
from millstream.sql.errors import SqlError
from millstream.sql.inferred_json import InferredJson, is_object, unified
from millstream.sql.statement import Statement

HEADERS_TEXT_TYPE = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.string())])))
RECORD_COLUMNS = {
    "_key": pa.string(),
    "_topic": pa.string(),
    "_partition": pa.int32(),
    "_offset": pa.int64(),
    "_timestamp": TIMESTAMP_TYPE,
    "_headers": HEADERS_TEXT_TYPE,
    "_error": pa.string(),
}
_RAW = {"_key": "key", "_partition": "partition", "_offset": "offset", "_timestamp": "timestamp", "_headers": "headers"}


class _Values(Protocol):
    """Typed columns of values."""

    name: str
    """Shown to users: Avro, JSON, …"""

    @property
    def reads_values(self) -> bool:
        """Whether the query needs the values."""
        ...

    def decode(self, values: pa.Array) -> tuple[pa.Table, pa.Array]:
        """A row for each value, and null or the reason for which it has none."""
        ...


@dataclass(frozen=True, slots=True)
class Masked:
    mask: Mask
    decode: Decode


class TopicColumns:
    """Makes typed tables from batches of raw records. Thread safe."""

    def __init__(
        self,
        topic: str,
        statement: Statement,
        sample: Sequence[tuple[bytes | None, bytes | None]],
        registry: RegistryClient | None,
        masked: Masked | None,
    ) -> None:
        """`sample`: keys and values of some records, unmasked."""
        self.topic = topic
        self.notes: list[str] = []
        self._masked = masked
        self._wanted = [name for name in RECORD_COLUMNS if statement.uses(name)]
        keys = [key for key, _ in sample if key is not None]
        values = [value for _, value in sample if value is not None]
        registry_of_values = None if masked is not None else registry
        if masked is not None:
            self.notes.append(f"{topic}: fields are masked for you")
            keys = [each for key in keys if (each := masked.mask.key(key, masked.decode)) is not None]
            values = [each for value in values if (each := masked.mask.value(value, masked.decode)) is not None]
        self._key = self._registered("key", keys, registry_of_values) if "_key" in self._wanted else None
        found = self._registered("value", values, registry_of_values)
        if found is not None:
            found.keep_only(statement)
        self._values: _Values = found or _without_schema(values, statement.columns)
        self._early = None if masked is not None else self._early_filter(statement, values, found)
        self.format = self._values.name
        self.inferred: dict[str, pa.DataType] = getattr(self._values, "first_types", {})
        """Names and types of the columns of JSON without a schema."""

    @property
    def raw_columns(self) -> list[str]:
        """The columns of records to read."""
        raw = [_RAW[name] for name in self._wanted if name in _RAW]
        return [*raw, "value"] if self._values.reads_values else raw or ["offset"]

    def typed(self, batch: pa.RecordBatch) -> pa.Table:
        """The columns of some records, typed. Tables of different batches may differ: `unify` ends that."""
        if self._masked is not None:
            batch = _masked_batch(batch, self._masked)
        if self._early is not None:
            batch = self._early.kept(batch)
        if self._values.reads_values:
            table, errors = self._values.decode(batch.column("value"))
        else:
            table, errors = None, pa.nulls(batch.num_rows, pa.string())
        columns: dict[str, pa.Array] = {}
        if table is not None:
            for name, column in zip(table.schema.names, table.columns, strict=True):
                if name not in RECORD_COLUMNS:  # a field of that name is hidden by the record's
                    columns.setdefault(name, column)
        for name in self._wanted:
            if name == "_topic":
                columns[name] = pa.repeat(pa.scalar(self.topic, pa.string()), batch.num_rows)
            elif name == "_error":
                columns[name] = errors
            elif name == "_key":
                columns[name] = self._keys(batch.column("key"))
            elif name == "_headers":
                columns[name] = _header_texts(batch.column("headers"))
            else:
                columns[name] = batch.column(_RAW[name])
        if not columns:  # select count(*)
            columns["_partition"] = pa.nulls(batch.num_rows, pa.int32())
        return pa.table(columns)

    def _early_filter(
        self, statement: Statement, sample: list[bytes], registered: "_Registered | None"
    ) -> EarlyFilter | None:
        """None if no condition says which records can be left out, or the query needs no other columns."""
        known = [field.name for field in registered.whole] if registered is not None else self._inferred_names()
        names = {name.lower() for name in known}
        of_topic = (found for name, found in statement.conditions.items() if name.lower() == self.topic.lower())
        conditions = [each for each in next(of_topic, ()) if each.column in names]
        columns = frozenset(each.column for each in conditions)
        needed = names if statement.columns is None else names & statement.columns
        if not conditions or needed <= columns or statement.lone_names - names - RECORD_COLUMNS.keys():
            return None
        if registered is not None:
            narrow = registered.only(frozenset(name for name in known if name.lower() in columns))
            return EarlyFilter(conditions, lambda values: narrow.decode(values)[0])
        inferred, first = self._values, _Json([data for data in sample if is_object(data)], columns)
        assert isinstance(inferred, _Json)

        def decode(values: pa.Array) -> pa.Table:
            table, _ = first.decode(values)
            inferred.learn(table.schema)  # the types of records that are left out count, too
            return table

        return EarlyFilter(conditions, decode)

    def _inferred_names(self) -> list[str]:
        return list(self._values.first_types) if isinstance(self._values, _Json) else []

    def unify(self, tables: list[pa.Table]) -> pa.Table:
        """One table with the columns of all."""
        if not tables:
            tables = [self.typed(_empty_batch(self.raw_columns))]
        split = [_split(table) for table in tables]
        values = unified([value for value, _ in split]) if any(value.num_columns for value, _ in split) else None
        if values is None:
            return pa.concat_tables([record for _, record in split])
        joined = []
        for value, (_, record) in zip(values, split, strict=True):
            for name, column in zip(record.schema.names, record.columns, strict=True):
                value = value.append_column(name, column)
            joined.append(value)
        return pa.concat_tables(joined)

    def _keys(self, keys: pa.Array) -> pa.Array:
        if self._key is None:
            return as_text(keys)
        table, _ = self._key.decode(keys)
        if table.num_columns == 1 and table.schema.names == ["key"]:
            return table.column(0).combine_chunks()  # the schema is a single value
        return table.to_struct_array().combine_chunks()

    def _registered(self, role: str, sample: list[bytes], registry: RegistryClient | None) -> "_Registered | None":
        """Columns by the schema of the registry, if there is one and the records are written with it."""
        if registry is None:
            return None
        named = [framing.split(data)[0] for data in sample if len(data) >= framing.PREFIX.size and not data[0]]
        subject = f"{self.topic}-{role}"
        try:
            try:
                kind = registry.latest(subject).schema.kind
                choice = SchemaChoice(kind, subject, None, registry, False, role)
            except SchemaNotFoundError:
                if not named or not named[-1]:
                    return None
                schema = registry.schema_by_id(named[-1])
                kind = schema.kind
                choice = SchemaChoice(kind, None, schema.text, registry, False, role)
            if sample and not named and kind != "JSON":
                self.notes.append(f"{self.topic}: subject {subject} has a schema, but the records do not name one")
                return None
            return _Registered(kind, _format(choice))
        except SchemaNotFoundError:
            return None
        except RegistryUnreachableError:
            raise
        except (RegistryError, SchemaError) as error:
            self.notes.append(f"{self.topic}: the schema of the {role} cannot be used: {error}")
            return None


def _format(choice: SchemaChoice) -> Format:
    # Imported on use: they need fastavro, orjson and protobuf.
    if choice.kind == "JSON":
        from millstream.schemas.json_format import JsonFormat

        return JsonFormat(choice)
    if choice.kind == "AVRO":
        from millstream.schemas.avro_format import AvroFormat

        return AvroFormat(choice)
    from millstream.schemas.protobuf_format import ProtobufFormat

    return ProtobufFormat(choice, None)


class _Registered:
    """Columns by a schema of the registry. Thread safe: each thread has a format of its own."""

    def __init__(self, kind: str, form: Format) -> None:
        self.name = {"AVRO": "Avro", "PROTOBUF": "Protobuf"}.get(kind, "JSON Schema")
        self.reads_values = True
        self.kind = self.whole = form.arrow_type()
        self._format = form
        self._of_thread = threading.local()
        self._kept: list[int] | None = None
        """The places of the columns that are needed; None: all."""

    def keep_only(self, statement: Statement) -> None:
        """Leaves out the columns that the query does not name."""
        known = {field.name.lower() for field in self.kind}
        if statement.columns is None or statement.lone_names - known - RECORD_COLUMNS.keys():
            return  # a name that no column has: the error of DuckDB lists those that there are
        names = frozenset(field.name for field in self.kind if field.name.lower() in statement.columns)
        if not names:
            self.reads_values = statement.uses("_error")
            return
        if statement.uses("_error"):  # an error may be in any column
            self._kept = [place for place, field in enumerate(self.kind) if field.name in names]
        else:  # the format does not even decode the others
            self._format.keep_only(names)
            self.kind = self._format.arrow_type()

    def only(self, names: frozenset[str]) -> "_Registered":
        """The same schema, with these columns alone."""
        made = _Registered("", copy.copy(self._format))
        made._format.keep_only(names)
        made.kind = made._format.arrow_type()
        return made

    def decode(self, values: pa.Array) -> tuple[pa.Table, pa.Array]:
        form = getattr(self._of_thread, "format", None)
        if form is None:  # formats keep schemas by id, and are not thread safe
            form = self._of_thread.format = copy.copy(self._format)
        rows, errors = form.decode(values)
        table = pa.Table.from_arrays(rows.flatten(), schema=pa.schema(list(self.kind)))
        return table if self._kept is None else table.select(self._kept), errors


class _Json(InferredJson):
    name = "JSON"


class _Text:
    """One column `value`."""

    name = "text"

    def __init__(self, wanted: frozenset[str] | None) -> None:
        self.reads_values = wanted is None or "value" in wanted

    def decode(self, values: pa.Array) -> tuple[pa.Table, pa.Array]:
        return pa.table({"value": as_text(values)}), pa.nulls(len(values), pa.string())


def _without_schema(sample: list[bytes], wanted: frozenset[str] | None) -> _Values:
    """JSON if at least half of the sample are JSON objects."""
    objects = [data for data in sample if is_object(data)]
    if objects and 2 * len(objects) >= len(sample):
        return _Json(objects, wanted)
    return _Text(wanted)


def as_text(values: pa.Array) -> pa.Array:
    """Bytes as text; base64 where they are not UTF-8."""
    try:
        found = values.cast(pa.string())
        found.validate(full=True)
        return found
    except pa.ArrowInvalid:
        return pa.array([_text(value) for value in values.to_pylist()], pa.string())


def _text(data: bytes | None) -> str | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return base64.b64encode(data).decode()


def _header_texts(headers: pa.Array) -> pa.Array:
    if headers.null_count == len(headers):
        return pa.nulls(len(headers), HEADERS_TEXT_TYPE)
    rows = [
        None if row is None else [{"key": each["key"], "value": _text(each["value"])} for each in row]
        for row in headers.to_pylist()
    ]
    return pa.array(rows, HEADERS_TEXT_TYPE)


def _masked_batch(batch: pa.RecordBatch, masked: Masked) -> pa.RecordBatch:
    mask, decode = masked.mask, masked.decode
    columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name in ("key", "value"):
            change = mask.key if name == "key" else mask.value
            column = pa.array([change(data, decode) for data in column.to_pylist()], pa.binary())
        elif name == "headers":
            rows = [_masked_headers(row, mask) for row in column.to_pylist()]
            column = pa.array(rows, HEADERS_TYPE)
        columns[name] = column
    return pa.RecordBatch.from_pydict(columns)


def _masked_headers(row: list[dict[str, object]] | None, mask: Mask) -> list[dict[str, object]] | None:
    if row is None:
        return None
    shown = mask.headers([(str(each["key"]), each["value"]) for each in row])  # type: ignore[misc]
    return [{"key": key, "value": value} for key, value in shown]


def _split(table: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The columns of the value, and those of the record."""
    own = [name for name in table.schema.names if name in RECORD_COLUMNS]
    return table.drop_columns(own) if own else table, table.select(own)


def _empty_batch(columns: list[str]) -> pa.RecordBatch:
    schema = record_schema(columns)
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def check_names(statement: Statement, known: Sequence[str]) -> dict[str, str]:
    """The topic of each name in the query: the same name, or the only one that differs in case."""
    found: dict[str, str] = {}
    for name in statement.topics:
        similar = [topic for topic in known if topic.lower() == name.lower()]
        if name in known:
            found[name] = name
        elif len(similar) == 1:
            found[name] = similar[0]
        else:
            hint = did_you_mean(name, list(known), cutoff=0.5, otherwise="millstream topic list shows the topics.")
            raise SqlError(f"there is no topic {name!r}", f"{hint} Names with other signs need double quotes")
    lower = [name.lower() for name in found]
    for name in found:
        if lower.count(name.lower()) > 1:
            raise SqlError(f"topics in one query must differ by more than case: {name}")
    return found
