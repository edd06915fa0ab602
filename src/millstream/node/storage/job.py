"""Work that may block: storage prepares it on the event loop, someone runs it in a thread, and the loop takes the
result."""

import logging
from collections.abc import Callable, Sequence

from millstream.node.storage.disk import Disk

logger = logging.getLogger("millstream.storage")


class Job:
    """`run` may block and touches no state of the log; `done` takes what `run` returned, back on the loop.

    `run` raises nothing for what a disk may do: the failure is its result, and `done` knows what it means.
    """

    __slots__ = ("_done", "_run", "name")

    def __init__(
        self, name: str, run: Callable[[], OSError | None], done: Callable[[OSError | None], None] | None = None
    ) -> None:
        self.name = name
        self._run = run
        self._done = done

    def run(self) -> OSError | None:
        try:
            return self._run()
        except OSError as error:
            return error

    def done(self, result: OSError | None) -> None:
        if self._done is not None:
            self._done(result)
        elif result is not None:
            logger.warning("job_failed job=%s error=%s", self.name, result)

    def __repr__(self) -> str:
        return f"Job({self.name})"


def removal(disk: Disk, name: str, paths: Sequence[str]) -> Job:
    """Remove files that were renamed out of the way. What a crash leaves of them is removed at the next start."""

    def remove() -> None:
        for path in paths:
            disk.remove(path)

    return Job(name, remove)
