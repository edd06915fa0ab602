"""Deletions, markers and producers: what outlives its record, and for how long."""

import pytest

from millstream.formats.records.compression import Codec
from millstream.node.storage.cleaner.copying import DELETE_HORIZON_BIT
from tests.unit.node.storage.cleaner.compacted import (
    HOUR_MS,
    NOW,
    append,
    batches,
    clean,
    committed_records,
    config,
    end_transaction,
    records,
    table,
)
from tests.unit.node.storage.conftest import Node

pytestmark = pytest.mark.usefixtures("inner_loops")


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_deletion_is_kept_for_delete_retention_ms(node: Node, codec: Codec) -> None:
    log = node.log(config(delete_retention_ms=HOUR_MS))
    append(log, (b"a", b"1"), (b"b", b"1"), codec=codec)
    append(log, (b"a", None), (b"c", b"1"), codec=codec, timestamp=NOW - 5)
    log.roll(0)
    clean(log, NOW)
    assert records(log) == [(1, b"b", b"1"), (2, b"a", None), (3, b"c", b"1")]
    header, found = batches(log)[1]
    assert header.attributes & DELETE_HORIZON_BIT
    assert header.base_timestamp == NOW + HOUR_MS
    assert [record.timestamp for record in found] == [NOW - 5, NOW - 4]
    assert header.max_timestamp == NOW - 4
    # The horizon stays where it was set.
    append(log, (b"d", b"1"))
    log.roll(0)
    clean(log, NOW + HOUR_MS - 1)
    assert (2, b"a", None) in records(log)
    append(log, (b"d", b"2"))
    log.roll(0)
    clean(log, NOW + HOUR_MS)
    assert records(log) == [(1, b"b", b"1"), (3, b"c", b"1"), (5, b"d", b"2")]


def test_records_without_a_key_go(node: Node) -> None:
    log = node.log(config())
    append(log, (None, b"x"), (b"a", b"1"))
    append(log, (None, None))
    append(log, (b"b", b"1"))
    log.roll(0)
    clean(log)
    assert records(log) == [(1, b"a", b"1"), (3, b"b", b"1")]


def test_the_last_sequence_of_a_producer_is_kept(node: Node) -> None:
    log = node.log(config())
    append(log, (b"a", b"1"), (b"b", b"1"), producer=(5, 0, 0))
    append(log, (b"a", b"2"), (b"b", b"2"), producer=(5, 0, 2))
    append(log, (b"a", b"3"), (b"b", b"3"))
    log.roll(0)
    clean(log)
    kept = [
        (header.base_offset, header.base_sequence, header.last_offset_delta, len(found))
        for header, found in batches(log)
    ]
    assert kept == [(2, 2, 1, 0), (4, -1, 1, 2)]
    for path in node.path.glob("*.snapshot"):
        path.unlink()
    node.restart(clean=False)
    log = node.log(config())
    assert log.producers.entries[5].next_sequence == 4
    append(log, (b"c", b"1"), producer=(5, 0, 4))


def test_aborted_records_go_and_then_their_marker(node: Node) -> None:
    log = node.log(config(delete_retention_ms=HOUR_MS))
    append(log, (b"a", b"1"))
    append(log, (b"a", b"2"), producer=(5, 0, 0), transactional=True)
    end_transaction(log, 5, committed=False)
    append(log, (b"c", b"1"), producer=(5, 0, 1), transactional=True)
    end_transaction(log, 5, committed=True)
    log.roll(0)
    clean(log, NOW)
    assert records(log) == [(0, b"a", b"1"), (3, b"c", b"1")]
    # The marker stays, since there were records of its transaction.
    assert [header.base_offset for header, _ in batches(log) if header.is_control] == [2, 4]
    assert log.aborted_transactions(0, 10) == [(5, 1)]
    for pass_at, horizon_seen, markers in ((NOW, True, [2, 4]), (NOW + HOUR_MS, False, [4])):
        append(log, (b"z", b"%d" % pass_at))
        log.roll(0)
        clean(log, pass_at)
        control = [header for header, _ in batches(log) if header.is_control]
        assert [header.base_offset for header in control] == markers
        assert bool(control[0].attributes & DELETE_HORIZON_BIT) == horizon_seen
        assert log.aborted_transactions(0, 10) == []
    assert table(committed_records(log)) == {b"a": b"1", b"c": b"1", b"z": b"%d" % (NOW + HOUR_MS)}
    node.restart(clean=False)
    assert table(committed_records(node.log(config()))) == {b"a": b"1", b"c": b"1", b"z": b"%d" % (NOW + HOUR_MS)}


def test_nothing_past_an_open_transaction_is_cleaned(node: Node) -> None:
    log = node.log(config())
    append(log, (b"a", b"1"))
    log.roll(0)
    append(log, (b"a", b"2"), producer=(5, 0, 0), transactional=True)
    log.roll(0)
    append(log, (b"a", b"3"))
    log.roll(0)
    clean(log)
    assert log.cleaned_offset == 1
    assert [offset for offset, _, _ in records(log)] == [0, 1, 2]
    end_transaction(log, 5, committed=False)
    log.roll(0)
    clean(log)
    assert records(log) == [(2, b"a", b"3")]


def test_an_aborted_transaction_across_segments(node: Node) -> None:
    log = node.log(config())
    append(log, (b"a", b"1"))
    append(log, (b"a", b"2"), (b"b", b"2"), producer=(5, 0, 0), transactional=True)
    log.roll(0)
    append(log, (b"b", b"3"), producer=(5, 0, 2), transactional=True)
    append(log, (b"b", b"4"))
    log.roll(0)
    end_transaction(log, 5, committed=False)
    log.roll(0)
    clean(log)
    assert records(log) == [(0, b"a", b"1"), (4, b"b", b"4")]
    assert table(committed_records(log)) == {b"a": b"1", b"b": b"4"}
