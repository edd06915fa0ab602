"""The tier of one partition: leaders that are deposed, responses that are lost, unclean elections, gaps."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from crc32c import crc32c

from millstream.config.broker_config import BrokerConfig
from millstream.config.loading import load_broker_config
from millstream.config.topic_config import LogConfig
from millstream.formats.model.errors import KafkaError
from millstream.formats.model.identifiers import TopicName, TopicPartition
from millstream.node.environment import Environment
from millstream.node.metadata.image import MetadataImage
from millstream.node.replicas.partition_table import PartitionTable
from millstream.node.storage.log.batch_scan import walk_headers
from millstream.node.storage.log.log_reader import aborted_among
from millstream.node.storage.log.partition_log import PartitionLog
from millstream.node.storage.log.tiered_part import TierStart
from millstream.node.storage.object_store import ConflictError, NoObjectError, StoredObject, StoreError, Upload, Version
from millstream.node.tier.cache import TierCache
from millstream.node.tier.context import TierContext, TierCounters
from millstream.node.tier.core import object_format
from millstream.node.tier.core.manifest import Manifest, TieredSegment, decode_manifest, encode_manifest
from millstream.node.tier.core.object_format import Section, SegmentIdentity
from millstream.node.tier.manager import TierManager
from millstream.node.tier.partition_tier import DeposedError, PartitionTier
from millstream.node.tier.uploads import plan_copy, prepare
from tests.unit.node.storage.batches import batch
from tests.unit.node.storage.conftest import Node
from tests.unit.node.storage.test_partition_log import append


class MemoryStore:
    """A store in memory. `fails`: the next write fails, before or after it has taken effect."""

    whole_bytes = 1 << 20

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.fails = ""

    async def create(
        self, name: str, parts: Callable[[], Iterator[bytes]], size: int, upload: Upload | None = None
    ) -> None:
        self.objects[name] = b"".join(parts())

    async def read(self, name: str, position: int, length: int) -> bytes:
        return (await self.read_whole(name))[0][position : position + length]

    async def read_whole(self, name: str) -> tuple[bytes, Version]:
        if name not in self.objects:
            raise NoObjectError(name)
        return self.objects[name], str(hash(self.objects[name]))

    async def replace(self, name: str, data: bytes, version: Version | None) -> Version:
        fails, self.fails = self.fails, ""
        if fails == "before":
            raise StoreError("the request was lost")
        present = self.objects.get(name)
        if (None if present is None else str(hash(present))) != version:
            raise ConflictError(name)
        self.objects[name] = data
        if fails == "after":
            raise StoreError("the response was lost")
        return str(hash(data))

    async def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self.objects.pop(name, None)

    async def uploads(self, prefix: str) -> list[Upload]:
        return []

    async def abort(self, uploads: Sequence[Upload]) -> None:
        pass

    async def list(self, prefix: str) -> list[StoredObject]:
        return [StoredObject(name, len(data), 0) for name, data in self.objects.items() if name.startswith(prefix)]

    def close(self) -> None:
        pass


class FakePartition:
    """The role of a partition."""

    topic_partition = TopicPartition(TopicName("t"), 0)

    def __init__(self) -> None:
        self.is_leader = True
        self.leader_epoch = 5
        self.high_watermark = 0

    def wake_all(self) -> None:
        pass


class Clock:
    def now_ms(self) -> int:
        return 1000


def tier_of(store: MemoryStore, log: PartitionLog, partition: FakePartition, node: Node) -> PartitionTier:
    loop = asyncio.get_running_loop()
    config: BrokerConfig = load_broker_config(overrides=["node.id=1"], data_dir="/nowhere")

    def offload(function: Callable[[], Any]) -> "asyncio.Future[Any]":
        future = loop.create_future()
        future.set_result(function())
        return future

    environment = Environment(Clock(), loop, cast(Any, offload), random.Random(1), cast(Any, None))
    context = TierContext(
        store,
        TierCache(log.disk, "/nowhere"),
        environment,
        lambda: config,
        lambda: "c",
        lambda name: (1, {}),
        TierCounters(),
    )
    return PartitionTier(cast(Any, partition), log, context, lambda tier: None)


def segment(base: int, end: int, *epochs: tuple[int, int]) -> TieredSegment:
    return TieredSegment(f"s{base}", base, end, 10, 20, 0, 3, epochs, False)


def manifest_of(log: PartitionLog, *segments: TieredSegment, epoch: int = 3) -> Manifest:
    return Manifest("t", log.topic_id, 0, 1, {}, epoch, 0, segments)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(cast(Any, scenario()))


@pytest.fixture
def log(node: Node) -> PartitionLog:
    """Epochs 0 and 2, which begins at offset 5; it ends at 10."""
    log = node.log(LogConfig(remote_storage_enable=True))
    for number in range(10):
        append(log, b"v", epoch=0 if number < 5 else 2)
    return log


def test_a_new_leader_deposes_the_one_before(node: Node, log: PartitionLog) -> None:
    async def scenario() -> None:
        store, old, new = MemoryStore(), FakePartition(), FakePartition()
        new.leader_epoch = 6
        first, second = tier_of(store, log, old, node), tier_of(store, log, new, node)
        await first.begin_leading(5)
        await second.begin_leading(6)
        added = segment(0, 5, (0, 0))
        assert await first.change(5, lambda present: present.adding(added)), "the new leader has not written yet"
        assert await second.change(6, lambda present: present.starting_at(1)), "it takes over what the old one wrote"
        assert second.end_offset == 5
        with pytest.raises(DeposedError):
            await first.change(5, lambda present: present.adding(segment(5, 9, (2, 5))))
        assert decode_manifest(store.objects[first.name]).end_offset == 5

    run(scenario)


@pytest.mark.parametrize("fails", ["before", "after"])
def test_a_lost_response_is_neither_success_nor_failure(node: Node, log: PartitionLog, fails: str) -> None:
    async def scenario() -> None:
        store, partition = MemoryStore(), FakePartition()
        tier = tier_of(store, log, partition, node)
        await tier.begin_leading(5)
        added = segment(0, 5, (0, 0))
        store.fails = fails
        with pytest.raises(StoreError):
            await tier.change(5, lambda present: present.adding(added))
        assert tier.end_offset == 0, "local segments stay until it is known"
        assert await tier.change(5, lambda present: present.adding(added)) is (fails == "before")
        assert tier.end_offset == 5
        assert len(decode_manifest(store.objects[tier.name]).segments) == 1

    run(scenario)


def test_an_unclean_election_cuts_the_tier(node: Node, log: PartitionLog) -> None:
    async def scenario() -> None:
        store, partition = MemoryStore(), FakePartition()
        tier = tier_of(store, log, partition, node)
        lost = manifest_of(log, segment(0, 5, (0, 0)), segment(5, 20, (1, 5)))
        store.objects[tier.name] = encode_manifest(lost)
        await tier.begin_leading(5)
        assert tier.is_known and tier.end_offset == 5
        assert decode_manifest(store.objects[tier.name]).end_offset == 5

    run(scenario)


def test_records_that_a_deposed_leader_adds_after_an_unclean_election_are_cut(node: Node, log: PartitionLog) -> None:
    async def scenario() -> None:
        store = MemoryStore()
        tier = tier_of(store, log, FakePartition(), node)
        first = manifest_of(log, segment(0, 5, (0, 0)))
        store.objects[tier.name] = encode_manifest(first)
        await tier.begin_leading(5)
        deposed = first.adding(segment(5, 9, (1, 5)))
        assert deposed is not None
        store.objects[tier.name] = encode_manifest(deposed)
        added = segment(5, 10, (2, 5))
        with pytest.raises(StoreError, match="unclean"):
            await tier.change(5, lambda present: present.adding(added))
        assert not tier.is_known
        await tier.begin_leading(5)
        assert tier.end_offset == 5
        assert await tier.change(5, lambda present: present.adding(added))
        written = decode_manifest(store.objects[tier.name])
        assert [each.epochs for each in written.segments] == [((0, 0),), ((2, 5),)]

    run(scenario)


def test_a_tier_with_other_records_only_is_kept_and_not_read(node: Node, log: PartitionLog) -> None:
    async def scenario() -> None:
        store, partition = MemoryStore(), FakePartition()
        tier = tier_of(store, log, partition, node)
        before = store.objects[tier.name] = encode_manifest(manifest_of(log, segment(0, 20, (1, 0))))
        await tier.begin_leading(5)
        assert not tier.is_known and tier.refusal is not None
        with pytest.raises(KafkaError, match="The objects are kept"):
            tier.read(0, 100, up_to=10, at_least_one=True)
        assert store.objects[tier.name] == before

    run(scenario)


def test_a_follower_does_not_change_the_manifest(node: Node, log: PartitionLog) -> None:
    async def scenario() -> None:
        store, partition = MemoryStore(), FakePartition()
        partition.is_leader = False
        tier = tier_of(store, log, partition, node)
        store.objects[tier.name] = encode_manifest(manifest_of(log, segment(0, 5, (0, 0))))
        await tier.refresh()
        assert tier.end_offset == 5
        with pytest.raises(DeposedError):
            await tier.change(5, lambda present: present.starting_at(3))

    run(scenario)


def test_without_a_manifest_the_log_begins_on_the_disk(node: Node, log: PartitionLog) -> None:
    async def scenario() -> None:
        tier = tier_of(MemoryStore(), log, FakePartition(), node)
        await tier.begin_leading(5)
        assert tier.is_known and (log.log_start_offset, log.local_start_offset, tier.end_offset) == (0, 0, 0)

    run(scenario)


def test_records_of_the_tier_are_not_given_up_if_another_store_is_configured(node: Node) -> None:
    async def scenario() -> None:
        log = node.log(LogConfig(remote_storage_enable=True))
        log.restart_from_tier(TierStart(20, 0, [(0, 0)], []), 1000)
        append(log, b"v", epoch=2)
        tier = tier_of(MemoryStore(), log, FakePartition(), node)
        await tier.begin_leading(5)
        assert tier.refusal is not None and "millstream.tier.url" in tier.refusal
        assert log.log_start_offset == 0, "or the objects of the right store would be deleted later"
        log.delete_records_before(20)
        await tier.begin_leading(5)
        assert tier.refusal is None

    run(scenario)


def test_a_log_that_was_cut_in_the_tier_knows_where_it_differs(node: Node, log: PartitionLog) -> None:
    async def scenario() -> None:
        log.restart_from_tier(TierStart(20, 0, [(0, 0), (2, 5)], []), 1000)
        log.truncate_to(8)  # as follower, after an unclean election
        assert log.epochs.entries() == [(0, 0), (2, 5)]
        for _ in range(20):
            append(log, b"other", epoch=4)
        store = MemoryStore()
        tier = tier_of(store, log, FakePartition(), node)
        lost = manifest_of(log, segment(0, 5, (0, 0)), segment(5, 20, (2, 5)))
        store.objects[tier.name] = encode_manifest(lost)
        await tier.begin_leading(5)
        assert tier.end_offset == 8, "from there on the tier has records that the log has lost"

    run(scenario)


class CountingStore(MemoryStore):
    """Fails when more objects are created than make sense."""

    async def create(
        self, name: str, parts: Callable[[], Iterator[bytes]], size: int, upload: Upload | None = None
    ) -> None:
        await super().create(name, parts, size, upload)
        assert sum(each.endswith(".segment") for each in self.objects) < 10
        self.created = getattr(self, "created", 0) + 1
        assert self.created < 10, "the same segment is copied again and again"


def test_copies_go_on_after_records_beyond_the_tier_were_deleted(node: Node) -> None:
    async def scenario() -> None:
        log = node.log(LogConfig(remote_storage_enable=True, segment_bytes=5 * len(batch(b"value")), flush_messages=1))
        for _ in range(23):
            append(log, b"value")
        job = log.flush_job()
        if job is not None:
            job.done(job.run())
        store, partition = CountingStore(), FakePartition()
        partition.high_watermark = 23
        tier = tier_of(store, log, partition, node)
        store.objects[tier.name] = encode_manifest(manifest_of(log, segment(0, 5, (0, 0))))
        await tier.begin_leading(5)
        log.delete_records_before(12)  # in the segment that begins at 10; the tier ends at 5
        metadata = SimpleNamespace(config=tier.context.config(), image=MetadataImage())
        manager = TierManager(cast(Any, metadata), PartitionTable(), tier.context.environment, log.disk, "/nowhere")
        await manager._work(tier)
        found = decode_manifest(store.objects[tier.name])
        assert [(each.base_offset, each.end_offset) for each in found.segments] == [(10, 15), (15, 20)]
        assert found.log_start_offset == 12

    run(scenario)


def test_the_checksum_of_an_object_is_that_of_all_its_log_bytes(node: Node) -> None:
    """Of batches that cross the blocks in which a segment is read, also larger ones."""
    log = node.log(LogConfig(remote_storage_enable=True, max_message_bytes=3 << 20))
    for size in (700_000, 10, 900_000, 2_500_000, 1, 400_000):
        append(log, b"v" * size)
    log.roll(1000)
    job = log.flush_job()
    if job is not None:
        job.done(job.run())
    plan = plan_copy(log, 0)
    assert plan is not None
    prepared = prepare(plan, "name", 0)
    stored = b"".join(prepared.parts())
    section = object_format.decode_footer(stored).sections[object_format.LOG]
    assert section.length == log.segments[0].size > 4_000_000
    assert section.crc == crc32c(stored[: section.length])


def _led_while_another_deletes(node: Node, store: MemoryStore) -> tuple[PartitionLog, PartitionTier, Manifest]:
    """A log with two closed segments, the first of them in the tier. The leader before this one still deletes it: its
    manifest comes back, for the test to write."""
    log = node.log(LogConfig(remote_storage_enable=True, segment_bytes=5 * len(batch(b"value")), flush_messages=1))
    for _ in range(13):
        append(log, b"value")
    job = log.flush_job()
    if job is not None:
        job.done(job.run())
    partition = FakePartition()
    partition.high_watermark = 13
    tier = log.tier = tier_of(store, log, partition, node)
    before = manifest_of(log, segment(0, 5, (0, 0)))
    store.objects |= {tier.name: encode_manifest(before), "s0": b""}
    return log, tier, before.starting_at(5).without(frozenset({"s0"}))


def test_the_log_starts_where_a_deposed_leader_has_moved_the_start(node: Node) -> None:
    """Else its consumers would wait for ever for records whose objects are gone."""

    async def scenario() -> None:
        store = MemoryStore()
        log, tier, deleted = _led_while_another_deletes(node, store)
        await tier.begin_leading(5)
        del store.objects["s0"]
        store.objects[tier.name] = encode_manifest(deleted)
        metadata = SimpleNamespace(config=tier.context.config(), image=MetadataImage())
        manager = TierManager(cast(Any, metadata), PartitionTable(), tier.context.environment, log.disk, "/nowhere")
        await manager._work(tier)  # copies a segment, and finds the other manifest
        assert tier.end_offset == 10 and log.log_start_offset == 5

    run(scenario)


def test_a_leader_reads_the_manifest_again_if_an_object_is_gone(node: Node) -> None:
    async def scenario() -> None:
        store = MemoryStore()
        log, tier, deleted = _led_while_another_deletes(node, store)
        await tier.begin_leading(5)
        log.drop_segments(1).run()
        assert log.local_start_offset == 5 and not log.read(0, 1000, up_to=13, at_least_one=True).length
        del store.objects["s0"]
        store.objects[tier.name] = encode_manifest(deleted)
        await asyncio.wait(tier.reader._under_way.values())
        with pytest.raises(KafkaError, match="s0"):
            log.read(0, 1000, up_to=13, at_least_one=True)
        tier.reader._failures.clear()  # the pause after the failure is over
        assert not log.read(0, 1000, up_to=13, at_least_one=True).length
        assert not tier.is_known
        await tier.begin_leading(5)
        assert log.log_start_offset == 5

    run(scenario)


def test_a_manifest_that_is_gone_is_not_replaced_by_an_empty_one(node: Node) -> None:
    """The topic was deleted by another leader, or someone has deleted the objects: records in the tier are not given up
    by writing a manifest without them."""

    async def scenario() -> None:
        store = MemoryStore()
        log, tier, _ = _led_while_another_deletes(node, store)
        await tier.begin_leading(5)
        log.drop_segments(1).run()
        del store.objects[tier.name]
        metadata = SimpleNamespace(config=tier.context.config(), image=MetadataImage())
        manager = TierManager(cast(Any, metadata), PartitionTable(), tier.context.environment, log.disk, "/nowhere")
        with pytest.raises(StoreError, match="is missing in the store"):
            await manager._work(tier)
        assert not tier.is_known and tier.name not in store.objects
        assert log.log_start_offset == 0

    run(scenario)


class SlowStore(MemoryStore):
    """Calls a function after an object was written, before its writer goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.after: Callable[[], None] = lambda: None

    async def create(
        self, name: str, parts: Callable[[], Iterator[bytes]], size: int, upload: Upload | None = None
    ) -> None:
        await super().create(name, parts, size, upload)
        self.after()
        self.after = lambda: None


def test_records_that_are_deleted_while_they_go_up_do_not_stay_in_the_tier(node: Node) -> None:
    async def scenario() -> None:
        log = node.log(LogConfig(remote_storage_enable=True, segment_bytes=5 * len(batch(b"value")), flush_messages=1))
        for _ in range(13):
            append(log, b"value")
        job = log.flush_job()
        if job is not None:
            job.done(job.run())
        store, partition = SlowStore(), FakePartition()
        partition.high_watermark = 13
        tier = tier_of(store, log, partition, node)
        store.objects[tier.name] = encode_manifest(manifest_of(log, segment(0, 5, (0, 0))))
        store.objects["s0"] = b""
        await tier.begin_leading(5)
        store.after = lambda: log.delete_records_before(12)  # while the segment from 5 to 10 goes up
        metadata = SimpleNamespace(config=tier.context.config(), image=MetadataImage())
        manager = TierManager(cast(Any, metadata), PartitionTable(), tier.context.environment, log.disk, "/nowhere")
        await manager._work(tier)
        found = decode_manifest(store.objects[tier.name])
        assert found.log_start_offset == 12
        assert found.segments == () and set(store.objects) == {tier.name}, "no other segment may ever follow"

    run(scenario)


@pytest.mark.plain  # replaces a method of the log
@pytest.mark.parametrize("is_indexed", [True, False])
def test_offsets_that_compaction_has_removed_do_not_stop_readers(
    node: Node, monkeypatch: pytest.MonkeyPatch, is_indexed: bool
) -> None:
    """A topic that was compacted before it was tiered: gaps at the beginning, in, and at the end of segments."""
    size = len(batch(b"value"))
    monkeypatch.setattr("millstream.node.tier.reading.RANGE_BYTES", size)
    if is_indexed:
        monkeypatch.setattr("millstream.node.tier.cache.RANGE_BYTES", size)

    async def scenario() -> None:
        log = node.log(LogConfig(remote_storage_enable=True, segment_bytes=3 * size, index_interval_bytes=0))
        written = list(range(10, 131, 10))
        for offset in written:
            log.append_as_follower(batch(b"value", base_offset=offset, leader_epoch=0), now_ms=1000)
        job = log.flush_job()
        assert job is not None
        job.done(job.run())
        store, partition = CountingStore(), FakePartition()
        partition.high_watermark = log.log_end_offset
        tier = tier_of(store, log, partition, node)
        tier.context.cache = TierCache(log.disk, log.directory)
        log.tier = tier
        metadata = SimpleNamespace(config=tier.context.config(), image=MetadataImage())
        manager = TierManager(cast(Any, metadata), PartitionTable(), tier.context.environment, log.disk, "/nowhere")
        await manager._work(tier)
        log.drop_segments(len(log.segments) - 1)
        assert log.log_start_offset == 0 and log.local_start_offset > 90
        assert tier.manifest is not None
        gaps = {each.base_offset: each.base_offset + 5 for each in tier.manifest.segments if each.base_offset}
        segments = [
            replace(
                each, base_offset=gaps.get(each.base_offset, 0), end_offset=gaps.get(each.end_offset, each.end_offset)
            )
            for each in tier.manifest.segments
        ]  # the last offsets of each segment are gone
        tier._take(replace(tier.manifest, segments=tuple(segments)), None)
        for first in range(131):
            offset, found = first, []
            for _ in range(100):
                records = log.read(offset, 100, up_to=131, at_least_one=True)
                for _, header in walk_headers(records.file, records.position, records.position + records.length):
                    found.append(header.base_offset)
                    offset = header.last_offset + 1
                if offset == 131:
                    break
                await asyncio.sleep(0)
            assert found == [each for each in written if each >= first], f"from {first}"
        from_disk = log.read(log.local_start_offset, 100, up_to=131, at_least_one=True)
        with monkeypatch.context() as patch:
            patch.setattr(PartitionLog, "aborted_transactions", lambda _, start, end: [(7, start)])
            assert aborted_among(log, from_disk, 115, 131) == [(7, log.local_start_offset)]

    run(scenario)


def test_aborted_transactions_that_were_forgotten_are_found_again(node: Node, log: PartitionLog) -> None:
    async def scenario() -> None:
        store = MemoryStore()
        tier = tier_of(store, log, FakePartition(), node)
        sections = [(kind, b"") for kind in (object_format.ABORTED,)]
        identity = SegmentIdentity("t", log.topic_id, 0, 0, 5, 3, 0)
        tail = object_format.encode_tail(identity, Section(0, 0, 0), sections)
        names = [f"s{number}" for number in range(1500)]
        for name in names:
            store.objects[name] = tail
            await tier.context.tail(replace(segment(0, 5), name=name, log_bytes=0, object_bytes=len(tail)))
        await tier.context.tail(replace(segment(0, 5), name=names[0], log_bytes=0, object_bytes=len(tail)))
        assert tier.context.aborted(names[0]) is not None, "a reader would wait for it for ever"

    run(scenario)


def test_the_space_for_indexes_is_a_setting_that_counts_at_once(node: Node, log: PartitionLog) -> None:
    async def scenario() -> None:
        store = MemoryStore()
        tier = tier_of(store, log, FakePartition(), node)
        identity = SegmentIdentity("t", log.topic_id, 0, 0, 5, 3, 0)
        tail = object_format.encode_tail(identity, Section(0, 0, 0), [(object_format.ABORTED, b"")])
        segments = [
            replace(segment(0, 5), name=f"s{number}", log_bytes=0, object_bytes=len(tail)) for number in range(3)
        ]
        store.objects.update((each.name, tail) for each in segments)
        for each in segments[:2]:
            await tier.context.load_indexes(each)
        assert all(tier.context.range_starts(each) is not None for each in segments[:2])
        changed = tier.context.config().with_dynamic(
            default={"remote.log.index.file.cache.total.size.bytes": str(len(tail))}, own={}
        )
        tier.context.config = lambda: changed
        await tier.context.load_indexes(segments[2])
        kept = [each.name for each in segments if tier.context.range_starts(each) is not None]
        assert kept == ["s2"], "the last one fits, and the others do not"

    run(scenario)
