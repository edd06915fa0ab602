import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.node.runtime import disk as disk_module
from millstream.node.runtime.disk import RealDisk


@pytest.fixture
def disk() -> RealDisk:
    return RealDisk()


def test_read_and_write_at_positions(disk: RealDisk, tmp_path: Path) -> None:
    file = disk.create(str(tmp_path / "f"))
    file.write_at(0, b"hello")
    file.write_at(5, memoryview(bytearray(b" world")))
    assert file.read_at(3, 5) == b"lo wo"
    assert file.read_at(8, 100) == b"rld"
    assert file.read_at(50, 10) == b""
    assert file.size() == 11
    file.truncate(4)
    file.sync()
    assert (tmp_path / "f").read_bytes() == b"hell"
    assert disk.file_size(str(tmp_path / "f")) == 4
    assert disk.modified_ns(str(tmp_path / "f")) == file.modified_ns()
    assert disk.create(str(tmp_path / "f")).size() == 0


def test_short_writes_are_finished(disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def seven_at_most(fd: int, data: bytes, position: int) -> int:
        return os.pwrite(fd, bytes(data)[:7], position)

    monkeypatch.setattr(disk_module, "_pwrite", seven_at_most)
    file = disk.create(str(tmp_path / "f"))
    file.write_at(0, bytes(range(100)))
    assert file.read_at(0, 200) == bytes(range(100))


def test_a_write_that_makes_no_progress_is_an_error(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_module, "_pwrite", lambda fd, data, position: 0)
    with pytest.raises(OSError, match="no more bytes"):
        disk.create(str(tmp_path / "f")).write_at(0, b"x")


def test_short_reads_are_finished(disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_module, "_pread", lambda fd, length, position: os.pread(fd, min(length, 7), position))
    (tmp_path / "f").write_bytes(bytes(range(100)))
    file = disk.open(str(tmp_path / "f"))
    assert file.read_at(10, 50) == bytes(range(10, 60))
    assert file.read_at(90, 50) == bytes(range(90, 100))


def test_descriptors_close_with_their_last_reference(disk: RealDisk, tmp_path: Path) -> None:
    file = disk.create(str(tmp_path / "f"))
    fd = file.fileno()
    os.fstat(fd)
    del file
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_residency_tells_what_is_in_the_page_cache(disk: RealDisk, tmp_path: Path) -> None:
    file = disk.create(str(tmp_path / "f"))
    file.write_at(0, b"x" * (1 << 20))
    assert file.is_resident(0, 1 << 20)
    assert file.is_resident(5, 0)
    file.sync()
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    cold = file.is_resident(0, 1 << 20)
    assert cold in (True, False), "a file system may keep the pages, or not know"
    file.read_at(0, 1 << 20)
    assert file.is_resident(0, 1 << 20)


def test_residency_where_the_platform_cannot_tell(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_supported(*_: object) -> int:
        raise OSError(95, "not supported")

    monkeypatch.setattr(disk_module, "_preadv", not_supported)
    file = disk.create(str(tmp_path / "f"))
    file.write_at(0, b"x")
    assert file.is_resident(0, 1)
    assert file.is_resident(0, 1)


def test_files_and_directories_are_written_listed_and_deleted(disk: RealDisk, tmp_path: Path) -> None:
    root = str(tmp_path / "a" / "b")
    disk.make_directory(root)
    disk.make_directory(root)
    disk.write_bytes(f"{root}/one", b"1")
    disk.write_bytes(f"{root}/one", b"")
    disk.write_atomically(f"{root}/two", b"22")
    disk.write_atomically(f"{root}/two", b"2", durable=False)
    disk.make_directory(f"{root}/sub")
    assert sorted(disk.list(root)) == [("one", False), ("sub", True), ("two", False)]
    assert disk.read_bytes(f"{root}/two") == b"2"
    disk.rename(f"{root}/two", f"{root}/three")
    assert disk.exists(f"{root}/three")
    assert not disk.exists(f"{root}/two")
    disk.remove(f"{root}/three")
    disk.remove(f"{root}/three")
    disk.sync_directory(root)
    disk.sync_filesystem(root)
    disk.remove_directory(root)
    disk.remove_directory(root)
    assert not disk.exists(root)
    with pytest.raises(FileNotFoundError):
        disk.open(f"{root}/one")


def test_a_mapped_file_outlives_its_name(disk: RealDisk, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abcdef")
    (tmp_path / "empty").write_bytes(b"")
    mapped = disk.map(str(tmp_path / "f"))
    assert bytes(mapped[2:4]) == b"cd"
    assert mapped.readonly
    (tmp_path / "f").unlink()
    assert bytes(mapped) == b"abcdef"
    assert len(disk.map(str(tmp_path / "empty"))) == 0


def test_the_lock_is_exclusive_and_dies_with_its_process(disk: RealDisk, tmp_path: Path) -> None:
    path = str(tmp_path / ".lock")
    held = disk.lock(path)
    assert held is not None
    assert disk.lock(path) is None
    held.release()
    program = (
        "import os, sys; from millstream.node.runtime.disk import RealDisk; lock = RealDisk().lock(sys.argv[1]);"
        "assert lock is not None; os._exit(0)"
    )
    subprocess.run(
        [sys.executable, "-c", program, path], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    again = disk.lock(path)
    assert again is not None
    again.release()


def in_a_process(program: str, path: str) -> str:
    """What a process prints that has `path` as its argument."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program, path], check=True, env=environment, capture_output=True, text=True
    )
    return done.stdout.strip()


_POSIX_LOCK = (
    "import fcntl, sys; file = open(sys.argv[1], 'r+')\n"
    "try: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB); print('free')\n"
    "except OSError: print('held')"
)


def test_the_lock_excludes_posix_locks(disk: RealDisk, tmp_path: Path) -> None:
    path = str(tmp_path / ".lock")
    held = disk.lock(path)
    assert held is not None
    assert in_a_process(_POSIX_LOCK, path) == "held"
    # A second attempt in this process must not take the first one's lock away.
    assert disk.lock(path) is None
    assert disk.lock(str(tmp_path / "." / ".lock")) is None
    assert in_a_process(_POSIX_LOCK, path) == "held"
    held.release()
    assert in_a_process(_POSIX_LOCK, path) == "free"


def test_a_posix_lock_excludes_this_one(disk: RealDisk, tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    path.touch()
    holder = (
        "import fcntl, sys; file = open(sys.argv[1], 'r+'); fcntl.lockf(file, fcntl.LOCK_EX);"
        "print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", holder, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert disk.lock(str(path)) is None
        process.communicate()
    taken = disk.lock(str(path))
    assert taken is not None
    del taken  # without a release, as when its owner fails
    assert in_a_process(_POSIX_LOCK, str(path)) == "free"
