"""What a start makes of a swap that was interrupted, by Kafka's rules: left by Millstream or by Kafka."""

from pathlib import Path

import pytest

from tests.unit.node.storage.cleaner.compacted import append, clean, config, records
from tests.unit.node.storage.conftest import Node


def fill(node: Node) -> list[tuple[int, bytes | None, bytes | None]]:
    log = node.log(config())
    for number in range(30):
        append(log, (b"%d" % (number % 3), b"x" * 50))
    log.roll(0)
    append(log, (b"3", b"y"))
    return records(log)


def leave(node: Node, suffix: str, names: list[str]) -> None:
    for name in names:
        (node.path / f"{name}{suffix}").write_bytes(b"left behind")


def names(node: Node) -> list[str]:
    return sorted(path.name for path in node.path.iterdir())


@pytest.mark.parametrize("clean_stop", [True, False])
@pytest.mark.parametrize(
    ("cleaned", "swap"),
    [
        ([".log", ".index", ".timeindex"], []),
        ([".log"], [".index", ".timeindex"]),  # some were renamed
        ([".timeindex"], [".log", ".index"]),  # in Kafka's order
        ([], [".index"]),  # the rest of one that is over
    ],
)
def test_unfinished_files_of_the_cleaner_are_removed(
    node: Node, clean_stop: bool, cleaned: list[str], swap: list[str]
) -> None:
    before = fill(node)
    node.stop() if clean_stop else node.kill()
    first = f"{0:020d}"
    leave(node, ".cleaned", [first + suffix for suffix in cleaned])
    leave(node, ".swap", [first + suffix for suffix in swap])
    node.start()
    log = node.log(config())
    assert records(log) == before
    assert not [name for name in names(node) if name.endswith((".cleaned", ".swap"))]


@pytest.mark.parametrize("originals", ["all", "none", "some"])
@pytest.mark.parametrize("indexes", [True, False])
def test_what_is_whole_takes_its_place(node: Node, tmp_path: Path, originals: str, indexes: bool) -> None:
    fill(node)
    log = node.log(config())
    bases = log.segments.bases[:-1]
    uncleaned = {path.name: path.read_bytes() for path in node.path.iterdir()}
    clean(log)  # twice: the second pass makes one segment of all
    append(log, (b"3", b"z"))
    log.roll(0)
    clean(log)
    after = records(log)
    assert len(log.segments) == 2
    node.stop()
    for path in list(node.path.glob(f"{0:020d}.*")):
        if path.suffix in (".log", ".index", ".timeindex"):
            if indexes or path.suffix == ".log":
                path.rename(f"{path}.swap")
            else:
                path.unlink()
    for name, content in uncleaned.items():
        base = name.partition(".")[0]
        is_wanted = originals == "all" or (originals == "some" and base == f"{bases[1]:020d}")
        if is_wanted and base.isdigit() and int(base) in bases and not name.endswith(".snapshot"):
            (node.path / name).write_bytes(content)
    node.start()
    log = node.log(config())
    assert records(log) == after
    assert len(log.segments) == 2
    assert not [name for name in names(node) if name.endswith((".cleaned", ".swap"))]
