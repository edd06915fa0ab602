"""Keeps modules out of the garbage collection that Spark's Python workers run after every task.

PySpark's daemon calls `gc.collect()` each time a worker has done its part. With PySpark, pyarrow and this package
imported, that walks some 90,000 objects which never become garbage: 48 ms of processor time after a task whose work
was 3.5 ms. A micro-batch of the sink asks three workers: for the plan of the write, for its task, for its commit.
"""

import functools
import gc
import os

_SET_FOR_WORKERS = "SPARK_REUSE_WORKER"
"""A variable that Spark sets for Python workers which it uses again."""


def keep_modules() -> None:
    """Once for each worker, when it has imported what it needs. Does nothing in other processes."""
    if _SET_FOR_WORKERS in os.environ:
        _freeze_once(os.getpid())


@functools.cache
def _freeze_once(_process: int) -> None:
    gc.collect()  # what is garbage now would stay for ever
    gc.freeze()
