"""Starts nodes as forks of a process that has imported all of a broker: a start takes a tenth of the CPU time.

Two thirds of a node's start are imports. The fork server is a child process that imports once and forks for each
node. A forked node is a real process: session, environment, working directory and standard streams of its own, and it
runs the same `millstream serve` as a started one. The server has one thread and no event loop, so forks are safe.

Linux only: the end of a node is seen by its pidfd. A node is started in the ordinary way (`node_process`) if variables
are set that work at the start of a program only (LD_PRELOAD, PYTHONHASHSEED), or if MILLSTREAM_FORK_NODES is `no`. The
server ends with the process that uses it; the nodes end by `serve --exit-with-stdin`.
"""

import atexit
import contextlib
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

VARIABLE = "MILLSTREAM_FORK_NODES"
_AT_START = ("LD_", "PYTHON", "MILLSTREAM_COMPILED", "MALLOC_", "GLIBC_", "OPENSSL_", "SSL_", "COVERAGE_")
"""Variables with these names work at the start of a program, or while it imports."""
_STREAMS = 3
_LARGEST_MESSAGE = 1 << 20


class ForkedProcess:
    """A node. It has the part of `subprocess.Popen` that `NodeProcess` uses."""

    def __init__(self, pid: int, pidfd: int, status: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None
        self._pidfd = pidfd
        self._status = status

    def poll(self) -> int | None:
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended(timeout)
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(f"node {self.pid}", timeout)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        """The exit code, negative for a signal; None if it runs after the timeout."""
        if self.returncode is None:
            deadline = None if timeout is None else time.monotonic() + timeout
            poll = select.poll()
            poll.register(self._status, select.POLLIN)
            left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
            if not poll.poll(left):
                return None
            text = os.read(self._status, 64)
            # Without a code, the server was killed. The node may run on; its pipe says so to it.
            self.returncode = int(text) if text else -signal.SIGKILL
            os.close(self._status)
            os.close(self._pidfd)
        return self.returncode


class ForkServer:
    """The server of this process. It is started with the first node."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._environment = _at_start(os.environ)
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for each in (self._socket, theirs):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST_MESSAGE)
        source = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
        path = os.pathsep.join(part for part in (source, os.environ.get("PYTHONPATH")) if part)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        atexit.register(self._close)

    def _close(self) -> None:
        if self._owner == os.getpid():
            self._socket.close()
            self._process.wait()

    def serves(self, environment: Mapping[str, str]) -> bool:
        """Whether a process with this environment may be a fork of this server, which has not ended."""
        is_ours = self._owner == os.getpid()  # a forked process would share the socket with its parent
        return is_ours and self._process.poll() is None and _at_start(environment) == self._environment

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], log: int) -> ForkedProcess | None:
        """Starts `millstream` with these arguments. None if the server cannot do it."""
        try:
            directory = os.getcwd()
        except OSError:  # it is removed
            return None
        message = json.dumps([list(arguments), dict(environment), directory]).encode()
        status_end, status = os.pipe()
        stdin, stdin_end = os.pipe()
        stdout_end, stdout = os.pipe()
        theirs = [stdin, stdout, log, status]
        try:
            with self._lock:
                socket.send_fds(self._socket, [message], theirs)
                content, pidfds, _, _ = socket.recv_fds(self._socket, 64, 1)
        except OSError:
            content, pidfds = b"", []
        finally:
            for each in (stdin, stdout, status):
                os.close(each)
        if not content or not pidfds:
            for each in (status_end, stdin_end, stdout_end):
                os.close(each)
            return None
        streams = os.fdopen(stdin_end, "wb", 0), os.fdopen(stdout_end, "rb", 0)
        return ForkedProcess(int(content), pidfds[0], status_end, *streams)


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_AT_START)}


_server: ForkServer | None = None
_choice = threading.Lock()


def start_forked(arguments: Sequence[str], environment: Mapping[str, str], log: int) -> ForkedProcess | None:
    """Starts a node as a fork; None if it must be started in the ordinary way."""
    global _server
    if not hasattr(os, "pidfd_open") or environment.get(VARIABLE) == "no":
        return None
    with _choice:
        if _server is None or _server._owner != os.getpid():
            _server = ForkServer()
        server = _server
    return server.start(arguments, environment, log) if server.serves(environment) else None


# The server's side


def _serve(connection: socket.socket) -> list[str]:
    """Forks for each request. Returns in the forked process, with the arguments of its command."""
    nodes: dict[int, tuple[int, int]] = {}
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor != connection.fileno():
                poll.unregister(descriptor)
                _report(descriptor, *nodes.pop(descriptor))
                continue
            message, descriptors, _, _ = socket.recv_fds(connection, _LARGEST_MESSAGE, _STREAMS + 1)
            if not message:
                os._exit(0)  # the process that used this server has ended
            pid = os.fork()
            if pid == 0:
                connection.close()
                for pidfd, (_, status) in nodes.items():
                    os.close(pidfd)
                    os.close(status)
                return _become(json.loads(message), descriptors)
            pidfd = os.pidfd_open(pid)
            nodes[pidfd] = (pid, descriptors[_STREAMS])
            poll.register(pidfd, select.POLLIN)
            for each in descriptors[:_STREAMS]:
                os.close(each)
            socket.send_fds(connection, [str(pid).encode()], [pidfd])


def _report(pidfd: int, pid: int, status: int) -> None:
    """A node has ended: passes on its exit code."""
    _, result = os.waitpid(pid, 0)
    with contextlib.suppress(BrokenPipeError):
        os.write(status, str(os.waitstatus_to_exitcode(result)).encode())
    os.close(status)
    os.close(pidfd)


def _become(request: Any, descriptors: Sequence[int]) -> list[str]:
    """In the forked process: its session, streams, environment and directory."""
    arguments, environment, directory = request
    os.setsid()
    for number, descriptor in enumerate(descriptors[:_STREAMS]):
        os.dup2(descriptor, number)
    for descriptor in descriptors:
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text("millstream")  # the name in lists of processes
    return [str(each) for each in arguments]


def _preload() -> None:
    """All that a start of a broker imports."""
    import importlib

    for name in (
        "millstream.cli.main",
        "millstream.cli.serve",
        "millstream.cli.gateway_process",
        "millstream.config.exposure",
        "millstream.config.loading",
        "millstream.node.runtime.running",
        "millstream.node.runtime.service_manager",
        "uvloop",
    ):
        with contextlib.suppress(ImportError):  # a start that needs it says so
            importlib.import_module(name)


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(connection.fileno(), False)
    _preload()
    # Forks share this memory as long as it is not written to, as a search for garbage would.
    gc.collect()
    gc.freeze()
    sys.argv = ["millstream", *_serve(connection)]
    runpy.run_module("millstream", run_name="__main__")  # as `python -m millstream` does


if __name__ == "__main__":
    main()
