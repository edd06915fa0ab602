"""Runs many seeds, in several processes. One seed is `simulation`.

Each process has a pipe of its own and one seed at a time. So the end of a process, by a signal or for lack of memory,
is the result of exactly one seed; the others go on in a new process.
"""

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, cast

from millstream.simulator.results import Result, Violation
from millstream.simulator.scenarios import Options
from millstream.simulator.simulation import simulate

_RUNS_PER_PROCESS = 200
"""A worker process is replaced after so many runs."""
_FORK = multiprocessing.get_context("fork")
"""Forked processes need not import everything again."""


def run_seeds(seeds: Iterable[int], options: Options, *, processes: int, niceness: int = 0) -> Iterator[Result]:
    """Runs many seeds in several processes. Yields results in the order of the seeds; passed runs without events.
    `niceness` lowers the priority of these processes."""
    if processes <= 1:
        for seed in seeds:
            yield _run(seed, options)
        return
    waiting = iter(seeds)
    order: list[int] = []
    results: dict[int, Result] = {}
    workers: dict[Connection, _Worker] = {}
    try:
        while True:
            while len(workers) < processes and (first := next(waiting, None)) is not None:
                worker = _Worker(options, niceness)
                workers[worker.pipe] = worker
                order.append(first)
                worker.start(first)
            if not workers:
                return
            for pipe in cast(list[Connection], wait(list(workers))):
                worker = workers[pipe]
                results[worker.seed] = worker.result()
                following = None if worker.is_spent else next(waiting, None)
                if following is None:
                    del workers[pipe]
                    worker.end()
                else:
                    order.append(following)
                    worker.start(following)
            while order and order[0] in results:
                yield results.pop(order.pop(0))
    finally:
        for worker in workers.values():
            worker.end()


class _Worker:
    """A process that runs one seed after the other."""

    def __init__(self, options: Options, niceness: int) -> None:
        self.pipe, other = _FORK.Pipe()
        self._process = _FORK.Process(target=_serve, args=(other, self.pipe, options, niceness), daemon=True)
        self._process.start()
        other.close()
        self.seed = 0
        self._runs = 0
        self._has_ended = False

    @property
    def is_spent(self) -> bool:
        return self._has_ended or self._runs >= _RUNS_PER_PROCESS

    def start(self, seed: int) -> None:
        self.seed = seed
        self._runs += 1
        with contextlib.suppress(OSError):  # it has ended: its result says so
            self.pipe.send(seed)

    def result(self) -> Result:
        try:
            return cast(Result, self.pipe.recv())
        except (EOFError, OSError):
            self._has_ended = True
            self._process.join()
            how = _end(self._process.exitcode)
            return Result(self.seed, Violation("NoUnhandledErrors", f"the process of this seed has ended: {how}"))

    def end(self) -> None:
        self.pipe.close()
        self._process.kill()
        self._process.join()


def _end(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"signal {signal.Signals(-exit_code).name}"
    return f"exit code {exit_code}"


def _serve(pipe: "Connection[Any, Any]", of_parent: "Connection[Any, Any]", options: Options, niceness: int) -> None:
    of_parent.close()  # so that the pipe ends with the parent process
    os.nice(niceness)
    while True:
        try:
            seed = pipe.recv()
        except EOFError:
            return
        pipe.send(_run(seed, options))


def _run(seed: int, options: Options) -> Result:
    try:
        result = simulate(seed, options)
    except Exception as error:
        # An error of the simulator itself must not stop the other seeds.
        return Result(seed, Violation("NoUnhandledErrors", f"the simulation itself failed: {error!r}"))
    result.events = [] if result.ok else result.events[-200:]
    if result.violation is not None:
        result.violation.__cause__ = None  # tracebacks cannot be pickled
    return result
