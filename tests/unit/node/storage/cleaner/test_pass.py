"""One pass over a log: what stays, what goes, and that every offset that stays is where it was."""

import pytest

from millstream.formats.records.compression import Codec
from millstream.node.storage.cleaner.plan import CleanerSettings
from tests.unit.node.storage.cleaner.compacted import NOW, append, batches, clean, config, records
from tests.unit.node.storage.conftest import Node

pytestmark = pytest.mark.usefixtures("inner_loops")


@pytest.mark.parametrize("codec", list(Codec))
def test_the_latest_of_each_key_stays(node: Node, codec: Codec) -> None:
    log = node.log(config())
    for number in range(40):
        append(log, (b"a", b"%d" % number), (b"b%d" % (number % 4), b"x" * 20), codec=codec)
    log.roll(0)
    before = records(log)
    clean(log)
    expected = {}
    for offset, key, value in before:
        expected[key] = (offset, key, value)
    assert records(log) == sorted(expected.values())
    assert log.cleaned_offset == log.segments.active.base_offset == log.log_end_offset == 80


def test_segments_are_grouped(node: Node) -> None:
    log = node.log(config())
    for number in range(100):
        append(log, (b"%d" % (number % 3), b"x" * 50))
    log.roll(0)
    count = len(log.segments)
    assert count > 8
    clean(log)
    assert len(log.segments) == count  # each was as large as a segment may be
    # Nothing is left of these but the last batch of each, empty: where one ends, the next begins.
    assert [len(found) for _, found in batches(log)][: count - 2] == [0] * (count - 2)
    append(log, (b"1", b"y"))
    log.roll(0)
    clean(log)
    assert len(log.segments) == 3
    assert [offset for offset, _, _ in records(log)] == [98, 99, 100]
    assert sorted(path.name for path in node.path.glob("*.log")) == [f"{base:020d}.log" for base in log.segments.bases]
    assert not [path for path in node.path.iterdir() if path.suffix in (".cleaned", ".swap", ".deleted")]


def test_what_is_not_mapped_is_left_to_the_next_pass(node: Node) -> None:
    log = node.log(config(segment_bytes=10_000))
    for number in range(400):
        append(log, (b"key-%d" % (number % 100), b"x" * 50))
    log.roll(0)
    settings = CleanerSettings(dedupe_buffer_bytes=2000, load_factor=1.0)
    passes = 0
    while log.cleaned_offset < log.segments.active.base_offset:
        reached = log.cleaned_offset
        clean(log, settings=settings)
        assert log.cleaned_offset > reached
        passes += 1
    assert passes > 3
    assert [offset for offset, _, _ in records(log)] == list(range(300, 400))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.SNAPPY])
def test_batches_larger_than_a_block_and_long_numbers(node: Node, codec: Codec) -> None:
    log = node.log(config(segment_bytes=1 << 20))
    many = [(b"%d" % number, b"x" * (40_000 if number == 7 else 5)) for number in range(9000)]
    append(log, *many, codec=codec)
    append(log, *[(b"k" * 300 + b"%d" % number, b"y" * 200) for number in range(100)], codec=codec)
    append(log, *[(b"%d" % number, None) for number in range(8999)], codec=codec)
    log.roll(0)
    settings = CleanerSettings(io_buffer_bytes=0)
    clean(log, settings=settings)
    left = records(log)
    assert [offset for offset, _, _ in left] == [8999, *range(9000, 9100), *range(9100, 18_099)]
    append(log, *[(b"k" * 300 + b"%d" % number, b"z") for number in range(0, 100, 2)], codec=codec)
    append(log, *[(b"%d" % number, b"z") for number in range(9000)], codec=codec)
    log.roll(0)
    clean(log, settings=settings)
    assert [offset for offset, _, _ in records(log)] == [*range(9001, 9100, 2), *range(18_099, 18_149 + 9000)]
    assert [record.timestamp - NOW for record in batches(log)[0][1]] == list(range(1, 100, 2))


def test_a_cleaned_log_ends_where_it_did(node: Node) -> None:
    log = node.log(config())
    append(log, (b"a", b"1"))
    append(log, (b"a", b"2"), (b"b", b"2"))
    log.roll(0)
    append(log, (b"a", b"3"), (b"b", b"3"))
    log.roll(0)
    append(log, (b"a", b"4"), (b"b", b"4"))
    log.roll(0)
    clean(log)
    assert [(header.base_offset, header.last_offset, len(found)) for header, found in batches(log)] == [(5, 6, 2)]
    node.restart(clean=True)
    log = node.log(config())
    assert log.log_end_offset == 7
