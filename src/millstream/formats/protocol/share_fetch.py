"""The answer to ShareFetch, written by hand since its records are stretches of files; all of its versions are alike."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from millstream.formats.protocol.compact import append_varint
from millstream.formats.protocol.fetch import FileStretch, ResponseParts
from millstream.formats.protocol.node_endpoints import NodeEndpoint

_HEAD = struct.Struct(">ih")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_PARTITION = struct.Struct(">ih")
_LEADER = struct.Struct(">ii")
_ACQUIRED = struct.Struct(">qqh")
_NO_TAGS = 0
_NULL = 0


@dataclass(slots=True)
class SharePartitionResult:
    partition: int
    error: int = 0
    error_message: str | None = None
    acknowledge_error: int = 0
    acknowledge_message: str | None = None
    leader_id: int = 0
    leader_epoch: int = 0
    records: FileStretch | None = None
    acquired: list[tuple[int, int, int]] = field(default_factory=list)
    """First offset, last offset, delivery count."""


@dataclass(slots=True)
class ShareFetchAnswer:
    error: int = 0
    error_message: str | None = None
    lock_timeout_ms: int = 0
    topics: dict[UUID, list[SharePartitionResult]] = field(default_factory=dict)
    endpoints: Sequence[NodeEndpoint] = ()
    """Where the leaders are of partitions that this broker does not lead."""

    def encode(self, parts: ResponseParts, version: int) -> None:
        out = parts.out
        out += _HEAD.pack(0, self.error)
        _append_text(out, self.error_message)
        out += _INT32.pack(self.lock_timeout_ms)
        append_varint(out, len(self.topics) + 1)
        for topic_id, rows in self.topics.items():
            parts.out += topic_id.bytes
            append_varint(parts.out, len(rows) + 1)
            for row in rows:
                _encode_partition(parts, row)
            parts.out.append(_NO_TAGS)
        append_varint(parts.out, len(self.endpoints) + 1)
        for endpoint in self.endpoints:
            parts.out += _INT32.pack(endpoint.node_id)
            _append_text(parts.out, endpoint.host)
            parts.out += _INT32.pack(endpoint.port)
            _append_text(parts.out, endpoint.rack)
            parts.out.append(_NO_TAGS)
        parts.out.append(_NO_TAGS)


def _encode_partition(parts: ResponseParts, row: SharePartitionResult) -> None:
    out = parts.out
    out += _PARTITION.pack(row.partition, row.error)
    _append_text(out, row.error_message)
    out += _INT16.pack(row.acknowledge_error)
    _append_text(out, row.acknowledge_message)
    out += _LEADER.pack(row.leader_id, row.leader_epoch)
    out.append(_NO_TAGS)
    if row.records is None or not row.records.length:
        append_varint(out, 1)
    else:
        append_varint(out, row.records.length + 1)
        parts.add_file(row.records)
        out = parts.out
    append_varint(out, len(row.acquired) + 1)
    for acquired in row.acquired:
        out += _ACQUIRED.pack(*acquired)
        out.append(_NO_TAGS)
    out.append(_NO_TAGS)


def _append_text(out: bytearray, text: str | None) -> None:
    if text is None:
        out.append(_NULL)
    else:
        encoded = text.encode()
        append_varint(out, len(encoded) + 1)
        out += encoded
