"""Makes a backup of a running cluster, as one of its clients: metadata, and the records of all partitions.

Records are fetched from the leaders, as they are, and stored as segments. Segments that an earlier backup has are not
stored again, if the log still agrees with them. Where the data directory of a node is on the same file system as the
repository, its closed segments are linked instead. Of tiered topics, it may refer to the objects of the tier.
"""

import os
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import pairwise
from typing import BinaryIO
from uuid import UUID

from crc32c import crc32c

from millstream.admin.topics import ConfigResource, TopicAdmin
from millstream.backup.blocking_store import BackupError
from millstream.backup.metadata import encode_image, read_metadata
from millstream.backup.points import take_points
from millstream.backup.repository import (
    Chunk,
    DamagedBackupError,
    Manifest,
    PartitionBackup,
    Repository,
    check_batches,
    encode_partition,
    id_time,
    segment_name,
)
from millstream.backup.tier_objects import TierObjects, chunk_of
from millstream.config.table.tier import TIER_URL
from millstream.config.table.topic import REMOTE_STORAGE_ENABLE
from millstream.formats.records.batch import has_valid_checksum, iterate_headers
from millstream.node.metadata.image import MetadataImage
from millstream.node.runtime.object_store import UNLIMITED, Pace
from millstream.node.storage.file_formats import (
    LOG_SUFFIX,
    PARTITION_METADATA,
    DamagedFileError,
    decode_topic_id,
    offset_file,
    parse_offset_file,
)
from millstream.raw_client import Cluster, OffsetOutOfRangeError, TopicPartition
from millstream.version import VERSION

CHUNK_BYTES = 64 << 20
_FETCH_BYTES = 4 << 20
_THREADS = 4
_MANY_SMALL = 8
_DAY_MS = 24 * 3600 * 1000
_READ_BYTES = 4 << 20
_INTERNAL_PREFIX = "__"

Report = Callable[[int, int, int], None]
"""Called with the partitions that are done, all partitions, and the bytes stored so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    rate: int | None = None
    """Bytes per second that are fetched."""
    chunk_bytes: int = CHUNK_BYTES
    data_dirs: Sequence[str] = ()
    """Data directories of nodes on this machine: for links, and for the metadata of a single node."""
    controllers: Cluster | None = None
    full: bool = False
    """Uses nothing of earlier backups."""
    tier: TierObjects | None = None
    """The tier of the cluster: its objects are not copied, and kept for the backup."""


def create_backup(
    cluster: Cluster, repository: Repository, options: Options, report: Report = lambda done, all_, size: None
) -> Manifest:
    cluster_id = str(cluster.call("describe_cluster").cluster_id)
    earlier = repository.newest()
    if earlier is not None and earlier.cluster_id != cluster_id:
        raise BackupError(
            f"{repository.url} has backups of cluster {earlier.cluster_id}, and this is cluster {cluster_id}: use "
            "another directory or prefix"
        )
    if options.tier is not None:
        _check_tier(cluster, options.tier)
    known: dict[tuple[UUID, int], PartitionBackup] = {}
    if earlier is not None and not options.full:
        known = {(row.topic_id, row.partition): row for row in repository.partitions(earlier)}
    points = take_points(cluster)
    image = read_metadata(cluster, cluster_id, options.controllers, options.data_dirs)
    backup_id = f"{id_time(points.taken_ms)}-{secrets.token_hex(3)}"
    wanted: list[PartitionBackup] = []
    for topic in image.topics.values():
        # A topic that was created after the points is empty in the backup; one that was deleted is not in the image.
        same = points.topic_ids.get(topic.name) == topic.id
        for number in range(len(topic.partitions)):
            at = TopicPartition(topic.name, number)
            start, end = (points.starts.get(at, 0), points.ends.get(at, 0)) if same else (0, 0)
            wanted.append(PartitionBackup(topic.name, topic.id, number, min(start, end), end, ()))
    # Compaction must not remove what was written again after the points: compacted topics and internal ones first.
    wanted.sort(key=lambda row: (not row.topic.startswith(_INTERNAL_PREFIX), not _is_compacted(image, row.topic)))
    repository.begin(backup_id)
    tiered = {name for name in image.topics if image.topic_config(name).get(REMOTE_STORAGE_ENABLE.name) == "true"}
    if options.tier is not None:
        repository.note_tier(backup_id, options.tier.url, cluster_id)
    copier = _Copier(cluster, repository, options, backup_id, cluster_id, tiered)
    rows = _in_threads(copier, wanted, known, earlier, image, report)
    metadata = repository.write_part(backup_id, "metadata.checkpoint", encode_image(image, points.taken_ms))
    partitions = repository.write_part(backup_id, "partitions.jsonl", map(encode_partition, rows))
    manifest = Manifest(
        id=backup_id,
        cluster_id=cluster_id,
        created_ms=points.taken_ms,
        version=VERSION,
        topics=len(image.topics),
        partition_count=len(rows),
        size=sum(chunk.size for row in rows for chunk in row.chunks),
        new_size=copier.stored,
        metadata_offset=image.offset,
        metadata_epoch=image.epoch,
        metadata=metadata,
        partitions=partitions,
        tier=options.tier.url if options.tier is not None and _refers(rows) else None,
    )
    repository.write_manifest(manifest)
    return manifest


def _refers(rows: Sequence[PartitionBackup]) -> bool:
    return any(chunk.is_reference for row in rows for chunk in row.chunks)


def _check_tier(cluster: Cluster, tier: TierObjects) -> None:
    broker = cluster.brokers()[0]
    url = TopicAdmin(cluster).setting(ConfigResource.BROKER, str(broker.node_id), TIER_URL.name).value
    if not url:
        raise BackupError(f"the cluster has no tier (broker {broker.node_id}: {TIER_URL.name}): leave --tier-url out")
    if url.rstrip("/") != tier.url.rstrip("/"):
        raise BackupError(f"--tier-url {tier.url}: the tier of the cluster is {url} (broker {broker.node_id})")


def _is_compacted(image: MetadataImage, topic: str) -> bool:
    return "compact" in image.topic_config(topic).get("cleanup.policy", "")


def _reusable(image: MetadataImage, topic: str, earlier: Manifest, now_ms: int) -> bool:
    """A log that is cleaned may have lost deletions (tombstones) since the earlier backup, if that is too long ago:
    then its records would come back."""
    if not _is_compacted(image, topic):
        return True
    text = image.topic_config(topic).get("delete.retention.ms", str(_DAY_MS))
    return now_ms - earlier.created_ms < (int(text) if text.isdigit() else 0) * 3 // 4


def _in_threads(
    copier: "_Copier",
    wanted: Sequence[PartitionBackup],
    known: Mapping[tuple[UUID, int], PartitionBackup],
    earlier: Manifest | None,
    image: MetadataImage,
    report: Report,
) -> list[PartitionBackup]:
    now_ms = int(time.time() * 1000)
    done = 0
    lock = threading.Lock()

    def copy(row: PartitionBackup) -> PartitionBackup:
        nonlocal done
        before = known.get((row.topic_id, row.partition))
        if before is not None and (earlier is None or not _reusable(image, row.topic, earlier, now_ms)):
            before = None
        found = copier.copy(row, before)
        with lock:
            done += 1
            report(done, len(wanted), copier.stored)
        return found

    with ThreadPoolExecutor(_THREADS) as threads:
        futures = [threads.submit(copy, row) for row in wanted]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        except BaseException:
            copier.stopped = True
            raise
        finally:
            for future in futures:
                if future.done() and not future.cancelled() and future.exception() is not None:
                    copier.stopped = True
            if copier.stopped:
                for future in futures:
                    future.cancel()
        failed = next((each for each in futures if each.done() and not each.cancelled() and each.exception()), None)
        if failed is not None:
            failed.result()
        return [future.result() for future in futures]


class _StoppedError(BackupError):
    """Another partition failed, or the command was interrupted."""


class _Copier:
    def __init__(
        self,
        cluster: Cluster,
        repository: Repository,
        options: Options,
        backup_id: str,
        cluster_id: str,
        tiered: Collection[str],
    ) -> None:
        """`tiered`: the topics that have objects in the tier."""
        self._cluster_id = cluster_id
        self._tiered = tiered
        self._cluster = cluster
        self._repository = repository
        self._options = options
        self._id = backup_id
        self._pace = Pace(lambda: options.rate or UNLIMITED)
        self._lock = threading.Lock()
        self.stored = 0
        self.stopped = False

    def copy(self, row: PartitionBackup, before: PartitionBackup | None) -> PartitionBackup:
        """The partition with its segments, of the earlier backup and new ones."""
        at = TopicPartition(row.topic, row.partition)
        chunks, start = self._references(row)
        position = chunks[-1].end if chunks else start
        chunks += self._kept(row, before, position) if before is not None else []
        position = chunks[-1].end if chunks else start
        local = LocalSegments(self._options.data_dirs, at, row.topic_id) if self._repository.directory else None
        while position < row.end:
            if self.stopped:
                raise _StoppedError("stopped")
            linked = self._link(row, position, local) if local is not None else None
            if linked is not None:
                chunks.append(linked)
                position = linked.end
                continue
            try:
                until = min(row.end, local.next_base(position) or row.end) if local is not None else row.end
                chunk = self._fetch_chunk(row, position, until)
            except OffsetOutOfRangeError as error:
                if position >= error.log_start:
                    raise
                # Retention has deleted records: the backup begins after them.
                start = min(error.log_start, row.end)
                chunks = [each for each in chunks if each.end > start]
                position = max(position, start)
                continue
            chunks.append(chunk)
            position = chunk.end
        return PartitionBackup(row.topic, row.topic_id, row.partition, start, row.end, _joined(chunks))

    def _references(self, row: PartitionBackup) -> tuple[list[Chunk], int]:
        """Objects of the tier, and where the partition begins: retention may have moved on since the points."""
        tier = self._options.tier
        if tier is None or row.topic not in self._tiered or row.start >= row.end:
            return [], row.start
        referred = tier.refer(self._cluster_id, row, self._id)
        if referred is None:
            return [], row.start
        found = [chunk_of(segment) for segment in referred.segments]
        while found and not self._agrees(row, found[-1]):  # an unclean election, after which the tier is not cut yet
            found.pop()
        start = max(row.start, referred.log_start_offset)
        return (found, start) if found and found[0].base <= start else ([], row.start)

    def _kept(self, row: PartitionBackup, before: PartitionBackup, begin: int) -> list[Chunk]:
        """The segments of the earlier backup that the log still has, from `begin` on. Many small ones at the end are
        stored again, as one. References are not among them: each backup has its own."""
        kept = [each for each in before.chunks if not each.is_reference and begin < each.end <= row.end]
        if kept and kept[0].base > begin:
            return []  # the log begins before the earlier backup: it is another one; or the backup had references
        while kept and not self._agrees(row, kept[-1]):
            kept.pop()
        small = next(
            (place for place, each in enumerate(reversed(kept)) if each.size >= self._options.chunk_bytes // 2),
            len(kept),
        )
        return kept[: len(kept) - small] if small >= _MANY_SMALL and kept[-1].end < row.end else kept

    def _agrees(self, row: PartitionBackup, chunk: Chunk) -> bool:
        """Whether the leader has the same records up to the end of the segment (as a follower finds out)."""
        if chunk.last_epoch < 0:
            return False
        leader = self._cluster.leader_of(TopicPartition(row.topic, row.partition))
        wanted = {"partition": row.partition, "current_leader_epoch": leader.epoch, "leader_epoch": chunk.last_epoch}
        response = self._cluster.call(
            "offset_for_leader_epoch",
            node=leader.node_id,
            replica_id=-1,
            topics=[{"topic": row.topic, "partitions": [wanted]}],
        )
        found = response.topics[0].partitions[0]
        return bool(found.error_code == 0 and found.leader_epoch == chunk.last_epoch and found.end_offset >= chunk.end)

    def _fetch_chunk(self, row: PartitionBackup, base: int, until: int) -> Chunk:
        at = TopicPartition(row.topic, row.partition)
        position, size, crc, epoch = base, 0, 0, -1
        with tempfile.TemporaryFile() as spool:
            while position < until and size < self._options.chunk_bytes:
                if self.stopped:
                    raise _StoppedError("stopped")
                fetched = self._cluster.fetch_existing(
                    at, position, max_bytes=_FETCH_BYTES, read_committed=False, topic_id=row.topic_id
                )
                self._pace.take(len(fetched.data))
                taken = 0
                for place, header in iterate_headers(fetched.data):
                    if header.last_offset < position:
                        continue
                    if header.last_offset >= until:
                        break
                    if not has_valid_checksum(fetched.data, place, header):
                        raise BackupError(f"{at} has a damaged batch at offset {header.base_offset}: repair it first")
                    batch = fetched.data[place : place + header.size]
                    spool.write(batch)
                    crc = crc32c(batch, crc)
                    size += len(batch)
                    taken += 1
                    position, epoch = header.last_offset + 1, header.leader_epoch
                if not taken:
                    if fetched.high_watermark < until:
                        raise BackupError(
                            f"{at} ends at {fetched.high_watermark} now, and ended at {until}: records were lost in an "
                            "unclean election. Start the backup again"
                        )
                    position = until  # compaction has left nothing there
            if not size:
                return Chunk("", base, position, 0, 0, -1)
            name = segment_name(row.topic_id, row.partition, base, self._id)
            self._repository.write(name, lambda: _pieces(spool), size)
        with self._lock:
            self.stored += size
        return Chunk(name, base, position, size, crc, epoch)

    def _link(self, row: PartitionBackup, position: int, local: "LocalSegments") -> Chunk | None:
        """A closed segment of a node on this machine that begins here, if the leader has the same."""
        found = local.at(position, row.end)
        if found is None or self._repository.directory is None:
            return None
        path, end = found
        name = segment_name(row.topic_id, row.partition, position, self._id)
        if not self._repository.link(path, name):
            return None
        try:
            chunk = read_segment(os.path.join(self._repository.directory, name), name, position, end)
        except (DamagedBackupError, OSError):
            chunk = None
        if chunk is None or not self._agrees(row, chunk):
            self._repository.delete([name])
            return None
        return chunk


def _joined(chunks: Sequence[Chunk]) -> tuple[Chunk, ...]:
    """Without empty ones, whose offsets go to the one before, or else to the one after."""
    found: list[Chunk] = []
    base: int | None = None
    for chunk in chunks:
        if chunk.size:
            found.append(chunk if base is None else chunk._replace(base=base))
            base = None
        elif found:
            found[-1] = found[-1]._replace(end=chunk.end)
        elif base is None:
            base = chunk.base
    return tuple(found)


def _pieces(spool: BinaryIO) -> Iterator[bytes]:
    spool.seek(0)
    while piece := spool.read(_READ_BYTES):
        yield piece


def read_segment(path: str, name: str, base: int, end: int) -> Chunk | None:
    """A segment file as a chunk, every batch checked; None if it is empty."""
    size = crc = 0
    held, following, epoch = b"", base, -1
    frame = Chunk(name, base, end, 0, 0, -1)
    with open(path, "rb") as file:
        while piece := file.read(_READ_BYTES):
            size += len(piece)
            crc = crc32c(piece, crc)
            held += piece
            whole, following = check_batches(held, following, frame)
            for _, header in iterate_headers(memoryview(held)[:whole]):
                epoch = header.leader_epoch
            held = held[whole:]
    if held:
        raise DamagedBackupError(f"{path} ends within a batch")
    return Chunk(name, base, end, size, crc, epoch) if size else None


class LocalSegments:
    """The closed segments of a partition in data directories on this machine. They never change: a log appends to its
    last segment only, and copies a file with two names before it would cut it."""

    def __init__(self, data_dirs: Sequence[str], at: TopicPartition, topic_id: UUID) -> None:
        self._found: dict[int, tuple[str, int]] = {}
        for root in data_dirs:
            directory = f"{root}/{at}"
            try:
                with open(f"{directory}/{PARTITION_METADATA}", "rb") as file:
                    if decode_topic_id(file.read(1 << 10)) != topic_id:
                        continue
                bases = sorted(
                    parsed[0]
                    for name in os.listdir(directory)
                    if (parsed := parse_offset_file(name)) is not None and parsed[1] == LOG_SUFFIX
                )
            except (OSError, DamagedFileError):
                continue
            for base, following in pairwise(bases):
                self._found.setdefault(base, (offset_file(directory, base, LOG_SUFFIX), following))

    def at(self, base: int, end: int) -> tuple[str, int] | None:
        """The file that begins at this offset and its end, if all of it is before `end`."""
        found = self._found.get(base)
        return found if found is not None and found[1] <= end else None

    def next_base(self, after: int) -> int | None:
        return min((base for base in self._found if base > after), default=None)
