"""The cleaner's inner loops: what is compiled says of any bytes what plain Python says."""

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.formats.records.batch import HEADER_SIZE
from millstream.formats.records.record import Record, build_batch
from millstream.node.storage.cleaner import key_map, records
from millstream.node.storage.cleaner.errors import UncleanableError
from tests.unit.node.storage.cleaner.conftest import compiled_loops

KEYS = st.one_of(st.none(), st.binary(max_size=3), st.binary(min_size=30, max_size=70))
VALUES = st.one_of(st.none(), st.binary(max_size=200))
BATCH = st.lists(
    st.builds(lambda key, value, time: Record(key, value, timestamp=time), KEYS, VALUES, st.integers(0, 1 << 40)),
    min_size=1,
    max_size=20,
)
ROOMY = 1 << 20


@pytest.fixture(scope="module")
def fast() -> ModuleType:
    return compiled_loops()


def contents(batches: list[list[Record]]) -> list[tuple[bytes, int]]:
    return [(bytes(build_batch(batch))[HEADER_SIZE:], len(batch)) for batch in batches]


@given(batches=st.lists(BATCH, min_size=1, max_size=8), older=BATCH, shift_ms=st.sampled_from([0, 1, -70, 1 << 41]))
def test_compiled_and_plain_loops_keep_the_same_records(
    fast: ModuleType, batches: list[list[Record]], older: list[Record], shift_ms: int
) -> None:
    total = sum(map(len, batches))
    maps = [fast.KeyMap(ROOMY, 5, total), key_map.KeyMap(ROOMY, 5, total)]
    for content, count in contents(batches):
        for keys in maps:
            assert keys.has_room(count, len(content))
            keys.map_records(content, 0, len(content), count)
    assert maps[0].fates == maps[1].fates
    assert maps[0].key_count == maps[1].key_count
    (content, count), *_ = contents([older])
    assert maps[0].fates_by_key(content, 0, len(content), count) == maps[1].fates_by_key(
        content, 0, len(content), count
    )
    at = 0
    for content, count in contents(batches):
        fates = maps[0].fates[at : at + count]
        at += count
        for drops in (False, True):
            assert fast.kept_records(content, 0, fates, drops, shift_ms) == records.kept_records(
                content, 0, fates, drops, shift_ms
            )
    maps[0].forget(lambda: None)
    assert maps[0].key_count == 0


@given(batch=BATCH, changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_records_are_refused_or_read_alike(
    fast: ModuleType, batch: list[Record], changes: list[tuple[int, int]]
) -> None:
    content = bytearray(build_batch(batch)[HEADER_SIZE:])
    for at, byte in changes:
        content[at % len(content)] = byte
    data, count = bytes(content), len(batch)
    found: list[bytes | None] = []
    for loops in (fast.KeyMap, key_map.KeyMap):
        keys = loops(ROOMY, 0, count)
        try:
            keys.map_records(data, 0, len(data), count)
            found.append(bytes(keys.fates))
        except UncleanableError:
            found.append(None)
    # Plain Python lets a record pass that is too short to be one, if it has no key; the compiled loop need not.
    assert found[0] == found[1] or found[0] is None
    for kept in (fast.kept_records, records.kept_records):
        try:
            kept(data, 0, bytes(count), False, 7)
        except UncleanableError:
            pass


@pytest.mark.parametrize("records_per_batch", [1, 50])
def test_a_map_has_room_for_what_it_may_use(fast: ModuleType, records_per_batch: int) -> None:
    limit = 100_000
    keys = fast.KeyMap(limit, 0, 1 << 40)
    number = 0
    while True:
        batch = [Record(b"key-%d" % (number + at), b"v") for at in range(records_per_batch)]
        (content, count), *_ = contents([batch])
        if not keys.has_room(count, len(content)):
            break
        keys.map_records(content, 0, len(content), count)
        number += count
        assert keys.used_bytes <= limit
    assert keys.key_count == number > limit // 40


def test_the_first_batch_always_fits(fast: ModuleType) -> None:
    keys = fast.KeyMap(10, 0, 5000)
    (content, count), *_ = contents([[Record(b"key-%d" % at, b"v") for at in range(5000)]])
    assert keys.has_room(count, len(content))
    keys.map_records(content, 0, len(content), count)
    assert keys.key_count == 5000
    assert not keys.has_room(1, 10)


def test_more_records_than_bytes(fast: ModuleType) -> None:
    with pytest.raises(UncleanableError, match="past the end"):
        fast.KeyMap(ROOMY, 0, 1).map_records(b"abc", 0, 3, 1 << 40)
