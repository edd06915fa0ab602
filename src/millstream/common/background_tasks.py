"""Background tasks of an object: referenced until they end, cancelled together when the object is closed."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundTasks:
    """The event loop has only weak references to tasks, so a task without another reference may be collected early.

    Tasks are kept in the order of their start, so that a simulated run cancels them in the same order each time.
    """

    __slots__ = ("_on_failure", "_tasks")

    def __init__(self, on_failure: Callable[[BaseException], None] | None = None) -> None:
        """`on_failure` gets the exception of a task that failed. Without it, asyncio logs the exception."""
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._on_failure = on_failure

    def start(
        self, work: Coroutine[Any, Any, T], *, loop: asyncio.AbstractEventLoop | None = None
    ) -> "asyncio.Task[T]":
        """Runs the coroutine as a task, on the running loop unless another is given."""
        task = (asyncio.get_running_loop() if loop is None else loop).create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.pop(task, None)
        if self._on_failure is not None and not task.cancelled():
            error = task.exception()
            if error is not None:
                self._on_failure(error)

    def cancel(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()

    async def wait(self, timeout_s: float | None = None) -> None:
        """Waits until the tasks that run now have ended, or until the timeout. Does not raise their exceptions."""
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=timeout_s)

    def __iter__(self) -> "Iterator[asyncio.Task[Any]]":
        """The tasks that have not ended, oldest first."""
        return iter(tuple(self._tasks))

    def __len__(self) -> int:
        return len(self._tasks)
