"""`millstream log compaction` on the files of logs that were cleaned in part, wholly, never."""

from pathlib import Path
from uuid import UUID

from millstream.cli import exit_codes
from millstream.config.topic_config import LogConfig
from millstream.formats.model.identifiers import TopicName, TopicPartition
from millstream.node.runtime.disk import RealDisk
from millstream.node.storage.log.directory import LogDirectory
from tests.integration.cli.conftest import Run
from tests.unit.node.storage.cleaner.compacted import NOW, append, clean, config


def make(root: str) -> None:
    directory = LogDirectory(RealDisk(), root)
    directory.start(NOW)
    for number, name in enumerate(("cleaned", "half", "never")):
        settings = config() if name != "never" else LogConfig()
        log = directory.create(TopicPartition(TopicName(name), 0), UUID(int=number + 1), settings, NOW)
        for record in range(20):
            append(log, (b"%d" % (record % 4), b"x" * 50))
        log.roll(0)
        if name != "never":
            clean(log)
        if name == "half":
            for record in range(20):
                append(log, (b"%d" % (record % 4), b"x" * 50))
    directory.close(NOW)


def test_compaction_has_a_row_for_each_compacted_log(offline: Run, tmp_path: Path) -> None:
    make(str(tmp_path / "data"))
    rows = {row["partition"]: row for row in offline("log", "compaction", tmp_path / "data", "--json").json()}
    assert set(rows) == {"cleaned-0", "half-0"}
    assert rows["cleaned-0"]["cleaned_to"] == rows["cleaned-0"]["sealed_to"] == 20
    assert (rows["cleaned-0"]["dirty_bytes"], rows["cleaned-0"]["dirty_ratio"]) == (0, 0)
    half = rows["half-0"]
    assert half["cleaned_to"] == 20 < half["sealed_to"]
    assert 0 < half["dirty_ratio"] < 1
    everything = offline("log", "compaction", tmp_path / "data", "--json", "--all").json()
    assert [row["cleaned_to"] for row in everything] == [20, 20, None]


def test_compaction_prints_a_table(offline: Run, tmp_path: Path) -> None:
    make(str(tmp_path / "data"))
    said = offline("log", "compaction", tmp_path / "data", "--all")
    assert said.code == exit_codes.OK
    assert said.out.splitlines()[0].startswith("partition  cleaned to")
    assert "never-0" in said.out


def test_what_is_not_there_or_damaged(offline: Run, tmp_path: Path) -> None:
    assert offline("log", "compaction", tmp_path / "nowhere").code == exit_codes.NOT_FOUND
    (tmp_path / "cleaner-offset-checkpoint").write_text("0\n1\n")
    assert offline("log", "compaction", tmp_path).code == exit_codes.DAMAGED
