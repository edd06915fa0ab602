"""Restores a backup: writes the data directory of each node of a new cluster, which then starts on it.

Every node gets its replicas, appended batch by batch as a follower does it, so indexes, leader epochs and producers are
those of any log; and the metadata, as a snapshot at the same offset. The directory counts when everything is in it:
until then it is in a folder of its own, and the node does not start (`RESTORING`).

Records to which the backup refers in the tier stay there: the new cluster gets a manifest that names the same objects.
Or they are written to the disks too.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID, uuid4

from millstream.backup.blocking_store import BackupError
from millstream.backup.metadata import RestorePlan, decode_image
from millstream.backup.repository import (
    TIER_PREFIX,
    Chunk,
    DamagedBackupError,
    Manifest,
    PartitionBackup,
    Repository,
)
from millstream.backup.tier_objects import TierObjects
from millstream.config.broker_config import BrokerConfig, ConfigSource, build_broker_config
from millstream.config.setting import ConfigError
from millstream.config.topic_config import LogConfig, metadata_log_config, resolve_log_config, topic_defaults
from millstream.formats.model.errors import KafkaError
from millstream.formats.model.identifiers import TopicName, TopicPartition
from millstream.formats.records.batch import iterate_headers
from millstream.node.consensus.quorum.metadata_log import METADATA_PARTITION, METADATA_TOPIC_ID
from millstream.node.consensus.quorum.opening import RESTORING
from millstream.node.consensus.quorum.snapshots import SnapshotContent, Snapshots
from millstream.node.consensus.raft.messages import LogPosition
from millstream.node.metadata.features import SUPPORTED_FEATURES
from millstream.node.metadata.image import MetadataImage
from millstream.node.metadata.records import MetadataRecord, PartitionRecord
from millstream.node.runtime.disk import RealDisk
from millstream.node.runtime.identity import Identity, short_uuid, write_identity
from millstream.node.storage.file_formats import LOCK
from millstream.node.storage.log.directory import LogDirectory
from millstream.node.storage.log.tiered_part import TierStart
from millstream.node.tier.core.manifest import Manifest as TierManifest

_APPEND_BYTES = 256 << 10
Report = Callable[[int, int], None]
"""Called with the bytes that are done, and all."""


@dataclass(frozen=True, slots=True)
class Restored:
    cluster_id: str
    partitions: int
    size: int


@dataclass(frozen=True, slots=True)
class Source:
    """Where the records of a backup are."""

    repository: Repository
    manifest: Manifest
    tier: TierObjects | None
    """With the objects to which the backup refers."""

    def batches(self, row: PartitionBackup) -> Iterator[tuple[Chunk, Iterator[bytes]]]:
        """The segments of a partition, each with its batches."""
        objects = {each.name: each for each in self.referred(row).segments} if _references(row) else {}
        for chunk in row.chunks:
            if chunk.is_reference:
                segment = objects[chunk.name.removeprefix(TIER_PREFIX)]
                yield chunk, self._opened_tier().batches(segment, chunk.end)
            else:
                yield chunk, self.repository.batches(chunk)

    def referred(self, row: PartitionBackup) -> TierManifest:
        return self._opened_tier().referred(self.manifest.cluster_id, row, self.manifest.id)

    def start_of(self, row: PartitionBackup) -> TierStart:
        """Where the log of a partition continues whose first records stay in the tier."""
        return self._opened_tier().start_of(self.referred(row))

    def give(self, cluster_id: str, row: PartitionBackup) -> None:
        """Makes the objects those of the restored cluster, too."""
        self._opened_tier().give(cluster_id, row, self.referred(row))

    def _opened_tier(self) -> TierObjects:
        if self.tier is None:
            raise BackupError(f"backup {self.manifest.id} refers to objects of a tier: name it with --tier-url")
        return self.tier


def _references(row: PartitionBackup) -> list[Chunk]:
    return [chunk for chunk in row.chunks if chunk.is_reference]


def verify_backup(
    repository: Repository,
    manifest: Manifest,
    report: Report = lambda done, all_: None,
    tier: TierObjects | None = None,
) -> int:
    """Reads everything: lists, metadata, and each batch, also those in the tier. Returns the number of segments;
    DamagedBackupError."""
    done = count = 0
    source = Source(repository, manifest, tier)
    image = _image(repository, manifest)
    rows = repository.partitions(manifest)
    missing = {(topic.id, number) for topic in image.topics.values() for number in range(len(topic.partitions))}
    for row in rows:
        missing.discard((row.topic_id, row.partition))
        for _, pieces in source.batches(row):
            for piece in pieces:
                done += len(piece)
                report(done, manifest.size)
            count += 1
    if missing:
        raise DamagedBackupError(f"backup {manifest.id} has no list of segments for {len(missing)} partitions")
    return count


def restore_backup(
    repository: Repository,
    manifest: Manifest,
    directories: Mapping[int, str],
    *,
    controllers: Mapping[int, str] = {},
    nodes: Sequence[int] = (),
    cluster_id: str | None = None,
    tier: TierObjects | None = None,
    all_to_disks: bool = False,
    report: Report = lambda done, all_: None,
) -> Restored:
    """Writes the data directories of these brokers, and of controllers that are no brokers. `nodes`: all brokers of the
    new cluster, if others are restored elsewhere; then `cluster_id` must be given, and be the same everywhere. `tier`:
    of the objects to which the backup refers; with `all_to_disks` their records are written to the disks too."""
    every = tuple(sorted({*nodes, *directories}))
    if not every:
        raise BackupError("name the brokers of the new cluster with --nodes: controllers have no replicas")
    if cluster_id is None and len(every) > len(directories):
        raise BackupError(
            "name the id of the new cluster with --cluster-id, the same on all machines, for example "
            f"{short_uuid(uuid4())}: the other nodes are restored by other commands"
        )
    for root in (*directories.values(), *controllers.values()):
        _check_empty(root)
    image = _image(repository, manifest)
    _check_features(image)
    plan = RestorePlan(image, cluster_id or _new_id(), every, manifest.id)
    records = tuple(plan.records())
    replicas = _replicas(records)
    rows = repository.partitions(manifest)
    sizes = {
        node: sum(
            chunk.size
            for row in rows
            if node in replicas.get((row.topic_id, row.partition), ())
            for chunk in row.chunks
            if all_to_disks or not chunk.is_reference
        )
        for node in directories
    }
    source = Source(repository, manifest, tier)
    for node, root in directories.items():
        _check_space(root, node, sizes[node])
    done = count = 0

    def add(size: int) -> None:
        nonlocal done
        done += size
        report(done, sum(sizes.values()))

    for node, root in directories.items():
        own = [row for row in rows if node in replicas.get((row.topic_id, row.partition), ())]
        _NodeDirectory(source, plan, node, root, all_to_disks).write(own, records, manifest.created_ms, add)
        count += len(own)
    for node, root in controllers.items():
        _NodeDirectory(source, plan, node, root, all_to_disks).write((), records, manifest.created_ms, add)
    return Restored(plan.cluster_id, count, done)


def _new_id() -> str:
    while (made := short_uuid(uuid4())).startswith("-"):
        pass
    return made


def _image(repository: Repository, manifest: Manifest) -> MetadataImage:
    data = repository.read_part(manifest.metadata)
    return decode_image(data, manifest.metadata.name, manifest.metadata_offset, manifest.metadata_epoch)


def _check_features(image: MetadataImage) -> None:
    supported = {each.name: each.max_supported_version for each in SUPPORTED_FEATURES}
    for name, level in image.features.items():
        if level > supported.get(name, 0):
            raise BackupError(
                f"the backup is of a cluster with {name} at level {level}, and this version supports "
                f"{supported.get(name, 0)}: restore it with a newer version of Millstream"
            )


def _check_empty(root: str) -> None:
    if os.path.isdir(root) and set(os.listdir(root)) - {RESTORING, LOCK, "lost+found"}:
        raise BackupError(f"{root} is not empty: name an empty or a new directory, or empty this one first")
    if os.path.exists(root) and not os.path.isdir(root):
        raise BackupError(f"{root} is not a directory")


def _check_space(root: str, node: int, size: int) -> None:
    at = os.path.abspath(root)
    while not os.path.isdir(at):
        at = os.path.dirname(at)
    free = shutil.disk_usage(at).free
    if free < size:
        raise BackupError(f"node {node} needs {size:,} bytes, and {at} has {free:,} free: use a larger disk")


def _replicas(records: Sequence[MetadataRecord]) -> dict[tuple[UUID, int], tuple[int, ...]]:
    return {
        (record.topic_id, record.partition_id): record.replicas
        for record in records
        if isinstance(record, PartitionRecord)
    }


class _NodeDirectory:
    def __init__(self, source: Source, plan: RestorePlan, node: int, root: str, all_to_disks: bool) -> None:
        self._source = source
        self._all_to_disks = all_to_disks
        self._plan = plan
        self._node = node
        self._root = os.path.abspath(root)
        self._disk = RealDisk()

    def write(
        self,
        rows: Sequence[PartitionBackup],
        records: tuple[MetadataRecord, ...],
        created_ms: int,
        add: Callable[[int], None],
    ) -> None:
        inner = f"{self._root}/{RESTORING}"
        shutil.rmtree(inner, ignore_errors=True)  # of a restore that was interrupted
        os.makedirs(inner)
        config = build_broker_config(
            {ConfigSource.STATIC_BROKER_CONFIG: {"log.dirs": inner, "node.id": str(self._node)}}
        )
        now_ms = int(time.time() * 1000)
        logs = LogDirectory(self._disk, inner)
        logs.start(now_ms)
        try:
            for row in rows:
                self._write_log(logs, row, self._log_config(config, row.topic), add)
            self._write_metadata(logs, config, records, created_ms, now_ms)
        except KafkaError as error:
            raise BackupError(f"{self._root} cannot be written: {error}") from None
        logs.close(now_ms, broker_epoch=self._plan.broker_epoch)
        identity = Identity(self._plan.cluster_id, self._node, self._plan.directory_id(self._node))
        write_identity(self._disk, inner, identity)
        self._disk.sync_filesystem(inner)
        for row in rows:
            if self._stays_in_tier(row):
                self._source.give(self._plan.cluster_id, row)
        for name in os.listdir(inner):
            os.rename(f"{inner}/{name}", f"{self._root}/{name}")
        os.rmdir(inner)
        self._disk.sync_directory(self._root)

    def _stays_in_tier(self, row: PartitionBackup) -> bool:
        return not self._all_to_disks and bool(_references(row))

    def _log_config(self, config: BrokerConfig, topic: str) -> LogConfig:
        image = self._plan.image
        try:
            config = config.with_dynamic(default=image.default_broker_config, own={})
        except ConfigError:
            pass  # only the sizes of segments depend on it
        return resolve_log_config(topic_defaults(config), image.topic_config(topic))

    def _write_log(
        self, logs: LogDirectory, row: PartitionBackup, config: LogConfig, add: Callable[[int], None]
    ) -> None:
        now_ms = int(time.time() * 1000)
        log = logs.create(TopicPartition(TopicName(row.topic), row.partition), row.topic_id, config, now_ms)
        begin = row.start if row.chunks else row.end
        if self._stays_in_tier(row):
            log.restart_from_tier(self._source.start_of(row), now_ms)
        elif begin > 0:
            log.restart_at(begin, now_ms)
        for chunk, pieces in self._source.batches(row):
            if chunk.is_reference and not self._all_to_disks:
                continue
            for piece in pieces:
                add(len(piece))
                for batches in _slices(piece, log.log_end_offset, min(_APPEND_BYTES, config.segment_bytes)):
                    log.append_as_follower(batches, now_ms=now_ms)
        log.high_watermark = log.log_end_offset
        job = log.flush_job()
        if job is not None:
            job.done(failure := job.run())
            if failure is not None:
                raise BackupError(f"{log.directory} cannot be written: {failure}")

    def _write_metadata(
        self,
        logs: LogDirectory,
        config: BrokerConfig,
        records: tuple[MetadataRecord, ...],
        created_ms: int,
        now_ms: int,
    ) -> None:
        log = logs.create(METADATA_PARTITION, METADATA_TOPIC_ID, metadata_log_config(config), now_ms)
        at = LogPosition(self._plan.end_offset, max(self._plan.image.epoch, 1))
        content = SnapshotContent(created_ms, records=records)
        Snapshots(self._disk, log.directory).write(at, content, now_ms)
        log.restart_at(at.offset, now_ms)


def _slices(piece: bytes, offset: int, limit: int) -> Iterator[bytearray]:
    """Whole batches, a few at a time, so that segments get their size: about `limit` bytes. Without those before the
    offset, which a segment of an earlier backup may have."""
    begin = end = 0
    for place, header in iterate_headers(piece):
        if header.last_offset < offset:
            begin = end = place + header.size
            continue
        if end > begin and place + header.size - begin > limit:
            yield bytearray(memoryview(piece)[begin:end])
            begin = end
        end = place + header.size
    if end > begin:
        yield bytearray(memoryview(piece)[begin:end])
