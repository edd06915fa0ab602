"""A Spark Connect server on a cluster, in a process of its own: it is the driver of its clients' queries."""

import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from millstream.testing.node_process import HOST, free_ports
from tests.system.spark_cluster.processes import SMALL_JVM, SPARK_HOME, ends_of, kill_tree, start
from tests.waiting import LONG_TIMEOUT_SECONDS

_MAIN = "org.apache.spark.sql.connect.service.SparkConnectServer"


class ConnectServer:
    """Use it with `with`; it keeps its port when it is killed and started again."""

    def __init__(self, directory: Path, master: str, settings: Mapping[str, str]) -> None:
        self._directory = directory
        self._port = free_ports(1)[0]
        settings = {"spark.connect.grpc.binding.address": HOST, **settings}
        self._command = [str(SPARK_HOME / "bin" / "spark-submit"), "--class", _MAIN, "--master", master]
        for name, value in (settings | {"spark.connect.grpc.binding.port": str(self._port)}).items():
            self._command += ["--conf", f"{name}={value}"]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"sc://{HOST}:{self._port}"

    def __enter__(self) -> "ConnectServer":
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    def start(self) -> None:
        more = {
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_LOCAL_DIRS": str(self._directory / "server-local"),
            "SPARK_LAUNCHER_OPTS": SMALL_JVM,
            "SPARK_SUBMIT_OPTS": SMALL_JVM,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
        self._process = start(self._command, self._directory / "connect-server.log", more)
        deadline = time.monotonic() + LONG_TIMEOUT_SECONDS
        while not self._responds():
            ended = self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                logs = self.logs()
                self.kill()
                raise AssertionError(f"the Connect server did not start\n{logs}")
            time.sleep(0.2)

    def kill(self) -> None:
        """kill -9: the driver with all its queries and Python processes."""
        if self._process is not None:
            kill_tree(self._process)

    def logs(self) -> str:
        return ends_of([self._directory / "connect-server.log"], 6000)

    def _responds(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self._port)) == 0
