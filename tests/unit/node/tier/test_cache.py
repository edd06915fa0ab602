"""The cache of the tier: which ranges stay."""

from millstream.node.storage.log.log_reader import Slice
from millstream.node.tier.cache import Chunk, Passed, TierCache, write_chunk
from millstream.node.tier.core.manifest import TieredSegment
from tests.unit.node.storage.batches import batch
from tests.unit.node.storage.faulty_disk import FaultyDisk

_MIB = 1 << 20
_LIMIT = 1024 * _MIB


def _read(passed: Passed, *numbers: int, to_its_end: bool = True) -> None:
    for number in numbers:
        passed.note(("segment", number), 4 * _MIB, to_its_end=to_its_end)


def _positions(keys: list[tuple[str, int]]) -> list[int]:
    return [position for _, position in keys]


def test_of_ranges_that_were_read_to_their_end_the_last_stay() -> None:
    passed = Passed(16 * _MIB)
    _read(passed, 0, 1, 2, 3)
    assert passed.beyond(_LIMIT) == []
    _read(passed, 4, 5)
    _read(passed, 6, to_its_end=False)
    assert _positions(passed.beyond(_LIMIT)) == [0, 1]


def test_a_range_that_is_read_again_stays_while_it_is_read() -> None:
    passed = Passed(8 * _MIB)
    _read(passed, 0, 1)
    _read(passed, 0, to_its_end=False)
    _read(passed, 2, 3)
    assert _positions(passed.beyond(_LIMIT)) == [1]
    _read(passed, 0)
    assert _positions(passed.beyond(_LIMIT)) == [2]


def test_a_second_reader_far_behind_makes_more_stay_until_it_ends() -> None:
    passed = Passed(16 * _MIB)
    _read(passed, *range(20))
    assert len(passed.beyond(_LIMIT)) == 16
    for number in range(3):  # the second reader: what it needs was dropped
        passed.arrived(("segment", number), _LIMIT)
    assert passed.bound_bytes == 128 * _MIB
    passed.arrived(("other", 0), _LIMIT)
    assert passed.bound_bytes == 128 * _MIB, "read for the first time"
    _read(passed, *range(100, 100 + 32 + 256 + 1))  # one reader: a whole limit is dropped without use
    passed.beyond(_LIMIT)
    assert passed.bound_bytes == 64 * _MIB


def test_the_bound_never_exceeds_the_cache() -> None:
    passed = Passed(16 * _MIB)
    limit = 24 * _MIB
    _read(passed, *range(20))
    passed.beyond(limit)
    for number in range(20):
        passed.arrived(("segment", number), limit)
    assert passed.bound_bytes == limit


def _chunk(disk: FaultyDisk, cache: TierCache, number: int) -> Chunk:
    """A range with one batch of one record."""
    data = batch()
    segment = TieredSegment(f"s{number}", 0, 1, len(data), len(data) + 100, 0, 0, ((0, 0),), False)
    cache.begin()
    return write_chunk(disk, cache.new_path(), segment, 0, data)


def test_files_of_passed_ranges_are_removed_and_a_response_keeps_its_file(disk: FaultyDisk, root: str) -> None:
    size = len(batch())
    cache = TierCache(disk, root, Passed(2 * size))
    sent: list[Slice] = []
    for number in range(4):
        chunk = _chunk(disk, cache, number)
        removed = cache.add(chunk, _LIMIT)
        records = chunk.slice(0, 1 << 20, 1, True)
        assert records.length == size
        cache.was_read(chunk, records)
        sent.append(records)
        cache.remove_files(removed)
        assert bool(removed) == (number == 3), "two ranges, and the one that has just arrived"
    assert cache.at("s0", 0) is None
    assert not disk.exists(sent[0].file.path)
    assert sent[0].read() == sent[3].read(), "a response under way has all bytes"
    assert cache.size_bytes == 3 * size
