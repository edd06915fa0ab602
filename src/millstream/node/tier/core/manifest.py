"""The manifest of a partition: which offsets of its log are in which objects of the tier.

It is one small object beside the segments, and the only truth about them. It is replaced by compare-and-swap, so that
two leaders cannot both change it, and a change is whole or not there. An object that no manifest names is garbage.

Segments are in the order of their offsets, without gaps. Neighbours may overlap, because replicas close segments at
different offsets: a segment counts from the end of the one before it. States are those of KIP-405: a segment is in the
manifest from COPY_SEGMENT_FINISHED on. Before it is deleted it is DELETE_SEGMENT_STARTED; then it is not read any more,
and its object may be gone. COPY_SEGMENT_STARTED is an object without an entry, DELETE_SEGMENT_FINISHED an entry that is
gone.
"""

import json
from base64 import b64decode, b64encode
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from millstream.common.lazy_dataclass import dataclass

VERSION = 1
VERSION_WITH_KEYS = 2
"""If objects are encrypted: a Millstream that does not know keys must not replace such a manifest."""
MANIFEST = "manifest.json"
REFERENCES = "references.json"
"""Beside the objects of a partition: which other manifests may name them."""
SEGMENT_SUFFIX = ".segment"


class DamagedManifestError(Exception):
    """The bytes are no manifest that this version reads."""


class State(StrEnum):
    FINISHED = "COPY_SEGMENT_FINISHED"
    DELETING = "DELETE_SEGMENT_STARTED"


class Epochs(Protocol):
    """The leader epochs of a log (`storage/log/leader_epochs.py`)."""

    def epoch_of(self, offset: int) -> int: ...

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]: ...


class DataKey(NamedTuple):
    """The data key of an encrypted object (`tier/encryption.py`)."""

    key_id: str
    """Of the operator's key that wraps it."""
    wrapped: bytes


@dataclass(frozen=True, slots=True)
class TieredSegment:
    name: str
    """Of the object, below the prefix of the tier."""
    base_offset: int
    end_offset: int
    log_bytes: int
    object_bytes: int
    max_timestamp: int
    leader_epoch: int
    """Of the leader that copied it."""
    epochs: tuple[tuple[int, int], ...]
    """The leader epochs in it, with the first offset of each."""
    has_aborted: bool
    state: State = State.FINISHED
    is_restored: bool = False
    """Whether it was copied by another cluster: the leader epochs in its batches are not those of this one. Readers get
    epoch 0 instead."""
    key: DataKey | None = None
    """If the object is encrypted. Sizes and positions are those of the plain object."""

    def ranges(self) -> list[tuple[int, int, int]]:
        """(epoch, first offset, end offset) of its leader epochs."""
        ends = [*(start for _, start in self.epochs[1:]), self.end_offset]
        return [(epoch, start, end) for (epoch, start), end in zip(self.epochs, ends, strict=True)]


@dataclass(frozen=True, slots=True)
class Manifest:
    topic: str
    topic_id: UUID
    partition: int
    partition_count: int
    """Of the topic; for a restore."""
    configs: Mapping[str, str]
    """The topic's own settings; for a restore."""
    leader_epoch: int
    """Of the leader that wrote it. A leader of an older epoch must not replace it."""
    log_start_offset: int
    segments: tuple[TieredSegment, ...] = ()
    is_begun: bool = False
    """Whether a topic that takes over objects of another has only begun to: not all who may delete them know of it."""
    taken_over_by: str | None = None
    """The manifest of the restored topic that counts in place of this one."""

    # Reading

    @property
    def readable(self) -> tuple[TieredSegment, ...]:
        return tuple(segment for segment in self.segments if segment.state is State.FINISHED)

    @property
    def end_offset(self) -> int:
        """Everything from the log start to here is in the tier; without segments, the log start."""
        readable = self.readable
        return max(readable[-1].end_offset, self.log_start_offset) if readable else self.log_start_offset

    @property
    def size_bytes(self) -> int:
        return sum(segment.log_bytes for segment in self.readable)

    def segment_of(self, offset: int) -> TieredSegment | None:
        """The segment that has an offset: the first one that ends after it."""
        readable = self.readable
        slot = bisect_right([segment.end_offset for segment in readable], offset)
        if slot == len(readable) or readable[slot].base_offset > offset:
            return None
        return readable[slot]

    def after(self, segment: TieredSegment) -> TieredSegment | None:
        """The segment that continues one."""
        return self.segment_of(segment.end_offset)

    def from_timestamp(self, timestamp: int) -> list[TieredSegment]:
        """The segments that may have a record at or after a time, in the order of the offsets."""
        return [
            segment
            for segment in self.readable
            if segment.max_timestamp >= timestamp and segment.end_offset > self.log_start_offset
        ]

    def epochs(self) -> list[tuple[int, int]]:
        """All leader epochs in the tier, with their first offsets."""
        found: dict[int, int] = {}
        for segment in self.readable:
            for epoch, start in segment.epochs:
                if epoch not in found and (not found or epoch > max(found)):
                    found[epoch] = start
        return list(found.items())

    # Changing

    def restored_as(self, topic: str, topic_id: UUID) -> "Manifest":
        """The manifest of a new topic with the records of this one. Its objects stay where they are."""
        return replace(
            self,
            topic=topic,
            topic_id=topic_id,
            leader_epoch=0,
            is_begun=False,
            taken_over_by=None,
            segments=tuple(
                replace(segment, is_restored=True, leader_epoch=0, epochs=((0, segment.base_offset),))
                for segment in self.readable
            ),
        )

    def branched_as(self, topic: str, topic_id: UUID, offset: int) -> "Manifest":
        """The manifest of a branch, with the records of this one before `offset`. It refers to the same objects."""
        segments = tuple(
            replace(
                segment,
                end_offset=min(segment.end_offset, offset),
                epochs=tuple(entry for entry in segment.epochs if entry[1] < offset),
            )
            for segment in self.readable
            if segment.base_offset < offset
        )
        start = min(self.log_start_offset, offset)
        return replace(
            self,
            topic=topic,
            topic_id=topic_id,
            leader_epoch=-1,
            log_start_offset=start,
            segments=segments,
            is_begun=False,
            taken_over_by=None,
        )

    def without_first(self, names: frozenset[str]) -> "Manifest":
        """Without the first segments up to the last of these: the objects are lost, and the log begins after them."""
        lost = max((segment.end_offset for segment in self.segments if segment.name in names), default=0)
        return replace(
            self,
            log_start_offset=max(self.log_start_offset, lost),
            segments=tuple(segment for segment in self.segments if segment.end_offset > lost),
        )

    @property
    def owners(self) -> list[str]:
        """The prefixes of the partitions that have copied its objects; others than its own if it took them over."""
        return sorted({owner_of(segment.name) for segment in self.segments})

    def adding(self, segment: TieredSegment) -> "Manifest | None":
        """With one more segment; None if it does not continue what is there: another leader was faster, or all its
        records were deleted meanwhile."""
        end = self.end_offset
        if segment.end_offset <= self.log_start_offset:
            return None
        if self.readable and (segment.base_offset > end or segment.end_offset <= end):
            return None
        return replace(self, segments=(*self.segments, segment))

    def starting_at(self, log_start_offset: int) -> "Manifest":
        """With a later log start: segments before it are to be deleted."""
        start = max(log_start_offset, self.log_start_offset)
        return replace(
            self,
            log_start_offset=start,
            segments=tuple(
                replace(segment, state=State.DELETING) if segment.end_offset <= start else segment
                for segment in self.segments
            ),
        )

    def ending_at(self, offset: int) -> "Manifest":
        """Without the records from `offset` on, which the log has lost. Their objects are left to the sweeper."""
        kept = [
            replace(segment, end_offset=min(segment.end_offset, offset))
            for segment in self.segments
            if segment.base_offset < offset or segment.state is State.DELETING
        ]
        return replace(self, segments=tuple(kept), log_start_offset=min(self.log_start_offset, offset))

    def without(self, names: frozenset[str]) -> "Manifest":
        """Without segments whose objects are deleted."""
        return replace(self, segments=tuple(segment for segment in self.segments if segment.name not in names))

    @property
    def deleting(self) -> tuple[TieredSegment, ...]:
        return tuple(segment for segment in self.segments if segment.state is State.DELETING)

    def agreed_end(self, epochs: Epochs, log_end_offset: int) -> int:
        """Up to which offset the tier has what a leader's log has, by the leader epochs. It is before the end of the
        tier only after an unclean election."""
        for segment in self.readable:
            for epoch, start, end in segment.ranges():
                known = epochs.epoch_of(start)
                if known < 0:
                    continue  # before the first epoch that the log knows
                if known != epoch:
                    return start
                ends_at = epochs.end_offset(epoch, log_end_offset)[1]
                if ends_at < end:
                    return ends_at
        return self.end_offset


def encode_manifest(manifest: Manifest) -> bytes:
    return json.dumps(
        {
            "version": VERSION_WITH_KEYS if any(segment.key for segment in manifest.segments) else VERSION,
            "topic": manifest.topic,
            "topicId": str(manifest.topic_id),
            "partition": manifest.partition,
            "partitionCount": manifest.partition_count,
            "configs": dict(manifest.configs),
            "leaderEpoch": manifest.leader_epoch,
            "logStartOffset": manifest.log_start_offset,
            "segments": [
                {
                    "name": segment.name,
                    "baseOffset": segment.base_offset,
                    "endOffset": segment.end_offset,
                    "logBytes": segment.log_bytes,
                    "objectBytes": segment.object_bytes,
                    "maxTimestamp": segment.max_timestamp,
                    "leaderEpoch": segment.leader_epoch,
                    "epochs": [list(entry) for entry in segment.epochs],
                    "hasAborted": segment.has_aborted,
                    "state": segment.state.value,
                    "restored": segment.is_restored,
                }
                | _key_fields(segment.key)
                for segment in manifest.segments
            ],
        }
        | ({"begun": True} if manifest.is_begun else {})
        | ({"takenOverBy": manifest.taken_over_by} if manifest.taken_over_by is not None else {}),
        separators=(",", ":"),
    ).encode()


def _key_fields(key: DataKey | None) -> dict[str, str]:
    if key is None:
        return {}
    return {"keyId": key.key_id, "wrappedKey": b64encode(key.wrapped).decode()}


def decode_manifest(data: bytes) -> Manifest:
    try:
        fields = json.loads(data)
        if fields["version"] not in (VERSION, VERSION_WITH_KEYS):
            raise DamagedManifestError(f"version {fields['version']} is not known: use a newer Millstream")
        return Manifest(
            topic=fields["topic"],
            topic_id=UUID(fields["topicId"]),
            partition=fields["partition"],
            partition_count=fields["partitionCount"],
            configs=fields["configs"],
            leader_epoch=fields["leaderEpoch"],
            log_start_offset=fields["logStartOffset"],
            segments=_decode_segments(fields["segments"]),
            is_begun=fields.get("begun", False),
            taken_over_by=fields.get("takenOverBy"),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedManifestError(f"the manifest cannot be read: {error}") from error


def _decode_segments(rows: Sequence[Mapping[str, Any]]) -> tuple[TieredSegment, ...]:
    return tuple(
        TieredSegment(
            name=row["name"],
            base_offset=row["baseOffset"],
            end_offset=row["endOffset"],
            log_bytes=row["logBytes"],
            object_bytes=row["objectBytes"],
            max_timestamp=row["maxTimestamp"],
            leader_epoch=row["leaderEpoch"],
            epochs=tuple((int(epoch), int(start)) for epoch, start in row["epochs"]),
            has_aborted=row["hasAborted"],
            state=State(row["state"]),
            is_restored=row.get("restored", False),
            key=DataKey(row["keyId"], b64decode(row["wrappedKey"])) if "keyId" in row else None,
        )
        for row in rows
    )


def partition_prefix(cluster_id: str, topic_id: UUID, partition: int) -> str:
    return f"{cluster_id}/{topic_id}/{partition}"


def owner_of(object_name: str) -> str:
    """The prefix of the partition that has copied an object."""
    return object_name.rpartition("/")[0]


def manifest_name(cluster_id: str, topic_id: UUID, partition: int) -> str:
    return f"{partition_prefix(cluster_id, topic_id, partition)}/{MANIFEST}"


def segment_name(
    cluster_id: str, topic_id: UUID, partition: int, base_offset: int, leader_epoch: int, node_id: int, nonce: str
) -> str:
    start = copies_of(cluster_id, topic_id, partition, base_offset)
    return f"{start}{leader_epoch:010d}-{node_id}-{nonce}{SEGMENT_SUFFIX}"


def copies_of(cluster_id: str, topic_id: UUID, partition: int, base_offset: int) -> str:
    """With this begin the names of all copies of a segment."""
    return f"{partition_prefix(cluster_id, topic_id, partition)}/{base_offset:020d}-"


class CopyName(NamedTuple):
    """Who has made a copy, from its name."""

    leader_epoch: int
    node_id: int


def parse_copy_name(name: str) -> CopyName | None:
    """None if the name does not say it: earlier versions gave names without the node."""
    parts = name.rpartition("/")[2].removesuffix(SEGMENT_SUFFIX).split("-")
    if len(parts) != 4 or not (parts[1].isdecimal() and parts[2].isdecimal()):
        return None
    return CopyName(int(parts[1]), int(parts[2]))
