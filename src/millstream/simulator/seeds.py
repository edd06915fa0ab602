"""Runs many seeds, in several processes. One seed is `simulation`."""

import multiprocessing
import os
from collections.abc import Iterable, Iterator
from functools import partial

from millstream.simulator.results import Result, Violation
from millstream.simulator.scenarios import Options
from millstream.simulator.simulation import simulate

_RUNS_PER_PROCESS = 200
"""A worker process is replaced after so many runs."""


def run_seeds(seeds: Iterable[int], options: Options, *, processes: int, niceness: int = 0) -> Iterator[Result]:
    """Runs many seeds in several processes. Yields results in the order of the seeds; passed runs without events.
    `niceness` lowers the priority of these processes."""
    if processes <= 1:
        yield from map(partial(_run, options=options), seeds)
        return
    # Forked processes need not import everything again.
    context = multiprocessing.get_context("fork")
    with context.Pool(processes, os.nice, (niceness,), maxtasksperchild=_RUNS_PER_PROCESS) as pool:
        yield from pool.imap(partial(_run, options=options), seeds)


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
