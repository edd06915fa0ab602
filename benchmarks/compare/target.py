"""The brokers under test, behind one face: a name, a way to start and stop, an address, a process id, a data directory.

Both run as their users would run them: own process, default settings, loopback. Neither gets a setting the other lacks.
"""

from __future__ import annotations

import compileall
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import millstream
from tools.apache_kafka import ApacheKafkaBroker, KafkaDistribution


class Target(Protocol):
    """A broker that loads can be run against."""

    name: str
    data_dir: Path

    @property
    def bootstrap(self) -> str: ...

    @property
    def pid(self) -> int: ...

    def prepare(self) -> None:
        """What has to happen once before the first start (Kafka: formatting the directory). Never timed."""

    def spawn(self) -> None:
        """Start the process; returns as soon as its address is known, perhaps before it accepts connections."""

    def wait_until_ready(self) -> None: ...

    def stop(self) -> None: ...


TargetFactory = Callable[[str], Target]
"""Makes a new, not yet started target of the given name on a directory of its own."""


def start(target: Target) -> None:
    target.prepare()
    target.spawn()
    target.wait_until_ready()


def millstream_command(program: Path | None) -> list[str]:
    """How to run `millstream`: of another installation, or of this one."""
    if program is not None:
        return [str(program)]
    command = shutil.which("millstream", path=str(Path(sys.executable).parent))
    return [command] if command else [sys.executable, "-m", "millstream"]


class MillstreamTarget:
    """`millstream serve` of this repository."""

    name = "millstream"

    def __init__(self, directory: Path, program: Path | None = None) -> None:
        """`program`: another installation's `millstream`."""
        self.data_dir = directory / "data"
        self._run = millstream_command(program)
        self._log = directory / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._bootstrap = ""

    @property
    def bootstrap(self) -> str:
        return self._bootstrap

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker was not started"
        return self._process.pid

    def prepare(self) -> None:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        compileall.compile_dir(Path(millstream.__file__).parent, quiet=2)  # as installing does

    def arguments(self) -> list[str]:
        return ["--listen", "127.0.0.1:0"]

    def spawn(self) -> None:
        """Port 0 picks the port, so the address is known only from the ready line: spawning waits for it."""
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [*self._run, "serve", "--no-http", "--data-dir", str(self.data_dir), *self.arguments()],
                stdout=subprocess.PIPE,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        self._bootstrap = self._address_from_ready_line(timeout_s=120)

    def wait_until_ready(self) -> None:
        """The ready line is printed when it accepts connections."""

    def stop(self) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None

    def _address_from_ready_line(self, timeout_s: float) -> str:
        assert self._process is not None and self._process.stdout is not None
        stdout, seen = self._process.stdout.fileno(), b""
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while (left_s := deadline - time.monotonic()) > 0 and selector.select(left_s):
                chunk = os.read(stdout, 4096)
                seen += chunk
                if found := re.search(rb"^ready kafka=(\S+)", seen, re.MULTILINE):
                    return found[1].decode()
                if not chunk:
                    break
        self.stop()
        said = self._log.read_text(errors="replace").strip().splitlines()[-5:]
        raise RuntimeError("millstream serve did not become ready: " + (" / ".join(said) or "it said nothing"))


class OtherMillstream(MillstreamTarget):
    """Another version, in place of Kafka: what a change has cost."""

    name = "other"


class MillstreamCores(MillstreamTarget):
    """`millstream serve --cores N`: nodes under one supervisor, whose process id it is."""

    def __init__(self, directory: Path, cores: int = 2) -> None:
        super().__init__(directory)
        self._cores = cores

    def arguments(self) -> list[str]:
        return ["--cores", str(self._cores), *super().arguments()]


class KafkaTarget:
    """Apache Kafka with the settings and JVM options its own distribution ships."""

    name = "kafka"

    def __init__(self, directory: Path, distribution: KafkaDistribution) -> None:
        self.data_dir = directory / "data"
        self._broker = ApacheKafkaBroker(distribution, self.data_dir)

    @property
    def bootstrap(self) -> str:
        return self._broker.bootstrap_servers

    @property
    def pid(self) -> int:
        return self._broker.pid

    def prepare(self) -> None:
        self._broker.format()

    def spawn(self) -> None:
        self._broker.start_process()

    def wait_until_ready(self) -> None:
        self._broker.wait_until_ready()

    def stop(self) -> None:
        self._broker.stop()
