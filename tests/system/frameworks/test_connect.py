"""Kafka Connect, distributed: lines of a file become records exactly once, and records become lines of another file.

Workers are killed and paused, and brokers are killed. `exactly.once.source.support` needs transactions that span the
records and Connect's own offsets, and a producer that is fenced when its task has moved to another worker.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from millstream.testing import EmbeddedCluster
from millstream.testing.node_process import free_ports
from tests import waiting
from tests.system.frameworks.committed import Committed
from tests.topics import make_topic
from tools import apache_kafka, kafka_libraries

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

until = partial(waiting.until, timeout_s=waiting.LONG_TIMEOUT_SECONDS)

MAIN_CLASS = "org.apache.kafka.connect.cli.ConnectDistributed"
TOPIC, PARTITIONS = "lines", 3
BROKERS = {
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
}


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(3, BROKERS) as running:
        make_topic(running, TOPIC, PARTITIONS)
        yield running


class Worker:
    """One worker of Connect, as a process. Use as a context manager."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        directory.mkdir()
        self.log_file = directory / "worker.log"
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        text = "org.apache.kafka.connect.storage.StringConverter"
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": "connect",
            "listeners": f"http://{self.address}",
            "plugin.discovery": "service_load",
            "key.converter": text,
            "value.converter": text,
            "exactly.once.source.support": "enabled",
            "offset.flush.interval.ms": "500",
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "1000",
            "scheduled.rebalance.max.delay.ms": "0",
        }
        for storage in ("config", "offset", "status"):
            settings[f"{storage}.storage.topic"] = f"connect-{storage}"
            settings[f"{storage}.storage.replication.factor"] = "3"
            settings[f"{storage}.storage.partitions"] = "1"
        del settings["config.storage.partitions"]  # it always has one
        file = directory / "worker.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        try:
            jars = kafka_libraries.connect()
        except apache_kafka.ToolchainMissingError as reason:
            pytest.skip(f"Kafka Connect: {reason}")
        command = jars.command(MAIN_CLASS, str(file), jvm=("-Xmx384M",), performance=apache_kafka.QUICK_START_OPTIONS)
        with open(self.log_file, "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def request(self, method: str, path: str, document: Mapping[str, str] | None = None) -> Any:
        """The response as JSON; None if the worker cannot respond now (it starts, or its group rebalances)."""
        assert self._process.poll() is None, self.log_file.read_text()[-4000:]
        data = None if document is None else json.dumps(document).encode()
        request = urllib.request.Request(
            f"http://{self.address}{path}", data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            assert error.code in (404, 409, 500, 503), error.read().decode()
            return None
        except OSError:
            return None

    def create(self, name: str, settings: Mapping[str, str]) -> None:
        until(lambda: self.request("PUT", f"/connectors/{name}/config", settings), f"{name} was not created")

    def place_of(self, name: str) -> str:
        """The worker that runs the task of a connector; empty if none does."""
        status = self.request("GET", f"/connectors/{name}/status") or {"tasks": []}
        running = [task["worker_id"] for task in status["tasks"] if task["state"] == "RUNNING"]
        return running[0] if len(running) == 1 else ""


class Lines(threading.Thread):
    """Appends numbers to the file that the source connector reads, a few at a time, until `stop`."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.path = path
        self.count = 0
        self._is_over = threading.Event()
        path.touch()

    def run(self) -> None:
        with open(self.path, "a", buffering=1 << 16) as file:
            while not self._is_over.wait(0.05):
                file.writelines(f"{number}\n" for number in range(self.count, self.count + 5))
                file.flush()
                self.count += 5

    def stop(self) -> None:
        self._is_over.set()
        self.join()


def test_each_line_exactly_once_whatever_is_killed(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    lines, output = Lines(tmp_path / "input.txt"), tmp_path / "output.txt"
    seen = Committed(cluster.bootstrap_servers, TOPIC, PARTITIONS)
    with contextlib.ExitStack() as running:

        def worker(name: str) -> Worker:
            return running.enter_context(Worker(cluster.bootstrap_servers, tmp_path / name))

        running.callback(seen.close)
        first, second = worker("first"), worker("second")
        first.create(
            "source",
            {
                "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
                "exactly.once.support": "required",
                "file": str(lines.path),
                "topic": TOPIC,
                # A poll that stops at this number leaves lines in its buffer, until others are appended.
                "batch.size": "1000000",
                "producer.override.transaction.timeout.ms": "30000",
            },
        )
        first.create(
            "sink",
            {
                "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
                "file": str(output),
                "topics": TOPIC,
                "consumer.override.isolation.level": "read_committed",
                "consumer.override.auto.offset.reset": "earliest",
            },
        )
        lines.start()
        running.callback(lines.stop)
        seen.await_count(100, "the lines did not arrive")

        # The worker with the task is killed, in the middle of a transaction or between two.
        until(lambda: first.place_of("source"), "the source does not run")
        victim, other = (first, second) if first.place_of("source") == first.address else (second, first)
        victim.kill()
        seen.await_count(lines.count, "lines are missing after a kill")

        # The task moves to another worker while the first is paused, and then both write.
        third = worker("third")
        until(lambda: third.request("GET", "/connectors"), "the third worker did not start")
        until(lambda: third.place_of("source"), "the source does not run")
        paused, awake = (other, third) if third.place_of("source") == other.address else (third, other)
        paused.pause()
        until(lambda: awake.place_of("source") == awake.address, "the task did not move")
        paused.resume()
        seen.await_count(lines.count, "lines are missing after a pause")

        for number in sorted(cluster.brokers):
            cluster.kill(number)
            seen.await_count(lines.count, f"lines are missing after a kill of broker {number}")
            cluster.start(number)
        seen.await_count(lines.count, "lines are missing")

        lines.stop()
        seen.await_count(lines.count, "the last lines are missing")
        for numbers in seen.values.values():
            assert numbers == sorted(numbers, key=int), "the order of the file is not the order of the records"
        assert sorted(int(text) for numbers in seen.values.values() for text in numbers) == list(range(lines.count))
        # A sink writes again what it had not committed when it was killed, and leaves nothing out.
        until(lambda: set(output.read_text().split()) == {str(number) for number in range(lines.count)}, "the sink")
