"""What a comparison found: every value of every round, medians, ratios, and whether the promise was kept."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from benchmarks.compare.machine_limit import LIMIT_OF, LIMIT_TITLES
from benchmarks.compare.measure import Load, Measure

OURS, THEIRS = "millstream", "kafka"


@dataclass
class Comparison:
    """Filled by the runner, read by the reports."""

    machine: dict[str, str]
    remark: str
    rounds: int
    scale: float
    theirs: str = THEIRS
    """The target in the second column: Kafka, or another Millstream."""
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    limits: dict[str, float] = field(default_factory=dict)
    values: dict[tuple[str, str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    """By load name, measure key and target name: one value a round."""

    def add(self, load: Load, target_name: str, found: dict[str, float]) -> None:
        for key, value in found.items():
            self.values[load.name, key, target_name].append(value)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    load_name: str
    measure: Measure
    ours: float | None
    theirs: float | None
    limit_share: float | None

    @property
    def ratio(self) -> float | None:
        if self.ours is None or not self.theirs or not self.measure.comparable:
            return None
        return self.ours / self.theirs

    @property
    def advantage(self) -> float | None:
        """How many times better than Kafka we are, whichever way is better; above 1 we are ahead."""
        if not self.ratio:
            return None
        return self.ratio if self.measure.better == "higher" else 1 / self.ratio

    @property
    def met(self) -> bool | None:
        return self.measure.met(self.ratio, self.ours)


def rows(comparison: Comparison, loads: list[Load]) -> list[Row]:
    found = []
    for load in loads:
        for measure in load.measures:
            ours = _median(comparison, load, measure, OURS)
            theirs = _median(comparison, load, measure, comparison.theirs)
            if ours is None and theirs is None:
                continue
            limit = comparison.limits.get(LIMIT_OF.get((load.name, measure.key), ""))
            found.append(Row(load.name, measure, ours, theirs, ours / limit if ours is not None and limit else None))
    return found


def _median(comparison: Comparison, load: Load, measure: Measure, target_name: str) -> float | None:
    values = comparison.values.get((load.name, measure.key, target_name))
    return statistics.median(values) if values else None


def as_json(comparison: Comparison, loads: list[Load]) -> dict[str, Any]:
    return {
        "machine": comparison.machine,
        "remark": comparison.remark,
        "rounds": comparison.rounds,
        "scale": comparison.scale,
        "notes": comparison.notes,
        "failures": comparison.failures,
        "machine_limits": {
            key: {"title": LIMIT_TITLES[key][0], "unit": LIMIT_TITLES[key][1], "value": round(value, 1)}
            for key, value in comparison.limits.items()
        },
        "results": [
            {
                "load": row.load_name,
                "measure": row.measure.key,
                "title": row.measure.title,
                "unit": row.measure.unit,
                "better": row.measure.better,
                "goal_ratio": row.measure.goal,
                **({} if row.measure.at_most is None else {"goal_at_most": row.measure.at_most}),
                **({} if row.measure.at_least is None else {"goal_at_least": row.measure.at_least}),
                "ratio": _rounded(row.ratio),
                "met": row.met,
                "share_of_machine_limit": _rounded(row.limit_share),
                "median": {OURS: _rounded(row.ours), comparison.theirs: _rounded(row.theirs)},
                "rounds": {
                    name: [
                        _rounded(value) for value in comparison.values.get((row.load_name, row.measure.key, name), ())
                    ]
                    for name in (OURS, comparison.theirs)
                },
            }
            for row in rows(comparison, loads)
        ],
    }


def _rounded(value: float | None) -> float | None:
    """Four significant digits: more would be false precision, and noise in the repository's history."""
    return None if value is None else float(f"{value:.4g}")
