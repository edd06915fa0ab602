"""The page of the sweeps: a table and a chart for each."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_COLOURS = {"millstream": "#2a7f62", "kafka": "#c2553f"}
_TITLES = {"millstream": "Millstream", "kafka": "Apache Kafka"}


@dataclass
class Series:
    """What one sweep found: values of each broker at each point, in the order of the rounds."""

    name: str
    title: str
    axis: str
    unit: str
    points: Sequence[int]
    values: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, sweep: Any, most: int) -> Series:
        """Nothing yet, for the points of a sweep up to `most`."""
        return cls(sweep.name, sweep.title, sweep.axis, sweep.unit, [each for each in sweep.points if each <= most])

    def add(self, target: str, point: int, value: float) -> None:
        self.values.setdefault(target, {}).setdefault(point, []).append(value)

    def median(self, target: str, point: int) -> float | None:
        found = self.values.get(target, {}).get(point)
        return statistics.median(found) if found else None


def as_json(remark: str, found: Sequence[Series]) -> dict[str, Any]:
    return {
        "remark": remark,
        "sweeps": [
            {
                "name": series.name,
                "title": series.title,
                "axis": series.axis,
                "unit": series.unit,
                "values": {
                    target: {str(point): [float(f"{value:.4g}") for value in values] for point, values in by.items()}
                    for target, by in series.values.items()
                },
                "notes": series.notes,
            }
            for series in found
        ],
    }


def markdown(remark: str, found: Sequence[Series], words: Mapping[str, str]) -> str:
    lines = [
        "# How cost grows",
        "",
        "Written by `python -m benchmarks.scaling`. Each sweep varies one number. The figure is the CPU time of the",
        "broker (user and system, from `/proc`) for the same piece of work, so a busy client does not count. Medians",
        "of the rounds; both brokers run all the time and take turns.",
        "",
        f"{remark}.",
    ]
    for series in found:
        targets = [name for name in _TITLES if name in series.values]
        lines += ["", f"## {series.title}", ""]
        if text := words.get(series.name):
            lines += [text, ""]
        lines += [f"![{series.title}](scaling-{series.name}.svg)", ""]
        lines += [
            f"| {series.axis} | " + " | ".join(f"{_TITLES[name]}, {series.unit}" for name in targets) + " | ratio |"
        ]
        lines += ["|---:|" + "---:|" * (len(targets) + 1)]
        for point in series.points:
            medians = [series.median(name, point) for name in targets]
            if not any(value is not None for value in medians):
                continue
            ours, theirs = series.median("millstream", point), series.median("kafka", point)
            ratio = f"{ours / theirs:.2f}" if ours is not None and theirs else "–"
            cells = ["–" if value is None else f"{value:,.3g}" for value in medians]
            lines.append(f"| {point:,} | " + " | ".join(cells) + f" | {ratio} |")
        if series.notes:
            lines += ["", *(f"- {note}" for note in series.notes)]
    return "\n".join(lines) + "\n"


def write_charts(directory: Path, found: Sequence[Series]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.fonttype"] = "none"
    matplotlib.rcParams["svg.hashsalt"] = "millstream"
    for series in found:
        figure, axes = pyplot.subplots(figsize=(6, 3.2))
        try:
            for name, title in _TITLES.items():
                drawn = [(point, series.median(name, point)) for point in series.points]
                known = [(point, value) for point, value in drawn if value is not None]
                if known:
                    axes.plot(*zip(*known, strict=True), marker="o", color=_COLOURS[name], label=title)
            axes.set_xscale("log")
            axes.set_ylim(bottom=0)
            axes.set_xlabel(series.axis)
            axes.set_ylabel(series.unit)
            axes.set_title(series.title, fontsize=9)
            axes.spines[["top", "right"]].set_visible(False)
            axes.legend(frameon=False, fontsize=8)
            figure.tight_layout()
            figure.savefig(directory / f"scaling-{series.name}.svg", metadata={"Date": None})
        finally:
            pyplot.close(figure)
