"""The server of tables without Spark around it: topics come, fail and go; kill -9 at random moments."""

import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from millstream.raw_client import Cluster
from millstream.tables.verification import verify
from millstream.testing import EmbeddedBroker
from tests.system.tables.conftest import FORMATS, make_topic, publish, rows_in, run_here, table_at
from tests.system.tables.serving import check_that_topics_come_fail_and_go

pytestmark = pytest.mark.timeout(600)
KILLS = 4


def test_topics_come_fail_and_go(broker: EmbeddedBroker, cluster: Cluster, tmp_path: Path) -> None:
    check_that_topics_come_fail_and_go(broker, run_here, cluster, tmp_path, "here")


@pytest.mark.slow
def test_tables_are_right_after_a_killed_server(tmp_path: Path) -> None:
    """Four tables at once, with small batches and compactions: each is proven, and equal to the model."""
    moments = random.Random(56)
    model: dict[str, str | None] = {}
    stop, count = threading.Event(), 0
    with EmbeddedBroker() as broker, Cluster(broker.bootstrap_servers) as cluster:
        topics = [make_topic(cluster, f"append-{each}", format=each) for each in FORMATS]
        topics += [make_topic(cluster, f"upsert-{each}", format=each, mode="upsert") for each in FORMATS]

        def write() -> None:
            nonlocal count
            while not stop.wait(0.3):
                rows: list[tuple[str, str | None]] = []
                for _ in range(60):
                    key = f"k{moments.randrange(40)}"
                    rows.append((key, None if moments.random() < 0.1 else f"v{count}"))
                    model[key] = rows[-1][1]
                    count += 1
                for topic in topics:
                    publish(broker, topic, rows)

        command = [sys.executable, "-m", "tests.system.tables.copying_process", broker.bootstrap_servers, str(tmp_path)]
        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _kill in range(KILLS):
                with subprocess.Popen([*command, "on"], stdout=subprocess.PIPE, text=True) as process:
                    assert process.stdout is not None and process.stdout.readline() == "running\n"
                    time.sleep(moments.uniform(0.5, 2.5))
                    process.kill()
        finally:
            stop.set()
            writer.join()
        subprocess.run([*command, "once"], check=True, stdout=subprocess.DEVNULL)
        expected = {key.encode(): value.encode() for key, value in model.items() if value is not None}
        for topic in topics:
            table = table_at(tmp_path / topic)
            report = verify(table, cluster)
            assert report.is_proven, (topic, report.faults)
            rows = rows_in(table)
            if topic.startswith("upsert"):
                assert {row["key"]: row["value"] for row in rows} == expected and len(rows) == len(expected)
            else:
                assert len(rows) == count == len({(row["partition"], row["offset"]) for row in rows})
