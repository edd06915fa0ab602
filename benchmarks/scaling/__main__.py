"""`python -m benchmarks.scaling`: runs the sweeps on Millstream and on Apache Kafka, in turn, and writes the page."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.compare import machine
from benchmarks.compare.cluster_target import ClusterTarget, KafkaCluster, MillstreamCluster
from benchmarks.compare.runner import warm_up
from benchmarks.compare.target import KafkaTarget, MillstreamCores, MillstreamTarget, Target, start
from benchmarks.scaling.report import Series, as_json, markdown, write_charts
from benchmarks.scaling.sweeps import SWEEPS, Measured, Processes, Replicas
from tools import apache_kafka

_REPOSITORY = Path(__file__).resolve().parents[2]
_PUBLISHED = _REPOSITORY / "docs" / "benchmarks"
_UNPUBLISHED = _REPOSITORY / "benchmark-results"
_WORDS = _PUBLISHED / "scaling-words.json"
_NAMES = (*(sweep.name for sweep in SWEEPS), Processes.name, Replicas.name)
_OPEN_FILES = 65_536

application = typer.Typer(add_completion=False)


@application.command()
def scaling(
    rounds: Annotated[int, typer.Option(min=1, help="How often each point is measured on each broker.")] = 3,
    seconds: Annotated[float, typer.Option(min=0.05, help="Work at each point.")] = 3.0,
    only: Annotated[list[str] | None, typer.Option(help=f"Only these sweeps: {', '.join(_NAMES)}")] = None,
    most: Annotated[int, typer.Option(min=1, help="Leave out points above this number.")] = 1_000_000,
    kafka: Annotated[bool, typer.Option("--kafka/--no-kafka", help="Without Apache Kafka: our numbers only.")] = True,
    warm_up_seconds: Annotated[float, typer.Option(help="Work before measuring, on each broker alike.")] = 30.0,
    output: Annotated[
        Path | None, typer.Option(help="Where scaling.md, scaling.json and charts go; a complete run: docs/benchmarks.")
    ] = None,
) -> None:
    """Measure how the cost of a request or a byte grows with the size of a cluster and of its load."""
    console = Console()
    chosen = set(only or _NAMES)
    if unknown := chosen - set(_NAMES):
        raise typer.BadParameter(f"no such sweep: {', '.join(sorted(unknown))}", param_hint="--only")
    distribution = None
    if kafka:
        try:
            distribution = apache_kafka.resolve()
        except apache_kafka.ToolchainMissingError as missing:
            console.print(f"Apache Kafka is not available: {missing}. Use --no-kafka for our numbers alone.")
            raise typer.Exit(2) from missing
    _allow_many_sockets()
    facts = machine.describe()
    remark = machine.remark(facts, os.getloadavg()[0]) + f"; {rounds} round(s) of {seconds:g} s"
    found: list[Series] = []
    parent = _REPOSITORY / ".cache"
    parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as resources:
        directory = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="scaling-", dir=parent)))
        progress = resources.enter_context(_progress(console))

        def own(name: str) -> Path:
            return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=directory))

        if chosen - {Processes.name, Replicas.name}:
            with ExitStack() as running:
                targets: list[Target] = [MillstreamTarget(own("millstream"))]
                if distribution is not None:
                    targets.append(KafkaTarget(own("kafka"), distribution))
                for target in targets:
                    running.callback(target.stop)
                    start(target)
                    warm_up(target, warm_up_seconds)
                for sweep in SWEEPS:
                    if sweep.name in chosen:
                        found.append(series := Series.of(sweep, most))
                        _run(sweep, targets, rounds, seconds, series.points, series, progress)
        if Processes.name in chosen:
            series = Series.of(Processes, most)
            for point in series.points:
                with ExitStack() as running:
                    targets = [MillstreamCores(own("millstream-cores"), point)]
                    if distribution is not None and point == 1:
                        targets.append(KafkaTarget(own("kafka"), distribution))
                    for target in targets:
                        running.callback(target.stop)
                        start(target)
                        warm_up(target, warm_up_seconds)
                    _run(Processes(), targets, rounds, seconds, [point], series, progress)
            found.append(series)
        if Replicas.name in chosen:
            with ExitStack() as running:
                clusters: list[ClusterTarget] = [MillstreamCluster(own("millstream-cluster"))]
                if distribution is not None:
                    clusters.append(KafkaCluster(own("kafka-cluster"), distribution))
                for cluster in clusters:
                    running.callback(cluster.stop)
                    start(cluster)
                    Replicas().run(cluster, Replicas.points[-1], warm_up_seconds)
                found.append(series := Series.of(Replicas, most))
                _run(Replicas(), clusters, rounds, seconds, series.points, series, progress)
    complete = chosen == set(_NAMES) and kafka and rounds >= 3
    destination = output or (_PUBLISHED if complete else _UNPUBLISHED)
    destination.mkdir(parents=True, exist_ok=True)
    words = json.loads(_WORDS.read_text()) if _WORDS.exists() else {}
    (destination / "scaling.json").write_text(json.dumps(as_json(remark, found), indent=1) + "\n")
    (destination / "scaling.md").write_text(markdown(remark, found, words))
    write_charts(destination, found)
    console.print(f"Saved in {os.path.relpath(destination)}")


def _run(
    sweep: Any,
    targets: Sequence[Any],
    rounds: int,
    seconds: float,
    points: Sequence[int],
    series: Series,
    progress: Progress,
) -> None:
    task = progress.add_task(sweep.title, total=rounds * len(points) * len(targets))
    run: Callable[[Any, int, float], Measured] = sweep.run
    for round_number in range(rounds):
        for point in points:
            for target in targets if round_number % 2 == 0 else targets[::-1]:
                progress.update(task, description=f"{sweep.title}: {point:,} on {target.name}", advance=1)
                try:
                    measured = run(target, point, seconds)
                except Exception as problem:  # one broker that fails at one point is a finding, not the end
                    series.notes.append(f"{target.name} failed at {point:,}: {problem}")
                    continue
                series.add(target.name, point, measured.value)
                if measured.note and round_number == 0:
                    series.notes.append(f"{target.name}, {point:,}: {measured.note}")


def _allow_many_sockets() -> None:
    """Brokers inherit it; 5,000 connections need it on both sides."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description:<70}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, refresh_per_second=2)


def _stop_on_signal(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop_on_signal)
    application()
