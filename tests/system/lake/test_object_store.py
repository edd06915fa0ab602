"""The same tables in an S3-compatible store, with the same options for every format."""

import threading
from datetime import timedelta
from pathlib import Path

import pytest

from millstream.lake.errors import LakeError, LakeOptionError
from millstream.lake.options import parse_options
from millstream.lake.seam import seam_offsets
from millstream.lake.table import AppTransaction, LakeTable, open_or_create, open_table
from tests.system.lake.conftest import RECORDS, records, rows_of, written
from tests.system.lake.object_store import store

__all__ = ["store"]

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:botocore", "ignore::DeprecationWarning:moto")


def _options(store: dict[str, str], tmp_path: Path, table_format: str, name: str) -> dict[str, str]:
    catalog = {"catalog.type": "sql", "catalog.uri": f"sqlite:///{tmp_path}/catalog.db"}
    more = catalog if table_format == "iceberg" else {}
    return {"path": f"s3://lake/{name}-{table_format}", "tableFormat": table_format, **store, **more}


def _offsets(table: LakeTable) -> list[int]:
    return sorted(row["offset"] for row in rows_of(table))


def test_a_table_in_a_store(store: dict[str, str], tmp_path: Path, table_format: str) -> None:
    options = _options(store, tmp_path, table_format, "whole")
    table = open_or_create(parse_options({**options, "partitionBy": "_day"}), RECORDS)
    first = AppTransaction("q", 0)
    assert table.commit(written(table, records(0, 10), records(10, 5, days=1)), first, replace=False)
    files = written(table, records(0, 10))
    assert not table.commit(files, first, replace=False)
    table.discard(file.path for file in files)
    assert table.commit(written(table, records(15, 5)), AppTransaction("q", 1), replace=False)
    again = open_table(parse_options(options))
    assert _offsets(again) == list(range(20))
    assert seam_offsets(options["path"], {name: value for name, value in options.items() if name != "path"}) == {
        ("orders", 0): 20
    }
    again.optimize(128 << 20, (), lambda _now, _total: None)
    assert len(again.scan().files) == 2
    again.vacuum(timedelta(0))
    assert _offsets(open_table(parse_options(options))) == list(range(20))


@pytest.mark.parametrize(
    "table_format", ["delta", pytest.param("iceberg", marks=pytest.mark.slow)]
)  # Iceberg's catalog decides there, which is not in the store
def test_writers_at_the_same_time(store: dict[str, str], tmp_path: Path, table_format: str) -> None:
    """The store decides who is first: a version of the log is created once."""
    options = parse_options(_options(store, tmp_path, table_format, "busy"))
    open_or_create(options, RECORDS)
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            table = open_or_create(options, RECORDS)
            for batch in range(3):
                rows = written(table, records(number * 100 + batch, 1))
                assert table.commit(rows, AppTransaction(f"q{number}", batch), replace=False)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert _offsets(open_table(options)) == [number * 100 + batch for number in range(3) for batch in range(3)]


def test_a_store_that_does_not_respond_is_named_in_the_error(store: dict[str, str]) -> None:
    with pytest.raises(LakeError, match=r"s3://nowhere/t on http://127\.0\.0\.1:\d+"):
        open_table(parse_options({"path": "s3://nowhere/t", **store}))
    with pytest.raises(LakeOptionError, match="needs a catalog that all its users can reach"):
        open_or_create(parse_options({"path": "s3://lake/t", "tableFormat": "iceberg", **store}), RECORDS)
