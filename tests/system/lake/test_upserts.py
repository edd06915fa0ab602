"""Upserts and history tables: checked against a plain model, with late changes, replays and writers that die."""

import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.lake.data_files import write_files
from millstream.lake.errors import CommitConflictError, LakeError, LakeOptionError, StaleWriteError
from millstream.lake.options import parse_options
from millstream.lake.table import AppTransaction, LakeTable, open_or_create, open_table
from millstream.lake.upserts import CHANGES, DELETES, Deletion, Row, UpsertRules, merge, resolve, staging
from millstream.spark.sink.batch_input import BatchInput
from tests.examples import examples
from tests.system.lake.conftest import rows_of

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("shop", pa.string()),
        pa.field("text", pa.string()),
        pa.field("at", pa.int64()),
        pa.field("gone", pa.bool_()),
    ]
)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def change(key: int, at: int, text: str | None) -> Row:
    return {"id": key, "shop": f"s{key % 3}", "text": text, "at": at, "gone": text is None}


def model(changes: Iterable[Row], *, history: bool) -> list[Row]:
    """What a table has after these changes, in whatever order they came. Each (key, at) is there once."""
    by_key: dict[int, list[Row]] = {}
    for each in changes:
        by_key.setdefault(each["id"], []).append(each)
    found = []
    for events in by_key.values():
        events.sort(key=lambda each: each["at"])
        for number, event in enumerate(events):
            following = events[number + 1]["at"] if number + 1 < len(events) else None
            if event["gone"] or (following is not None and not history):
                continue
            row = {name: value for name, value in event.items() if name != "gone"}
            if history:
                row |= {"_valid_from": event["at"], "_valid_to": following, "_current": following is None}
            found.append(row)
    return ordered(found)


def ordered(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["id"], row["at"]))


class Writer:
    """A query that writes batches of changes to a table, as tasks and the driver do it."""

    def __init__(self, path: Path, table_format: str, *, app: str = "q", **more: str) -> None:
        given = {"path": str(path), "tableFormat": table_format, "keys": "id", "sequenceBy": "at"}
        self.options = parse_options(given | {"deleteColumn": "gone"} | more)
        rules = UpsertRules.of(self.options)
        assert rules is not None
        self.rules, self.app = rules, app
        self.table: LakeTable = open_or_create(self.options, rules.table_schema(SCHEMA))

    def staged(self, changes: list[Row], tasks: int = 2) -> list[Any]:
        layout = staging(self.table, SCHEMA)
        return [
            file
            for task in range(tasks)
            for file in write_files([pa.RecordBatch.from_pylist(changes[task::tasks], schema=SCHEMA)], layout, "t")
        ]

    def write(self, number: int, changes: list[Row]) -> bool:
        given = BatchInput.of_rows(len(changes), hash(tuple(sorted((each["id"], each["at"]) for each in changes))))
        transaction = AppTransaction(self.app, number, given)
        return merge(self.table, self.rules, self.staged(changes), SCHEMA, transaction)

    def rows(self) -> list[Row]:
        return ordered(rows_of(open_table(parse_options({"path": self.options.path or ""}))))


def random_changes(chance: random.Random, count: int, keys: int) -> list[Row]:
    """Changes in the order of their sequence."""
    return [
        change(chance.randrange(keys), at, None if chance.random() < 0.25 else f"v{at}") for at in range(1, count + 1)
    ]


@given(st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=examples(200), deadline=None)
def test_any_order_in_any_batches_gives_the_model(chance: random.Random, history: bool) -> None:
    """Pure: what a batch leaves is what the next one finds."""
    rules = UpsertRules(("id",), "at", "gone", history)
    changes = random_changes(chance, 30, 4)
    chance.shuffle(changes)
    rows: list[Row] = []
    deletions: list[Deletion] = []
    at = 0
    while at < len(changes):
        size = chance.randrange(1, 8)
        batch, at = changes[at : at + size], at + size
        keys = {(each["id"],) for each in batch}
        mine = [row for row in rows if (row["id"],) in keys]
        found, left = resolve(rules, batch, mine, [each for each in deletions if each.key in keys], NOW)
        rows = [row for row in rows if (row["id"],) not in keys] + found
        deletions = [each for each in deletions if each.key not in keys] + left
    assert ordered(rows) == model(changes, history=history)


@pytest.mark.parametrize("history", [False, True])
def test_a_table_is_the_model_after_late_changes_replays_and_deaths(
    tmp_path: Path, table_format: str, history: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(f"{table_format} {history}")
    changes = random_changes(chance, 120, 12)
    # Late: a change may be overtaken by some that come after it.
    changes.sort(key=lambda each: each["at"] + chance.randrange(40))
    more = {"history": str(history).lower(), "partitionBy": "shop"}
    writer = Writer(tmp_path / "t", table_format, **more)
    batches = [changes[at : at + 15] for at in range(0, len(changes), 15)]
    done: list[Row] = []
    for number, batch in enumerate(batches):
        if number % 3 == 1:  # the driver dies after it wrote the files, before or after the commit
            commits = number % 2 == 0
            with monkeypatch.context() as dying:
                real = type(writer.table).replace_files

                def die(table: LakeTable, *given: Any, commits: bool = commits, real: Any = real) -> None:
                    if commits:
                        real(table, *given)
                    raise KeyboardInterrupt

                dying.setattr(type(writer.table), "replace_files", die)
                with pytest.raises(KeyboardInterrupt):
                    writer.write(number, batch)
            writer = Writer(tmp_path / "t", table_format, **more)
            assert writer.write(number, batch) is not commits
        else:
            assert writer.write(number, batch)
        done += batch
        assert writer.rows() == model(done, history=history)
    assert not writer.write(len(batches) - 1, batches[-1])  # a replay
    with pytest.raises(StaleWriteError, match="with other input"):
        writer.write(len(batches) - 1, batches[0])
    assert writer.rows() == model(done, history=history)

    # Other engines see the same rows.
    expected = model(done, history=history)
    names = list(expected[0])
    if table_format == "delta":
        seen = polars.read_delta(str(tmp_path / "t")).to_dicts()
        files = [f"{tmp_path}/t/{path}" for path in open_table(writer.options).file_paths()]
    else:
        seen = writer.table._iceberg.scan().to_polars().to_dicts()  # type: ignore[attr-defined]
        files = [task.file.file_path.removeprefix("file://") for task in writer.table._iceberg.scan().plan_files()]  # type: ignore[attr-defined]
    assert ordered(seen) == expected
    in_files = [name for name in names if name != "shop"]  # a column of Delta's directories
    by_duckdb = duckdb.read_parquet(files).select(*in_files).fetchall()
    assert sorted(by_duckdb, key=str) == sorted((tuple(row[name] for name in in_files) for row in expected), key=str)

    # Maintenance changes nothing, and leaves nothing behind.
    writer.table.refresh()
    writer.table.optimize(128 << 20, [], lambda _now, _total: None)
    writer.table.vacuum(timedelta(0))
    assert writer.rows() == expected
    assert not list((tmp_path / "t" / CHANGES).glob("*"))
    assert len(list((tmp_path / "t" / DELETES).glob("*"))) <= 1
    late = change(1, 0, "too late")
    assert writer.write(len(batches), [late])
    assert writer.rows() == model([*done, late], history=history)


def test_a_writer_that_another_one_overtook_merges_again(
    tmp_path: Path, table_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (Writer(tmp_path / "t", table_format, app=app) for app in ("a", "b"))
    first.write(0, [change(1, 1, "one"), change(2, 1, "two")])
    kind, real, calls = type(first.table), type(first.table).replace_files, []

    def overtaken(table: LakeTable, *given: Any) -> None:
        calls.append(table)
        if len(calls) == 1:
            assert second.write(0, [change(1, 5, "newer"), change(3, 5, None)])
        real(table, *given)

    monkeypatch.setattr(kind, "replace_files", overtaken)
    assert first.write(1, [change(1, 3, "older"), change(2, 3, "two again"), change(3, 3, "three")])
    assert len(calls) == 3  # the first, the second inside it, and the first again
    assert [(row["id"], row["text"]) for row in first.rows()] == [(1, "newer"), (2, "two again")]


def test_only_files_with_the_keys_are_written_again(tmp_path: Path, table_format: str) -> None:
    writer = Writer(tmp_path / "t", table_format)
    for number in range(3):
        writer.write(number, [change(key, number, "x") for key in range(number * 10, number * 10 + 10)])
    before = writer.table.file_paths()
    writer.write(3, [change(25, 9, "y")])
    writer.table.refresh()
    assert len(before - writer.table.file_paths()) <= 2  # the tasks of the third batch


def test_a_deletion_is_forgotten_after_a_while(tmp_path: Path, table_format: str) -> None:
    writer = Writer(tmp_path / "t", table_format, keepDeletes="0s")
    writer.write(0, [change(1, 5, None)])
    writer.write(1, [change(1, 3, "late")])
    assert [row["text"] for row in writer.rows()] == ["late"]


def test_rows_are_replaced_by_several_key_columns(tmp_path: Path, table_format: str) -> None:
    writer = Writer(tmp_path / "t", table_format, keys="shop,id")
    writer.write(0, [change(1, 1, "a"), change(2, 1, "b"), change(4, 1, "c")])
    writer.write(1, [change(4, 2, None), change(2, 0, "late"), change(1, 2, "a2")])
    assert [(row["id"], row["text"]) for row in writer.rows()] == [(1, "a2"), (2, "b")]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"keys": "id"}, "keys needs sequenceBy"),
        ({"sequenceBy": "at"}, "need keys"),
        ({"keys": "", "sequenceBy": "at"}, "need keys|keys is empty"),
        ({"keys": "nope", "sequenceBy": "at"}, "no column nope"),
        ({"keys": "id", "sequenceBy": "at", "deleteColumn": "text"}, "must be a boolean column"),
        ({"keys": "id", "sequenceBy": "at", "keepDeletes": "long"}, "write a duration"),
    ],
)
def test_mistakes_are_told(more: dict[str, str], told: str) -> None:
    with pytest.raises(LakeOptionError, match=told):
        rules = UpsertRules.of(parse_options({"path": "/t"} | more))
        assert rules is not None
        rules.table_schema(SCHEMA)


def test_a_key_must_have_a_value() -> None:
    rules = UpsertRules(("id",), "at")
    with pytest.raises(LakeError, match="null in the column id"):
        rules.check(pa.RecordBatch.from_pylist([{**change(1, 1, "x"), "id": None}], schema=SCHEMA))


def test_a_commit_on_an_old_version_is_refused(tmp_path: Path, table_format: str) -> None:
    first, second = (Writer(tmp_path / "t", table_format) for _ in range(2))
    second.write(0, [change(1, 1, "x")])
    with pytest.raises(CommitConflictError):
        first.table.replace_files([], [], None, 0)
