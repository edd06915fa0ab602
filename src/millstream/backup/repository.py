"""The repository of backups: a directory or a bucket, with manifests and the segments to which they refer.

    backups/<id>/manifest.json      what the backup is; written last, so a backup without it does not count
    backups/<id>/started            written first: segments of this id may belong to a backup that is running
    backups/<id>/tier.json          written before the first reference to an object of the tier: where that tier is
    backups/<id>/partitions.jsonl   one line for each partition: its offsets and its segments
    backups/<id>/metadata.checkpoint  the metadata of the cluster, a snapshot in Kafka's format
    segments/<topic id>/<partition>/<base offset>-<id>.log   record batches, byte for byte

A segment may also be a reference to an object of the tier (`tier_objects.py`).

An object is never changed. So a backup that is interrupted leaves the earlier ones as they are, and later backups use
the segments of earlier ones. Objects have the id of the backup that wrote them.
"""

import json
import os
import re
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from crc32c import crc32c

from millstream.backup.blocking_store import BackupError, BlockingStore
from millstream.formats.records.batch import HEADER_SIZE, has_valid_checksum, is_plausible, read_header
from millstream.node.storage.object_store import NoObjectError, StoredObject

T = TypeVar("T")
FORMAT = 1
FORMAT_WITH_TIER = 2
"""If segments are references to objects of the tier: a Millstream that does not know them must not delete or restore
such a backup."""
_BACKUPS = "backups"
_SEGMENTS = "segments"
_MANIFEST = "manifest.json"
_TIER = "tier.json"
TIER_PREFIX = "tier/"
"""The names of segments that are objects of the tier begin with it."""
_MANIFEST_MAX_BYTES = 1 << 20
_READ_BYTES = 4 << 20
_LARGEST_BATCH = 256 << 20
_ID = re.compile(r"\d{8}T\d{9}Z-[0-9a-f]{6}")
_SEGMENT_NAME = re.compile(rf"{_SEGMENTS}/[0-9a-f-]{{36}}/\d+/\d{{20}}-(\d{{8}}T\d{{9}}Z-[0-9a-f]{{6}})\.log")
# Names of earlier versions have no node id.
_TIER_NAME = re.compile(
    rf"{TIER_PREFIX}[A-Za-z0-9_-]+/[0-9a-f-]{{36}}/\d+/\d{{20}}-\d{{10}}-(?:\d+-)?[0-9a-f]+\.segment"
)


def id_time(time_ms: int) -> str:
    """The begin of the id of a backup of that time: ids are in the order of their times."""
    return f"{datetime.fromtimestamp(time_ms // 1000, UTC):%Y%m%dT%H%M%S}{time_ms % 1000:03d}Z"


class NoBackupError(BackupError):
    """There is no such backup."""


class DamagedBackupError(BackupError):
    """An object of a backup is missing, or is not what the manifest says."""


class Part(NamedTuple):
    """An object of one backup alone: its metadata, its list of partitions."""

    name: str
    size: int
    crc: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    id: str
    cluster_id: str
    created_ms: int
    """When the points were taken."""
    version: str
    """Of the program that wrote it."""
    topics: int
    partition_count: int
    size: int
    """Bytes of all segments."""
    new_size: int
    """Bytes of the segments that no earlier backup had."""
    metadata_offset: int
    """The last record of the metadata log that the backup has, and its epoch."""
    metadata_epoch: int
    metadata: Part
    partitions: Part
    tier: str | None = None
    """The tier with the objects to which the backup refers; None if it has all records itself."""


class Chunk(NamedTuple):
    """A segment of a backup: whole batches from `base` to before `end`. Compaction may have left gaps."""

    name: str
    """Of an object of the repository; of the tier, after `TIER_PREFIX`."""
    base: int
    end: int
    size: int
    crc: int
    last_epoch: int
    """The leader epoch of the last batch; -1 if it has none."""

    @property
    def is_reference(self) -> bool:
        """Whether it is an object of the tier."""
        return self.name.startswith(TIER_PREFIX)


@dataclass(frozen=True, slots=True)
class PartitionBackup:
    topic: str
    topic_id: UUID
    partition: int
    start: int
    end: int
    """The point: the offset after the last record."""
    chunks: tuple[Chunk, ...]


class Repository:
    """Blocking; methods may be called from several threads."""

    def __init__(self, url: str, *, rate: int | None = None, must_exist: bool = False) -> None:
        """`rate`: bytes per second, for writing and for reading."""
        if "://" not in url:
            url = f"file://{os.path.abspath(url)}"
        self.url = url
        self.directory = url.removeprefix("file://") if url.startswith("file://") else None
        """The directory, if it is one."""
        if must_exist and self.directory is not None and not os.path.isdir(self.directory):
            raise NoBackupError(f"{self.directory} does not exist: name the directory that `backup create` wrote to")
        self._store = BlockingStore(url, rate)

    def __enter__(self) -> "Repository":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._store.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._store.run(work)

    # Objects

    def write(self, name: str, parts: Callable[[], Iterator[bytes]], size: int) -> None:
        self._run(self._store.store.create(name, parts, size))
        self._sync(name)

    def link(self, path: str, name: str) -> bool:
        """Makes a file an object by a hard link; False if that is not possible. Only in a directory."""
        assert self.directory is not None
        target = os.path.join(self.directory, name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        try:
            os.link(path, target)
        except OSError:
            return False  # another file system, or a file that was removed: its records are fetched
        self._sync(name)
        return True

    def _sync(self, name: str) -> None:
        """A directory: the object is on the disk before a manifest names it."""
        if self.directory is None:
            return
        path = os.path.join(self.directory, name)
        for each in (path, os.path.dirname(path)):
            descriptor = os.open(each, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def read(self, name: str, position: int, length: int) -> bytes:
        try:
            return bytes(self._run(self._store.store.read(name, position, length)))
        except NoObjectError:
            raise DamagedBackupError(f"{name} is missing in {self.url}: use another backup") from None

    def delete(self, names: Iterable[str]) -> None:
        self._run(self._store.store.delete(list(names)))

    def objects(self, prefix: str) -> list[StoredObject]:
        return self._run(self._store.store.list(prefix))

    # Backups

    def ids(self) -> list[str]:
        """The complete backups, oldest first."""
        names = (each.name.split("/") for each in self.objects(_BACKUPS))
        return sorted(
            parts[1] for parts in names if len(parts) == 3 and parts[2] == _MANIFEST and _ID.fullmatch(parts[1])
        )

    def manifest(self, backup_id: str) -> Manifest:
        if not _ID.fullmatch(backup_id):
            raise NoBackupError(f"{backup_id!r} is not the id of a backup: `millstream backup list` shows them")
        try:
            data = bytes(
                self._run(self._store.store.read(f"{_BACKUPS}/{backup_id}/{_MANIFEST}", 0, _MANIFEST_MAX_BYTES))
            )
        except NoObjectError:
            raise NoBackupError(
                f"{self.url} has no backup {backup_id}, or it was not finished: `millstream backup list` shows them"
            ) from None
        return decode_manifest(data, backup_id)

    def newest(self) -> Manifest | None:
        found = self.ids()
        return self.manifest(found[-1]) if found else None

    def write_manifest(self, manifest: Manifest) -> None:
        fields = {"format": FORMAT if manifest.tier is None else FORMAT_WITH_TIER} | asdict(manifest)
        if manifest.tier is None:
            del fields["tier"]  # which an earlier version does not know
        data = json.dumps(fields, indent=1, default=tuple).encode()
        self._run(self._store.store.replace(f"{_BACKUPS}/{manifest.id}/{_MANIFEST}", data, None))

    def begin(self, backup_id: str) -> None:
        """Before the first segment: `remove` leaves those of a backup that has begun lately."""
        self.write(f"{_BACKUPS}/{backup_id}/started", lambda: iter([b"started\n"]), 8)

    def note_tier(self, backup_id: str, url: str, cluster_id: str) -> None:
        """Before the first reference to an object of the tier: the references are removed with the backup."""
        data = json.dumps({"url": url, "cluster_id": cluster_id}).encode()
        self.write(f"{_BACKUPS}/{backup_id}/{_TIER}", lambda: iter([data]), len(data))

    def noted_tier(self, backup_id: str) -> tuple[str, str] | None:
        """The URL of the tier to which a backup may refer, and the id of its cluster; also if it was interrupted."""
        name = f"{_BACKUPS}/{backup_id}/{_TIER}"
        try:
            fields = json.loads(bytes(self._run(self._store.store.read(name, 0, _MANIFEST_MAX_BYTES))))
            return str(fields["url"]), str(fields["cluster_id"])
        except NoObjectError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedBackupError(f"{name} is damaged: {error}") from None

    def write_part(self, backup_id: str, file: str, lines: Iterable[bytes]) -> Part:
        pieces = list(lines)
        name, size, crc = f"{_BACKUPS}/{backup_id}/{file}", sum(map(len, pieces)), 0
        for piece in pieces:
            crc = crc32c(piece, crc)
        self.write(name, lambda: iter(pieces), size)
        return Part(name, size, crc)

    def read_part(self, part: Part) -> bytes:
        pieces, crc = [], 0
        for position in range(0, part.size, _READ_BYTES):
            piece = self.read(part.name, position, min(_READ_BYTES, part.size - position))
            crc = crc32c(piece, crc)
            pieces.append(piece)
        data = b"".join(pieces)
        if len(data) != part.size or crc != part.crc:
            raise DamagedBackupError(f"{part.name} is damaged: use another backup")
        return data

    def partitions(self, manifest: Manifest) -> list[PartitionBackup]:
        try:
            return [_partition(json.loads(line)) for line in self.read_part(manifest.partitions).splitlines()]
        except (ValueError, TypeError, KeyError) as error:
            raise DamagedBackupError(f"{manifest.partitions.name} cannot be read: {error}") from None

    def batches(self, chunk: Chunk) -> Iterator[bytes]:
        """The bytes of a segment in pieces of whole batches, each checked; DamagedBackupError."""
        return whole_batches(chunk, lambda position, length: self.read(chunk.name, position, length))

    # Deletion

    def remove(self, doomed: Iterable[str], older_than: str, release: Callable[[str], None]) -> int:
        """Removes backups, and segments that no other backup has; returns their bytes. Segments of a backup that is not
        finished stay if its id is not before `older_than`: it may be running. `release` is called with the id of each
        backup whose references to objects of the tier are to be removed."""
        gone = set(doomed)
        kept = [each for each in self.ids() if each not in gone]
        named = {chunk.name for each in kept for row in self.partitions(self.manifest(each)) for chunk in row.chunks}
        # Manifests first: without them the backup is gone, whatever happens then.
        self.delete(f"{_BACKUPS}/{each}/{_MANIFEST}" for each in gone)
        lists = self.objects(_BACKUPS)
        owners = {each.name.split("/")[1] for each in lists}
        running = {each for each in owners if each not in gone and each not in kept and each >= older_than}
        for each in sorted(owners - running.union(kept)):
            release(each)
        self.delete(each.name for each in lists if each.name.split("/")[1] not in running.union(kept))
        loose = [
            each
            for each in self.objects(_SEGMENTS)
            if (match := _SEGMENT_NAME.fullmatch(each.name)) is not None
            and each.name not in named
            and match[1] not in running
        ]
        self.delete(each.name for each in loose)
        return sum(each.size for each in loose)


def whole_batches(chunk: Chunk, read: Callable[[int, int], bytes]) -> Iterator[bytes]:
    """The bytes of a segment in pieces of whole batches, each checked; DamagedBackupError. `read`: position, length."""
    crc, held, following = 0, b"", chunk.base
    for position in range(0, chunk.size, _READ_BYTES):
        piece = read(position, min(_READ_BYTES, chunk.size - position))
        crc = crc32c(piece, crc)
        held += piece
        whole, following = check_batches(held, following, chunk)
        if whole:
            yield held[:whole]
            held = held[whole:]
        elif len(held) > _LARGEST_BATCH:
            break
    if held or crc != chunk.crc:
        raise DamagedBackupError(f"{chunk.name} is damaged: its checksum is wrong. Use another backup")


def check_batches(data: bytes, following: int, chunk: Chunk) -> tuple[int, int]:
    """(bytes of whole batches, the offset after them); DamagedBackupError if one is wrong or not in its place."""
    position = 0
    while len(data) - position >= HEADER_SIZE:
        header = read_header(data, position)
        if not is_plausible(header):
            raise DamagedBackupError(f"{chunk.name} is damaged: no batch begins where one should. Use another backup")
        if position + header.size > len(data):
            break
        if not has_valid_checksum(data, position, header):
            raise DamagedBackupError(f"{chunk.name} is damaged at offset {header.base_offset}: use another backup")
        if header.last_offset < following or header.last_offset >= chunk.end:
            raise DamagedBackupError(f"{chunk.name} has offset {header.base_offset} out of order: use another backup")
        following = header.last_offset + 1
        position += header.size
    return position, following


def segment_name(topic_id: UUID, partition: int, base: int, backup_id: str) -> str:
    return f"{_SEGMENTS}/{topic_id}/{partition}/{base:020d}-{backup_id}.log"


def encode_partition(row: PartitionBackup) -> bytes:
    fields = [row.topic, str(row.topic_id), row.partition, row.start, row.end, [list(each) for each in row.chunks]]
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def _partition(fields: Any) -> PartitionBackup:
    topic, topic_id, partition, start, end, chunks = fields
    found = PartitionBackup(topic, UUID(topic_id), partition, start, end, tuple(Chunk(*each) for each in chunks))
    at = start
    for chunk in found.chunks:
        if chunk.base > at or chunk.end <= chunk.base or not _is_name(chunk.name):
            raise ValueError(f"the segments of {topic}-{partition} do not follow on each other")
        at = chunk.end
    if found.chunks and at != end:
        raise ValueError(f"the segments of {topic}-{partition} end at {at}, not at {end}")
    return found


def _is_name(name: str) -> bool:
    return (_SEGMENT_NAME.fullmatch(name) or _TIER_NAME.fullmatch(name)) is not None


def decode_manifest(data: bytes, backup_id: str) -> Manifest:
    try:
        fields = json.loads(data)
        if fields.pop("format") not in (FORMAT, FORMAT_WITH_TIER):
            raise DamagedBackupError(f"backup {backup_id} has another format: use the version that wrote it, or later")
        for name in ("metadata", "partitions"):
            fields[name] = Part(*fields[name])
        manifest = Manifest(**fields)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedBackupError(f"the manifest of backup {backup_id} is damaged ({error}): use another one") from None
    if manifest.id != backup_id:
        raise DamagedBackupError(f"the manifest of backup {backup_id} is that of {manifest.id}: use another one")
    return manifest
