"""`millstream table serve` in Spark: topics come, fail and go; kill -9. `test_server.py` has the same without Spark."""

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
from pyspark.sql import SparkSession

from millstream.raw_client import Cluster
from millstream.tables.copier import in_spark
from millstream.tables.verification import verify
from millstream.testing import EmbeddedBroker
from tests.system.tables.conftest import FORMATS, make_topic, publish, rows_in, table_at
from tests.system.tables.serving import check_that_topics_come_fail_and_go, rows_at, serving
from tests.waiting import LONG_TIMEOUT_SECONDS, until

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]


def test_a_topic_is_a_table(broker: EmbeddedBroker, spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    topic = make_topic(cluster, "small-in-spark", format="iceberg")
    publish(broker, topic, [(f"k{each}", f"v{each}") for each in range(50)])
    with serving(broker, in_spark(spark), tmp_path):
        until(lambda: rows_at(tmp_path / topic) == 50, "the table")
    assert verify(table_at(tmp_path / topic), cluster).is_proven


@pytest.mark.slow
def test_topics_come_fail_and_go(broker: EmbeddedBroker, spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    check_that_topics_come_fail_and_go(broker, in_spark(spark), cluster, tmp_path, "in-spark")


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
def test_tables_are_right_after_a_killed_server(broker: EmbeddedBroker, cluster: Cluster, tmp_path: Path) -> None:
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
        assert process.wait(LONG_TIMEOUT_SECONDS) == 0, output
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
