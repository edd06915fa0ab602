import tempfile
import threading
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.config.topic_config import LogConfig
from millstream.formats.records.compression import Codec
from millstream.formats.records.opening import OpeningLimits
from tests.examples import examples
from tests.unit.node.storage.batches import NOW, batch
from tests.unit.node.storage.conftest import Node
from tests.unit.node.storage.faulty_disk import FaultyDisk
from tests.unit.node.storage.test_partition_log import append


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=4), min_size=1, max_size=25),
    st.sampled_from(list(Codec)),
    st.sampled_from([200, 700, 100_000]),
    st.booleans(),
    st.integers(0, 30),
)
def test_search_by_time_agrees_with_a_list(
    batches: list[list[int]], codec: Codec, segment_bytes: int, restart: bool, start: int
) -> None:
    with tempfile.TemporaryDirectory() as root:
        node = Node(FaultyDisk(), str(Path(root) / "data"))
        config = LogConfig(segment_bytes=segment_bytes, index_interval_bytes=50)
        log = node.log(config)
        records: list[int] = []
        for times in batches:
            append(log, *(b"v" for _ in times), timestamps=[NOW + time for time in times], codec=codec)
            records += times
        if restart:
            node.restart(clean=False)
            log = node.log(config)
        start = min(start, len(records))
        log.delete_records_before(start)
        for wanted in range(-1, 52):
            expected = next(
                ((offset, NOW + time, 0) for offset, time in enumerate(records) if time >= wanted and offset >= start),
                None,
            )
            assert log.time_search().offset_by_timestamp(NOW + wanted) == expected
        if not start:
            greatest = max(records)
            assert log.time_search().max_timestamp_offset() == (records.index(greatest), NOW + greatest, 0)
        node.kill()


def test_an_empty_log_has_no_times(node: Node) -> None:
    assert node.log().time_search().offset_by_timestamp(0) is None
    assert node.log().time_search().max_timestamp_offset() is None


def test_records_without_timestamps_are_not_found_by_time(node: Node) -> None:
    log = node.log()
    log.append(batch(timestamps=[-1]), leader_epoch=0, now_ms=NOW)
    assert log.time_search().offset_by_timestamp(0) is None
    assert log.time_search().max_timestamp_offset() is None


def test_a_search_goes_on_while_segments_roll_and_go(node: Node) -> None:
    log = node.log(LogConfig(segment_bytes=400, index_interval_bytes=100))
    for at in range(40):
        append(log, timestamps=[NOW + at])
    search = log.time_search()
    for at in range(40, 60):
        append(log, timestamps=[NOW + at])
    assert search.offset_by_timestamp(NOW + 39) == (39, NOW + 39, 0), "the segment has been sealed since"
    assert search.offset_by_timestamp(NOW + 45) is None, "not there yet when the search was made"
    assert search.max_timestamp_offset() == (39, NOW + 39, 0)
    first = log.segments[3].base_offset
    job = log.drop_segments(3)
    job.done(job.run())
    assert search.offset_by_timestamp(NOW) == (first, NOW + first, 0)
    assert not list(node.path.glob(f"{0:020d}.*")), "no index is made for what is gone"


def test_searches_in_threads_beside_appends(node: Node) -> None:
    log = node.log(LogConfig(segment_bytes=2000, index_interval_bytes=50))
    append(log, timestamps=[NOW])
    errors: list[BaseException] = []
    wanted = threading.Semaphore(0)
    searches: list[Any] = []

    def search() -> None:
        try:
            while wanted.acquire() and searches:
                at, prepared = searches.pop()
                found = prepared.offset_by_timestamp(NOW + at)
                assert found is None or found.timestamp >= NOW + at
                greatest = prepared.max_timestamp_offset()
                assert greatest is None or greatest.timestamp == NOW + at
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=search)
    thread.start()
    for at in range(1, 800):
        append(log, timestamps=[NOW + at])
        searches.append((at, log.time_search()))
        wanted.release()
        if at % 100 == 0 and len(log.segments) > 4:
            log.drop_segments(len(log.segments) - 4).run()
    for _ in range(801):
        wanted.release()
    thread.join(60)
    assert not errors


def test_a_wrong_index_of_the_active_segment_is_left_to_the_loop(node: Node) -> None:
    log = node.log(LogConfig(index_interval_bytes=0))
    for at in range(20):
        append(log, timestamps=[NOW + at])
    active = log.segments.active
    index = active.index
    assert index is not None
    position = index.positions[9]
    index.positions[9] += 1  # as a flipped bit in a file that was loaded
    offset = active.base_offset + index.offsets[9] + 1
    size = index.positions[11] - index.positions[10]
    index.positions[10] += 1
    assert active.find(offset, in_thread=True) == position + size
    assert active.index is index, "a thread has no business with it"
    assert active.find(offset) == position + size
    assert active.index is not index and active.index is not None
    assert active.find(offset - 1) == position


def test_a_batch_that_is_more_than_the_limits_is_found_as_a_whole(node: Node) -> None:
    log = node.log()
    append(log, b"v", b"v", timestamps=[NOW, NOW + 1])
    append(log, b"v", bytes(2 << 20), b"v", timestamps=[NOW + 2, NOW + 9, NOW + 5], codec=Codec.ZSTD)
    for limits in (OpeningLimits(1 << 20, 1000), OpeningLimits(8 << 20, 2)):
        search = log.time_search(limits)
        assert search.offset_by_timestamp(NOW + 1) == (1, NOW + 1, 0)
        assert search.offset_by_timestamp(NOW + 4) == (2, NOW + 9, 0)
        assert search.max_timestamp_offset() == (4, NOW + 9, 0)
    log.delete_records_before(4)
    assert log.time_search(OpeningLimits(1 << 20, 1000)).offset_by_timestamp(NOW + 4) == (4, NOW + 9, 0)
    assert log.time_search().offset_by_timestamp(NOW + 4) == (4, NOW + 5, 0)


def test_few_batches_are_opened_that_have_not_what_their_headers_say(node: Node) -> None:
    log = node.log()
    for _ in range(20):
        lying = batch(timestamps=[NOW], max_timestamp=NOW + 100)
        log.append(lying, leader_epoch=0, now_ms=NOW)
    assert log.time_search().offset_by_timestamp(NOW + 50) == (8, NOW + 100, 0)
