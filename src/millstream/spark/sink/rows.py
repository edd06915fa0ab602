"""Rows to batches: where each row goes (topic, partition), and its columns as the record's.

Columns are those of spark-sql-kafka's writer (topic, key, value, headers, partition), and `timestamp`; others are left
out. A row without a key goes to a partition that changes now and then, as Java's producer does it.

The columns a query writes: checked before anything runs, and made into those of records.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from millstream.columnar import ArrowEncoder, EncodedBatch, partition_by_key
from millstream.raw_client import Cluster, TopicPartition
from millstream.schemas import Format, SchemaError
from millstream.spark.errors import SinkError, nearest
from millstream.spark.sink.options import WriteOptions

RECORD_COLUMNS = ("key", "value", "headers", "timestamp")
PLACING_COLUMNS = ("topic", "partition")
_DEFAULT_LIMIT = 1_048_588
"""Kafka's default of `max.message.bytes`: 1 MiB and the 12 bytes in front of a batch."""
_TOPIC_RESOURCE = 2
_ENCODE_AT = 2.2
"""How many batches' worth of rows are gathered for a partition before they are encoded: few small ones remain."""
_MOST_GATHERED = 64 << 20


class RowRouter:
    """Gathers rows by partition and hands out encoded batches. One per task."""

    def __init__(self, cluster: Cluster, options: WriteOptions) -> None:
        self._cluster = cluster
        self._options = options
        self._topics: dict[str, _Topic] = {}
        self._gathered: dict[TopicPartition, list[pa.RecordBatch]] = {}
        self._sizes: dict[TopicPartition, int] = {}
        self._held = 0
        """Memory that gathered rows hold on to: a few rows of a batch keep all of it."""

    def add(self, rows: pa.RecordBatch) -> Iterator[tuple[TopicPartition, EncodedBatch]]:
        """Takes rows; gives the batches that are full."""
        self._held += rows.nbytes
        for name, part in self._by_topic(rows):
            topic = self._topic(name)
            for partition, stretch in self._by_partition(topic, part):
                place = TopicPartition(name, partition)
                self._gathered.setdefault(place, []).append(stretch)
                self._sizes[place] = self._sizes.get(place, 0) + stretch.nbytes
                if self._sizes[place] >= topic.batch_bytes * _ENCODE_AT:
                    yield from self._encode(place)
        while sum(self._sizes.values()) > _MOST_GATHERED:
            yield from self._encode(max(self._sizes, key=lambda each: self._sizes[each]))
        if self._held > 2 * _MOST_GATHERED:
            self._gathered = {place: [_copied(stretches)] for place, stretches in self._gathered.items()}
            self._held = sum(self._sizes.values())

    def rest(self) -> Iterator[tuple[TopicPartition, EncodedBatch]]:
        """What is left in the end."""
        for place in list(self._gathered):
            yield from self._encode(place)

    # Where rows go

    def _by_topic(self, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if self._options.topic is not None:
            yield self._options.topic, rows
            return
        names = rows.column("topic").dictionary_encode()
        if names.null_count:
            raise SinkError("a row has null in the column `topic`: filter such rows out, or set the option topic")
        for index, name in enumerate(names.dictionary.to_pylist()):
            if not name:
                raise SinkError("a row has an empty text in the column `topic`: no topic is called that")
            yield name, rows if len(names.dictionary) == 1 else rows.filter(pc.equal(names.indices, index))

    def _by_partition(self, topic: "_Topic", rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        if not rows.num_rows:
            return
        columns = rows.schema.names
        record = rows.select([each for each in RECORD_COLUMNS if each in columns])
        partitions = self._partitions(topic, rows)
        first = int(partitions[0])
        if bool((partitions == first).all()):
            yield first, record
            return
        order = np.argsort(partitions, kind="stable")
        record = record.take(pa.array(order))
        counts = np.bincount(partitions, minlength=topic.partitions)
        start = 0
        for partition in np.flatnonzero(counts):
            length = int(counts[partition])
            yield int(partition), record.slice(start, length)
            start += length

    def _partitions(self, topic: "_Topic", rows: pa.RecordBatch) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
        if "key" in rows.schema.names:
            found = partition_by_key(rows.column("key"), topic.partitions).copy()
        else:
            found = np.full(rows.num_rows, -1, np.int32)
        if "partition" in rows.schema.names:
            given = pc.fill_null(rows.column("partition").cast(pa.int32()), -1).to_numpy(zero_copy_only=False)
            asked = ~rows.column("partition").is_null().to_numpy(zero_copy_only=False)
            wrong = asked & ((given < 0) | (given >= topic.partitions))
            if wrong.any():
                number = int(given[np.flatnonzero(wrong)[0]])
                raise SinkError(
                    f"a row has {number} in the column `partition`, but topic {topic.name!r} has the partitions 0 to "
                    f"{topic.partitions - 1}"
                )
            found = np.where(asked, given, found).astype(np.int32)
        anywhere = found < 0
        if anywhere.any():
            found[anywhere] = random.randrange(topic.partitions)
        return found

    # Batches

    def _encode(self, place: TopicPartition) -> Iterator[tuple[TopicPartition, EncodedBatch]]:
        topic = self._topic(place.topic)
        self._sizes.pop(place)
        stretches = self._gathered.pop(place)
        rows = stretches[0] if len(stretches) == 1 else pa.concat_batches(stretches)
        for batch in topic.encoder.encode(rows):
            size = len(batch.data)
            if size > topic.limit:
                raise SinkError(
                    f"{place}: {'a row' if batch.record_count == 1 else 'a batch of rows'} takes {size} bytes; the "
                    f"limit is {topic.limit} ({topic.limit_name}). Raise it, compress (kafka.compression.type), or "
                    "write less per row"
                )
            yield place, batch

    def _topic(self, name: str) -> "_Topic":
        if (found := self._topics.get(name)) is None:
            found = self._topics[name] = _Topic(name, self._cluster, self._options)
        return found


def _copied(stretches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(stretches) > 1:
        return pa.concat_batches(stretches)
    return stretches[0].take(pa.array(np.arange(stretches[0].num_rows)))


class _Topic:
    """What is known of one topic, for one task."""

    def __init__(self, name: str, cluster: Cluster, options: WriteOptions) -> None:
        self.name = name
        self.partitions = cluster.partitions_of(name)
        allowed = _max_message_bytes(cluster, name)
        self.limit = min(allowed, options.max_request_bytes)
        topics = f"max.message.bytes of topic {name!r}"
        self.limit_name = topics if allowed <= options.max_request_bytes else "option kafka.max.request.size"
        # What does not compress may get a little larger.
        self.batch_bytes = max(1024, int(self.limit * 0.9))
        self.encoder = ArrowEncoder(options.codec, max_batch_bytes=self.batch_bytes, level=options.level)


def _max_message_bytes(cluster: Cluster, name: str) -> int:
    resource = {"resource_type": _TOPIC_RESOURCE, "resource_name": name, "configuration_keys": ["max.message.bytes"]}
    answer = cluster.call("describe_configs", resources=[resource])
    values = [int(each.value) for row in answer.results for each in row.configs or () if each.value]
    return values[0] if values else _DEFAULT_LIMIT  # those who may not look get what is usual


COLUMNS = ("topic", "key", "value", "headers", "partition", "timestamp")
_BYTES = (StringType, BinaryType)


@dataclass(frozen=True, slots=True)
class Shape:
    """How rows become records; can be pickled, and made into a function in the task."""

    options: WriteOptions
    value_columns: tuple[str, ...] = ()
    """What makes up a value that is encoded: columns, or `value` alone if that is a struct."""
    value_struct: str = ""
    key_struct: str = ""
    """Their types as Spark's JSON: what a schema is made of where there is no registry to ask."""

    def transform(self) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """Rows as Spark gives them to rows with the record's columns."""
        options = self.options
        if not options.typed:
            return lambda rows: rows
        key = _format(options, "key", self.key_struct) if options.key.format != "raw" else None
        value = _format(options, "value", self.value_struct) if options.value.format != "raw" else None

        def encode(rows: pa.RecordBatch) -> pa.RecordBatch:
            columns = {name: rows.column(name) for name in COLUMNS if name in rows.schema.names}
            if key is not None:
                columns["key"] = _encoded(key, "key", rows.column("key"))
            if value is not None:
                columns["value"] = _encoded(value, "value", self._struct(rows))
            return pa.RecordBatch.from_pydict(columns)

        return encode

    def _struct(self, rows: pa.RecordBatch) -> pa.Array:
        if self.value_columns == ("value",):
            return rows.column("value")
        fields = [rows.schema.field(name) for name in self.value_columns]
        return pa.StructArray.from_arrays([rows.column(name) for name in self.value_columns], fields=fields)


@lru_cache(maxsize=64)
def _format(options: WriteOptions, side: str, struct: str) -> Format:
    """Made once per process: it asks the registry for its schema, or registers one."""
    from millstream.schemas import make_format  # brings libraries that raw bytes need not

    typing = options.value if side == "value" else options.key
    settings = typing.settings() | options.registry.settings()
    if options.registry.url is None and typing.schema is None:
        settings["schema"] = struct
    return make_format(typing.format, role=side, topic=options.topic, options=settings)


def _encoded(made: Format, side: str, rows: pa.Array) -> pa.Array:
    try:
        return made.encode(rows)
    except (SchemaError, ValueError) as error:
        raise SinkError(f"column `{side}` does not fit its schema: {error}") from error


def shape_of(schema: StructType, options: WriteOptions) -> Shape:
    """Checks the columns; SinkError names the one that is missing or has a wrong type, and what would be right."""
    fields = {field.name: field.dataType for field in schema.fields}
    if options.topic is None and "topic" not in fields:
        raise SinkError("where to? Set the option topic, or give each row a column `topic`")
    _check(fields, "topic", (StringType,), "string")
    _check(fields, "partition", (IntegerType, ShortType, ByteType), "int")
    _check(fields, "timestamp", (TimestampType, TimestampNTZType, LongType), "timestamp (or a long of milliseconds)")
    if "headers" in fields and not _is_headers(fields["headers"]):
        raise SinkError(
            f"column `headers` is {fields['headers'].simpleString()}; it must be array<struct<key:string,value:binary>>"
        )
    key_struct = ""
    if options.key.format == "raw":
        _check(fields, "key", _BYTES, "string or binary; or set keyFormat")
    elif "key" not in fields:
        raise SinkError("keyFormat is set, but there is no column `key`")
    else:
        key_struct = fields["key"].json()
    if options.value.format == "raw":
        _check_raw_value(fields)
        return Shape(options, (), "", key_struct)
    given = fields.get("value")
    if isinstance(given, StructType):
        return Shape(options, ("value",), given.json(), key_struct)
    names = tuple(name for name in fields if name not in COLUMNS or name == "value")
    if not names:
        raise SinkError("valueFormat is set, but there are no columns to make a value of")
    struct = StructType([field for field in schema.fields if field.name in names])
    return Shape(options, names, struct.json(), key_struct)


def _check_raw_value(fields: dict[str, DataType]) -> None:
    if "value" not in fields:
        near = nearest("value", fields)
        hint = f"rename {near!r}" if near else "select one column as value, or set valueFormat to encode all columns"
        raise SinkError(f"there is no column `value` in {', '.join(fields) or 'the rows'}: {hint}")
    _check(fields, "value", _BYTES, "string or binary; or set valueFormat")


def _check(fields: dict[str, DataType], name: str, allowed: tuple[type[DataType], ...], text: str) -> None:
    given = fields.get(name)
    if given is not None and not isinstance(given, allowed):
        raise SinkError(f"column `{name}` is {given.simpleString()}; it must be {text}")


def _is_headers(given: DataType) -> bool:
    if not isinstance(given, ArrayType) or not isinstance(given.elementType, StructType):
        return False
    types = [(field.name, type(field.dataType)) for field in given.elementType.fields]
    return types == [("key", StringType), ("value", BinaryType)]
