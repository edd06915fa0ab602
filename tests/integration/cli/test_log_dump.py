"""`millstream log dump` on files that a broker wrote, whole and damaged."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import millstream
from millstream.testing import EmbeddedBroker
from tests.integration.cli.conftest import Run

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def partition(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed partition: 100 records with each codec, an index entry for nearly every batch."""
    data_dir = tmp_path_factory.mktemp("dump")
    with EmbeddedBroker(data_dir=data_dir) as broker:
        for codec in CODECS:
            with millstream.connect(broker.bootstrap_servers, settings={"compression.type": codec}) as client:
                client.create_topic("dumped", 1, config={"index.interval.bytes": 10}, exist_ok=True)
                for tens in range(10):
                    client.publish_many(
                        "dumped",
                        (
                            millstream.client.Message(f"{codec} {tens}{n}" * 9, f"k{n}", {"h": b"\xff"})
                            for n in range(10)
                        ),
                    )
        assert broker.running
    return data_dir / "dumped-0"


@pytest.fixture
def copy(partition: Path, tmp_path: Path) -> Iterator[Path]:
    target = tmp_path / "dumped-0"
    target.mkdir()
    for file in partition.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    yield target


def test_dump_shows_every_batch_of_a_partition(offline: Run, partition: Path) -> None:
    outcome = offline("log", "dump", partition, "--json")
    assert outcome.code == 0, outcome.err
    entries = outcome.json_lines()
    batches = [entry for entry in entries if entry["kind"] == "batch"]
    assert sum(batch["count"] for batch in batches) == 500
    assert {batch["codec"] for batch in batches} == set(CODECS)
    assert all(batch["valid"] for batch in batches)
    kinds = {entry["kind"] for entry in entries}
    assert {"batch", "index entry", "time index entry", "producer", "leader epoch", "topic id"} <= kinds
    assert "problem" not in kinds


def test_dump_shows_every_record(offline: Run, partition: Path) -> None:
    outcome = offline("log", "dump", partition, "--records", "--json")
    records = [entry for entry in outcome.json_lines() if entry["kind"] == "record"]
    assert [record["offset"] for record in records] == list(range(500))
    assert records[0]["value"] == "none 00" * 9
    assert records[499]["value"] == "zstd 99" * 9
    assert records[499]["headers"] == [["h", "base64:/w=="]]


def test_dump_prints_text_without_json(offline: Run, partition: Path) -> None:
    outcome = offline("log", "dump", partition, "--records")
    assert "crc ok" in outcome.out
    assert "key 'k9'" in outcome.out
    checked = offline("log", "dump", partition.parent, "--check")
    assert checked.code == 0
    assert all("no problems" in line for line in checked.out.splitlines())


def test_dump_finds_a_flipped_bit(offline: Run, copy: Path) -> None:
    segment = copy / f"{0:020d}.log"
    data = bytearray(segment.read_bytes())
    data[100] ^= 1
    segment.write_bytes(data)
    outcome = offline("log", "dump", segment, "--json")
    assert outcome.code == 7
    problems = [entry for entry in outcome.json_lines() if entry["kind"] == "problem"]
    assert problems == [{"file": str(segment), "kind": "problem", "position": 0, "text": "the checksum is wrong"}]
    assert "crc WRONG" in offline("log", "dump", segment).out


@pytest.mark.parametrize(
    ("tail", "text"),
    [(b"\0" * 100, "100 bytes of zeros"), (b"torn", "4 bytes that are not a complete")],
    ids=["zeros", "torn"],
)
def test_dump_finds_a_tail_that_is_not_a_batch(offline: Run, copy: Path, tail: bytes, text: str) -> None:
    segment = max(copy.glob("*.log"))
    segment.write_bytes(segment.read_bytes() + tail)
    outcome = offline("log", "dump", segment, "--check")
    assert outcome.code == 7
    assert text in outcome.out


def test_an_index_that_does_not_fit_its_segment(offline: Run, copy: Path) -> None:
    index = copy / f"{0:020d}.index"
    index.write_bytes(index.read_bytes()[:8] + b"\0\0\0\x05\0\0\0\x07" + index.read_bytes()[16:])
    assert offline("log", "dump", index, "--check").code == 7
    index.write_bytes(b"123")
    assert "whole number of entries" in offline("log", "dump", index, "--check").out


@pytest.mark.parametrize("name", ["leader-epoch-checkpoint", "partition.metadata", "*.snapshot"])
def test_other_files_that_are_damaged(offline: Run, copy: Path, name: str) -> None:
    file = next(copy.glob(name))
    file.write_bytes(b"nonsense")
    outcome = offline("log", "dump", file, "--json")
    assert outcome.code == 7
    assert json.loads(outcome.out)["kind"] == "problem"


def test_dump_of_a_missing_or_other_file_has_an_exit_code(offline: Run, tmp_path: Path) -> None:
    assert offline("log", "dump", tmp_path / "nothing").code == 4
    (tmp_path / "strange.txt").write_text("")
    assert offline("log", "dump", tmp_path / "strange.txt").code == 7
