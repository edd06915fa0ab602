"""Batches above the limits and batches with malformed records: they stay as they are, and the others are cleaned."""

import asyncio
import logging

import pytest

from millstream.formats.records.batch import HEADER_SIZE, read_header
from millstream.formats.records.compression import Codec
from millstream.formats.records.opening import OpeningLimits
from millstream.formats.records.record import read_batches
from millstream.node.storage.cleaner.log_cleaner import LogCleaner
from millstream.node.storage.cleaner.plan import CleanerSettings
from millstream.node.storage.log.partition_log import PartitionLog
from tests import wire
from tests.integration.node.broker.unreadable import sealed, unreadable
from tests.unit.node.storage.cleaner.compacted import (
    HOUR_MS,
    NOW,
    append,
    batches,
    clean,
    config,
    end_transaction,
    offload,
    records,
)
from tests.unit.node.storage.conftest import Node

SETTINGS = CleanerSettings(opening=OpeningLimits(max_bytes=1 << 20, max_records=50), backoff_ms=0)
LARGE = (b"a", bytes(2 << 20))
MANY = [(b"a", b"many")] * 51

pytestmark = pytest.mark.usefixtures("inner_loops")


@pytest.mark.parametrize("kind", ["large", "many"])
def test_a_batch_beyond_the_limits_stays_and_the_others_are_cleaned(node: Node, kind: str) -> None:
    log = node.log(config(segment_bytes=100_000))
    puts = [LARGE] if kind == "large" else MANY
    append(log, (b"a", b"1"), (b"b", b"1"))
    bomb = append(log, *puts, codec=Codec.ZSTD)
    behind = append(log, (b"a", b"2"), (b"b", b"2"), codec=Codec.GZIP)
    append(log, (b"b", b"3"))
    log.roll(0)
    for number in range(2):  # first it lies in the dirty part, then in the clean one
        passed = clean(log, settings=SETTINGS).stats
        assert (passed.passed_over, passed.first_passed_over) == (1, bomb)
        assert [header.base_offset for header, _ in batches(log)][:3] == [bomb, behind, behind + 2]
        left = [row[1:] for row in records(log) if not bomb <= row[0] < behind]
        assert left == [(b"a", b"2"), (b"b", b"3"), (b"c", b"0")][: 2 + number]
        assert len(records(log)) == len(left) + len(puts)
        append(log, (b"c", b"%d" % number))
        log.roll(0)


def test_tombstones_behind_it_are_kept(node: Node) -> None:
    log = node.log(config(delete_retention_ms=HOUR_MS))
    append(log, (b"x", None))
    append(log, LARGE, codec=Codec.ZSTD)
    append(log, (b"a", None), (b"b", b"1"))
    log.roll(0)
    for hours in range(4):
        clean(log, NOW + hours * 2 * HOUR_MS, SETTINGS)
        log.cleaned_offset = 0  # all of it is looked at again
        seen = [(key, value) for _, key, value in records(log)]
        assert (b"a", None) in seen, "without it, the record in the batch that stays would be the latest"
    assert (b"x", None) not in seen, "it lies before"


def test_one_of_an_aborted_transaction_goes(node: Node) -> None:
    log = node.log(config(segment_bytes=100_000))
    append(log, *MANY, codec=Codec.ZSTD, producer=(7, 0, 0), transactional=True)
    append(log, (b"a", b"1"))
    end_transaction(log, 7, committed=False)
    append(log, (b"a", b"2"))
    log.roll(0)
    stats = clean(log, settings=SETTINGS).stats
    assert stats.passed_over == 0
    assert [value for _, _, value in records(log)] == [b"2"]


def test_it_is_logged_and_counted_and_other_logs_are_cleaned(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    log = node.log(config(min_cleanable_dirty_ratio=0.0))
    for number in range(3):
        append(log, LARGE, codec=Codec.ZSTD)
        append(log, (b"a", b"%d" % number))
    log.roll(0)

    async def run() -> LogCleaner:
        loop = asyncio.get_running_loop()
        cleaner = LogCleaner(node.directory, lambda: SETTINGS, offload=offload, loop=loop, now_ms=lambda: NOW)
        cleaner.tick()
        while cleaner._tasks:
            await asyncio.gather(*cleaner._tasks)
            await asyncio.sleep(0)  # from Python 3.12 on, gather does not wait for callbacks of tasks that are done
        return cleaner

    with caplog.at_level(logging.WARNING):
        (progress,) = asyncio.run(run()).progress()
    assert (progress.passed_over, progress.uncleanable) == (3, "")
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("batches_passed_over ") and "count=3 first_offset=0 " in line
    assert [value for _, _, value in records(log) if len(value or b"") < 9] == [b"2"]


def _half(codec: Codec) -> bytes:
    """The header says two records. The first has the key `a`, the second is cut off."""
    return sealed(bytes([16, 0, 0, 0, 2, ord("a"), 2, ord("x"), 0]) + bytes([100, 0, 0, 2, 2, 2, 2, 2]), 2, codec)


def _by_offset(log: PartitionLog) -> dict[int, bytes]:
    """The batches as bytes, by their base offsets."""
    found: dict[int, bytes] = {}
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        piece = log.read(offset, 1, up_to=log.log_end_offset, at_least_one=True)
        piece.prepare()
        batch = bytes(piece.read())
        if not batch:
            break
        header = read_header(batch)
        found[header.base_offset] = batch[: header.size]
        offset = header.last_offset + 1
    return found


BAD = {
    "garbage": unreadable(),
    "half, compressed": _half(Codec.GZIP),
    "half": _half(Codec.NONE),
    "not compressed": sealed(b"no gzip at all", 3, Codec.GZIP, is_compressed=True),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_batch_that_cannot_be_read_stays_and_replaces_nothing(
    node: Node, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be from the time when the topic was not compacted, or of a version that did not check."""
    monkeypatch.setattr("millstream.node.storage.log.batch_admission.MAX_WALKED_RECORDS", 0)
    bad = bytearray(BAD[kind])
    content = bytes(bad[HEADER_SIZE:])
    log = node.log(config(cleanup_policy=frozenset({"delete"})))
    append(log, (b"a", b"1"), (b"b", b"1"))
    at = log.log_end_offset
    log.append(bad, leader_epoch=0, now_ms=wire.now_ms())
    log.config = config()
    append(log, (b"b", b"2"))
    log.roll(0)
    for number in range(2):  # first it is in the dirty part, then in the clean one
        stats = clean(log).stats
        assert (stats.passed_over, stats.first_passed_over) == (1, at)
        kept = _by_offset(log)
        assert kept.pop(at)[HEADER_SIZE:] == content
        left = [(row.key, row.value) for batch in kept.values() for _, rows in read_batches(batch) for row in rows]
        assert left == [(b"a", b"1"), (b"b", b"2"), (b"c", b"0")][: 2 + number]
        append(log, (b"c", b"%d" % number))
        log.roll(0)
