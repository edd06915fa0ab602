"""What runs gave, as a table of medians; kept in a file that later runs of other loads add to."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks.spark.cluster_size import sizing
from benchmarks.spark.loads import EXACTLY_ONCE
from benchmarks.spark.result import Result
from benchmarks.spark.stage import OURS, SPARKS

HEADINGS = ("measure", "unit", "Millstream", "exactly once", "spark-sql-kafka", "ratio")


@dataclass(frozen=True)
class Measured:
    """All rounds of one measure, and the run they are from."""

    results: list[Result]
    remark: str

    def cells(self) -> tuple[str, ...]:
        medians = {
            connector: median(values)
            for connector in (OURS, EXACTLY_ONCE, SPARKS)
            if (values := [each.value for each in self.results if each.connector == connector])
        }
        ratio = f"{medians[OURS] / medians[SPARKS]:.2f}" if {OURS, SPARKS} <= medians.keys() else ""
        numbers = [f"{medians[each]:,.4g}" if each in medians else "" for each in (OURS, EXACTLY_ONCE, SPARKS)]
        first = self.results[0]
        better = "" if first.more_is_better else ", less is better"
        return (first.load, f"{first.unit}{better}", *numbers, ratio)


class Report:
    """Measures by name, in the order of loads."""

    def __init__(self, directory: Path | None) -> None:
        """With a directory: what is there of other loads stays."""
        self._directory = directory
        self._found: dict[str, Measured] = {}
        kept = directory / "results.json" if directory else None
        if kept is not None and kept.exists():
            for row in json.loads(kept.read_text()):
                results = [Result(**each) for each in row["results"]]
                self._found[results[0].load] = Measured(results, row["remark"])

    def add(self, results: list[Result], remark: str) -> None:
        """All rounds of a load; written at once, so that a run that is cut off leaves what it has."""
        for name in dict.fromkeys(each.load for each in results):
            self._found[name] = Measured([each for each in results if each.load == name], remark)
        self._write()

    def rows(self, order: list[str]) -> list[tuple[str, ...]]:
        return [self._found[name].cells() for name in self._ordered(order)]

    def _medians(self) -> dict[str, float]:
        return {
            name: median(values)
            for name, found in self._found.items()
            if (values := [each.value for each in found.results if each.connector == OURS])
        }

    def _ordered(self, order: list[str]) -> list[str]:
        def place(name: str) -> int:
            return next((at for at, each in enumerate(order) if name.startswith(each)), len(order))

        return sorted(self._found, key=place)

    def _write(self) -> None:
        if self._directory is None:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        rows = [
            {"remark": each.remark, "results": [asdict(one) for one in each.results]} for each in self._found.values()
        ]
        (self._directory / "results.json").write_text(json.dumps(rows, indent=1) + "\n")

    def write_table(self, order: list[str]) -> Path | None:
        if self._directory is None:
            return None
        lines = ["| " + " | ".join(HEADINGS) + " |", "|---|---|--:|--:|--:|--:|"]
        lines += ["| " + " | ".join(row) + " |" for row in self.rows(order)]
        remarks = dict.fromkeys(self._found[name].remark for name in self._ordered(order))
        (self._directory / "sizing.md").write_text(sizing(self._medians()))
        path = self._directory / "results.md"
        path.write_text("\n".join([*lines, "", *(f"- {each}" for each in remarks), ""]))
        return path
