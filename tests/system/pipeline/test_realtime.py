"""`latency: realtime` with Spark's own Kafka connector on our broker, as a command."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest

from millstream.client import Message, connect
from millstream.testing import EmbeddedBroker
from tests.waiting import TIMEOUT_SECONDS
from tools import spark_kafka_connector
from tools.apache_kafka import ToolchainMissingError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PIPELINE = """
name: realtime
bootstrap: BOOTSTRAP
latency: realtime
spark: {spark.jars: "JARS", spark.ui.enabled: false}
sources:
  orders:
    topic: rt-orders
    format: json
    schema: id STRING, amount DOUBLE
    bad_records: drop
steps:
  big:
    sql: SELECT *, amount * 2 AS twice FROM orders WHERE amount > 10
sinks:
  out: {from: big, topic: rt-out, key: id}
"""


def test_records_pass_in_real_time_mode(tmp_path: Path) -> None:
    try:
        jars = ",".join(map(str, spark_kafka_connector.jars()))
    except ToolchainMissingError as reason:
        pytest.skip(f"Spark's Kafka connector cannot be had here: {reason}")
    with EmbeddedBroker() as broker, connect(broker.bootstrap_servers) as client:
        client.create_topic("rt-orders", partitions=1)
        client.create_topic("rt-out", partitions=1)
        file = tmp_path / "pipeline.yaml"
        file.write_text(dedent(PIPELINE).replace("BOOTSTRAP", broker.bootstrap_servers).replace("JARS", jars))
        environment = {**os.environ, "MILLSTREAM_STATE_HOME": str(tmp_path / "state")}
        command = [sys.executable, "-m", "millstream", "pipeline", "run", str(file), "--json"]
        log = tmp_path / "run.log"
        with log.open("w") as output:
            running = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            found: dict[str, float] = {}
            deadline = time.monotonic() + 6 * TIMEOUT_SECONDS
            number = 0
            while len(found) < 5:
                assert running.poll() is None and time.monotonic() < deadline, log.read_text()[-4000:]
                number += 1
                rows = [{"id": f"o{number}", "amount": 10.0 + number}, {"id": "small", "amount": 1.0}]
                client.publish_many("rt-orders", [Message(value=json.dumps(row).encode()) for row in rows])
                client.publish_many("rt-orders", [Message(value=b"no json")])
                time.sleep(1.0)
                for record in client.consume("rt-out", follow=False):
                    row = json.loads(record.raw or b"")
                    found[row["id"]] = row["twice"]
            assert all(found[f"o{each}"] == 2 * (10.0 + each) for each in range(1, 6) if f"o{each}" in found)
            assert "small" not in found
            running.send_signal(signal.SIGINT)
            assert running.wait(4 * TIMEOUT_SECONDS) == 0
        finally:
            if running.poll() is None:
                running.kill()
                running.wait()
        assert "writes at least once" in log.read_text()
