"""The first ten minutes of a new user: `make run`, the console, a topic, `curl`, the rate, and a Kafka client."""

import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from tests.repository import REPOSITORY
from tests.system.console.conftest import Looking
from tests.waiting import TIMEOUT_SECONDS

pytestmark = pytest.mark.timeout(300)
TOPIC = "first-orders"


def what_make_runs(target: str) -> list[str]:
    # As a person would call it, who is not inside of a `make test`.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "--dry-run", "--always-make", "--no-print-directory", target]
    told = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=60)
    return told.stdout.splitlines()


class Terminal:
    """What a person sees who has started it: standard output and error of a process, as in a terminal."""

    def __init__(self, words: list[str], directory: Path) -> None:
        self._screen, other = pty.openpty()
        self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=other, stderr=other, cwd=directory)
        os.close(other)
        self.text = ""

    def await_text(self, pattern: str) -> "re.Match[str]":
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while (found := re.search(pattern, self.text)) is None:
            assert time.monotonic() < deadline, self.text
            if select.select([self._screen], [], [], 1.0)[0]:
                self.text += os.read(self._screen, 65536).decode(errors="replace")
        return found

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._screen)


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """The command of `make run`, on ports that no one else uses."""
    *_, last = what_make_runs("run")
    program, *words = shlex.split(last)
    assert program.endswith("bin/millstream")
    free = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    running = Terminal([sys.executable, "-m", "millstream", *words, *free], tmp_path_factory.mktemp("new-user"))
    yield running
    running.close()


class Curl(threading.Thread):
    """Posts an order now and then, until it is told to stop."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._ended = threading.Event()
        self.sent = 0

    def post(self) -> Any:
        body = json.dumps({"records": [{"key": "tea", "value": {"item": "tea", "number": self.sent}}] * 20})
        command = ["curl", "-sS", f"{self._url}/v1/topics/{TOPIC}/produce", "-d", body]
        response = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)
        self.sent += 20
        return response

    def run(self) -> None:
        while not self._ended.wait(0.3):
            self.post()

    def end(self) -> None:
        self._ended.set()
        self.join(TIMEOUT_SECONDS)


def test_make_run_installs_the_gateway() -> None:
    assert any("pip install" in line and re.search(r"\[[^]]*\bgateway\b", line) for line in what_make_runs("run"))


def test_from_make_run_to_a_kafka_client(terminal: Terminal, window: Any) -> None:
    url = terminal.await_text(r"Open (http://127\.0\.0\.1:\d+)/console in a browser")[1]
    kafka = terminal.await_text(r"ready kafka=(\S+) http=")[1]
    assert terminal.await_text(r" http=(\S+)")[1] == url.removeprefix("http://")
    # What to try names the addresses that were taken.
    assert terminal.await_text(r"curl (http\S+)/v1/topics/orders/produce")[1] == url
    assert terminal.await_text(r"topic create orders -b (\S+)")[1] == kafka

    # The printed address, and a topic made there.
    tab = Looking(window.new_page(), url)
    page = tab.open("")
    tab.await_text("stat-brokers", "1 / 1")
    tab.open("/topics")
    page.get_by_test_id("open-create").click()
    page.get_by_test_id("new-name").fill(TOPIC)
    page.get_by_test_id("create").click()
    page.get_by_test_id("page-title").filter(has_text=TOPIC).wait_for()

    curl = Curl(url)
    assert curl.post()["offsets"][0]["offset"] == 0
    tab.open(f"/messages?topic={TOPIC}")
    tab.await_text("records", '"item":')

    # The rate: a number, and a line on the chart.
    curl.start()
    try:
        tab.open("")
        page.wait_for_function("Number(document.querySelector('[data-testid=stat-records]').innerText) > 0")
        page.wait_for_function(
            """() => {
                const chart = document.querySelector('[data-testid=chart-records]');
                const drawn = window.getElement(Number(chart.id.slice(1))).chart.getOption().series;
                return drawn.some(line => line.data.some(point => point[1] > 0));
            }"""
        )
    finally:
        curl.end()
    page.close()
    assert tab.problems == []

    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "new-user", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([TOPIC])
        read: list[Any] = []
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while len(read) < curl.sent and time.monotonic() < deadline:
            read += [
                json.loads(message.value() or b"null") for message in consumer.consume(500, 1.0) if not message.error()
            ]
    finally:
        consumer.close()
    assert len(read) == curl.sent
    assert read[0] == {"item": "tea", "number": 0}

    terminal.process.send_signal(signal.SIGINT)
    assert terminal.process.wait(TIMEOUT_SECONDS) == 0
