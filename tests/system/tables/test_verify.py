"""`table verify` finds what is planted: a missing file, a missing row, a doubled row, a changed value, a hole."""

import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from millstream.cli import exit_codes
from millstream.cli.table import app
from millstream.cli.terminal import CommandFailedError
from millstream.lake.data_files import write_files
from millstream.lake.ledger import Bookkeeping, LedgerEntry, LedgerState, OffsetRange
from millstream.lake.row_crc import RowCrc
from millstream.lake.table import LakeTable
from millstream.raw_client import Cluster
from millstream.tables.verification import SAME, verify
from millstream.testing import EmbeddedBroker
from tests.system.tables.conftest import (
    FORMATS,
    copier_of,
    copy_all,
    make_topic,
    options_for,
    publish,
    rows_in,
    table_at,
)


def _table(
    broker: EmbeddedBroker, cluster: Cluster, place: Path, table_format: str, name: str, **settings: str
) -> LakeTable:
    """Three commits, of 30 records each."""
    topic = make_topic(cluster, f"{name}-{table_format}", 2, format=table_format, **settings)
    copier = copier_of(cluster, topic, options_for(broker, place))
    for begin in (0, 30, 60):
        publish(broker, topic, ((f"k{number % 7}", f"v{number}") for number in range(begin, begin + 30)))
        copy_all(copier)
    return table_at(place / topic)


def _without(table: LakeTable, row: int) -> None:
    """Rewrites a file without one of its rows, as an engine with a fault would."""
    _rewrite(table, lambda rows: pa.concat_tables([rows.slice(0, row), rows.slice(row + 1)]))


def _rewrite(table: LakeTable, change: "pa.Table") -> None:
    scan = table.scan(table.row_schema.names)
    file = scan.files[0]
    rows = pa.Table.from_batches(list(scan.read([file])), schema=scan.schema)
    made = write_files(change(rows).to_batches(), table.layout(), "planted")
    table.replace_files([file], made, None, table.deletes_number or 0)


def test_a_good_table_is_proven(broker: EmbeddedBroker, cluster: Cluster, tmp_path: Path, table_format: str) -> None:
    table = _table(broker, cluster, tmp_path, table_format, "verify-good")
    report = verify(table, cluster)
    assert report.faults == [] and report.rows == 90
    assert {(each.table, each.topic) for each in report.checks} == {(SAME, SAME)}
    assert sum(each.range.rows for each in report.checks) == 90
    assert len({(each.range.begin, each.range.partition) for each in report.checks}) == len(report.checks)
    table.optimize(1 << 27, (), lambda *_: None)  # compaction changes no row
    assert verify(table_at(table.storage.url), cluster).is_proven


def test_old_versions_may_expire(broker: EmbeddedBroker, cluster: Cluster, tmp_path: Path) -> None:
    """The sums of expired commits are kept."""
    from datetime import timedelta

    table = _table(broker, cluster, tmp_path, "iceberg", "verify-expired")
    before = len(table.ledger_entries())
    table.vacuum(timedelta(0))
    table = table_at(table.storage.url)
    assert len(table.ledger_entries()) < before
    report = verify(table, cluster)
    assert report.is_proven and sum(each.range.rows for each in report.checks) == 90


@pytest.mark.parametrize("fault", ["file", "row", "doubled", "changed", "foreign"])
def test_verify_finds_planted_faults(
    broker: EmbeddedBroker, cluster: Cluster, tmp_path: Path, table_format: str, fault: str
) -> None:
    table = _table(broker, cluster, tmp_path, table_format, f"verify-{fault}")
    if fault == "file":
        os.unlink(tmp_path / table.scan().files[0].path if not table.storage.is_local else _path(table))
        expected = "cannot be read"
    elif fault == "row":
        _without(table, 3)
        expected = "rows are missing"
    elif fault == "doubled":
        _rewrite(table, lambda rows: pa.concat_tables([rows, rows.slice(2, 1)]))
        expected = "doubled offsets"
    elif fault == "changed":
        _rewrite(table, _with_other_value)
        expected = "not the values that were written"
    else:
        rows = pa.Table.from_pylist([{**rows_in(table)[0], "offset": 4711}], schema=table.row_schema)
        table.commit(write_files(rows.to_batches(), table.layout(), "planted"), None, replace=False)
        expected = "no commit has written: 4711"
    for with_topic in (cluster, None):
        report = verify(table_at(table.storage.url), with_topic)
        assert not report.is_proven
        assert any(expected in each for each in report.faults), report.faults


def _path(table: LakeTable) -> str:
    return os.path.join(table.storage.url, table.scan().files[0].path)


def _with_other_value(rows: pa.Table) -> pa.Table:
    values = rows.column("value").to_pylist()
    values[1] = b"other"
    return rows.set_column(rows.schema.get_field_index("value"), "value", pa.array(values, pa.binary()))


def test_verify_finds_skipped_offsets(
    broker: EmbeddedBroker, cluster: Cluster, tmp_path: Path, table_format: str
) -> None:
    """A commit that skips offsets, which no server makes: its ledger is written past the check."""
    table = _table(broker, cluster, tmp_path, table_format, "verify-hole")

    class Careless(Bookkeeping):
        def note(self, before: LedgerState, change: RowCrc):  # type: ignore[no-untyped-def]
            total = replace(before.totals[0], end=self.entry.ranges[0].begin)
            return super().note(replace(before, totals={**before.totals, 0: total}), change)

    end = table.ledger.totals[0].end
    entry = LedgerEntry(table.properties["millstream.topic.id"], (OffsetRange(0, end + 5, end + 6),), 2)
    table.commit([], None, replace=False, books=Careless(entry))
    report = verify(table_at(table.storage.url), None)
    assert f"partition 0: a commit ends at offset {end}, and the next one begins at {end + 5}" in report.faults


def test_the_topic_has_other_records(
    broker: EmbeddedBroker, cluster: Cluster, tmp_path: Path, table_format: str
) -> None:
    """The ledger says that another number of records was read than the topic has."""
    table = _table(broker, cluster, tmp_path, table_format, "verify-topic")
    end = table.ledger.totals[0].end
    entry = LedgerEntry(table.properties["millstream.topic.id"], (OffsetRange(0, end, end + 2, 0, 2),), 2)
    table.commit([], None, replace=False, books=Bookkeeping(entry))
    publish(broker, f"verify-topic-{table_format}", [("k", "x")] * 5, partition=0)
    report = verify(table_at(table.storage.url), cluster)
    assert len(report.faults) == 1 and "not the records that were read" in report.faults[0]


@pytest.mark.parametrize("table_format", FORMATS)
def test_verify_proves_tables_with_keys(
    broker: EmbeddedBroker, cluster: Cluster, tmp_path: Path, table_format: str
) -> None:
    table = _table(broker, cluster, tmp_path, table_format, "verify-upsert", mode="upsert")
    assert sorted(row["key"] for row in rows_in(table)) == [f"k{number}".encode() for number in range(7)]
    report = verify(table, cluster)
    assert report.is_proven and report.rows == 7, report.faults
    _rewrite(table, lambda rows: pa.concat_tables([rows, rows.slice(0, 1)]))
    report = verify(table_at(table.storage.url), cluster)
    assert any("8 rows, and 7 were written" in each for each in report.faults)
    assert any("doubled offsets" in each for each in report.faults)


def test_the_command_proves_a_table_or_exits_with_an_error(
    broker: EmbeddedBroker, cluster: Cluster, tmp_path: Path
) -> None:
    table = _table(broker, cluster, tmp_path, "delta", "verify-command")
    run = CliRunner()
    arguments = ["verify", table.storage.url, "-b", broker.bootstrap_servers]
    good = run.invoke(app, arguments)
    assert good.exit_code == 0 and "every record of verify-command-delta is there once, 90 rows" in good.output
    _without(table, 0)
    bad = run.invoke(app, [*arguments, "--json"])
    assert bad.exit_code == exit_codes.DAMAGED and '"proven": false' in bad.output
    missing = run.invoke(app, ["verify", str(tmp_path / "none"), "--no-topic"]).exception
    assert isinstance(missing, CommandFailedError) and missing.exit_code == exit_codes.NOT_FOUND
