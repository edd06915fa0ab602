"""Which errors take a log directory offline, and when it can be used again."""

import errno
from pathlib import Path

import pytest

from millstream.node.runtime.disk import RealDisk
from millstream.node.storage.directory_health import NOT_THE_DISK, DirectoryFailure, DirectoryHealth, try_directory
from millstream.node.storage.log.directory import LogDirectory
from millstream.simulator.disk import DiskSession, SimulatedDisk


@pytest.fixture
def machine() -> SimulatedDisk:
    disk = SimulatedDisk("test")
    disk.make_root("/data")
    return disk


def session_of(machine: SimulatedDisk) -> DiskSession:
    return machine.attach(lambda: 0)


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS, errno.ENXIO, errno.ESTALE, errno.EUCLEAN, errno.EACCES])
def test_errors_of_the_disk_take_it_offline_once(code: int) -> None:
    health = DirectoryHealth("/data")
    heard: list[int] = []
    health.on_failure = lambda: heard.append(code)
    health.note(OSError(code, "broken"), "/data/t-0/0.log", False)
    health.note(OSError(code, "broken again"), "/data/t-1/0.log", True)
    assert heard == [code]
    assert health.failure is not None
    assert health.failure.path == "/data/t-0/0.log" and not health.failure.reading
    assert "broken" in health.failure.reason and "/data/t-0/0.log" in health.failure.reason
    health.recovered()
    assert health.failure is None


@pytest.mark.parametrize("code", sorted(NOT_THE_DISK))
def test_a_full_disk_and_missing_files_do_not(code: int) -> None:
    health = DirectoryHealth("/data")
    health.note(OSError(code, "something else"), "/data/t-0/0.log", False)
    assert health.failure is None


def test_a_directory_hears_of_every_error_of_its_disk(machine: SimulatedDisk) -> None:
    session = session_of(machine)
    directory = LogDirectory(session, "/data")
    file = session.create("/data/x")
    machine.writes_fail = True
    with pytest.raises(OSError):
        file.write_at(0, b"x")
    assert directory.health.failure is not None and directory.health.failure.path == "/data/x"


def test_a_torn_write_leaves_a_part_and_fails(machine: SimulatedDisk) -> None:
    session = session_of(machine)
    file = session.create("/data/x")
    sizes = set()
    for _ in range(50):
        machine.writes_tear = False  # a truncation would fail, too
        file.truncate(0)
        machine.writes_tear = True
        with pytest.raises(OSError) as failure:
            file.write_at(0, bytes(100))
        assert failure.value.errno == errno.EIO
        sizes.add(file.size())
    assert len(sizes) > 10 and max(sizes) <= 100


@pytest.mark.parametrize("fault", ["writes_fail", "writes_tear", "syncs_fail"])
def test_a_directory_can_be_used_when_a_file_can_be_written_and_synced(machine: SimulatedDisk, fault: str) -> None:
    failure = DirectoryFailure("/data/x", "broken", False)
    setattr(machine, fault, True)
    assert try_directory(session_of(machine), "/data", failure) is not None
    machine.heal()
    assert try_directory(session_of(machine), "/data", failure) is None
    assert not session_of(machine).list("/data"), "nothing is left behind"


def test_a_file_that_could_not_be_read_must_be_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(3 << 20))
    failure = DirectoryFailure(str(path), "broken", True)
    assert try_directory(RealDisk(), str(tmp_path), failure) is None

    def pread(fd: int, length: int, position: int) -> bytes:
        raise OSError(errno.EIO, "a bad sector")

    monkeypatch.setattr("millstream.node.runtime.disk._pread", pread)
    problem = try_directory(RealDisk(), str(tmp_path), failure)
    assert problem is not None and problem.errno == errno.EIO
    path.unlink()
    assert try_directory(RealDisk(), str(tmp_path), failure) is None, "who removed it has dealt with it"


def test_a_directory_that_has_failed_is_closed_without_a_word_to_its_disk(machine: SimulatedDisk) -> None:
    session = session_of(machine)
    directory = LogDirectory(session, "/data")
    directory.start(0)
    directory.health.fail(DirectoryFailure("/data/x", "broken", False))
    operations = machine.operations
    directory.close(0)
    assert machine.operations == operations
    again = LogDirectory(session, "/data")
    again.start(0)
    assert not again.started_clean
