"""What a load found: one number of one connector in one round."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.spark.stage import Took


@dataclass(frozen=True)
class Result:
    load: str
    unit: str
    connector: str
    value: float
    more_is_better: bool = True


def rates(name: str, connector: str, rows: int, took: Took) -> Iterator[Result]:
    """By the clock, and by what Spark's processes worked (not the broker): on few cores that is the limit."""
    yield Result(name, "rows/s", connector, rows / took.seconds)
    yield Result(f"{name}: processor", "s per million", connector, took.processor_s / rows * 1e6, more_is_better=False)


def alternated(connectors: tuple[str, ...], round_: int) -> tuple[str, ...]:
    """In another order each round, so that none is always the first."""
    at = round_ % len(connectors)
    return connectors[at:] + connectors[:at]


def size_name(size: int) -> str:
    return "1 KB" if size == 1024 else f"{size} B"
