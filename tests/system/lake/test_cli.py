"""`millstream table`: what the commands print, and how they fail."""

import json
from datetime import timedelta
from pathlib import Path

import pytest

from millstream.cli import exit_codes
from millstream.cli.app import run_app
from millstream.client import connect
from millstream.testing import EmbeddedBroker
from tests.system.lake.conftest import BEGIN, FORMATS, opened, records, written


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A directory with a table of each format, each of six small files."""
    for table_format in FORMATS:
        table = opened(tmp_path / f"of-{table_format}", table_format, partitionBy="_day")
        for start in (0, 10, 20):
            table.commit(written(table, records(start, 5), records(start + 5, 5, days=1)), None, replace=False)
    return tmp_path


def _json(capsys: pytest.CaptureFixture[str], *words: str) -> object:
    assert run_app([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_tables_are_listed_and_shown(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = _json(capsys, "table", "list", str(lake))
    assert isinstance(listed, list)
    assert {(each["format"], each["rows"], each["files"], each["partition_by"]) for each in listed} == {
        (table_format, 30, 6, "days(timestamp)") for table_format in FORMATS
    }
    assert run_app(["table", "list", str(lake)]) == 0
    assert "of-iceberg" in capsys.readouterr().out
    for table_format in FORMATS:
        path = str(lake / f"of-{table_format}")
        found = _json(capsys, "table", "describe", path)
        assert isinstance(found, dict)
        assert found["topics"] == [{"topic": "orders", "partition": 0, "next_offset": 30}]
        assert found["columns"]["value"] == "binary"
        assert run_app(["table", "describe", path]) == 0
        out = capsys.readouterr().out
        assert "30 rows in 6 files" in out and "TAIL BEGINS AT" in out
        versions = _json(capsys, "table", "history", path, "-n", "2")
        assert isinstance(versions, list) and len(versions) == 2
        assert run_app(["table", "history", path]) == 0
        assert versions[0]["version"] in capsys.readouterr().out


@pytest.mark.parametrize("table_format", FORMATS)
def test_optimize_makes_fewer_files(lake: Path, table_format: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(lake / f"of-{table_format}")
    result = _json(capsys, "table", "optimize", path, "--sort", "offset")
    assert isinstance(result, dict)
    assert (result["files_before"], result["files_after"]) == (6, 2)
    assert run_app(["table", "optimize", path, "--vacuum", "--retain", "0s"]) == 0
    assert "files: 2 -> 2" in capsys.readouterr().out
    found = _json(capsys, "table", "describe", path)
    assert isinstance(found, dict) and found["rows"] == 30


def test_backfill_writes_rows_to_a_topic(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with EmbeddedBroker() as broker:
        with connect(broker.bootstrap_servers) as client:
            client.create_topic("again", config={"retention.ms": -1})
        words = ["table", "backfill", str(lake / "of-delta"), "--to", "again", "-b", broker.bootstrap_servers]
        words += ["--from", (BEGIN + timedelta(days=1)).isoformat()]
        assert run_app(words) == 0
        assert "wrote 15 rows to again in the order of offset" in capsys.readouterr().out
        assert run_app(words) == 0
        assert "nothing to do: all 15 rows are in again" in capsys.readouterr().out
        with connect(broker.bootstrap_servers) as client:
            values = [record.value for record in client.consume("again", start="earliest", follow=False)]
        assert values == [f"v{offset}".encode() for start in (5, 15, 25) for offset in range(start, start + 5)]


def test_failures_are_a_line_and_a_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, code, message in (
        (["describe", str(tmp_path / "none")], exit_codes.NOT_FOUND, "there is no table at"),
        (["describe", str(tmp_path), "-o", "s3.endpont=x"], exit_codes.USAGE, "did you mean s3.endpoint"),
        (["optimize", str(tmp_path), "--target-size", "big"], exit_codes.USAGE, "--target-size=big"),
        (["optimize", str(tmp_path), "--retain", "long"], exit_codes.USAGE, "--retain long"),
        (["backfill", str(tmp_path), "--to", "t", "--from", "then"], exit_codes.USAGE, "--from then"),
        (["describe", "gs://bucket/t"], exit_codes.USAGE, "S3-compatible"),
    ):
        assert run_app(["table", *words]) == code
        error = capsys.readouterr().err
        assert message in error and "Traceback" not in error
