"""Transactions on disk: the end-of-transaction marker, and Kafka's `.txnindex` with the aborted transactions of a
segment.

A marker is a control batch of one record. Key: version, type (0 abort, 1 commit). Value: version, epoch of the
coordinator. Both versions are 0; a later version begins with the same fields.

An entry of the index is 34 bytes: version 0, producer id, first offset, offset of the marker, and the last stable
offset when the marker was written. Entries are in the order of the markers. The last stable offset never goes back, so
a search may stop at the first entry at which the whole range was stable. Segments without aborted transactions have no
file.
"""

import os.path
from collections.abc import Iterable, Iterator
from struct import Struct
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from millstream.formats.records.batch import HEADER_SIZE, Bytes
from millstream.formats.records.record import Record, build_batch
from millstream.formats.records.varint import MAX_LONG_BYTES, read_varint
from millstream.node.storage.disk import Disk
from millstream.node.storage.file_formats import DamagedFileError

if TYPE_CHECKING:
    from millstream.node.storage.log.segment_list import SegmentList


_ENTRY = Struct(">hqqqq")
ENTRY_SIZE = _ENTRY.size
_VERSION = 0
_loading = Lock()
"""The loop and a thread of the cleaner may load the same file; entries that the loop then adds must not be lost."""

assert ENTRY_SIZE == 34


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    """Of the marker."""
    last_stable_offset: int


def encode_aborted(transactions: Iterable[AbortedTransaction]) -> bytes:
    return b"".join(_ENTRY.pack(_VERSION, *transaction) for transaction in transactions)


def decode_aborted(data: bytes, base_offset: int) -> list[AbortedTransaction]:
    """The entries of the index of a segment that begins at `base_offset`; DamagedFileError when they cannot be that."""
    if len(data) % ENTRY_SIZE:
        raise DamagedFileError(f"{len(data)} bytes are not a whole number of entries of {ENTRY_SIZE} bytes")
    found = []
    previous = base_offset - 1
    for version, *fields in _ENTRY.iter_unpack(data):
        transaction = AbortedTransaction(*fields)
        if version != _VERSION:
            raise DamagedFileError(f"transaction index version {version}")
        if not (
            transaction.producer_id >= 0
            and 0 <= transaction.first_offset < transaction.last_offset
            and previous < transaction.last_offset
            and 0 <= transaction.last_stable_offset <= transaction.last_offset + 1
        ):
            raise DamagedFileError(f"{transaction} does not fit after offset {previous}")
        previous = transaction.last_offset
        found.append(transaction)
    return found


def write_index(disk: Disk, path: str, transactions: list[AbortedTransaction]) -> None:
    """Write the file again, and bring it to stable storage; without transactions, remove it.

    Lost entries cannot be detected later. So a file that is right is not touched, and another one is replaced at once.
    """
    data = encode_aborted(transactions)
    exists = disk.exists(path)
    if data:
        if not exists or disk.read_bytes(path) != data:
            disk.write_atomically(path, data)
    elif exists:
        disk.remove(path)
        disk.sync_directory(os.path.dirname(path))


class TransactionIndex:
    """The index of one segment: its file, and the file's bytes once they were needed.

    A new one has no file; `opened` says that there is one.
    """

    __slots__ = ("_data", "_disk", "path")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self._data: bytearray | None = bytearray()
        """Grows in place. No reference outlives one call into C, so threads may read it too."""

    def opened(self) -> None:
        """There is a file. It is read at the first use."""
        self._data = None

    def __bool__(self) -> bool:
        """Whether the segment has aborted transactions."""
        data = self._data
        return data is None or len(data) > 0

    def __iter__(self) -> Iterator[AbortedTransaction]:
        return iter([AbortedTransaction(*fields) for _, *fields in _ENTRY.iter_unpack(bytes(self._bytes()))])

    def append(self, transactions: Iterable[AbortedTransaction]) -> None:
        """Append entries. An OSError leaves the index as it was."""
        data, added = self._bytes(), encode_aborted(transactions)
        file = self._disk.open(self.path) if data else self._disk.create(self.path)
        try:
            file.write_at(len(data), added)
        except OSError:
            self._cut(len(data))
            raise
        data += added

    def replace(self, transactions: list[AbortedTransaction]) -> None:
        """Write the file again."""
        write_index(self._disk, self.path, transactions)
        self._data = bytearray(encode_aborted(transactions))

    def truncate(self, offset: int) -> None:
        """Forget the transactions that ended at `offset` or later."""
        if not self:
            return
        size = ENTRY_SIZE * sum(transaction.last_offset < offset for transaction in self)
        data = self._bytes()
        if size < len(data):
            self._data = data[:size]
            self._cut(size)

    def own(self) -> None:
        """Have a file that no other log shares, before it is written to."""
        if self and self._disk.is_shared(self.path):
            self._disk.write_atomically(self.path, bytes(self._bytes()))

    def collect(self, fetch_offset: int, up_to: int, found: list[AbortedTransaction]) -> bool:
        """Add transactions that overlap with [fetch_offset, up_to) to `found`; True if later segments have no more."""
        data = self._bytes()
        low, high = 0, len(data) // ENTRY_SIZE
        while low < high:  # markers are in order: skip those before the offset
            middle = (low + high) >> 1
            if _ENTRY.unpack_from(data, middle * ENTRY_SIZE)[3] < fetch_offset:
                low = middle + 1
            else:
                high = middle
        for position in range(low * ENTRY_SIZE, len(data), ENTRY_SIZE):
            _, *fields = _ENTRY.unpack_from(data, position)
            transaction = AbortedTransaction(*fields)
            if transaction.first_offset < up_to:
                found.append(transaction)
            if transaction.last_stable_offset >= up_to:
                return True
        return False

    def _bytes(self) -> bytearray:
        data = self._data
        if data is None:
            with _loading:
                data = self._data
                if data is None:
                    data = self._data = bytearray(self._disk.read_bytes(self.path))
        return data

    def _cut(self, size: int) -> None:
        if size:
            self._disk.open(self.path).truncate(size)
        else:
            self._disk.remove(self.path)


def collect_aborted(segments: "SegmentList", fetch_offset: int, up_to: int) -> list[AbortedTransaction]:
    """The aborted transactions that have records in [fetch_offset, up_to). Their markers may be segments later."""
    found: list[AbortedTransaction] = []
    for slot in range(segments.slot_of(fetch_offset), len(segments)):
        index = segments[slot].aborted
        if index and index.collect(fetch_offset, up_to, found):
            break
    return found


_KEY = Struct(">hh")
_VALUE = Struct(">hi")
_ABORT, _COMMIT = 0, 1


class EndMarker(NamedTuple):
    committed: bool
    coordinator_epoch: int


def build_marker(
    marker: EndMarker, producer_id: int, producer_epoch: int, timestamp: int, *, log_append_time: bool
) -> bytearray:
    """The control batch; the log writes offset and epoch into it."""
    key = _KEY.pack(_VERSION, _COMMIT if marker.committed else _ABORT)
    record = Record(key, _VALUE.pack(_VERSION, marker.coordinator_epoch), timestamp=timestamp)
    return build_batch(
        [record],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
        log_append_time=timestamp if log_append_time else None,
    )


def read_marker(batch: Bytes) -> EndMarker | None:
    """The marker in a control batch; None if it is of another kind, or the cleaner has emptied it."""
    try:
        _, position = read_varint(batch, HEADER_SIZE)
        _, position = read_varint(batch, position + 1, MAX_LONG_BYTES)  # past the attributes: the timestamp delta
        _, position = read_varint(batch, position)  # the offset delta
        key_size, position = read_varint(batch, position)
        _, kind = _KEY.unpack_from(batch, position)
        _, position = read_varint(batch, position + key_size)
        _, coordinator_epoch = _VALUE.unpack_from(batch, position)
    except Exception:  # of another kind, or of an unknown format
        return None
    return EndMarker(kind == _COMMIT, coordinator_epoch) if kind in (_ABORT, _COMMIT) else None
