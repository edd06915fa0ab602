"""The ratios as one picture: how many times better than Kafka, on a logarithmic axis, with each promise as a tick."""

from __future__ import annotations

from pathlib import Path

from benchmarks.compare.comparison import Comparison, Row, rows
from benchmarks.compare.measure import Load

_AHEAD, _BEHIND, _INK = "#2a7f62", "#c2553f", "#333333"


def write_chart(path: Path, comparison: Comparison, loads: list[Load]) -> None:
    """Writes nothing when there is no ratio to show (a run without Kafka)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [row for row in rows(comparison, loads) if row.advantage is not None][::-1]
    if not shown:
        return
    matplotlib.rcParams["svg.fonttype"] = "none"
    matplotlib.rcParams["svg.hashsalt"] = "millstream"
    figure, axes = pyplot.subplots(figsize=(9, 0.28 * len(shown) + 1.4))
    try:
        for at, row in enumerate(shown):
            advantage = row.advantage or 1.0
            axes.barh(at, advantage - 1, left=1, height=0.62, color=_AHEAD if advantage >= 1 else _BEHIND)
            axes.annotate(
                f"{advantage:.2f}×",
                (advantage, at),
                xytext=(3 if advantage >= 1 else -3, 0),
                textcoords="offset points",
                ha="left" if advantage >= 1 else "right",
                va="center",
                fontsize=7,
                color=_INK,
            )
            if (goal := _goal_advantage(row)) is not None:
                axes.plot([goal, goal], [at - 0.42, at + 0.42], color=_INK, linewidth=1.4)
        axes.set_xscale("log")
        axes.margins(x=0.14)
        axes.set_yticks(range(len(shown)), [row.measure.title for row in shown], fontsize=7)
        axes.axvline(1, color=_INK, linewidth=0.8)
        axes.set_xlabel("times better than Apache Kafka (black tick: the goal)", fontsize=8)
        axes.tick_params(axis="x", labelsize=7)
        axes.spines[["top", "right", "left"]].set_visible(False)
        figure.tight_layout()
        figure.savefig(path, metadata={"Date": None})
    finally:
        pyplot.close(figure)


def _goal_advantage(row: Row) -> float | None:
    if row.measure.goal is None:
        return None
    return row.measure.goal if row.measure.better == "higher" else 1 / row.measure.goal
