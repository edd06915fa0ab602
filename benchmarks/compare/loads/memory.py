"""Resident memory of a broker that has worked: read at the end of each round, after every other load has run on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from benchmarks.compare.measure import MEMORY_GOAL, Load, Measure, Scale
from benchmarks.compare.process_stat import peak_resident_megabytes, resident_megabytes
from benchmarks.compare.target import Target


class Memory(Load):
    name: ClassVar[str] = "memory"
    title: ClassVar[str] = "Memory after the loads"
    measures: Sequence[Measure] = (
        Measure("rss", "resident memory, after the loads", "MB", "lower", MEMORY_GOAL),
        Measure("peak", "resident memory, peak (VmHWM)", "MB", "lower", MEMORY_GOAL),
    )

    def run(self, target: Target, scale: Scale) -> dict[str, float]:
        return {"rss": resident_megabytes(target.pid), "peak": peak_resident_megabytes(target.pid)}
