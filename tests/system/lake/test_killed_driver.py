"""kill -9 of the driver at random moments, while a topic is copied into a table: each record is there once."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import polars
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from millstream.client import connect
from millstream.lake.options import parse_options
from millstream.lake.table import open_table
from millstream.testing import EmbeddedBroker
from tests.system.lake.batch_writer import KEYS
from tests.system.lake.conftest import FORMATS, rows_of
from tests.system.lake.test_upserts import model, ordered, random_changes

KILLS = 3
RECORDS = 6000


@contextmanager
def _driver(
    broker: EmbeddedBroker, path: Path, table_format: str, how: str, mode: str = "append"
) -> Iterator[subprocess.Popen[str]]:
    command = [
        sys.executable,
        "-m",
        "tests.system.lake.driver",
        broker.bootstrap_servers,
        "t",
        str(path),
        table_format,
        how,
        mode,
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield process
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)  # the JVM and its Python workers are in the same session
        except ProcessLookupError:
            pass
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _publish(broker: EmbeddedBroker, stop: threading.Event, sent: list[int]) -> None:
    with connect(broker.bootstrap_servers) as client:
        while not stop.is_set() and len(sent) < RECORDS:
            begin = len(sent)
            client.publish_many("t", [(f"k{number % 11}", f"{number}") for number in range(begin, begin + 100)])
            sent.extend(range(begin, begin + 100))
            stop.wait(0.5)


def _all_copied(broker: EmbeddedBroker, path: Path, table_format: str, mode: str = "append") -> bool:
    """Copy what is left; as a supervisor would, more than once (on a busy machine Spark gives up on slow workers)."""
    for _attempt in range(3):
        with _driver(broker, path, table_format, "once", mode) as process:
            if process.wait(300) == 0:
                return True
    return False


@pytest.mark.parametrize(
    "table_format", [each if each == "delta" else pytest.param(each, marks=pytest.mark.slow) for each in FORMATS]
)
def test_each_row_once_without_spark(tmp_path: Path, table_format: str) -> None:
    """The same for what we do in Spark's processes alone, which is quick enough for many more kills."""
    moments = random.Random(f"rows {table_format}")
    command = [sys.executable, "-m", "tests.system.lake.batch_writer", str(tmp_path / "t"), table_format]
    for _kill in range(4):
        with subprocess.Popen([*command, "100000"], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stdout.readline() == "running\n"
            time.sleep(moments.uniform(0.2, 1.0))
            process.kill()
    done = tmp_path / "t.done"
    last = (int(done.read_text()) if done.exists() else 0) + 3
    subprocess.run([*command, str(last)], check=True, stdout=subprocess.DEVNULL)
    rows = rows_of(open_table(parse_options({"path": str(tmp_path / "t")})))
    assert sorted(row["id"] for row in rows) == list(range((last + 1) * 10))


@pytest.mark.parametrize(
    "table_format", [each if each == "delta" else pytest.param(each, marks=pytest.mark.slow) for each in FORMATS]
)
def test_a_killed_batch_writer_keeps_the_last_row_of_each_key(tmp_path: Path, table_format: str) -> None:
    """Killed between any two steps of a merge: each key has the row of its last batch, once."""
    moments = random.Random(f"upserts {table_format}")
    command = [sys.executable, "-m", "tests.system.lake.batch_writer", str(tmp_path / "t"), table_format]
    for _kill in range(3):
        with subprocess.Popen([*command, "100000", "upsert"], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stdout.readline() == "running\n"
            time.sleep(moments.uniform(0.3, 1.0))
            process.kill()
    done = tmp_path / "t.done"
    last = (int(done.read_text()) if done.exists() else 0) + 12
    subprocess.run([*command, str(last), "upsert"], check=True, stdout=subprocess.DEVNULL)
    rows = rows_of(open_table(parse_options({"path": str(tmp_path / "t")})))
    expected = {number % KEYS: number // 10 for number in range((last + 1) * 10)}
    assert sorted((row["id"], row["batch"]) for row in rows) == sorted(expected.items())


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("table_format", FORMATS)
def test_a_killed_driver_writes_each_record_once(tmp_path: Path, table_format: str) -> None:
    moments = random.Random(f"lake {table_format}")
    path = tmp_path / "table"
    sent: list[int] = []
    stop = threading.Event()
    with EmbeddedBroker() as broker:
        with connect(broker.bootstrap_servers) as client:
            client.create_topic("t", partitions=3)
        publisher = threading.Thread(target=_publish, args=(broker, stop, sent))
        publisher.start()
        try:
            for _kill in range(KILLS):
                with _driver(broker, path, table_format, "on") as process:
                    assert process.stdout is not None
                    assert process.stdout.readline() == "running\n"
                    time.sleep(moments.uniform(1, 12))
        finally:
            stop.set()
            publisher.join()
        assert _all_copied(broker, path, table_format)
    found = sorted(int(row["value"]) for row in rows_of(open_table(parse_options({"path": str(path)}))))
    assert found == sent


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mode", ["upsert", "history"])
@pytest.mark.parametrize("table_format", FORMATS)
def test_a_killed_spark_driver_keeps_the_last_row_of_each_key(
    tmp_path: Path, table_format: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random changes that come late and twice, and a driver that is killed: the table is the model, for all engines."""
    chance = random.Random(f"upserts through Spark {table_format} {mode}")
    path = tmp_path / "table"
    changes = random_changes(chance, 1500, 60)
    sent = sorted(changes, key=lambda each: each["at"] + chance.randrange(200))  # late
    sent += chance.sample(changes, 100)  # sent again
    stop = threading.Event()

    def publish() -> None:
        with connect(broker.bootstrap_servers) as client:
            for begin in range(0, len(sent), 40):
                part = sent[begin : begin + 40]
                client.publish_many("t", [(str(each["id"]), json.dumps(each)) for each in part])
                stop.wait(0.5)

    with EmbeddedBroker() as broker:
        with connect(broker.bootstrap_servers) as client:
            client.create_topic("t", partitions=3)
        publisher = threading.Thread(target=publish)
        publisher.start()
        try:
            for _kill in range(KILLS):
                with _driver(broker, path, table_format, "on", mode) as process:
                    assert process.stdout is not None
                    assert process.stdout.readline() == "running\n"
                    time.sleep(chance.uniform(2, 12))
        finally:
            stop.set()
            publisher.join()
        assert _all_copied(broker, path, table_format, mode)
    expected = model(changes, history=mode == "history")
    table = open_table(parse_options({"path": str(path)}))
    assert ordered(rows_of(table)) == expected
    if table_format == "delta":
        assert ordered(polars.read_delta(str(path)).to_dicts()) == expected
    else:
        monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
        theirs = SqlCatalog("millstream", uri=f"sqlite:///{tmp_path}/millstream-catalog.db").load_table("default.table")
        assert ordered(theirs.scan().to_arrow().to_pylist()) == expected
        assert ordered(theirs.scan().to_polars().to_dicts()) == expected
    files = [f"{path}/{each}" for each in table.file_paths()]
    ids = duckdb.read_parquet(files).select("id", '"at"', "text").fetchall()
    assert sorted(ids) == sorted((row["id"], row["at"], row["text"]) for row in expected)
