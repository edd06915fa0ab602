"""Runs `millstream serve` as a child process, and finds free ports for it.

The stdin of the child is a pipe whose other end only this process has. The kernel closes it when this process ends, and
`serve --exit-with-stdin` stops then. (PR_SET_PDEATHSIG depends on the thread that forked, and would kill the node when
that thread ends.) Where it can, the node is a fork of a process that has imported everything (`fork_server`).

Free ports are outside the range that the kernel gives to outgoing connections, so that no client gets the port of a
node that is down for a moment. Each process reserves a block of ports, so that parallel test runs never choose the same
ports: by a name of the abstract namespace, which all processes see that share these ports, and by a lock on a file
where there is no such namespace. If another program takes a port between its choice and the start of the node, the node
says so (`PortTakenError`), and a new port is chosen.
"""

import errno
import fcntl
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from millstream.testing.fork_server import ForkedProcess, start_forked

READY_PREFIX = b"ready kafka="
LOG_TAIL_LINES = 30
_IN_USE = os.strerror(errno.EADDRINUSE)


class NodeProcessError(RuntimeError):
    """The node did not start or did not stop. The message ends with the last lines of its log."""


class PortTakenError(NodeProcessError):
    """Another program listens on the port of the node."""


class NodeProcess:
    """A node. `what` is its name in messages, `arguments` are those of `millstream serve`."""

    def __init__(self, what: str, arguments: Sequence[str], log_file: Path, *, stop_timeout: float) -> None:
        self._what = what
        self._arguments = arguments
        self._log_file = log_file
        self._stop_timeout = stop_timeout
        self.source: Path | None = None
        """Another directory with the package, for a node of another version; by default that of the parent."""
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise NodeProcessError(f"{self._what} is not running")
        return self._process.pid

    @property
    def started(self) -> bool:
        """Whether it was started and not stopped since; the process may have ended."""
        return self._process is not None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The exit code of a process that ended; None if it runs."""
        return None if self._process is None else self._process.poll()

    def spawn(self) -> None:
        """Starts the process without waiting for it."""
        if self._process is not None:
            raise NodeProcessError(f"{self._what} runs already (pid {self._process.pid})")
        words = ["serve", "--exit-with-stdin", *self._arguments]
        with open(self._log_file, "ab") as log:
            forked = None if self.source is not None else start_forked(words, os.environ, log.fileno())
            self._process = self._start(words, log) if forked is None else forked

    def _start(self, words: Sequence[str], log: IO[bytes]) -> "subprocess.Popen[bytes]":
        # The same source as the parent, also if it is not installed but on sys.path.
        source = str(self.source or Path(__file__).parents[2])
        path = os.pathsep.join(part for part in (source, os.environ.get("PYTHONPATH")) if part)
        env = {**os.environ, "PYTHONPATH": path}
        if self.source is not None:
            env.pop("MILLSTREAM_COMPILED", None)  # the other version may not be compiled
        return subprocess.Popen(
            [sys.executable, "-m", "millstream", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=env,
            # Ctrl-C is handled by the test runner, which stops the nodes itself.
            start_new_session=True,
        )

    def wait_until_ready(self, timeout: float) -> int:
        """Waits for the ready line and returns its port, 0 for a node without clients. Kills it after the timeout."""
        try:
            return self._await_ready_line(timeout)
        except BaseException:
            self.reap(signal.SIGKILL)
            raise

    def _await_ready_line(self, timeout: float) -> int:
        process = self._process
        assert process is not None and process.stdout is not None
        descriptor = process.stdout.fileno()
        deadline = time.monotonic() + timeout
        output = b""
        while True:
            readable, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not readable:
                raise NodeProcessError(f"{self._what} was not ready after {timeout:g} s{self.log_tail()}")
            chunk = os.read(descriptor, 4096)
            if not chunk:
                code = process.wait(self._stop_timeout)
                reason = f"{self._what} ended with exit code {code} at its start{self.log_tail()}"
                raise (PortTakenError if _IN_USE in self.log_tail(1) else NodeProcessError)(reason)
            output += chunk
            for line in output.splitlines(keepends=True):
                if line.startswith(READY_PREFIX) and line.endswith(b"\n"):
                    port = line.split()[1].rsplit(b":", 1)[-1]
                    return int(port) if port.isdigit() else 0

    def reap(self, how: signal.Signals) -> None:
        """Sends a signal and waits until the process has ended."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.send_signal(how)
            process.wait(self._stop_timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise NodeProcessError(
                f"{self._what} did not stop within {self._stop_timeout:g} s of SIGTERM, and was killed{self.log_tail()}"
            ) from None
        finally:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def log_tail(self, most: int = LOG_TAIL_LINES) -> str:
        lines = self._log_file.read_text(errors="replace").splitlines() if self._log_file.exists() else []
        if not lines:
            return "; its log is empty"
        return "; its log ends:\n  " + "\n  ".join(lines[-most:])


HOST = "127.0.0.1"
_BLOCK_PORTS = 100
_LOWEST, _HIGHEST = 20_000, 32_000
_FEWEST_BLOCKS = 20
_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")


def _range() -> range:
    """The first ports of all blocks. By default Linux gives outgoing connections the ports from 32768 on."""
    try:
        low, high = map(int, _OUTGOING.read_text().split())
    except (OSError, ValueError):
        low, high = 32_768, 60_999
    below = range(_LOWEST, min(_HIGHEST, low - _BLOCK_PORTS), _BLOCK_PORTS)
    if len(below) >= _FEWEST_BLOCKS:
        return below
    others = (range(1_100, low - _BLOCK_PORTS, _BLOCK_PORTS), range(high + 1, 65_400, _BLOCK_PORTS))
    # Without room outside, a port is chosen again if a client took it.
    return max(others, key=len) if max(map(len, others)) else range(_LOWEST, _HIGHEST, _BLOCK_PORTS)


class _Block:
    """The ports of this process, given out in turn."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.first = _reserve()
        self._turn = 0

    def next_free(self) -> int:
        for _ in range(_BLOCK_PORTS):
            port = self.first + self._turn % _BLOCK_PORTS
            self._turn += 1
            if _is_free(port):
                return port
        raise OSError(
            f"no port from {self.first} to {self.first + _BLOCK_PORTS - 1} is free: stop the processes that use them"
        )

    def free_range(self, count: int) -> int | None:
        """The first of `count` consecutive ports that are free; None if this block has no such range."""
        for later in range(_BLOCK_PORTS):
            start = (self._turn + later) % _BLOCK_PORTS
            ports = range(self.first + start, self.first + start + count)
            if start + count <= _BLOCK_PORTS and all(map(_is_free, ports)):
                self._turn = start + count
                return ports[0]
        return None


def _is_free(port: int) -> bool:
    try:
        socket.create_server((HOST, port)).close()
    except OSError:
        return False
    return True


def _reserve() -> int:
    """Reserves a block and returns its first port. It is reserved until the process ends."""
    blocks = _range()
    for first in random.SystemRandom().sample(blocks, len(blocks)):
        if _lock_file(first) and _take_name(first):
            return first
    raise OSError(f"all {len(blocks)} blocks of ports are reserved by other processes: stop those you do not need")


def _take_name(first: int) -> bool:
    """Processes with another directory for temporary files, or in a chroot, see the name too."""
    if sys.platform != "linux":
        return True
    name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        name.bind(f"\0millstream-ports-{first}")
    except OSError:
        name.close()
        return False
    name.detach()  # open until the process ends
    return True


def _lock_file(first: int) -> bool:
    directory = Path(tempfile.gettempdir()) / f"millstream-ports-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    file = os.open(directory / str((first - _LOWEST) // _BLOCK_PORTS), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return False
    return True


_block: _Block | None = None


def free_ports(count: int) -> list[int]:
    """Ports that are free now and are not given out again soon."""
    block = _own_block()
    return [block.next_free() for _ in range(count)]


def _own_block() -> _Block:
    global _block
    if _block is None or _block.pid != os.getpid():  # a forked process has the block of its parent
        _block = _Block()
    return _block


PORT_CHOICES = 5
"""So many ports are tried for a new node."""


def free_port_range(count: int) -> int:
    """The first of `count` consecutive free ports; in a new block, if nodes that run are scattered over this one."""
    for block in (_own_block, _Block):
        found = block().free_range(count)
        if found is not None:
            return found
    raise OSError(f"there are no {count} consecutive free ports: stop the processes that use them")
