"""A standalone Spark cluster on loopback, from PySpark's own files: a master and workers, ended by process id."""

import json
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType

import psutil

from millstream.testing.node_process import HOST, free_ports
from tests.system.spark_cluster.processes import SMALL_JVM, SPARK_HOME, ends_of, executors_below, kill_tree, start


class StandaloneSpark:
    """Use it with `with`; ready when all workers are known to the master."""

    def __init__(self, directory: Path, *, workers: int, cores: int = 2, memory: str = "1g") -> None:
        self._directory = directory
        self._port, self._web_port = free_ports(2)
        self._cores, self._memory = cores, memory
        self._wanted = workers
        self._master: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        return f"spark://{HOST}:{self._port}"

    def __enter__(self) -> "StandaloneSpark":
        try:
            where = ["--host", HOST, "--port", str(self._port), "--webui-port", str(self._web_port)]
            self._master = self._start("master", "org.apache.spark.deploy.master.Master", *where)
            self._wait_for_workers(0)
            for number in range(1, self._wanted + 1):
                self.workers.append(self._start_worker(number))
            self._wait_for_workers(self._wanted)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def executors_of(self, worker: "subprocess.Popen[bytes]") -> list[psutil.Process]:
        """The JVMs that a worker has started for applications."""
        return executors_below(worker.pid)

    def executors(self) -> list[psutil.Process]:
        return [each for worker in self.workers if worker.poll() is None for each in self.executors_of(worker)]

    def kill_worker(self, worker: "subprocess.Popen[bytes]") -> list[int]:
        """kill -9, of the machine as it were: the worker, its executors and their Python processes."""
        return kill_tree(worker)

    def alive_workers(self) -> int:
        """As the master sees it."""
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self._web_port}/json/", timeout=5) as response:
                return int(json.load(response)["aliveworkers"])
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return -1

    def close(self) -> None:
        for process in (*self.workers, *([self._master] if self._master else [])):
            kill_tree(process)

    def logs(self) -> str:
        return ends_of(sorted(self._directory.glob("*.log")), 2000)

    def _start_worker(self, number: int) -> subprocess.Popen[bytes]:
        size = ["--host", HOST, "--webui-port", "0", "--cores", str(self._cores), "--memory", self._memory]
        work = ["--work-dir", str(self._directory / f"work-{number}")]
        return self._start(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *size, *work, self.url)

    def _start(self, name: str, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        more = {
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_LOCAL_DIRS": str(self._directory / f"local-{name}"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": SMALL_JVM,
            "SPARK_LAUNCHER_OPTS": SMALL_JVM,
        }
        # The script becomes the JVM (exec), so the process id is the JVM's.
        command = [str(SPARK_HOME / "bin" / "spark-class"), main, *arguments]
        return start(command, self._directory / f"{name}.log", more)

    def _wait_for_workers(self, count: int, timeout_s: float = 120.0) -> None:
        deadline = time.monotonic() + timeout_s
        while self.alive_workers() < count:
            gone = [each for each in (self._master, *self.workers) if each is not None and each.poll() is not None]
            assert not gone, f"Spark's cluster did not start\n{self.logs()}"
            assert time.monotonic() < deadline, f"the master does not see {count} workers\n{self.logs()}"
            time.sleep(0.2)
