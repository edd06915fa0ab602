"""Apache Flink with its connector for Kafka: words in, counts out, exactly once by checkpoints and transactions.

The job fails in the middle, a broker is killed, and the whole process is killed and starts again from its last
checkpoint. The sink commits transactions of an earlier process: it takes over their producer ids and epochs.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from millstream.testing import EmbeddedCluster
from tests.system.frameworks.committed import Committed
from tests.topics import make_topic
from tests.waiting import LONG_TIMEOUT_SECONDS
from tools import apache_kafka, install_test_clients, kafka_libraries

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

SOURCE = Path(__file__).parent / "java" / "KeyedCounts.java"
INPUT, OUTPUT, PARTITIONS = "words", "counts", 3
WORDS = [f"word-{number}" for number in range(10)]
BROKERS = {
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
}
# Flink reads fields of the JDK's own classes to serialize state.
OPENED = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in ("util", "lang", "time", "io", "nio")]


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(3, BROKERS) as running:
        for topic in (INPUT, OUTPUT):
            make_topic(running, topic, PARTITIONS)
        yield running


class Job:
    """The job with all of Flink in one process. Use as a context manager."""

    def __init__(self, bootstrap: str, directory: Path, fails_at: int = 0) -> None:
        try:
            jars = kafka_libraries.flink()
            install_test_clients.need("javac", "a JDK, 17 or newer")
        except apache_kafka.ToolchainMissingError as reason:
            pytest.skip(f"Flink: {reason}")
        classes = install_test_clients.fill(
            "flink",
            [SOURCE, jars.directory / "pom.xml"],
            lambda into: install_test_clients.run("javac", "-d", str(into), "-cp", jars.classpath, str(SOURCE)),
        )
        directory.mkdir(parents=True, exist_ok=True)
        self._checkpoints = directory / "checkpoints"
        settings = {
            "execution.checkpointing.interval": "500 ms",
            "execution.checkpointing.mode": "EXACTLY_ONCE",
            "execution.checkpointing.dir": self._checkpoints.as_uri(),
            "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
            "execution.checkpointing.tolerable-failed-checkpoints": "1000",
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": "1000",
            "restart-strategy.fixed-delay.delay": "500 ms",
        }
        last = self._last_checkpoint()
        if last is not None:
            settings["execution.state-recovery.path"] = last.as_uri()
        file = directory / "flink.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self.log_file = directory / "flink.log"
        self._said = directory / "said"
        options = ["-Xmx512m", *OPENED, *apache_kafka.QUICK_START_OPTIONS]
        log4j = f"-Dlog4j2.configurationFile={jars.directory / 'log4j2-tool.properties'}"
        arguments = [str(file), bootstrap, "INCREMENTING", str(fails_at)]
        with open(self.log_file, "ab") as log, open(self._said, "ab") as said:
            self._process = subprocess.Popen(
                ["java", *options, log4j, "-cp", f"{classes}:{jars.classpath}", "KeyedCounts", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=log,
            )

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _last_checkpoint(self) -> Path | None:
        done = [each.parent for each in self._checkpoints.glob("*/chk-*/_metadata")]
        return max(done, key=lambda each: int(each.name.partition("-")[2]), default=None)

    @property
    def has_failed(self) -> bool:
        return "failing" in self._said.read_text()

    def check(self) -> None:
        assert self._process.poll() is None, self.log_file.read_text()[-6000:]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Words:
    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
        self.sent = 0

    def send(self, count: int) -> None:
        for _ in range(count):
            self._producer.produce(INPUT, key=str(self.sent), value=WORDS[self.sent % len(WORDS)])
            self.sent += 1
        assert self._producer.flush(LONG_TIMEOUT_SECONDS) == 0


def test_counts_are_exact_whatever_fails(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    bootstrap = cluster.bootstrap_servers
    words, counts = Words(bootstrap), Committed(bootstrap, OUTPUT, PARTITIONS)

    def await_all(job: Job, what: str) -> None:
        counts.await_count(words.sent, what, job.check)

    try:
        with Job(bootstrap, tmp_path, fails_at=60) as job:
            words.send(400)
            await_all(job, "the words were not counted")
            words.send(400)  # the 60th of a word is among them
            await_all(job, "counts are missing after a failure of the job")
            assert job.has_failed
            for number in sorted(cluster.brokers):
                words.send(200)
                cluster.kill(number)
                words.send(200)
                cluster.start(number)
                await_all(job, f"counts are missing after a kill of broker {number}")
            words.send(400)
            counts.await_count(words.sent - 390, "nothing was counted")
            job.kill()
        words.send(200)
        with Job(bootstrap, tmp_path) as job:
            await_all(job, "counts are missing after a kill of the process")
            words.send(200)
            await_all(job, "nothing is counted after a kill of the process")
    finally:
        counts.close()
    found: dict[str, list[int]] = {word: [] for word in WORDS}
    for values in counts.values.values():
        for value in values:
            word, _, count = value.partition(":")
            found[word].append(int(count))
    assert found == {word: list(range(1, words.sent // len(WORDS) + 1)) for word in WORDS}
