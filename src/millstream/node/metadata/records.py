"""The records of the metadata log: what the controller decided, as values. Their bytes are in `record_codec`.

Metadata records to bytes and back, as Kafka writes them in `__cluster_metadata`.

A record's value is a frame: three unsigned varints (frame version 1, type, version of the type) and the message in
flexible encoding. `kafka-dump-log --cluster-metadata-decoder` reads what is written here.

What every decision of the controller gives back: the records to write, and an answer for each thing asked.

A decision changes nothing. The records are written to the metadata log as one batch; they are in force once they are
applied to the image.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any, Generic, TypeVar
from uuid import UUID

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import BrokerId, TopicId, TopicName
from millstream.formats.protocol.primitives import Cursor, MalformedMessage, read_unsigned_varint, write_unsigned_varint
from millstream.formats.protocol.schema import Schema, split_entries

NO_LEADER = -1
NO_LEADER_CHANGE = -2
UNASSIGNED_DIRECTORY = UUID(int=1)
LOST_DIRECTORY = UUID(int=2)
"""Stands for the directories of a broker that has none left which works."""
"""Kafka's way to say that a replica's directory has not been chosen yet."""


class CorruptMetadataError(Exception):
    """The metadata log holds something that no controller of ours wrote: there is no safe way to go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An address at which clients or other nodes reach a broker."""

    name: str
    host: str
    port: int
    security_protocol: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportedFeature:
    name: str
    min_supported_version: int
    max_supported_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerRecord:
    """A broker's process introduced itself."""

    broker_id: BrokerId
    incarnation_id: UUID
    broker_epoch: int
    end_points: tuple[Endpoint, ...]
    features: tuple[SupportedFeature, ...] = ()
    rack: str | None = None
    fenced: bool = True
    in_controlled_shutdown: bool = False
    is_migrating_zk_broker: bool = False
    log_dirs: tuple[UUID, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBrokerRecord:
    """A broker is gone for good."""

    broker_id: BrokerId
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistrationChangeRecord:
    """A broker was fenced (1) or unfenced (-1), or began to shut down (1)."""

    broker_id: BrokerId
    broker_epoch: int
    fenced: int = 0
    in_controlled_shutdown: int = 0
    log_dirs: tuple[UUID, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """A topic was created; its partitions follow."""

    name: TopicName
    topic_id: TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRecord:
    """A partition was created, or is stated anew in full."""

    partition_id: int
    topic_id: TopicId
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    leader_recovery_state: int = 0
    directories: tuple[UUID, ...] = ()
    eligible_leader_replicas: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChangeRecord:
    """What changed in a partition; what is left at its default did not. A leader that is named begins a new epoch."""

    partition_id: int
    topic_id: TopicId
    isr: tuple[int, ...] | None = None
    leader: int = NO_LEADER_CHANGE
    replicas: tuple[int, ...] | None = None
    removing_replicas: tuple[int, ...] | None = None
    adding_replicas: tuple[int, ...] | None = None
    leader_recovery_state: int = -1
    eligible_leader_replicas: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None
    directories: tuple[UUID, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTopicRecord:
    """A topic, its partitions and its settings are gone."""

    topic_id: TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRecord:
    """A setting of a topic or broker got a value, or (None) lost it."""

    resource_type: int
    resource_name: str
    name: str
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsRecord:
    """A broker took a block of producer ids; the next block begins at `next_producer_id`."""

    broker_id: BrokerId
    broker_epoch: int
    next_producer_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLevelRecord:
    """The cluster uses this level of a feature; 0 switches it off."""

    name: str
    feature_level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOpRecord:
    """Nothing happened: it moves the log's end forward."""


MetadataRecord = (
    RegisterBrokerRecord
    | UnregisterBrokerRecord
    | BrokerRegistrationChangeRecord
    | TopicRecord
    | PartitionRecord
    | PartitionChangeRecord
    | RemoveTopicRecord
    | ConfigRecord
    | ProducerIdsRecord
    | FeatureLevelRecord
    | NoOpRecord
)


FRAME_VERSION = 1
_MAX_SHORT_LIST = 126
"""The length of such a list, plus one, is one byte."""

_WRITTEN_VERSIONS: dict[type[Any], tuple[str, int]] = {
    RegisterBrokerRecord: ("register_broker", 3),
    UnregisterBrokerRecord: ("unregister_broker", 0),
    BrokerRegistrationChangeRecord: ("broker_registration_change", 2),
    TopicRecord: ("topic", 0),
    PartitionRecord: ("partition", 2),
    PartitionChangeRecord: ("partition_change", 2),
    RemoveTopicRecord: ("remove_topic", 0),
    ConfigRecord: ("config", 0),
    ProducerIdsRecord: ("producer_ids", 0),
    FeatureLevelRecord: ("feature_level", 0),
    NoOpRecord: ("no_op", 0),
}
"""The schema of each record, and the version in which it is written: those of metadata.version 4.2-IV1."""

_INNER: dict[str, type[Any]] = {"end_points": Endpoint, "features": SupportedFeature}
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
    if isinstance(record, PartitionRecord):
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


def _encode_partition(record: PartitionRecord) -> bytes | None:
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
        _schemas()[PartitionRecord].api_key,
        _WRITTEN_VERSIONS[PartitionRecord][1],
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


R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Decision(Generic[R_co]):
    records: tuple[MetadataRecord, ...]
    """Empty if nothing is to change, or if the request was only to be checked."""
    results: tuple[R_co, ...]
    """One for each thing that was asked, in the same order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How it went: NONE, or Kafka's code and a sentence that says what to do."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def refusal(error: KafkaError) -> tuple[ErrorCode, str]:
    return error.code, error.message
