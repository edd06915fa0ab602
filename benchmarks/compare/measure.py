"""The words of the comparison: what is measured, which way is better, what the project promised, how big a run is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from benchmarks.compare.target import Target

THROUGHPUT_GOAL = 1.2
LATENCY_GOAL = 1.0
CPU_GOAL = 0.5
MEMORY_GOAL = 0.25
CLUSTER_GOAL = 3.0
"""Throughput of three replicas."""
SECURITY_GOAL = 1.0
"""Throughput, small requests, p99 and CPU with TLS and SASL, beside Kafka with the same."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One number a load yields.

    `goal` is the promised ratio Millstream / Kafka, `at_most` and `at_least` the promised figure itself whatever
    Kafka's is; None where nothing was promised. A measure that is not `comparable`, such as a difference that may be
    next to nothing on one side, has no ratio.
    """

    key: str
    title: str
    unit: str
    better: Literal["higher", "lower"]
    goal: float | None = None
    at_most: float | None = None
    comparable: bool = True
    at_least: float | None = None

    def met(self, ratio: float | None, ours: float | None = None) -> bool | None:
        if self.at_most is not None:
            return None if ours is None else ours <= self.at_most
        if self.at_least is not None:
            return None if ours is None else ours >= self.at_least
        if self.goal is None or ratio is None:
            return None
        return ratio >= self.goal if self.better == "higher" else ratio <= self.goal


@dataclass(frozen=True, slots=True)
class Scale:
    """How big a run is: 1.0 is the published size; tests use a tiny one. Below 1.0 ratios mean less."""

    factor: float = 1.0

    def records(self, full: int, least: int = 200) -> int:
        return max(int(full * self.factor), least)

    def seconds(self, full: float, least: float = 0.4) -> float:
        return max(full * self.factor, least)


class Load(Protocol):
    """One kind of work. `run` may be called many times, on any target, and leaves no topic behind."""

    name: ClassVar[str]
    title: ClassVar[str]
    measures: Sequence[Measure]

    def run(self, target: Target, scale: Scale) -> dict[str, float]:
        """Do the work once; the value of each measure by key."""
        ...


class LoadUnavailableError(RuntimeError):
    """This load cannot run here (a tool is missing); the text says why. Shown, never silent."""
