"""Copying a closed segment to the tier: the segment is read and checked in a thread, then sent as one object."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, cast

from crc32c import crc32c

from millstream.node.storage.disk import File
from millstream.node.storage.file_formats import INDEX_SUFFIX, TIME_INDEX_SUFFIX, encode_epochs
from millstream.node.storage.index.transaction_index import collect_aborted, encode_aborted
from millstream.node.storage.log.batch_scan import walk_checked
from millstream.node.storage.log.earlier_batches import encode_batches
from millstream.node.storage.log.producer_snapshots import encode_snapshot, rebuild_producers
from millstream.node.storage.log.segment import Segment
from millstream.node.tier.core import object_format
from millstream.node.tier.core.manifest import TieredSegment
from millstream.node.tier.core.object_format import Section, SegmentIdentity
from millstream.node.tier.encryption import Keyring, ObjectCipher, new_data_key

if TYPE_CHECKING:
    from millstream.node.storage.log.partition_log import PartitionLog

_BLOCK_BYTES = 4 << 20


class DamagedSegmentError(Exception):
    """The segment on this disk has a damaged batch: it is not copied."""


class SegmentCopy(NamedTuple):
    """What a copy needs, taken from the log on the event loop."""

    segment: Segment
    before: list[Segment]
    """It and the segments before it."""
    snapshots: list[int]
    end_offset: int
    aborted: bytes
    epochs: tuple[tuple[int, int], ...]
    all_epochs: list[tuple[int, int]]
    log: "PartitionLog"

    def epochs_up_to_end(self) -> list[tuple[int, int]]:
        return [entry for entry in self.all_epochs if entry[1] < self.end_offset]


def plan_copy(log: "PartitionLog", base_offset: int) -> SegmentCopy | None:
    """The closed segment that begins at `base_offset`; None if it is gone, or if its indexes are not written yet."""
    segments = log.segments
    slot = segments.slot_of(base_offset)
    segment = segments[slot]
    if segment.base_offset != base_offset or slot + 1 >= len(segments) or segment.index is not None:
        return None
    end = segments[slot + 1].base_offset
    entries = log.epochs.entries()
    inside = [(epoch, start) for epoch, start in entries if base_offset < start < end]
    first = log.epochs.epoch_of(base_offset)
    if first >= 0:
        inside.insert(0, (first, base_offset))
    return SegmentCopy(
        segment,
        list(segments)[: slot + 1],
        [offset for offset in log.snapshots.offsets if offset <= end],
        end,
        encode_aborted(collect_aborted(segments, base_offset, end)),
        tuple(inside),
        entries,
        log,
    )


class PreparedObject:
    """An object that can be sent: its bytes are read from the segment again for each attempt."""

    def __init__(self, segment: Segment, tail: bytes, entry: TieredSegment) -> None:
        self._file = segment.file()
        self._tail = tail
        self.entry = entry

    @property
    def stored_bytes(self) -> int:
        return self.entry.object_bytes

    def parts(self) -> Iterator[bytes]:
        position, end = 0, self.entry.log_bytes
        while position < end:
            data = self._file.read_at(position, min(_BLOCK_BYTES, end - position))
            if not data:
                raise OSError(f"{self._file.path} is shorter than {end} bytes")
            position += len(data)
            yield data
        yield self._tail


class EncryptedObject:
    """The same object, encrypted with a data key of its own."""

    def __init__(self, plain: PreparedObject, keyring: Keyring, key_id: str) -> None:
        data_key, key = new_data_key(keyring, key_id)
        entry = plain.entry
        self._plain = plain
        self._cipher = ObjectCipher(data_key, key, entry.name, entry.object_bytes)
        self.entry = replace(entry, key=key)

    @property
    def stored_bytes(self) -> int:
        return self._cipher.stored_size

    def parts(self) -> Iterator[bytes]:
        return self._cipher.encrypted(self._plain.parts())


class _SummedFile:
    """A file that is read from its begin on, with the checksum of all that was read. Parts may be read again, as
    `walk_checked` does with the begin of a batch. Reading the file once more for it took 0.1 s of CPU for each GB."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._end = 0
        self.crc = 0

    def read_at(self, position: int, length: int) -> bytes:
        data = self._file.read_at(position, length)
        known = self._end - position
        assert known >= 0, "bytes were left out"
        if known < len(data):
            self.crc = crc32c(memoryview(data)[known:], self.crc)
            self._end = position + len(data)
        return data


def prepare(copy: SegmentCopy, name: str, leader_epoch: int) -> PreparedObject:
    """Check the segment, and make the part of the object after its log bytes. May block."""
    segment, log = copy.segment, copy.log
    size = segment.size
    file = segment.file()
    summed = _SummedFile(file)
    checked = 0
    for position, header, holds in walk_checked(cast(File, summed), 0, size):
        if not holds:
            break
        checked = position + header.size
    if checked != size:
        raise DamagedSegmentError(f"the batch at byte {checked} of {segment.log.path} is damaged")
    disk = log.disk
    greatest = segment.greatest_timestamp()  # checks the time index too
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        if not disk.exists(segment.path(suffix)):
            segment.rebuild_indexes()
    producers = rebuild_producers(disk, log.directory, copy.before, copy.snapshots, copy.before[0].base_offset)
    own_aborted = encode_aborted(segment.aborted) if segment.aborted else b""
    identity = SegmentIdentity(
        log.topic_partition.topic,
        log.topic_id,
        log.topic_partition.partition,
        segment.base_offset,
        copy.end_offset,
        leader_epoch,
        greatest,
    )
    tail = object_format.encode_tail(
        identity,
        Section(0, size, summed.crc),
        [
            (object_format.OFFSET_INDEX, disk.read_bytes(segment.path(INDEX_SUFFIX))),
            (object_format.TIME_INDEX, disk.read_bytes(segment.path(TIME_INDEX_SUFFIX))),
            (object_format.TRANSACTION_INDEX, own_aborted),
            (object_format.SNAPSHOT, encode_snapshot(producers.entries.values())),
            (object_format.EPOCHS, encode_epochs(copy.epochs_up_to_end())),
            (object_format.ABORTED, copy.aborted),
            (object_format.PRODUCERS, encode_batches(producers.entries.values(), copy.end_offset)),
        ],
    )
    entry = TieredSegment(
        name=name,
        base_offset=segment.base_offset,
        end_offset=copy.end_offset,
        log_bytes=size,
        object_bytes=size + len(tail),
        max_timestamp=greatest,
        leader_epoch=leader_epoch,
        epochs=copy.epochs,
        has_aborted=bool(copy.aborted),
    )
    return PreparedObject(segment, tail, entry)
