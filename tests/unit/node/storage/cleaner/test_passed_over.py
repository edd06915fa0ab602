"""Batches that are more than the limits allow to open: they stay as they are, and all around them is cleaned."""

import asyncio
import logging

import pytest

from millstream.formats.records.compression import Codec
from millstream.formats.records.opening import OpeningLimits
from millstream.node.storage.cleaner.log_cleaner import LogCleaner
from millstream.node.storage.cleaner.plan import CleanerSettings
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
        return cleaner

    with caplog.at_level(logging.WARNING):
        (progress,) = asyncio.run(run()).progress()
    assert (progress.passed_over, progress.uncleanable) == (3, "")
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("batches_passed_over ") and "count=3 first_offset=0 " in line
    assert [value for _, _, value in records(log) if len(value or b"") < 9] == [b"2"]
