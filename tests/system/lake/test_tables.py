"""What every format promises: rows come back, a batch is there once, schemas grow, partitions are found again."""

import threading
from datetime import date, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.datasource import GreaterThan

from millstream.lake.errors import LakeError, LakeOptionError, NoTableError, SchemaChangeError, StaleWriteError
from millstream.lake.options import HELP, parse_options
from millstream.lake.scan import Condition, from_spark
from millstream.lake.table import AppTransaction, open_table
from millstream.spark.sink.batch_input import BatchInput
from tests.repository import REPOSITORY
from tests.system.lake.conftest import RECORDS, opened, records, rows_of, written


def _offsets(table: object) -> list[int]:
    return sorted(row["offset"] for row in rows_of(table))  # type: ignore[arg-type]


def test_rows_come_back(tmp_path: Path, table_format: str) -> None:
    table = opened(tmp_path / "t", table_format)
    assert table.commit(written(table, records(0, 10), records(10, 5, partition=1)), None, replace=False)
    again = open_table(parse_options({"path": str(tmp_path / "t")}))
    assert again.format == table_format
    expected = records(0, 10).to_pylist() + records(10, 5, partition=1).to_pylist()
    assert sorted(rows_of(again), key=lambda row: row["offset"]) == expected
    assert rows_of(again, columns=["offset"], conditions=[Condition("offset", ">=", 13)]) == [
        {"offset": 13},
        {"offset": 14},
    ]


def test_a_batch_is_committed_once(tmp_path: Path, table_format: str) -> None:
    table = opened(tmp_path / "t", table_format)
    first = AppTransaction("query-1", 0)
    assert table.commit(written(table, records(0, 10)), first, replace=False)
    replay = opened(tmp_path / "t", table_format)
    files = written(replay, records(0, 10))
    assert not replay.commit(files, first, replace=False)
    replay.discard(file.path for file in files)
    assert replay.commit(written(replay, records(10, 1)), AppTransaction("query-1", 1), replace=False)
    assert replay.commit(written(replay, records(11, 1)), AppTransaction("query-2", 0), replace=False)
    assert _offsets(replay) == list(range(12))


def test_a_number_means_the_same_rows(tmp_path: Path, table_format: str) -> None:
    table = opened(tmp_path / "t", table_format)
    ends = BatchInput.of_offsets(["0 to 10"], ['{"orders":{"0":10}}'])
    assert table.commit(written(table, records(0, 10)), AppTransaction("q", 0x8001, ends), replace=False)
    assert table.commit(written(table, records(10, 1)), AppTransaction("other", 0), replace=False)
    table.optimize(128 << 20, [], lambda _now, _total: None)
    again = opened(tmp_path / "t", table_format)
    assert again.newest_write("none") is None
    assert not again.commit([], AppTransaction("q", 0x8001, ends), replace=False)
    assert not again.commit([], AppTransaction("q", 0x8001), replace=False)  # the user wants it not compared
    longer = BatchInput.of_offsets(["0 to 20"], ['{"orders":{"0":20}}'])
    rows = BatchInput.of_rows(10, 4711)
    for given, shown in ((longer, 'end at {"orders":{"0":20}} now'), (rows, "10 rows with mark")):
        with pytest.raises(StaleWriteError) as refused:
            again.commit([], AppTransaction("q", 0x8001, given), replace=False)
        assert "batch 32769 of query q was written already, with other input" in str(refused.value)
        assert shown in str(refused.value)
        assert 'startingOffsets={"orders":{"0":10}}, the end of the output' in str(refused.value)
    with pytest.raises(StaleWriteError, match="batch 32768 of query q is older than batch 32769"):
        again.commit([], AppTransaction("q", 0x8000, ends), replace=False)
    with pytest.raises(StaleWriteError, match="txnVersion 3 of txnAppId q is older than 32769"):
        again.commit([], AppTransaction("q", 3, rows, is_stream=False), replace=False)
    assert _offsets(again) == list(range(11))


def test_a_commit_to_delta_does_not_read_the_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would read each commit of the table with each batch."""

    def history(*_arguments: object) -> None:
        raise AssertionError("the history was read")

    table = opened(tmp_path / "t", "delta")
    monkeypatch.setattr("deltalake.DeltaTable.history", history)
    for number in range(2):
        given = AppTransaction("q", number, BatchInput.of_rows(1, number))
        assert table.commit(written(table, records(number, 1)), given, replace=False)
        assert not table.commit([], given, replace=False)
    with pytest.raises(AssertionError, match="the history was read"):
        table.commit([], AppTransaction("q", 1, BatchInput.of_rows(1, 7)), replace=False)


def test_a_write_without_its_input_is_known_by_its_number(
    tmp_path: Path, table_format: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As an earlier version wrote it: before the first one with an input, and after it."""
    table = opened(tmp_path / "t", table_format)
    given = BatchInput.of_rows(10, 4711)
    for number, kept in ((0, None), (1, given), (2, None)):
        assert table.commit(written(table, records(number, 1)), AppTransaction("q", number, kept), replace=False)
        replayed = AppTransaction("q", number, BatchInput.of_rows(5, 1))
        if kept is None:
            assert not table.commit([], replayed, replace=False)
            assert f"batch {number} was written by an earlier version; its input is not compared" in caplog.text
        else:
            with pytest.raises(StaleWriteError):
                table.commit([], replayed, replace=False)


def test_two_drivers_with_the_same_batch(tmp_path: Path, table_format: str) -> None:
    """A zombie that opened the table before the other one's commit does not double it."""
    zombie = opened(tmp_path / "t", table_format)
    zombie_files = written(zombie, records(0, 5))
    other = opened(tmp_path / "t", table_format)
    assert other.commit(written(other, records(0, 5)), AppTransaction("q", 7), replace=False)
    assert not zombie.commit(zombie_files, AppTransaction("q", 7), replace=False)
    assert _offsets(other) == list(range(5))


def test_writers_at_the_same_time(tmp_path: Path, table_format: str) -> None:
    opened(tmp_path / "t", table_format)
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            table = opened(tmp_path / "t", table_format)
            for batch in range(3):
                rows = written(table, records(number * 100 + batch * 10, 10))
                assert table.commit(rows, AppTransaction(f"query-{number}", batch), replace=False)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    expected = [number * 100 + offset for number in range(3) for offset in range(30)]
    assert _offsets(open_table(parse_options({"path": str(tmp_path / "t")}))) == expected


def test_a_replaced_table_keeps_its_old_version(tmp_path: Path, table_format: str) -> None:
    table = opened(tmp_path / "t", table_format)
    table.commit(written(table, records(0, 10)), None, replace=False)
    version = table.version
    assert table.commit(written(table, records(50, 2)), None, replace=True)
    assert _offsets(table) == [50, 51]
    assert _offsets(table.at_version(version)) == list(range(10))
    with pytest.raises(NoTableError, match="99999"):
        table.at_version("99999")


def test_late_rows_go_to_the_partition_of_their_day(tmp_path: Path, table_format: str) -> None:
    table = opened(tmp_path / "t", table_format, partitionBy="_day")
    table.commit(written(table, records(0, 2, days=1), records(2, 2, days=2)), None, replace=False)
    table.commit(written(table, records(4, 1, days=2), records(5, 1, days=0)), None, replace=False)
    late = [Condition("timestamp", "<", records(0, 1, days=1).column("timestamp")[0].as_py())]
    plan = table.scan(conditions=late)
    assert len(plan.files) == 1
    assert [row["offset"] for batch in plan.read(plan.files) for row in batch.to_pylist()] == [5]
    if table_format != "iceberg":  # there the day is hidden
        found = {(row["_day"], row["offset"]) for row in rows_of(table)}
        assert (date(2026, 1, 1), 5) in found and (date(2026, 1, 3), 4) in found and len(found) == 6
        assert len(table.scan(conditions=[Condition("_day", "=", date(2026, 1, 3))]).files) == 2


def test_names_with_special_characters(tmp_path: Path, table_format: str) -> None:
    rows = pa.record_batch({"größe in cm": pa.array([1, 2]), "a.b": pa.array(["x", "y"])})
    path = tmp_path / "a lake" / "größe 100%"
    table = opened(path, table_format, rows.schema, partitionBy="größe in cm")
    table.commit(written(table, rows), None, replace=False)
    again = open_table(parse_options({"path": str(path)}))
    assert sorted(rows_of(again), key=lambda row: row["größe in cm"]) == rows.to_pylist()
    # For Delta, z-order takes a dot for the way into a struct.
    again.optimize(128 << 20, [] if table_format == "delta" else ["a.b"], lambda _now, _total: None)
    assert len(rows_of(again)) == 2


def test_partition_values_of_every_kind(tmp_path: Path, table_format: str) -> None:
    rows = pa.record_batch(
        {
            "shop": pa.array(["a/b c", "ü=?", None, "plain"]),
            "number": pa.array([1, -2, 3, None], pa.int32()),
            "vip": pa.array([True, False, None, True]),
            "day": pa.array([date(2026, 1, 1), date(1969, 12, 31), None, date(2026, 1, 1)]),
            "amount": pa.array([1.5, 2.5, 3.5, 4.5]),
        }
    )
    table = opened(tmp_path / "t", table_format, rows.schema, partitionBy="shop, number, vip, day")
    table.commit(written(table, rows), None, replace=False)
    again = open_table(parse_options({"path": str(tmp_path / "t")}))
    assert sorted(rows_of(again), key=lambda row: row["amount"]) == rows.to_pylist()
    assert rows_of(again, columns=["amount"], conditions=[Condition("shop", "=", "ü=?")]) == [{"amount": 2.5}]
    assert rows_of(again, columns=["amount"], conditions=[Condition("vip", "null")]) == [{"amount": 3.5}]


@pytest.mark.parametrize("unit", ["hours", "months"])
def test_tables_are_partitioned_by_hours_and_months(tmp_path: Path, table_format: str, unit: str) -> None:
    table = opened(tmp_path / "t", table_format, partitionBy=f"{unit}(timestamp)")
    table.commit(written(table, records(0, 2), records(2, 2, days=40)), None, replace=False)
    assert len(table.scan().files) == 2
    assert _offsets(table) == [0, 1, 2, 3]


NESTED = pa.struct([pa.field("x", pa.int32())])
WIDER = pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.string())])


def test_new_columns_are_added_and_old_rows_read_null(tmp_path: Path, table_format: str) -> None:
    old = pa.record_batch({"id": pa.array([1], pa.int32()), "s": pa.array([{"x": 1}], NESTED)})
    new = pa.record_batch(
        {
            "id": pa.array([2], pa.int32()),
            "s": pa.array([{"x": 2, "y": "b"}], WIDER),
            "extra": pa.array([["p", None]], pa.list_(pa.string())),
        }
    )
    table = opened(tmp_path / "t", table_format, old.schema)
    table.commit(written(table, old), None, replace=False)
    table = opened(tmp_path / "t", table_format, new.schema)
    table.commit(written(table, new), None, replace=False)
    # A writer that still has the old schema goes on.
    table = opened(tmp_path / "t", table_format, old.schema)
    table.commit(written(table, pa.record_batch({"id": pa.array([3], pa.int32())})), None, replace=False)
    assert sorted(rows_of(table), key=lambda row: row["id"]) == [
        {"id": 1, "s": {"x": 1, "y": None}, "extra": None},
        {"id": 2, "s": {"x": 2, "y": "b"}, "extra": ["p", None]},
        {"id": 3, "s": None, "extra": None},
    ]


def test_types_of_columns_are_widened(tmp_path: Path, table_format: str) -> None:
    narrow = pa.record_batch({"id": pa.array([1], pa.int32()), "price": pa.array([0.5], pa.float32())})
    wide = pa.record_batch({"id": pa.array([2**40], pa.int64()), "price": pa.array([0.1], pa.float64())})
    table = opened(tmp_path / "t", table_format, narrow.schema)
    table.commit(written(table, narrow), None, replace=False)
    if table_format == "delta":
        with pytest.raises(SchemaChangeError, match="column id is int32 in the table and int64 in the rows"):
            opened(tmp_path / "t", table_format, wide.schema)
        return
    table = opened(tmp_path / "t", table_format, wide.schema)
    table.commit(written(table, wide), None, replace=False)
    table = opened(tmp_path / "t", table_format, narrow.schema)  # narrow rows fit into the wide columns
    table.commit(written(table, narrow), None, replace=False)
    assert sorted(rows_of(table), key=lambda row: row["id"]) == [
        {"id": 1, "price": 0.5},
        {"id": 1, "price": 0.5},
        {"id": 2**40, "price": 0.1},
    ]


def test_wrong_changes_of_columns_are_refused(tmp_path: Path, table_format: str) -> None:
    rows = pa.schema([pa.field("id", pa.int64()), pa.field("s", NESTED)])
    opened(tmp_path / "t", table_format, rows)
    for changed, message in (
        (rows.set(0, pa.field("id", pa.string())), "column id is int64 in the table and string in the rows"),
        (rows.set(1, pa.field("s", pa.struct([("x", pa.string())]))), r"column s\.x is int32"),
        (rows.append(pa.field("ID", pa.int64())), "only the case differs"),
        (rows.append(pa.field("nothing", pa.null())), "column nothing has type null"),
    ):
        with pytest.raises(SchemaChangeError, match=message):
            opened(tmp_path / "t", table_format, changed)
    with pytest.raises(SchemaChangeError, match="more is new, and mergeSchema=false"):
        opened(tmp_path / "t", table_format, rows.append(pa.field("more", pa.int64())), mergeSchema="false")
    with pytest.raises(LakeOptionError, match="is partitioned by nothing, not by id"):
        opened(tmp_path / "t", table_format, rows, partitionBy="id")
    other = "delta" if table_format == "iceberg" else "iceberg"
    with pytest.raises(LakeOptionError, match=f"is a table of format {table_format}, not {other}"):
        opened(tmp_path / "t", other, rows)


def test_wrong_partition_terms_are_refused(tmp_path: Path, table_format: str) -> None:
    for term, message in (
        ("nope", "there is no column nope"),
        ("days(key)", "not a time"),
        ("timestamp", r"use days\(timestamp\)"),
        ("weeks(timestamp)", r"one of days\(\)"),
        ("topic,topic", "there twice"),
    ):
        with pytest.raises(LakeOptionError, match=message):
            opened(tmp_path / "t", table_format, partitionBy=term)
    with pytest.raises(NoTableError):
        open_table(parse_options({"path": str(tmp_path / "t")}))


def test_optimize_beside_a_writer(tmp_path: Path, table_format: str) -> None:
    table = opened(tmp_path / "t", table_format, partitionBy="_day")
    for start in range(0, 60, 10):
        table.commit(written(table, records(start, 5), records(start + 5, 5, days=1)), None, replace=False)
    reader = table.at_version(table.version).scan()
    done = threading.Event()
    failures: list[BaseException] = []

    def write() -> None:
        try:
            writer = opened(tmp_path / "t", table_format)
            for number in range(5):
                rows = written(writer, records(1000 + number, 1))
                writer.commit(rows, AppTransaction("q", number), replace=False)
        except BaseException as error:
            failures.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=write)
    thread.start()
    seen: list[tuple[int, int]] = []
    result = table.optimize(128 << 20, (), lambda now, total: seen.append((now, total)))
    thread.join()
    assert not failures and done.is_set()
    assert result.files_before >= 12 > result.files_after
    assert seen[-1][0] == seen[-1][1]
    expected = [*range(60), *range(1000, 1005)]
    assert _offsets(open_table(parse_options({"path": str(tmp_path / "t")}))) == expected
    # Who planned before goes on reading what was there then.
    assert sorted(row["offset"] for batch in reader.read(reader.files) for row in batch.to_pylist()) == list(range(60))
    again = opened(tmp_path / "t", table_format)
    again.optimize(128 << 20, (), lambda _now, _total: None)
    assert _offsets(again) == expected
    assert len(again.scan().files) == 2


def test_optimize_can_sort(tmp_path: Path, table_format: str) -> None:
    table = opened(tmp_path / "t", table_format)
    for start in (20, 0, 10):
        table.commit(written(table, records(start, 10)), None, replace=False)
    table.optimize(128 << 20, ["offset"], lambda _now, _total: None)
    assert [row["offset"] for row in rows_of(table)] == list(range(30))
    with pytest.raises(LakeOptionError, match="no column nope"):
        table.optimize(128 << 20, ["nope"], lambda _now, _total: None)
    table = opened(tmp_path / "u", table_format, partitionBy="topic")
    with pytest.raises(LakeOptionError, match="the table is partitioned by topic"):
        table.optimize(128 << 20, ["topic"], lambda _now, _total: None)


def test_vacuum_deletes_leftovers_and_nothing_else(tmp_path: Path, table_format: str) -> None:
    table = opened(tmp_path / "t", table_format)
    for start in (0, 10):
        table.commit(written(table, records(start, 10)), None, replace=False)
    leftover = written(table, records(99, 1))[0]
    assert (tmp_path / "t" / leftover.path).exists()
    assert table.vacuum(timedelta(days=7)) == 0
    table.optimize(128 << 20, (), lambda _now, _total: None)
    assert table.vacuum(timedelta(0)) >= 3  # two small files and the leftover
    assert not (tmp_path / "t" / leftover.path).exists()
    table.refresh()
    assert _offsets(table) == list(range(20))


def test_a_commit_whose_response_was_lost_keeps_its_files(
    tmp_path: Path, table_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store's client tries again after a lost response, and finds that someone was faster: itself."""
    table = opened(tmp_path / "t", table_format)
    files = written(table, records(0, 10))
    assert table.commit(files, AppTransaction("q", 0), replace=False)
    again = opened(tmp_path / "t", table_format)
    assert not again.commit(files, AppTransaction("q", 0), replace=False)
    again.discard(file.path for file in files)
    assert _offsets(again) == list(range(10))
    if table_format != "delta":  # whose library does that itself
        again.commit(written(again, records(10, 10)), None, replace=False)
        real = type(again)._replace  # type: ignore[attr-defined]
        monkeypatch.setattr(type(again), "_replace", lambda *given: real(*given) and False)
        again.optimize(128 << 20, (), lambda _now, _total: None)
        again.refresh()
        assert _offsets(again) == list(range(20))


def test_empty_batches_make_no_files(tmp_path: Path, table_format: str) -> None:
    table = opened(tmp_path / "t", table_format, partitionBy="_day")
    assert written(table, records(0, 0)) == []


def test_times_that_optimize_cut_off_are_found(tmp_path: Path, table_format: str) -> None:
    table = opened(tmp_path / "t", table_format)
    rows = [row | {"timestamp": row["timestamp"].replace(microsecond=123456)} for row in records(0, 2).to_pylist()]
    for row in rows:
        batch = pa.RecordBatch.from_pylist([row], schema=RECORDS)
        table.commit(written(table, batch), None, replace=False)
    table.optimize(128 << 20, (), lambda _now, _total: None)
    table.refresh()
    last = Condition("timestamp", ">=", rows[-1]["timestamp"])
    assert rows_of(table, columns=["offset"], conditions=[last]) == [{"offset": 1}]


def test_filters_where_engines_differ_are_left_to_spark() -> None:
    schema = pa.schema({"id": pa.int64(), "share": pa.float64()})
    filters = [GreaterThan(("id",), 5), GreaterThan(("share",), 0.5)]  # true of NaN in Spark alone
    assert from_spark(filters, schema) == (Condition("id", ">", 5),)


def test_paths_as_java_writes_them(tmp_path: Path) -> None:
    storage = opened(tmp_path / "t", "delta").storage
    for uri in (f"{tmp_path}/t/data/x", f"file:{tmp_path}/t/data/x", f"file://{tmp_path}/t/data/x"):
        assert storage.relative(uri) == "data/x"
    assert storage.relative(f"file:{tmp_path}/other/x") is None


def test_history_lists_every_version(tmp_path: Path, table_format: str) -> None:
    table = opened(tmp_path / "t", table_format)
    table.commit(written(table, records(0, 10)), AppTransaction("q", 0), replace=False)
    table.commit(written(table, records(10, 10)), AppTransaction("q", 1), replace=False)
    versions = table.history()
    assert versions[0].version == table.version
    assert versions[0].time >= versions[1].time
    assert len(table.history(1)) == 1


def test_a_large_write_makes_several_files(tmp_path: Path, table_format: str) -> None:
    table = opened(tmp_path / "t", table_format, targetFileSize="1KB")
    batches = [records(start, 2000) for start in range(0, 6000, 2000)]
    import millstream.lake.data_files as data_files

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_files, "ROW_GROUP_ROWS", 1000)
        table.commit(written(table, *batches), None, replace=False)
    assert len(table.scan().files) == 3
    assert len(table.scan().splits(1)) == 3 and len(table.scan().splits(1 << 30)) == 1
    assert _offsets(table) == list(range(6000))


def test_the_page_has_every_option() -> None:
    page = (REPOSITORY / "docs" / "lake.md").read_text()
    assert [name for name in HELP if f"`{name}`" not in page] == []


def test_an_iceberg_table_of_another_catalog(tmp_path: Path) -> None:
    opened(tmp_path / "t", "iceberg")
    (tmp_path / "millstream-catalog.db").unlink()
    with pytest.raises(NoTableError, match="that the catalog in its directory does not have"):
        open_table(parse_options({"path": str(tmp_path / "t")}))


def test_options_name_the_nearest() -> None:
    with pytest.raises(LakeOptionError, match="unknown option partitonBy; did you mean partitionBy"):
        parse_options({"path": "x", "partitonBy": "a"})
    with pytest.raises(LakeOptionError, match="did you mean iceberg"):
        parse_options({"path": "x", "tableFormat": "icebreg"})
    with pytest.raises(LakeOptionError, match="the location of the table is missing"):
        parse_options({})
    with pytest.raises(LakeOptionError, match="write a size"):
        parse_options({"path": "x", "targetFileSize": "much"})
    with pytest.raises(LakeOptionError, match="set both"):
        parse_options({"path": "x", "s3.access-key": "k"})
    with pytest.raises(LakeOptionError, match="needs a catalog"):
        opened("s3://bucket/t", "iceberg", RECORDS)  # type: ignore[arg-type]
    assert parse_options({"PATH": "x", "checkpointLocation": "y"}).path == "x"


def test_a_parquet_table_of_an_earlier_version_is_refused_with_the_way_out(tmp_path: Path) -> None:
    log = tmp_path / "t" / "_millstream_log"
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").write_text("{}")
    for call in (
        lambda: open_table(parse_options({"path": str(tmp_path / "t")})),
        lambda: opened(tmp_path / "t", "delta"),
    ):
        with pytest.raises(LakeError, match=r"Parquet table of an earlier version .* Copy its rows to a new table"):
            call()
    with pytest.raises(LakeOptionError, match="tableFormat=parquet: choose one of delta, iceberg"):
        parse_options({"path": "t", "tableFormat": "parquet"})
