"""The broker under test, as a process of its own: Millstream, or Apache Kafka for comparison."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from millstream.testing.node_process import free_ports
from tools import apache_kafka

REPOSITORY_ROOT = apache_kafka.REPOSITORY_ROOT
RUNS_ON_APACHE = os.environ.get("MILLSTREAM_TEST_BROKER") == "apache"


class BrokerProcess(Protocol):
    data_dir: Path

    @property
    def bootstrap_servers(self) -> str: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...


def _escaped(value: str) -> str:
    """The value as a properties file has it, in one line."""
    return value.replace("\\", "\\\\").replace("\n", "\\n")


class MillstreamProcess:
    """`millstream serve` on a free port, which it keeps over restarts."""

    def __init__(self, data_dir: Path, settings: Mapping[str, str], protocol: str = "PLAINTEXT") -> None:
        self.data_dir = data_dir
        self.protocol = protocol
        self.settings = settings
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        self.log_file = data_dir.parent / f"{data_dir.name}.server.log"
        self.process: subprocess.Popen[str] | None = None

    @property
    def bootstrap_servers(self) -> str:
        return self.address

    def start(self) -> None:
        command = [sys.executable, "-m", "millstream", "serve", "--no-http"]
        command += ["--data-dir", str(self.data_dir), "--set", f"listeners={self.protocol}://{self.address}"]
        if self.settings:  # in a file: passwords are refused on the command line
            file = self.data_dir.parent / f"{self.data_dir.name}.server.properties"
            lines = (f"{name}={_escaped(value)}\n" for name, value in self.settings.items())
            file.write_text("".join(lines))
            command += ["--config", str(file)]
        paths = [str(REPOSITORY_ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        with open(self.log_file, "ab") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, text=True, env=environment
            )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("ready kafka="):
                self.address = line.split()[1].removeprefix("kafka=")
                return
        self.stop()
        raise RuntimeError(f"the broker did not start:\n{self.log_file.read_text(errors='replace')[-4000:]}")

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(number)
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None


def start_broker(data_dir: Path, settings: Mapping[str, str] | None = None) -> BrokerProcess:
    broker: BrokerProcess
    if RUNS_ON_APACHE:
        kafka = apache_kafka.ApacheKafkaBroker(
            apache_kafka.resolve(), data_dir, settings=settings or {}, jvm=("-Xmx512m",)
        )
        kafka.format()
        broker = kafka
    else:
        broker = MillstreamProcess(data_dir, settings or {})
    broker.start()
    return broker
