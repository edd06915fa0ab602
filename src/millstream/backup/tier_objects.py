"""Objects of the tier as segments of a backup: references that keep them, reading, and a restored topic that uses them.

A backup that refers to objects has a manifest of its own in the tier for each partition:

    <cluster id>/backups/<backup id>/<topic id>/<partition>.json

It is in the list of references of the partitions that have copied the objects (`node/tier/references.py`). So neither
retention nor a deleted topic deletes an object that a backup has. The name has more parts than that of a partition's
manifest, and another ending: the sweeper and `millstream tier` do not take it for a topic.
"""

from collections.abc import Coroutine, Iterator
from dataclasses import replace
from typing import Any, TypeVar
from uuid import UUID

from millstream.backup.blocking_store import BackupError, BlockingStore
from millstream.backup.repository import TIER_PREFIX, Chunk, DamagedBackupError, PartitionBackup, whole_batches
from millstream.formats.records.batch import iterate_headers
from millstream.node.storage.file_formats import DamagedFileError
from millstream.node.storage.log.tiered_part import TierStart
from millstream.node.storage.object_store import ConflictError, NoObjectError, ObjectStore, Version
from millstream.node.tier import references
from millstream.node.tier.core.manifest import (
    DamagedManifestError,
    Manifest,
    TieredSegment,
    decode_manifest,
    encode_manifest,
    manifest_name,
)
from millstream.node.tier.core.object_format import LOG, DamagedObjectError, Tail, decode_tail
from millstream.node.tier.encryption import Keyring, ObjectCipher, WrongKeyError, unwrap
from millstream.node.tier.reading import tier_start

T = TypeVar("T")


def _own_name(cluster_id: str, backup_id: str, topic_id: UUID, partition: int) -> str:
    return f"{cluster_id}/backups/{backup_id}/{topic_id}/{partition}.json"


class TierObjects:
    """Blocking; methods may be called from several threads."""

    def __init__(self, url: str, keyring: Keyring | None = None, rate: int | None = None) -> None:
        """`keyring`: the keys of encrypted objects; a backup is made without them."""
        self.url = url
        self._keyring = keyring
        self._blocking = BlockingStore(url, rate)

    def __enter__(self) -> "TierObjects":
        return self

    def __exit__(self, *_: object) -> None:
        self._blocking.close()

    @property
    def _store(self) -> ObjectStore:
        return self._blocking.store

    # Making a backup

    def refer(self, cluster_id: str, row: PartitionBackup, backup_id: str) -> Manifest | None:
        """Keeps the objects that have the records of a partition, as far as they end before its point. None if there
        are none. Epochs of a topic that was restored from the tier are not those of its batches: none, too."""
        return self._run(self._refer(cluster_id, row, backup_id), f"{row.topic}-{row.partition}")

    async def _refer(self, cluster_id: str, row: PartitionBackup, backup_id: str) -> Manifest | None:
        source = manifest_name(cluster_id, row.topic_id, row.partition)
        found, _ = await self._read(source)
        if found is None or found.is_begun or any(segment.is_restored for segment in found.readable):
            return None
        segments = tuple(each for each in found.readable if row.start < each.end_offset <= row.end)
        if not segments:
            return None
        name = _own_name(cluster_id, backup_id, row.topic_id, row.partition)
        begun = replace(found, segments=segments, leader_epoch=-1, is_begun=True)
        version = await self._store.replace(name, encode_manifest(begun), None)
        for owner in begun.owners:
            await references.add(self._store, owner, name)
        # What the topic has begun to delete before it could know of this backup is left out.
        again, _ = await self._read(source)
        kept = {segment.name for segment in again.readable} if again is not None else set()
        lost = frozenset(segment.name for segment in segments if segment.name not in kept)
        taken = replace(begun.without_first(lost), is_begun=False)
        await self._store.replace(name, encode_manifest(taken), version)
        return taken if taken.segments else None

    # Using a backup

    def referred(self, cluster_id: str, row: PartitionBackup, backup_id: str) -> Manifest:
        """The manifest of the objects that a backup has of a partition, in the order of its segments."""
        name = _own_name(cluster_id, backup_id, row.topic_id, row.partition)
        found, _ = self._run(self._read(name), name)
        if found is None:
            raise DamagedBackupError(
                f"{name} is missing in {self.url}: the backup refers to objects of a tier. If it is at another address "
                "now, name that with --tier-url"
            )
        by_name = {segment.name: segment for segment in found.segments}
        wanted = [chunk.name.removeprefix(TIER_PREFIX) for chunk in row.chunks if chunk.is_reference]
        missing = [each for each in wanted if each not in by_name]
        if missing:
            raise DamagedBackupError(f"{name} does not name {missing[0]}: use another backup")
        start = max(found.log_start_offset, row.start)
        return replace(found, log_start_offset=start, segments=tuple(by_name[each] for each in wanted))

    def batches(self, segment: TieredSegment, end: int) -> Iterator[bytes]:
        """The record batches of an object up to `end`, in pieces of whole batches, each checked."""
        name = f"{TIER_PREFIX}{segment.name}"
        footer = self._run(self._tail(segment), segment.name).footer
        log = footer.sections[LOG]
        # An object may have more than the segment that names it: a branch ends within the last one.
        whole = Chunk(name, segment.base_offset, footer.identity.end_offset, log.length, log.crc, -1)
        cipher = self._cipher(segment)

        def read(position: int, length: int) -> bytes:
            return self._run(self._range(segment, cipher, position, length), segment.name)

        for piece in whole_batches(whole, read):
            following = (place for place, header in iterate_headers(piece) if header.last_offset >= end)
            cut = next(following, len(piece))
            if cut:
                yield piece[:cut]

    def start_of(self, manifest: Manifest) -> TierStart:
        """Where a log continues whose first records are in these objects."""
        try:
            return self._run(tier_start(self._tail, manifest), manifest.segments[-1].name)
        except DamagedFileError as error:
            raise DamagedBackupError(f"{manifest.segments[-1].name} is damaged: {error}. Use another backup") from None

    def give(self, cluster_id: str, row: PartitionBackup, manifest: Manifest) -> None:
        """Makes the objects those of the same topic in a restored cluster, too. It may be done several times, by the
        nodes of several machines."""
        self._run(self._give(cluster_id, row, manifest), f"{row.topic}-{row.partition}")

    async def _give(self, cluster_id: str, row: PartitionBackup, manifest: Manifest) -> None:
        name = manifest_name(cluster_id, row.topic_id, row.partition)
        wanted = replace(manifest, leader_epoch=-1, is_begun=True, taken_over_by=None)
        version: Version | None
        try:
            version = await self._store.replace(name, encode_manifest(wanted), None)
        except ConflictError:
            found, version = await self._read(name)
            if found is None or not found.is_begun:
                return  # another node was faster
        for owner in wanted.owners:
            await references.add(self._store, owner, name)
        try:
            await self._store.replace(name, encode_manifest(replace(wanted, is_begun=False)), version)
        except ConflictError:
            return

    def release(self, cluster_id: str, backup_id: str) -> None:
        """Removes the references of a backup. Objects that no manifest names any more are deleted by the brokers, when
        they sweep or expire them."""
        work = self._blocking.run
        names = [each.name for each in work(self._store.list(f"{cluster_id}/backups/{backup_id}"))]
        work(self._store.delete(names))

    # Reading

    async def _read(self, name: str) -> tuple[Manifest | None, Version | None]:
        try:
            data, version = await self._store.read_whole(name)
        except NoObjectError:
            return None, None
        return decode_manifest(data), version

    def _cipher(self, segment: TieredSegment) -> ObjectCipher | None:
        if segment.key is None:
            return None
        try:
            data_key = unwrap(self._keyring, segment.key, segment.name)
        except WrongKeyError as error:
            hint = "" if self._keyring is not None else " Here: --tier-key-file or --tier-key-command."
            raise BackupError(f"{error}{hint}") from None
        return ObjectCipher(data_key, segment.key, segment.name, segment.object_bytes)

    async def _range(self, segment: TieredSegment, cipher: ObjectCipher | None, position: int, length: int) -> bytes:
        if cipher is None:
            return bytes(await self._store.read(segment.name, position, length))
        start, size = cipher.stored_range(position, length)
        return cipher.decrypted(await self._store.read(segment.name, start, size), position, length)

    async def _tail(self, segment: TieredSegment) -> Tail:
        size = segment.object_bytes - segment.log_bytes
        data = await self._range(segment, self._cipher(segment), segment.log_bytes, size)
        return decode_tail(data, segment.object_bytes)

    def _run(self, work: Coroutine[Any, Any, T], name: str) -> T:
        try:
            return self._blocking.run(work)
        except NoObjectError:
            raise DamagedBackupError(f"{name} is missing in {self.url}: use another backup") from None
        except (DamagedManifestError, DamagedObjectError) as error:
            raise DamagedBackupError(f"{name} in {self.url} is damaged: {error}. Use another backup") from None


def chunk_of(segment: TieredSegment) -> Chunk:
    """The reference to an object. Its checksum is in the object itself."""
    return Chunk(
        f"{TIER_PREFIX}{segment.name}",
        segment.base_offset,
        segment.end_offset,
        segment.log_bytes,
        0,
        segment.epochs[-1][0] if segment.epochs else -1,
    )
