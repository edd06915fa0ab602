"""Kafka's `.snapshot` file: the producers of a partition at an offset, with a CRC32C over the entries.

Only the last batch of each producer is stored, as Kafka does; `producer_replay` finds the few before it in the log.

The `.snapshot` files of one log: which exist, writing the next, removing those that describe what is gone.
"""

from collections.abc import Collection, Iterable
from struct import Struct

from crc32c import crc32c

from millstream.formats.records.batch import MAX_SEQUENCE, NO_SEQUENCE
from millstream.node.storage.disk import Disk
from millstream.node.storage.file_formats import SNAPSHOT_SUFFIX, DamagedFileError, offset_file
from millstream.node.storage.log.producer_state import ProducerEntry, ProducerState

_HEAD = Struct(">hIi")
_ENTRY = Struct(">qhiqiqiq")
_VERSION = 1
_CRC_END = 6
_NO_OFFSET = -1


def encode_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    packed = [_pack(entry) for entry in entries]
    data = bytearray(_HEAD.pack(_VERSION, 0, len(packed)) + b"".join(packed))
    _HEAD.pack_into(data, 0, _VERSION, crc32c(memoryview(data)[_CRC_END:]), len(packed))
    return bytes(data)


def decode_snapshot(data: bytes) -> list[ProducerEntry]:
    if len(data) < _HEAD.size:
        raise DamagedFileError("shorter than a snapshot's header")
    version, crc, count = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise DamagedFileError(f"snapshot version {version}")
    if crc != crc32c(memoryview(data)[_CRC_END:]):
        raise DamagedFileError("checksum does not hold")
    if count < 0 or len(data) != _HEAD.size + count * _ENTRY.size:
        raise DamagedFileError("size does not fit the number of entries")
    return [_unpack(*fields) for fields in _ENTRY.iter_unpack(memoryview(data)[_HEAD.size :])]


def _pack(entry: ProducerEntry) -> bytes:
    last = entry.last_batch
    last_offset, delta = (last.last_offset, last.offset_delta) if last is not None else (_NO_OFFSET, 0)
    return _ENTRY.pack(
        entry.producer_id,
        entry.epoch,
        entry.last_sequence,
        last_offset,
        delta,
        entry.last_timestamp,
        entry.coordinator_epoch,
        entry.transaction_start,
    )


def _unpack(
    producer_id: int,
    epoch: int,
    last_sequence: int,
    last_offset: int,
    delta: int,
    timestamp: int,
    coordinator_epoch: int,
    transaction_start: int,
) -> ProducerEntry:
    entry = ProducerEntry(producer_id, epoch)
    if last_offset != _NO_OFFSET:
        first_sequence = (last_sequence - delta) & MAX_SEQUENCE if last_sequence >= 0 else NO_SEQUENCE
        entry.add(epoch, first_sequence, delta, last_offset, timestamp)
    entry.last_timestamp = timestamp
    entry.coordinator_epoch = coordinator_epoch
    entry.transaction_start = transaction_start
    return entry


class SnapshotFiles:
    __slots__ = ("_directory", "_disk", "offsets")

    def __init__(self, disk: Disk, directory: str, offsets: list[int]) -> None:
        self._disk = disk
        self._directory = directory
        self.offsets = offsets

    def write(self, offset: int, producers: ProducerState) -> None:
        # Neither atomic nor waited for: a damaged snapshot is known by its checksum, and made anew from the log.
        try:
            self._disk.write_bytes(self._path(offset), encode_snapshot(producers.entries.values()))
        except OSError:
            self._disk.remove(self._path(offset))
            raise
        if offset not in self.offsets:
            self.offsets.append(offset)

    def forget_before(self, offset: int) -> list[str]:
        """Stop counting on snapshots of deleted segments; returns their paths, to be removed with the segments."""
        old = [found for found in self.offsets if found < offset]
        self.offsets = [found for found in self.offsets if found >= offset]
        return [self._path(found) for found in old]

    def forget_at(self, offsets: Collection[int]) -> list[str]:
        """Stop counting on the snapshots of segments that are merged into others; returns their paths."""
        gone = [found for found in self.offsets if found in offsets]
        self.offsets = [found for found in self.offsets if found not in offsets]
        return [self._path(found) for found in gone]

    def remove_after(self, offset: int) -> None:
        self._remove([found for found in self.offsets if found > offset])

    def remove_before(self, offset: int) -> None:
        self._remove([found for found in self.offsets if found < offset])

    def remove_strays(self, wanted: Collection[int]) -> None:
        """Keep only snapshots at these offsets: the segments' bases and the end of the log."""
        self._remove([found for found in self.offsets if found not in wanted])

    def _remove(self, offsets: list[int]) -> None:
        for offset in offsets:
            self._disk.remove(self._path(offset))
            self.offsets.remove(offset)

    def _path(self, offset: int) -> str:
        return offset_file(self._directory, offset, SNAPSHOT_SUFFIX)
