import pytest

from millstream.config.topic_config import LogConfig
from millstream.node.storage.log.partition_log import PartitionLog
from tests.unit.node.storage.batches import NOW, batch
from tests.unit.node.storage.conftest import Node
from tests.unit.node.storage.test_partition_log import append, read, read_all

SIZE = len(batch(b"value"))


def run(node: Node, now_ms: int) -> None:
    for job in node.directory.maintenance(now_ms):
        job.done(job.run())


def fill(log: PartitionLog, count: int, step_ms: int = 0) -> None:
    for at in range(count):
        append(log, b"value", timestamps=[NOW + at * step_ms])


def test_by_time_whole_segments_oldest_first(node: Node) -> None:
    log = node.log(LogConfig(segment_bytes=5 * SIZE, retention_ms=1000))
    fill(log, 23, step_ms=100)
    assert log.segments.bases == [0, 5, 10, 15, 20]
    run(node, NOW + 400 + 1000)
    assert log.log_start_offset == 0, "exactly as old as allowed"
    run(node, NOW + 400 + 1001)
    assert log.log_start_offset == 5
    run(node, NOW + 1500 + 1001)
    assert log.log_start_offset == 15
    assert read_all(log) == list(range(15, 23))
    assert sorted(path.name for path in node.path.glob("*.log")) == [f"{base:020d}.log" for base in (15, 20)]
    assert not list(node.path.glob("*.deleted"))
    assert not node.file(5, ".snapshot").exists()
    assert node.file(20, ".snapshot").exists()


def test_an_expired_active_segment_is_rolled_and_removed(node: Node) -> None:
    log = node.log(LogConfig(retention_ms=1000))
    fill(log, 5)
    run(node, NOW + 1001)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (5, 5, 0)
    assert log.segments.bases == [5]
    assert append(log, timestamps=[NOW + 1001]) == 5
    run(node, NOW + 1001)
    assert log.log_start_offset == 5
    node.restart(clean=False)
    assert (node.log().log_start_offset, node.log().log_end_offset) == (5, 6)


def test_without_retention_nothing_is_deleted(node: Node) -> None:
    log = node.log(LogConfig(retention_ms=-1, segment_bytes=5 * SIZE))
    fill(log, 20)
    run(node, NOW + 10**12)
    assert log.log_start_offset == 0


def test_retention_by_size_keeps_at_least_the_limit(node: Node) -> None:
    log = node.log(LogConfig(segment_bytes=5 * SIZE, retention_bytes=12 * SIZE))
    fill(log, 23)
    run(node, NOW)
    assert log.log_start_offset == 10, "13 batches are left: taking one more segment would leave less than the limit"
    log.config = LogConfig(segment_bytes=5 * SIZE, retention_bytes=0)
    run(node, NOW)
    assert (log.log_start_offset, log.size_bytes) == (23, 0)


def test_compacted_topics_are_not_aged(node: Node) -> None:
    log = node.log(LogConfig(segment_bytes=5 * SIZE, retention_ms=1, cleanup_policy=frozenset({"compact"})))
    fill(log, 20)
    run(node, NOW + 10**9)
    assert log.log_start_offset == 0


def test_segments_before_the_start_go(node: Node) -> None:
    log = node.log(LogConfig(segment_bytes=5 * SIZE))
    fill(log, 23)
    log.delete_records_before(12)
    run(node, NOW)
    assert log.segments.bases == [10, 15, 20]
    assert log.log_start_offset == 12
    node.restart(clean=False)
    assert node.log().log_start_offset in (10, 12), "the checkpoint of the start may not have been written"


def test_nothing_past_the_high_watermark(node: Node) -> None:
    log = node.log(LogConfig(segment_bytes=5 * SIZE, retention_ms=1000))
    fill(log, 23)
    log.high_watermark = 12
    run(node, NOW + 10**9)
    assert log.log_start_offset == 10


def test_without_timestamps_the_file_tells(node: Node) -> None:
    log = node.log(LogConfig(segment_bytes=5 * SIZE, retention_ms=1000))
    for _ in range(12):
        append(log, b"value", timestamps=[-1])
    run(node, NOW)
    assert log.log_start_offset == 0, "written just now by the file's clock, whatever ours says"
    run(node, 10**14)
    assert log.log_start_offset == 12


def test_idle_segments_roll_by_the_clock(node: Node) -> None:
    log = node.log(LogConfig(segment_ms=1000))
    append(log, timestamps=[NOW - 10**6])
    run(node, NOW + 1000)
    assert len(log.segments) == 1
    run(node, NOW + 1001)
    assert log.segments.bases == [0, 1]
    run(node, NOW + 10**6)
    assert log.segments.bases == [0, 1], "an empty segment does not roll"


def test_reading_while_segments_go(node: Node) -> None:
    log = node.log(LogConfig(segment_bytes=5 * SIZE, retention_bytes=5 * SIZE))
    fill(log, 30)
    reader = read(log, 0)
    data = reader.read()
    run(node, NOW)
    assert log.log_start_offset > 0
    assert reader.read() == data
    append(log)


def test_a_log_is_flushed_after_flush_ms(node: Node) -> None:
    log = node.log(LogConfig(flush_ms=1000))
    append(log)
    run(node, NOW + 999)
    assert log.recovery_point == 0
    run(node, NOW + 1000)
    assert log.recovery_point == 1


def test_sealed_segments_are_flushed(node: Node) -> None:
    log = node.log(LogConfig(segment_bytes=5 * SIZE))
    fill(log, 7)
    run(node, NOW)
    assert log.recovery_point >= 5


def test_a_full_disk_is_freed(node: Node) -> None:
    """Nothing can be created: what needs no room still goes."""
    log = node.log(LogConfig(segment_bytes=5 * SIZE, retention_ms=1000))
    fill(log, 23)
    node.disk.room = 0
    run(node, NOW + 10**9)
    assert log.segments.bases == [20]
    assert [path.name for path in node.path.glob("*.log*")] == [f"{20:020d}.log"]
    node.disk.room = None
    run(node, NOW + 10**9)
    assert (log.log_start_offset, log.size_bytes) == (23, 0)


def test_a_roll_without_room_for_snapshot_and_indexes(node: Node) -> None:
    log = node.log(LogConfig(segment_bytes=5 * SIZE, retention_ms=-1, index_interval_bytes=0))
    fill(log, 5, step_ms=1)
    node.disk.broken = True
    log.roll(NOW)
    node.disk.broken = False
    assert log.segments.bases == [0, 5]
    assert not node.file(0, ".timeindex").exists(), "part of one would make the segment look older than it is"
    assert read_all(log) == list(range(5)), "the indexes are still in memory"
    assert log.segments[0].greatest_timestamp() == NOW + 4
    fill(log, 6)
    assert node.file(0, ".index").stat().st_size == 4 * 8, "written with the next roll"
    node.restart(clean=False)
    assert read_all(node.log()) == list(range(11))


@pytest.mark.parametrize("clean", [True, False])
def test_a_time_index_that_is_right_is_not_made_again(
    node: Node, caplog: pytest.LogCaptureFixture, clean: bool
) -> None:
    """To make it, all batches of a segment are read, and retention looks at each segment after a start."""
    config = LogConfig(segment_bytes=5 * SIZE, retention_ms=1000, index_interval_bytes=0)
    fill(node.log(config), 23, step_ms=1)
    run(node, NOW)
    node.restart(clean=clean)
    log = node.log(config)
    run(node, NOW + 22)
    assert "index_rebuilt" not in caplog.text
    assert [segment.greatest_timestamp() for segment in list(log.segments)[:-1]] == [NOW + at for at in (4, 9, 14, 19)]


@pytest.mark.parametrize("entries", [b"", bytes(12), "all but the last", "timestamp of another batch"])
def test_a_time_index_that_would_make_a_segment_too_old(node: Node, entries: bytes | str) -> None:
    """A power cut may leave zeros in a file, or less of it. Retention must not delete the segment for that."""
    config = LogConfig(segment_bytes=5 * SIZE, retention_ms=1000, index_interval_bytes=0)
    fill(node.log(config), 23, step_ms=300)
    run(node, NOW)
    node.stop()
    file = node.file(0, ".timeindex")
    whole = file.read_bytes()
    if entries == "all but the last":
        entries = whole[:-12]
    elif entries == "timestamp of another batch":
        entries = (NOW + 1).to_bytes(8, "big") + whole[-4:]
    assert isinstance(entries, bytes)
    file.write_bytes(entries)
    node.start()
    log = node.log(config)
    run(node, NOW + 4 * 300 + 1000)
    assert log.log_start_offset == 0
    assert file.read_bytes()[-12:] == whole[-12:]
    run(node, NOW + 4 * 300 + 1001)
    assert log.log_start_offset == 5
