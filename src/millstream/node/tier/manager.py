"""Tiered storage on this node: for each tiered partition, one task that copies, deletes and keeps the manifest.

A task runs when `remote.log.manager.task.interval.ms` has passed, when a leader begins, and when a reader needs the
manifest. After an error it runs again after a pause that grows; local segments wait for it on the disk.

    leader:   read the manifest -> copy closed segments, oldest first -> move the log start -> delete objects
    follower: read the manifest, if local retention waits for it
"""

import asyncio
import logging
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Protocol
from uuid import UUID

from millstream.common.background_tasks import BackgroundTasks
from millstream.config.broker_config import BrokerConfig, ConfigSource
from millstream.config.setting import ConfigError
from millstream.config.table import tier, topic
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicId, TopicName
from millstream.node.environment import Environment
from millstream.node.metadata.image import Branch, MetadataDelta, MetadataImage, TopicImage
from millstream.node.replicas.partition import Partition
from millstream.node.replicas.partition_table import PartitionTable
from millstream.node.storage.disk import Disk
from millstream.node.storage.file_formats import DamagedFileError
from millstream.node.storage.log.partition_log import PartitionLog
from millstream.node.storage.log.retention import ready_to_copy, waits_for_tier
from millstream.node.storage.log.tiered_part import TierStart
from millstream.node.storage.object_store import NoObjectError, StoreError, StoreRates, Upload
from millstream.node.tier.cache import TierCache
from millstream.node.tier.context import TierContext, TierCounters
from millstream.node.tier.core.decisions import LocalSegment, backoff_s, expired_start, to_copy
from millstream.node.tier.core.manifest import (
    DamagedManifestError,
    Manifest,
    TieredSegment,
    copies_of,
    decode_manifest,
    manifest_name,
    parse_copy_name,
    partition_prefix,
    segment_name,
)
from millstream.node.tier.core.object_format import DamagedObjectError
from millstream.node.tier.core.segment_events import PartitionState, SegmentState
from millstream.node.tier.encryption import NO_KEYS, Keyring, WrongKeyError, open_keyring
from millstream.node.tier.event_topic import TierEvents
from millstream.node.tier.partition_tier import DeposedError, PartitionTier
from millstream.node.tier.reading import tier_start
from millstream.node.tier.references import ReferenceSearch
from millstream.node.tier.sweeping import Sweeper
from millstream.node.tier.uploads import DamagedSegmentError, plan_copy, prepare

_log = logging.getLogger("millstream.tier")
_OPENED_AT_ONCE = 10
_TRUE = "true"
_FIRST_SWEEP_SECONDS = 60.0
_FORGET_SECONDS = 10.0
_REMOVAL_ATTEMPTS = 5
_DELETED_TOPICS = 10_000
_DELETED = SegmentState.DELETE_SEGMENT_STARTED, SegmentState.DELETE_SEGMENT_FINISHED


class BranchIsNewError(StoreError):
    """A branch has no manifest yet, so it is not known to which objects it refers."""


class Metadata(Protocol):
    """The metadata and the settings of the broker."""

    @property
    def image(self) -> MetadataImage: ...

    @property
    def config(self) -> BrokerConfig: ...


class TierManager:
    def __init__(
        self,
        metadata: Metadata,
        partitions: PartitionTable,
        environment: Environment,
        disk: Disk,
        root: str,
        events: TierEvents | None = None,
    ) -> None:
        self.events = events
        self._metadata = metadata
        self._partitions = partitions
        self._environment = environment
        self._tiers: dict[tuple[bytes, int], PartitionTier] = {}
        self._topics: list[bytes] = []
        """The names of the tiered topics."""
        self._removals = BackgroundTasks()
        self._gone: dict[UUID, None] = {}
        """The last topics that were deleted while this node ran, for the sweeper: a leader that has failed removes no
        objects, and one that was deposed may still write a first manifest."""
        self.counters = TierCounters()
        self.cache = TierCache(disk, root)
        self._sweep: asyncio.Task[None] | None = None
        interval_s = metadata.config[tier.TIER_SWEEP_INTERVAL_MS] / 1000
        self._sweep_due = environment.loop.time() + min(_FIRST_SWEEP_SECONDS, interval_s)
        self._forget_due = 0.0
        self._produce_requests = 0
        self._has_producers = False
        self.context: TierContext | None = None
        config = metadata.config
        url = config[tier.TIER_URL]
        if config[tier.REMOTE_LOG_STORAGE_SYSTEM_ENABLE] and url is not None:
            if environment.open_store is None:
                raise ValueError("this environment has no object store")
            rates = StoreRates(
                lambda: metadata.config[tier.REMOTE_LOG_MANAGER_COPY_MAX_BYTES_PER_SECOND],
                lambda: metadata.config[tier.REMOTE_LOG_MANAGER_FETCH_MAX_BYTES_PER_SECOND],
                lambda: self._has_producers,
            )
            self.context = TierContext(
                environment.open_store(url, rates),
                self.cache,
                environment,
                lambda: metadata.config,
                lambda: metadata.image.cluster_id,
                self._describe,
                self.counters,
                _keyring(config),
                self._branch_of,
            )
            self._find_topics()

    def _describe(self, name: str) -> tuple[int, dict[str, str]]:
        image = self._metadata.image
        found = image.topics.get(TopicName(name))
        return (len(found.partitions) if found is not None else 0), dict(image.topic_config(name))

    def _branch_of(self, topic_id: UUID) -> Branch | None:
        found = self._metadata.image.topics_by_id.get(TopicId(topic_id))
        return None if found is None else found.branch

    # Following the node

    def opened(self, log: PartitionLog) -> None:
        """A log was opened. Called before its first use."""
        if self.context is not None and log.config.remote_storage_enable:
            at = log.topic_partition
            self._attach(self._partitions.find(at.topic, at.partition), log)

    def _attach(self, partition: Partition, log: PartitionLog) -> PartitionTier:
        key = partition.topic_id.bytes, partition.topic_partition.partition
        found = self._tiers.get(key)
        if found is None or found.partition is not partition or found.log is not log:
            assert self.context is not None
            if found is not None:
                found.close()
            found = self._tiers[key] = PartitionTier(partition, log, self.context, self._run_soon)
        log.tier = found
        return found

    def follow(self, delta: MetadataDelta) -> None:
        """Called before the partitions follow: the last leader of a deleted topic removes its objects."""
        context = self.context
        if context is None:
            return
        for deleted in delta.deleted.values():
            self._gone[deleted.id] = None
            self._topic_deleted(deleted)
        while len(self._gone) > _DELETED_TOPICS:
            del self._gone[next(iter(self._gone))]
        if delta.configs or delta.created or delta.deleted:
            self._find_topics()

    def _find_topics(self) -> None:
        image = self._metadata.image
        names = (topic.REMOTE_STORAGE_ENABLE.name, topic.REMOTE_LOG_DELETE_ON_DISABLE.name)
        self._topics = [
            name.encode()
            for name in image.topics
            if any(image.topic_config(name).get(setting, "").lower() == _TRUE for setting in names)
        ]

    def tick(self, produce_requests: int) -> None:
        """Called about once a second, with the number of Produce requests since the start."""
        if self.context is None:
            return
        self._has_producers = produce_requests > self._produce_requests
        self._produce_requests = produce_requests
        now = self._environment.loop.time()
        self._sweep_if_due(now)
        self._forget_removed(now)
        for each in self._tiered():
            if each.task is None and (now >= each.due or self._has_new_role(each)):
                self._run_soon(each)

    def _tiered(self) -> Iterator[PartitionTier]:
        openings = 0
        for name in self._topics:
            for partition in list(self._partitions.by_name.get(name, {}).values()):
                log = partition.opened_log
                if log is None:
                    openings += 1
                    if openings > _OPENED_AT_ONCE:
                        continue
                    try:
                        log = partition.log
                    except (KafkaError, OSError):
                        continue  # the first use reports it
                if log.config.remote_storage_enable or (log.tier is not None or _is_disabled(log)):
                    yield self._attach(partition, log)

    def _forget_removed(self, now: float) -> None:
        """Forget partitions of which this node has no replica any more."""
        if now < self._forget_due:
            return
        self._forget_due = now + _FORGET_SECONDS
        for key, each in list(self._tiers.items()):
            if self._partitions.by_id.get(key[0], {}).get(key[1]) is not each.partition:
                each.close()
                del self._tiers[key]

    def _sweep_if_due(self, now: float) -> None:
        """One broker sweeps: the one with the lowest id of those that are alive."""
        interval_ms = self._metadata.config[tier.TIER_SWEEP_INTERVAL_MS]
        if interval_ms < 0 or self._sweep is not None or now < self._sweep_due:
            return
        self._sweep_due = now + interval_ms / 1000
        image = self._metadata.image
        alive = [broker_id for broker_id, broker in image.brokers.items() if not broker.fenced]
        if alive and min(alive) == self._metadata.config.node_id:
            self._sweep = self._environment.loop.create_task(self._run_sweep())

    async def _run_sweep(self) -> None:
        assert self.context is not None
        age_ms = self._metadata.config[tier.TIER_SWEEP_AGE_MS]
        before_ms = self._environment.clock.now_ms() - age_ms
        topics = {each.id for each in self._metadata.image.topics.values()}
        gone = list(self._gone)
        cluster_id = self.context.cluster_id()
        branches = [
            partition_prefix(cluster_id, each.id, index)
            for each in self._metadata.image.topics.values()
            if each.branch is not None and self._is_tiered(each)
            for index in range(len(each.branch.offsets))
        ]
        try:
            sweeper = Sweeper(self.context.store, cluster_id)
            for name in (orphans := await sweeper.orphans(topics, before_ms, deleted=gone, branches=branches)):
                _log.info("orphan_deleted object=%s", name)
            await self.context.store.delete(orphans)
            for upload in (left := await sweeper.abandoned(before_ms)):
                _log.info("upload_aborted object=%s", upload.name)
            await self.context.store.abort(left)
        except StoreError as error:
            _log.warning("tier_not_swept error=%s", error)
        finally:
            self._sweep = None

    @staticmethod
    def _has_new_role(each: PartitionTier) -> bool:
        return each.partition.is_leader and not each.is_known and each.refusal is None and not each.failures

    def close(self) -> None:
        if self.context is not None:
            self.context.is_closed = True
            for each in self._tiers.values():
                each.close()
            self._removals.cancel()
            if self.events is not None:
                self.events.close()
            if self._sweep is not None:
                self._sweep.cancel()
            self.context.store.close()

    # The task of a partition

    def _run_soon(self, each: PartitionTier) -> None:
        if each.task is None and self.context is not None and not self.context.is_closed:
            if each.failures and self._environment.loop.time() < each.due:
                return  # after an error: the pause is not over
            each.task = self._environment.loop.create_task(self._run(each))

    async def _run(self, each: PartitionTier) -> None:
        at = each.log.topic_partition
        interval_s = self._metadata.config[tier.REMOTE_LOG_MANAGER_TASK_INTERVAL_MS] / 1000
        try:
            await self._work(each)
            each.failures = 0
            each.due = self._environment.loop.time() + interval_s
        except DeposedError:
            each.due = 0.0
        except asyncio.CancelledError:
            raise
        except Exception as error:
            assert self.context is not None
            self.context.counters.copy_errors += 1
            each.failures += 1
            pause = backoff_s(each.failures, self._environment.randomness.random())
            each.due = self._environment.loop.time() + pause
            if isinstance(error, StoreError | OSError | KafkaError | DamagedSegmentError | DamagedManifestError):
                _log.warning("tier_task_failed partition=%s retry_s=%.1f error=%s", at, pause, error)
            else:
                _log.exception("tier_task_failed partition=%s", at)
        finally:
            each.task = None

    async def _work(self, each: PartitionTier) -> None:
        partition, log = each.partition, each.log
        if not partition.is_leader:
            if each.manifest is None or waits_for_tier(log, self._environment.clock.now_ms()):
                await each.refresh()
                await each.secure()
            return
        epoch = partition.leader_epoch
        if _is_disabled(log):
            await self._delete_everything(each, epoch)
            return
        if not each.is_known:
            await each.begin_leading(epoch)
        if each.refusal is not None:
            each.due = 0.0
            raise StoreError(each.refusal)
        if not log.config.remote_log_copy_disable:
            await self._copy(each, epoch)
        await each.secure()
        await self._expire(each, epoch)

    # Copying

    async def _copy(self, each: PartitionTier, epoch: int) -> None:
        while (segment := self._next_to_copy(each)) is not None:
            if not await self._copy_segment(each, segment, epoch):
                return

    def _next_to_copy(self, each: PartitionTier) -> LocalSegment | None:
        log, manifest = each.log, each.manifest
        assert manifest is not None
        stable = min(log.readable_end, log.last_stable_offset, log.recovery_point)
        ready = islice(closed_segments(log), ready_to_copy(log, self._environment.clock.now_ms()))
        return to_copy(ready, max(manifest.end_offset, log.log_start_offset), stable)

    async def _copy_segment(self, each: PartitionTier, segment: LocalSegment, epoch: int) -> bool:
        context, log = each.context, each.log
        plan = plan_copy(log, segment.base_offset)
        if plan is None:
            return False
        at = log.topic_partition
        async with context.copying:
            upload = await self._begun_upload(each, segment)
            if not each.partition.is_leader or each.partition.leader_epoch != epoch:
                raise DeposedError
            if upload is None:
                name, named_epoch = self._new_name(each, segment.base_offset, epoch), epoch
            else:
                name, named_epoch = upload.name, _epoch_in(upload)
            prepared = await self._environment.offload(lambda: context.encrypt(prepare(plan, name, named_epoch)))
            entry = prepared.entry
            self._report(each.manifest, [entry], SegmentState.COPY_SEGMENT_STARTED)
            each.may_have_upload = True
            try:
                await context.store.create(name, prepared.parts, prepared.stored_bytes, upload)
            except NoObjectError:  # the upload is gone, or cannot be continued: the next attempt begins again
                each.may_have_upload = False
                raise
            each.may_have_upload = False
        # The log start may have moved beyond the tier (DeleteRecords): the manifest follows first, or there is a gap.
        if not await each.change(epoch, lambda manifest: manifest.starting_at(log.log_start_offset).adding(entry)):
            await context.store.delete([name])
            self._report(each.manifest, [entry], *_DELETED)
            # Else it would be tried again and again.
            return max(each.end_offset, log.log_start_offset) >= entry.end_offset
        each.failures = 0
        self._report(each.manifest, [entry], SegmentState.COPY_SEGMENT_FINISHED)
        context.counters.copied_bytes += prepared.stored_bytes
        context.counters.copied_segments += 1
        _log.info("segment_tiered partition=%s base=%d end=%d", at, entry.base_offset, entry.end_offset)
        return True

    def _new_name(self, each: PartitionTier, base_offset: int, epoch: int) -> str:
        context, log = each.context, each.log
        return segment_name(
            context.cluster_id(),
            log.topic_id,
            log.topic_partition.partition,
            base_offset,
            epoch,
            self._metadata.config.node_id,
            context.nonce(),
        )

    async def _begun_upload(self, each: PartitionTier, segment: LocalSegment) -> Upload | None:
        """The upload of a segment that this node began before it crashed, or before the store was down for long.

        No other node continues it: the first one may still be at it. An encrypted copy begins again, with a new data
        key. An old upload is left to the sweeper, for which its object would have the age of the upload.
        """
        context, log = each.context, each.log
        is_encrypted = self._metadata.config[tier.TIER_ENCRYPTION_KEY_ID] is not None
        if not each.may_have_upload or is_encrypted or segment.size <= context.store.whole_bytes:
            return None
        oldest_ms = self._environment.clock.now_ms() - self._metadata.config[tier.TIER_SWEEP_AGE_MS] // 2
        prefix = copies_of(context.cluster_id(), log.topic_id, log.topic_partition.partition, segment.base_offset)
        try:
            uploads = await context.store.uploads(prefix)
        except StoreError as error:  # perhaps the list is not allowed
            _log.warning("uploads_not_listed partition=%s error=%s", log.topic_partition, error)
            return None
        own = [upload for upload in uploads if upload.began_ms > oldest_ms and self._is_own(upload)]
        if not own:
            return None
        found = max(own, key=lambda upload: upload.began_ms)
        _log.info("upload_continued partition=%s base=%d", log.topic_partition, segment.base_offset)
        return found

    def _is_own(self, upload: Upload) -> bool:
        named = parse_copy_name(upload.name)
        return named is not None and named.node_id == self._metadata.config.node_id

    # Deleting

    async def _expire(self, each: PartitionTier, epoch: int) -> None:
        log, manifest = each.log, each.manifest
        assert manifest is not None
        only_local = sum(segment.size for segment in log.segments if segment.base_offset >= manifest.end_offset)
        start = expired_start(manifest, log.config, only_local, self._environment.clock.now_ms())
        start = min(max(start, log.log_start_offset), each.partition.high_watermark)
        if manifest.segments and start > manifest.log_start_offset:
            await each.change(epoch, lambda present: present.starting_at(start))
        if start > log.log_start_offset:  # perhaps only the manifest of a leader before this one has that start
            log.delete_records_before(start)
            _log.info("tier_expired partition=%s new_start=%d", log.topic_partition, start)
        await self._delete_marked(each, epoch)

    async def _delete_marked(self, each: PartitionTier, epoch: int) -> None:
        assert each.manifest is not None
        deleting = list(each.manifest.deleting)
        names = frozenset(segment.name for segment in deleting)
        if names:
            try:
                free = await self._unshared(each.context, names, each.log.topic_id, each.log.topic_partition.partition)
            except BranchIsNewError:
                return  # the next run deletes them
            await each.context.store.delete(free)
            await each.change(epoch, lambda manifest: manifest.without(names))
            self._report(each.manifest, deleting, *_DELETED)
            each.context.counters.deleted_segments += len(free)

    async def _delete_everything(self, each: PartitionTier, epoch: int) -> None:
        """Tiered storage was disabled for the topic, with `remote.log.delete.on.disable`."""
        log = each.log
        found = self._metadata.image.topics_by_id.get(TopicId(log.topic_id))
        await self._remove_partition(each.name, log.topic_id, None if found is None else found.family)
        if each.partition.is_leader and each.partition.leader_epoch == epoch:
            log.begin_at(log.local_start_offset)
            log.tier = None
            self._tiers.pop((each.partition.topic_id.bytes, log.topic_partition.partition), None)
            each.reader.close()

    def _topic_deleted(self, deleted: TopicImage) -> None:
        context = self.context
        assert context is not None
        for index in range(len(deleted.partitions)):
            each = self._tiers.pop((deleted.id.bytes, index), None)
            if each is None:
                continue
            is_leader = each.partition.is_leader
            each.close()
            if is_leader:
                name = manifest_name(context.cluster_id(), deleted.id, index)
                self._removals.start(self._remove_deleted(name, deleted), loop=self._environment.loop)

    async def _remove_deleted(self, name: str, deleted: TopicImage) -> None:
        attempt = 0
        while attempt < _REMOVAL_ATTEMPTS:
            attempt += 1
            try:
                await self._remove_partition(name, deleted.id, deleted.family)
                return
            except BranchIsNewError as error:
                _log.info("tier_not_removed_yet manifest=%s reason=%s", name, error)
                attempt = 1
                await asyncio.sleep(backoff_s(attempt, self._environment.randomness.random()))
            except (StoreError, DamagedManifestError) as error:
                _log.warning("tier_not_removed manifest=%s error=%s", name, error)
                await asyncio.sleep(backoff_s(attempt, self._environment.randomness.random()))
        # The sweeper finds the objects.

    async def _unshared(
        self,
        context: TierContext,
        names: Collection[str],
        topic_id: UUID,
        partition: int,
        family: UUID | None = None,
    ) -> list[str]:
        """Those of the objects of a topic to which no other topic refers: its parent, its branches, and theirs.

        What the metadata of this node does not know yet, the store does (`tier/references.py`). BranchIsNewError while
        a branch has no manifest yet: it is about to refer to objects of its parent.
        """
        image = self._metadata.image
        if family is None:
            found = image.topics_by_id.get(TopicId(topic_id))
            family = topic_id if found is None else found.family
        cluster_id = context.cluster_id()
        search = ReferenceSearch(context.store, {manifest_name(cluster_id, topic_id, partition)})
        for other in image.topics.values():
            if other.family != family or other.id == topic_id or not self._is_tiered(other):
                continue
            is_branched = other.branch is not None and partition < len(other.branch.offsets)
            if not await search.read(manifest_name(cluster_id, other.id, partition)) and is_branched:
                raise BranchIsNewError(f"the branch {other.name} has not read the manifest yet")
        return await search.unreferenced(names)

    def _is_tiered(self, found: TopicImage) -> bool:
        configs = self._metadata.image.topic_config(found.name)
        return configs.get(topic.REMOTE_STORAGE_ENABLE.name, "").lower() == _TRUE

    async def _remove_partition(self, name: str, topic_id: UUID, family: UUID | None) -> None:
        """Delete all objects of a partition that no other topic refers to, the manifest last."""
        context = self.context
        assert context is not None
        try:
            data, _ = await context.store.read_whole(name)
        except NoObjectError:
            return
        manifest = decode_manifest(data)
        names = [segment.name for segment in manifest.segments]
        free = await self._unshared(context, names, topic_id, manifest.partition, family)
        if self.events is not None:
            self.events.partition(
                manifest, PartitionState.DELETE_PARTITION_MARKED, PartitionState.DELETE_PARTITION_STARTED
            )
        await context.store.delete(free)
        await context.store.delete([name])
        self._report(manifest, manifest.segments, *_DELETED)
        if self.events is not None:
            self.events.partition(manifest, PartitionState.DELETE_PARTITION_FINISHED)
        context.counters.deleted_segments += len(free)

    def _report(self, of: Manifest | None, segments: Sequence[TieredSegment], *states: SegmentState) -> None:
        if self.events is not None and of is not None:
            self.events.segments(of, segments, *states)

    # Followers

    async def start_of(self, partition: Partition) -> TierStart:
        """Where a follower continues whose offset the leader has only in the tier: at the end of the tier."""
        if self.context is None:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, "this broker has no tier (remote.log.storage.system.enable)"
            )
        each = self._attach(partition, partition.log)
        try:
            await each.refresh()
            if each.manifest is None or not each.manifest.readable:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the tier has no segment of the partition yet")
            return await tier_start(self.context.tail, each.manifest)
        except (StoreError, DamagedObjectError, DamagedManifestError, DamagedFileError) as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the tier cannot be read: {error}") from error

    # For metrics and the command line

    def tiers(self) -> list[PartitionTier]:
        return list(self._tiers.values())


def closed_segments(log: PartitionLog) -> Iterator[LocalSegment]:
    segments = log.segments
    for slot in range(len(segments) - 1):
        yield LocalSegment(segments[slot].base_offset, segments[slot + 1].base_offset, segments[slot].size)


def lag(log: PartitionLog, tiered_end: int) -> tuple[int, int]:
    """How many closed segments, and how many of their bytes, are not in the tier yet."""
    waiting = [segment.size for segment in closed_segments(log) if segment.end_offset > tiered_end]
    return len(waiting), sum(waiting)


def _epoch_in(upload: Upload) -> int:
    named = parse_copy_name(upload.name)
    assert named is not None
    return named.leader_epoch


def _keyring(config: BrokerConfig) -> Keyring | None:
    """The keys of encryption, read once so that a mistake in the file of the node is found at its start. A key id that
    was set while brokers run is found when it is used: it must not keep a broker from starting."""
    keyring = open_keyring(config[tier.TIER_ENCRYPTION_KEY_FILE], config[tier.TIER_ENCRYPTION_KEY_COMMAND])
    key_id = config.layers[ConfigSource.STATIC_BROKER_CONFIG].get(tier.TIER_ENCRYPTION_KEY_ID.name)
    try:
        if keyring is not None:
            keyring.load()
            if key_id is not None:
                keyring.key(key_id)
        elif key_id is not None:
            raise ValueError(NO_KEYS)
    except (ValueError, WrongKeyError) as error:
        raise ConfigError(str(error), name=tier.TIER_ENCRYPTION_KEY_ID.name) from None
    return keyring


def _is_disabled(log: PartitionLog) -> bool:
    return log.config.remote_log_delete_on_disable and not log.config.remote_storage_enable
