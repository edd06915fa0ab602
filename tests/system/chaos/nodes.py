"""One node as a process: started, stopped, killed, paused. Millstream, or Apache Kafka to try the harness on."""

import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests import previous_version
from tests.repository import REPOSITORY
from tests.system.chaos.security import Security
from tests.wire import Closed, Wire
from tools import apache_kafka

START_TIMEOUT_SECONDS = 120.0
STOP_TIMEOUT_SECONDS = 30.0
_REPOSITORY = REPOSITORY


@dataclass
class Node(ABC):
    """A node's place (host, ports, directories) and its process, if it runs."""

    number: int
    kafka: tuple[str, int]
    voters: Mapping[int, tuple[str, int]]
    directory: Path
    data_dir: Path
    command_prefix: Sequence[str] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    security: Security | None = None
    """Of a secured cluster."""
    previous: Path | None = None
    """The source of the previous version, for campaigns with upgrades: the node begins with it."""
    paused: bool = field(default=False, init=False)
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @abstractmethod
    def command(self) -> list[str]: ...

    @abstractmethod
    def prepare(self) -> None:
        """What has to happen once, before the first start."""

    @property
    def address(self) -> str:
        return f"{self.kafka[0]}:{self.kafka[1]}"

    @property
    def log_file(self) -> Path:
        return self.directory / f"node-{self.number}.log"

    @property
    def properties_file(self) -> Path:
        return self.directory / f"node-{self.number}.properties"

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def properties(self) -> dict[str, str]:
        """server.properties as Kafka's documentation writes it for a combined node, or as `security init` does."""
        if self.security is not None:
            return {**self.security.node_properties(self.number, self.data_dir), **self.settings}
        controller = self.voters[self.number]
        return {
            "process.roles": "broker,controller",
            "node.id": str(self.number),
            "controller.quorum.voters": ",".join(f"{node}@{host}:{port}" for node, (host, port) in self.voters.items()),
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{controller[0]}:{controller[1]}",
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "millstream.allow.insecure.listeners": "true",  # each node has an address of its own
            "log.dirs": str(self.data_dir),
            **self.settings,
        }

    def start(self) -> None:
        """Starts the process; does not wait for anything."""
        assert not self.running, f"node {self.number} runs already"
        self.paused = False
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.command_prefix, *self.command()],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=_REPOSITORY,
                env=self._environment(),
                start_new_session=True,
            )

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(_REPOSITORY / "src"), **self.environment}

    def wait_until_it_responds(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while not self._responds():
            if not self.running or time.monotonic() > deadline:
                raise RuntimeError(f"node {self.number} does not respond; its log ends:\n{self.log_tail()}")
            time.sleep(0.05)

    def connect(self, timeout_s: float) -> Wire:
        """A connection to it, as the administrator if the cluster is secured."""
        return (
            Wire(self.address, timeout_s) if self.security is None else self.security.connect(self.address, timeout_s)
        )

    def _responds(self) -> bool:
        if self.security is None:
            return apache_kafka.responds_to_api_versions(*self.kafka, timeout_s=1.0)
        try:
            self.connect(timeout_s=1.0).close()
        except (OSError, Closed):
            return False
        return True

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> bool:
        """Ask it to stop; False if it had to be killed."""
        return self._end(signal.SIGTERM)

    def ask_to_stop(self) -> None:
        if self.running:
            assert self.process is not None
            self.process.terminate()

    def pause(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        if self.running and self.paused:
            assert self.process is not None
            self.process.send_signal(signal.SIGCONT)
        self.paused = False

    def log_tail(self, lines: int = 15) -> str:
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-lines:])

    def _end(self, how: signal.Signals) -> bool:
        process, self.process = self.process, None
        if process is None:
            return True
        process.send_signal(how)
        if self.paused:
            process.send_signal(signal.SIGCONT)
            self.paused = False
        try:
            process.wait(STOP_TIMEOUT_SECONDS)
            return True
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return False
        finally:
            if process.stdin is not None:
                process.stdin.close()


@dataclass
class MillstreamNode(Node):
    """`millstream serve` of this repository, or of the version before it."""

    is_previous: bool = field(default=False, init=False)
    """Whether its next start, or the one that runs, is of the previous version."""

    def prepare(self) -> None:
        if self.security is not None:
            self.security.prepare(self.number, self.data_dir)
        self.use_version(is_previous=self.previous is not None)

    def use_version(self, *, is_previous: bool) -> None:
        """From its next start on."""
        self.is_previous = is_previous
        settings = {**self.properties(), **(previous_version.SETTINGS if is_previous else {})}
        self.properties_file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def _environment(self) -> dict[str, str]:
        environment = super()._environment()
        if self.is_previous:
            environment["PYTHONPATH"] = str(self.previous)
            environment.pop("MILLSTREAM_COMPILED", None)  # the source of another version is not compiled
        return environment

    def command(self) -> list[str]:
        config = str(self.properties_file)
        return [sys.executable, "-m", "millstream", "serve", "--exit-with-stdin", "--config", config]


class KafkaNode(Node):
    """Apache Kafka: what the harness and the checker were tried on, and the yardstick for unavailability."""

    heap = ("-Xmx512M", "-Xms512M")

    def prepare(self) -> None:
        settings = {**apache_kafka.SHIPPED_SETTINGS, **apache_kafka.CLUSTER_SETTINGS, **self.properties()}
        self.properties_file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        arguments = ("format", "-t", apache_kafka.CLUSTER_ID, "-c", str(self.properties_file))
        done = self._distribution().run(apache_kafka.STORAGE_TOOL, *arguments, performance=())
        if done.returncode != 0:
            raise RuntimeError(f"formatting Apache Kafka's storage failed: {done.stdout}{done.stderr}")

    def command(self) -> list[str]:
        distribution = self._distribution()
        log4j = f"-Dlog4j2.configurationFile={distribution.directory / 'log4j2-broker.properties'}"
        options = [*self.heap, *apache_kafka.DEFAULT_PERFORMANCE_OPTIONS, log4j, "-cp", distribution.classpath]
        return ["java", *options, apache_kafka.BROKER, str(self.properties_file)]

    @staticmethod
    def _distribution() -> apache_kafka.KafkaDistribution:
        found = apache_kafka.installed()
        if found is None:
            raise RuntimeError("Apache Kafka is not in .cache: python tools/apache_kafka.py fetches it")
        return found


SYSTEMS: dict[str, type[Node]] = {"millstream": MillstreamNode, "kafka": KafkaNode}
