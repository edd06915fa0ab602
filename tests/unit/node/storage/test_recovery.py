"""After an unclean stop: every whole batch before the damage is kept, and what was cut is told."""

import itertools
import logging
import os
from pathlib import Path
from uuid import UUID

import pytest

from millstream.config.topic_config import LogConfig
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.storage.file_formats import RECOVERY_POINTS
from millstream.node.storage.log import startup_recovery
from millstream.node.storage.log.directory import LogDirectory
from millstream.node.storage.log.partition_log import PartitionLog
from millstream.simulator.disk import SimulatedDisk
from tests.unit.node.storage.batches import NOW, batch
from tests.unit.node.storage.conftest import PARTITION, TOPIC_ID, Node
from tests.unit.node.storage.test_partition_log import append, read, read_all

SMALL_SEGMENTS = LogConfig(segment_bytes=1000, index_interval_bytes=100)
SIZE = len(batch(b"value"))


def fill(log: PartitionLog, count: int) -> None:
    for _ in range(count):
        append(log, b"value")


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0x10]))


def flush(log: PartitionLog) -> None:
    job = log.flush_job()
    assert job is not None
    job.done(job.run())


def test_killed_with_nothing_wrong(node: Node) -> None:
    fill(node.log(SMALL_SEGMENTS), 50)
    node.restart(clean=False)
    assert node.reports == []
    assert read_all(node.log(SMALL_SEGMENTS)) == list(range(50))
    assert append(node.log()) == 50


@pytest.mark.parametrize("lost", [1, SIZE - 61, SIZE - 1, SIZE, SIZE + 1, 3 * SIZE])
def test_a_torn_batch_is_cut_off(node: Node, lost: int) -> None:
    fill(node.log(), 10)
    node.kill()
    size = node.file(0).stat().st_size
    os.truncate(node.file(0), size - lost)
    node.start()
    kept = (size - lost) // SIZE
    log = node.log()
    assert log.log_end_offset == kept
    assert read_all(log) == list(range(kept))
    assert append(log) == kept
    cut = (size - lost) % SIZE
    assert sum(report.cut_bytes for report in node.reports) == cut


def checkpoint(node: Node) -> None:
    job = node.directory.checkpoint_job(NOW)
    assert job is not None
    job.run()


@pytest.mark.parametrize("junk", [b"\x00" * 5000, b"\xff" * 100, bytes(range(256)), b"x"])
def test_junk_at_the_end(node: Node, junk: bytes) -> None:
    fill(node.log(), 10)
    node.kill()
    with node.file(0).open("ab") as file:
        file.write(junk)
    node.start()
    assert node.reports[0].cut_bytes == len(junk)
    assert read_all(node.log()) == list(range(10))
    assert node.file(0).stat().st_size == 10 * SIZE


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("where", [8, 16, 21, 30, SIZE - 1])
def test_flipped_bit_in_the_active_segment(
    node: Node, where: int, flushed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    fill(node.log(), 10)
    if flushed:
        flush(node.log())
        checkpoint(node)
    node.kill()
    flip(node.file(0), 6 * SIZE + where)
    with caplog.at_level(logging.WARNING, "millstream.storage"):
        node.start()
    assert read_all(node.log()) == list(range(6))
    assert node.reports[0].end_offset == 6
    assert node.reports[0].cut_bytes == 4 * SIZE
    assert f"{node.file(0)}:{6 * SIZE}" in node.reports[0].cut_at
    assert "segment_cut" in caplog.text
    assert node.log().recovery_point <= 6


def test_flipped_bit_in_a_sealed_segment_is_the_readers_to_hear(node: Node) -> None:
    log = node.log(SMALL_SEGMENTS)
    fill(log, 50)
    second = log.segments[1].base_offset
    node.kill()
    flip(node.file(0), 2 * SIZE + SIZE - 1)
    node.start()
    log = node.log(SMALL_SEGMENTS)
    assert log.log_end_offset == 50, "later segments stay"
    assert len(node.reports[0].damaged) == 1
    assert read(log, 0).length == 2 * SIZE, "what is before it is served"
    with pytest.raises(KafkaError) as error:
        read(log, 2)
    assert error.value.code == ErrorCode.CORRUPT_MESSAGE
    assert read(log, 3).length > 0
    assert read(log, second).length > 0


def test_flipped_bit_in_a_sealed_segment_while_running(node: Node) -> None:
    log = node.log(SMALL_SEGMENTS)
    fill(log, 50)
    assert read(log, 0).length > 0
    os.utime(node.file(0), ns=(0, 1))
    flip(node.file(0), SIZE - 1)
    with pytest.raises(KafkaError) as error:
        read(log, 0)
    assert error.value.code == ErrorCode.CORRUPT_MESSAGE
    assert append(log) == 50


def test_broken_framing_in_an_unflushed_sealed_segment_cuts_there(node: Node) -> None:
    log = node.log(SMALL_SEGMENTS)
    fill(log, 50)
    node.kill()
    os.truncate(node.file(0), 3 * SIZE + 10)
    node.start()
    log = node.log(SMALL_SEGMENTS)
    assert read_all(log) == [0, 1, 2]
    assert len(node.reports[0].removed_segments) >= 1
    assert append(log) == 3


@pytest.mark.parametrize("ticks", [-1, 0])
def test_broken_framing_in_a_flushed_sealed_segment_is_corrupt_for_its_reader_only(node: Node, ticks: int) -> None:
    """With the last append in the tick of the checkpoint (0) the log is checked, otherwise it counts as settled. Which
    of the two happens was left to the clock of the file system."""
    log = node.log(SMALL_SEGMENTS)
    fill(log, 50)
    second = log.segments[1].base_offset
    flush(log)
    checkpoint(node)
    node.kill()
    flip(node.file(0), 3 * SIZE + 9)  # a length
    # Damage of a disk leaves the time as it was. A later time means a change by this program, so a check.
    os.utime(node.file(0), ns=(0, 1))
    checkpoint_ns = (Path(node.root) / RECOVERY_POINTS).stat().st_mtime_ns
    os.utime(sorted(node.path.glob("*.log"))[-1], ns=(0, checkpoint_ns + ticks))
    node.start()
    log = node.log(SMALL_SEGMENTS)
    assert log.log_end_offset == 50
    assert read(log, 0).length == 3 * SIZE
    with pytest.raises(KafkaError) as error:
        read(log, 3)
    assert error.value.code == ErrorCode.CORRUPT_MESSAGE
    assert read(log, second).length > 0


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot"])
@pytest.mark.parametrize("damage", ["missing", "junk", "odd", "empty", "zeros"])
def test_damaged_indexes_and_snapshots_are_made_again(node: Node, suffix: str, damage: str, clean: bool) -> None:
    log = node.log(SMALL_SEGMENTS)
    for sequence in range(50):
        append(log, b"value", producer_id=9, producer_epoch=0, sequence=sequence, timestamps=[NOW + sequence])
    if clean:
        node.stop()
    else:
        node.kill()
    found = sorted(node.path.glob(f"*{suffix}"))
    assert found
    for path in found:
        size = path.stat().st_size
        if damage == "missing":
            path.unlink()
        elif damage == "empty":
            path.write_bytes(b"")
        else:
            path.write_bytes({"junk": b"\x7f" * size, "odd": b"\x01" * (size + 5), "zeros": b"\x00" * size}[damage])
    node.start()
    log = node.log(SMALL_SEGMENTS)
    assert read_all(log) == list(range(50))
    for offset in range(50):
        assert read(log, offset).length > 0
    assert log.time_search().offset_by_timestamp(NOW + 17) == (17, NOW + 17, 0)
    assert log.producers.entries[9].next_sequence == 50
    assert append(log, producer_id=9, producer_epoch=0, sequence=50) == 50


@pytest.mark.parametrize("clean", [True, False])
def test_empty_segment_files_lose_only_their_records(node: Node, clean: bool) -> None:
    log = node.log(SMALL_SEGMENTS)
    fill(log, 50)
    bases = list(log.segments.bases)
    node.stop() if clean else node.kill()
    os.truncate(node.file(bases[1]), 0)
    os.truncate(node.file(bases[-1]), 0)
    node.start()
    log = node.log(SMALL_SEGMENTS)
    if clean:
        assert log.log_end_offset == bases[-1]
        assert read_all(log) == [offset for offset in range(bases[-1]) if not bases[1] <= offset < bases[2]]
    else:
        # Nothing was flushed: what follows the hole is no more to be trusted than what is missing, and a replica with
        # a hole would be taken for a whole one.
        assert log.log_end_offset == bases[1]
        assert read_all(log) == list(range(bases[1]))
    assert append(log) == (bases[-1] if clean else bases[1])


@pytest.mark.parametrize("clean", [True, False])
def test_empty_segment_that_overlaps_the_one_before(node: Node, clean: bool) -> None:
    fill(node.log(), 10)
    node.stop() if clean else node.kill()
    node.file(5).write_bytes(b"")
    node.start()
    log = node.log()
    assert log.log_end_offset == 10
    assert read_all(log) == list(range(10))


@pytest.mark.parametrize("clean", [True, False])
def test_stray_and_leftover_files(node: Node, clean: bool) -> None:
    fill(node.log(), 10)
    node.stop() if clean else node.kill()
    (node.path / "notes.txt").write_text("mine")
    (node.path / "lost+found").mkdir()
    (node.path / "7.log").write_bytes(b"not named as a segment is")
    node.file(0, ".log.deleted").write_bytes(b"old")
    node.file(99, ".index").write_bytes(b"orphan")
    node.file(1234, ".snapshot").write_bytes(b"from the future")
    (node.path / "leader-epoch-checkpoint.tmp").write_bytes(b"0\n")
    root = node.path.parent
    (root / "stray.txt").write_text("mine")
    (root / "not a partition").mkdir()
    gone = root / "old-0.0123456789abcdef0123456789abcdef-delete"
    gone.mkdir()
    (gone / "00000000000000000000.log").write_bytes(b"x")
    node.start()
    assert read_all(node.log()) == list(range(10))
    assert (node.path / "notes.txt").read_text() == "mine"
    assert (root / "stray.txt").exists()
    assert (root / "not a partition").is_dir()
    assert not gone.exists()
    assert not node.file(0, ".log.deleted").exists()
    assert not node.file(1234, ".snapshot").exists()


@pytest.mark.parametrize(
    "name", ["recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "replication-offset-checkpoint"]
)
@pytest.mark.parametrize("content", [b"", b"junk", b"0\n5\n", b"\xff\xfe", b"0\n1\norders 0 x\n"])
def test_damaged_checkpoints_lose_no_records(node: Node, name: str, content: bytes) -> None:
    fill(node.log(), 10)
    node.stop()
    (node.path.parent / name).write_bytes(content)
    node.start()
    assert read_all(node.log()) == list(range(10))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("content", [None, b"", b"junk\n"])
def test_damaged_leader_epochs_are_read_from_the_batches(node: Node, content: bytes | None, clean: bool) -> None:
    log = node.log(SMALL_SEGMENTS)
    for at in range(40):
        append(log, epoch=at // 15)
    flush(log)
    node.stop() if clean else node.kill()
    path = node.path / "leader-epoch-checkpoint"
    path.unlink() if content is None else path.write_bytes(content)
    node.start()
    log = node.log(SMALL_SEGMENTS)
    assert log.epochs.entries() == [(0, 0), (1, 15), (2, 30)]
    assert path.read_text() == "0\n3\n0 0\n1 15\n2 30\n"


@pytest.mark.parametrize("content", [None, b"", b"version: 0\ntopic_id: short\n"])
def test_damaged_topic_id_is_not_fatal(node: Node, content: bytes | None) -> None:
    fill(node.log(), 3)
    node.stop()
    path = node.path / "partition.metadata"
    path.unlink() if content is None else path.write_bytes(content)
    node.start()
    assert node.log().topic_id.int == 0
    assert read_all(node.log()) == [0, 1, 2]


def test_a_directory_without_segments(node: Node) -> None:
    node.log()
    node.kill()
    for path in node.path.iterdir():
        path.unlink()
    node.start()
    assert append(node.log()) == 0


def test_recovery_begins_at_the_recovery_point(node: Node) -> None:
    log = node.log(SMALL_SEGMENTS)
    fill(log, 50)
    flush(log)
    fill(log, 3)
    os.utime(node.file(0), ns=(0, 1))  # surely before the checkpoint: the clock of a file system has coarse ticks
    checkpoint(node)
    node.kill()
    node.disk.opened.clear()
    node.start()
    assert node.log(SMALL_SEGMENTS).log_end_offset == 53
    assert str(node.file(0)) not in node.disk.opened


def test_a_settled_log_is_not_read_again(node: Node) -> None:
    fill(node.log(), 10)
    node.restart(clean=True)
    node.kill()
    os.utime(node.file(0), ns=(0, 1))
    node.disk.opened.clear()
    node.start()
    assert node.reports == []
    assert read_all(node.log()) == list(range(10))


def test_producers_are_found_again_after_a_kill(node: Node) -> None:
    log = node.log(SMALL_SEGMENTS)
    for sequence in range(30):
        append(log, producer_id=1, producer_epoch=0, sequence=sequence)
    append(log, producer_id=2, producer_epoch=3, sequence=5)
    node.restart(clean=False)
    log = node.log(SMALL_SEGMENTS)
    assert log.producers.entries[1].next_sequence == 30
    assert log.producers.entries[2].epoch == 3
    with pytest.raises(KafkaError) as error:
        append(log, producer_id=1, producer_epoch=0, sequence=31)
    assert error.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert append(log, producer_id=1, producer_epoch=0, sequence=30) == 31


def test_progress_is_told(node: Node) -> None:
    fill(node.log(), 3)
    node.kill()
    seen: list[tuple[int, int, str]] = []
    node.directory = type(node.directory)(node.disk, node.root)
    node.directory.start(NOW, lambda done, total, text: seen.append((done, total, text)))
    assert seen == [(0, 1, "orders-0"), (1, 1, "")]


def test_a_log_cut_before_its_start_begins_again(node: Node) -> None:
    log = node.log()
    for sequence in range(4):
        append(log, b"value", producer_id=7, producer_epoch=0, sequence=sequence)
    log.delete_records_before(4)
    node.restart(clean=True)
    node.kill()
    os.truncate(node.file(0), node.file(0).stat().st_size // 2)
    node.start()
    log = node.log()
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (4, 4, 0)
    assert log.producers.entries == {}
    assert append(log, b"value", producer_id=7, producer_epoch=0, sequence=0) == 4


def test_an_unclean_stop_then_a_clean_one_leaves_all_index_files(node: Node) -> None:
    log = node.log(SMALL_SEGMENTS)
    for sequence in range(30):
        append(log, b"value", producer_id=7, producer_epoch=0, sequence=sequence)
    node.restart(clean=False)
    node.log(SMALL_SEGMENTS)
    node.stop()
    for path in node.path.glob("*.log"):
        assert path.with_suffix(".index").exists()
        assert path.with_suffix(".timeindex").exists()


@pytest.mark.parametrize("interval", [0, 4096])
def test_the_greatest_timestamp_after_a_clean_restart_and_a_kill(node: Node, interval: int) -> None:
    config = LogConfig(retention_ms=1000, index_interval_bytes=interval)
    for at in range(10):
        append(node.log(config), timestamps=[NOW - 100_000 + at])
    node.restart(clean=True)
    for at in range(5):
        append(node.log(config), timestamps=[NOW + at])
    node.restart(clean=False)
    log = node.log(config)
    assert log.time_search().offset_by_timestamp(NOW) == (10, NOW, 0)
    assert log.time_search().max_timestamp_offset() == (14, NOW + 4, 0)
    for job in node.directory.maintenance(NOW + 1000):
        job.done(job.run())
    assert log.log_start_offset == 0, "nothing is expired: the segment holds fresh records"
    log.roll(NOW)
    node.restart(clean=True)
    assert node.log(config).segments[0].greatest_timestamp() == NOW + 4, "the index that was sealed knows as well"


def test_the_greatest_timestamp_is_looked_for_behind_the_index(node: Node) -> None:
    """An unclean stop that left the log settled: nothing is recovered, the old index files are used."""
    config = LogConfig(index_interval_bytes=0)
    for at in range(10):
        append(node.log(config), timestamps=[NOW + at])
    node.restart(clean=True)
    old = {suffix: node.file(0, suffix).read_bytes() for suffix in (".index", ".timeindex")}
    for at in range(5):
        append(node.log(config), timestamps=[NOW + 100 + at])
    node.stop()
    for suffix, content in old.items():
        node.file(0, suffix).write_bytes(content)
    node.start()
    assert node.log(config).time_search().offset_by_timestamp(NOW + 104) == (14, NOW + 104, 0)


def test_a_lost_time_index_is_made_again(node: Node) -> None:
    config = LogConfig(index_interval_bytes=0)
    for at in range(10):
        append(node.log(config), timestamps=[NOW + at])
    node.stop()
    node.file(0, ".timeindex").write_bytes(b"")
    node.start()
    assert node.log(config).segments.active.greatest_timestamp() == NOW + 9


def test_what_replaced_a_truncated_tail_is_checked_whatever_the_checkpoint_says(node: Node) -> None:
    """The checkpoint calls the offsets flushed: that was said of the records that were cut off."""
    log = node.log(SMALL_SEGMENTS)
    while len(log.segments) < 4:
        append(log, b"v" * 50)
    bases = log.segments.bases[:]
    flush = log.flush_job()
    assert flush is not None
    flush.done(flush.run())
    checkpoint = node.directory.checkpoint_job(NOW)
    assert checkpoint is not None
    checkpoint.done(checkpoint.run())
    log.truncate_to(bases[1])
    while len(log.segments) < 4:
        append(log, b"w" * 50)
    node.kill()
    torn = node.file(bases[1])
    torn.write_bytes(torn.read_bytes()[:-5])
    node.start()
    assert [report.cut_at != "" for report in node.reports] == [True]
    log = node.log(SMALL_SEGMENTS)
    assert log.log_end_offset == bases[2] - 1
    assert log.recovery_point <= bases[1], "nothing of it is on stable storage yet"
    assert read_all(log) == list(range(bases[2] - 1))


class SimulatedNode:
    """A log directory on a disk that loses power. Each change of the disk has a time of its own."""

    def __init__(self, seed: int) -> None:
        self.disk = SimulatedDisk(str(seed))
        self.disk.make_root("/data")
        self._time = itertools.count(1)
        self.start()

    def start(self) -> None:
        self.disk.locks.clear()
        self.directory = LogDirectory(self.disk.attach(lambda: next(self._time)), "/data")
        self.directory.start(NOW)

    def lose_power(self) -> None:
        self.disk.lose_power()
        self.start()


@pytest.mark.parametrize("seed", range(6))
def test_a_checkpoint_does_not_cover_records_that_came_after_it_was_gathered(seed: int) -> None:
    """A thread writes the checkpoint later. Meanwhile other records, which are not flushed, have the same offsets."""
    node = SimulatedNode(seed)
    log = node.directory.create(PARTITION, TOPIC_ID, LogConfig(), NOW)
    for _ in range(10):
        append(log, b"v" * 2000)
    flush(log)
    log.high_watermark = log.cleaned_offset = 10
    job = node.directory.checkpoint_job(NOW)
    assert job is not None
    log.truncate_to(2)
    for _ in range(8):
        append(log, b"w" * 2000, epoch=1)
    job.done(job.run())
    node.lose_power()
    log = node.directory.open(PARTITION, LogConfig(), NOW)
    assert read_all(log) == list(range(log.log_end_offset))  # every checksum is right
    assert log.recovery_point <= 2 and log.cleaned_offset <= 2
    node.directory.restore_high_watermark(log)
    assert log.high_watermark is not None and log.high_watermark <= 2


@pytest.mark.parametrize("seed", range(3))
def test_a_checkpoint_does_not_cover_a_log_that_was_created_after_it_was_gathered(seed: int) -> None:
    node = SimulatedNode(seed)
    log = node.directory.create(PARTITION, TOPIC_ID, LogConfig(), NOW)
    for _ in range(10):
        append(log, b"v" * 2000)
    flush(log)
    log.delete_records_before(5)
    job = node.directory.checkpoint_job(NOW)
    assert job is not None
    node.directory.delete(PARTITION).run()
    log = node.directory.create(PARTITION, UUID(int=9), LogConfig(), NOW)
    append(log, b"flushed")
    flush(log)
    for _ in range(9):
        append(log, b"w" * 2000)
    job.done(job.run())
    node.lose_power()
    log = node.directory.open(PARTITION, LogConfig(), NOW)
    assert (log.topic_id, log.log_start_offset) == (UUID(int=9), 0)
    assert read_all(log) == list(range(log.log_end_offset))
    assert log.recovery_point <= 1


def test_a_log_that_could_not_be_checked_is_checked_at_the_start_after_that(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failed start writes a checkpoint which is newer than the changes of the log."""
    log = node.log()
    fill(log, 10)
    flush(log)
    checkpoint(node)
    log.truncate_to(2)
    fill(log, 8)
    node.kill()
    with monkeypatch.context() as patch:
        patch.setattr(startup_recovery, "recover_log", not_readable)
        node.start()
        checkpoint(node)
        node.kill()
    base = log.segments.active.base_offset
    flip(node.file(base), (5 - base) * SIZE + SIZE - 1)
    for each in log.segments.bases:
        os.utime(node.file(each), ns=(0, 1))  # before the last checkpoint
    node.start()
    log = node.log()
    assert read_all(log) == list(range(5)) and log.log_end_offset == 5


def not_readable(*_: object, **__: object) -> None:
    raise OSError("input/output error")


@pytest.mark.parametrize("seed", range(12))
def test_cut_bytes_do_not_come_back_between_newer_records(seed: int) -> None:
    """Each batch is a page, so that an old one fits exactly into the place of a newer one. Which of them a power cut
    keeps is decided page by page."""
    node = SimulatedNode(seed)
    log = node.directory.create(PARTITION, TOPIC_ID, LogConfig(), NOW)
    size = 4096 - len(batch(bytes(4000))) + 4000
    assert len(batch(bytes(size))) == 4096
    for _ in range(20):
        append(log, b"v" * size)
    flush(log)
    log.truncate_to(2)
    for _ in range(18):
        append(log, b"w" * size, epoch=1)
    node.lose_power()
    log = node.directory.open(PARTITION, LogConfig(), NOW)
    assert log.log_end_offset >= 2
    assert log.epochs.entries() in ([(0, 0)], [(0, 0), (1, 2)]), "records of one epoch only after the cut"
