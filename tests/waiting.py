"""How tests wait: for an event, never for a time.

There is one bound for all of them. It is far beyond what an event takes, even on a machine that does much else besides,
so that reaching it means the event does not come. A test that waits is not slower for it.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
TIMEOUT_SECONDS = 120.0
LONG_TIMEOUT_SECONDS = 900.0
"""Of slow tests with several JVMs and brokers, all of which start again and again: on a busy machine they stand still
for minutes. They pass this to `until`."""
_PAUSE_SECONDS = 0.05


def until(
    holds: Callable[[], object], what: str = "it did not come about", *, timeout_s: float = TIMEOUT_SECONDS
) -> None:
    """Waits until something is true."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"{what}, in {timeout_s:g} s"
        time.sleep(_PAUSE_SECONDS)


def eventually(check: Callable[[], T]) -> T:
    """Waits until a check does not fail any more; what it returns."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            return check()
        except AssertionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_SECONDS)


async def until_async(holds: Callable[[], object], what: str = "it did not come about") -> None:
    """The same as `until` on an event loop, in the time of the loop."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + TIMEOUT_SECONDS
    while not holds():
        assert loop.time() < deadline, f"{what}, in {TIMEOUT_SECONDS:g} s"
        await asyncio.sleep(_PAUSE_SECONDS / 10)
