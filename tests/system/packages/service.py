"""A service manager for tests: starts a program as systemd does with `Type=notify`, and reads its messages."""

import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.waiting import TIMEOUT_SECONDS

NOTHING_SECONDS = 1.5
"""Several periods of the watchdog of the tests."""


class Service:
    """A running program; `watchdog_s` is the period of its watchdog."""

    def __init__(
        self,
        command: Sequence[str],
        directory: Path,
        *,
        environment: Mapping[str, str] | None = None,
        watchdog_s: float | None = None,
    ) -> None:
        self.messages: list[str] = []
        self.log_file = directory / "service.log"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("")
        self._socket.settimeout(TIMEOUT_SECONDS)
        own = {"NOTIFY_SOCKET": f"@{self._socket.getsockname()[1:].decode()}"}
        if watchdog_s is not None:
            own["WATCHDOG_USEC"] = str(int(watchdog_s * 1_000_000))
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=directory,
                env={**os.environ, **(environment or {}), **own},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        self.output: IO[str] = self.process.stdout

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def wait_for(self, message: str, count: int = 1) -> None:
        """Waits until a line with this beginning has come so often, from now on."""
        for _ in range(count):
            while not any(line.startswith(message) for line in self._next()):
                pass

    def is_silent(self) -> bool:
        """Whether nothing comes for several periods, after what was sent before."""
        self._socket.settimeout(0.0)
        try:
            while True:
                self._socket.recv(4096)
        except BlockingIOError:
            pass
        self._socket.settimeout(NOTHING_SECONDS)
        try:
            self._next()
        except TimeoutError:
            return True
        finally:
            self._socket.settimeout(TIMEOUT_SECONDS)
        return False

    def _next(self) -> list[str]:
        try:
            lines = self._socket.recv(4096).decode().splitlines()
        except TimeoutError:
            if self._socket.gettimeout() == TIMEOUT_SECONDS:
                raise AssertionError(f"no message came; so far {self.messages}\n{self.log()[-3000:]}") from None
            raise
        self.messages += lines
        return lines

    def stop(self) -> int:
        """SIGTERM, as `systemctl stop` sends it; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        self.wait_for("STOPPING=1")
        return self.process.wait(TIMEOUT_SECONDS)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.output.close()
        self._socket.close()
