"""Tables as engines see them that know nothing of us: nested columns, evolved schemas, partitions, compaction."""

from datetime import date
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from tests.system.lake.conftest import opened, written

OLD = pa.struct([pa.field("x", pa.int32())])
NEW = pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.string())])


def _filled(path: Path, table_format: str) -> list[dict[str, Any]]:
    old = pa.record_batch(
        {
            "id": pa.array([1, 2], pa.int64()),
            "day": pa.array([date(2026, 1, 1), date(2026, 1, 2)]),
            "s": pa.array([{"x": 1}, None], OLD),
            "tags": pa.array([["a", None], []], pa.list_(pa.string())),
        }
    )
    new = pa.record_batch(
        {
            "id": pa.array([3], pa.int64()),
            "day": pa.array([date(2026, 1, 1)]),
            "s": pa.array([{"x": 3, "y": "z"}], NEW),
            "tags": pa.array([None], pa.list_(pa.string())),
            "price": pa.array([1.5]),
        }
    )
    for rows in (old, new):
        table = opened(path, table_format, rows.schema, partitionBy="day")
        table.commit(written(table, rows), None, replace=False)
    table.optimize(128 << 20, (), lambda _now, _total: None)
    first = {"id": 1, "day": date(2026, 1, 1), "s": {"x": 1, "y": None}, "tags": ["a", None], "price": None}
    second = {"id": 2, "day": date(2026, 1, 2), "s": None, "tags": [], "price": None}
    third = {"id": 3, "day": date(2026, 1, 1), "s": {"x": 3, "y": "z"}, "tags": None, "price": 1.5}
    return [first, second, third]


def _same(found: pa.Table, expected: list[dict[str, Any]]) -> None:
    rows = sorted(found.to_pylist(), key=lambda row: int(row["id"]))
    assert [{name: row[name] for name in expected[0]} for row in rows] == expected


def test_polars_reads_delta_tables(tmp_path: Path) -> None:
    expected = _filled(tmp_path / "t", "delta")
    _same(polars.read_delta(str(tmp_path / "t")).to_arrow(), expected)


def test_iceberg_in_pyiceberg_and_polars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # the other one is a package of its own
    expected = _filled(tmp_path / "t", "iceberg")
    table = SqlCatalog("millstream", uri=f"sqlite:///{tmp_path}/millstream-catalog.db").load_table("default.t")
    _same(table.scan().to_arrow(), expected)
    _same(table.scan(row_filter="day = '2026-01-01'").to_arrow(), [expected[0], expected[2]])
    with table.update_schema() as change:  # files are read by field id, so a rename changes nothing in them
        change.rename_column("price", "amount")
    renamed = [{("amount" if name == "price" else name): value for name, value in row.items()} for row in expected]
    _same(table.scan().to_arrow(), renamed)
    _same(polars.scan_iceberg(table).collect().to_arrow(), renamed)
