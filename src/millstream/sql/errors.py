"""Errors of SQL over topics, and the stop of a running query."""

import threading
import time
from collections.abc import Callable


class SqlError(Exception):
    """A query cannot be run: the reason, and what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message}: {hint}" if hint else message)
        self.message = message
        self.hint = hint


class NotInstalledError(SqlError):
    """DuckDB is not installed."""


class StoppedError(SqlError):
    """The query was cancelled, or its time is over."""


class Stop:
    """Ends a query: by the user, or after its time. Thread safe."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._until = time.monotonic() + timeout_s
        self._reason: StoppedError | None = None
        self._interrupt: Callable[[], object] | None = None
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def cancel(self) -> None:
        self._end(StoppedError("the query was cancelled"))

    def check(self) -> None:
        """StoppedError if the query must end."""
        if self._reason is None and time.monotonic() >= self._until:
            self._end(self._out_of_time())
        if self._reason is not None:
            raise self._reason

    @property
    def is_stopped(self) -> bool:
        return self._reason is not None

    def interrupts(self, interrupt: Callable[[], object]) -> None:
        """`interrupt` is called, by another thread, when the query must end."""
        self.check()
        with self._lock:
            self._interrupt = interrupt
            self._timer = threading.Timer(max(0.0, self._until - time.monotonic()), self._end, [self._out_of_time()])
            self._timer.daemon = True
            self._timer.start()

    def finish(self) -> None:
        """The query has ended: nothing is interrupted any more."""
        with self._lock:
            self._interrupt = None
            if self._timer is not None:
                self._timer.cancel()

    def _end(self, reason: StoppedError) -> None:
        with self._lock:
            self._reason = self._reason or reason
            if self._interrupt is not None:
                self._interrupt()

    def _out_of_time(self) -> StoppedError:
        return StoppedError(
            f"the query took longer than {self.timeout_s:g} s", "read fewer records (last, since), or allow more time"
        )
