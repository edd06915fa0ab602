"""Apache Kafka itself, fetched from Maven Central by name and run on loopback.

The interoperability tests use Kafka's own tools and Java client from here (and can run their whole matrix against the
real broker); the comparison benchmark runs the real broker beside Millstream. Everything lands in the git-ignored
`.cache/` of the repository, once; a second call costs nothing. Only the standard library and Millstream's choice of
ports are needed, so any script may import this.

What is deliberately elsewhere: the Java program of the interoperability tests (`tests/system/clients/java/`), and every
decision about load and measurement (`benchmarks/compare/`).
"""

from __future__ import annotations

import argparse
import fcntl
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from millstream.testing.node_process import free_ports

KAFKA_VERSION = "4.3.1"
SCALA_VERSION = "2.13"

REPOSITORY_ROOT = Path(__file__).resolve().parent.parent
CACHE = REPOSITORY_ROOT / ".cache"

# What bin/kafka-server-start.sh and bin/kafka-run-class.sh of the distribution pass.
DEFAULT_PERFORMANCE_OPTIONS = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
)
CLASS_ARCHIVE = CACHE / "apache-kafka" / KAFKA_VERSION / "classes.jsa"
"""Classes as the virtual machine has them in memory: a start with it takes half the CPU time."""
# For tests: a tool that lives two seconds gains nothing from the second compiler or a parallel collector. The archive
# is used if the class path begins with that of Kafka. Without it, or with another Java, programs start as they did
# before; the virtual machine would say so on stdout, where the output of the tools is.
_QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")
_SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", *_QUIET)
QUICK_START_OPTIONS = (*_SHORT_LIVED, f"-XX:SharedArchiveFile={CLASS_ARCHIVE}")
DEFAULT_BROKER_HEAP = ("-Xmx1G", "-Xms1G")
DEFAULT_TOOL_HEAP = ("-Xmx256M",)
# bin/kafka-producer-perf-test.sh and bin/kafka-consumer-perf-test.sh.
DEFAULT_PERF_TOOL_HEAP = ("-Xmx512M",)

PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER_PERFORMANCE = "org.apache.kafka.tools.ConsumerPerformance"
CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
TOPIC_COMMAND = "org.apache.kafka.tools.TopicCommand"
CONFIG_COMMAND = "kafka.admin.ConfigCommand"
GET_OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
DELETE_RECORDS_COMMAND = "org.apache.kafka.tools.DeleteRecordsCommand"
LOG_DIRS_COMMAND = "org.apache.kafka.tools.LogDirsCommand"
CLUSTER_TOOL = "org.apache.kafka.tools.ClusterTool"
BROKER_API_VERSIONS_COMMAND = "org.apache.kafka.tools.BrokerApiVersionsCommand"
DUMP_LOG_SEGMENTS = "org.apache.kafka.tools.DumpLogSegments"
STORAGE_TOOL = "kafka.tools.StorageTool"
BROKER = "kafka.Kafka"

CLUSTER_ID = "millstream-compare-0001"

# Settings of config/server.properties as the distribution ships it, minus names, ports and directories.
SHIPPED_SETTINGS: Mapping[str, str] = {
    "num.network.threads": "3",
    "num.io.threads": "8",
    "socket.send.buffer.bytes": "102400",
    "socket.receive.buffer.bytes": "102400",
    "socket.request.max.bytes": "104857600",
    "num.partitions": "1",
    "num.recovery.threads.per.data.dir": "1",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "log.retention.hours": "168",
    "log.segment.bytes": "1073741824",
    "log.retention.check.interval.ms": "300000",
}

_POM = """\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>millstream</groupId>
  <artifactId>apache-kafka</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_{scala}</artifactId><version>{kafka}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{kafka}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.25.3</version>
    </dependency>
  </dependencies>
</project>
"""

_LOG4J = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.target = {target}
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = {level}
rootLogger.appenderRef.out.ref = out
"""


class ToolchainMissingError(RuntimeError):
    """A program this needs (java, mvn) is not installed, or a download failed. The text says which."""


@dataclass(frozen=True, slots=True)
class KafkaDistribution:
    """The jars of one Apache Kafka version and how to start programs from them."""

    version: str
    directory: Path

    @property
    def classpath(self) -> str:
        return str(self.directory / "libs" / "*")

    def command(
        self,
        main_class: str,
        *arguments: str,
        jvm: Sequence[str] = DEFAULT_TOOL_HEAP,
        performance: Sequence[str] = DEFAULT_PERFORMANCE_OPTIONS,
    ) -> list[str]:
        """The command line that runs `main_class`; its log goes to stderr, warnings and worse only."""
        log4j = f"-Dlog4j2.configurationFile={self.directory / 'log4j2-tool.properties'}"
        return ["java", *jvm, *performance, log4j, "-cp", self.classpath, main_class, *arguments]

    def run(
        self,
        main_class: str,
        *arguments: str,
        jvm: Sequence[str] = DEFAULT_TOOL_HEAP,
        performance: Sequence[str] = DEFAULT_PERFORMANCE_OPTIONS,
        stdin: str = "",
        timeout_s: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        """Run a tool to its end and return its output; the caller judges the exit code."""
        return subprocess.run(
            self.command(main_class, *arguments, jvm=jvm, performance=performance),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            input=stdin,
        )


@contextmanager
def exclusive(name: str) -> Iterator[None]:
    """Keep two processes from filling the same part of the cache at once."""
    CACHE.mkdir(exist_ok=True)
    with open(CACHE / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def installed() -> KafkaDistribution | None:
    """The distribution if it is in the cache already; never downloads."""
    directory = CACHE / "apache-kafka" / KAFKA_VERSION
    return KafkaDistribution(KAFKA_VERSION, directory) if (directory / "complete").exists() else None


def _make_class_archive(kafka: KafkaDistribution) -> None:
    """From the classes of a tool that looks for a broker in vain. A failure is no harm: there is no archive then."""
    if CLASS_ARCHIVE.exists():
        return
    hurried = kafka.directory / "hurried.properties"
    hurried.write_text("default.api.timeout.ms=600\nrequest.timeout.ms=500\n")
    unfinished = CLASS_ARCHIVE.with_suffix(".new")
    performance = (*_SHORT_LIVED, f"-XX:ArchiveClassesAtExit={unfinished}")
    arguments = ("--bootstrap-server", "127.0.0.1:1", "--command-config", str(hurried), "--list")
    subprocess.run(kafka.command(TOPIC_COMMAND, *arguments, performance=performance), capture_output=True, check=False)
    if unfinished.exists():
        unfinished.replace(CLASS_ARCHIVE)


def resolve() -> KafkaDistribution:
    """The distribution, fetched with Maven on first use."""
    if not shutil.which("java"):
        raise ToolchainMissingError("java (17 or newer) is not installed")
    with exclusive("apache-kafka"):
        if (present := installed()) is not None:
            _make_class_archive(present)
            return present
        directory = CACHE / "apache-kafka" / KAFKA_VERSION
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        (directory / "pom.xml").write_text(_POM.format(kafka=KAFKA_VERSION, scala=SCALA_VERSION))
        (directory / "log4j2-broker.properties").write_text(_LOG4J.format(target="SYSTEM_OUT", level="info"))
        (directory / "log4j2-tool.properties").write_text(_LOG4J.format(target="SYSTEM_ERR", level="warn"))
        copy_jars(directory, f"Apache Kafka {KAFKA_VERSION}")
        (directory / "complete").touch()
        _make_class_archive(KafkaDistribution(KAFKA_VERSION, directory))
        return KafkaDistribution(KAFKA_VERSION, directory)


def copy_jars(directory: Path, what: str) -> None:
    """Put the dependencies that `directory / pom.xml` names into `directory / libs`, with Maven."""
    if not shutil.which("mvn"):
        raise ToolchainMissingError("mvn (Apache Maven) is not installed")
    fetched = subprocess.run(
        [
            "mvn",
            "--quiet",
            "--batch-mode",
            f"--file={directory / 'pom.xml'}",
            "dependency:copy-dependencies",
            "-DincludeScope=runtime",
            f"-DoutputDirectory={directory / 'libs'}",
        ],
        capture_output=True,
        text=True,
    )
    if fetched.returncode != 0:
        reason = (fetched.stdout + fetched.stderr).strip().splitlines()
        raise ToolchainMissingError(f"Maven could not fetch {what}: {' '.join(reason[:3])}")


def responds_to_api_versions(host: str, port: int, timeout_s: float = 2.0) -> bool:
    """Whether a Kafka broker responds there: Kafka does so only once registered and unfenced, so this means ready."""
    request = struct.pack(">hhih", 18, 0, 1, -1)
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            return len(connection.recv(8)) > 0
    except OSError:
        return False


@dataclass
class ApacheKafkaBroker:
    """A KRaft node, broker and controller in one. Use as a context manager, or call `format`, `start`, `stop` yourself.

    With `settings` empty it runs what the distribution ships. `jvm` defaults to Kafka's own heap; tests pass a smaller
    one. The port stays the same over `restart()`. Without `voters` it is a cluster of its own; with them (address of
    each node's controller by node id, this one's among them) it is one of several, see `ApacheKafkaCluster`.
    """

    distribution: KafkaDistribution
    data_dir: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    jvm: Sequence[str] = DEFAULT_BROKER_HEAP
    host: str = "127.0.0.1"
    port: int = 0
    start_timeout_s: float = 120.0
    node_id: int = 1
    voters: Mapping[int, str] = field(default_factory=dict)
    command_prefix: Sequence[str] = ()
    """What to run the node's program with, such as `ip netns exec NAME`."""
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def bootstrap_servers(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def log_file(self) -> Path:
        return self.data_dir.parent / f"{self.data_dir.name}.server.log"

    @property
    def properties_file(self) -> Path:
        return self.data_dir.parent / f"{self.data_dir.name}.server.properties"

    @property
    def pid(self) -> int:
        assert self.process is not None, "the broker was not started"
        return self.process.pid

    def __enter__(self) -> ApacheKafkaBroker:
        self.format()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def format(self) -> None:
        """Write server.properties and format the data directory (a JVM start of its own, so not part of `start`)."""
        self.write_settings()
        alone = () if self.voters else ("--standalone",)
        arguments = ("format", *alone, "-t", CLUSTER_ID, "-c", str(self.properties_file))
        formatted = self.distribution.run(STORAGE_TOOL, *arguments, performance=QUICK_START_OPTIONS)
        if formatted.returncode != 0:
            raise RuntimeError(f"formatting Apache Kafka's storage failed: {formatted.stdout}{formatted.stderr}")

    def write_settings(self) -> None:
        chosen_port, chosen_controller_port = free_ports(2)
        self.port = self.port or chosen_port
        controller = self.voters.get(self.node_id, f"{self.host}:{chosen_controller_port}")
        self.data_dir.parent.mkdir(parents=True, exist_ok=True)
        if self.voters:
            listed = ",".join(f"{node_id}@{address}" for node_id, address in self.voters.items())
            quorum = {"controller.quorum.voters": listed}
        else:
            quorum = {"controller.quorum.bootstrap.servers": controller}
        settings = {
            "process.roles": "broker,controller",
            "node.id": str(self.node_id),
            **quorum,
            "listeners": f"PLAINTEXT://{self.host}:{self.port},CONTROLLER://{controller}",
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.data_dir),
            **SHIPPED_SETTINGS,
            **self.settings,
        }
        self.properties_file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def start(self) -> None:
        """Start the process and wait until it responds."""
        self.start_process()
        self.wait_until_ready()

    def start_process(self) -> None:
        log4j = f"-Dlog4j2.configurationFile={self.distribution.directory / 'log4j2-broker.properties'}"
        options = [*self.jvm, *DEFAULT_PERFORMANCE_OPTIONS, log4j, "-cp", self.distribution.classpath]
        with open(self.log_file, "ab") as log:
            self.process = subprocess.Popen(
                [*self.command_prefix, "java", *options, BROKER, str(self.properties_file)],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    def wait_until_ready(self) -> None:
        assert self.process is not None, "the broker was not started"
        deadline = time.monotonic() + self.start_timeout_s
        while not responds_to_api_versions(self.host, self.port):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"Apache Kafka did not become ready; the end of its log:\n{self._log_tail()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop cleanly (SIGTERM), and by force when that takes too long."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()

    def _end(self, number: signal.Signals) -> None:
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(number)
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process = None

    def _log_tail(self) -> str:
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-20:])


# With several nodes the single-node choices of the shipped file give way to Kafka's own defaults.
CLUSTER_SETTINGS: Mapping[str, str] = {
    "offsets.topic.replication.factor": "3",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}
CLUSTER_NODE_HEAP = ("-Xmx512M", "-Xms512M")


@dataclass
class ApacheKafkaCluster:
    """Several KRaft nodes on loopback that form one cluster; node ids count from 1. Use as a context manager."""

    distribution: KafkaDistribution
    directory: Path
    node_count: int = 3
    settings: Mapping[str, str] = field(default_factory=dict)
    jvm: Sequence[str] = CLUSTER_NODE_HEAP
    start_timeout_s: float = 120.0
    nodes: list[ApacheKafkaBroker] = field(default_factory=list, init=False)

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(node.bootstrap_servers for node in self.nodes)

    def __enter__(self) -> ApacheKafkaCluster:
        self.format()
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def format(self) -> None:
        """Choose ports, write the files and format the directories."""
        ports = free_ports(2 * self.node_count)
        ids = range(1, self.node_count + 1)
        voters = {node_id: f"127.0.0.1:{ports[self.node_count + node_id - 1]}" for node_id in ids}
        self.nodes = [
            ApacheKafkaBroker(
                self.distribution,
                self.directory / f"node-{node_id}",
                {**CLUSTER_SETTINGS, **self.settings},
                jvm=self.jvm,
                port=ports[node_id - 1],
                node_id=node_id,
                voters=voters,
                start_timeout_s=self.start_timeout_s,
            )
            for node_id in ids
        ]
        for node in self.nodes:
            node.format()

    def start(self) -> None:
        """Start all and wait until each responds; one alone would wait for a majority."""
        for node in self.nodes:
            node.start_process()
        for node in self.nodes:
            node.wait_until_ready()

    def stop(self) -> None:
        """Stop all at once: the last of them would wait in vain for a controller to take its leave of."""
        for node in self.nodes:
            if node.process is not None and node.process.poll() is None:
                node.process.terminate()
        for node in self.nodes:
            node.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description="Fetch Apache Kafka, or run one of its programs.")
    parser.add_argument(
        "main_class", nargs="?", help="for example org.apache.kafka.tools.TopicCommand; none: only fetch"
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    chosen = parser.parse_args()
    try:
        distribution = resolve()
    except ToolchainMissingError as missing:
        print(f"apache-kafka: {missing}", file=sys.stderr)
        return 1
    if chosen.main_class is None:
        print(f"Apache Kafka {distribution.version} is in {distribution.directory}")
        return 0
    command = distribution.command(chosen.main_class, *chosen.arguments)
    return subprocess.run(command).returncode


if __name__ == "__main__":
    sys.exit(main())
