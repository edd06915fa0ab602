"""A child process: restarted when it ends, and stopped with this process.

A thread waits for its end, so nothing runs on the event loop. If the caller wants the lines of its standard output,
the thread reads them. The child's standard input is a pipe from this process.
The kernel closes it when this process ends, in whatever way, and the child must stop then.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import millstream

_log = logging.getLogger("millstream.supervisor")
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 30.0
STEADY_SECONDS = 60.0
"""A process that ran for this time is restarted with the shortest pause."""


class SupervisedProcess:
    """Runs `python -m millstream …`, named `what` in the log. Its output goes to our stderr, or to `log_file`.

    `on_line` gets the lines of its standard output. `on_end` gets the reason for its end, and returns whether it is
    started again. Both are called in the thread of the process. `environment` are more variables for it.
    """

    def __init__(
        self,
        what: str,
        arguments: Sequence[str],
        *,
        descriptors: Sequence[int] = (),
        log_file: Path | None = None,
        on_line: Callable[[str], None] | None = None,
        on_end: Callable[[str], bool] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._what = what
        self._arguments = arguments
        self._descriptors = descriptors
        self._log_file = log_file
        self._on_line = on_line
        self._on_end = on_end
        self._environment = environment or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._watch = threading.Thread(target=self._keep, name=f"{what}-watch", daemon=True)

    @property
    def pid(self) -> int | None:
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    def start(self) -> None:
        self._watch.start()

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the process, if it runs."""
        self._signal(number)

    def begin_to_stop(self) -> None:
        """Sends SIGTERM without waiting; `stop` waits."""
        self._stopping.set()
        if self._watch.is_alive():
            self._signal(signal.SIGTERM)

    def stop(self, grace_s: float) -> None:
        """Stops the process: SIGTERM, and SIGKILL after the grace time. Returns when it has ended."""
        self._stopping.set()
        if not self._watch.is_alive():
            return
        self._signal(signal.SIGTERM)
        self._watch.join(grace_s)
        if self._watch.is_alive():
            _log.warning("%s_killed reason=still_there_after_%gs", self._what, grace_s)
            self._signal(signal.SIGKILL)
            self._watch.join()

    def _signal(self, number: signal.Signals) -> None:
        with self._lock:
            if self._process is not None:
                self._process.send_signal(number)

    def _keep(self) -> None:
        pause_s = FIRST_PAUSE_SECONDS
        while not self._stopping.is_set():
            began = time.monotonic()
            ending = self._run_once()
            if self._stopping.is_set() or (self._on_end is not None and not self._on_end(ending)):
                return
            lived_s = time.monotonic() - began
            if lived_s >= STEADY_SECONDS:
                pause_s = FIRST_PAUSE_SECONDS
            _log.warning("%s_ended %s lived_s=%.1f again_in_s=%g", self._what, ending, lived_s, pause_s)
            self._stopping.wait(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_SECONDS)

    def _run_once(self) -> str:
        """Runs the process until it ends; returns the reason for the log."""
        try:
            with self._lock:
                if self._stopping.is_set():
                    return ""
                process = self._process = self._spawn()
        except OSError as error:
            return f"reason=could_not_start error={error}"
        _log.info("%s_started pid=%d", self._what, process.pid)
        if process.stdout is not None and self._on_line is not None:
            with process.stdout as lines:
                for line in lines:
                    self._on_line(line.decode(errors="replace").rstrip("\n"))
        code = process.wait()
        assert process.stdin is not None
        process.stdin.close()
        return f"pid={process.pid} " + (f"signal={-code}" if code < 0 else f"exit_code={code}")

    def _spawn(self) -> "subprocess.Popen[bytes]":
        # The same source as this process, also if it is on sys.path and not installed.
        source = str(Path(millstream.__file__).parents[1])
        path = os.pathsep.join(part for part in (source, os.environ.get("PYTHONPATH")) if part)
        with open(2, "ab", closefd=False) if self._log_file is None else open(self._log_file, "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "millstream", *self._arguments],
                stdin=subprocess.PIPE,
                stdout=log if self._on_line is None else subprocess.PIPE,
                stderr=log,
                env={**os.environ, **self._environment, "PYTHONPATH": path},
                pass_fds=tuple(self._descriptors),
                # Ctrl-C in the terminal must stop only this process, which then stops the child.
                start_new_session=True,
            )
