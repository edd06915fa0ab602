"""Keys and values as typed columns, and handling of bad records: null, dead letter, or failure.

A record is bad if its key or its value cannot be decoded; null (a tombstone) is never bad. The task that reads a bad
record writes the dead letter, unchanged and with headers for its origin and the reason, before the task ends. A
repeated task writes it again with the same headers (`millstream.topic`, `.partition`, `.offset`): at least once.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType

from millstream.columnar.schema import HEADERS_TYPE
from millstream.spark.errors import BadRecordError, OptionError
from millstream.spark.options import ReadOptions, Typing
from millstream.spark.read_options import ERROR_COLUMN
from millstream.spark.sink.options import WriteOptions, parse_write_options
from millstream.spark.sink.task import write_at_least_once

NEEDED_COLUMNS = ("key", "value", "headers", "timestamp", "partition", "offset")
_FLUSH_BYTES = 8 << 20
REASON, TOPIC, PARTITION, OFFSET = (f"millstream.{each}" for each in ("reason", "topic", "partition", "offset"))


class DeadLetters:
    """Collects the bad records of a task, and writes them when there are many, or at the end."""

    def __init__(self, options: ReadOptions, topic: str) -> None:
        self._options = options
        self._topic = topic
        self._gathered: list[pa.RecordBatch] = []
        self._size = 0

    def add(self, records: pa.RecordBatch, reasons: pa.Array) -> None:
        """`records`: unchanged records, with a reason for each."""
        letters = pa.RecordBatch.from_arrays(
            [
                records.column("key"),
                records.column("value"),
                self._headers(records, reasons),
                records.column("timestamp"),
            ],
            names=["key", "value", "headers", "timestamp"],
        )
        self._gathered.append(letters)
        self._size += letters.nbytes
        if self._size >= _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes all collected records; returns when they are acknowledged."""
        if self._gathered:
            write_at_least_once(_write_options(self._options), lambda rows: rows, iter(self._gathered))
            self._gathered, self._size = [], 0

    def _headers(self, records: pa.RecordBatch, reasons: pa.Array) -> pa.Array:
        constant = [{"key": key, "value": value.encode()} for key, value in self._options.dead_letter_headers]
        made: list[list[dict[str, Any]]] = []
        places = zip(
            records.column("headers").to_pylist(),
            records.column("partition").to_pylist(),
            records.column("offset").to_pylist(),
            pc.cast(reasons, pa.string()).to_pylist(),
            strict=True,
        )
        for before, partition, offset, reason in places:
            described = {REASON: reason, TOPIC: self._topic, PARTITION: str(partition), OFFSET: str(offset)}
            own = [{"key": key, "value": value.encode()} for key, value in described.items()]
            made.append([*(before or []), *own, *constant])
        return pa.array(made, HEADERS_TYPE)


def _write_options(options: ReadOptions) -> WriteOptions:
    assert options.dead_letter_topic is not None
    given = {"kafka.bootstrap.servers": options.connection.bootstrap, "topic": options.dead_letter_topic}
    passed_on = {f"kafka.{name}": value for name, value in options.connection.settings}
    return parse_write_options(given | passed_on, streaming=False)


class Format(Protocol):
    """A format of `millstream.schemas`. Pickled, it keeps its chosen schema."""

    def arrow_type(self) -> pa.DataType: ...

    def decode(self, values: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Typed values, and for each row the reason for which it cannot be decoded, or null."""


def formats_of(options: ReadOptions) -> dict[str, Format]:
    """The formats of typed columns; they may request schemas from the registry."""
    return {side: _make(side, typing, options) for side, typing in _decoded(options).items()}


def _decoded(options: ReadOptions) -> dict[str, Typing]:
    """The sides to decode: selected typed columns, or all of them if bad records matter."""
    bad_matter = options.bad_records != "column" or ERROR_COLUMN in options.columns
    sides = {"key": options.key, "value": options.value}
    return {
        side: typing
        for side, typing in sides.items()
        if typing.format != "raw" and (bad_matter or side in options.columns)
    }


def spark_types(formats: Mapping[str, Format]) -> dict[str, DataType]:
    """The Spark types of typed columns."""
    return {side: from_arrow_type(made.arrow_type()) for side, made in formats.items()}


def raw_columns(options: ReadOptions) -> tuple[str, ...]:
    """The raw columns that are needed for the selected columns and for dead letters."""
    wanted = tuple(name for name in options.columns if name != ERROR_COLUMN)
    more = NEEDED_COLUMNS if options.bad_records == "deadLetterTopic" else ("partition", "offset")
    return tuple(dict.fromkeys((*wanted, *_decoded(options), *more)))


class TypedColumns:
    """Converts raw batches to the batches for Spark; `expected` is their exact schema."""

    def __init__(self, options: ReadOptions, expected: pa.Schema, formats: Mapping[str, Format]) -> None:
        self._options = options
        self._expected = expected
        self._formats = formats

    def convert(self, batches: Iterator[pa.RecordBatch], topic: str) -> Iterator[pa.RecordBatch]:
        """Dead letters are written before the last batch ends, and so before the task succeeds."""
        letters = DeadLetters(self._options, topic) if self._options.bad_records == "deadLetterTopic" else None
        for batch in batches:
            yield self._convert(batch, topic, letters)
        if letters is not None:
            letters.flush()

    def _convert(self, batch: pa.RecordBatch, topic: str, letters: DeadLetters | None) -> pa.RecordBatch:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        reasons = pa.nulls(batch.num_rows, pa.string())
        for side, made in self._formats.items():
            typed, errors = made.decode(columns[side])
            columns[side] = typed
            if errors.null_count < len(errors):
                named = pc.binary_join_element_wise(f"{side}: ", errors, "")
                reasons = pc.coalesce(pc.binary_join_element_wise(reasons, named, "; "), reasons, named)
        columns[ERROR_COLUMN] = reasons
        made_batch = pa.RecordBatch.from_arrays(
            [_exactly(columns[field.name], field.type) for field in self._expected], schema=self._expected
        )
        if reasons.null_count == len(reasons) or self._options.bad_records == "column":
            return made_batch
        bad = reasons.is_valid()
        if letters is not None:
            letters.add(batch.filter(bad), reasons.filter(bad))
            return made_batch.filter(pc.invert(bad))
        first = batch.filter(bad).slice(0, 1).to_pylist()[0]
        raise BadRecordError(
            f"{topic}-{first['partition']}@{first['offset']} cannot be decoded: {reasons.filter(bad)[0].as_py()}. To "
            "continue, set badRecords to column or deadLetterTopic"
        )


def _make(side: str, typing: Typing, options: ReadOptions) -> Format:
    # Imported here, because the libraries of the formats are slow to import.
    from millstream.schemas import make_format

    topics = options.subscription.topics
    if typing.subject is None and typing.schema is None and len(topics) != 1:
        raise OptionError(
            f"{side}Format {typing.format} of several topics needs {side}Subject or {side}Schema: a column has one type"
        )
    return make_format(
        typing.format,
        role=side,
        topic=topics[0] if len(topics) == 1 else None,
        options=typing.settings() | options.registry.settings(),
    )


def _exactly(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Casts to the type that Spark has; fields are matched by name, because the schema may have changed."""
    if array.type == wanted:
        return array
    if not (pa.types.is_struct(wanted) and pa.types.is_struct(array.type)):
        return array.cast(wanted)
    names = {field.name for field in array.type}
    children = [
        _exactly(pc.struct_field(array, field.name), field.type)
        if field.name in names
        else pa.nulls(len(array), field.type)
        for field in wanted
    ]
    return pa.StructArray.from_arrays(children, fields=list(wanted), mask=array.is_null())
