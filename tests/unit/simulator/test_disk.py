"""The simulated disk: like the real one while nothing happens, and as bad as a real one when the power goes."""

import random

import pytest

from millstream.config.topic_config import LogConfig
from millstream.formats.model.errors import KafkaError
from millstream.formats.model.identifiers import TopicName, TopicPartition
from millstream.formats.records.batch import iterate_headers
from millstream.node.storage.log.directory import LogDirectory
from millstream.simulator.disk import DiskSession, Killed, SimulatedDisk
from tests.examples import examples
from tests.unit.node.storage.batches import NOW, batch
from tests.unit.node.storage.conftest import TOPIC_ID

PARTITION = TopicPartition(TopicName("orders"), 0)


def session(machine: SimulatedDisk) -> DiskSession:
    return machine.attach(lambda: 5)


@pytest.fixture
def machine() -> SimulatedDisk:
    made = SimulatedDisk("test")
    made.make_root("/data")
    return made


@pytest.fixture
def disk(machine: SimulatedDisk) -> DiskSession:
    return session(machine)


def test_files_are_written_read_and_truncated(disk: DiskSession) -> None:
    file = disk.create("/data/f")
    file.write_at(0, b"hello")
    file.write_at(5, memoryview(bytearray(b" world")))
    assert (file.read_at(3, 5), file.read_at(8, 100), file.read_at(50, 10)) == (b"lo wo", b"rld", b"")
    file.write_at(15, b"!")
    assert file.read_at(9, 100) == b"ld\0\0\0\0!"
    file.truncate(4)
    assert (disk.file_size("/data/f"), disk.read_bytes("/data/f")) == (4, b"hell")
    assert disk.modified_ns("/data/f") == file.modified_ns() == 5
    assert disk.create("/data/f").size() == 0
    with pytest.raises(OSError, match="descriptor"):
        file.fileno()


def test_directories_are_made_listed_and_removed(disk: DiskSession) -> None:
    root = "/data/a/b"
    disk.make_directory(root)
    disk.make_directory(root)
    disk.write_bytes(f"{root}/one", b"1")
    disk.write_atomically(f"{root}/two", b"22")
    disk.write_atomically(f"{root}/two", b"2", durable=False)
    disk.make_directory(f"{root}/sub")
    assert sorted(disk.list(root)) == [("one", False), ("sub", True), ("two", False)]
    disk.rename(f"{root}/two", f"{root}/three")
    assert (disk.exists(f"{root}/three"), disk.exists(f"{root}/two")) == (True, False)
    disk.remove(f"{root}/three")
    disk.remove(f"{root}/three")
    disk.remove_directory("/data/a")
    disk.remove_directory("/data/a")
    assert not disk.exists(root)
    for missing in (disk.open, disk.create, disk.read_bytes, disk.list, disk.map):
        with pytest.raises(FileNotFoundError):
            missing(f"{root}/one")


def test_maps_and_open_files_outlive_their_names(disk: DiskSession) -> None:
    disk.write_bytes("/data/f", b"abcdef")
    mapped, file = disk.map("/data/f"), disk.open("/data/f")
    disk.remove("/data/f")
    assert bytes(mapped[2:4]) == b"cd"
    assert mapped.readonly
    assert file.read_at(0, 10) == b"abcdef"


def test_the_lock_dies_with_its_process(machine: SimulatedDisk, disk: DiskSession) -> None:
    assert disk.lock("/data/.lock") is not None
    other = session(machine)
    assert other.lock("/data/.lock") is None
    disk.end()
    held = other.lock("/data/.lock")
    assert held is not None
    held.release()
    assert session(machine).lock("/data/.lock") is not None
    with pytest.raises(OSError, match="ended"):
        disk.read_bytes("/data/.lock")


def test_what_is_synced_survives_and_what_is_not_may_be_anything() -> None:
    outcomes = set()
    for seed in range(200):
        machine = SimulatedDisk(str(seed))
        machine.make_root("/data")
        disk = session(machine)
        file = disk.create("/data/f")
        file.write_at(0, b"A" * 8192)
        file.sync()
        disk.sync_directory("/data")
        file.write_at(4096, b"B" * 8192)
        machine.lose_power()
        left = session(machine).read_bytes("/data/f")
        assert left[:4096] == b"A" * 4096
        assert set(left[4096:8192]) <= set(b"AB")
        outcomes.add((len(left), left[4096:8192].count(b"B")))
    assert (8192, 0) in outcomes
    assert (12288, 4096) in outcomes
    assert any(0 < new < 4096 for _, new in outcomes), "some page was torn"
    assert len({size for size, _ in outcomes}) > 2


def test_a_cut_that_was_not_synced_may_come_back() -> None:
    sizes = set()
    for seed in range(50):
        machine = SimulatedDisk(str(seed))
        machine.make_root("/data")
        disk = session(machine)
        disk.write_atomically("/data/f", b"A" * 3000)
        disk.open("/data/f").truncate(1000)
        machine.lose_power()
        sizes.add(session(machine).file_size("/data/f"))
    assert sizes == {1000, 3000}


def test_names_are_kept_in_the_order_in_which_they_changed() -> None:
    seen = set()
    for seed in range(100):
        machine = SimulatedDisk(str(seed))
        machine.make_root("/data")
        disk = session(machine)
        disk.write_atomically("/data/kept", b"")
        disk.write_bytes("/data/one", b"")
        disk.write_bytes("/data/two", b"")
        disk.rename("/data/one", "/data/three")
        disk.remove("/data/kept")
        machine.lose_power()
        seen.add(tuple(sorted(name for name, _ in session(machine).list("/data"))))
    assert seen == {("kept",), ("kept", "one"), ("kept", "one", "two"), ("kept", "three", "two"), ("three", "two")}


def test_an_atomic_and_durable_write_is_whole_or_not_there() -> None:
    seen = set()
    for seed in range(100):
        machine = SimulatedDisk(str(seed))
        machine.make_root("/data")
        disk = session(machine)
        disk.write_atomically("/data/f", b"old" * 1000)
        machine.kill_at(random.Random(seed).randint(1, 6), disk.end)
        try:
            disk.write_atomically("/data/f", b"new" * 2000)
            seen.add("finished")
        except Killed:
            pass
        machine.lose_power()
        left = session(machine).read_bytes("/data/f")
        assert left in (b"old" * 1000, b"new" * 2000)
        seen.add(left[:3].decode())
    assert seen == {"old", "new", "finished"}


def test_a_death_may_wait_for_a_file_and_for_leave(machine: SimulatedDisk, disk: DiskSession) -> None:
    machine.kill_at(2, disk.end, within=".cleaned")
    for number in range(5):
        disk.write_bytes(f"/data/{number}.log", b"x")
    disk.create("/data/0.log.cleaned")
    with pytest.raises(Killed):
        disk.write_bytes("/data/6.log", b"x")
    alive = session(machine)
    machine.kill_at(1, alive.end, may_die=lambda: False)
    alive.write_bytes("/data/7.log", b"x")


def test_someone_may_look_before_a_cleaned_segment_takes_its_place(machine: SimulatedDisk, disk: DiskSession) -> None:
    """What the cleaner leaves out is seen by no one afterwards: seed 14442 took it for lost."""
    seen: list[list[str]] = []
    machine.before_swap = lambda: seen.append(sorted(entry.name for entry in disk.list("/data")))
    for name in ("0.log", "0.log.cleaned", "0.index.cleaned"):
        disk.create(f"/data/{name}")
    for name in ("0.index", "0.log"):
        disk.rename(f"/data/{name}.cleaned", f"/data/{name}.swap")
    disk.rename("/data/0.log.swap", "/data/0.log")
    assert seen == [["0.index.swap", "0.log", "0.log.cleaned"]]


def test_a_full_disk_takes_what_fits(machine: SimulatedDisk, disk: DiskSession) -> None:
    file = disk.create("/data/f")
    machine.room = 10
    with pytest.raises(OSError, match="no space"):
        file.write_at(0, b"x" * 30)
    assert file.size() == 10
    file.write_at(0, b"y" * 10)
    with pytest.raises(OSError, match="no space"):
        disk.create("/data/other")
    file.truncate(4)
    file.write_at(4, b"z" * 6)
    disk.remove("/data/f")
    disk.write_bytes("/data/other", b"x" * 10)
    machine.heal()
    disk.write_bytes("/data/other", b"x" * 1000)


def test_pages_whose_sync_failed_are_gone_for_good(machine: SimulatedDisk, disk: DiskSession) -> None:
    disk.write_atomically("/data/f", b"old")
    file = disk.open("/data/f")
    file.write_at(0, b"new")
    machine.syncs_fail = True
    with pytest.raises(OSError, match="input/output"):
        file.sync()
    machine.heal()
    file.sync()
    assert file.read_at(0, 3) == b"new"
    machine.lose_power()
    assert session(machine).read_bytes("/data/f") == b"old"


def test_a_failing_disk_raises_on_writes(machine: SimulatedDisk, disk: DiskSession) -> None:
    file = disk.create("/data/f")
    machine.writes_fail = True
    for change in (lambda: file.write_at(0, b"x"), lambda: file.truncate(0)):
        with pytest.raises(OSError, match="input/output"):
            change()


def test_a_failing_disk_raises_on_reads(machine: SimulatedDisk, disk: DiskSession) -> None:
    met: list[tuple[str, bool]] = []
    disk.on_error = lambda error, path, reading: met.append((path, reading))
    disk.write_bytes("/data/f", b"abc")
    file = disk.open("/data/f")
    machine.reads_fail = True
    reads = (lambda: file.read_at(0, 1), lambda: disk.read_bytes("/data/f"), lambda: disk.map("/data/f"))
    for read in reads:
        with pytest.raises(OSError, match="input/output"):
            read()
    assert met == [("/data/f", True)] * 3
    file.write_at(3, b"d")
    machine.is_observed = True
    assert disk.read_bytes("/data/f") == b"abcd", "who looks at the node from outside is not hindered"
    machine.is_observed = False
    machine.heal()
    assert file.read_at(0, 9) == b"abcd"


@pytest.mark.parametrize("power_lost", [True, False])
@pytest.mark.parametrize("seed", range(examples(150)))
def test_a_log_keeps_what_was_flushed_and_nothing_that_was_not_written(seed: int, power_lost: bool) -> None:
    """The real log on this disk, through crashes at any operation."""
    randomness = random.Random(seed)
    machine = SimulatedDisk(str(seed))
    machine.make_root("/data")
    config = LogConfig(segment_bytes=2000, index_interval_bytes=200)
    written: list[bytes] = []
    for _ in range(4):
        disk = session(machine)
        machine.kill_at(randomness.randint(1, 120), disk.end)
        directory = LogDirectory(disk, "/data", max_open_files=8)
        flushed = 0
        try:
            if any(report.damaged for report in directory.start(NOW)):
                return
            if PARTITION in directory.partitions:
                log = directory.open(PARTITION, config, NOW)
            else:
                log = directory.create(PARTITION, TOPIC_ID, config, NOW)
            del written[log.log_end_offset :]
            assert _batches(log) == written
            flushed = log.recovery_point
            while True:
                data = batch(randomness.randbytes(randomness.randint(1, 600)))
                log.append(data, leader_epoch=0, now_ms=NOW)
                written.append(bytes(data))
                if randomness.random() < 0.2 and (job := log.flush_job()) is not None:
                    job.done(job.run())
                    flushed = log.recovery_point
                if randomness.random() < 0.1 and (job := directory.checkpoint_job(NOW)) is not None:
                    job.done(job.run())
        except Killed:
            pass
        except KafkaError as error:
            pytest.fail(str(error))
        if power_lost:
            machine.lose_power()
            kept = flushed
        else:
            kept = len(written)
        machine.heal()
        directory = LogDirectory(session(machine), "/data", max_open_files=8)
        if any(report.damaged for report in directory.start(NOW)):
            return  # a sealed segment with a damaged batch is kept on purpose; readers of that batch are told
        if PARTITION in directory.partitions:
            log = directory.open(PARTITION, config, NOW)
            assert kept <= log.log_end_offset
            if log.log_start_offset > 0:
                assert flushed == 0
                return  # a log none of which was ever flushed may lose its first segment: see docs/simulation.md
            written.append(b"") if log.log_end_offset > len(written) else None
            found = _batches(log)
            assert found[: len(written) - 1] == written[: len(found)][: len(written) - 1]
            written = found
        else:
            assert kept == 0
            written = []
        directory.close(NOW) if randomness.random() < 0.3 else machine.locks.clear()


def _batches(log: object) -> list[bytes]:
    found: list[bytes] = []
    offset = 0
    end = log.log_end_offset  # type: ignore[attr-defined]
    while offset < end:
        piece = log.read(offset, 1 << 20, up_to=end, at_least_one=True)  # type: ignore[attr-defined]
        piece.prepare()
        data = piece.read()
        assert data, f"the log ends at {end} and has nothing at {offset}"
        for position, header in iterate_headers(data):
            found.append(data[position : position + header.size])
            offset = header.last_offset + 1
    return found
