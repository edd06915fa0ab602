"""One member of a group, as a process: started, watched, stopped or killed. The programs are in `group_members/`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.system.clients.client_program import eventually
from tests.waiting import TIMEOUT_SECONDS
from tools import apache_kafka, install_test_clients
from tools.install_test_clients import SOURCES, ClientProgram

MEMBERS = SOURCES / "group_members"


def _python(program: str) -> ClientProgram:
    confluent = install_test_clients.confluent_kafka()  # whose virtual environment has all the Python clients
    return ClientProgram([confluent.command[0], str(MEMBERS / program)])


def _kafkajs() -> ClientProgram:
    return ClientProgram(["node", str(MEMBERS / "kafkajs_member.js")], install_test_clients.kafkajs().environment)


def _java() -> ClientProgram:
    kafka = apache_kafka.resolve()
    install_test_clients.need("javac", "a JDK, 17 or newer")
    source = SOURCES / "java" / "GroupMember.java"

    def install(directory: Path) -> None:
        install_test_clients.run("javac", "-d", str(directory), "-cp", kafka.classpath, str(source))

    classes = install_test_clients.fill("java-member", [source, kafka.directory / "pom.xml"], install)
    log4j = f"-Dlog4j2.configurationFile={kafka.directory / 'log4j2-tool.properties'}"
    options = ["-Xmx128m", *apache_kafka.QUICK_START_OPTIONS, log4j]
    return ClientProgram(["java", *options, "-cp", f"{kafka.classpath}:{classes}", "GroupMember"])


def _franz_go() -> ClientProgram:
    install_test_clients.need("go", "the Go toolchain")
    described_by = [SOURCES / "go" / name for name in ("go.mod", "go.sum", "member/main.go")]

    def install(directory: Path) -> None:
        install_test_clients.run("go", "build", "-o", str(directory / "member"), "./member", cwd=SOURCES / "go")

    return ClientProgram([str(install_test_clients.fill("go-member", described_by, install) / "member")])


PROGRAMS: Mapping[str, Callable[[], ClientProgram]] = {
    "confluent-kafka": lambda: _python("confluent_member.py"),
    "kafka-python": lambda: _python("kafka_python_member.py"),
    "aiokafka": lambda: _python("aiokafka_member.py"),
    "kafkajs": _kafkajs,
    "java": _java,
    "franz-go": _franz_go,
}


class GroupMember:
    """A consumer in a group. `assigned` is what it says it has; `records` all it has read, in that order."""

    def __init__(self, client: str, bootstrap: str, group: str, topic: str, log_file: Path, **options: Any) -> None:
        program = PROGRAMS[client]()
        self.assigned: list[int] = []
        self.assignments = 0
        """How often it was told a new assignment."""
        self.records: list[tuple[int, int, str]] = []
        self._log_file = log_file
        arguments = [bootstrap, group, topic, json.dumps(options)]
        with open(log_file, "ab") as log:
            self.process = subprocess.Popen(
                [*program.command, *arguments],
                env={**os.environ, **program.environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            if "assigned" in said:
                self.assigned = said["assigned"]
                self.assignments += 1
            else:
                partition, offset, value = said["record"]
                self.records.append((partition, offset, value))

    @property
    def values(self) -> list[str]:
        return [value for _, _, value in self.records]

    def said(self) -> str:
        return self._log_file.read_text(errors="replace")[-3000:]

    def stop(self) -> None:
        """Lets it leave the group."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self._wait()

    def kill(self) -> None:
        """It is gone, and the group has not heard of it."""
        self.process.send_signal(signal.SIGKILL)
        self._wait()

    def _wait(self) -> None:
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join()
        assert self.process.stdin is not None and self.process.stdout is not None
        if not self.process.stdin.closed:
            self.process.stdin.close()
        self.process.stdout.close()


def shared_evenly(members: list[GroupMember], partitions: int) -> bool:
    """Whether all partitions are taken, none twice, and no one has two more than another."""
    taken = sorted(partition for member in members for partition in member.assigned)
    counts = [len(member.assigned) for member in members]
    return taken == list(range(partitions)) and max(counts) - min(counts) <= 1


def wait_until_shared(members: list[GroupMember], partitions: int, timeout_s: float = TIMEOUT_SECONDS) -> None:
    assert eventually(lambda: shared_evenly(members, partitions), timeout_s), [
        (member.assigned, member.process.poll(), member.said()) for member in members
    ]
