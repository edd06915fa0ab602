"""`millstream pipeline run` on a cluster in a process of its own, and records that arrive while it runs."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from confluent_kafka import Producer

from tests.system.spark_cluster.processes import SMALL_JVM, ends_of, kill_tree
from tests.waiting import LONG_TIMEOUT_SECONDS, TIMEOUT_SECONDS

SMALL = {
    "spark.driver.memory": "700m",
    "spark.executor.memory": "600m",
    "spark.executor.extraJavaOptions": SMALL_JVM,
    "spark.cores.max": "4",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


class Feeder(threading.Thread):
    """Sends rows (key and value), a few at a time, until it is told to stop; `is_ahead` says when it should wait."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        rows: Iterator[tuple[str, bytes]],
        per_second: int,
        is_ahead: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(daemon=True)
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})
        self._topic, self._rows, self._per_second, self._is_ahead = topic, rows, per_second, is_ahead
        self._ending = threading.Event()
        self.sent: list[bytes] = []
        self.failures: list[str] = []

    def run(self) -> None:
        while not self._ending.wait(0.1):
            for _ in range(0 if self._is_ahead() else self._per_second // 10):
                key, value = next(self._rows)
                self._producer.produce(self._topic, key=key, value=value, on_delivery=self._delivered)
                self.sent.append(value)
            self._producer.poll(0)

    def finish(self) -> None:
        self._ending.set()
        self.join()
        assert self._producer.flush(TIMEOUT_SECONDS) == 0
        assert not self.failures

    def _delivered(self, error: object, _: object) -> None:
        if error is not None:
            self.failures.append(str(error))


class Run:
    """The command, which can be killed and started again. `where` names the cluster: `--master …` or `--remote …`."""

    def __init__(
        self,
        directory: Path,
        bootstrap: str,
        pipeline: Path,
        where: Sequence[str],
        *,
        settings: Mapping[str, str] = SMALL,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._directory = directory
        kept = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
        self._environment = kept | {
            "MILLSTREAM_BOOTSTRAP": bootstrap,
            "MILLSTREAM_STATE_HOME": str(directory / "state"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(directory / "driver-local"),
            "PYTHONWARNINGS": "ignore",
            **(environment or {}),
        }
        self._command = [sys.executable, "-m", "millstream", "pipeline", "run", str(pipeline), "--json", *where]
        self._command += ["--checkpoint-dir", str(directory / "checkpoints")]
        for name, value in settings.items():
            self._command += ["--conf", f"{name}={value}"]
        self.start()

    def start(self) -> None:
        with (self._directory / "run.out").open("ab") as out, (self._directory / "run.err").open("ab") as err:
            self.process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def kill(self) -> None:
        """kill -9, with the JVM of the driver and its Python processes."""
        kill_tree(self.process)

    def stop(self) -> int:
        """After the batch, as Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(LONG_TIMEOUT_SECONDS)

    def told(self) -> str:
        return ends_of([self._directory / "run.out", self._directory / "run.err", *self._directory.rglob("spark.log")])
