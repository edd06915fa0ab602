from pathlib import Path

from millstream.node.storage.disk import File, FileCache, OnDemand
from tests.unit.node.storage.faulty_disk import FaultyDisk


def resources(cache: FileCache, directory: Path, count: int) -> list[OnDemand[File]]:
    for at in range(count):
        (directory / str(at)).write_bytes(b"content %d" % at)
    return [cache.file(str(directory / str(at))) for at in range(count)]


def test_never_more_open_than_allowed(tmp_path: Path) -> None:
    cache = FileCache(FaultyDisk(), 4)
    files = resources(cache, tmp_path, 20)
    for _ in range(3):
        for at, file in enumerate(files):
            assert file.get().read_at(0, 20) == b"content %d" % at
            assert cache.open_count <= 4


def test_what_is_used_gets_a_second_chance(tmp_path: Path) -> None:
    disk = FaultyDisk()
    cache = FileCache(disk, 4)
    files = resources(cache, tmp_path, 12)
    hot = files[0]
    for file in files:
        file.get()
        hot.get()
    assert disk.opened.count(hot.path) <= 2


def test_a_holder_keeps_an_evicted_file_alive(tmp_path: Path) -> None:
    cache = FileCache(FaultyDisk(), 2)
    files = resources(cache, tmp_path, 10)
    held = files[0].get()
    for file in files[1:]:
        file.get()
    (tmp_path / "0").unlink()
    assert held.read_at(0, 20) == b"content 0"


def test_closed_files_are_opened_again(tmp_path: Path) -> None:
    disk = FaultyDisk()
    cache = FileCache(disk, 4)
    (file,) = resources(cache, tmp_path, 1)
    file.get()
    file.close()
    assert cache.open_count == 0
    assert file.get().read_at(0, 7) == b"content"
    assert len(disk.opened) == 2
