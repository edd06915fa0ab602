"""Events of tiered storage in Kafka's own format: what happened to a segment, or to a partition, in the tier (KIP-405).

Kafka's `RemoteLogMetadataSerde` reads them. The manifest is the truth (ADR 32); nothing here is read back.
"""

from enum import IntEnum
from functools import cache
from importlib.resources import files
from typing import NamedTuple
from uuid import UUID, uuid5

from millstream.formats.protocol.schema import Schema, split_entries
from millstream.formats.records.varint import append_unsigned
from millstream.node.tier.core.manifest import TieredSegment

_FRAME_VERSION = 1
_SEGMENTS = UUID("6c0c9c3e-5d4b-5d3c-8f5e-2f0f5f6d7a10")
"""The namespace of segment ids: Kafka has random ones, ours come from the names of objects."""


class SegmentState(IntEnum):
    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3


class PartitionState(IntEnum):
    DELETE_PARTITION_MARKED = 0
    DELETE_PARTITION_STARTED = 1
    DELETE_PARTITION_FINISHED = 2


class EventSource(NamedTuple):
    """The partition of an event, and the broker that reports it."""

    topic: str
    topic_id: UUID
    partition: int
    broker_id: int

    def fields(self) -> dict[str, object]:
        return {"name": self.topic, "id": self.topic_id, "partition": self.partition}


def segment_id(name: str) -> UUID:
    """The id of a segment: the same for all events of its object."""
    return uuid5(_SEGMENTS, name)


def segment_event(source: EventSource, segment: TieredSegment, state: SegmentState, now_ms: int) -> bytes:
    """The first event of a segment describes it; the others name its new state."""
    fields: dict[str, object] = {
        "remote_log_segment_id": {"topic_id_partition": source.fields(), "id": segment_id(segment.name)},
        "broker_id": source.broker_id,
        "event_timestamp_ms": now_ms,
        "custom_metadata": None,
        "remote_log_segment_state": int(state),
    }
    if state is not SegmentState.COPY_SEGMENT_STARTED:
        return _encoded("remote_log_segment_metadata_update", fields)
    fields |= {
        "start_offset": segment.base_offset,
        "end_offset": segment.end_offset - 1,  # Kafka's end is the last offset
        "max_timestamp_ms": segment.max_timestamp,
        "segment_leader_epochs": [{"leader_epoch": epoch, "offset": offset} for epoch, offset in segment.epochs],
        "segment_size_in_bytes": segment.log_bytes,
        "txn_index_empty": not segment.has_aborted,
    }
    return _encoded("remote_log_segment_metadata", fields)


def partition_event(source: EventSource, state: PartitionState, now_ms: int) -> bytes:
    fields = {
        "topic_id_partition": source.fields(),
        "broker_id": source.broker_id,
        "event_timestamp_ms": now_ms,
        "remote_partition_delete_state": int(state),
    }
    return _encoded("remote_partition_delete_metadata", fields)


@cache
def _schemas() -> dict[str, Schema]:
    entries = split_entries(files("millstream.node.tier.core").joinpath("remote_log.schema").read_text())
    return {name: Schema(text) for (_, name), text in entries.items()}


def _encoded(name: str, fields: dict[str, object]) -> bytes:
    schema = _schemas()[name]
    out = bytearray()
    append_unsigned(out, _FRAME_VERSION)
    append_unsigned(out, schema.api_key)
    append_unsigned(out, 0)
    schema.write(out, fields, 0)
    return bytes(out)
