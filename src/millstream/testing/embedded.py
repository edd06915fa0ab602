"""The real broker for tests: a child process on a free port, with a temporary directory.

Promises: ready when `start` returns; gone when `stop` returns; never outlives its parent, however that ends. For the
last, the child's standard input is a pipe whose other end only we hold: the kernel closes it when we die, and
`serve --exit-with-stdin` stops on that. (PR_SET_PDEATHSIG would be tied to the thread that forked, and kill the broker
when that thread ends.) A process of its own, not a thread, so that a test may kill it as hard as a power cut would.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

READY_PREFIX = b"ready kafka="
LOG_TAIL_LINES = 30


class EmbeddedBrokerError(RuntimeError):
    """The broker did not start or did not stop; the message ends with what it logged last."""


class EmbeddedBroker:
    """A broker on 127.0.0.1. Use it with `with`, or call `start` and `stop`.

    settings       Kafka settings by name, as `millstream serve --set` takes them: {"num.partitions": 3}
    data_dir       keep the data there, and after the end; by default a temporary directory, removed at the end
    port           0 picks a free one, which `restart` then keeps
    start_timeout  seconds until `ready` must have been said
    """

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        port: int = 0,
        start_timeout: float = 30.0,
        stop_timeout: float = 10.0,
    ) -> None:
        self._settings = dict(settings or {})
        self._given_data_dir = None if data_dir is None else Path(data_dir)
        self._port = port
        self._start_timeout = start_timeout
        self._stop_timeout = stop_timeout
        self._scratch: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "EmbeddedBroker":
        if self._process is None:
            try:
                self.start()
            except BaseException:
                self.close()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = f"at {self.bootstrap_servers}" if self.running else "not running"
        return f"<embedded Millstream broker {state}>"

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT for any Kafka client."""
        if self._port == 0:
            raise EmbeddedBrokerError("the broker has not been started: use `with EmbeddedBroker() as broker`")
        return f"127.0.0.1:{self._port}"

    @property
    def data_dir(self) -> Path:
        """Where the partitions are; valid until `close`."""
        if self._given_data_dir is not None:
            return self._given_data_dir
        return self._scratch_directory() / "data"

    @property
    def log_file(self) -> Path:
        """What the broker wrote to stderr, over all its lives."""
        return self._scratch_directory() / "broker.log"

    @property
    def pid(self) -> int:
        """The process id of the running broker."""
        if self._process is None:
            raise EmbeddedBrokerError("the broker is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the broker and wait until it accepts connections."""
        if self._process is not None:
            raise EmbeddedBrokerError(f"the broker runs already (pid {self._process.pid})")
        command = [sys.executable, "-m", "millstream", "serve", "--exit-with-stdin"]
        command += ["--listen", f"127.0.0.1:{self._port}", "--data-dir", str(self.data_dir)]
        for name, value in self._settings.items():
            command += ["--set", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
        # The same code as the parent's, also when it was found by way of sys.path rather than installed.
        source = str(Path(__file__).parents[2])
        path = os.pathsep.join(part for part in (source, os.environ.get("PYTHONPATH")) if part)
        with open(self.log_file, "ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": path},
                # Ctrl-C at the test runner is the runner's business: it will stop us in its own order.
                start_new_session=True,
            )
        try:
            self._port = self._wait_until_ready(self._process)
        except BaseException:
            self._reap(signal.SIGKILL)
            raise

    def stop(self) -> None:
        """Stop cleanly (SIGTERM) and wait; data stays for `restart`."""
        self._reap(signal.SIGTERM)

    def kill(self) -> None:
        """Kill -9, as a crash would; data stays as it is for `start` or `restart`."""
        self._reap(signal.SIGKILL)

    def restart(self) -> None:
        """Stop cleanly if it runs, and start again on the same port and data."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop and remove the temporary directory."""
        try:
            self.stop()
        finally:
            if self._scratch is not None:
                shutil.rmtree(self._scratch, ignore_errors=True)
                self._scratch = None

    def _scratch_directory(self) -> Path:
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="millstream-"))
        return self._scratch

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> int:
        assert process.stdout is not None
        descriptor = process.stdout.fileno()
        deadline = time.monotonic() + self._start_timeout
        said = b""
        while True:
            readable, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not readable:
                raise EmbeddedBrokerError(f"the broker was not ready after {self._start_timeout:g} s{self._log_tail()}")
            chunk = os.read(descriptor, 4096)
            if not chunk:
                code = process.wait(self._stop_timeout)
                raise EmbeddedBrokerError(f"the broker ended with exit code {code} at its start{self._log_tail()}")
            said += chunk
            for line in said.splitlines(keepends=True):
                if line.startswith(READY_PREFIX) and line.endswith(b"\n"):
                    return int(line.rsplit(b":", 1)[1])

    def _reap(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.send_signal(how)
            process.wait(self._stop_timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise EmbeddedBrokerError(
                f"the broker did not stop within {self._stop_timeout:g} s of SIGTERM, and was killed{self._log_tail()}"
            ) from None
        finally:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def _log_tail(self) -> str:
        lines = self.log_file.read_text(errors="replace").splitlines() if self.log_file.exists() else []
        if not lines:
            return ", and logged nothing"
        return "; its log ends:\n  " + "\n  ".join(lines[-LOG_TAIL_LINES:])
