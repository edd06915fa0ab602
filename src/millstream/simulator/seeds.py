"""Runs many seeds, in several processes. One seed is `simulation`."""

import multiprocessing
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import islice

from millstream.simulator.results import Result, Violation
from millstream.simulator.scenarios import Options
from millstream.simulator.simulation import simulate

_RUNS_PER_PROCESS = 200
"""Worker processes are replaced after about so many runs each."""


def run_seeds(seeds: Iterable[int], options: Options, *, processes: int, niceness: int = 0) -> Iterator[Result]:
    """Runs many seeds in several processes. Yields results in the order of the seeds; passed runs without events.
    `niceness` lowers the priority of these processes. A crash of one (a fault of the interpreter or of compiled code)
    is a RuntimeError with the seeds that it may have had."""
    run = partial(_run, options=options)
    if processes <= 1:
        yield from map(run, seeds)
        return
    waiting = iter(seeds)
    while some := list(islice(waiting, processes * _RUNS_PER_PROCESS)):
        # Forked processes need not import everything again.
        context = multiprocessing.get_context("fork")
        pool = ProcessPoolExecutor(processes, mp_context=context, initializer=os.nice, initargs=(niceness,))
        finished = 0
        try:
            for result in pool.map(run, some):
                yield result
                finished += 1
        except BrokenProcessPool:
            candidates = ", ".join(map(str, some[finished : finished + processes]))
            raise RuntimeError(
                f"a process of the simulator crashed in seed {candidates} or a later one; run them one by one with"
                " `PYTHONFAULTHANDLER=1 millstream simulate --seed N --processes 1`"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


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
