"""Objects that several topics name: they are deleted when none of them does, whatever the metadata of a leader know."""

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from millstream.config.topic_config import LogConfig
from millstream.formats.model.identifiers import TopicId, TopicName, TopicPartition
from millstream.node.metadata.image import Branch, MetadataImage
from millstream.node.replicas.partition_table import PartitionTable
from millstream.node.storage.log.partition_log import PartitionLog
from millstream.node.storage.object_store import StoredObject, StoreError, Version
from millstream.node.tier.core.manifest import (
    REFERENCES,
    Manifest,
    TieredSegment,
    decode_manifest,
    encode_manifest,
    partition_prefix,
)
from millstream.node.tier.manager import TierManager
from millstream.node.tier.partition_tier import PartitionTier
from millstream.node.tier.references import ReferenceSearch
from millstream.node.tier.sweeping import Sweeper
from tests.unit.node.storage.batches import NOW
from tests.unit.node.storage.conftest import Node
from tests.unit.node.storage.test_partition_log import append
from tests.unit.node.tier.test_partition_tier import FakePartition, MemoryStore, run, tier_of

BRANCH = UUID(int=77)


class StoppingStore(MemoryStore):
    """`before`: an action before the next write of an object whose name ends so; it may raise."""

    def __init__(self) -> None:
        super().__init__()
        self.before: tuple[str, Callable[[], Awaitable[None]]] | None = None

    async def replace(self, name: str, data: bytes, version: Version | None) -> Version:
        if self.before is not None and name.endswith(self.before[0]):
            action, self.before = self.before[1], None
            await action()
        return await super().replace(name, data, version)


class Family:
    """A parent with three objects, and a branch of it that ends at offset 10. The leader of the parent does not know
    the branch: its metadata are old."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.store = StoppingStore()
        config = LogConfig(remote_storage_enable=True)
        self.log = _written(node.log(config))
        self.names = [f"{partition_prefix('c', self.log.topic_id, 0)}/{base:020d}.segment" for base in (0, 5, 10)]
        segments = tuple(
            TieredSegment(name, 5 * slot, 5 * slot + 5, 10, 20, 0, 3, ((0, 5 * slot),), False)
            for slot, name in enumerate(self.names)
        )
        partition = FakePartition()
        partition.high_watermark = 15
        self.parent = tier_of(self.store, self.log, partition, node)
        self.store.objects[self.parent.name] = encode_manifest(
            Manifest("t", self.log.topic_id, 0, 1, {}, 3, 0, segments)
        )
        self.store.objects |= dict.fromkeys(self.names, b"x")
        at = TopicPartition(TopicName("branch"), 0)
        self.branch_log = _written(node.directory.create(at, BRANCH, config, NOW))
        self.branch = self.leader_of_branch()

    def leader_of_branch(self) -> PartitionTier:
        made = tier_of(self.store, self.branch_log, FakePartition(), self.node)
        parent_id = TopicId(self.log.topic_id)
        made.context.branch_of = lambda topic_id: Branch(
            parent=TopicName("t"), parent_id=parent_id, origin_id=parent_id, offsets=(10,)
        )
        return made

    async def expire_parent(self, before: int = 5) -> None:
        """Delete the first segments of the parent, by a leader without the branch in its metadata."""
        self.log.delete_records_before(before)
        metadata = SimpleNamespace(config=self.parent.context.config(), image=MetadataImage())
        environment = self.parent.context.environment
        manager = TierManager(cast(Any, metadata), PartitionTable(), environment, self.log.disk, "/nowhere")
        await manager._work(self.parent)

    def present(self) -> list[int]:
        return [slot for slot, name in enumerate(self.names) if name in self.store.objects]

    def branched(self) -> list[int]:
        """Which objects the branch names. All of them must be there."""
        found = decode_manifest(self.store.objects[self.branch.name])
        assert not found.is_begun
        named = [self.names.index(each.name) for each in found.readable]
        assert set(named) <= set(self.present())
        return named


def _written(log: PartitionLog) -> PartitionLog:
    for _ in range(15):
        append(log, b"v", epoch=0)
    return log


def test_a_leader_with_old_metadata_leaves_the_objects_of_a_branch(node: Node) -> None:
    async def scenario() -> None:
        family = Family(node)
        await family.branch.begin_leading(5)
        await family.expire_parent()
        assert family.branched() == [0, 1] and family.present() == [0, 1, 2]
        await family.store.delete([family.branch.name])  # the branch is deleted
        await family.expire_parent(10)
        assert family.present() == [0, 2], "what the branch had kept is left to the sweeper"
        assert await Sweeper(family.store, "c").orphans({family.log.topic_id}, 0) == [family.names[0]]

    run(scenario)


@pytest.mark.parametrize("at", ["/manifest.json", "/references.json"])
@pytest.mark.parametrize("is_killed", [False, True])
def test_objects_that_are_deleted_while_a_branch_is_made_are_not_in_it(node: Node, at: str, is_killed: bool) -> None:
    """At each write of the branch's leader; it is killed there, or goes on."""

    async def scenario() -> None:
        family = Family(node)

        async def meanwhile() -> None:
            await family.expire_parent()
            if is_killed:
                raise StoreError("killed")

        family.store.before = (f"{at}", meanwhile)
        if is_killed:
            with pytest.raises(StoreError, match="killed"):
                await family.branch.begin_leading(5)
            family.branch = family.leader_of_branch()
        await family.branch.begin_leading(5)
        assert family.branched() == [1]
        manifest = family.branch.manifest
        assert manifest is not None and manifest.log_start_offset == 5

    run(scenario)


def test_followers_do_not_use_a_manifest_that_is_only_begun(node: Node) -> None:
    async def scenario() -> None:
        family = Family(node)

        async def killed() -> None:
            raise StoreError("killed")

        family.store.before = (REFERENCES, killed)
        with pytest.raises(StoreError, match="killed"):
            await family.branch.begin_leading(5)
        follower = family.leader_of_branch()
        await follower.refresh()
        assert follower.end_offset == 0
        await family.expire_parent()
        await family.leader_of_branch().begin_leading(5)
        await follower.refresh()
        assert follower.end_offset == 10 and family.branched() == [1]

    run(scenario)


class LateStore(MemoryStore):
    """A branch is made after the store was listed."""

    def __init__(self, family: Family) -> None:
        super().__init__()
        self.objects = family.store.objects
        self._family = family

    async def list(self, prefix: str) -> list[StoredObject]:
        found = await super().list(prefix)
        await self._family.branch.begin_leading(5)
        await self._family.expire_parent()  # the parent does not name the object any more
        return found


def test_the_sweeper_sees_a_branch_that_was_made_after_its_list(node: Node) -> None:
    async def scenario() -> None:
        family = Family(node)
        assert await Sweeper(LateStore(family), "c").orphans({family.log.topic_id, BRANCH}, 0) == []
        assert family.branched() == [0, 1]

    run(scenario)


def test_restored_topics_that_share_objects_leave_them_to_each_other(node: Node) -> None:
    """The parent and the branch of a lost cluster are restored one after the other, under other ids."""

    async def scenario() -> None:
        family = Family(node)
        store, source = family.store, f"c/{family.log.topic_id}"
        await family.branch.begin_leading(5)
        restored = {}
        for name, lost in (("t2", source), ("branch2", f"c/{BRANCH}")):
            log = node.directory.create(
                TopicPartition(TopicName(name), 0), UUID(int=len(name)), LogConfig(remote_storage_enable=True), NOW
            )
            tier = restored[name] = tier_of(store, log, FakePartition(), node)
            tier.context.cluster_id = lambda: "new"
            tier.context.restored_from = lambda topic, lost=lost: lost  # type: ignore[method-assign, misc]

        async def free(name: str) -> list[str]:
            search = ReferenceSearch(store, {restored[name].name})
            return await search.unreferenced(family.names)

        first, _ = await restored["t2"]._take_over(None, None)
        assert first is not None and len(first.segments) == 3
        assert await free("t2") == family.names[2:], "the branch that is not restored yet keeps its objects"
        second, _ = await restored["branch2"]._take_over(None, None)
        assert second is not None and len(second.segments) == 2
        assert await free("t2") == family.names[2:]
        assert await free("branch2") == [], "the restored parent has them"
        await store.delete([restored["t2"].name])
        assert await free("branch2") == family.names, "the manifests of the lost cluster count no more"

    run(scenario)


def test_a_restored_topic_whose_tier_was_disabled_can_have_one_again(node: Node) -> None:
    async def scenario() -> None:
        family = Family(node)
        config = LogConfig(remote_storage_enable=True)

        def leader_of(log: PartitionLog) -> PartitionTier:
            tier = tier_of(family.store, log, FakePartition(), node)
            tier.context.cluster_id = lambda: "new"
            tier.context.restored_from = lambda topic: f"c/{family.log.topic_id}"  # type: ignore[method-assign, assignment]
            return tier

        late = node.directory.create(TopicPartition(TopicName("late"), 0), UUID(int=4), config, NOW)
        with pytest.raises(StoreError, match="late-0 has records already"):  # written before the restore
            await leader_of(_written(late))._take_over(None, None)
        log = node.directory.create(TopicPartition(TopicName("t2"), 0), UUID(int=3), config, NOW)
        first, _ = await leader_of(log)._take_over(None, None)
        assert first is not None and first.segments
        await family.store.delete([leader_of(log).name, *family.names])  # remote.log.delete.on.disable
        again = leader_of(_written(log))
        await again.begin_leading(5)
        assert again.is_known and again.end_offset == 0 and log.log_start_offset == 0

    run(scenario)
