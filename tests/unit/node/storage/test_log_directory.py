import os
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from millstream.config.topic_config import LogConfig
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import NO_TOPIC_ID, TopicName, TopicPartition
from millstream.node.storage.log.directory import ROUND_INTERVAL_MS, DirectoryInUseError, LogDirectory, UnopenedLogs
from millstream.node.storage.log.startup_recovery import StartRecovery
from tests.unit.node.storage.batches import NOW, batch
from tests.unit.node.storage.conftest import PARTITION, TOPIC_ID, Node
from tests.unit.node.storage.faulty_disk import FaultyDisk
from tests.unit.node.storage.test_partition_log import append, read_all

SIZE = len(batch(b"value"))


def test_files_of_a_log_are_kafkas(node: Node) -> None:
    log = node.log(LogConfig(segment_bytes=5 * SIZE, index_interval_bytes=0))
    for sequence in range(8):
        append(log, b"value", producer_id=3, producer_epoch=0, sequence=sequence, timestamps=[NOW + sequence])
    node.stop()
    assert {path.name for path in node.path.iterdir()} == {
        "00000000000000000000.log",
        "00000000000000000000.index",
        "00000000000000000000.timeindex",
        "00000000000000000005.log",
        "00000000000000000005.index",
        "00000000000000000005.timeindex",
        "00000000000000000005.snapshot",
        "00000000000000000008.snapshot",
        "leader-epoch-checkpoint",
        "partition.metadata",
    }
    root = node.path.parent
    assert (root / "recovery-point-offset-checkpoint").read_text() == "0\n1\norders 0 8\n"
    assert (root / "replication-offset-checkpoint").read_text() == "0\n1\norders 0 8\n"
    assert (root / "log-start-offset-checkpoint").read_text() == "0\n0\n"
    assert (root / ".kafka_cleanshutdown").exists()
    assert (node.path / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"
    assert (node.path / "partition.metadata").read_text() == "version: 0\ntopic_id: EjRWeBI0VngSNFZ4EjRWeA\n"


def test_index_entries_name_batches_by_their_last_offset(node: Node) -> None:
    log = node.log(LogConfig(index_interval_bytes=150))
    for at in range(20):
        append(log, b"a", b"b", timestamps=[NOW + at, NOW - at])
    node.stop()
    data = node.file(0).read_bytes()
    size = len(data) // 20
    entries = node.file(0, ".index").read_bytes()
    times = node.file(0, ".timeindex").read_bytes()
    found = [
        (int.from_bytes(entries[at : at + 4]), int.from_bytes(entries[at + 4 : at + 8]))
        for at in range(0, len(entries), 8)
    ]
    assert len(found) >= 5
    assert all(position % size == 0 and offset == position // size * 2 + 1 for offset, position in found)
    stamps = [
        (int.from_bytes(times[at : at + 8]), int.from_bytes(times[at + 8 : at + 12])) for at in range(0, len(times), 12)
    ]
    assert all(offset % 2 == 1 and stamp == NOW + offset // 2 for stamp, offset in stamps)
    assert stamps[-1] == (NOW + 19, 39), "the closing entry"


def test_one_broker_per_directory(node: Node) -> None:
    with pytest.raises(DirectoryInUseError, match=r"in use by another broker"):
        LogDirectory(FaultyDisk(), node.root).start(NOW)
    node.stop()
    again = LogDirectory(FaultyDisk(), node.root)
    again.start(NOW)
    again.close(NOW)


def test_the_clean_mark_lasts_one_start(node: Node) -> None:
    mark = node.path.parent / ".kafka_cleanshutdown"
    node.log()
    node.stop()
    assert mark.exists()
    node.start()
    assert not mark.exists()


def test_partitions_are_found_again(node: Node) -> None:
    node.log()
    other = TopicPartition(TopicName("with-dash.and_dots"), 12)
    node.directory.create(other, uuid4(), LogConfig(), NOW)
    node.restart(clean=True)
    assert node.directory.partitions == {PARTITION, other}
    assert node.directory.loaded() == []
    assert node.directory.topic_id(PARTITION) == TOPIC_ID
    assert node.log().topic_id == TOPIC_ID
    assert node.directory.open(PARTITION, LogConfig(), NOW) is node.log()
    with pytest.raises(KafkaError) as error:
        node.directory.open(TopicPartition(TopicName("none"), 0), LogConfig(), NOW)
    assert error.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("loaded", [True, False])
def test_delete_and_create_again(node: Node, loaded: bool) -> None:
    append(node.log())
    if not loaded:
        node.restart(clean=True)
    job = node.directory.delete(PARTITION)
    assert not node.path.exists()
    assert [path.name for path in Path(node.root).glob("*-delete")] == [f"orders-0.{TOPIC_ID.hex}-delete"]
    fresh = node.directory.create(PARTITION, UUID(int=1), LogConfig(), NOW)
    assert fresh.log_end_offset == 0
    append(fresh)
    job.done(job.run())
    assert not list(Path(node.root).glob("*-delete"))
    node.restart(clean=False)
    assert node.log().topic_id == UUID(int=1)
    assert read_all(node.log()) == [0]


def test_deletion_interrupted_is_finished_at_the_next_start(node: Node) -> None:
    append(node.log())
    node.directory.delete(PARTITION)
    node.restart(clean=False)
    assert node.directory.partitions == set()
    assert not list(Path(node.root).glob("*-delete"))


def test_a_topic_with_the_longest_name(node: Node) -> None:
    longest = TopicPartition(TopicName("t" * 249), 0)
    node.directory.create(longest, uuid4(), LogConfig(), NOW)
    job = node.directory.delete(longest)
    job.done(job.run())
    assert node.directory.partitions == set()


def test_many_partitions_few_files(disk: FaultyDisk, root: str) -> None:
    directory = LogDirectory(disk, root, max_open_files=20)
    directory.start(NOW)
    partitions = [TopicPartition(TopicName("many"), at) for at in range(500)]
    for partition in partitions:
        append(directory.create(partition, uuid4(), LogConfig(), NOW), b"first")
    for partition in partitions:
        append(directory.open(partition, LogConfig(), NOW), b"second")
        assert directory.open_files <= 20
    directory.close(NOW)

    disk.opened.clear()
    directory = LogDirectory(disk, root, max_open_files=20)
    assert directory.start(NOW) == []
    assert directory.partitions == set(partitions)
    assert len(disk.opened) < 10, "no log is opened before it is needed"
    for partition in partitions[::50]:
        assert read_all(directory.open(partition, LogConfig(), NOW)) == [0, 1]
    assert directory.open_files <= 20
    directory.maintenance(NOW, lambda _: LogConfig())
    assert len(directory.loaded()) == 20, "some of the others are opened in passing, for retention"
    directory._lock.release()  # type: ignore[union-attr]

    directory = LogDirectory(disk, root, max_open_files=20)
    assert directory.start(NOW) == []
    assert read_all(directory.open(partitions[0], LogConfig(), NOW)) == [0, 1]
    directory.close(NOW)


def test_checkpoints_keep_what_is_not_open(node: Node) -> None:
    append(node.log())
    node.restart(clean=True)
    other = TopicPartition(TopicName("other"), 0)
    append(node.directory.create(other, uuid4(), LogConfig(), NOW))
    node.restart(clean=True)
    text = (Path(node.root) / "recovery-point-offset-checkpoint").read_text()
    assert sorted(text.splitlines()[2:]) == ["orders 0 1", "other 0 1"]
    assert node.directory.checkpointed_high_watermark(PARTITION) == 1


def test_checkpoints_are_due_now_and_then(node: Node) -> None:
    append(node.log())
    assert node.directory.maintenance(NOW + 59_999) == []
    (job,) = node.directory.maintenance(NOW + 60_000)
    job.done(job.run())
    assert (Path(node.root) / "replication-offset-checkpoint").read_text() == "0\n1\norders 0 1\n"
    assert node.directory.maintenance(NOW + 60_001) == []


def test_a_clock_that_is_set_back_delays_nothing(node: Node) -> None:
    """Recovery goes by the times of files, so the checkpoints are written at once."""
    log = node.log(LogConfig(flush_ms=1000))
    append(log)
    node.directory.maintenance(NOW)
    before = NOW - 3_600_000
    assert [job.name for job in node.directory.maintenance(before)] == ["write_checkpoints"]
    assert [job.name for job in node.directory.maintenance(before + 1000)] == ["flush partition=orders-0 up_to=1"]


def test_expired_producers_are_forgotten(node: Node) -> None:
    log = node.log(LogConfig(retention_ms=-1))
    append(log, producer_id=4, producer_epoch=0, sequence=0)
    node.directory.maintenance(NOW + 23 * 3_600_000)
    assert 4 in log.producers.entries
    node.directory.maintenance(NOW + 25 * 3_600_000)
    assert 4 not in log.producers.entries


def test_no_room_to_create(node: Node) -> None:
    node.disk.room = 0
    with pytest.raises(KafkaError) as error:
        node.log()
    assert error.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    node.disk.room = None
    assert append(node.log()) == 0


def test_a_stop_on_a_full_disk_is_not_clean(node: Node) -> None:
    append(node.log(), b"kept")
    node.disk.room = 0
    node.stop()
    node.disk.room = None
    assert not (Path(node.root) / ".kafka_cleanshutdown").exists()
    node.start()
    assert read_all(node.log()) == [0]


def is_marked_clean(node: Node) -> bool:
    return (Path(node.root) / ".kafka_cleanshutdown").exists()


def checkpointed(node: Node, name: str = "recovery-point-offset-checkpoint") -> list[str]:
    return (Path(node.root) / name).read_text().splitlines()[2:]


@pytest.mark.parametrize("room", range(0, 300, 7))
def test_a_stop_runs_out_of_room_anywhere(node: Node, room: int) -> None:
    """Checkpoints may still fit, and the mark of a clean stop not any more."""
    append(node.log(), b"kept")
    node.disk.room = room
    node.stop()
    node.disk.room = None
    node.start()
    assert read_all(node.log()) == [0]


def test_settings_reach_a_log_that_maintenance_opened(node: Node) -> None:
    log = node.log(LogConfig(retention_ms=1000))
    assert node.directory.open(PARTITION, LogConfig(retention_ms=2000), NOW) is log
    assert log.config.retention_ms == 2000
    assert node.directory.loaded_log(PARTITION) is log


@pytest.mark.parametrize("content", [b"", b"version: 0\n", b"\x00" * 40])
def test_a_log_whose_topic_id_is_lost_is_adopted(node: Node, content: bytes) -> None:
    append(node.log())
    node.restart(clean=True)
    (node.path / "partition.metadata").write_bytes(content)
    assert node.directory.topic_id(PARTITION) == NO_TOPIC_ID
    log = node.log()
    node.directory.adopt(PARTITION, TOPIC_ID)
    assert log.topic_id == TOPIC_ID
    node.restart(clean=False)
    assert node.directory.topic_id(PARTITION) == TOPIC_ID
    assert read_all(node.log()) == [0]


def test_a_stray_log_is_kept_under_another_name(node: Node) -> None:
    for value in (b"one", b"two"):
        append(node.log(), value)
        node.directory.set_aside(PARTITION)
        assert PARTITION not in node.directory.partitions
    node.restart(clean=False)
    assert node.directory.partitions == set()
    kept = sorted(Path(node.root).glob("*-stray"))
    assert [path.name for path in kept] == [f"orders-0.{TOPIC_ID.hex}-stray", f"orders-0.{TOPIC_ID.hex}.1-stray"]
    for path, value in zip(reversed(kept), (b"two", b"one"), strict=True):
        assert value in (path / "00000000000000000000.log").read_bytes()


def test_a_log_does_not_inherit_from_one_of_the_same_name(node: Node) -> None:
    for _ in range(20):
        append(node.log())
    node.log().delete_records_before(15)
    job = node.directory.checkpoint_job(NOW)
    assert job is not None
    job.done(job.run())
    os.utime(Path(node.root) / "recovery-point-offset-checkpoint", (1, 1))
    node.directory.delete(PARTITION)
    append(node.log(), b"of the new topic")
    node.restart(clean=False)
    assert (node.log().log_start_offset, node.log().log_end_offset) == (0, 1)


def test_what_was_recovered_and_never_opened_is_synced_before_a_stop_is_clean(node: Node) -> None:
    append(node.log())
    node.restart(clean=False)
    node.disk.synced.clear()
    node.stop()
    assert str(node.file(0)) in node.disk.synced
    assert {str(node.path), node.root} <= set(node.disk.synced)
    assert checkpointed(node) == ["orders 0 1"]
    assert is_marked_clean(node)


def test_a_stop_that_had_no_time_to_sync_what_was_recovered_is_not_clean(node: Node) -> None:
    append(node.log())
    node.restart(clean=False)
    node.directory.close(NOW, lambda size: size == 0)
    assert not is_marked_clean(node)
    assert checkpointed(node) == ["orders 0 0"]


def test_what_was_recovered_is_synced_in_the_background(node: Node) -> None:
    append(node.log())
    node.restart(clean=False)
    log = node.log()
    assert log.recovery_point == 0
    append(log)
    (job,) = node.directory.maintenance(NOW)
    assert node.directory.maintenance(NOW) == [], "once"
    job.done(job.run())
    assert log.recovery_point == 1
    node.stop()
    assert is_marked_clean(node)


def test_a_failed_sync_of_what_was_recovered(node: Node) -> None:
    append(node.log())
    node.restart(clean=False)
    node.disk.sync_fails = True
    (job,) = node.directory.maintenance(NOW)
    job.done(job.run())
    node.disk.sync_fails = False
    node.stop()
    assert not is_marked_clean(node), "a second sync would say nothing about the pages that the first one lost"


def test_a_log_that_could_not_be_recovered(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    append(node.log())
    node.kill()
    with monkeypatch.context() as patch:
        patch.setattr("millstream.node.storage.log.startup_recovery.recover_log", failing)
        node.start()
        with pytest.raises(KafkaError) as error:
            node.log()
        assert error.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        node.stop()
    assert not is_marked_clean(node)
    node.start()
    assert read_all(node.log()) == [0]


def failing(*_: object, **__: object) -> None:
    raise OSError("input/output error")


def test_a_start_that_failed_leaves_no_mark(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    append(node.log())
    node.kill()
    with monkeypatch.context() as patch:
        patch.setattr(StartRecovery, "run", failing)
        directory = LogDirectory(node.disk, node.root)
        with pytest.raises(OSError, match="input"):
            directory.start(NOW)
        directory.close(NOW)
    assert not is_marked_clean(node)
    assert not (Path(node.root) / "recovery-point-offset-checkpoint").exists()
    node.start()


def test_taking_the_directory_changes_nothing(node: Node) -> None:
    append(node.log())
    node.stop()
    before = sorted((path.name, path.stat().st_mtime_ns) for path in Path(node.root).iterdir())
    directory = LogDirectory(node.disk, node.root)
    directory.take()
    with pytest.raises(DirectoryInUseError):
        LogDirectory(node.disk, node.root).take()
    directory.close(NOW)
    assert sorted((path.name, path.stat().st_mtime_ns) for path in Path(node.root).iterdir()) == before
    node.start()


def test_an_unclean_stop_stays_one_until_someone_has_heard_of_it(node: Node) -> None:
    append(node.log())
    node.restart(clean=False)
    node.directory.close(NOW, may_be_clean=False)
    assert not is_marked_clean(node)
    node.start()
    node.stop()
    assert is_marked_clean(node)


def test_the_first_flush_makes_the_directory_itself_durable(node: Node) -> None:
    log = node.log()
    append(log)
    job = log.flush_job()
    assert job is not None
    job.done(job.run())
    files = [str(node.file(0)), str(node.path / "partition.metadata"), str(node.path / "leader-epoch-checkpoint")]
    places = [*files, str(node.path), node.root]
    assert node.disk.synced == places, "the parent last: an entry must not name what is not there"
    append(log)
    job = log.flush_job()
    assert job is not None
    job.done(job.run())
    assert node.disk.synced == [*places, str(node.file(0))]


def test_one_checkpoint_at_a_time(node: Node) -> None:
    append(node.log())
    first = node.directory.checkpoint_job(NOW)
    assert first is not None
    node.log().delete_records_before(1)
    for _ in range(100):
        assert node.directory.checkpoint_job(NOW) is None
    assert node.directory.maintenance(NOW) == []
    first.done(first.run())
    assert checkpointed(node, "log-start-offset-checkpoint") == []
    (second,) = node.directory.maintenance(NOW)
    second.done(second.run())
    assert checkpointed(node, "log-start-offset-checkpoint") == ["orders 0 1"]
    assert node.directory.maintenance(NOW) == []


def test_a_checkpoint_that_comes_after_the_stop_writes_nothing(node: Node) -> None:
    append(node.log())
    late = node.directory.checkpoint_job(NOW)
    assert late is not None
    append(node.log())
    node.stop()
    assert late.run() is None
    assert checkpointed(node) == ["orders 0 2"]


def test_logs_that_cannot_be_opened_hold_up_no_one(node: Node) -> None:
    for at in range(40):
        node.directory.create(TopicPartition(TopicName("many"), at), uuid4(), LogConfig(), NOW)
    node.restart(clean=True)
    broken = {TopicPartition(TopicName("many"), at) for at in range(20)}
    for at in range(10):
        (Path(node.root) / f"many-{at}" / "00000000000000000000.log").unlink()
        (Path(node.root) / f"many-{at}" / "00000000000000000000.log").mkdir()
    asked: list[TopicPartition] = []

    def config_of(partition: TopicPartition) -> LogConfig | None:
        asked.append(partition)
        if partition.partition < 10:
            raise OSError("input/output error")
        return None if partition in broken else LogConfig()

    for _ in range(6):
        before = len(asked)
        node.directory.maintenance(NOW, config_of)
        assert len(asked) - before <= 10
    assert len(asked) == len(set(asked)) == 40
    assert {log.topic_partition for log in node.directory.loaded()} == set(asked) - broken


def test_unopened_logs_come_round_again() -> None:
    partitions = [TopicPartition(TopicName("t"), at) for at in range(15)]
    unopened = UnopenedLogs()
    first = unopened.take(partitions, {partitions[3]}, NOW)
    second = unopened.take(partitions, set(partitions[:12]), NOW)
    assert first == [each for each in partitions[:11] if each is not partitions[3]]
    assert second == partitions[12:]
    assert unopened.take(partitions, set(), NOW + 1) == []
    assert unopened.take(partitions, set(partitions[1:]), NOW + ROUND_INTERVAL_MS) == [partitions[0]]


@pytest.mark.parametrize(("clean", "committed"), [(True, 3), (False, 2)])
def test_after_an_unclean_stop_only_flushed_batches_are_committed(node: Node, clean: bool, committed: int) -> None:
    """A power cut may bring back a batch of an old leader that a truncation had removed."""
    config = LogConfig(segment_bytes=2 * SIZE)
    log = node.log(config)
    append(log, b"value")
    append(log, b"value")
    flush = log.flush_job()
    assert flush is not None
    flush.done(flush.run())
    append(log, b"value")
    log.high_watermark = 3
    node.directory.want_checkpoint()
    job = node.directory.checkpoint_job(NOW)
    assert job is not None
    job.done(job.run())
    assert (log.recovery_point, node.directory.checkpointed_high_watermark(PARTITION)) == (2, 3)
    os.utime(node.file(0), ns=(0, 1))  # surely before the checkpoint: the clock of a file system has coarse ticks
    node.restart(clean=clean)
    log = node.log(config)
    node.directory.restore_high_watermark(log)
    assert (log.high_watermark, log.log_end_offset) == (committed, 3)


def test_the_high_watermark_is_between_batches_after_a_truncation_and_an_unclean_stop(node: Node) -> None:
    """After a truncation, the last batch that is left must be flushed again. It is committed whole, or not at all."""
    log = node.log()
    append(log, b"a", b"b")
    append(log, b"c", b"d", b"e")
    append(log, b"f")
    flush = log.flush_job()
    assert flush is not None
    flush.done(flush.run())
    log.truncate_to(5)
    assert log.recovery_point == 2
    log.high_watermark = 5
    os.utime(node.file(0), ns=(0, 1))  # surely before the checkpoint
    node.directory.want_checkpoint()
    job = node.directory.checkpoint_job(NOW)
    assert job is not None
    job.done(job.run())
    node.restart(clean=False)
    log = node.log()
    node.directory.restore_high_watermark(log)
    assert (log.high_watermark, log.log_end_offset) == (2, 5)
