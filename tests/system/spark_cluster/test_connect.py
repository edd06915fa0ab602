"""Streams and batches over Spark Connect: an executor, the client and then the server (the driver) are killed."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.spark_cluster.connect_server import ConnectServer
from tests.system.spark_cluster.pipeline_run import SMALL, Run
from tests.system.spark_cluster.processes import kill_tree
from tests.system.spark_cluster.standalone import StandaloneSpark
from tests.system.spark_cluster.strikes import Numbers, Watch, pipeline_file, strike
from tests.waiting import LONG_TIMEOUT_SECONDS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SETTINGS = {**SMALL, "spark.executor.cores": "1", "spark.executor.memory": "500m"}


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[StandaloneSpark]:
    with StandaloneSpark(tmp_path / "spark", workers=1) as cluster:
        yield cluster


def test_a_pipeline_survives_faults_over_spark_connect(tmp_path: Path, spark: StandaloneSpark) -> None:
    with Numbers() as numbers, ConnectServer(tmp_path, spark.url, SETTINGS) as server:
        run = Run(tmp_path, numbers.bootstrap, pipeline_file(tmp_path), ["--remote", server.url], settings={})

        strikes: list[str] = []

        def kill_and_restart() -> None:
            run.kill()  # the client alone: the server still runs its query
            run.start()
            watch.more_is_written()
            watch.amid_a_batch()
            server.kill()
            server.start()
            strikes.append("server")

        def is_running() -> bool:
            """The command starts its queries on the new server, or ends with an error, and a service starts it."""
            if strikes and run.process.poll() is not None:
                run.start()
            return run.process.poll() is None

        def told() -> str:
            return f"{run.told()}\n{server.logs()}\n{spark.logs()}"

        watch = Watch(numbers, is_running, told)
        try:
            strike(numbers, watch, spark.executors, kill_and_restart)
            assert run.stop() == 0, told()
        finally:
            run.kill()


def test_a_batch_query_runs_over_spark_connect(tmp_path: Path, spark: StandaloneSpark) -> None:
    with Numbers(per_second=2000, ahead=4000) as numbers, ConnectServer(tmp_path, spark.url, SETTINGS) as server:
        client = Client(tmp_path, server.url)
        watch = Watch(numbers, client.is_running, lambda: f"{client.told()}\n{server.logs()}\n{spark.logs()}")
        Watch(numbers, lambda: True, str).until(lambda: len(numbers.feeder.sent) >= 4000, "nothing is sent")
        numbers.feeder.finish()
        try:
            client.start("copy", numbers.bootstrap)
            watch.amid_a_batch()
            spark.executors()[0].kill()
            watch.until(spark.executors, "there is no other executor")
            server.kill()
            assert not numbers.committed(), "a part of a batch is visible"
            server.start()
            client.wait()  # with an error, or it has sent its query again by itself
            for _ in range(2):  # the second is the same write again, at the latest
                client.start("copy", numbers.bootstrap)
                assert client.wait() == 0, client.told()
                assert numbers.open_records() == 0
                assert numbers.committed() == numbers.expected()
        finally:
            client.kill()


class Client:
    """`connect_client.py` in a process of its own."""

    def __init__(self, directory: Path, remote: str) -> None:
        self._remote, self._log = remote, directory / "client.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, what: str, argument: str) -> None:
        program = "tests.system.spark_cluster.connect_client"
        with self._log.open("wb") as log:
            command = [sys.executable, "-m", program, self._remote, what, argument]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def is_running(self) -> bool:
        return self._process is None or self._process.poll() is None

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(LONG_TIMEOUT_SECONDS)

    def told(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def kill(self) -> None:
        if self._process is not None:
            kill_tree(self._process)
