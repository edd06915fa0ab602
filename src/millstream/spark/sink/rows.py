"""Rows of a query as encoded batches: columns checked, values encoded, a partition chosen for each row.

The columns are those of spark-sql-kafka's writer (topic, key, value, headers, partition), and `timestamp`; others are
left out. A row without a key goes to a partition that changes with each batch of rows, as with Java's producer.
"""

import os
import random
import time
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
from millstream.common.close_match import close_match
from millstream.raw_client import Cluster, ErrorCode, TopicPartition
from millstream.raw_client.errors import error_code
from millstream.schemas import Format, SchemaError
from millstream.spark.errors import SinkError
from millstream.spark.sink.options import WriteOptions
from millstream.spark.worker_memory import keep_modules

RECORD_COLUMNS = ("key", "value", "headers", "timestamp")
_DEFAULT_LIMIT = 1_048_588
"""Kafka's default of `max.message.bytes`: 1 MiB and the 12 bytes before a batch."""
_TOPIC_RESOURCE = 2
_ENCODE_AT = 2.2
"""Rows are encoded when they are enough for this many full batches, so that few small batches remain."""
_MOST_GATHERED = 64 << 20


class RowRouter:
    """Collects rows by partition and yields encoded batches. One per task."""

    def __init__(self, cluster: Cluster, options: WriteOptions) -> None:
        self._cluster = cluster
        self._options = options
        self._topics: dict[str, _Topic] = {}
        self._gathered: dict[TopicPartition, list[pa.RecordBatch]] = {}
        self._sizes: dict[TopicPartition, int] = {}
        self._held = 0
        """Memory held by the collected rows: a slice keeps its whole batch in memory."""

    def add(self, rows: pa.RecordBatch) -> Iterator[tuple[TopicPartition, EncodedBatch]]:
        """Adds rows and yields full batches."""
        self._held += rows.nbytes
        for name, part in self._by_topic(rows):
            topic = self._topic(name)
            for partition, part_rows in self._by_partition(topic, part):
                topic_partition = TopicPartition(name, partition)
                self._gathered.setdefault(topic_partition, []).append(part_rows)
                self._sizes[topic_partition] = self._sizes.get(topic_partition, 0) + part_rows.nbytes
                if self._sizes[topic_partition] >= topic.batch_bytes * _ENCODE_AT:
                    yield from self._encode(topic_partition)
        while sum(self._sizes.values()) > _MOST_GATHERED:
            yield from self._encode(max(self._sizes, key=lambda each: self._sizes[each]))
        if self._held > 2 * _MOST_GATHERED:
            self._gathered = {topic_partition: [_copied(parts)] for topic_partition, parts in self._gathered.items()}
            self._held = sum(self._sizes.values())

    def rest(self) -> Iterator[tuple[TopicPartition, EncodedBatch]]:
        """Yields the remaining batches, at the end of a task."""
        for topic_partition in list(self._gathered):
            yield from self._encode(topic_partition)

    # Topic and partition of a row

    def _by_topic(self, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if self._options.topic is not None:
            yield self._options.topic, rows
            return
        names = rows.column("topic").dictionary_encode()
        if names.null_count:
            raise SinkError("a row has null in the column `topic`; filter such rows out, or set the option topic")
        for index, name in enumerate(names.dictionary.to_pylist()):
            if not name:
                raise SinkError(
                    "a row has an empty text in the column `topic`; filter such rows out, or set the option topic"
                )
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
            has_partition = ~rows.column("partition").is_null().to_numpy(zero_copy_only=False)
            wrong = has_partition & ((given < 0) | (given >= topic.partitions))
            if wrong.any():
                number = int(given[np.flatnonzero(wrong)[0]])
                raise SinkError(
                    f"a row has {number} in the column `partition`, but topic {topic.name!r} has partitions 0 to "
                    f"{topic.partitions - 1}; change the column, or add partitions"
                )
            found = np.where(has_partition, given, found).astype(np.int32)
        without_partition = found < 0
        if without_partition.any():
            found[without_partition] = random.randrange(topic.partitions)
        return found

    # Batches

    def _encode(self, topic_partition: TopicPartition) -> Iterator[tuple[TopicPartition, EncodedBatch]]:
        topic = self._topic(topic_partition.topic)
        self._sizes.pop(topic_partition)
        parts = self._gathered.pop(topic_partition)
        rows = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
        for batch in topic.encoder.encode(rows):
            size = len(batch.data)
            if size > topic.limit:
                raise SinkError(
                    f"{topic_partition}: {'a row' if batch.record_count == 1 else 'a batch of rows'} takes {size} "
                    f"bytes; the "
                    f"limit is {topic.limit} ({topic.limit_name}). Raise it, set kafka.compression.type, or write "
                    "smaller rows"
                )
            yield topic_partition, batch

    def _topic(self, name: str) -> "_Topic":
        if (found := self._topics.get(name)) is None:
            found = self._topics[name] = _Topic(name, self._cluster, self._options)
        return found


def _copied(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(parts) > 1:
        return pa.concat_batches(parts)
    return parts[0].take(pa.array(np.arange(parts[0].num_rows)))


class _Topic:
    """Partitions, size limit and encoder of a topic, for one task."""

    def __init__(self, name: str, cluster: Cluster, options: WriteOptions) -> None:
        self.name = name
        facts = _facts_of(name, cluster, options)
        self.partitions, allowed = facts.partitions, facts.max_message_bytes
        self.limit = min(allowed, options.max_request_bytes)
        topics = f"max.message.bytes of topic {name!r}"
        self.limit_name = topics if allowed <= options.max_request_bytes else "option kafka.max.request.size"
        # Data that does not compress may get a little larger.
        self.batch_bytes = max(1024, int(self.limit * 0.9))
        self.encoder = ArrowEncoder(options.codec, max_batch_bytes=self.batch_bytes, level=options.level)


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the brokers say of a topic."""

    partitions: int
    max_message_bytes: int
    read_at: float


_FACTS_AGE_SECONDS = 10.0
_CREATION_WAIT_SECONDS = 10.0
_facts: dict[tuple[int, WriteOptions, str], _Facts] = {}
"""By process: a small batch would spend more time on these two requests than on its rows."""


def forget_topics(options: WriteOptions) -> None:
    """After a failed write: what the brokers said before may be the reason."""
    for key in [each for each in _facts if each[:2] == (os.getpid(), options)]:
        _facts.pop(key, None)


def _facts_of(name: str, cluster: Cluster, options: WriteOptions) -> _Facts:
    key = (os.getpid(), options, name)
    known = _facts.get(key)
    if known is None or time.monotonic() - known.read_at > _FACTS_AGE_SECONDS:
        if name not in cluster.topics([name]):
            _let_create(name, cluster)
        now = time.monotonic()
        known = _facts[key] = _Facts(cluster.partitions_of(name), _max_message_bytes(cluster, name), now)
    return known


def _let_create(name: str, cluster: Cluster) -> None:
    """Lets the brokers create a missing topic with their defaults, as Java's producer does.

    Brokers respond with "unknown" while they create the topic, and also if they never will: so there is a short wait.
    """
    deadline = time.monotonic() + _CREATION_WAIT_SECONDS
    while True:
        (row,) = cluster.call("metadata", topics=[{"name": name}], allow_auto_topic_creation=True).topics
        code = error_code(row.error_code)
        if code is ErrorCode.NONE:
            return
        if code not in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE):
            raise SinkError(f"topic {name!r} does not exist, and the brokers do not create it: {code.name}")
        if time.monotonic() > deadline:
            raise SinkError(
                f"topic {name!r} does not exist, and the brokers do not create missing topics "
                f"(auto.create.topics.enable). Create it: `millstream topic create {name}`"
            )
        time.sleep(0.1)


def _max_message_bytes(cluster: Cluster, name: str) -> int:
    resource = {"resource_type": _TOPIC_RESOURCE, "resource_name": name, "configuration_keys": ["max.message.bytes"]}
    response = cluster.call("describe_configs", resources=[resource])
    values = [int(each.value) for row in response.results for each in row.configs or () if each.value]
    return values[0] if values else _DEFAULT_LIMIT  # without permission to describe the topic


COLUMNS = ("topic", "key", "value", "headers", "partition", "timestamp")
_BYTES = (StringType, BinaryType)


@dataclass(frozen=True, slots=True)
class RowShape:
    """How rows become records. Picklable; a task makes a function of it."""

    options: WriteOptions
    value_columns: tuple[str, ...] = ()
    """The columns of an encoded value, or `value` alone if that is a struct."""
    value_struct: str = ""
    key_struct: str = ""
    """Their types as Spark's JSON, from which a schema is derived if there is no registry."""

    def transform(self) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """A function from the rows of the query to rows with the columns of a record."""
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


@dataclass(frozen=True, slots=True)
class EncodeValues:
    """For `mapInArrow`: rows to rows with the columns of a record, in the order of COLUMNS, and values as bytes."""

    shape: RowShape

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_modules()
        encode = self.shape.transform()
        for rows in batches:
            found = encode(rows)
            at = found.schema.get_field_index("value")
            yield found.set_column(at, "value", found.column(at).cast(pa.binary()))


@lru_cache(maxsize=64)
def _format(options: WriteOptions, side: str, struct: str) -> Format:
    """Made once per process: it fetches the schema from the registry, or registers one."""
    from millstream.schemas import make_format  # lazy: raw bytes do not need these libraries

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


def shape_of(schema: StructType, options: WriteOptions) -> RowShape:
    """Checks the columns of a query. SinkError names a missing or wrong column, and the type it must have."""
    fields = {field.name: field.dataType for field in schema.fields}
    if options.topic is None and "topic" not in fields:
        raise SinkError("the topic is missing; set the option topic, or add a column `topic`")
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
        raise SinkError("keyFormat is set, but there is no column `key`; add it, or remove keyFormat")
    else:
        key_struct = fields["key"].json()
    if options.value.format == "raw":
        _check_raw_value(fields)
        return RowShape(options, (), "", key_struct)
    given = fields.get("value")
    if isinstance(given, StructType):
        return RowShape(options, ("value",), given.json(), key_struct)
    names = tuple(name for name in fields if name not in COLUMNS or name == "value")
    if not names:
        raise SinkError("valueFormat is set, but there are no columns for the value; add some, or remove valueFormat")
    struct = StructType([field for field in schema.fields if field.name in names])
    return RowShape(options, names, struct.json(), key_struct)


def _check_raw_value(fields: dict[str, DataType]) -> None:
    if "value" not in fields:
        near = close_match("value", fields)
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
