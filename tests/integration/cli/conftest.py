"""Running the command in this process, which is twenty times faster than starting one."""

import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from millstream.cli.main import main
from millstream.testing import EmbeddedBroker


@dataclass
class Outcome:
    code: int
    raw: bytes
    err: str

    @property
    def out(self) -> str:
        return self.raw.decode()

    def json(self) -> Any:
        return json.loads(self.raw)

    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.raw.splitlines()]


Run = Callable[..., Outcome]


@pytest.fixture
def offline(capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line that needs no broker; `stdin` is what it reads."""

    def run(*arguments: object, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsysbinary.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = capsysbinary.readouterr()
        return Outcome(code, out, err.decode())

    return run


@pytest.fixture
def run(offline: Run, millstream_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line against the session's broker."""
    monkeypatch.setenv("MILLSTREAM_BOOTSTRAP", millstream_broker.bootstrap_servers)
    return offline
