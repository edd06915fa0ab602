"""The sweeper: what it takes for an orphan, and what it leaves."""

import asyncio
from uuid import UUID

import pytest

from millstream.node.tier.core.manifest import Manifest, TieredSegment, encode_manifest, manifest_name
from millstream.node.tier.sweeping import Sweeper
from tests.unit.node.tier.test_partition_tier import MemoryStore

HERE, GONE = UUID(int=1), UUID(int=2)


def _manifest(topic_id: UUID, *names: str) -> bytes:
    segments = tuple(
        TieredSegment(name, 5 * number, 5 * number + 5, 10, 20, 0, 3, ((0, 5 * number),), False)
        for number, name in enumerate(names)
    )
    return encode_manifest(Manifest("t", topic_id, 0, 1, {}, 3, 0, segments))


def _orphans(store: MemoryStore, *, of_lost_topics: bool = False) -> list[str]:
    return asyncio.run(Sweeper(store, "c").orphans({HERE}, 0, of_lost_topics=of_lost_topics))


@pytest.fixture
def store() -> MemoryStore:
    """A topic, with an object that its manifest does not name; a topic that the cluster does not have."""
    made = MemoryStore()
    made.objects = {
        manifest_name("c", HERE, 0): _manifest(HERE, f"c/{HERE}/0/a.segment"),
        f"c/{HERE}/0/a.segment": b"",
        f"c/{HERE}/0/left.segment": b"",
        manifest_name("c", GONE, 0): _manifest(GONE, f"c/{GONE}/0/b.segment"),
        f"c/{GONE}/0/b.segment": b"",
        f"c/{GONE}/1/left.segment": b"",
        f"cc/{GONE}/0/other.segment": b"",
    }
    return made


def test_a_lost_topic_is_kept_until_someone_says_that_it_may_go(store: MemoryStore) -> None:
    # A cluster that has lost all disks and starts again with its id knows no topic.
    assert _orphans(store) == [f"c/{HERE}/0/left.segment", f"c/{GONE}/1/left.segment"]
    assert set(_orphans(store, of_lost_topics=True)) == {
        f"c/{HERE}/0/left.segment",
        f"c/{GONE}/1/left.segment",
        f"c/{GONE}/0/b.segment",
        manifest_name("c", GONE, 0),
    }


def test_a_topic_whose_deletion_was_seen_is_not_taken_for_a_lost_one(store: MemoryStore) -> None:
    found = asyncio.run(Sweeper(store, "c").orphans({HERE}, 0, deleted={GONE}))
    assert set(found) == set(_orphans(store, of_lost_topics=True))
    store.objects[manifest_name("c", HERE, 0)] = _manifest(HERE, f"c/{GONE}/0/b.segment", f"c/{HERE}/0/a.segment")
    found = asyncio.run(Sweeper(store, "c").orphans({HERE}, 0, deleted={GONE}))
    assert f"c/{GONE}/0/b.segment" not in found, "another topic has it"


def test_objects_that_a_restored_topic_names_are_kept(store: MemoryStore) -> None:
    store.objects[manifest_name("c", HERE, 0)] = _manifest(HERE, f"c/{GONE}/0/b.segment", f"c/{HERE}/0/a.segment")
    assert f"c/{GONE}/0/b.segment" not in _orphans(store, of_lost_topics=True)
    del store.objects[manifest_name("c", GONE, 0)]
    assert f"c/{GONE}/0/b.segment" not in _orphans(store)


def test_a_damaged_manifest_keeps_everything_that_it_may_name(store: MemoryStore) -> None:
    store.objects[manifest_name("c", HERE, 0)] = b"{"
    assert _orphans(store, of_lost_topics=True) == []
