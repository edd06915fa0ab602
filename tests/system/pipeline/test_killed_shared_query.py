"""kill -9 of a driver that runs a shared query, between and during its writes: each sink has each row once."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millstream.testing import EmbeddedBroker
from tests.repository import REPOSITORY
from tests.system.pipeline.shop import Shop
from tests.system.pipeline.test_sharing import THREE, head, orders, rows_in_table

PER_ROUND = 60
PER_BATCH = 20
TABLE, TOPICS = "millstream-table", "millstream"
MOMENTS = [
    f"after:{TABLE}:2",  # the table has the batch, the topics do not
    f"during:{TOPICS}:2",
    f"after:{TOPICS}:1",  # all have it, Spark's checkpoint does not know
    f"during:{TABLE}:2",
    f"before:{TABLE}:2",
    f"during:{TOPICS}:1",  # a batch that is repeated is killed again
    f"during:{TOPICS}:1",
]


@contextmanager
def driver(file: Path, log: Path, *moment: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.system.pipeline.shared_driver", str(file), *moment]
    with log.open("a") as written:
        process = subprocess.Popen(
            command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=written, text=True, start_new_session=True
        )
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


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_each_sink_has_each_row_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_STATE_HOME", str(tmp_path / "state"))
    chance = random.Random("killed shared query")
    text = head("kill").replace("format: json", f"format: json\n    max_records_per_trigger: {PER_BATCH}")
    log = tmp_path / "drivers.log"
    with EmbeddedBroker() as broker:
        shop = Shop(broker, tmp_path)
        file = Path(shop.pipeline(text + THREE.replace("NAME", "kill")).file)
        sent = 0
        for moment in MOMENTS:
            shop.fill("kill-orders", orders(sent, sent + PER_ROUND), key="id")
            sent += PER_ROUND
            with driver(file, log, moment) as process:
                assert process.stdout is not None
                assert process.stdout.readline() == "there\n", log.read_text()[-4000:]
                if moment.startswith("during"):
                    time.sleep(chance.uniform(0.0, 1.5))  # anywhere in the write; or just after it
        with driver(file, log) as process:
            assert process.wait(600) == 0, log.read_text()[-4000:]

        expected = orders(0, sent)
        assert rows_in_table(tmp_path / "lake") == sorted(row["id"] for row in expected)
        of_topics = {"kill-sales": (1.0, 2.0, 3.0), "kill-refunds": (-1.0,), "kill.dead-letters": (0.0,)}
        for topic, amounts in of_topics.items():
            found = sorted(row["id"] for row in shop.rows(topic))
            assert found == sorted(row["id"] for row in expected if row["amount"] in amounts), topic
