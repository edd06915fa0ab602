"""A Kafka Streams application as a process: `java/WordCounts.java`, with `group.protocol=streams`.

It reads `words` (values `word:number`). It writes to `counts` how often a word came, to `highest` its highest number.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.waiting import LONG_TIMEOUT_SECONDS, until
from tools import apache_kafka, install_test_clients, kafka_libraries

_SOURCE = Path(__file__).parent / "java" / "WordCounts.java"
INPUT, COUNTS, HIGHEST = "words", "counts", "highest"
WORDS = [f"word-{number}" for number in range(20)]
_QUICK = {
    "commit.interval.ms": "200",
    "consumer.session.timeout.ms": "6000",
    "state.cleanup.delay.ms": "600000",
    "statestore.cache.max.bytes": "0",
    "consumer.auto.offset.reset": "earliest",
}


class Application:
    """One instance. Use it in a `with` statement: it ends with it."""

    def __init__(
        self, bootstrap: str, directory: Path, *, name: str = "application", settings: Mapping[str, str] | None = None
    ) -> None:
        jars = kafka_libraries.streams()
        install_test_clients.need("javac", "a JDK, 17 or newer")
        classes = install_test_clients.fill(
            "streams",
            [_SOURCE, jars.directory / "pom.xml"],
            lambda into: install_test_clients.run("javac", "-d", str(into), "-cp", jars.classpath, str(_SOURCE)),
        )
        directory.mkdir(parents=True, exist_ok=True)
        given = {
            "bootstrap.servers": bootstrap,
            "application.id": name,
            "state.dir": str(directory / "state"),
            "group.protocol": "streams",
            **_QUICK,
            **(settings or {}),
        }
        file = directory / "application.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
        self.log_file = directory / "application.log"
        options = ["-Xmx256m", *apache_kafka.QUICK_START_OPTIONS]
        log4j = f"-Dlog4j2.configurationFile={jars.directory / 'log4j2-tool.properties'}"
        with open(self.log_file, "ab") as log:
            self._process = subprocess.Popen(
                ["java", *options, log4j, "-cp", f"{classes}:{jars.classpath}", "WordCounts", str(file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._said: queue.SimpleQueue[dict[str, str]] = queue.SimpleQueue()
        self.states: list[str] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def __enter__(self) -> Application:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if "state" in said:
                self.states.append(said["state"])
            elif "failed" not in said:
                self._said.put(said)

    def await_state(self, state: str) -> None:
        until(
            lambda: state in self.states or self._process.poll() is not None,
            f"the application was not {state}",
            timeout_s=LONG_TIMEOUT_SECONDS,
        )
        assert state in self.states, self.log()

    def log(self) -> str:
        return self.log_file.read_text()[-8000:]

    def ask(self, what: str) -> list[str]:
        """`tasks` are its active tasks, `standbys` its standby tasks, `endpoints` what it knows of all instances."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        response = self._said.get(timeout=LONG_TIMEOUT_SECONDS)[what]
        return response.split(",") if response else []

    def close(self) -> None:
        """Ends as an application should: it leaves its group."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(timeout=LONG_TIMEOUT_SECONDS) == 0, self.log()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


class Words:
    """Writes the input, and knows what the output must be."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
        self.counts = dict.fromkeys(WORDS, 0)
        self.sent = 0

    def send(self, count: int) -> None:
        for _ in range(count):
            word = WORDS[self.sent * 7 % len(WORDS)]
            self.counts[word] += 1
            self._producer.produce(INPUT, key=str(self.sent), value=f"{word}:{self.counts[word]}")
            self.sent += 1
        assert self._producer.flush(LONG_TIMEOUT_SECONDS) == 0


class Output:
    """The last value of each word in a topic, among committed records."""

    def __init__(self, bootstrap: str, topic: str, partitions: Sequence[int]) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"reader-of-{topic}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        self.values: dict[str, int] = {}
        self.history: dict[str, list[int]] = {}

    def read(self) -> dict[str, int]:
        for message in self._consumer.consume(1000, timeout=0.2):
            if message.error() is None:
                word, value = (message.key() or b"").decode(), int(message.value() or b"0")
                self.values[word] = value
                self.history.setdefault(word, []).append(value)
        return self.values

    def close(self) -> None:
        self._consumer.close()
