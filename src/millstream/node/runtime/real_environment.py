"""The environment of a real node (clock, sockets, threads), and measurements of its process."""

import asyncio
import gc
import os
import random
import resource
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from millstream.common.prometheus import PAUSE_SECONDS, Histogram
from millstream.node.environment import Environment
from millstream.node.metrics.observed_node import ProcessReading
from millstream.node.runtime.disk import SYNC_DURATIONS
from millstream.node.runtime.object_store import open_store
from millstream.node.server.network import SocketNetwork


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


_THREADS = 4
_TIME_SLICE_SECONDS = 0.0002
_PAUSE_SECONDS = 0.00002
_PR_SET_TIMERSLACK = 29
_SLACK_NANOSECONDS = 1000
T = TypeVar("T")


def real_environment(loop: asyncio.AbstractEventLoop) -> Environment:
    """The environment of a real node on this loop. Its threads end with `loop.shutdown_default_executor`."""
    threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="millstream")
    loop.set_default_executor(threads)

    def offload(function: Callable[[], T]) -> "asyncio.Future[T]":
        return loop.run_in_executor(threads, function)

    return Environment(
        SystemClock(),
        loop,
        offload,
        random.SystemRandom(),
        SocketNetwork(loop),
        yield_interpreter,
        time.perf_counter,
        open_store=lambda url, rates: open_store(url, loop, rates),
    )


_turns = threading.local()


def yield_interpreter() -> None:
    """Sleeps for a moment after each 0.2 ms, so that the event loop gets the interpreter lock.

    A computing thread would otherwise keep the lock until the switch interval ends, and the scheduler of the system
    would give it the processor for longer.
    """
    begun = getattr(_turns, "begun", None)
    if begun is None:
        _sleep_exactly()
        begun = 0.0
    if time.perf_counter() - begun > _TIME_SLICE_SECONDS:
        time.sleep(_PAUSE_SECONDS)
        _turns.begun = time.perf_counter()


def _sleep_exactly() -> None:
    """Sets the timer slack of this thread: by default Linux adds up to 50 µs to a sleep of 20 µs."""
    if sys.platform == "linux":
        import ctypes  # imported here to keep the start fast

        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, _SLACK_NANOSECONDS, 0, 0, 0)


_LAG_CHECK_INTERVAL_SECONDS = 0.25


class ProcessMonitor:
    def __init__(self, environment: Environment, directory: str) -> None:
        self._environment = environment
        self._directory = directory
        self._loop_lag = Histogram(PAUSE_SECONDS)
        self._collections = tuple(Histogram(PAUSE_SECONDS) for _ in range(3))
        self._collection_begun = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self) -> None:
        gc.callbacks.append(self._on_collection)
        self._look_later()

    def close(self) -> None:
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)
        if self._timer is not None:
            self._timer.cancel()

    # Measurements

    def _look_later(self) -> None:
        self._due = time.perf_counter() + _LAG_CHECK_INTERVAL_SECONDS
        self._timer = self._environment.loop.call_later(_LAG_CHECK_INTERVAL_SECONDS, self._look)

    def _look(self) -> None:
        # The loop's timers have a resolution of a millisecond and may be early by less than one.
        self._loop_lag.observe(max(time.perf_counter() - self._due, 0.0))
        self._look_later()

    def _on_collection(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            self._collection_begun = time.perf_counter()
        else:
            self._collections[info["generation"]].observe(time.perf_counter() - self._collection_begun)

    # Reading

    async def read(self) -> ProcessReading:
        # In a thread: thousands of descriptors are a long list, and the file system may be slow.
        return await self._environment.offload(self._read)

    def _read(self) -> ProcessReading:
        times = os.times()
        space = os.statvfs(self._directory)
        virtual, resident = _memory()
        return ProcessReading(
            cpu_seconds=times.user + times.system,
            start_time_seconds=_start_time(),
            resident_bytes=resident,
            virtual_bytes=virtual,
            open_files=_open_files(),
            max_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            disk_total_bytes=space.f_blocks * space.f_frsize,
            disk_free_bytes=space.f_bavail * space.f_frsize,
            loop_lag=self._loop_lag,
            collections=self._collections,
            syncs=SYNC_DURATIONS.seconds,
        )


def _memory() -> tuple[int | None, int | None]:
    """Virtual and resident memory. Only available on Linux."""
    try:
        with open("/proc/self/statm") as statm:
            pages = statm.read().split()
    except OSError:
        return None, None
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    return int(pages[0]) * page_bytes, int(pages[1]) * page_bytes


def _open_files() -> int | None:
    for listing in ("/proc/self/fd", "/dev/fd"):
        try:
            return len(os.listdir(listing)) - 1  # without the descriptor of the listing
        except OSError:
            continue
    return None


def _start_time() -> float:
    try:
        with open("/proc/self/stat") as stat, open("/proc/stat") as system:
            ticks = int(stat.read().rpartition(")")[2].split()[19])
            booted = next(int(line.split()[1]) for line in system if line.startswith("btime "))
    except (OSError, StopIteration, ValueError, IndexError):
        return _IMPORTED
    return booted + ticks / os.sysconf("SC_CLK_TCK")


_IMPORTED = time.time()
"""The approximate start of the process, if the system does not provide it."""
