"""The object of one closed segment: the bytes of its files one after the other, a footer, and a trailer.

    log, offset index, time index, transaction index, snapshot, leader epochs, aborted, producers, footer, trailer

The sections are the files as they are on a broker's disk, so Kafka's tools read them. Two are ours. `aborted` has all
aborted transactions with records in the segment, also those whose marker is in a later one: an object is made when all
of them have ended, so readers need no other object. `producers` has the last batches of each producer, where the
snapshot has one, so that a follower that starts from the tier knows repeated batches. The footer is JSON: position,
length and CRC32C of each section, and whose segment it is. The trailer has a fixed size: length and CRC32C of the
footer, and a magic number.
"""

import json
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from crc32c import crc32c

from millstream.formats.records.batch import Bytes

LOG = "log"
OFFSET_INDEX = "index"
TIME_INDEX = "timeindex"
TRANSACTION_INDEX = "txnindex"
SNAPSHOT = "snapshot"
EPOCHS = "leader-epoch-checkpoint"
ABORTED = "aborted"
PRODUCERS = "producers"

MAGIC = b"MILLTIER"
VERSION = 1
_TRAILER = Struct(">II8s")
TRAILER_BYTES = _TRAILER.size


class DamagedObjectError(Exception):
    """The bytes are not those of a whole object."""


class Section(NamedTuple):
    position: int
    length: int
    crc: int


class SegmentIdentity(NamedTuple):
    """Whose segment it is."""

    topic: str
    topic_id: UUID
    partition: int
    base_offset: int
    end_offset: int
    leader_epoch: int
    """Of the leader that copied it."""
    max_timestamp: int


class Footer(NamedTuple):
    identity: SegmentIdentity
    sections: Mapping[str, Section]


def encode_tail(identity: SegmentIdentity, log: Section, others: Sequence[tuple[str, bytes]]) -> bytes:
    """Everything after the log bytes."""
    sections = {LOG: log}
    position = log.length
    for name, data in others:
        sections[name] = Section(position, len(data), crc32c(data))
        position += len(data)
    footer = json.dumps(
        {
            "version": VERSION,
            "topic": identity.topic,
            "topicId": str(identity.topic_id),
            "partition": identity.partition,
            "baseOffset": identity.base_offset,
            "endOffset": identity.end_offset,
            "leaderEpoch": identity.leader_epoch,
            "maxTimestamp": identity.max_timestamp,
            "sections": {name: list(section) for name, section in sections.items()},
        },
        separators=(",", ":"),
    ).encode()
    return b"".join(data for _, data in others) + footer + _TRAILER.pack(len(footer), crc32c(footer), MAGIC)


class Tail(NamedTuple):
    """The sections after the log bytes, and the footer."""

    footer: Footer
    parts: Mapping[str, memoryview]


def decode_tail(data: Bytes, object_size: int) -> Tail:
    """The end of an object, from the end of its log bytes on or from before; DamagedObjectError if it is not whole."""
    footer = decode_footer(data)
    start = object_size - len(data)
    view = memoryview(data)
    parts = {}
    for name, section in footer.sections.items():
        if name == LOG:
            continue
        if section.position < start:
            raise DamagedObjectError(f"section {name} begins before the bytes that were read")
        part = view[section.position - start : section.position - start + section.length]
        if len(part) != section.length or crc32c(part) != section.crc:
            raise DamagedObjectError(f"section {name} has a wrong checksum")
        parts[name] = part
    return Tail(footer, parts)


def footer_bytes(trailer: Bytes) -> int:
    """How many bytes the footer and the trailer have."""
    if len(trailer) < TRAILER_BYTES:
        raise DamagedObjectError("it is too short")
    length, _, magic = _TRAILER.unpack(trailer[-TRAILER_BYTES:])
    if magic != MAGIC:
        raise DamagedObjectError("it does not end as an object of the tier does")
    return int(length) + TRAILER_BYTES


def decode_footer(data: Bytes) -> Footer:
    size = footer_bytes(data)
    if size > len(data):
        raise DamagedObjectError("the footer is cut")
    text = data[len(data) - size : len(data) - TRAILER_BYTES]
    if crc32c(text) != _TRAILER.unpack(data[-TRAILER_BYTES:])[1]:
        raise DamagedObjectError("the footer has a wrong checksum")
    fields = json.loads(bytes(text))
    if fields["version"] != VERSION:
        raise DamagedObjectError(f"version {fields['version']} is not known: use a newer Millstream")
    identity = SegmentIdentity(
        fields["topic"],
        UUID(fields["topicId"]),
        fields["partition"],
        fields["baseOffset"],
        fields["endOffset"],
        fields["leaderEpoch"],
        fields["maxTimestamp"],
    )
    return Footer(identity, {name: Section(*section) for name, section in fields["sections"].items()})
