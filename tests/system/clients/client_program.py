"""One client's program: started once, then asked many things over its stdin and stdout."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import TIMEOUT_SECONDS
from tools import install_test_clients

RESPONSE_TIMEOUT_SECONDS = 150


def eventually(condition: Callable[[], bool], timeout_s: float = TIMEOUT_SECONDS) -> bool:
    """Whether the condition comes true: a cluster's response to a change may come before its members know of it."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@dataclass(frozen=True)
class ClientSecurity:
    """How a client connects, in terms that every client's program understands. Paths are of PEM files."""

    protocol: str
    """SSL, SASL_PLAINTEXT or SASL_SSL."""
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    keystore: str | None = None
    """Key and certificates in one file, as the Java client wants them."""
    mechanism: str | None = None
    username: str | None = None
    password: str | None = None


class ClientFailedError(Exception):
    """The client reported an error: its own name for it, and Kafka's number where it tells."""

    def __init__(self, client: str, error: dict[str, Any]) -> None:
        super().__init__(f"{client}: {error['type']} ({error['code']}): {error['message']}")
        self.type: str = error["type"]
        self.code: int | None = error["code"]


class ClientProgram:
    """A running client. Operations the client lacks skip the test that asks for them, with the client's reason."""

    def __init__(self, name: str, log_file: Path) -> None:
        self.name = name
        self.log_file = log_file
        self.security: ClientSecurity | None = None
        """For the requests that follow."""
        program = install_test_clients.CLIENTS[name]()
        with open(log_file, "wb") as log:
            self.process = subprocess.Popen(
                program.command,
                env={**os.environ, **program.environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.description = self.ask("hello", "")
        self.codecs: list[str] = self.description["codecs"]
        self.lacks: dict[str, str] = self.description["lacks"]

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join()
        self.process.stdout.close()

    def begin(self, operation: str, bootstrap: str, **arguments: Any) -> None:
        assert self.process.stdin is not None
        security = None if self.security is None else {k: v for k, v in asdict(self.security).items() if v is not None}
        line = {"op": operation, "bootstrap": bootstrap, "security": security, **arguments}
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()

    def wait_for(self, event: str) -> None:
        """Read up to the event; a response that comes instead is an error."""
        line = self._next_line()
        if line != {"event": event}:
            self._judge(line)
            raise AssertionError(f"{self.name} responded before the event {event!r}")

    def finish(self) -> dict[str, Any]:
        line = self._next_line()
        while "event" in line:
            line = self._next_line()
        return self._judge(line)

    def ask(self, operation: str, bootstrap: str, **arguments: Any) -> dict[str, Any]:
        self.begin(operation, bootstrap, **arguments)
        return self.finish()

    def produce(
        self,
        bootstrap: str,
        topic: str,
        records: list[dict[str, Any]],
        codec: str = "none",
        acks: int | str = "all",
        batch_records: int = 10_000,
    ) -> list[dict[str, Any]]:
        """Write records; acks=all means an idempotent producer, as today's clients default to."""
        response = self.ask(
            "produce",
            bootstrap,
            topic=topic,
            codec=codec,
            acks=acks,
            idempotent=acks == "all",
            batch_records=batch_records,
            records=records,
        )
        results: list[dict[str, Any]] = response["results"]
        assert len(results) == len(records)
        return results

    def begin_consume(
        self,
        bootstrap: str,
        topic: str,
        partition: int,
        count: int,
        start: str | int | dict[str, int] = "earliest",
        reset: str = "earliest",
        isolation: str = "read_uncommitted",
        max_wait_ms: int = 500,
        timeout_ms: int = 30_000,
    ) -> None:
        self.begin(
            "consume",
            bootstrap,
            topic=topic,
            partition=partition,
            count=count,
            start=start,
            reset=reset,
            isolation=isolation,
            max_wait_ms=max_wait_ms,
            timeout_ms=timeout_ms,
        )

    def consume(self, bootstrap: str, topic: str, partition: int, count: int, **options: Any) -> list[dict[str, Any]]:
        self.begin_consume(bootstrap, topic, partition, count, **options)
        records: list[dict[str, Any]] = self.finish()["records"]
        return records

    def transact(
        self,
        bootstrap: str,
        producer: str,
        topic: str,
        records: list[dict[str, Any]],
        *,
        transactional_id: str | None = None,
        begin: bool = True,
        offsets: tuple[str, str, int, int] | None = None,
        end: str = "commit",
    ) -> None:
        """One transaction, or with begin=False the rest of one, of a producer that is kept by its name."""
        self.ask(
            "transact",
            bootstrap,
            producer=producer,
            transactional_id=transactional_id or producer,
            topic=topic,
            records=records,
            begin=begin,
            offsets=offsets,
            end=end,
        )

    def _next_line(self) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=RESPONSE_TIMEOUT_SECONDS)
        except queue.Empty:
            self.process.kill()
            raise AssertionError(f"{self.name} did not respond; it said:\n{self._log_tail()}") from None
        if not line:
            raise AssertionError(f"{self.name} ended unexpectedly; it said:\n{self._log_tail()}")
        parsed: dict[str, Any] = json.loads(line)
        return parsed

    def _judge(self, line: dict[str, Any]) -> dict[str, Any]:
        if "unsupported" in line:
            pytest.skip(f"{self.name}: {line['unsupported']}")
        if "error" in line:
            raise ClientFailedError(self.name, line["error"])
        result: dict[str, Any] = line["result"]
        return result

    def _log_tail(self) -> str:
        return self.log_file.read_text(errors="replace")[-4000:]
