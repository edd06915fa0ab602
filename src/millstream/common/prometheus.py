"""Prometheus' text format, version 0.0.4, and the histogram that the hot paths count with.

Metric families are declared once; samples are added in any order; the result is one page. A family without samples is
not on the page. Everything in Millstream that writes this format uses this module (ADR 7).

A histogram is used by one thread. If several threads observe values, the owner holds a lock.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

REQUEST_SECONDS = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)
"""Bounds for the durations of requests, including long polls."""
PAUSE_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Bounds for pauses of the event loop, and for disk operations."""


class Histogram:
    """Counts of observations by upper bound. The counts are not cumulative; the text format adds them up."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """The last count is for values above all bounds."""
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LINES_PER_CHUNK = 2000
Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


def counter(name: str, help: str, *labels: str) -> Family:
    assert name.endswith("_total"), name
    return Family(name, "counter", help, labels)


def gauge(name: str, help: str, *labels: str) -> Family:
    return Family(name, "gauge", help, labels)


def histogram(name: str, help: str, *labels: str) -> Family:
    return Family(name, "histogram", help, labels)


class Page:
    def __init__(self) -> None:
        self._lines: dict[Family, list[str]] = {}

    def add(self, family: Family, value: float, *labels: str) -> None:
        """Adds one sample. `labels` are the values of the family's labels, in their order."""
        self.lines(family).append(f"{family.name}{_labels(family.labels, labels)} {number(value)}\n")

    def add_histogram(self, family: Family, found: Histogram, *labels: str) -> None:
        lines, name = self.lines(family), family.name
        around = "".join(f'{key}="{escaped(value)}",' for key, value in zip(family.labels, labels, strict=True))
        total = 0
        for bound, count in zip((*found.bounds, math.inf), found.counts, strict=True):
            total += count
            lines.append(f'{name}_bucket{{{around}le="{number(bound)}"}} {total}\n')
        plain = _labels(family.labels, labels)
        lines.append(f"{name}_sum{plain} {number(found.total)}\n{name}_count{plain} {total}\n")

    def lines(self, family: Family) -> list[str]:
        """The lines of a family, for callers that append thousands of finished lines."""
        return self._lines.setdefault(family, [])

    def chunks(self) -> Iterator[bytes]:
        """The page in small chunks, so that the event loop can serve others in between. Removes the lines it returns:
        freeing all lines at once would take long too."""
        for family in list(self._lines):
            lines = self._lines.pop(family)
            if lines:
                yield f"# HELP {family.name} {_help(family.help)}\n# TYPE {family.name} {family.kind}\n".encode()
            for first in range(0, len(lines), _LINES_PER_CHUNK):
                yield "".join(lines[first : first + _LINES_PER_CHUNK]).encode()


def number(value: int | float) -> str:
    if isinstance(value, float):
        if math.isinf(value):
            return "+Inf" if value > 0 else "-Inf"
        if value.is_integer() and abs(value) < 1e15:
            return str(int(value))
        return repr(value)
    return str(int(value))


def escaped(value: str) -> str:
    """A label value, escaped for the text format."""
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return value


def _labels(names: Sequence[str], values: Sequence[str]) -> str:
    if not names and not values:
        return ""
    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in zip(names, values, strict=True)) + "}"


def _help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
