"""`millstream table serve` with Spark: topics come and go, one fails beside the others, status, metrics, kill -9."""

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

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from millstream.admin.tables import TableStatus, table_statuses
from millstream.admin.topics import ConfigChange, ConfigOperation, ConfigResource, TopicAdmin
from millstream.cli import exit_codes
from millstream.cli.table import app
from millstream.lake.errors import NoTableError
from millstream.raw_client import Cluster
from millstream.tables.copier import in_spark
from millstream.tables.server import ServeOptions, TableServer
from millstream.tables.verification import verify
from millstream.testing import EmbeddedBroker
from tests.system.tables.conftest import FORMATS, make_topic, options_for, publish, rows_in, table_at
from tests.waiting import LONG_PATIENCE_S, until

pytestmark = pytest.mark.timeout(900)


@contextmanager
def serving(broker: EmbeddedBroker, spark: SparkSession, place: Path) -> Iterator[TableServer]:
    options = ServeOptions(copy=options_for(broker, place), interval_s=0.2, discover_s=0.2, parallel=2)
    server = TableServer(options, in_spark(spark))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.end()
        thread.join()


def _set(cluster: Cluster, topic: str, name: str, value: str) -> None:
    TopicAdmin(cluster).change(ConfigResource.TOPIC, topic, [ConfigChange(name, value, ConfigOperation.SET)])


def _rows(path: Path) -> int:
    try:
        return len(rows_in(table_at(path)))
    except NoTableError:
        return 0


def test_topics_come_fail_and_go(broker: EmbeddedBroker, spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    first = make_topic(cluster, "serve-first", format="iceberg")
    cluster.create_topic("serve-later", 1, 1)
    bad = make_topic(cluster, "serve-bad", 1, columns="registry")  # there is no registry
    for topic in (first, "serve-later", bad):
        publish(broker, topic, [(f"k{each}", f"v{each}") for each in range(50)])

    def status(topic: str) -> TableStatus | None:
        return table_statuses(cluster).get(topic)

    with serving(broker, spark, tmp_path) as server:
        until(lambda: _rows(tmp_path / first) == 50, "the first table")
        until(lambda: (found := status(bad)) is not None and found.state == "failed", "the failure")
        _set(cluster, "serve-later", "millstream.table", "delta")  # a topic becomes a table
        until(lambda: _rows(tmp_path / "serve-later") == 50, "the second table")
        until(lambda: (found := status(first)) is not None and found.rows == 50 and found.lag_records == 0)
        shown = CliRunner().invoke(app, ["status", "-b", broker.bootstrap_servers])
        assert shown.exit_code == exit_codes.UNWELL, shown.output
        assert "serve-first" in shown.output and "needs the registry" in shown.output
        metrics = server.reports.metrics()
        assert 'millstream_table_lag_seconds{topic="serve-first",format="iceberg"} 0' in metrics
        assert 'millstream_table_failed{topic="serve-bad",format="delta"} 1' in metrics
        _set(cluster, bad, "millstream.table.columns", "auto")  # the failure is repaired
        until(lambda: _rows(tmp_path / bad) == 50, "the repaired table")
        _set(cluster, first, "millstream.table", "none")  # a table is not continued
        until(lambda: status(first) is None, "the end of the first table")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.delete_topics(["serve-later"])["serve-later"].result(30)
        until(lambda: status("serve-later") is None, "the end of the deleted topic")
        make_topic(cluster, "serve-later", 1)
        publish(broker, "serve-later", [("k", "again")])
        until(lambda: any(_rows(path) == 1 for path in tmp_path.glob("serve-later-*")), "the topic that was made again")
    good = CliRunner().invoke(app, ["status", bad, "--json", "-b", broker.bootstrap_servers])
    (document,) = json.loads(good.output)
    assert good.exit_code == 0 and document["state"] == "stopped" and document["rows"] == 50
    assert CliRunner().invoke(app, ["status", "none", "-b", broker.bootstrap_servers]).exit_code == exit_codes.NOT_FOUND
    for topic in (first, "serve-later", bad):
        assert verify(table_at(tmp_path / topic), cluster).is_proven


@contextmanager
def _process(broker: EmbeddedBroker, place: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    command = [
        *(sys.executable, "-m", "millstream", "table", "serve", "--warehouse", str(place)),
        *("-b", broker.bootstrap_servers, "--master", "local[2]", "--interval", "100ms", "--discover", "500ms"),
        *("--max-records", "500", "--compact-after", "5", *more),
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.slow
def test_kill_the_server(broker: EmbeddedBroker, cluster: Cluster, tmp_path: Path) -> None:
    """kill -9 at random moments, while records arrive: every table is proven, and equal to the model."""
    moments = random.Random(20)
    topics = [make_topic(cluster, f"killed-{each}", format=each) for each in FORMATS]
    topics += [make_topic(cluster, f"killed-keys-{each}", format=each, mode="upsert") for each in FORMATS]
    stop, count = threading.Event(), 0
    model: dict[str, str | None] = {}

    def write() -> None:
        nonlocal count
        while not stop.is_set():
            rows: list[tuple[str, str | None]] = []
            for _ in range(50):
                key = f"k{moments.randrange(40)}"
                rows.append((key, None if moments.random() < 0.1 else f"v{count}"))
                model[key] = rows[-1][1]
                count += 1
            for topic in topics:
                publish(broker, topic, rows)
            time.sleep(0.2)

    writer = threading.Thread(target=write)
    writer.start()
    for _kill in range(4):
        with _process(broker, tmp_path) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if "running" in line and " 0 rows" not in line:
                    break
            time.sleep(moments.uniform(0.5, 4.0))
    stop.set()
    writer.join()
    with _process(broker, tmp_path, "--once") as process:
        assert process.stdout is not None
        output = process.stdout.read()
        assert process.wait(LONG_PATIENCE_S) == 0, output
    expected = {key.encode(): value.encode() for key, value in model.items() if value is not None}
    for topic in topics:
        table = table_at(tmp_path / topic)
        report = verify(table, cluster)
        assert report.is_proven, (topic, report.faults)
        rows = rows_in(table)
        if "keys" in topic:
            assert {row["key"]: row["value"] for row in rows} == expected and len(rows) == len(expected)
        else:
            assert len(rows) == count == len({(row["partition"], row["offset"]) for row in rows})
