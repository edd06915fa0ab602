"""Snapshots of the metadata: `<end offset>-<epoch>.checkpoint` files beside the log, in Kafka's format.

A snapshot is the whole state at its end offset, as record batches: a control batch with the header (and kraft.version
and voters), the records, a control batch with the footer. It is written under another name, and renamed when it is
complete and on stable storage, so a crash leaves no incomplete one.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field, replace
from typing import Any

from millstream.common.lazy_dataclass import dataclass
from millstream.formats.model.errors import KafkaError
from millstream.formats.records.record import Record, build_batch, read_batches
from millstream.node.consensus.quorum.control_records import (
    ControlRecord,
    KRaftVersion,
    SnapshotFooter,
    SnapshotHeader,
    Voters,
    decode_control,
    encode_control,
)
from millstream.node.consensus.raft.messages import LogPosition
from millstream.node.consensus.raft.voter_set import VoterSet
from millstream.node.metadata.records import (
    CorruptMetadataError,
    MetadataRecord,
    check_known,
    decode_record,
    encode_record,
)
from millstream.node.storage.disk import Disk, File, Job, removal

_log = logging.getLogger("millstream.quorum")

SUFFIX = ".checkpoint"
PART_SUFFIX = ".checkpoint.part"
DELETED_SUFFIX = ".checkpoint.deleted"
_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_RECORDS_PER_BATCH = 1000
_HEAD_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class SnapshotContent:
    """The content of a snapshot: its header, and its records."""

    last_contained_log_timestamp: int
    kraft_version: int = 0
    voters: VoterSet | None = None
    records: tuple[MetadataRecord, ...] = field(default=(), repr=False)


class Snapshots:
    """The snapshots of one metadata log, by id. Functions that may block run in a thread."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._ids: list[LogPosition] = []
        self._files: dict[LogPosition, File] = {}

    def load(self) -> None:
        """Finds the snapshots, and removes incomplete and deleted ones that a crash left."""
        for name, is_directory in self._disk.list(self._directory):
            if not is_directory and name.endswith((PART_SUFFIX, DELETED_SUFFIX)):
                self._disk.remove(f"{self._directory}/{name}")
        self.find()

    def find(self) -> None:
        """Finds the snapshots, and changes nothing."""
        matches = (_NAME.fullmatch(name) for name, is_directory in self._disk.list(self._directory) if not is_directory)
        self._ids = [LogPosition(int(match[1]), int(match[2])) for match in matches if match is not None]
        self._ids.sort(key=_order)

    @property
    def ids(self) -> tuple[LogPosition, ...]:
        return tuple(self._ids)

    @property
    def latest(self) -> LogPosition | None:
        return self._ids[-1] if self._ids else None

    @property
    def earliest(self) -> LogPosition | None:
        return self._ids[0] if self._ids else None

    def path(self, snapshot_id: LogPosition, suffix: str = SUFFIX) -> str:
        return f"{self._directory}/{snapshot_id.offset:020d}-{snapshot_id.epoch:010d}{suffix}"

    def size(self, snapshot_id: LogPosition) -> int:
        return self._file(snapshot_id).size()

    def read_piece(self, snapshot_id: LogPosition, position: int, max_bytes: int) -> bytes:
        """Bytes of the file for a replica that fetches it; KeyError if there is no such snapshot."""
        return self._file(snapshot_id).read_at(position, max_bytes)

    def last_contained_ms(self, snapshot_id: LogPosition) -> int:
        """The timestamp of the last record in the snapshot."""
        for _, rows in read_batches(self._file(snapshot_id).read_at(0, _HEAD_BYTES)):
            header = decode_control(rows[0])
            if isinstance(header, SnapshotHeader):
                return header.last_contained_log_timestamp
            break
        raise CorruptMetadataError(f"{self.path(snapshot_id)} does not begin with a snapshot's header")

    def read(self, snapshot_id: LogPosition) -> SnapshotContent:
        """The whole content; CorruptMetadataError if it is incomplete or damaged."""
        path = self.path(snapshot_id)
        return decode_snapshot(self._disk.read_bytes(path), path)

    def check(self, snapshot_id: LogPosition, check_record: Callable[[bytes], Any] = check_known) -> SnapshotContent:
        """The content without the records; CorruptMetadataError if it is incomplete or damaged, or has unknown records.
        `check_record` is called with each record."""
        path = self.path(snapshot_id)
        return replace(decode_snapshot(self._disk.read_bytes(path), path, check_record), records=())

    def write(self, snapshot_id: LogPosition, content: SnapshotContent, now_ms: int) -> int:
        """Writes a snapshot; returns its size when it is on stable storage. It is known after `add`. May block."""
        part = self.path(snapshot_id, PART_SUFFIX)
        file = self._disk.create(part)
        size = 0
        for batch in encode_snapshot(content, snapshot_id.epoch, now_ms):
            file.write_at(size, batch)
            size += len(batch)
        self.put_in_place(file, snapshot_id)
        return size

    def receive(self, snapshot_id: LogPosition) -> "IncomingSnapshot":
        """A snapshot that is fetched in chunks."""
        return IncomingSnapshot(self, snapshot_id, self._disk.create(self.path(snapshot_id, PART_SUFFIX)))

    def remove_part(self, snapshot_id: LogPosition) -> None:
        """Removes an incomplete one."""
        self._disk.remove(self.path(snapshot_id, PART_SUFFIX))

    def discard(self, snapshot_id: LogPosition) -> None:
        """Removes one that was written, and not added."""
        self._disk.remove(self.path(snapshot_id))

    def add(self, snapshot_id: LogPosition) -> None:
        """Adds one that was written or received."""
        if snapshot_id not in self._ids:
            self._ids.append(snapshot_id)
            self._ids.sort(key=_order)

    def forget_before(self, snapshot_id: LogPosition) -> Job | None:
        """Drops all older ones; the job removes their files."""
        old = [each for each in self._ids if _order(each) < _order(snapshot_id)]
        if not old:
            return None
        self._ids = self._ids[len(old) :]
        for each in old:
            self._files.pop(each, None)
        return removal(self._disk, f"remove_snapshots before={snapshot_id}", [self.path(each) for each in old])

    def close(self) -> None:
        self._files.clear()

    def _file(self, snapshot_id: LogPosition) -> File:
        if snapshot_id not in self._ids:
            raise KeyError(snapshot_id)
        file = self._files.get(snapshot_id)
        if file is None:
            file = self._files[snapshot_id] = self._disk.open(self.path(snapshot_id))
        return file

    def put_in_place(self, file: File, snapshot_id: LogPosition) -> None:
        file.sync()
        self._disk.rename(self.path(snapshot_id, PART_SUFFIX), self.path(snapshot_id))
        self._disk.sync_directory(self._directory)


class IncomingSnapshot:
    """A snapshot of the leader that is being received."""

    def __init__(self, snapshots: Snapshots, snapshot_id: LogPosition, file: File) -> None:
        self._snapshots = snapshots
        self.id = snapshot_id
        self._file = file
        self.position = 0

    def append(self, piece: bytes) -> None:
        self._file.write_at(self.position, piece)
        self.position += len(piece)

    def discard(self) -> None:
        self._snapshots.remove_part(self.id)

    def finish(self) -> SnapshotContent:
        """Checks it and gives it its name; CorruptMetadataError if it is incomplete or damaged. May block."""
        data = self._file.read_at(0, self.position)
        content = decode_snapshot(data, f"snapshot {self.id} as it was fetched")
        self._snapshots.put_in_place(self._file, self.id)
        return content


def _order(snapshot_id: LogPosition) -> tuple[int, int]:
    return snapshot_id.offset, snapshot_id.epoch


def encode_snapshot(content: SnapshotContent, epoch: int, now_ms: int) -> Iterator[bytearray]:
    """The batches of the file. Their offsets begin at 0 and have no meaning: the end offset is in the file name."""
    head: list[ControlRecord] = [SnapshotHeader(content.last_contained_log_timestamp)]
    if content.kraft_version > 0:
        head.append(KRaftVersion(content.kraft_version))
        if content.voters is not None:
            head.append(Voters(content.voters))
    yield _control_batch(head, 0, epoch, now_ms)
    offset = len(head)
    for first in range(0, len(content.records), _RECORDS_PER_BATCH):
        some = content.records[first : first + _RECORDS_PER_BATCH]
        rows = [Record(key=None, value=encode_record(record), timestamp=now_ms) for record in some]
        yield build_batch(rows, base_offset=offset, leader_epoch=epoch)
        offset += len(rows)
    yield _control_batch([SnapshotFooter()], offset, epoch, now_ms)


def decode_snapshot(data: bytes, where: str, decode: Callable[[bytes], Any] = decode_record) -> SnapshotContent:
    """The content of a file's bytes; `where` is for the error message, `decode` is called with each record."""
    header: SnapshotHeader | None = None
    kraft_version, voters = 0, None
    records: list[MetadataRecord] = []
    has_footer = False
    try:
        for batch, rows in read_batches(data):
            if has_footer:
                raise CorruptMetadataError("it has records after its footer")
            if not batch.is_control:
                if header is None:
                    raise CorruptMetadataError("it does not begin with a snapshot's header")
                records += [decode(row.value or b"") for row in rows]
                continue
            for control in map(decode_control, rows):
                match control:
                    case SnapshotHeader():
                        header = control
                    case KRaftVersion():
                        kraft_version = control.level
                    case Voters():
                        voters = control.voters
                    case SnapshotFooter():
                        has_footer = True
    except KafkaError as error:
        raise CorruptMetadataError(f"{where} is damaged: {error.message}") from None
    except CorruptMetadataError as error:
        raise CorruptMetadataError(f"{where}: {error}") from None
    if header is None or not has_footer:
        raise CorruptMetadataError(f"{where} is incomplete: it has no {'header' if header is None else 'footer'}")
    return SnapshotContent(header.last_contained_log_timestamp, kraft_version, voters, tuple(records))


def _control_batch(records: Iterable[ControlRecord], base_offset: int, epoch: int, now_ms: int) -> bytearray:
    rows = [encode_control(record, now_ms) for record in records]
    return build_batch(rows, base_offset=base_offset, leader_epoch=epoch, control=True)
