"""Starts Spark's Python processes as forks of a process that has imported what they need (ADR 72).

Spark starts seven kinds of Python processes for a query that reads and writes topics, each when it first needs one, and
each imports PySpark, pyarrow and Millstream again: half a second of work each, one after the other. The server imports
once, while the JVM starts. A fork has the arguments, environment, directory and streams that Spark gave.

For sessions on this machine, on Linux. The server has one thread, which it checks, so forks are safe. A process is
started in the ordinary way if the server has ended, if a variable that works at the start of a program differs, or if
other modules than the imported ones would be found. The server ends with the process that started it. A fork ends as
it would otherwise: when the JVM closes its standard input, or ends the process that Spark knows (`worker_start.py`).
"""

import atexit
import contextlib
import gc
import importlib
import importlib.machinery
import marshal
import os
import runpy
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from millstream.spark.session import worker_start
from millstream.spark.session.java import cache_directory, write_atomically

_STREAMS = 3
_LONGEST_SOCKET_PATH = 100
_REQUEST_TIMEOUT_SECONDS = 10.0
_AT_START = ("LD_", "MALLOC_", "GLIBC_", "OPENSSL_", "SSL_", "ARROW_", "OMP_", "OPENBLAS_", "MKL_", "MILLSTREAM_COM")
"""Variables with these names work at the start of a program, or while it imports; so do those of Python itself."""
_SET_LATER = ("PYTHONPATH", "PYTHONUNBUFFERED")
_OURS = {
    "PYTHONHASHSEED": "0",  # Spark's own choice
    "OMP_NUM_THREADS": "1",  # Spark's own choice for tasks; numpy then starts no threads
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # of an allocator that pyarrow loads and does not use
}
_MODULES = (
    "pyspark.worker",
    "pyspark.sql.conversion",
    "pyspark.sql.datasource_internal",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.streaming.datasource",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark_millstream",
    "pyspark_millstream_table",
    "millstream.spark.sink.sink",
)
_PACKAGES = ("pyspark", "pyarrow", "numpy", "millstream", "pyspark_millstream", "pyspark_millstream_table")


class WorkerServer:
    """The server of this process, and the `python` that Spark has to start."""

    def __init__(self, directory: Path, python: Path) -> None:
        self._owner = os.getpid()
        self._directory = directory
        self.python = python
        path = str(directory / "workers.sock")
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with listening:
            listening.bind(path)
            listening.listen(socket.SOMAXCONN)
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(listening.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**_OURS, **os.environ},
                pass_fds=[listening.fileno()],
                start_new_session=True,
            )
        os.environ[worker_start.VARIABLE] = path
        atexit.register(self._close)

    def _close(self) -> None:
        if self._owner == os.getpid():
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()
            shutil.rmtree(self._directory, ignore_errors=True)


_server: WorkerServer | None = None


def start_worker_server() -> Path | None:
    """The `python` that starts forks, for PYSPARK_PYTHON. None where this is not possible. One server per process."""
    global _server
    if _server is None or _server._owner != os.getpid():
        _server = _start() if sys.platform == "linux" and hasattr(os, "pidfd_open") else None
    return None if _server is None else _server.python


def _start() -> WorkerServer | None:
    try:
        python = _python()
        directory = Path(tempfile.mkdtemp(prefix="millstream-"))  # readable by this user alone
    except OSError:
        return None
    if len(str(directory)) + 16 > _LONGEST_SOCKET_PATH or not os.access(python, os.X_OK):
        directory.rmdir()
        return None
    return WorkerServer(directory, python)


def _python() -> Path:
    """A script that starts `worker_start.py`: quickly, and without the packages of the environment."""
    program = [sys.executable, "-I", "-S", worker_start.__file__]
    text = f"""#!/bin/sh
# Written by Millstream: Spark's Python processes are forks of a process that has imported what they need.
exec {shlex.join(program)} "$@"
"""
    path = cache_directory() / "python" / f"python-{zlib.crc32(text.encode()):08x}"
    if not path.exists() or path.read_text() != text:
        write_atomically(path, text.encode(), mode=0o755)
    return path


# The server's side


class _Forks:
    """Forks for each connection, tells it the exit code, and ends the fork when the connection is closed."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._poll = select.poll()
        self._pids: dict[int, tuple[int, socket.socket]] = {}  # by pidfd
        self._pidfds: dict[int, int] = {}  # by connection

    def serve(self) -> "tuple[Sequence[str], Mapping[str, str], str]":
        """Returns in the forked process, with its request."""
        self._poll.register(0, select.POLLIN)
        self._poll.register(self._listening, select.POLLIN)
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == 0:
                    os._exit(0)  # the process that started this server has ended
                elif descriptor == self._listening.fileno():
                    request = self._accept()
                    if request is not None:
                        return request
                elif descriptor in self._pids:
                    self._report(descriptor)
                elif descriptor in self._pidfds:
                    self._abandoned(descriptor)

    def _accept(self) -> "tuple[Sequence[str], Mapping[str, str], str] | None":
        connection, _ = self._listening.accept()
        connection.settimeout(_REQUEST_TIMEOUT_SECONDS)
        try:
            request, streams = _received(connection)
        except (OSError, EOFError):
            connection.close()
            return None
        pid = os.fork()
        if pid == 0:
            self._let_go()
            connection.close()
            for number, descriptor in enumerate(streams):
                os.dup2(descriptor, number)
            for descriptor in streams:
                os.close(descriptor)
            return request
        for descriptor in streams:
            os.close(descriptor)
        pidfd = os.pidfd_open(pid)
        self._pids[pidfd] = (pid, connection)
        self._pidfds[connection.fileno()] = pidfd
        self._poll.register(pidfd, select.POLLIN)
        self._poll.register(connection, select.POLLIN)
        with contextlib.suppress(OSError):
            connection.send(worker_start.STARTED)
        return None

    def _report(self, pidfd: int) -> None:
        pid, connection = self._pids.pop(pidfd)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        if self._pidfds.pop(connection.fileno(), None) is not None:
            self._poll.unregister(connection)
        with contextlib.suppress(OSError):
            connection.send(bytes([code if code >= 0 else 128 - code]))
        connection.close()

    def _abandoned(self, connection: int) -> None:
        """The process that Spark knows was ended, so the fork is."""
        self._poll.unregister(connection)
        signal.pidfd_send_signal(self._pidfds.pop(connection), signal.SIGTERM)

    def _let_go(self) -> None:
        self._listening.close()
        for pidfd, (_, connection) in self._pids.items():
            os.close(pidfd)
            connection.close()


def _received(connection: socket.socket) -> "tuple[tuple[Sequence[str], Mapping[str, str], str], list[int]]":
    head, streams, _, _ = socket.recv_fds(connection, 8, _STREAMS)
    if len(head) < 8 or len(streams) < _STREAMS:
        for each in streams:
            os.close(each)
        raise EOFError
    left = int.from_bytes(head, "big")
    received = bytearray()
    while left > len(received):
        part = connection.recv(left - len(received))
        if not part:
            raise EOFError
        received += part
    # From a process of this user: only they can open the directory.
    return marshal.loads(received), streams  # nosec B302


def _becomes_ordinary(arguments: Sequence[str], environment: Mapping[str, str], path: Sequence[str]) -> bool:
    """Whether the imported modules may not be those that this process would import."""
    if len(arguments) < 2 or arguments[0] not in ("-m", "-c"):
        return True
    for name, value in environment.items():
        of_python = name.startswith("PYTHON") and not name.startswith("PYTHON_") and name not in _SET_LATER
        if (of_python or name.startswith(_AT_START)) and os.environ.get(name) != value:
            return True
    for name in _PACKAGES:
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if name in sys.modules and (spec is None or spec.origin != sys.modules[name].__file__):
            return True
    return False


def _run(arguments: Sequence[str], environment: Mapping[str, str], directory: str, base: Sequence[str]) -> Any:
    """In the forked process: what `python` does with these arguments."""
    os.chdir(directory)
    given = [each for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each]
    path = [directory if arguments[:1] == ["-m"] else "", *given, *base]
    if _becomes_ordinary(arguments, environment, path):
        os.execve(sys.executable, [sys.executable, *arguments], environment)  # nosec B606
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = path
    if environment.get("PYTHONUNBUFFERED"):
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(write_through=True)  # type: ignore[union-attr]
    sys.argv[:] = ["-c" if arguments[0] == "-c" else arguments[1], *arguments[2:]]
    if arguments[0] == "-c":
        exec(arguments[1], {"__name__": "__main__"})  # nosec B102
    else:
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)


def main() -> None:
    listening = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(listening.fileno(), False)
    own = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    base = [each for each in sys.path[1:] if each not in own]
    for name in _MODULES:
        with contextlib.suppress(ImportError):  # a process that needs it says so
            importlib.import_module(name)
    if len(os.listdir("/proc/self/task")) > 1:
        sys.exit("there are threads, which a fork would lose")  # processes start in the ordinary way
    # Forks share this memory as long as it is not written to, as a search for garbage would.
    gc.collect()
    gc.freeze()
    arguments, environment, directory = _Forks(listening).serve()
    _run(arguments, environment, directory, base)


if __name__ == "__main__":
    main()
