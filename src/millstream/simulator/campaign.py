"""Many seeds, over several processes: each run is a thread of its own, so they share nothing."""

import multiprocessing
from collections.abc import Iterable, Iterator
from functools import partial

from millstream.simulator.scenarios import Options
from millstream.simulator.simulation import Result, simulate
from millstream.simulator.violation import Violation

_RECYCLED_AFTER = 200
"""Runs after which a process makes way for a fresh one."""


def run_seeds(seeds: Iterable[int], options: Options, *, processes: int) -> Iterator[Result]:
    """Results in the order of the seeds, without the events of runs that went well."""
    if processes <= 1:
        yield from map(partial(_run, options=options), seeds)
        return
    # Forked, so that nobody pays for the imports again.
    context = multiprocessing.get_context("fork")
    with context.Pool(processes, maxtasksperchild=_RECYCLED_AFTER) as pool:
        yield from pool.imap(partial(_run, options=options), seeds)


def _run(seed: int, options: Options) -> Result:
    try:
        result = simulate(seed, options)
    except Exception as error:
        # The simulator's own fault, or one that it did not contain: the other seeds run all the same.
        return Result(seed, Violation("NothingUnhandled", f"the simulation itself failed: {error!r}"))
    result.events = [] if result.ok else result.events[-200:]
    if result.violation is not None:
        result.violation.__cause__ = None  # tracebacks do not travel between processes
    return result
