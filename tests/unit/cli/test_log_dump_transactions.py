"""`millstream log dump` on a partition with transactions: markers, aborted ones, and those that are open."""

from pathlib import Path
from uuid import UUID

import pytest

from millstream.config.topic_config import LogConfig
from millstream.formats.model.identifiers import Marker, TopicName, TopicPartition
from millstream.formats.records.record import Record, build_batch
from millstream.node.runtime.disk import RealDisk
from millstream.node.storage.log.directory import LogDirectory
from tests.integration.cli.conftest import Run

NOW = 1_700_000_000_000


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """Producer 5 commits, 6 aborts, 7 goes on."""
    directory = LogDirectory(RealDisk(), str(tmp_path))
    directory.start(NOW)
    partition = TopicPartition(TopicName("paid"), 0)
    log = directory.create(partition, UUID(int=1), LogConfig(), NOW)
    for producer in (5, 6, 7):
        data = build_batch(
            [Record(b"k", b"v", timestamp=NOW)],
            producer_id=producer,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        log.append(data, leader_epoch=0, now_ms=NOW)
    for producer in (5, 6):
        log.append_marker(Marker(producer, 1, 3, producer == 5, 2), leader_epoch=0, now_ms=NOW)
    directory.close(NOW)
    return tmp_path / "paid-0"


def test_dump_shows_markers_and_aborted_transactions(offline: Run, partition: Path) -> None:
    outcome = offline("log", "dump", partition, "--json", "--records")
    assert outcome.code == 0, outcome.err
    entries = outcome.json_lines()
    markers = [(entry["base_offset"], entry["marker"]) for entry in entries if "marker" in entry]
    assert markers == [(3, "commit"), (4, "abort")]
    aborted = [entry for entry in entries if entry["kind"] == "aborted transaction"]
    assert [(entry["producer_id"], entry["first_offset"], entry["last_offset"]) for entry in aborted] == [(6, 1, 4)]
    producers = {entry["producer_id"]: entry["transaction_start"] for entry in entries if entry["kind"] == "producer"}
    assert producers == {5: -1, 6: -1, 7: 2}


def test_dump_prints_transactions_as_text(offline: Run, partition: Path) -> None:
    out = offline("log", "dump", partition).out
    assert "transactional  control: commit (coordinator epoch 3)" in out
    assert "producer 6 aborted offsets 1 to 4  last stable offset then 2" in out
    assert "transaction open since offset 2" in out


def test_a_damaged_index_is_told(offline: Run, partition: Path) -> None:
    index = next(partition.glob("*.txnindex"))
    whole = index.read_bytes()
    index.write_bytes(whole[:-1])
    assert offline("log", "dump", index).code == 7
    index.write_bytes(whole[:-10] + b"\x09" + whole[-9:])
    outcome = offline("log", "dump", index)
    assert outcome.code == 7 and "the marker should be" in outcome.out
