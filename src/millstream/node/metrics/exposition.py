"""Prometheus' text format, version 0.0.4: families declared once, samples gathered in any order, one page in the end.

A family without samples is left out, so that a page speaks only of what is there.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from millstream.node.measures import Histogram

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


def number(value: float) -> str:
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
