"""The deadline of a call: retries with increasing pauses, and the error when the time is over."""

import random
import time
from collections.abc import Callable
from typing import TypeVar

from millstream.raw_client.errors import ConnectionLostError, RefusedError, RetriableError, UnreachableError, advice

T = TypeVar("T")
_FIRST_PAUSE_SECONDS = 0.02
_MAX_PAUSE_SECONDS = 0.5
_MISMATCH_GRACE_SECONDS = 3.0


class Deadline:
    """The time left for a call, and the reasons of its failed attempts."""

    def __init__(self, timeout_s: float, *, once: bool = False) -> None:
        """`once`: no retries."""
        self.timeout_s = timeout_s
        self._once = once
        self.began = time.monotonic()
        self._pause_s = _FIRST_PAUSE_SECONDS
        self._failures: dict[str, ConnectionLostError] = {}
        self._not_yet: RetriableError | None = None

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began

    @property
    def left_s(self) -> float:
        """Never 0, so that it can be the timeout of a socket."""
        return max(0.001, self.timeout_s - self.elapsed_s)

    def retry(self, attempt: Callable[[], T]) -> T:
        """Calls `attempt` until it succeeds, raises an error that is not retriable, or the time is over."""
        while True:
            try:
                return attempt()
            except (ConnectionLostError, RetriableError) as error:
                self.wait_after(error)

    def wait_after(self, error: ConnectionLostError | RetriableError) -> None:
        """Sleeps, twice as long each time. Raises the final error when the time is over."""
        self.note(error)
        if self._once or self.elapsed_s + self._pause_s >= self.timeout_s or self._is_hopeless():
            raise self._final() from error
        time.sleep(self._pause_s * random.uniform(0.8, 1.2))
        self._pause_s = min(self._pause_s * 2, _MAX_PAUSE_SECONDS)

    def note(self, error: ConnectionLostError | RetriableError) -> None:
        """Notes a reason for the final error."""
        if isinstance(error, ConnectionLostError):
            self._failures[error.address] = error
            self._not_yet = None
        else:
            self._not_yet = error

    def progressed(self) -> None:
        """There was progress: the next pause is short again."""
        self._pause_s = _FIRST_PAUSE_SECONDS

    def _is_hopeless(self) -> bool:
        """Whether the settings do not fit the listener, so that retries do not help.

        A broker that is stopping looks the same for a moment.
        """
        failures = self._failures.values()
        return (
            self._not_yet is None
            and self.elapsed_s > _MISMATCH_GRACE_SECONDS
            and all(failure.mismatch for failure in failures)
        )

    def _final(self) -> UnreachableError | RefusedError:
        if self._not_yet is not None:
            last = self._not_yet
            tried = "" if self._once else f"; tried for {self.timeout_s:g} s"
            return RefusedError(f"{last.text} {advice(last.code)}{tried}", last.code)
        each = "; ".join(str(error) for error in self._failures.values())
        waited = "" if self._once else f" within {self.elapsed_s:.1f} s"
        return UnreachableError(
            f"no response from any broker{waited} ({each}): check the address and the listener",
            late=any(error.late for error in self._failures.values()),
        )
