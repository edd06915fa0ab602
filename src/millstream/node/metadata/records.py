"""The records of the metadata log, their encoding, and the result of a controller's decision.

The bytes are those of Kafka's `__cluster_metadata`. A record's value is a frame: three unsigned varints (frame version
1, type, version of the type) and the message in flexible encoding. `kafka-dump-log --cluster-metadata-decoder` reads
them.

A decision changes nothing. Its records are written to the metadata log, and take effect when they are committed and
applied to the image.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, fields
from functools import cache
from importlib.resources import files
from typing import Any, Generic, TypeVar
from uuid import UUID

from millstream.common.lazy_dataclass import dataclass
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import NO_TOPIC_ID, BrokerId, TopicId, TopicName
from millstream.formats.protocol.primitives import Cursor, MalformedMessage, read_unsigned_varint
from millstream.formats.protocol.schema import Schema, split_entries
from millstream.formats.records.varint import append_unsigned

NO_LEADER = -1
NO_LEADER_CHANGE = -2
UNASSIGNED_DIRECTORY = UUID(int=1)
"""Kafka's value for a replica whose log directory is not assigned yet."""
LOST_DIRECTORY = UUID(int=2)
"""The directory of a broker without a working log directory."""


class CorruptMetadataError(Exception):
    """The metadata log contains invalid records. The node cannot continue safely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An address of a broker, for clients or other nodes."""

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
    """A broker process registered."""

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
    machine_id: str | None = None
    """A tagged field of ours: the machine, if the broker names one."""
    cordoned_log_dirs: tuple[UUID, ...] | None = None
    """None in records before metadata.version 4.3-IV0 (KIP-1066)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterControllerRecord:
    """A controller process registered (KIP-919)."""

    controller_id: int
    incarnation_id: UUID
    zk_migration_ready: bool = False
    end_points: tuple[Endpoint, ...] = ()
    features: tuple[SupportedFeature, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBrokerRecord:
    """A broker was unregistered."""

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
    cordoned_log_dirs: tuple[UUID, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceBrokerRecord:
    """A broker was fenced. Only read: it is in logs of early versions of Kafka."""

    id: BrokerId
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfenceBrokerRecord:
    """A broker was unfenced. Only read: it is in logs of early versions of Kafka."""

    id: BrokerId
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """A topic was created; its partitions follow."""

    name: TopicName
    topic_id: TopicId
    parent_id: TopicId = NO_TOPIC_ID
    """Of a branch; the fields after it too (see `image.Branch`)."""
    parent_name: str = ""
    origin_id: TopicId = NO_TOPIC_ID
    branch_offsets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRecord:
    """A partition was created, or is written in full (in a snapshot)."""

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
    """The changes of a partition; fields with default values did not change. A leader starts a new leader epoch."""

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
class ClearElrRecord:
    """The eligible leaders of a topic were cleared; of all topics if the name is empty. Only read."""

    topic_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTopicRecord:
    """A topic was deleted, with its partitions and settings."""

    topic_id: TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRecord:
    """A setting of a topic, broker or group was set, or (None) removed."""

    resource_type: int
    resource_name: str
    name: str
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsRecord:
    """A block of producer ids was allocated to a broker; the next block begins at `next_producer_id`."""

    broker_id: BrokerId
    broker_epoch: int
    next_producer_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLevelRecord:
    """The level of a feature was changed; 0 disables it."""

    name: str
    feature_level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessControlEntryRecord:
    """An ACL was added. The numbers are Kafka's, see `formats/model/access_control.py`."""

    id: UUID
    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveAccessControlEntryRecord:
    """An ACL was removed."""

    id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class UserScramCredentialRecord:
    """The SCRAM credential of a user was set, for one mechanism (1: SCRAM-SHA-256, 2: SCRAM-SHA-512)."""

    name: str
    mechanism: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveUserScramCredentialRecord:
    """The SCRAM credential of a user was removed, for one mechanism."""

    name: str
    mechanism: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationTokenRecord:
    """A delegation token was created or renewed. Principals are written as `User:name`."""

    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_timestamp: int
    max_timestamp: int
    expiration_timestamp: int
    token_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveDelegationTokenRecord:
    """A delegation token was removed."""

    token_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaEntity:
    """A part of the entity that a quota is for: `user`, `client-id` or `ip`, and its name. None is the default."""

    entity_type: str
    entity_name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuotaRecord:
    """A quota of an entity was set or removed."""

    entity: tuple[QuotaEntity, ...]
    key: str
    value: float
    remove: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOpRecord:
    """No change: it only advances the log end offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZkMigrationStateRecord:
    """The state of Kafka's migration from ZooKeeper, which has no meaning any more. Only read."""

    zk_migration_state: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginTransactionRecord:
    """The records up to the end of the transaction take effect together. Only read: Kafka begins its log with one."""

    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactionRecord:
    """The records since the begin of the transaction take effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortTransactionRecord:
    """The records since the begin of the transaction never take effect."""

    reason: str | None = None


MAX_CONFIG_TEXT_BYTES = (1 << 15) - 1
"""The maximum size of a name or a value, in bytes."""


def check_sizes(resource_name: str, values: Mapping[str, str]) -> None:
    """Kafka's limit for values, applied to names too: every node keeps them in memory and in snapshots."""
    for what, text in (("name of a resource", resource_name), *_texts(values)):
        size = len(text.encode())
        if size > MAX_CONFIG_TEXT_BYTES:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"The {what} has {size} bytes. The maximum size is {MAX_CONFIG_TEXT_BYTES} bytes.",
            )


def _texts(values: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        yield "name of a setting", name
        yield f"value of {name[:100]}", value


MetadataRecord = (
    RegisterBrokerRecord
    | UnregisterBrokerRecord
    | BrokerRegistrationChangeRecord
    | RegisterControllerRecord
    | TopicRecord
    | PartitionRecord
    | PartitionChangeRecord
    | RemoveTopicRecord
    | ConfigRecord
    | ProducerIdsRecord
    | FeatureLevelRecord
    | AccessControlEntryRecord
    | RemoveAccessControlEntryRecord
    | UserScramCredentialRecord
    | RemoveUserScramCredentialRecord
    | DelegationTokenRecord
    | RemoveDelegationTokenRecord
    | ClientQuotaRecord
    | NoOpRecord
    | FenceBrokerRecord
    | UnfenceBrokerRecord
    | ClearElrRecord
    | ZkMigrationStateRecord
    | BeginTransactionRecord
    | EndTransactionRecord
    | AbortTransactionRecord
)


FRAME_VERSION = 1
_MAX_SHORT_LIST = 126
"""The encoded length of such a list fits into one byte."""

_WRITTEN_VERSIONS: dict[type[Any], tuple[str, int]] = {
    RegisterBrokerRecord: ("register_broker", 3),
    UnregisterBrokerRecord: ("unregister_broker", 0),
    BrokerRegistrationChangeRecord: ("broker_registration_change", 2),
    RegisterControllerRecord: ("register_controller", 0),
    TopicRecord: ("topic", 0),
    PartitionRecord: ("partition", 2),
    PartitionChangeRecord: ("partition_change", 2),
    RemoveTopicRecord: ("remove_topic", 0),
    ConfigRecord: ("config", 0),
    ProducerIdsRecord: ("producer_ids", 0),
    FeatureLevelRecord: ("feature_level", 0),
    AccessControlEntryRecord: ("access_control_entry", 0),
    RemoveAccessControlEntryRecord: ("remove_access_control_entry", 0),
    UserScramCredentialRecord: ("user_scram_credential", 0),
    RemoveUserScramCredentialRecord: ("remove_user_scram_credential", 0),
    DelegationTokenRecord: ("delegation_token", 0),
    RemoveDelegationTokenRecord: ("remove_delegation_token", 0),
    ClientQuotaRecord: ("client_quota", 0),
    NoOpRecord: ("no_op", 0),
    FenceBrokerRecord: ("fence_broker", 0),
    UnfenceBrokerRecord: ("unfence_broker", 0),
    ClearElrRecord: ("clear_elr", 0),
    ZkMigrationStateRecord: ("zk_migration_state", 0),
    BeginTransactionRecord: ("begin_transaction", 0),
    EndTransactionRecord: ("end_transaction", 0),
    AbortTransactionRecord: ("abort_transaction", 0),
}
"""The schema of each record, and the version in which it is written: that of metadata.version 4.2-IV1."""
_VERSIONS_WITH_CORDONS: dict[type[Any], int] = {RegisterBrokerRecord: 4, BrokerRegistrationChangeRecord: 3}
"""Version 4.3-IV0 adds only cordoned directories to records of brokers. These versions are written only where there are
such directories, so that nodes of an earlier version can read the log of other clusters."""

_INNER: dict[str, type[Any]] = {"end_points": Endpoint, "features": SupportedFeature, "entity": QuotaEntity}
"""The structures inside records, by field name."""

_FIELD_NAMES = {kind: tuple(each.name for each in fields(kind)) for kind in (*_WRITTEN_VERSIONS, *_INNER.values())}


@cache
def _schemas() -> dict[type[Any], Schema]:
    entries = split_entries(files("millstream.node.metadata").joinpath("metadata.schema").read_text())
    return {kind: Schema(entries["record", name]) for kind, (name, _version) in _WRITTEN_VERSIONS.items()}


@cache
def _decoders() -> dict[int, tuple[Schema, Callable[[Any], MetadataRecord]]]:
    return {schema.api_key: (schema, _from_message(kind)) for kind, schema in _schemas().items()}


def encode_record(record: MetadataRecord) -> bytes:
    """The value of the log record for this metadata record."""
    if isinstance(record, PartitionRecord):
        encoded = _encode_partition(record)
        if encoded is not None:
            return encoded
    kind = type(record)
    schema, version = _schemas()[kind], name_and_version(record)[1]
    out = bytearray()
    append_unsigned(out, FRAME_VERSION)
    append_unsigned(out, schema.api_key)
    append_unsigned(out, version)
    schema.write(out, {name: _plain(name, getattr(record, name)) for name in _names(kind)}, version)
    return bytes(out)


def name_and_version(record: MetadataRecord) -> tuple[str, int]:
    """The name of the record's type, and the version in which it is written."""
    kind = type(record)
    name, version = _WRITTEN_VERSIONS[kind]
    if kind in _VERSIONS_WITH_CORDONS and getattr(record, "cordoned_log_dirs", None) is not None:
        version = _VERSIONS_WITH_CORDONS[kind]
    return name, version


def _encode_partition(record: PartitionRecord) -> bytes | None:
    """Encodes a usual partition without the schema, which is faster: a request may create 10,000. None for others."""
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
        append_unsigned(out, number)
    return bytes(out)


def decode_record(value: bytes | memoryview) -> MetadataRecord:
    """The metadata record in a log record's value; CorruptMetadataError if it is unknown or damaged."""
    cursor = Cursor(value)
    schema, version, build = _read_head(cursor)
    try:
        message = schema.read(cursor, version)
    except MalformedMessage as error:
        raise CorruptMetadataError(f"metadata record cannot be read: {error}") from None
    if cursor.position != cursor.end:
        raise CorruptMetadataError(f"metadata record {schema.name} has {cursor.end - cursor.position} extra bytes")
    return build(message)


def check_known(value: bytes | memoryview) -> str:
    """The name of the record's type; CorruptMetadataError if its type or version is unknown. Faster than decoding."""
    return _read_head(Cursor(value))[0].name


def _read_head(cursor: Cursor) -> tuple[Schema, int, Callable[[Any], MetadataRecord]]:
    try:
        frame_version = read_unsigned_varint(cursor)
        api_key = read_unsigned_varint(cursor)
        version = read_unsigned_varint(cursor)
    except MalformedMessage as error:
        raise CorruptMetadataError(f"metadata record cannot be read: {error}") from None
    if frame_version != FRAME_VERSION:
        raise CorruptMetadataError(
            f"metadata record with unknown frame version {frame_version}; expected {FRAME_VERSION}"
        )
    known = _decoders().get(api_key)
    if known is None:
        raise CorruptMetadataError(f"metadata record of unknown type {api_key}; it may be written by another program")
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
    """Empty if nothing changes, or if the request is only validated."""
    results: tuple[R_co, ...]
    """One result for each item of the request, in the same order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionResult:
    """The error of one item of a request: NONE, or Kafka's code and a message that says what to do."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def refusal(error: KafkaError) -> tuple[ErrorCode, str]:
    return error.code, error.message
