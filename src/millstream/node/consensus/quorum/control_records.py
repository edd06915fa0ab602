"""Control records of the metadata log and its snapshots, in Kafka's format.

They have the state of the quorum: leader, voters, begin and end of a snapshot. Readers of the metadata do not see
them.
"""

import struct
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from millstream.common.lazy_dataclass import dataclass
from millstream.formats.protocol.primitives import MalformedMessage
from millstream.formats.protocol.schema import Schema
from millstream.formats.records.record import Record
from millstream.node.consensus.raft.voter_set import Endpoint, ReplicaKey, Voter, VoterSet
from millstream.node.metadata.records import CorruptMetadataError

NO_DIRECTORY_ID = UUID(int=0)
"""Stands for an unknown directory, on the wire and in the log."""
_KEY = struct.Struct(">hh")
_KEY_VERSION = 0

_LEADER_CHANGE_SCHEMA = Schema(
    """record 2 leader_change 0-1 flexible:0+
  version int16 0+
  leader_id int32 0+
  voters []{} 0+
    voter_id int32 0+
    voter_directory_id uuid 1+
  granting_voters []{} 0+
    voter_id int32 0+
    voter_directory_id uuid 1+"""
)
_SNAPSHOT_HEADER_SCHEMA = Schema(
    """record 3 snapshot_header 0-0 flexible:0+
  version int16 0+
  last_contained_log_timestamp int64 0+"""
)
_SNAPSHOT_FOOTER_SCHEMA = Schema(
    """record 4 snapshot_footer 0-0 flexible:0+
  version int16 0+"""
)
_KRAFT_VERSION_SCHEMA = Schema(
    """record 5 kraft_version 0-0 flexible:0+
  version int16 0+
  k_raft_version int16 0+"""
)
_VOTERS_SCHEMA = Schema(
    """record 6 voters 0-0 flexible:0+
  version int16 0+
  voters []{} 0+
    voter_id int32 0+
    voter_directory_id uuid 0+
    endpoints []{} 0+
      name string 0+
      host string 0+
      port uint16 0+
    k_raft_version_feature {} 0+
      min_supported_version int16 0+
      max_supported_version int16 0+"""
)


@dataclass(frozen=True, slots=True)
class LeaderChange:
    """The first record of every epoch: the leader, and the voters that elected it."""

    leader_id: int
    voters: tuple[ReplicaKey, ...]
    granting_voters: tuple[ReplicaKey, ...]


@dataclass(frozen=True, slots=True)
class SnapshotHeader:
    last_contained_log_timestamp: int


@dataclass(frozen=True, slots=True)
class SnapshotFooter:
    """The last record of a complete snapshot."""


@dataclass(frozen=True, slots=True)
class KRaftVersion:
    """0: the voters are those of the settings. 1: they are those of the last `Voters` record."""

    level: int


@dataclass(frozen=True, slots=True)
class Voters:
    voters: VoterSet


ControlRecord = LeaderChange | SnapshotHeader | SnapshotFooter | KRaftVersion | Voters

_SCHEMAS: dict[type[Any], Schema] = {
    LeaderChange: _LEADER_CHANGE_SCHEMA,
    SnapshotHeader: _SNAPSHOT_HEADER_SCHEMA,
    SnapshotFooter: _SNAPSHOT_FOOTER_SCHEMA,
    KRaftVersion: _KRAFT_VERSION_SCHEMA,
    Voters: _VOTERS_SCHEMA,
}
_BY_TYPE = {schema.api_key: schema for schema in _SCHEMAS.values()}


def encode_control(record: ControlRecord, timestamp: int) -> Record:
    """The log record that carries it."""
    schema = _SCHEMAS[type(record)]
    version = 0
    if isinstance(record, LeaderChange):
        # Directories exist since version 1 of the quorum's protocol.
        version = int(any(key.directory_id is not None for key in record.voters))
    key = _KEY.pack(_KEY_VERSION, schema.api_key)
    return Record(key=key, value=schema.encode({"version": version, **_fields(record)}, version), timestamp=timestamp)


def decode_control(record: Record) -> ControlRecord | None:
    """The decoded control record; None for types that the metadata log does not use."""
    key, value = record.key or b"", record.value or b""
    if len(key) < _KEY.size or len(value) < 2:
        raise CorruptMetadataError(f"the control record at offset {record.offset} has no type")
    schema = _BY_TYPE.get(_KEY.unpack_from(key)[1])
    if schema is None:
        return None
    version = int.from_bytes(value[:2], "big", signed=True)
    if version not in schema.versions:
        raise CorruptMetadataError(f"control record {schema.name} of unknown version {version}")
    try:
        message: Any = schema.decode(value, version)
    except MalformedMessage as error:
        raise CorruptMetadataError(
            f"the control record {schema.name} at offset {record.offset} cannot be read: {error}"
        ) from None
    if schema is _LEADER_CHANGE_SCHEMA:
        return LeaderChange(message.leader_id, _keys(message.voters), _keys(message.granting_voters))
    if schema is _SNAPSHOT_HEADER_SCHEMA:
        return SnapshotHeader(message.last_contained_log_timestamp)
    if schema is _SNAPSHOT_FOOTER_SCHEMA:
        return SnapshotFooter()
    if schema is _KRAFT_VERSION_SCHEMA:
        return KRaftVersion(message.k_raft_version)
    return Voters(VoterSet(tuple(_voter(voter) for voter in message.voters)))


def directory_id_or_none(directory_id: UUID) -> UUID | None:
    return directory_id if directory_id != NO_DIRECTORY_ID else None


def _fields(record: ControlRecord) -> dict[str, Any]:
    match record:
        case LeaderChange():
            return {
                "leader_id": record.leader_id,
                "voters": _key_fields(record.voters),
                "granting_voters": _key_fields(record.granting_voters),
            }
        case SnapshotHeader():
            return {"last_contained_log_timestamp": record.last_contained_log_timestamp}
        case KRaftVersion():
            return {"k_raft_version": record.level}
        case Voters():
            return {"voters": [_voter_fields(voter) for voter in record.voters.voters]}
        case _:
            return {}


def _key_fields(keys: Iterable[ReplicaKey]) -> list[dict[str, Any]]:
    return [{"voter_id": key.id, "voter_directory_id": key.directory_id or NO_DIRECTORY_ID} for key in keys]


def _voter_fields(voter: Voter) -> dict[str, Any]:
    return {
        "voter_id": voter.id,
        "voter_directory_id": voter.key.directory_id or NO_DIRECTORY_ID,
        "endpoints": [{"name": each.name, "host": each.host, "port": each.port} for each in voter.endpoints],
        "k_raft_version_feature": {
            "min_supported_version": voter.min_kraft_version,
            "max_supported_version": voter.max_kraft_version,
        },
    }


def _keys(voters: Iterable[Any]) -> tuple[ReplicaKey, ...]:
    return tuple(ReplicaKey(voter.voter_id, directory_id_or_none(voter.voter_directory_id)) for voter in voters)


def _voter(voter: Any) -> Voter:
    feature = voter.k_raft_version_feature
    return Voter(
        ReplicaKey(voter.voter_id, directory_id_or_none(voter.voter_directory_id)),
        tuple(Endpoint(each.name, each.host, each.port) for each in voter.endpoints),
        feature.min_supported_version,
        feature.max_supported_version,
    )
