"""Spark collects garbage in a Python worker after each of its parts; modules are left out of it. No session needed."""

import os
import subprocess
import sys

import pytest

_PROGRAM = """
import gc
from pyspark.sql.types import BinaryType, StructType
from millstream.spark.sink.sink import StreamWriter

options = {"kafka.bootstrap.servers": "localhost:9092", "topic": "orders", "delivery": "at-least-once"}
StreamWriter(options, StructType().add("value", BinaryType()), False)
first = gc.get_freeze_count()
more = [[] for _ in range(1000)]
StreamWriter(options, StructType().add("value", BinaryType()), False)
print(first, gc.get_freeze_count())
"""


def frozen(**environment: str) -> list[int]:
    """How many objects are left out: after the first writer of a process, and after the second."""
    outer = {name: value for name, value in os.environ.items() if name != "SPARK_REUSE_WORKER"}
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PROGRAM], env=outer | environment, check=True, capture_output=True
    )
    return [int(each) for each in found.stdout.split()]


def test_a_worker_leaves_its_modules_out_of_collections_once() -> None:
    first, second = frozen(SPARK_REUSE_WORKER="1")
    assert first > 10_000
    # The bound lies below the 1000 lists made in between: they can still become garbage.
    assert second == pytest.approx(first, abs=500)


def test_other_processes_are_not_touched() -> None:
    first, second = frozen()
    assert (first, second) == (0, 0)
