"""How long a call may take, how long to wait between tries, and what to say when the time is up."""

import random
import time
from collections.abc import Callable
from typing import TypeVar

from millstream.raw_client.errors import ConnectionLostError, RefusedError, RetriableError, UnreachableError, advice

T = TypeVar("T")
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5
_MISMATCH_GRACE_S = 3.0


class Deadline:
    """The time one call has, and the reasons it was not done yet."""

    def __init__(self, timeout_s: float, *, once: bool = False) -> None:
        """`once`: not to be tried again."""
        self.timeout_s = timeout_s
        self._once = once
        self.began = time.monotonic()
        self._pause_s = _FIRST_PAUSE_S
        self._failures: dict[str, ConnectionLostError] = {}
        self._not_yet: RetriableError | None = None

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began

    @property
    def left_s(self) -> float:
        """Never quite nothing, so that it can be a socket's timeout."""
        return max(0.001, self.timeout_s - self.elapsed_s)

    def retry(self, attempt: Callable[[], T]) -> T:
        """Calls `attempt` until it succeeds, fails for good, or the time is up."""
        while True:
            try:
                return attempt()
            except (ConnectionLostError, RetriableError) as error:
                self.wait_after(error)

    def wait_after(self, error: ConnectionLostError | RetriableError) -> None:
        """Sleeps a little, twice as long each time; raises what went wrong once the time is up."""
        self.note(error)
        if self._once or self.elapsed_s + self._pause_s >= self.timeout_s or self._is_hopeless():
            raise self._final() from error
        time.sleep(self._pause_s * random.uniform(0.8, 1.2))
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)

    def note(self, error: ConnectionLostError | RetriableError) -> None:
        """Remembers a reason, for the error that may have to be raised in the end."""
        if isinstance(error, ConnectionLostError):
            self._failures[error.address] = error
            self._not_yet = None
        else:
            self._not_yet = error

    def progressed(self) -> None:
        """Something worked: the next pause is short again."""
        self._pause_s = _FIRST_PAUSE_S

    def _is_hopeless(self) -> bool:
        """Settings that do not fit the listener are not healed by time; a broker on its way down may look the same."""
        failures = self._failures.values()
        return (
            self._not_yet is None
            and self.elapsed_s > _MISMATCH_GRACE_S
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
            f"no broker answered{waited} ({each}): are the address and the listener right?",
            late=any(error.late for error in self._failures.values()),
        )
