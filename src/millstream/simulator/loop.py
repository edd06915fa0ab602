"""Virtual time: the scheduler, and the event loop of one process.

As in asyncio, callbacks run in the order in which they were scheduled, and timers are never early. While a callback
runs, its loop is the running loop, so `asyncio.sleep`, futures, locks and timeouts work. Sockets and signals are not
supported: nodes use their `Environment`.
"""

import asyncio
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any

_Entry = tuple[float, int, Callable[..., None], tuple[Any, ...]]


class Scheduler:
    """Virtual time: a heap of entries, run one by one in one thread.

    Nothing waits. Time stands still while an entry runs and then jumps to the next one, so an idle minute costs
    nothing. Entries due at the same time run in the order in which they were made.
    """

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds since the simulation began."""
        self.steps = 0
        """Number of entries run."""
        self._entries: list[_Entry] = []
        self._made = 0
        self._is_interrupted = False

    def after(self, seconds: float, function: Callable[..., None], *arguments: Any) -> None:
        self.at(self.now + seconds, function, *arguments)

    def at(self, moment: float, function: Callable[..., None], *arguments: Any) -> None:
        """Runs the function at that time, or now if it has passed. An entry cannot be cancelled; the function checks
        whether it is still wanted."""
        self._made += 1
        now = self.now
        heapq.heappush(self._entries, (moment if moment > now else now, self._made, function, arguments))

    def run(self, *, until: float, stop: Callable[[], bool] | None = None) -> bool:
        """Runs the entries due up to that time. Returns whether `stop`, called after each entry, or `interrupt` ended
        it earlier."""
        entries = self._entries
        pop = heapq.heappop
        while entries and entries[0][0] <= until:
            self.now, _, function, arguments = pop(entries)
            self.steps += 1
            function(*arguments)
            if self._is_interrupted or (stop is not None and stop()):
                return True
        self.now = max(self.now, until)
        return False

    def interrupt(self) -> None:
        """Stops `run` after the current entry."""
        self._is_interrupted = True

    def clear(self) -> None:
        """Drops all entries at the end of the simulation."""
        self._entries.clear()


HANDLE_SECONDS = 10e-6
"""Virtual duration of a callback. It need not be exact; it prevents a busy loop from stopping the time."""

ErrorCallback = Callable[[str, dict[str, Any]], None]


class _Handle:
    """A scheduled callback. It replaces `asyncio.Handle` and `asyncio.TimerHandle` and is cheaper: a run makes a
    hundred thousand."""

    __slots__ = ("arguments", "callback", "context", "due")

    def __init__(
        self, callback: Callable[..., object], arguments: tuple[Any, ...], context: Context | None, due: float = 0.0
    ) -> None:
        self.callback: Callable[..., object] | None = callback
        """None once it is cancelled."""
        self.arguments = arguments
        self.context = context
        self.due = due

    def cancel(self) -> None:
        self.callback = None
        self.arguments = ()

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        return self.due


class SimulatedLoop(asyncio.AbstractEventLoop):
    """The event loop of one process. `rate`: speed of its monotonic clock; `uptime`: its value now."""

    def __init__(
        self,
        scheduler: Scheduler,
        name: str,
        *,
        rate: float = 1.0,
        uptime: float = 0.0,
        report_error: ErrorCallback = lambda name, context: None,
    ) -> None:
        self.name = name
        self.handle_seconds = HANDLE_SECONDS
        self.dead = False
        self._scheduler = scheduler
        self._rate = rate
        self._uptime = uptime
        self._born = scheduler.now
        self._report_error = report_error
        self._ready: deque[_Handle] = deque()
        self._is_turn_due = False
        self._free_at = 0.0
        self._paused = False
        self._running = False
        self._pending_tasks: list[asyncio.Task[Any]] = []
        self._exception_handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None

    # Control by the simulation

    @property
    def paused(self) -> bool:
        return self._paused

    def pause(self) -> None:
        """Holds all callbacks until `resume`. The clock continues."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        if self._ready:
            self._want_turn()

    def kill(self) -> None:
        """Drops all callbacks; nothing of this loop runs any more.

        Pending tasks are kept until `close_tasks`. If the garbage collector closed them earlier, their `finally` blocks
        would run at a random time within the turn of another loop.
        """
        self.dead = True
        self._ready.clear()
        names = {task: task.get_name() for task in asyncio.all_tasks(self)}  # any order: they are sorted
        self._pending_tasks = sorted(names, key=lambda task: (len(names[task]), names[task]))  # Task-9 before Task-10

    def close_tasks(self) -> None:
        """Closes the pending tasks. Nothing they still do has an effect."""
        assert self.dead
        outer = events._get_running_loop()
        events._set_running_loop(self)
        try:
            for task in self._pending_tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                coroutine = task.get_coro()
                try:
                    coroutine.close()
                except Exception:
                    pass  # errors of a dead process do not matter
        finally:
            events._set_running_loop(outer)
        self._pending_tasks.clear()

    def _want_turn(self) -> None:
        if not self._is_turn_due and not self._paused and not self.dead:
            self._is_turn_due = True
            self._scheduler.at(self._free_at, self._turn)

    def _turn(self) -> None:
        self._is_turn_due = False
        if self._paused or self.dead:
            return
        ready = self._ready
        count = len(ready)
        events._set_running_loop(self)
        self._running = True
        try:
            for _ in range(count):
                handle = ready.popleft()
                callback = handle.callback
                if callback is None:
                    continue
                try:
                    if handle.context is None:
                        callback(*handle.arguments)
                    else:
                        handle.context.run(callback, *handle.arguments)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self.call_exception_handler({"message": f"Exception in callback {callback!r}", "exception": error})
                if self.dead:
                    return
        finally:
            self._running = False
            events._set_running_loop(None)
        self._free_at = self._scheduler.now + self.handle_seconds * count
        if ready:
            self._want_turn()

    # The interface for asyncio

    def time(self) -> float:
        return self._uptime + (self._scheduler.now - self._born) * self._rate

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> _Handle:  # type: ignore[override]
        handle = _Handle(callback, args, context)
        if not self.dead:
            self._ready.append(handle)
            if not self._is_turn_due:
                self._want_turn()
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> _Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> _Handle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> _Handle:
        handle = _Handle(callback, args, context, when)
        if not self.dead:
            self._scheduler.at(self._born + (when - self._uptime) / self._rate, self._due, handle)
        return handle

    def _due(self, handle: _Handle) -> None:
        if handle.callback is not None and not self.dead:
            self._ready.append(handle)
            self._want_turn()

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> "asyncio.Task[Any]":
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":  # type: ignore[override]
        raise NotImplementedError("a node offloads through its Environment")

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return False

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        pass

    def set_exception_handler(
        self, handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None
    ) -> None:
        self._exception_handler = handler

    def get_exception_handler(self) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None:
        return self._exception_handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Unhandled errors are reported as violations."""
        if not self.dead:
            self._report_error(self.name, context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._exception_handler is not None:
            self._exception_handler(self, context)
        else:
            self.default_exception_handler(context)
