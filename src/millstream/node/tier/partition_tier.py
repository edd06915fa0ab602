"""The tier of one partition: its manifest as this node knows it, changes of it by the leader, and reads.

A leader reads the manifest once in its leader epoch. Then it is the only one that may change it, by compare-and-swap: a
leader that was deposed, and does not know it, either changes it before the new leader does, with committed records, or
not at all. A follower reads the manifest when it needs it; it may be a little old, which does no harm.
"""

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.records.opening import OpeningLimits
from millstream.node.metadata.image import Branch
from millstream.node.replicas.partition import Partition
from millstream.node.storage.index.time_search import FoundOffset
from millstream.node.storage.log.earlier_batches import tiered_up_to, write_batches_file
from millstream.node.storage.log.log_reader import Slice, empty_slice
from millstream.node.storage.log.partition_log import PartitionLog
from millstream.node.storage.log.producer_snapshots import rebuild_producers
from millstream.node.storage.object_store import ConflictError, NoObjectError, StoreError, Version
from millstream.node.tier import references
from millstream.node.tier.context import TierContext
from millstream.node.tier.core.manifest import (
    MANIFEST,
    Manifest,
    TieredSegment,
    decode_manifest,
    encode_manifest,
    manifest_name,
)
from millstream.node.tier.reading import SegmentReader, tier_start

_log = logging.getLogger("millstream.tier")
_MOST_CONFLICTS = 10


class DeposedError(Exception):
    """This node no longer leads the partition in that epoch."""


class PartitionTier:
    def __init__(
        self, partition: Partition, log: PartitionLog, context: TierContext, want: Callable[["PartitionTier"], None]
    ) -> None:
        """`want` makes the manager read the manifest soon."""
        self.partition = partition
        self.log = log
        self.context = context
        self.manifest: Manifest | None = None
        self.refusal: str | None = None
        """Why the tier is not used: it does not fit to the log."""
        self._want = want
        self._version: Version | None = None
        self._led_epoch = -1
        """The leader epoch in which this node has read the manifest as leader."""
        self._is_doubtful = False
        """Whether a change may have been written although it failed: then the manifest is read before the next one."""
        self._secured = 0, 0
        """Up to which base offset of a segment the producers are on stable storage, and after how many truncations."""
        self._segments: tuple[TieredSegment, ...] = ()
        self._ends: list[int] = []
        self._known = asyncio.Event()
        self.reader = SegmentReader(context, str(partition.topic_partition), partition.wake_all)
        # Of the manager:
        self.task: asyncio.Task[None] | None = None
        self.due = 0.0
        self.failures = 0
        self.may_have_upload = True
        """Whether the store may have a part of the next segment, from before a crash or an error."""

    def close(self) -> None:
        self.reader.close()
        if self.task is not None:
            self.task.cancel()

    @property
    def name(self) -> str:
        return manifest_name(self.context.cluster_id(), self.log.topic_id, self.log.topic_partition.partition)

    # TieredPart

    @property
    def end_offset(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def removable_end(self) -> int:
        offset, truncations = self._secured
        return min(offset, self.end_offset) if truncations == self.log.truncations else 0

    async def secure(self) -> None:
        """Bring the producers at the end of the tier to stable storage: they cannot be found in the log again when its
        first segments are gone."""
        log = self.log
        safe = min(self.end_offset, log.recovery_point)
        base = max((offset for offset in log.segments.bases if offset <= safe), default=0)
        truncations = log.truncations
        if base <= self.removable_end:
            return
        before = [segment for segment in log.segments if segment.base_offset < base]
        snapshots = [offset for offset in log.snapshots.offsets if offset <= base]
        start = log.local_start_offset
        offload = self.context.environment.offload
        producers = await offload(lambda: rebuild_producers(log.disk, log.directory, before, snapshots, start))
        if truncations != log.truncations:
            return
        if base not in log.snapshots.offsets:  # after a crash there is one at the end of the log only
            log.snapshots.write(base, producers)

        def save() -> bool:
            write_batches_file(log.disk, log.directory, producers, base)
            return log.snapshots.sync(base)

        if await offload(save):
            self._secured = base, truncations

    @property
    def is_known(self) -> bool:
        partition = self.partition
        if self.manifest is None or self.refusal is not None:
            return False
        return not partition.is_leader or self._led_epoch == partition.leader_epoch

    def read(self, offset: int, max_bytes: int, *, up_to: int, at_least_one: bool) -> Slice:
        if not self.is_known:
            if self.refusal is not None:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self.refusal)
            self._want(self)
            return empty_slice()
        segment, following = self._segment_of(offset)
        if segment is None:
            if not self.partition.is_leader:
                self.manifest = None  # it may be old
                return empty_slice()
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"the tier has no segment of {self.log.topic_partition} for {offset}"
            )
        records = self.reader.read(segment, following, offset, max_bytes, up_to, at_least_one)
        if records is None:
            following_offset = min(max(segment.end_offset, offset + 1), self.log.log_end_offset)
            return self.log.read(following_offset, max_bytes, up_to=up_to, at_least_one=at_least_one)
        if self.reader.lost is not None:
            self.reader.lost = None
            if self.partition.is_leader:  # the one before may have deleted it after this one read the manifest
                self._led_epoch = -1
                self._want(self)
            else:
                self.manifest = None
        return records

    def aborted(self, records: Slice) -> list[tuple[int, int]] | None:
        return self.reader.aborted(records)

    async def offset_by_timestamp(self, timestamp: int, limits: OpeningLimits) -> FoundOffset | None:
        await self.when_known()
        manifest, log = self.manifest, self.log
        for segment in manifest.from_timestamp(timestamp) if manifest is not None else ():
            if segment.base_offset >= log.local_start_offset:
                break
            found = await self.reader.first_at(segment, timestamp, log.log_start_offset, limits)
            if found is not None:
                return found
        return None

    async def greatest_timestamp(self, limits: OpeningLimits) -> FoundOffset | None:
        await self.when_known()
        old = [segment for segment in self._segments if segment.base_offset < self.log.local_start_offset]
        if not old:
            return None
        greatest = max(segment.max_timestamp for segment in old)
        first = next(segment for segment in old if segment.max_timestamp == greatest)
        return await self.reader.latest_of(first, limits)

    async def when_known(self) -> None:
        while not self.is_known:
            if self.refusal is not None:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self.refusal)
            self._known.clear()
            self._want(self)
            await self._known.wait()

    def _segment_of(self, offset: int) -> tuple[TieredSegment | None, TieredSegment | None]:
        slot = bisect_right(self._ends, offset)
        if slot == len(self._ends) or self._segments[slot].base_offset > offset:
            return None, None
        return self._segments[slot], self._segments[slot + 1] if slot + 1 < len(self._segments) else None

    # The manifest

    def _take(self, manifest: Manifest, version: Version | None) -> None:
        self.manifest, self._version = manifest, version
        self._segments = manifest.readable
        self._ends = [segment.end_offset for segment in self._segments]

    async def _get(self) -> tuple[Manifest | None, Version | None]:
        try:
            data, version = await self.context.store.read_whole(self.name)
        except NoObjectError:
            return None, None
        return decode_manifest(data), version

    async def refresh(self) -> None:
        """As follower: read the manifest as it is now."""
        manifest, version = await self._get()
        if manifest is not None and manifest.is_begun:
            manifest, version = None, None  # the leader has not decided yet what is in it
        self._take(manifest or self._empty(), version)
        self._announce()

    async def begin_leading(self, epoch: int) -> None:
        """As leader: read the manifest, and make it and the log fit."""
        manifest, version = await self._get()
        if manifest is None or manifest.is_begun:
            manifest, version = await self._take_over(manifest, version)
        self._check_leader(epoch)
        log = self.log
        refusal = None
        if manifest is not None and log.log_end_offset == 0 and manifest.readable:  # a restore, or an empty disk
            self._take(manifest, version)
            await self._start_from(manifest, epoch)
        if manifest is None:
            self._take(self._empty(), None)
            if log.log_start_offset < min(log.local_start_offset, tiered_up_to(log.disk, log.directory)):
                # Another store, or another prefix, was configured before. A later start could not be taken back.
                refusal = (
                    f"the tier has nothing of {log.topic_partition}, whose records from {log.log_start_offset} to "
                    f"{log.local_start_offset} were moved to it: check millstream.tier.url. If they are lost, delete "
                    f"the records before {log.local_start_offset} (DeleteRecords)"
                )
            else:
                log.begin_at(log.local_start_offset)
        else:
            self._take(manifest, version)
            end = manifest.agreed_end(log.epochs, log.log_end_offset)
            if manifest.readable and end < manifest.end_offset:
                refusal = await self._cut(manifest, end, epoch)
            assert self.manifest is not None
            if refusal is None:
                log.begin_at(max(log.log_start_offset, self.manifest.log_start_offset))
                if log.log_start_offset < log.local_start_offset and self.end_offset < log.local_start_offset:
                    refusal = (
                        f"the tier of {log.topic_partition} ends at {self.end_offset}, before the log on this disk, "
                        f"which begins at {log.local_start_offset}: records between them are lost"
                    )
        if refusal is not None and refusal != self.refusal:
            _log.error("tier_refused partition=%s reason=%s", log.topic_partition, refusal)
        self.refusal = refusal
        self._led_epoch, self._is_doubtful = epoch, False
        self._announce()

    async def _take_over(
        self, begun: Manifest | None, version: Version | None
    ) -> tuple[Manifest | None, Version | None]:
        """The first manifest of a restored topic, or of a branch: it names objects of another topic.

        It is written first, then all who may delete the objects are made to find it, and then what was deleted
        before that is left out. A leader that crashes on the way leaves a manifest that the next one finishes.
        """
        at, store = self.log.topic_partition, self.context.store
        source = self.context.restored_from(at.topic)
        branch = self.context.branch_of(self.log.topic_id) if source is None else None
        if begun is None:
            if source is not None:
                begun = await self._restored(source)
            elif branch is not None:
                begun = await self._branched(branch)
            if begun is None:
                return None, None
            begun = replace(begun, is_begun=bool(begun.segments))
            version = await store.replace(self.name, encode_manifest(begun), None)
        if not begun.is_begun:
            return begun, version
        if source is not None:
            await references.take_over(store, f"{source}/{at.partition}/{MANIFEST}", self.name)
            lost = await self._missing(begun)
        else:
            for owner in begun.owners:
                await references.add(store, owner, self.name)
            lost = await self._lost(begun, branch)
        taken = replace(begun.without_first(lost), is_begun=False)
        return taken, await store.replace(self.name, encode_manifest(taken), version)

    async def _restored(self, source: str) -> Manifest | None:
        """The manifest of a new topic that takes over the records of another."""
        at = self.log.topic_partition
        try:
            data, _ = await self.context.store.read_whole(f"{source}/{at.partition}/{MANIFEST}")
        except NoObjectError:
            return None  # nothing of this partition was in the tier
        found = decode_manifest(data)
        if not self.log.log_end_offset:
            return found.restored_as(at.topic, self.log.topic_id)
        if found.taken_over_by == self.name:
            return None  # it was restored once, and then its tier was disabled
        raise StoreError(f"{at} has records already: it cannot take over those of {source}")

    async def _branched(self, branch: Branch) -> Manifest | None:
        """The manifest of a branch, with references to the objects of its parent. It is written even if it has none:
        until then the parent deletes no objects."""
        at, log = self.log.topic_partition, self.log
        if at.partition >= len(branch.offsets):
            return None
        found = await self._read_parent(branch)
        adopted = None if found is None else found.branched_as(at.topic, log.topic_id, branch.offsets[at.partition])
        if adopted is not None and (adopted.end_offset >= log.local_start_offset or not log.log_end_offset):
            return adopted
        if log.log_start_offset < log.local_start_offset:
            return None  # its first records must be in the tier, and are not there
        return self._empty()

    async def _lost(self, begun: Manifest, branch: Branch | None) -> frozenset[str]:
        """The objects that the parent has begun to delete meanwhile, perhaps without knowing of this branch."""
        parent = None if branch is None else await self._read_parent(branch)
        if parent is None:
            return await self._missing(begun)
        kept = {segment.name for segment in parent.readable}
        return frozenset(segment.name for segment in begun.segments if segment.name not in kept)

    async def _missing(self, begun: Manifest) -> frozenset[str]:
        """The first objects, if they are gone. Topics delete their oldest objects first."""
        missing = set()
        for segment in begun.segments:
            try:
                await self.context.store.read(segment.name, 0, 1)
                break
            except NoObjectError:
                missing.add(segment.name)
        return frozenset(missing)

    async def _read_parent(self, branch: Branch) -> Manifest | None:
        name = manifest_name(self.context.cluster_id(), branch.parent_id, self.log.topic_partition.partition)
        try:
            return decode_manifest((await self.context.store.read_whole(name))[0])
        except NoObjectError:
            return None

    async def _start_from(self, manifest: Manifest, epoch: int) -> None:
        """Continues the empty log of a leader at the end of the tier."""
        start = await tier_start(self.context.tail, manifest)
        self._check_leader(epoch)
        log, partition = self.log, self.partition
        if log.log_end_offset:
            return  # written to meanwhile: refused below
        log.restart_from_tier(start, self.context.environment.clock.now_ms())
        if log.high_watermark is None:
            partition.high_watermark = log.log_end_offset
        _log.info("restored_from_tier partition=%s end=%d", log.topic_partition, log.log_end_offset)

    async def _cut(self, manifest: Manifest, end: int, epoch: int) -> str | None:
        """The log has not what the tier has, after an unclean election. Returns why that cannot be repaired."""
        log = self.log
        if end <= manifest.log_start_offset:
            return (
                f"the tier of {log.topic_partition} has records up to {manifest.end_offset}, and the log of the leader "
                f"has none of them (it ends at {log.log_end_offset}). The objects are kept. See docs/tiered-storage.md"
            )
        _log.warning("tier_cut partition=%s from=%d to=%d", log.topic_partition, manifest.end_offset, end)
        await self.change(epoch, lambda present: present.ending_at(end))
        return None

    def _announce(self) -> None:
        self._known.set()
        self.partition.wake_all()

    def _empty(self) -> Manifest:
        at = self.log.topic_partition
        return Manifest(
            topic=at.topic,
            topic_id=self.log.topic_id,
            partition=at.partition,
            partition_count=at.partition + 1,
            configs={},
            leader_epoch=-1,
            log_start_offset=self.log.local_start_offset,
        )

    async def change(self, epoch: int, decide: Callable[[Manifest], Manifest | None]) -> bool:
        """Replace the manifest by what `decide` makes of it; False if it decides on nothing."""
        for _ in range(_MOST_CONFLICTS):
            self._check_leader(epoch)
            if self._is_doubtful:
                found, found_version = await self._get()
                self._take_found(found, found_version)
                self._is_doubtful = False
                self._check_leader(epoch)
            present = self.manifest
            if present is None:
                raise StoreError("the manifest is not known")
            if present.leader_epoch > epoch:
                raise DeposedError
            wanted = decide(present)
            if wanted is None:
                return False
            count, configs = self.context.describe(wanted.topic)
            wanted = replace(wanted, leader_epoch=epoch, partition_count=count, configs=configs)
            try:
                version = await self.context.store.replace(self.name, encode_manifest(wanted), self._version)
            except ConflictError:
                found, found_version = await self._get()
                if found == wanted:  # a request before this attempt was successful, and its response lost
                    self._take(wanted, found_version)
                    return True
                self._take_found(found, found_version)
                continue
            except StoreError:
                self._is_doubtful = True
                raise
            self._take(wanted, version)
            return True
        raise StoreError(f"{self.name} is changed by others all the time")

    def _take_found(self, found: Manifest | None, version: Version | None) -> None:
        """As leader: the manifest as another has written it, which may have been deposed by an unclean election."""
        if found is None and self._version is not None:
            self._led_epoch = -1  # the topic is deleted, or the records in the tier are lost: decided as at the begin
            raise StoreError(f"{self.name} is missing in the store")
        self._take(found or self._empty(), version)
        if found is None or not found.readable:
            return
        if found.agreed_end(self.log.epochs, self.log.log_end_offset) < found.end_offset:
            self._led_epoch = -1  # read and cut again, as at the beginning of the epoch
            raise StoreError("a leader before this one has added records that were lost in an unclean election")

    def _check_leader(self, epoch: int) -> None:
        if not self.partition.is_leader or self.partition.leader_epoch != epoch:
            raise DeposedError
