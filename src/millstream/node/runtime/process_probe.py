"""Watches the process that a node runs in: the event loop's lag, the garbage collector, memory, files, the disk."""

import asyncio
import gc
import os
import resource
import time
from collections.abc import Mapping

from millstream.node.environment import Environment
from millstream.node.measures import PAUSE_SECONDS, Histogram
from millstream.node.metrics.process_reading import ProcessReading
from millstream.node.runtime.disk import SYNC_DURATIONS

_LOOK_SECONDS = 0.25


class ProcessWatch:
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

    # What is noted as it happens

    def _look_later(self) -> None:
        self._due = time.perf_counter() + _LOOK_SECONDS
        self._timer = self._environment.loop.call_later(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        # The loop counts in milliseconds, and may come early by less than one.
        self._loop_lag.observe(max(time.perf_counter() - self._due, 0.0))
        self._look_later()

    def _on_collection(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            self._collection_begun = time.perf_counter()
        else:
            self._collections[info["generation"]].observe(time.perf_counter() - self._collection_begun)

    # What is asked for

    async def read(self) -> ProcessReading:
        # In a thread: thousands of descriptors are a long list, and a file system may not answer at once.
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
    """Address space and what of it is in memory; only Linux tells."""
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
            return len(os.listdir(listing)) - 1  # the one that lists them
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
"""Where the system does not tell when the process began: about then."""
