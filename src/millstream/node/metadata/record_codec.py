"""Metadata records to bytes and back, as Kafka writes them in `__cluster_metadata`.

A record's value is a frame: three unsigned varints (frame version 1, type, version of the type) and the message in
flexible encoding. `kafka-dump-log --cluster-metadata-decoder` reads what is written here.
"""

import struct
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from importlib.resources import files
from typing import Any

from millstream.formats.protocol.primitives import Cursor, MalformedMessage, read_unsigned_varint, write_unsigned_varint
from millstream.formats.protocol.schema import Schema, split_entries
from millstream.node.metadata import records
from millstream.node.metadata.records import CorruptMetadataError, MetadataRecord

FRAME_VERSION = 1
_MAX_SHORT_LIST = 126
"""The length of such a list, plus one, is one byte."""

_WRITTEN_VERSIONS: dict[type[Any], tuple[str, int]] = {
    records.RegisterBrokerRecord: ("register_broker", 3),
    records.UnregisterBrokerRecord: ("unregister_broker", 0),
    records.BrokerRegistrationChangeRecord: ("broker_registration_change", 2),
    records.TopicRecord: ("topic", 0),
    records.PartitionRecord: ("partition", 2),
    records.PartitionChangeRecord: ("partition_change", 2),
    records.RemoveTopicRecord: ("remove_topic", 0),
    records.ConfigRecord: ("config", 0),
    records.ProducerIdsRecord: ("producer_ids", 0),
    records.FeatureLevelRecord: ("feature_level", 0),
    records.NoOpRecord: ("no_op", 0),
}
"""The schema of each record, and the version in which it is written: those of metadata.version 4.2-IV1."""

_INNER: dict[str, type[Any]] = {"end_points": records.Endpoint, "features": records.SupportedFeature}
"""The structures inside records, by the name of the field that holds them."""

_FIELD_NAMES = {kind: tuple(each.name for each in fields(kind)) for kind in (*_WRITTEN_VERSIONS, *_INNER.values())}


@cache
def _schemas() -> dict[type[Any], Schema]:
    entries = split_entries(files("millstream.node.metadata").joinpath("metadata.schema").read_text())
    return {kind: Schema(entries["record", name]) for kind, (name, _version) in _WRITTEN_VERSIONS.items()}


@cache
def _decoders() -> dict[int, tuple[Schema, Callable[[Any], MetadataRecord]]]:
    return {schema.api_key: (schema, _from_message(kind)) for kind, schema in _schemas().items()}


def encode_record(record: MetadataRecord) -> bytes:
    """The value of the log record that carries this metadata record."""
    if isinstance(record, records.PartitionRecord):
        encoded = _encode_partition(record)
        if encoded is not None:
            return encoded
    kind = type(record)
    schema, version = _schemas()[kind], _WRITTEN_VERSIONS[kind][1]
    out = bytearray()
    write_unsigned_varint(out, FRAME_VERSION)
    write_unsigned_varint(out, schema.api_key)
    write_unsigned_varint(out, version)
    schema.write(out, {name: _plain(name, getattr(record, name)) for name in _names(kind)}, version)
    return bytes(out)


def _encode_partition(record: records.PartitionRecord) -> bytes | None:
    """The usual partition by hand, as a request may create ten thousand; None for one that is not usual."""
    lists = record.replicas, record.isr, record.removing_replicas, record.adding_replicas, record.directories
    if (
        record.leader_recovery_state != 0
        or record.eligible_leader_replicas is not None
        or record.last_known_elr is not None
        or max(map(len, lists)) > _MAX_SHORT_LIST
    ):
        return None
    replicas, isr, removing, adding, directories = lists
    return b"".join(
        (
            _partition_head(),
            struct.pack(
                f">i16sB{len(replicas)}iB{len(isr)}iB{len(removing)}iB{len(adding)}iiiiB",
                record.partition_id,
                record.topic_id.bytes,
                len(replicas) + 1,
                *replicas,
                len(isr) + 1,
                *isr,
                len(removing) + 1,
                *removing,
                len(adding) + 1,
                *adding,
                record.leader,
                record.leader_epoch,
                record.partition_epoch,
                len(directories) + 1,
            ),
            *[directory.bytes for directory in directories],
            b"\0",
        )
    )


@cache
def _partition_head() -> bytes:
    out = bytearray()
    for number in (
        FRAME_VERSION,
        _schemas()[records.PartitionRecord].api_key,
        _WRITTEN_VERSIONS[records.PartitionRecord][1],
    ):
        write_unsigned_varint(out, number)
    return bytes(out)


def decode_record(value: bytes | memoryview) -> MetadataRecord:
    """The metadata record in a log record's value; CorruptMetadataError if it is none that we know."""
    cursor = Cursor(value)
    schema, version, build = _read_head(cursor)
    try:
        message = schema.read(cursor, version)
    except MalformedMessage as error:
        raise CorruptMetadataError(f"metadata record cannot be read: {error}") from None
    if cursor.position != cursor.end:
        raise CorruptMetadataError(f"metadata record {schema.name} has {cursor.end - cursor.position} bytes too many")
    return build(message)


def check_known(value: bytes | memoryview) -> None:
    """CorruptMetadataError if the record is of a type or version that we do not know. Quicker than to decode it."""
    _read_head(Cursor(value))


def _read_head(cursor: Cursor) -> tuple[Schema, int, Callable[[Any], MetadataRecord]]:
    try:
        frame_version = read_unsigned_varint(cursor)
        api_key = read_unsigned_varint(cursor)
        version = read_unsigned_varint(cursor)
    except MalformedMessage as error:
        raise CorruptMetadataError(f"metadata record cannot be read: {error}") from None
    if frame_version != FRAME_VERSION:
        raise CorruptMetadataError(f"metadata record with frame version {frame_version}; only {FRAME_VERSION} is known")
    known = _decoders().get(api_key)
    if known is None:
        raise CorruptMetadataError(f"metadata record of unknown type {api_key}; was it written by another program?")
    schema, build = known
    if version not in schema.versions:
        raise CorruptMetadataError(f"metadata record {schema.name} of unknown version {version}")
    return schema, version, build


def _names(kind: type[Any]) -> tuple[str, ...]:
    return _FIELD_NAMES[kind]


def _plain(name: str, value: Any) -> Any:
    if name in _INNER:
        return [{inner: getattr(item, inner) for inner in _names(type(item))} for item in value]
    return value


def _from_message(kind: type[Any]) -> Callable[[Any], MetadataRecord]:
    names = _names(kind)

    def build(message: Any) -> MetadataRecord:
        values = {}
        for name in names:
            value = getattr(message, name)
            if isinstance(value, list):
                inner = _INNER.get(name)
                value = tuple(_structure(inner, item) for item in value) if inner is not None else tuple(value)
            values[name] = value
        record: MetadataRecord = kind(**values)
        return record

    return build


def _structure(kind: type[Any], message: Any) -> Any:
    return kind(**{name: getattr(message, name) for name in _names(kind)})
