"""A simulated machine: its disk and clock are permanent, its process can end and start again.

A process can be killed (its files are kept), lose power with its machine (unsynced data can be lost), be paused, or
stop by itself. It sees the world only through its `Environment`.
"""

import asyncio
import heapq
import inspect
import random
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.node.environment import Environment
from millstream.node.server.channel import Ask
from millstream.node.server.network import Network
from millstream.simulator.disk import DiskSession, Killed, SimulatedDisk
from millstream.simulator.loop import HANDLE_SECONDS, ErrorCallback, Scheduler, SimulatedLoop
from millstream.simulator.network import Attachment, Fabric
from millstream.simulator.object_store import SimulatedStore

EPOCH_MS = 1_800_000_000_000
"""The wall-clock time at the start of a simulation."""
_THREADS = 4
T = TypeVar("T")


class Program(Protocol):
    """What runs in a process: a node or a client."""

    def start(self) -> Any: ...

    def stop(self) -> Any: ...


class Watch(Protocol):
    """The login of a client, and a look at what it is told (`security.py`)."""

    async def log_in(self, ask: Ask, host: str) -> float | None: ...

    def look_at(self, api: str, response: Message) -> None: ...

    def look_at_error(self, api: str, error: ErrorCode) -> None: ...


class WallClock:
    """The wall clock of a machine; `offset_ms` is its error."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.offset_ms = 0

    def now_ms(self) -> int:
        return EPOCH_MS + int(self._scheduler.now * 1000) + self.offset_ms

    def now_ns(self) -> int:
        return (EPOCH_MS + self.offset_ms) * 1_000_000 + int(self._scheduler.now * 1e9)


class Process:
    """One process of a program, from start to end."""

    def __init__(self, machine: "Machine", number: int, report_error: ErrorCallback) -> None:
        self.machine = machine
        self.number = number
        self._scheduler = machine.scheduler
        seed = f"{machine.seed}/{number}"
        randomness = random.Random(seed)
        self.loop = SimulatedLoop(  # type: ignore[abstract]
            machine.scheduler,
            machine.name,
            rate=machine.clock_rate,
            uptime=randomness.uniform(0.0, 1e6),
            report_error=report_error,
        )
        self.network: Attachment = machine.fabric.attach(machine.name, self.loop)
        self.disk: DiskSession = machine.disk.attach(machine.clock.now_ns)
        store = machine.store
        self.environment = Environment(
            machine.clock,
            self.loop,
            self.offload,
            random.Random(f"{seed}/chance"),
            self.network,
            open_store=None if store is None else lambda url, rates: store.attach(self),
            tls_tickets=0,  # their size is random
        )
        self.client_network: Network = self.network
        """The network as clients use it: with TLS if the cluster uses it."""
        self.watch: Watch | None = None
        """The login of a client of a secured cluster, and its look at responses."""
        self._threads_free = [0.0] * _THREADS
        self._held: list[tuple[Callable[[], Any], asyncio.Future[Any]]] = []
        self.alive = True
        self.ready = False
        """Whether `start` has completed."""
        self.program: Program | None = None

    def offload(self, function: Callable[[], T]) -> "asyncio.Future[T]":
        """Runs a job in one of a few simulated threads. It takes effect at the end of its duration, at once."""
        future: asyncio.Future[T] = self.loop.create_future()
        begin = max(self._scheduler.now, heapq.heappop(self._threads_free))
        end = begin + self.machine.disk.job_seconds()
        heapq.heappush(self._threads_free, end)
        self._scheduler.at(end, self._run_job, function, future)
        return future

    def _run_job(self, function: Callable[[], Any], future: "asyncio.Future[Any]") -> None:
        if not self.alive:
            return
        if self.loop.paused:
            self._held.append((function, future))
            return
        try:
            result = function()
        except Killed:
            return
        except BaseException as error:
            self.loop.call_soon(_settle, future, None, error)
        else:
            self.loop.call_soon(_settle, future, result, None)

    def resume(self) -> None:
        self.loop.resume()
        held, self._held = self._held, []
        for function, future in held:
            self._run_job(function, future)

    def end(self, *, power_lost: bool) -> None:
        self.alive = False
        self.loop.kill()
        self.network.end(power_lost=power_lost)
        self.disk.end()


def _settle(future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


class Machine:
    def __init__(
        self,
        name: str,
        scheduler: Scheduler,
        fabric: Fabric,
        seed: str,
        *,
        report_error: ErrorCallback,
        clock_rate: float = 1.0,
        store: SimulatedStore | None = None,
    ) -> None:
        self.name = name
        self.scheduler = scheduler
        self.fabric = fabric
        self.seed = f"{seed}/{name}"
        self.disk = SimulatedDisk(self.seed)
        self.clock = WallClock(scheduler)
        self.clock_rate = clock_rate
        self.store = store
        self._slowness = 1.0
        self.process: Process | None = None
        self._report_error = report_error
        self._lives = 0
        self._ended_processes: list[Process] = []
        self.on_exit: Callable[[BaseException | None], None] = lambda error: None
        """Called with the error when the program ends by itself."""

    @property
    def slowness(self) -> float:
        """Factor by which callbacks are slower, as if other processes used the processor."""
        return self._slowness

    @slowness.setter
    def slowness(self, factor: float) -> None:
        self._slowness = factor
        if self.process is not None:
            self.process.loop.handle_seconds = HANDLE_SECONDS * factor

    @property
    def is_up(self) -> bool:
        return self.process is not None

    def start(self, make: Callable[[Process], Program]) -> Process:
        assert self.process is None, f"{self.name} is already running"
        self._lives += 1
        process = self.process = Process(self, self._lives, self._report_error)
        process.loop.handle_seconds = HANDLE_SECONDS * self._slowness
        process.loop.call_soon(self._main, process, make)
        return process

    def _main(self, process: Process, make: Callable[[Process], Program]) -> None:
        process.loop.create_task(self._run(process, make), name=f"{self.name}-start")

    async def _run(self, process: Process, make: Callable[[Process], Program]) -> None:
        try:
            process.program = make(process)
            begun = process.program.start()
            if inspect.isawaitable(begun):
                await begun
        except Exception as error:
            self.exit(process, error)
            return
        process.ready = True

    def exit(self, process: Process, error: BaseException | None) -> None:
        """The program ends by itself."""
        if self.process is process:
            self.kill()
            self.on_exit(error)

    def kill(self, *, power_lost: bool = False) -> None:
        """Ends the process immediately."""
        process, self.process = self.process, None
        if process is not None:
            process.end(power_lost=power_lost)
            self._ended_processes.append(process)
        elif power_lost:
            self.fabric.power_off(self.name)
        if power_lost:
            self.disk.lose_power()

    def kill_within(
        self,
        operations: int,
        then: Callable[[], None],
        *,
        within: str = "",
        may_die: Callable[[], bool] = lambda: True,
        power_lost: Callable[[], bool] = lambda: False,
    ) -> None:
        """Kills the process within the nth disk change from now on, or from the first change of a file whose name ends
        with `within`. `power_lost` decides whether the machine loses power as well."""

        def die() -> None:
            self.kill(power_lost=power_lost())
            then()

        self.disk.kill_at(operations, die, within=within, may_die=may_die)

    def stop(self, then: Callable[[], None]) -> None:
        """Stops the program cleanly; calls `then` afterwards."""
        process = self.process
        assert process is not None and process.program is not None
        process.loop.create_task(self._stop(process, then), name=f"{self.name}-stop")

    async def _stop(self, process: Process, then: Callable[[], None]) -> None:
        assert process.program is not None
        ended = process.program.stop()
        if inspect.isawaitable(ended):
            await ended
        if self.process is process:
            self.kill()
            then()

    def pause(self) -> None:
        if self.process is not None:
            self.process.loop.pause()

    def resume(self) -> None:
        if self.process is not None:
            self.process.resume()

    def close_tasks(self) -> None:
        """After the simulation: closes the pending tasks of its processes."""
        for process in self._ended_processes:
            process.loop.close_tasks()
        self._ended_processes.clear()
