"""The real world for a node: the system's clock, sockets, threads for what may block."""

import asyncio
import random
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from millstream.node.environment import Environment
from millstream.node.runtime.clock import SystemClock
from millstream.node.server.network import SocketNetwork

_THREADS = 4
_TURN_SECONDS = 0.0002
_BREATH_SECONDS = 0.00002
_PR_SET_TIMERSLACK = 29
_SLACK_NANOSECONDS = 1000
T = TypeVar("T")


def real_environment(loop: asyncio.AbstractEventLoop) -> Environment:
    """An environment on this loop; its threads end with the loop's executor (`loop.shutdown_default_executor`)."""
    threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="millstream")
    loop.set_default_executor(threads)

    def offload(function: Callable[[], T]) -> "asyncio.Future[T]":
        return loop.run_in_executor(threads, function)

    return Environment(SystemClock(), loop, offload, random.Random(), SocketNetwork(loop), breathe, time.perf_counter)


_turns = threading.local()


def breathe() -> None:
    """Sleeps for a moment after each fifth of a millisecond.

    A thread that computes without end is asked for the interpreter after 5 ms only, and is not often asleep when the
    system looks for somebody to take the processor from: who waits for it then waits for both.
    """
    begun = getattr(_turns, "begun", None)
    if begun is None:
        _sleep_exactly()
        begun = 0.0
    if time.perf_counter() - begun > _TURN_SECONDS:
        time.sleep(_BREATH_SECONDS)
        _turns.begun = time.perf_counter()


def _sleep_exactly() -> None:
    """For this thread: Linux gathers wake-ups that are up to 50 µs apart, which makes 70 µs out of a sleep of 20."""
    if sys.platform == "linux":
        import ctypes  # only where it is used: a start is quicker without

        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, _SLACK_NANOSECONDS, 0, 0, 0)
