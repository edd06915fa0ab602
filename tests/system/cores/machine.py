"""A machine for tests: `millstream serve --cores N` on one directory, started, stopped and killed."""

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.testing.node_process import free_port_range
from tests.waiting import TIMEOUT_SECONDS, until


class Machine:
    """`settings` are for every start. The ports stay the same."""

    def __init__(self, directory: Path, *arguments: str, most_cores: int = 3) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.log_file = directory / "log"
        self.port = free_port_range(most_cores)
        self._arguments = arguments or ("--listen", f"127.0.0.1:{self.port}", "--data-dir", str(self.data))
        self.process: subprocess.Popen[str] | None = None
        self.bootstrap = ""

    def spawn(self, cores: int | str, *more: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "millstream", "serve", "--cores", str(cores), *self._arguments, *more]
        if "--http" not in more:
            command.append("--no-http")
        with open(self.log_file, "ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=self.directory)
        return self.process

    def start(self, cores: int | str, *more: str) -> str:
        """Starts it, and returns its ready line."""
        process = self.spawn(cores, *more)
        assert process.stdout is not None
        readable, _, _ = select.select([process.stdout], [], [], TIMEOUT_SECONDS)
        assert readable, f"not ready in {TIMEOUT_SECONDS:g} s: {self.log()[-3000:]}"
        line = process.stdout.readline()
        assert line.startswith("ready kafka="), self.log()[-3000:]
        self.bootstrap = line.split()[1].removeprefix("kafka=")
        return line

    def refuse(self, cores: int) -> None:
        """Starts it with a number of nodes that it does not accept now."""
        process, self.process = self.spawn(cores), None
        assert process.wait(TIMEOUT_SECONDS) == 1
        assert process.stdout is not None
        process.stdout.close()

    def log(self) -> str:
        return self.log_file.read_text() if self.log_file.exists() else ""

    def pid(self, node: int) -> int:
        """The process of a node that was started last."""
        return int(re.findall(rf"node_{node}_started pid=(\d+)", self.log())[-1])

    def stop(self) -> int:
        process, self.process = self.process, None
        if process is None:
            return 0
        process.send_signal(signal.SIGTERM)
        code = process.wait(TIMEOUT_SECONDS)
        assert process.stdout is not None
        process.stdout.close()
        return code

    def kill(self) -> None:
        """kill -9 of the supervisor alone, then waits until its nodes have ended."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        for pid in map(int, re.findall(r"node_\d+_started pid=(\d+)", self.log())):
            until(lambda pid=pid: not is_alive(pid), f"process {pid} outlives its supervisor")  # type: ignore[misc]

    def kill_all(self) -> None:
        """kill -9 of everything, as when the machine loses power (the page cache stays)."""
        process, self.process = self.process, None
        for pid in map(int, re.findall(r"node_\d+_started pid=(\d+)", self.log())):
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        if process is not None:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        self.kill()

    def create(self, topic: str, partitions: int, replicas: int = 1) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(topic, partitions, replicas)])[topic].result(TIMEOUT_SECONDS)

    def produce(self, topic: str, values: Sequence[str], partitions: int) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "log_level": 0})
        failed: list[object] = []
        for number, value in enumerate(values):
            producer.produce(
                topic, value, partition=number % partitions, on_delivery=lambda e, _: failed.append(e) if e else None
            )
        assert producer.flush(TIMEOUT_SECONDS) == 0
        assert not failed, failed[0]

    def read(self, topic: str, partitions: int, count: int) -> list[str]:
        """All records of a topic, without a group; `count` of them are expected, and no more."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "reader",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        found: list[str] = []
        deadline = time.monotonic() + TIMEOUT_SECONDS
        quiet = 0
        while quiet < 3 and time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is None:
                quiet += len(found) >= count
            elif not message.error():
                found.append((message.value() or b"").decode())
        consumer.close()
        return sorted(found)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
