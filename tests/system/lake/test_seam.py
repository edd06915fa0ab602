"""Where a table ends and the broker takes over: no offset twice, none left out."""

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from millstream.lake.errors import LakeError
from millstream.lake.seam import open_history, seam_offsets
from tests.system.lake.conftest import RECORDS, opened, records, written


def test_the_seam_is_after_the_greatest_offset_of_each_partition(tmp_path: Path, table_format: str) -> None:
    table = opened(tmp_path / "t", table_format)
    table.commit(written(table, records(0, 10)), None, replace=False)
    table.commit(written(table, records(10, 5)), None, replace=False)
    long_name = "a-topic-with-a-name-that-is-cut-off-in-metadata"
    mixed = written(table, records(0, 3, partition=1), records(7, 2, topic=long_name))
    table.commit(mixed, None, replace=False)
    expected = {("orders", 0): 15, ("orders", 1): 3, (long_name, 0): 9}
    assert seam_offsets(str(tmp_path / "t")) == expected
    table.optimize(128 << 20, (), lambda _now, _total: None)
    assert seam_offsets(str(tmp_path / "t")) == expected
    only = open_history(str(tmp_path / "t"), topics=frozenset({"orders"}))
    assert only.seam == {("orders", 0): 15, ("orders", 1): 3}
    assert sum(batch.num_rows for unit in only.units for batch in only.read(unit, RECORDS)) == 18


def test_history_is_pinned_and_goes_over_to_tasks(tmp_path: Path, table_format: str) -> None:
    table = opened(tmp_path / "t", table_format)
    table.commit(written(table, records(10, 10, days=1)), None, replace=False)
    table.commit(written(table, records(0, 10)), None, replace=False)
    version = open_history(str(tmp_path / "t")).version
    table.commit(written(table, records(20, 10, days=2)), None, replace=False)
    history = pickle.loads(pickle.dumps(open_history(str(tmp_path / "t"), version=version)))
    wanted = pa.schema([RECORDS.field("value"), RECORDS.field("offset")])
    rows = [row for unit in history.units for batch in history.read(unit, wanted) for row in batch.to_pylist()]
    assert [row["offset"] for row in rows] == list(range(20))  # by time, not by when they were written
    assert rows[0] == {"value": b"v0", "offset": 0}
    assert history.seam == {("orders", 0): 20}
    assert [unit.rows for unit in history.units] == [10, 10]


def test_tables_that_cannot_be_history(tmp_path: Path, table_format: str) -> None:
    rows = pa.record_batch({"value": pa.array([b"x"])})
    table = opened(tmp_path / "t", table_format, rows.schema)
    table.commit(written(table, rows), None, replace=False)
    with pytest.raises(LakeError, match="no column topic, partition, offset"):
        open_history(str(tmp_path / "t"))
    table = opened(tmp_path / "u", table_format)
    table.commit(written(table, records(0, 1)), None, replace=False)
    history = open_history(str(tmp_path / "u"))
    with pytest.raises(LakeError, match="has no column headers"):
        history.check(RECORDS.append(pa.field("headers", pa.string())))
    with pytest.raises(LakeError, match="column value is binary in the table"):
        history.check(pa.schema([pa.field("value", pa.int64())]))
