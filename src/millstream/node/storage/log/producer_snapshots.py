"""Producer state on disk: Kafka's `.snapshot` files, and the replay of batches after a snapshot.

A snapshot has the producers of a partition at an offset, with a CRC32C over the entries, and only the last batch of
each producer, as in Kafka. The few batches before it are found in the log. A replay validates nothing: the batches are
in the log already.
"""

import logging
from bisect import insort
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from struct import Struct

from crc32c import crc32c

from millstream.formats.model.errors import KafkaError
from millstream.formats.records.batch import (
    CONTROL_BIT,
    MAX_SEQUENCE,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Bytes,
)
from millstream.node.storage.disk import Disk
from millstream.node.storage.file_formats import SNAPSHOT_SUFFIX, DamagedFileError, offset_file
from millstream.node.storage.index.transaction_index import AbortedTransaction, read_marker
from millstream.node.storage.log.batch_scan import walk_headers
from millstream.node.storage.log.earlier_batches import read_batches_file
from millstream.node.storage.log.files import read_branch
from millstream.node.storage.log.producer_state import REMEMBERED_BATCHES, ProducerEntry, ProducerState
from millstream.node.storage.log.segment import Segment

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
        raise DamagedFileError("wrong checksum")
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
        # Neither atomic nor durable: a damaged snapshot is detected by its checksum, and rebuilt from the log.
        try:
            self._disk.write_bytes(self._path(offset), encode_snapshot(producers.entries.values()))
        except OSError:
            self._disk.remove(self._path(offset))
            raise
        if offset not in self.offsets:
            insort(self.offsets, offset)

    def sync(self, offset: int) -> bool:
        """Bring the snapshot at an offset to stable storage; False if there is none. May block."""
        try:
            self._disk.open(self._path(offset)).sync()
        except FileNotFoundError:
            return False
        self._disk.sync_directory(self._directory)
        return True

    def forget_before(self, offset: int) -> list[str]:
        """Forget the snapshots of deleted segments; returns their paths, to be removed with the segments."""
        old = [found for found in self.offsets if found < offset]
        self.offsets = [found for found in self.offsets if found >= offset]
        return [self._path(found) for found in old]

    def forget_at(self, offsets: Collection[int]) -> list[str]:
        """Forget the snapshots of segments that are merged into others; returns their paths."""
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


_log = logging.getLogger("millstream.storage")

_NEARBY_OFFSETS = 2000
_NEARBY_BATCHES = 250
_MOST_BATCHES = 10_000
"""How far back earlier batches of producers are searched: more than clients have in flight, and read at once. The range
of offsets grows until it has enough batches, whether they hold one record or ten thousand."""


def note_batch(producers: ProducerState, header: Sequence[int], batch: Bytes | None) -> AbortedTransaction | None:
    """Note one batch; `batch` is needed only for a control batch. Returns its entry in the transaction index, if
    any."""
    if producers.begins_at:
        producers.begin_anew(header[0])
    producer_id = header[9]
    if producer_id < 0:
        return None
    if not header[5] & CONTROL_BIT:
        producers.append(
            producer_id,
            header[10],
            header[11],
            header[6],
            header[0] + header[6],
            header[8],
            bool(header[5] & TRANSACTIONAL_BIT),
        )
        return None
    marker = read_marker(batch) if batch is not None else None
    if marker is None:
        return None
    return producers.end_transaction(
        producer_id, header[10], marker.coordinator_epoch, header[8], header[0], marker.committed
    )


def load_snapshot(disk: Disk, directory: str, snapshots: list[int]) -> tuple[int | None, ProducerState]:
    """The latest snapshot that can be read, and its offset; damaged ones are removed, here and from the list."""
    while snapshots:
        offset = max(snapshots)
        path = offset_file(directory, offset, SNAPSHOT_SUFFIX)
        try:
            return offset, ProducerState(decode_snapshot(disk.read_bytes(path)))
        except (DamagedFileError, FileNotFoundError) as error:
            _log.warning("snapshot_discarded file=%s reason=%s", path, error)
            disk.remove(path)
            snapshots.remove(offset)
    return None, ProducerState()


def producers_begin(disk: Disk, directory: str, start: int) -> int:
    """Where the producers of a branch begin, if that is after the offset where a replay starts; else 0."""
    branch = read_branch(disk, directory)
    return branch.offset if branch is not None and branch.offset > start else 0


def rebuild_producers(
    disk: Disk, directory: str, segments: Iterable[Segment], snapshots: list[int], log_start_offset: int
) -> ProducerState:
    """From the latest sound snapshot and the batches after it."""
    offset, producers = load_snapshot(disk, directory, snapshots)
    start = log_start_offset if offset is None else offset
    producers.begins_at = producers_begin(disk, directory, start)
    ordered = list(segments)
    for slot, segment in enumerate(ordered):
        if slot + 1 < len(ordered) and ordered[slot + 1].base_offset <= start:
            continue
        found = segment.find(start) if segment.size else None
        if found is not None:
            replay(producers, segment, found, start)
    if offset is not None and producers.entries:
        _remember_earlier(producers, ordered, offset)
        read_batches_file(disk, directory, producers)
    return producers


def aborted_in(
    disk: Disk, directory: str, segments: Sequence[Segment], slot: int, snapshots: list[int]
) -> list[AbortedTransaction]:
    """The aborted transactions whose markers are in the segment at `slot`, found in the log itself."""
    segment = segments[slot]
    earlier = [offset for offset in snapshots if offset <= segment.base_offset]
    producers = rebuild_producers(disk, directory, segments[:slot], earlier, segments[0].base_offset)
    return replay(producers, segment, 0, segment.base_offset)


def _remember_earlier(producers: ProducerState, segments: list[Segment], offset: int) -> None:
    """Complete the last batches of each producer from the log, if they are near.

    A snapshot has only the last batch of each producer. A producer with several requests in flight when the node
    stopped repeats them all, and fails if one of them counts as out of order.
    """
    earlier = ProducerState()
    for header in _batches_before(segments, offset):
        if not header.is_control:
            note_batch(earlier, header, None)
    for producer_id, entry in producers.entries.items():
        known = earlier.entries.get(producer_id)
        if known is not None and known.epoch == entry.epoch and entry.batches:
            before = [batch for batch in known.batches if batch[2] < entry.batches[0][2]]
            entry.batches = [*before, *entry.batches][-REMEMBERED_BATCHES:]


def _batches_before(segments: list[Segment], offset: int) -> list[BatchHeader]:
    """The last batches before the offset: `_NEARBY_BATCHES` or more, unless there are fewer, or too many small ones."""
    first = segments[0].base_offset if segments else offset
    found: list[BatchHeader] = []
    reach = _NEARBY_OFFSETS
    while True:
        since = max(offset - reach, first)
        further = list(islice(_batches_between(segments, since, offset), _MOST_BATCHES + 1))
        if len(further) > _MOST_BATCHES:
            return found
        found = further
        if len(found) >= _NEARBY_BATCHES or since == first:
            return found
        reach *= 8


def _batches_between(segments: list[Segment], since: int, until: int) -> Iterator[BatchHeader]:
    for slot, segment in enumerate(segments):
        if segment.base_offset >= until or (slot + 1 < len(segments) and segments[slot + 1].base_offset <= since):
            continue
        try:
            found = segment.find(max(since, segment.base_offset)) if segment.size else None
        except KafkaError:  # damaged; a fetch of those records gets the error
            found = None
        if found is None:
            continue
        for _, header in walk_headers(segment.file(), found, segment.size):
            if header.base_offset >= until:
                break
            yield header


def replay(producers: ProducerState, segment: Segment, position: int, from_offset: int) -> list[AbortedTransaction]:
    """Note a segment's batches; returns the transactions that they abort."""
    file = segment.file()
    aborted = []
    for at, header in walk_headers(file, position, segment.size):
        if header.last_offset >= from_offset:
            found = note_batch(producers, header, file.read_at(at, header.size) if header.is_control else None)
            if found is not None:
                aborted.append(found)
    return aborted
