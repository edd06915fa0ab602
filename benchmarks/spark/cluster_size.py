"""How many cores a cluster needs for 1 GB/s and for a million messages a second, from what was measured.

Pure: measures in, Markdown out, with the arithmetic. `make bench-spark` writes it to docs/benchmarks/spark/sizing.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

BUSY = 0.7
"""The part of its cores that a cluster should use: the rest is for peaks, for catching up, and for a lost machine."""

_INTRODUCTION = f"""\
# Cores for 1 GB/s and for a million messages a second

Written by `make bench-spark` from the processor times in [results.md](results.md), which names machine and date.
Cores = million rows a second × processor seconds per million rows ÷ {BUSY:g}: the rest is for peaks and for a lost
machine. How to use it: [On a Spark cluster](../../spark-cluster.md#cores-for-1-gbs).

"""


@dataclass(frozen=True)
class Goal:
    title: str
    million_rows: float
    """Per second."""
    size: str
    """As in the names of loads."""


GOALS = (
    Goal("1 M messages/s of 1 KB (1 GB/s)", 1.0, "1 KB"),
    Goal("1 M messages/s of 100 B (0.1 GB/s)", 1.0, "100 B"),
    Goal("10 M messages/s of 100 B (1 GB/s)", 10.0, "100 B"),
)


@dataclass(frozen=True)
class Step:
    title: str
    load: str
    """The name of the load; {size} is that of the goal."""

    def processor(self, size: str) -> str:
        return f"{self.load.format(size=size)}: processor"


STEPS = (
    Step("source", "source {size} lz4"),
    Step("source and typed decode", "typed decode {size}"),
    Step("source, typed decode and window", "window {size}"),
    Step("sink", "sink {size}"),
    Step("table", "table {size}"),
)


def cores(seconds_per_million: float, million_rows: float) -> int:
    return ceil(round(seconds_per_million * million_rows / BUSY, 6))  # 4.2 / 0.7 is a little more than 6


def sizing(processor_s: Mapping[str, float]) -> str:
    """The page; `processor_s` has the processor seconds per million rows by the name of the measure."""
    lines = ["| step | " + " | ".join(goal.title for goal in GOALS) + " |", "|---|" + "--:|" * len(GOALS)]
    for step in STEPS:
        cells = [_cell(processor_s.get(step.processor(goal.size)), goal) for goal in GOALS]
        lines.append(f"| {step.title} | " + " | ".join(cells) + " |")
    return _INTRODUCTION + "\n".join(lines) + "\n"


def _cell(seconds: float | None, goal: Goal) -> str:
    if seconds is None:
        return "not measured"
    return f"{goal.million_rows:g} × {seconds:.2f} s ÷ {BUSY:g} = **{cores(seconds, goal.million_rows)}**"
