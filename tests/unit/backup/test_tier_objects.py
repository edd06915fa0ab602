"""References of backups to objects of the tier: what they keep, what a race leaves out, what a restore makes of it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from millstream.backup.blocking_store import BlockingStore
from millstream.backup.repository import Chunk, DamagedBackupError, PartitionBackup, Repository
from millstream.backup.tier_objects import TierObjects, chunk_of
from millstream.node.storage.object_store import ObjectStore
from millstream.node.tier import references
from millstream.node.tier.core.manifest import (
    Manifest,
    State,
    TieredSegment,
    decode_manifest,
    encode_manifest,
    manifest_name,
    partition_prefix,
    segment_name,
)
from millstream.node.tier.references import ReferenceSearch
from millstream.node.tier.sweeping import Sweeper

CLUSTER, OTHER, TOPIC, BACKUP = "old-cluster", "new-cluster", UUID(int=7), "20260105T000000000Z-1a2b3c"


def segment(number: int, **changes: object) -> TieredSegment:
    name = segment_name(CLUSTER, TOPIC, 0, number * 10, 1, 1, "ab12")
    made = TieredSegment(name, number * 10, number * 10 + 10, 100, 150, 0, 1, ((1, number * 10),), False)
    return replace(made, **changes)  # type: ignore[arg-type]


def manifest(*segments: TieredSegment, start: int = 0) -> Manifest:
    return Manifest("orders", TOPIC, 0, 1, {}, 3, start, segments)


def row(end: int, *chunks: Chunk, start: int = 0) -> PartitionBackup:
    return PartitionBackup("orders", TOPIC, 0, start, end, chunks)


@pytest.fixture
def blocking(tmp_path: Path) -> Iterator[BlockingStore]:
    store = BlockingStore(f"file://{tmp_path}/tier")
    yield store
    store.close()


@pytest.fixture
def tier(tmp_path: Path, blocking: BlockingStore) -> Iterator[TierObjects]:
    with TierObjects(f"file://{tmp_path}/tier") as tier:
        yield tier


def put(blocking: BlockingStore, found: Manifest, cluster: str = CLUSTER) -> None:
    name = manifest_name(cluster, TOPIC, 0)

    async def write() -> None:
        try:
            _, version = await blocking.store.read_whole(name)
        except Exception:
            version = None
        await blocking.store.replace(name, encode_manifest(found), version)
        for each in found.segments:
            if not [
                old for old in await blocking.store.list(partition_prefix(CLUSTER, TOPIC, 0)) if old.name == each.name
            ]:
                await blocking.store.create(each.name, lambda: iter([bytes(150)]), 150)

    blocking.run(write())


def unreferenced(blocking: BlockingStore, *names: str) -> list[str]:
    search = ReferenceSearch(blocking.store, {manifest_name(CLUSTER, TOPIC, 0)})
    return blocking.run(search.unreferenced(names))


def test_a_backup_keeps_the_objects_before_its_point_until_it_is_deleted(
    blocking: BlockingStore, tier: TierObjects
) -> None:
    first, second, third = (segment(number) for number in range(3))
    put(blocking, manifest(first, second, third))
    referred = tier.refer(CLUSTER, row(25), BACKUP)
    assert referred is not None and referred.segments == (first, second)
    assert unreferenced(blocking, first.name, second.name, third.name) == [third.name]
    assert tier.referred(CLUSTER, row(25, chunk_of(first), chunk_of(second)), BACKUP).segments == (first, second)
    # Neither the sweeper nor a list of topics takes the manifest of the backup for one of a topic.
    orphans = blocking.run(Sweeper(blocking.store, CLUSTER).orphans([], 1 << 60, of_lost_topics=True))
    assert first.name not in orphans and not any("/backups/" in each for each in orphans)
    tier.release(CLUSTER, BACKUP)
    assert unreferenced(blocking, first.name, second.name) == [first.name, second.name]
    with pytest.raises(DamagedBackupError, match="--tier-url"):
        tier.referred(CLUSTER, row(25, chunk_of(first)), BACKUP)


def test_what_the_topic_began_to_delete_meanwhile_is_left_out(
    blocking: BlockingStore, tier: TierObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = (segment(number) for number in range(3))
    put(blocking, manifest(first, second, third))
    added = references.add

    async def add(store: ObjectStore, owner: str, name: str) -> None:
        # The leader marks the first object, reads the list without the backup, and deletes the object.
        marked = manifest(replace(first, state=State.DELETING), second, third, start=10)
        source = manifest_name(CLUSTER, TOPIC, 0)
        _, version = await store.read_whole(source)
        await store.replace(source, encode_manifest(marked), version)
        await store.delete([first.name])
        await added(store, owner, name)

    monkeypatch.setattr(references, "add", add)
    referred = tier.refer(CLUSTER, row(30), BACKUP)
    assert referred is not None
    assert (referred.segments, referred.log_start_offset) == ((second, third), 10)


@pytest.mark.parametrize(
    "found",
    [
        manifest(),
        manifest(segment(0, end_offset=40)),
        replace(manifest(segment(0)), is_begun=True),
        manifest(segment(0, is_restored=True), segment(1)),
    ],
    ids=["empty", "after the point", "begun", "restored"],
)
def test_nothing_to_refer_to(blocking: BlockingStore, tier: TierObjects, found: Manifest) -> None:
    put(blocking, found)
    assert tier.refer(CLUSTER, row(25), BACKUP) is None
    assert tier.refer("another", row(25), BACKUP) is None


def test_a_restored_cluster_gets_a_manifest_of_its_own(blocking: BlockingStore, tier: TierObjects) -> None:
    first, second = segment(0), segment(1)
    put(blocking, manifest(first, second))
    backup = row(20, chunk_of(first), chunk_of(second), start=5)
    assert tier.refer(CLUSTER, backup, BACKUP) is not None
    referred = tier.referred(CLUSTER, backup, BACKUP)
    for _ in range(2):  # by the nodes of two machines
        tier.give(OTHER, backup, referred)
    tier.release(CLUSTER, BACKUP)
    name = manifest_name(OTHER, TOPIC, 0)
    given = decode_manifest(blocking.run(blocking.store.read_whole(name))[0])
    assert (given.segments, given.log_start_offset, given.is_begun) == ((first, second), 5, False)
    assert unreferenced(blocking, first.name, second.name) == []
    # A restore that was interrupted between the two writes is finished by the next one.
    blocking.run(blocking.store.delete([name]))
    blocking.run(blocking.store.replace(name, encode_manifest(replace(referred, is_begun=True)), None))
    tier.give(OTHER, backup, referred)
    assert not decode_manifest(blocking.run(blocking.store.read_whole(name))[0]).is_begun


def test_a_damaged_object_is_named(blocking: BlockingStore, tier: TierObjects) -> None:
    first = segment(0)
    put(blocking, manifest(first))
    with pytest.raises(DamagedBackupError, match=first.name):
        list(tier.batches(first, 10))
    blocking.run(blocking.store.delete([first.name]))
    with pytest.raises(DamagedBackupError, match="is missing in file://"):
        list(tier.batches(first, 10))


def test_references_of_an_interrupted_backup_are_released(tmp_path: Path) -> None:
    released: list[str] = []
    with Repository(str(tmp_path)) as repository:
        repository.begin(BACKUP)
        repository.note_tier(BACKUP, "file:///tier", CLUSTER)
        assert repository.noted_tier(BACKUP) == ("file:///tier", CLUSTER)
        assert repository.noted_tier("20260105T000000000Z-000000") is None
        repository.remove([], BACKUP, released.append)  # it may be running
        assert released == [] and repository.noted_tier(BACKUP) is not None
        repository.remove([], "3", released.append)
        assert released == [BACKUP] and repository.noted_tier(BACKUP) is None
