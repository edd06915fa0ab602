"""The cleaner as a whole: which log, when, how fast; what a pass meets on its way."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import pytest

from millstream.formats.model.identifiers import TopicName, TopicPartition
from millstream.node.storage.cleaner.cleaning import Offload
from millstream.node.storage.cleaner.errors import UncleanableError
from millstream.node.storage.cleaner.log_cleaner import LogCleaner
from millstream.node.storage.cleaner.plan import CleanerSettings, CleaningAbortedError, Throttle, cleanable
from millstream.node.storage.file_formats import decode_offsets
from millstream.node.storage.log.partition_log import PartitionLog
from tests.unit.node.storage.cleaner.compacted import (
    NOW,
    append,
    batches,
    begin_cleaning,
    clean,
    config,
    offload,
    records,
)
from tests.unit.node.storage.conftest import PARTITION, TOPIC_ID, Node
from tests.waiting import TIMEOUT_SECONDS

T = TypeVar("T")


def fill(log: PartitionLog, count: int = 40) -> None:
    for number in range(count):
        append(log, (b"%d" % (number % 3), b"x" * 50))
    log.roll(0)


def at_call(number: int, act: Callable[[], object]) -> Offload:
    """Threads in which something happens to the log before the nth piece of work."""
    calls = 0

    def run(function: Callable[[], T]) -> "asyncio.Future[T]":
        nonlocal calls
        calls += 1
        if calls == number:
            act()
        return offload(function)

    return run


# What may be cleaned


def test_the_dirty_ratio_grows_with_new_records(node: Node) -> None:
    log = node.log(config())
    fill(log, 20)
    found = cleanable(log, NOW)
    assert (found.dirty_start, found.end_offset, found.clean_bytes) == (0, 20, 0)
    assert found.ratio == 1
    clean(log)
    assert cleanable(log, NOW).ratio == 0
    fill(log, 20)
    assert 0.5 < cleanable(log, NOW).ratio < 1


def test_nothing_above_the_high_watermark(node: Node) -> None:
    log = node.log(config())
    fill(log)
    second = log.segments.bases[2]
    log.high_watermark = second + 1
    assert cleanable(log, NOW).end_offset == second


def test_young_records_are_not_cleaned(node: Node) -> None:
    log = node.log(config(min_compaction_lag_ms=1000))
    append(log, (b"a", b"1"), timestamp=NOW - 5000)
    log.roll(0)
    append(log, (b"a", b"2"), timestamp=NOW - 500)
    log.roll(0)
    append(log, (b"a", b"3"), timestamp=NOW - 5000)
    log.roll(0)
    assert cleanable(log, NOW).end_offset == 1
    assert cleanable(log, NOW + 1000).end_offset == 3


def test_old_dirty_records_make_a_log_overdue(node: Node) -> None:
    log = node.log(config(max_compaction_lag_ms=1000, segment_bytes=10_000))
    append(log, (b"a", b"1"), timestamp=NOW - 900)
    assert log.config.roll_ms == 1000
    log.roll(0)
    assert not cleanable(log, NOW).is_overdue
    assert cleanable(log, NOW + 101).is_overdue


def test_a_truncated_log_is_dirty_from_there(node: Node) -> None:
    log = node.log(config())
    fill(log, 20)
    clean(log)
    log.truncate_to(19)
    assert log.cleaned_offset == 19
    log.restart_at(100, NOW)
    assert log.cleaned_offset == 100


def test_the_cleaned_offset_is_checkpointed(node: Node) -> None:
    log = node.log(config())
    fill(log, 20)
    clean(log)
    node.restart(clean=True)
    text = (Path(node.root) / "cleaner-offset-checkpoint").read_bytes()
    assert decode_offsets(text) == {PARTITION: 20}
    log = node.log(config())
    assert log.cleaned_offset == 20
    log.truncate_to(10)
    for job in node.directory.maintenance(NOW):
        job.done(job.run())
    assert decode_offsets((Path(node.root) / "cleaner-offset-checkpoint").read_bytes())[PARTITION] <= 10


# What a pass meets


def test_a_reader_in_the_middle_goes_on(node: Node) -> None:
    log = node.log(config())
    fill(log)
    before = batches(log)
    slices = [log.read(base, 300, up_to=40, at_least_one=True) for base in log.segments.bases[:-1]]
    node.disk.cold = True
    cold = [log.read(base + 1, 300, up_to=40, at_least_one=True) for base in log.segments.bases[:-1]]
    node.disk.cold = False
    contents = [piece.read() for piece in slices if piece.ready]
    clean(log)
    assert [piece.read() for piece in slices if piece.ready] == contents
    for piece in cold:
        piece.prepare()  # finds what is left in the cleaned segments
        assert piece.length
    assert len(batches(log)) < len(before)


def test_a_search_by_time_that_began_before(node: Node) -> None:
    log = node.log(config())
    for number in range(40):
        append(log, (b"%d" % (number % 3), b"x" * 50), timestamp=NOW + number)
    log.roll(0)
    search = log.time_search()
    clean(log)
    found = search.offset_by_timestamp(NOW + 10)
    assert found is not None
    assert found.offset == 37
    greatest = search.max_timestamp_offset()
    assert greatest is not None
    assert greatest.offset == 39
    assert log.time_search().offset_by_timestamp(NOW) == found


@pytest.mark.parametrize("call", range(1, 12))
@pytest.mark.parametrize("event", ["truncation", "retention", "unwanted", "restart", "failure"])
def test_what_happens_to_the_log_ends_a_pass(node: Node, event: str, call: int) -> None:
    log = node.log(config(segment_bytes=600))
    fill(log, 30)
    wanted = True

    def act() -> None:
        nonlocal wanted
        if event == "truncation":
            log.truncate_to(12)
        elif event == "retention":
            log.drop_segments(2).run()
        elif event == "restart":
            log.restart_at(500, NOW)
        elif event == "failure":
            log.fail("for the test")
        else:
            wanted = False

    cleaning = begin_cleaning(log, run=at_call(call, act), is_wanted=lambda log: wanted)
    try:
        asyncio.run(cleaning.run())
    except CleaningAbortedError:
        pass
    left = records(log)
    assert all(offset >= log.log_start_offset for offset, _, _ in left) or event == "retention"
    assert not list(node.path.glob("*.cleaned"))
    end = log.log_end_offset
    node.restart(clean=False)
    log = node.log(config(segment_bytes=600))
    assert (records(log), log.log_end_offset) == (left, end)


def test_a_damaged_batch_makes_a_log_uncleanable(node: Node) -> None:
    log = node.log(config())
    fill(log)
    path = node.file(log.segments.bases[2])
    content = bytearray(path.read_bytes())
    content[70] ^= 1
    path.write_bytes(content)
    with pytest.raises(UncleanableError, match="damaged"):
        clean(log)
    assert not list(node.path.glob("*.cleaned"))


def test_no_room_on_the_disk(node: Node) -> None:
    log = node.log(config())
    for number in range(40):
        append(log, (b"%d" % number, b"x" * 50))
    log.roll(0)
    append(log, (b"1", b"y"))
    log.roll(0)
    before = records(log)
    node.disk.room = 300
    with pytest.raises(OSError, match="space"):
        clean(log)
    node.disk.room = None
    assert records(log) == before
    assert not list(node.path.glob("*.cleaned"))
    clean(log)
    assert len(records(log)) == 40


def test_a_follower_takes_the_gaps(make_node: Callable[[str], Node], tmp_path: Path) -> None:
    leader = make_node(str(tmp_path / "leader"))
    follower = make_node(str(tmp_path / "follower"))
    try:
        log = leader.log(config())
        fill(log)
        append(log, (b"0", b"new"))
        clean(log)
        copy = follower.log(config())
        while copy.log_end_offset < log.log_end_offset:
            piece = log.read(copy.log_end_offset, 200, up_to=log.log_end_offset, at_least_one=True)
            piece.prepare()
            copy.append_as_follower(piece.read(), now_ms=NOW)
        assert batches(copy) == batches(log)
        follower.restart(clean=False)
        copy = follower.log(config())
        assert batches(copy) == batches(log)
        copy.roll(0)
        clean(copy)
        assert [key for _, key, _ in records(copy)] == [b"1", b"2", b"0"]
    finally:
        leader.kill()
        follower.kill()


# The cleaner


class Cleaner:
    """A cleaner on the running loop, with the clock in our hands."""

    def __init__(self, node: Node, settings: CleanerSettings) -> None:
        self.now_ms = NOW
        self.settings = settings
        self.cleaner = LogCleaner(
            node.directory,
            lambda: self.settings,
            offload=offload,
            loop=asyncio.get_running_loop(),
            now_ms=lambda: self.now_ms,
        )

    async def run(self) -> None:
        self.cleaner.tick()
        while self.cleaner._tasks:
            await asyncio.gather(*self.cleaner._tasks)
            await asyncio.sleep(0)  # from Python 3.12 on, gather does not wait for callbacks of tasks that are done


def other_log(node: Node, number: int) -> PartitionLog:
    return node.directory.create(TopicPartition(TopicName("other"), number), UUID(int=number + 1), config(), NOW)


def test_the_filthiest_first_and_the_damaged_do_not_stop_the_others(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "millstream.cleaner")
    damaged, half, dirty = node.log(config()), other_log(node, 1), other_log(node, 2)
    fill(damaged)
    path = node.file(0)
    content = bytearray(path.read_bytes())
    content[70] ^= 1
    path.write_bytes(content)
    fill(half)
    clean(half)
    fill(half, 20)
    fill(dirty)

    async def run() -> LogCleaner:
        cleaner = Cleaner(node, CleanerSettings())
        await cleaner.run()
        return cleaner.cleaner

    cleaner = asyncio.run(run())
    cleaned = [record.getMessage().split()[1] for record in caplog.records if "log_cleaned" in record.getMessage()]
    assert cleaned == ["partition=other-2", "partition=other-1"]
    assert "log_uncleanable partition=orders-0" in caplog.text
    progress = {each.partition: each for each in cleaner.progress()}
    assert "damaged" in progress[PARTITION].uncleanable
    assert progress[dirty.topic_partition].ratio == 0
    assert progress[dirty.topic_partition].first_dirty_offset == 40


def test_a_log_is_cleaned_after_the_backoff_above_the_ratio(node: Node) -> None:
    log = node.log(config(min_cleanable_dirty_ratio=0.6))
    fill(log)

    async def run() -> None:
        cleaner = Cleaner(node, CleanerSettings(backoff_ms=1000))
        await cleaner.run()
        assert log.cleaned_offset == 40
        fill(log, 3)
        log.roll(0)
        cleaner.now_ms += 1000
        await cleaner.run()
        assert log.cleaned_offset == 40  # not dirty enough
        fill(log)
        await cleaner.run()
        assert log.cleaned_offset == 40  # looked a moment ago
        cleaner.now_ms += 1000
        await cleaner.run()
        assert log.cleaned_offset == 83

    asyncio.run(run())


def test_a_shorter_backoff_counts_at_once_and_needs_no_tick(node: Node) -> None:
    async def run() -> None:
        cleaner = Cleaner(node, CleanerSettings(backoff_ms=60_000))
        await cleaner.run()
        log = node.log(config())
        fill(log)
        cleaner.now_ms += 100
        await cleaner.run()
        assert log.cleaned_offset == 0  # looked a moment ago
        cleaner.settings = CleanerSettings(backoff_ms=20)
        await cleaner.run()
        assert log.cleaned_offset == 40
        fill(log)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while log.cleaned_offset == 40:
                cleaner.now_ms += 20
                await asyncio.sleep(0.005)
        cleaner.cleaner.close()

    asyncio.run(run())


def test_a_cleaner_that_is_off_or_closed_does_nothing(node: Node) -> None:
    log = node.log(config())
    fill(log)

    async def run() -> None:
        await Cleaner(node, CleanerSettings(enable=False)).run()
        cleaner = Cleaner(node, CleanerSettings())
        cleaner.cleaner.close()
        await cleaner.run()
        cleaner = Cleaner(node, CleanerSettings())
        cleaner.cleaner.tick()
        cleaner.cleaner.close()
        await cleaner.run()
        assert log.cleaned_offset == 0

    asyncio.run(run())


def test_a_topic_deleted_and_made_again_during_a_pass(node: Node) -> None:
    log = node.log(config())
    fill(log)

    async def run() -> PartitionLog:
        cleaner = Cleaner(node, CleanerSettings())
        made: list[PartitionLog] = []

        def replace() -> None:
            node.directory.delete(PARTITION).run()
            made.append(node.directory.create(PARTITION, TOPIC_ID, config(), NOW))
            append(made[0], (b"new", b"1"))

        cleaner.cleaner._offload = at_call(4, replace)
        await cleaner.run()
        return made[0]

    new = asyncio.run(run())
    assert records(new) == [(0, b"new", b"1")]
    assert not [path for path in node.path.iterdir() if path.suffix in (".cleaned", ".swap")]


def test_the_throttle_delays_reads_and_writes() -> None:
    throttle = Throttle()
    assert throttle.delay_seconds(1 << 30, 5.0) == 0
    throttle.bytes_per_second = 1000.0
    assert throttle.piece_bytes(1 << 20) == 300
    assert throttle.delay_seconds(500, 10.0) == pytest.approx(0.5)
    assert throttle.delay_seconds(500, 10.2) == pytest.approx(0.8)
    assert throttle.delay_seconds(0, 20.0) == 0


def test_settings_are_shared_by_the_threads() -> None:
    settings = CleanerSettings(threads=4, dedupe_buffer_bytes=1 << 20, load_factor=0.5, io_buffer_bytes=1 << 20)
    assert settings.map_bytes == 1 << 17
    assert settings.block_bytes == 1 << 17


def test_a_compacted_log_may_have_retention(node: Node) -> None:
    """Retention goes by the times of what is left."""
    policy = frozenset({"compact", "delete"})
    settings = config(cleanup_policy=policy, retention_ms=1000)
    log = node.log(settings)
    append(log, (b"a", b"1"), (b"old", b"1"), timestamp=NOW - 5000)
    append(log, (b"a", b"2"), timestamp=NOW - 4000)
    log.roll(0)
    clean(log)
    append(log, (b"a", b"3"), timestamp=NOW)
    log.roll(0)
    clean(log)
    assert records(log) == [(1, b"old", b"1"), (3, b"a", b"3")]
    assert len(log.segments) == 2  # both cleaned ones became one, which is as young as its youngest record
    for now_ms, left in ((NOW + 1000, [1, 3]), (NOW + 1001, [])):
        for job in node.directory.maintenance(now_ms):
            job.done(job.run())
        assert [offset for offset, _, _ in records(log)] == left
    assert (log.log_start_offset, log.log_end_offset) == (4, 4)
    append(log, (b"a", b"4"), timestamp=NOW)
    log.roll(0)
    clean(log)
    assert records(log) == [(4, b"a", b"4")]
