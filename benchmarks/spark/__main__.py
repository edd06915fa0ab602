"""`python -m benchmarks.spark`: the command line; runs the loads in rounds and writes the report."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import pyspark
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.compare import machine
from benchmarks.spark.loads import Load, build
from benchmarks.spark.report import HEADINGS, Report
from benchmarks.spark.result import Result
from benchmarks.spark.stage import CORES, Stage, stage
from tools.spark_kafka_connector import CONNECTOR_VERSION

_PUBLISHED = Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "spark"
_LEAST_ROUNDS = 3


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often each load runs; medians are shown.")] = _LEAST_ROUNDS,
    scale: Annotated[float, typer.Option(min=0.001, help="Size of the loads; below 1 the ratios mean less.")] = 1.0,
    only: Annotated[list[str] | None, typer.Option(help="Only loads whose name begins so (repeatable).")] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Where results.md and results.json go; what is there of other loads stays."),
    ] = None,
) -> None:
    """Our Spark source and sink beside Spark's own Kafka connector: one broker, one session, the same topics."""
    console = Console()
    if not console.is_terminal:
        console.width = 140
    every = build(scale)
    loads = [load for load in every if not only or any(load.name.startswith(each) for each in only)]
    if not loads:
        raise typer.BadParameter(f"no load begins so; there are: {', '.join(each.name for each in every)}")
    remark = (
        f"{machine.remark(machine.describe(), os.getloadavg()[0])}; Spark {pyspark.__version__} with "
        f"spark-sql-kafka-0-10 {CONNECTOR_VERSION}, local[{CORES}], one Millstream broker, {rounds} round(s)"
        f"{'' if scale == 1.0 else f' at scale {scale:g}'}."
    )
    report = Report(output or (_PUBLISHED if scale == 1.0 and rounds >= _LEAST_ROUNDS else None))
    order = [each.name for each in every]
    with stage() as where, Progress(console=console) as progress:
        task = progress.add_task("", total=len(loads) * (rounds + 1))
        for load in loads:
            results: list[Result] = []
            for number in range(-1, rounds):
                progress.update(task, description=load.name if number >= 0 else f"{load.name}: preparing")
                results += _round(load, where, number)
                progress.advance(task)
            report.add(results, remark)
            written = report.write_table(order)
    table = Table(*HEADINGS, title="Spark's connector and ours, medians")
    for row in report.rows(order):
        table.add_row(*row)
    console.print(table)
    console.print(remark, highlight=False)
    if written is not None:
        console.print(f"written to {os.path.relpath(written.parent)}")


def _round(load: Load, where: Stage, number: int) -> list[Result]:
    """The first one is not counted: code that was never run is slower."""
    if number >= 0:
        return list(load.run(where, number))
    load.prepare(where)
    list(load.run(where, 0))
    return []


if __name__ == "__main__":
    typer.run(main)
