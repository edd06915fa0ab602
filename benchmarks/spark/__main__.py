"""`python -m benchmarks.spark`: the command line; runs the loads in rounds and writes the report."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Annotated

import pyspark
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.compare import machine
from benchmarks.spark.loads import EXACTLY_ONCE, Result, build
from benchmarks.spark.stage import OURS, SPARKS, stage
from tools.spark_kafka_connector import CONNECTOR_VERSION

_PUBLISHED = Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "spark"
_HEADINGS = ("measure", "unit", "Millstream", "exactly once", "spark-sql-kafka", "ratio")


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often each load runs; medians are shown.")] = 3,
    scale: Annotated[float, typer.Option(min=0.001, help="Size of the loads; below 1 the ratios mean less.")] = 1.0,
    only: Annotated[list[str] | None, typer.Option(help="Only loads whose name begins so (repeatable).")] = None,
    output: Annotated[Path | None, typer.Option(help="Where results.md and results.json go.")] = None,
) -> None:
    """Our Spark source and sink beside Spark's own Kafka connector: one broker, one session, the same topics."""
    console = Console()
    if not console.is_terminal:
        console.width = 140
    loads = [load for load in build(scale) if not only or any(load.name.startswith(each) for each in only)]
    if not loads:
        raise typer.BadParameter(f"no load begins so; there are: {', '.join(each.name for each in build(scale))}")
    facts, busy = machine.describe(), os.getloadavg()[0]
    results: list[Result] = []
    with stage() as where, Progress(console=console) as progress:
        task = progress.add_task("", total=len(loads) * (rounds + 1))
        for load in loads:
            progress.update(task, description=f"{load.name}: preparing")
            load.prepare(where)
            list(load.run(where, 0))  # not counted: code that was never run is slower
            progress.advance(task)
            for number in range(rounds):
                progress.update(task, description=load.name)
                results += load.run(where, number)
                progress.advance(task)
    rows = [_cells(name, found) for name, found in _by_load(results).items()]
    table = Table(*_HEADINGS, title=f"Spark's connector and ours, median of {rounds} round(s)")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    remark = (
        f"{machine.remark(facts, busy)}; Spark {pyspark.__version__} with spark-sql-kafka-0-10 {CONNECTOR_VERSION}, "
        f"local[2], one Millstream broker, {rounds} rounds."
    )
    console.print(remark, highlight=False)
    target = output or (_PUBLISHED if scale == 1.0 and not only and rounds >= 3 else None)
    if target is not None:
        target.mkdir(parents=True, exist_ok=True)
        lines = ["| " + " | ".join(_HEADINGS) + " |", "|---|---|--:|--:|--:|--:|"]
        lines += ["| " + " | ".join(row) + " |" for row in rows]
        (target / "results.md").write_text("\n".join([*lines, "", remark, ""]))
        (target / "results.json").write_text(json.dumps([vars(each) for each in results], indent=1) + "\n")
        console.print(f"written to {os.path.relpath(target)}")


def _by_load(results: list[Result]) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = defaultdict(list)
    for each in results:
        found[each.load].append(each)
    return found


def _cells(name: str, results: list[Result]) -> tuple[str, ...]:
    medians = {
        connector: median(values)
        for connector in (OURS, EXACTLY_ONCE, SPARKS)
        if (values := [each.value for each in results if each.connector == connector])
    }
    ratio = ""
    if OURS in medians and SPARKS in medians:
        ratio = f"{medians[OURS] / medians[SPARKS]:.2f}"
    numbers = [f"{medians[each]:,.4g}" if each in medians else "" for each in (OURS, EXACTLY_ONCE, SPARKS)]
    return (name, results[0].unit, *numbers, ratio)


if __name__ == "__main__":
    typer.run(main)
