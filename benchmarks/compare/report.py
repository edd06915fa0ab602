"""The table for people (terminal and Markdown). The chart is in `chart`, the JSON in `comparison`."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.compare.comparison import THEIRS, Comparison, Row, rows
from benchmarks.compare.machine_limit import LIMIT_TITLES
from benchmarks.compare.measure import Load

_TITLES = {THEIRS: "Kafka"}


def _headings(comparison: Comparison) -> tuple[str, ...]:
    theirs = _TITLES.get(comparison.theirs, comparison.theirs)
    return "measure", "Millstream", theirs, "unit", "ratio", "goal", "", "of machine limit"


def print_table(console: Console, comparison: Comparison, loads: list[Load]) -> None:
    headings = _headings(comparison)
    table = Table(title=f"Millstream beside {headings[2]}, median of {comparison.rounds} round(s)")
    for heading, justify in zip(
        headings, ("left", "right", "right", "left", "right", "right", "left", "right"), strict=True
    ):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    previous = ""
    for row in rows(comparison, loads):
        if row.load_name != previous and previous:
            table.add_section()
        previous = row.load_name
        cells = _cells(row)
        verdict = Text(cells[6], style={True: "green", False: "bold red", None: ""}[row.met])
        table.add_row(*cells[:6], verdict, cells[7])
    console.print(table)
    for line in _remarks(comparison):
        console.print(line, highlight=False)


def markdown(comparison: Comparison, loads: list[Load]) -> str:
    lines = ["| " + " | ".join(_headings(comparison)) + " |", "|---|---:|---:|---|---:|---:|---|---:|"]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in rows(comparison, loads)]
    lines.append("")
    lines += [f"- {line}" for line in _remarks(comparison)]
    return "\n".join(lines) + "\n"


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.measure.title,
        _number(row.ours),
        _number(row.theirs),
        row.measure.unit,
        "–" if row.ratio is None else f"{row.ratio:.2f}",
        _goal(row),
        {True: "met", False: "missed", None: ""}[row.met],
        "" if row.limit_share is None else f"{row.limit_share:.0%}",
    )


def _goal(row: Row) -> str:
    if row.measure.at_most is not None:
        return f"≤ {row.measure.at_most:g} {row.measure.unit}"
    if row.measure.at_least is not None:
        return f"≥ {row.measure.at_least:,.0f} {row.measure.unit}"
    sign = "≥" if row.measure.better == "higher" else "≤"
    return "" if row.measure.goal is None else f"{sign} {row.measure.goal:g}"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _remarks(comparison: Comparison) -> list[str]:
    limits = [f"{LIMIT_TITLES[key][0]} {value:,.0f} {LIMIT_TITLES[key][1]}" for key, value in comparison.limits.items()]
    return [
        *([f"The machine's own limit: {'; '.join(limits)}."] if limits else []),
        comparison.remark + (f"; scale {comparison.scale:g}" if comparison.scale != 1 else ""),
        *comparison.notes,
        *(f"FAILED: {failure}" for failure in comparison.failures),
    ]
