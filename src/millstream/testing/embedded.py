"""`EmbeddedBroker`: a real broker for tests, as a child process on a free port with a temporary directory.

It accepts connections when `start` returns, has ended when `stop` returns, and never outlives its parent process. It is
a process and not a thread, so that a test can kill it.
"""

import os
import shutil
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from millstream.config.catalog import broker_setting
from millstream.testing.node_process import PORT_CHOICES, NodeProcess, NodeProcessError, PortTakenError, free_ports

EmbeddedBrokerError = NodeProcessError


class EmbeddedBroker:
    """A broker on 127.0.0.1. Use it in a `with` statement, or call `start` and `stop`.

    - `settings`: settings of the broker by name, as for `millstream serve --set`: {"num.partitions": 3}.
    - `data_dir`: data directory, which is kept; by default a temporary one, which is removed at the end.
    - `security_protocol`: of its listener: `SSL`, for example; the certificates are settings.
    - `port`: 0 takes a free port, which `restart` keeps.
    - `start_timeout`: seconds until the broker must be ready.

    On Linux the broker is a fork of a process that has imported everything, which is started with the first broker: the
    others start in a tenth of the time. The environment variable MILLSTREAM_FORK_NODES=no starts each as a program.
    """

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        *,
        security_protocol: str = "PLAINTEXT",
        data_dir: str | os.PathLike[str] | None = None,
        port: int = 0,
        start_timeout: float = 60.0,
        stop_timeout: float = 10.0,
    ) -> None:
        self._settings = dict(settings or {})
        self._given_data_dir = None if data_dir is None else Path(data_dir)
        self._port = port
        self._protocol = security_protocol
        self._start_timeout = start_timeout
        self._stop_timeout = stop_timeout
        self._scratch: Path | None = None
        self._process: NodeProcess | None = None

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
        """The data directory; valid until `close`."""
        if self._given_data_dir is not None:
            return self._given_data_dir
        return self._scratch_directory() / "data"

    @property
    def log_file(self) -> Path:
        """The log of the broker, over all its restarts."""
        return self._scratch_directory() / "broker.log"

    @property
    def pid(self) -> int:
        """The process id of the running broker."""
        if self._process is None:
            raise EmbeddedBrokerError("the broker is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.running

    def start(self) -> None:
        """Starts the broker and waits until it accepts connections."""
        if self._process is not None:
            raise EmbeddedBrokerError(f"the broker runs already (pid {self._process.pid})")
        if self._port:
            return self._start_at(self._port)
        for _ in range(PORT_CHOICES - 1):
            try:
                # Not by the system: it could give the port to an outgoing connection while the broker is down.
                return self._start_at(free_ports(1)[0])
            except PortTakenError:
                continue
        return self._start_at(free_ports(1)[0])

    def _start_at(self, port: int) -> None:
        arguments = ["--data-dir", str(self.data_dir)]
        if self._protocol == "PLAINTEXT":
            arguments += ["--listen", f"127.0.0.1:{port}"]
        else:
            arguments += ["--set", f"listeners={self._protocol}://127.0.0.1:{port}"]
        secret = {name for name in self._settings if (known := broker_setting(name)) is not None and known.sensitive}
        for name, value in self._settings.items():
            if name not in secret:
                arguments += ["--set", f"{name}={setting_text(value)}"]
        if secret:
            arguments += ["--config", str(self._write_secrets(secret))]
        process = NodeProcess("the broker", arguments, self.log_file, stop_timeout=self._stop_timeout)
        process.spawn()
        self._port = process.wait_until_ready(self._start_timeout)
        self._process = process

    def _write_secrets(self, names: set[str]) -> Path:
        """A file for passwords, which `serve` does not accept on the command line."""
        path = self.log_file.with_name("secrets.properties")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        values = {name: setting_text(self._settings[name]) for name in sorted(names)}
        escaped = {name: value.replace("\\", "\\\\").replace("\n", "\\n") for name, value in values.items()}
        path.write_text("".join(f"{name}={value}\n" for name, value in escaped.items()))
        return path

    def stop(self) -> None:
        """Stops the broker cleanly (SIGTERM) and waits until it has ended. The data stays."""
        self._reap(signal.SIGTERM)

    def kill(self) -> None:
        """Kills the broker (SIGKILL), as a crash would. The data stays as it is."""
        self._reap(signal.SIGKILL)

    def restart(self) -> None:
        """Stops the broker cleanly if it runs, and starts it on the same port with the same data."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stops the broker and removes the temporary directory."""
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

    def _reap(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.reap(how)


def setting_text(value: Any) -> str:
    """A value as in a properties file."""
    return str(value).lower() if isinstance(value, bool) else str(value)
