import pytest

from millstream.config.topic_config import LogConfig
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import Origin
from millstream.formats.records.batch import iterate_headers, read_header
from millstream.formats.records.compression import Codec
from millstream.formats.records.record import Record, build_batch
from millstream.node.storage.log.log_reader import Slice
from millstream.node.storage.log.partition_log import PartitionLog
from tests.unit.node.storage.batches import NOW, batch
from tests.unit.node.storage.conftest import Node
from tests.unit.node.storage.faulty_disk import FaultyDisk

SMALL_SEGMENTS = LogConfig(segment_bytes=400, index_interval_bytes=100)


def append(log: PartitionLog, *values: bytes, epoch: int = 0, **fields: object) -> int:
    data = batch(*values, **fields)  # type: ignore[arg-type]
    return log.append(data, leader_epoch=epoch, now_ms=NOW).base_offset


def read(
    log: PartitionLog, offset: int = 0, max_bytes: int = 1 << 20, up_to: int | None = None, one: bool = True
) -> Slice:
    found = log.read(offset, max_bytes, up_to=log.log_end_offset if up_to is None else up_to, at_least_one=one)
    found.prepare()
    return found


def offsets(found: Slice) -> list[int]:
    return [header.base_offset for _, header in iterate_headers(found.read())]


def read_all(log: PartitionLog) -> list[int]:
    """Base offsets of all batches, as a consumer meets them."""
    offset, seen = log.log_start_offset, []
    while offset < log.log_end_offset:
        data = read(log, offset).read()
        headers = [header for _, header in iterate_headers(data)]
        assert headers, f"nothing at {offset}"
        seen += [header.base_offset for header in headers]
        offset = headers[-1].last_offset + 1
    return seen


def refused(log: PartitionLog, data: bytearray) -> ErrorCode:
    before = log.log_end_offset, log.size_bytes
    with pytest.raises(KafkaError) as error:
        log.append(data, leader_epoch=0, now_ms=NOW)
    assert (log.log_end_offset, log.size_bytes) == before
    return error.value.code


def test_offsets_and_epoch_are_stamped_outside_the_checksum(node: Node) -> None:
    log = node.log()
    assert append(log, b"a", b"b", b"c") == 0
    sent = batch(b"d", b"e")
    appended = log.append(sent, leader_epoch=7, now_ms=NOW)
    assert (appended.base_offset, appended.last_offset, appended.log_start_offset) == (3, 4, 0)
    assert (appended.log_append_time, appended.duplicate) == (-1, False)
    stored = read(log, 3).read()
    header = read_header(stored)
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (3, 4, 7)
    assert stored[17:] == batch(b"d", b"e")[17:], "everything the checksum covers is as sent"
    assert node.file(0).read_bytes()[-len(stored) :] == stored


def test_a_client_sends_exactly_one_batch(node: Node) -> None:
    log = node.log()
    append(log, b"x", producer_id=5, producer_epoch=0, sequence=0)
    repeated = batch(b"x", producer_id=5, producer_epoch=0, sequence=0)
    assert refused(log, batch(b"new") + repeated) == ErrorCode.INVALID_RECORD, "else the first would be lost unseen"
    assert refused(log, repeated + batch(b"new")) == ErrorCode.INVALID_RECORD
    assert offsets(read(log)) == [0]


def test_read_from_every_offset_at_the_tail_and_far_behind_it(node: Node) -> None:
    log = node.log(LogConfig(index_interval_bytes=200))
    for _ in range(600):
        append(log, b"a", b"b")
    for offset in range(0, log.log_end_offset, 7):
        assert offsets(read(log, offset))[0] == offset - offset % 2
    assert read(log, log.log_end_offset).length == 0
    for offset in (-1, log.log_end_offset + 1):
        with pytest.raises(KafkaError) as error:
            read(log, offset)
        assert error.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_read_stops_at_the_bound(node: Node) -> None:
    log = node.log()
    for _ in range(400):
        append(log, b"a")
    for up_to in (1, 5, 130, 399):
        assert offsets(read(log, 0, up_to=up_to)) == list(range(up_to))
        assert offsets(read(log, up_to - 1, up_to=up_to)) == [up_to - 1]
    assert read(log, 5, up_to=5).length == 0


def test_max_bytes_and_the_first_batch(node: Node) -> None:
    log = node.log(LogConfig(index_interval_bytes=1000))
    for _ in range(50):
        append(log, b"v" * 200)
    size = len(batch(b"v" * 200))
    assert read(log, 0, size - 1, one=False).length == 0
    assert read(log, 0, size - 1, one=True).length == size
    assert read(log, 0, 0, one=True).length == size
    limited = read(log, 0, 10 * size)
    assert limited.length <= 10 * size
    assert offsets(limited)[:5] == [0, 1, 2, 3, 4]


def test_segments_roll_by_size_and_are_read_across(node: Node) -> None:
    log = node.log(SMALL_SEGMENTS)
    for at in range(40):
        assert append(log, b"v%d" % at) == at
    assert len(log.segments) > 5
    assert all(segment.size <= 400 for segment in log.segments)
    assert read_all(log) == list(range(40))


def test_segments_roll_by_time_between_first_and_last_batch(node: Node) -> None:
    log = node.log(LogConfig(segment_ms=1000))
    append(log, timestamps=[NOW])
    append(log, timestamps=[NOW + 1000])
    assert len(log.segments) == 1
    append(log, timestamps=[NOW + 1001])
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_segments_without_timestamps_roll_by_the_clock(node: Node) -> None:
    log = node.log(LogConfig(segment_ms=1000))
    for now_ms in (NOW, NOW + 1000, NOW + 1001):
        log.append(batch(timestamps=[-1]), leader_epoch=0, now_ms=now_ms)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_segments_roll_when_an_index_is_full(node: Node) -> None:
    log = node.log(LogConfig(segment_index_bytes=40, index_interval_bytes=0))
    for at in range(20):
        append(log, timestamps=[NOW + at])
    assert len(log.segments) > 4
    assert read_all(log) == list(range(20))


def test_segments_roll_when_offsets_no_longer_fit(node: Node) -> None:
    log = node.log()
    append(log)
    far = batch(base_offset=(1 << 31) + 5, leader_epoch=0)
    log.append_as_follower(far, now_ms=NOW)
    farther = batch(base_offset=(1 << 40), leader_epoch=0)
    log.append_as_follower(farther, now_ms=NOW)
    assert [segment.base_offset for segment in log.segments] == [0, 1 << 40] or len(log.segments) == 3
    assert offsets(read(log, 1)) == [(1 << 31) + 5]
    assert offsets(read(log, 1 << 33)) == [1 << 40]
    node.restart(clean=True)
    assert node.log().log_end_offset == (1 << 40) + 1


def test_wrong_batches_are_refused(node: Node) -> None:
    log = node.log(LogConfig(max_message_bytes=500))
    append(log)
    assert refused(log, batch(b"v" * 600)) == ErrorCode.MESSAGE_TOO_LARGE
    flipped = batch(b"value")
    flipped[-1] ^= 1
    assert refused(log, flipped) == ErrorCode.CORRUPT_MESSAGE
    assert refused(log, bytearray(b"x" * 30)) == ErrorCode.CORRUPT_MESSAGE
    assert refused(log, bytearray()) == ErrorCode.CORRUPT_MESSAGE
    assert refused(log, batch() + b"junk") == ErrorCode.CORRUPT_MESSAGE
    assert refused(log, batch()[:-1]) == ErrorCode.CORRUPT_MESSAGE
    old = batch()
    old[16] = 1
    assert refused(log, old) == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    future = batch()
    future[16] = 3
    assert refused(log, future) == ErrorCode.CORRUPT_MESSAGE
    assert refused(log, batch(attributes=0x20)) == ErrorCode.INVALID_RECORD
    assert refused(log, batch(count=2)) == ErrorCode.INVALID_RECORD
    assert refused(log, batch(count=0, delta=-1)) == ErrorCode.INVALID_RECORD
    assert refused(log, batch(producer_id=5, producer_epoch=0, sequence=-1)) == ErrorCode.INVALID_RECORD
    assert refused(log, batch(attributes=0x08)) == ErrorCode.INVALID_TIMESTAMP
    assert refused(log, batch(attributes=0x05)) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert refused(log, batch(timestamps=[NOW + 3_600_001])) == ErrorCode.INVALID_TIMESTAMP
    log.config = LogConfig(message_timestamp_before_max_ms=1000)
    assert refused(log, batch(timestamps=[NOW - 1001])) == ErrorCode.INVALID_TIMESTAMP
    append(log, timestamps=[-1])
    log.config = LogConfig(segment_bytes=100)
    assert refused(log, batch(b"v" * 200)) == ErrorCode.RECORD_LIST_TOO_LARGE
    assert offsets(read(log)) == [0, 1]


def test_log_append_time_replaces_the_timestamps(node: Node) -> None:
    log = node.log(LogConfig(message_timestamp_type="LogAppendTime"))
    appended = log.append(batch(b"a", timestamps=[NOW - 10**9]), leader_epoch=0, now_ms=NOW)
    assert appended.log_append_time == NOW
    stored = read_header(read(log).read())
    assert stored.has_log_append_time
    assert stored.max_timestamp == NOW
    assert log.time_search().offset_by_timestamp(NOW) == (0, NOW, 0)


@pytest.mark.parametrize("wanted", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("sent", list(Codec))
def test_batches_get_the_codec_of_the_topic(node: Node, wanted: str, sent: Codec) -> None:
    log = node.log(LogConfig(compression_type=wanted))
    values = [b"value %d" % at for at in range(100)]
    append(log, *values, codec=sent, timestamps=[NOW + at for at in range(100)])
    header = read_header(read(log).read())
    assert header.codec == {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}[wanted]
    assert log.time_search().offset_by_timestamp(NOW + 42) == (42, NOW + 42, 0)


def test_records_that_cannot_be_recoded(node: Node) -> None:
    log = node.log(LogConfig(compression_type="zstd"))
    assert refused(log, batch(b"plain", attributes=1)) == ErrorCode.CORRUPT_MESSAGE


def test_full_disk_refuses_and_recovers(node: Node) -> None:
    log = node.log()
    append(log, b"kept")
    node.disk.room = 30
    assert refused(log, batch(b"v" * 100)) == ErrorCode.KAFKA_STORAGE_ERROR
    assert node.file(0).stat().st_size == log.size_bytes
    assert offsets(read(log)) == [0], "reads go on"
    node.disk.room = None
    assert append(log, b"after") == 1
    node.restart(clean=False)
    assert read_all(node.log()) == [0, 1]


def torn(log: PartitionLog, disk: FaultyDisk) -> None:
    """A long batch of which the disk keeps a part, and which it does not remove."""
    disk.torn_at = 300
    with pytest.raises(KafkaError) as error:
        append(log, bytes(500))
    assert error.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    disk.torn_at = None


def test_a_clean_stop_removes_what_a_torn_write_left(node: Node, disk: FaultyDisk) -> None:
    log = node.log()
    append(log, b"a")
    size = log.size_bytes
    torn(log, disk)
    assert node.file(0).stat().st_size == size + 300
    node.stop()
    assert node.file(0).stat().st_size == size
    node.start()
    assert node.directory.started_clean
    assert read_all(node.log()) == [0]


def test_a_stop_that_cannot_remove_it_is_not_clean(node: Node, disk: FaultyDisk) -> None:
    log = node.log()
    append(log, b"a")
    torn(log, disk)
    disk.torn_at = 0
    node.stop()
    disk.torn_at = None
    node.start()
    assert not node.directory.started_clean
    assert read_all(node.log()) == [0]


def test_a_shorter_batch_after_a_torn_write_has_nothing_behind_it(node: Node, disk: FaultyDisk) -> None:
    log = node.log()
    append(log, b"a")
    torn(log, disk)
    append(log, b"b")
    assert node.file(0).stat().st_size == log.size_bytes


def test_a_sealed_segment_ends_with_its_last_batch_after_a_torn_write(node: Node, disk: FaultyDisk) -> None:
    log = node.log()
    append(log, b"a")
    size = log.size_bytes
    torn(log, disk)
    disk.torn_at = 0
    with pytest.raises(OSError):
        log.roll(NOW)
    disk.torn_at = None
    log.roll(NOW)
    assert node.file(0).stat().st_size == size
    append(log, b"b")
    node.restart(clean=True)
    assert read_all(node.log()) == [0, 1]


def test_full_disk_at_a_roll(node: Node) -> None:
    log = node.log(SMALL_SEGMENTS)
    while len(log.segments) < 2 or log.segments.active.size < 300:
        append(log, b"v" * 30)
    end = log.log_end_offset
    node.disk.room = 0
    assert refused(log, batch(b"v" * 100)) == ErrorCode.KAFKA_STORAGE_ERROR
    node.disk.room = None
    assert append(log, b"v" * 100) == end
    assert read_all(log) == list(range(end + 1))


def test_io_error_is_a_storage_error(node: Node) -> None:
    log = node.log()
    append(log)
    node.disk.broken = True
    assert refused(log, batch()) == ErrorCode.KAFKA_STORAGE_ERROR
    node.disk.broken = False
    assert append(log) == 1


def test_failed_fsync_stops_writes_until_reopened(node: Node) -> None:
    log = node.log()
    append(log)
    node.disk.sync_fails = True
    job = log.flush_job()
    assert job is not None
    job.done(job.run())
    node.disk.sync_fails = False
    assert log.failure is not None
    assert log.recovery_point == 0
    assert refused(log, batch()) == ErrorCode.KAFKA_STORAGE_ERROR
    again = log.flush_job()
    assert again is not None
    assert isinstance(again.run(), OSError), "who waits for a flush hears of it"
    assert not log.is_flush_due(NOW + 10**9)
    assert offsets(read(log)) == [0]
    node.stop()
    assert not (node.path.parent / ".kafka_cleanshutdown").exists()
    node.start()
    assert append(node.log()) == 1


def test_flush_moves_the_recovery_point(node: Node) -> None:
    log = node.log(SMALL_SEGMENTS)
    for _ in range(20):
        append(log)
    paths = {segment.log.path for segment in log.segments}
    job = log.flush_job()
    assert job is not None
    append(log)
    job.done(job.run())
    assert log.recovery_point == 20
    assert paths <= set(node.disk.synced)
    assert log.flush_job() is not None
    log.truncate_to(15)
    assert log.recovery_point == 15
    assert log.flush_job() is None


def test_flush_under_way_does_not_count_what_was_truncated(node: Node) -> None:
    log = node.log()
    for _ in range(10):
        append(log)
    job = log.flush_job()
    assert job is not None
    result = job.run()
    log.truncate_to(3)
    for _ in range(10):
        append(log)
    job.done(result)
    assert log.recovery_point == 0


def test_flush_due_by_messages(node: Node) -> None:
    log = node.log(LogConfig(flush_messages=3))
    append(log, b"a", b"b")
    assert not log.flush_due
    append(log, b"c")
    assert log.flush_due
    job = log.flush_job()
    assert job is not None
    job.done(job.run())
    assert not log.flush_due


def test_truncate_within_across_and_to_the_start(node: Node) -> None:
    log = node.log(SMALL_SEGMENTS)
    for at in range(30):
        append(log, b"a", b"b", epoch=at // 10)
    assert log.truncate_to(60) == 60
    assert log.truncate_to(45) == 44, "a batch is kept whole or not at all"
    assert read_all(log) == list(range(0, 44, 2))
    assert log.epochs.latest == 2
    assert log.truncate_to(10) == 10
    assert log.epochs.latest == 0
    assert append(log, b"new", epoch=5) == 10
    assert read_all(log) == [*range(0, 10, 2), 10]
    assert log.truncate_to(0) == 0
    assert log.size_bytes == 0
    assert append(log, b"again", epoch=6) == 0
    node.restart(clean=False)
    assert read_all(node.log()) == [0]


def test_delete_records_moves_the_start(node: Node) -> None:
    log = node.log(SMALL_SEGMENTS)
    for _ in range(30):
        append(log)
    log.delete_records_before(17)
    assert log.log_start_offset == 17
    with pytest.raises(KafkaError):
        read(log, 16)
    assert offsets(read(log, 17))[0] == 17
    with pytest.raises(KafkaError) as error:
        log.delete_records_before(31)
    assert error.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    log.high_watermark = 20
    with pytest.raises(KafkaError):
        log.delete_records_before(21)
    log.delete_records_before(3)
    assert log.log_start_offset == 17
    node.restart(clean=True)
    assert node.log().log_start_offset == 17


def test_end_offset_of_epoch(node: Node) -> None:
    log = node.log()
    for epoch in (1, 1, 4, 4, 7):
        append(log, epoch=epoch)
    assert log.end_offset_of_epoch(0) == (0, 0)
    assert log.end_offset_of_epoch(1) == (1, 2)
    assert log.end_offset_of_epoch(2) == (1, 2)
    assert log.end_offset_of_epoch(4) == (4, 4)
    assert log.end_offset_of_epoch(7) == (7, 5)
    assert log.end_offset_of_epoch(8) == (-1, -1)
    assert log.end_offset_of_epoch(-1) == (-1, -1)
    log.assign_leader_epoch(9)
    assert log.end_offset_of_epoch(9) == (9, 5)
    node.restart(clean=False)
    assert node.log().end_offset_of_epoch(4) == (4, 4)


def test_follower_keeps_offsets_and_epochs(node: Node) -> None:
    log = node.log()
    log.append_as_follower(batch(base_offset=5, leader_epoch=2) + batch(base_offset=6, leader_epoch=3), now_ms=NOW)
    assert log.log_end_offset == 7
    assert log.epochs.entries() == [(2, 5), (3, 6)]
    for bad, code in (
        (batch(base_offset=6, leader_epoch=3), ErrorCode.OFFSET_OUT_OF_RANGE),
        (batch(base_offset=7, leader_epoch=3)[:-1], ErrorCode.CORRUPT_MESSAGE),
        (bytearray(), ErrorCode.CORRUPT_MESSAGE),
    ):
        with pytest.raises(KafkaError) as error:
            log.append_as_follower(bad, now_ms=NOW)
        assert error.value.code == code
    flipped = batch(base_offset=7, leader_epoch=3)
    flipped[-1] ^= 4
    with pytest.raises(KafkaError):
        log.append_as_follower(flipped, now_ms=NOW)


def test_a_reader_in_flight_outlives_its_segment(node: Node) -> None:
    log = node.log(SMALL_SEGMENTS)
    for _ in range(30):
        append(log)
    found = read(log, 0)
    expected = found.read()
    job = log.drop_segments(3)
    job.done(job.run())
    assert not node.file(0).exists()
    assert found.read() == expected
    assert log.log_start_offset == log.segments[0].base_offset


def test_a_follower_finds_its_way_over_gaps(node: Node) -> None:
    log = node.log()
    for base in (0, 1, 10, 11, 30):
        log.append_as_follower(batch(base_offset=base, leader_epoch=0), now_ms=NOW)
    size = len(batch())
    for offset, expected in ((0, 0), (1, 1), (2, 10), (9, 10), (11, 11), (12, 30), (29, 30), (30, 30)):
        assert offsets(read(log, offset, size)) == [expected]
    assert offsets(read(log, 2, up_to=30)) == [10, 11]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("offset", [0, 3, 1000])
def test_a_log_restarts_at_another_offset(node: Node, offset: int, clean: bool) -> None:
    config = LogConfig(segment_bytes=200)
    log = node.log(config)
    for value in range(5):
        append(log, b"old %d" % value * 10, epoch=value)
    log.restart_at(offset, NOW)
    assert (log.log_start_offset, log.log_end_offset, log.recovery_point) == (offset, offset, offset)
    assert log.epochs.entries() == []
    assert append(log, b"new", epoch=7) == offset
    assert sorted(path.name for path in node.path.glob("*.log*")) == [f"{offset:020d}.log"]
    node.restart(clean=clean)
    log = node.log(config)
    assert read_all(log) == [offset]
    assert log.epochs.entries() == [(7, offset)]


@pytest.mark.parametrize("start", [4, 5, 6])
def test_a_follower_may_begin_in_the_middle_of_a_batch(node: Node, start: int) -> None:
    """There a leader's log begins after DeleteRecords; what it sends is the whole batch (simulator seed 1828)."""
    log = node.log()
    log.restart_at(start, NOW)
    sent = batch(b"a", b"b", b"c", base_offset=4, leader_epoch=3)
    log.append_as_follower(sent, now_ms=NOW)
    assert (log.log_start_offset, log.log_end_offset) == (4, 7)
    log.delete_records_before(start)
    assert log.log_start_offset == start
    with pytest.raises(KafkaError):
        log.append_as_follower(sent, now_ms=NOW)
    node.restart(clean=False)
    assert read_all(node.log()) == [4]
    assert [epoch for epoch, _ in node.log().epochs.entries()] == [3]


def test_a_full_disk_does_not_end_a_log_that_is_cut_or_starts_again(node: Node, disk: FaultyDisk) -> None:
    log = node.log()
    append(log, b"a" * 10, epoch=1)
    append(log, b"b" * 10, epoch=2)
    log.assign_leader_epoch(3)
    disk.room = 0
    assert log.truncate_to(2) == 2  # no more than epoch 3, in which nothing was written
    assert log.truncate_to(1) == 1
    assert log.latest_epoch == 1
    with pytest.raises(KafkaError):
        append(log, b"c", epoch=1)  # the file still says that epoch 2 begins here
    with pytest.raises(KafkaError):
        log.restart_at(50, NOW)
    assert (log.log_start_offset, log.log_end_offset) == (0, 1)
    disk.room = None
    append(log, b"c", epoch=1)
    assert read_all(log) == [0, 1]
    node.restart(clean=False)
    log = node.log()
    assert log.epochs.entries() == [(1, 0)]
    log.restart_at(50, NOW)
    append(log, b"d", epoch=4)
    node.restart(clean=False)
    log = node.log()
    assert read_all(log) == [50]
    assert log.epochs.entries() == [(4, 50)]


def test_leader_epochs_are_on_disk_before_the_records_count_as_flushed(node: Node, disk: FaultyDisk) -> None:
    """Else a crash could leave records of which the log says, when it leads, that they are of an earlier epoch."""
    log = node.log()
    path = f"{log.directory}/leader-epoch-checkpoint"

    def flush() -> list[str]:
        disk.synced.clear()
        job = log.flush_job()
        assert job is not None
        job.done(job.run())
        return disk.synced

    append(log, b"a", epoch=1)
    synced = flush()
    assert path in synced and synced.index(path) < len(synced) - 1 and log.directory in synced
    append(log, b"b", epoch=1)
    assert path not in flush()
    append(log, b"c", epoch=2)
    assert path in flush()
    log.truncate_to(2)
    append(log, b"d", epoch=1)
    assert path in flush()


@pytest.mark.parametrize("offset", range(31))
def test_a_log_with_gaps_ends_with_its_last_batch_after_a_truncation(node: Node, offset: int) -> None:
    """Were the end taken from the batch that was cut, a follower would not ask its leader for what lies between."""
    log = node.log(LogConfig(segment_bytes=150))
    for base in (0, 1, 10, 11, 30):
        log.append_as_follower(batch(b"v" * 20, base_offset=base, leader_epoch=0), now_ms=NOW)
    kept = [base for base in (0, 1, 10, 11, 30) if base < offset]
    end = kept[-1] + 1 if kept else 0
    assert log.truncate_to(offset) == log.log_end_offset == end <= offset
    assert read_all(log) == kept
    log.append_as_follower(batch(b"v" * 20, base_offset=offset, leader_epoch=1), now_ms=NOW)
    node.restart(clean=False)
    assert node.reports == []
    assert read_all(node.log(LogConfig(segment_bytes=150))) == [*kept, offset]


def test_without_room_for_an_epoch_a_follower_takes_none_of_the_batches(node: Node, disk: FaultyDisk) -> None:
    log = node.log()
    log.append_as_follower(batch(base_offset=0, leader_epoch=1), now_ms=NOW)
    several = b"".join(bytes(batch(base_offset=offset, leader_epoch=offset + 1)) for offset in (1, 2, 3))
    first_epoch = len(log.epochs.to_bytes()) + 10
    disk.room = len(several) + first_epoch + 5
    with pytest.raises(KafkaError) as error:
        log.append_as_follower(several, now_ms=NOW)
    assert error.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    disk.room = None
    assert (log.log_end_offset, log.epochs.entries(), log.failure) == (1, [(1, 0)], None)
    assert log.size_bytes == node.file(0).stat().st_size == len(batch())
    log.append_as_follower(several, now_ms=NOW)
    assert log.epochs.entries() == [(1, 0), (2, 1), (3, 2), (4, 3)]
    for clean in (True, False):
        assert read_all(log) == [0, 1, 2, 3]
        node.restart(clean=clean)
        log = node.log()
        assert log.epochs.entries() == [(1, 0), (2, 1), (3, 2), (4, 3)]


def test_a_header_with_too_many_records_is_refused(node: Node) -> None:
    """A few bytes can claim millions of records, for which clients allocate memory."""
    log = node.log(LogConfig(batch_max_records=1000))
    rows = [Record(b"", b"", timestamp=NOW)] * 1001
    for codec in (Codec.NONE, Codec.ZSTD):
        assert refused(log, build_batch(rows, codec=codec)) == ErrorCode.MESSAGE_TOO_LARGE
        assert log.append(build_batch(rows[:1000], codec=codec), leader_epoch=0, now_ms=NOW)
    log.append(build_batch(rows), leader_epoch=0, now_ms=NOW, origin=Origin.COORDINATOR)
