"""`python -m benchmarks.compare`: the command line of the comparison, and the place where its parts are joined."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.compare import machine
from benchmarks.compare.chart import write_chart
from benchmarks.compare.cluster_target import ClusterTarget, KafkaCluster, MillstreamCluster, OtherMillstreamCluster
from benchmarks.compare.comparison import Comparison, as_json
from benchmarks.compare.loads import (
    CLUSTER_LOAD_NAMES,
    CORES_LOAD_NAMES,
    GROUPS,
    LOAD_NAMES,
    build_cluster_loads,
    build_cores_loads,
    build_loads,
)
from benchmarks.compare.loads.consume_java import ConsumeJava, has_consumer_groups
from benchmarks.compare.loads.security import SECURITY_LOAD_NAMES, build_security_loads
from benchmarks.compare.loads.security.acl_cost import WITH_ACLS
from benchmarks.compare.machine_limit import LIMIT_OF, measure_limits
from benchmarks.compare.measure import Load, Scale
from benchmarks.compare.report import markdown, print_table
from benchmarks.compare.runner import Step, run_rounds, warm_up, warm_up_cluster, warm_up_secured
from benchmarks.compare.secured_target import (
    CIPHER_SUITE,
    SecuredKafka,
    SecuredMillstream,
    SecuredTarget,
    start_secured,
)
from benchmarks.compare.target import (
    KafkaTarget,
    MillstreamCores,
    MillstreamTarget,
    OtherMillstream,
    Target,
    start,
)
from tools import apache_kafka

_REPOSITORY = Path(__file__).resolve().parents[2]
_PUBLISHED = _REPOSITORY / "docs" / "benchmarks"
_UNPUBLISHED = _REPOSITORY / "benchmark-results"
_WARM_UP_SECONDS = 30.0
_CHOICES = (*LOAD_NAMES, *CORES_LOAD_NAMES, *SECURITY_LOAD_NAMES, *CLUSTER_LOAD_NAMES)
_WITHOUT_BESIDE = frozenset((*CORES_LOAD_NAMES, *SECURITY_LOAD_NAMES, "cores", "security"))

_CORES_REMARK = (
    "Loads with --cores 2: two nodes of Millstream under one supervisor, one Kafka broker; topics without replicas."
)

_CLUSTER_REMARK = (
    "Cluster loads: three nodes of each kind on this one machine, broker and controller in one process each, three "
    "replicas, min.insync.replicas=2, default settings otherwise; Kafka's nodes with 512 MB of heap each."
)

_SECURITY_REMARK = (
    f"TLS loads: TLS 1.3 with {CIPHER_SUITE} and P-256 certificates on both, SASL is SCRAM-SHA-512; Millstream's "
    "limits on the rate of handshakes, which Kafka does not have, were lifted."
)

application = typer.Typer(add_completion=False)


@application.command()
def compare(
    rounds: Annotated[int, typer.Option(min=1, help="How often each load runs on each broker; medians are shown.")] = 3,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Only these loads (repeatable): {', '.join(_CHOICES)}; several at once: {', '.join(GROUPS)}"
        ),
    ] = None,
    scale: Annotated[float, typer.Option(min=0.0001, help="Size of each load; below 1 the ratios mean less.")] = 1.0,
    quick: Annotated[bool, typer.Option("--quick", help="One round at scale 0.3: under three minutes.")] = False,
    kafka: Annotated[bool, typer.Option("--kafka/--no-kafka", help="Without Apache Kafka: our numbers only.")] = True,
    millstream: Annotated[
        bool, typer.Option("--millstream/--no-millstream", help="Without Millstream: Kafka's numbers only.")
    ] = True,
    beside: Annotated[
        Path | None,
        typer.Option(help="The `millstream` program of another version, in place of Kafka: what a change has cost."),
    ] = None,
    warm_up_seconds: Annotated[float, typer.Option(help="Work before measuring, on each broker alike.")] = -1.0,
    output: Annotated[
        Path | None,
        typer.Option(help="Where results.json, results.md and chart.svg go; a complete run goes to docs/benchmarks."),
    ] = None,
    work_dir: Annotated[Path | None, typer.Option(help="Where both brokers keep their data (the same disk).")] = None,
) -> None:
    """Run the same loads on Millstream and on Apache Kafka, in alternation, and show the ratios."""
    console = Console()
    if not console.is_terminal:
        console.width = 150
    unknown = set(only or ()) - {*_CHOICES, *GROUPS}
    if unknown:
        raise typer.BadParameter(f"no such load: {', '.join(sorted(unknown))}", param_hint="--only")
    if not kafka and not millstream:
        raise typer.BadParameter("nothing left to run", param_hint="--no-kafka --no-millstream")
    if beside is not None and not os.access(beside, os.X_OK):
        raise typer.BadParameter(f"{beside} is not a program", param_hint="--beside")
    if beside is not None and (not only or set(only) & _WITHOUT_BESIDE):
        raise typer.BadParameter("name loads of one node or of three with --only", param_hint="--beside")
    if quick:
        rounds, scale = 1, 0.3
    complete = rounds >= 3 and scale == 1.0 and not only and kafka and millstream
    destination = output or (_PUBLISHED if complete else _UNPUBLISHED)
    warm_up_s = warm_up_seconds if warm_up_seconds >= 0 else _WARM_UP_SECONDS * min(scale, 1.0)
    distribution = _distribution(console) if kafka and beside is None else None

    facts = machine.describe()
    theirs = KafkaTarget.name if beside is None else OtherMillstream.name
    comparison = Comparison(facts, machine.remark(facts, os.getloadavg()[0]), rounds, scale, theirs)
    comparison.note(
        f"Each broker was warmed up for {warm_up_s:.0f} s with produce, consume and small requests before measuring. "
        "Throughput topics have 6 partitions, latency and small-request topics 1; both have file.delete.delay.ms=1000, "
        "everything else is default."
    )
    parent = work_dir or _REPOSITORY / ".cache"
    parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as resources:
        directory = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="compare-", dir=parent)))

        def fresh_target(name: str, ours: type[MillstreamTarget] = MillstreamTarget) -> Target:
            own = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=directory))
            if name == KafkaTarget.name:
                assert distribution is not None
                return KafkaTarget(own, distribution)
            return OtherMillstream(own, beside) if name == OtherMillstream.name else ours(own)

        def fresh_secured(name: str, extra: Mapping[str, str] | None = None) -> SecuredTarget:
            own = Path(tempfile.mkdtemp(prefix=f"{name}-secured-", dir=directory))
            if name == KafkaTarget.name:
                assert distribution is not None
                return SecuredKafka(own, distribution, extra)
            return SecuredMillstream(own, extra)

        def fresh_cluster(name: str) -> ClusterTarget:
            own = Path(tempfile.mkdtemp(prefix=f"{name}-cluster-", dir=directory))
            if name == KafkaCluster.name:
                assert distribution is not None
                return KafkaCluster(own, distribution)
            return OtherMillstreamCluster(own, beside) if name == OtherMillstream.name else MillstreamCluster(own)

        names = [*([MillstreamTarget.name] if millstream else []), *([theirs] if kafka else [])]
        progress = resources.enter_context(_progress(console))
        loads: list[Load] = []
        chosen = set(only or _CHOICES)
        chosen = chosen.union(*(GROUPS[name] for name in chosen & set(GROUPS)))

        def measure(targets: Sequence[Target], now: list[Load]) -> None:
            measuring = progress.add_task("measure", total=rounds * len(now) * len(targets))

            def on_step(step: Step) -> None:
                text = f"round {step.round_number}/{rounds}: {step.load.title} on {step.target.name}"
                progress.update(measuring, description=text)
                progress.advance(measuring)

            loads.extend(now)
            run_rounds(list(targets), now, comparison, Scale(scale), on_step)
            progress.update(measuring, description="done", completed=rounds * len(now) * len(targets))

        if chosen & set(LOAD_NAMES):
            preparing = progress.add_task("machine limit", total=1 + len(names))
            if any(load_name in chosen for load_name, _ in LIMIT_OF):
                comparison.limits = measure_limits(directory, Scale(scale))
            with ExitStack() as running:
                targets = [fresh_target(name) for name in names]
                for target in targets:
                    progress.update(preparing, advance=1, description=f"start and warm up {target.name}")
                    running.callback(target.stop)
                    start(target)
                    warm_up(target, warm_up_s)
                progress.update(preparing, advance=1, description="warmed up")
                with_groups = all(has_consumer_groups(target) for target in targets)
                single = [each for each in build_loads(fresh_target, with_groups=with_groups) if each.name in chosen]
                if any(load.name == ConsumeJava.name for load in single):
                    comparison.note(ConsumeJava.remark(with_groups))
                measure(targets, single)

        if chosen & set(CORES_LOAD_NAMES):
            comparison.note(_CORES_REMARK)
            preparing = progress.add_task("two processes", total=len(names))
            with ExitStack() as running:
                targets = [fresh_target(name, MillstreamCores) for name in names]
                for target in targets:
                    progress.update(preparing, advance=1, description=f"start and warm up {target.name} for two cores")
                    running.callback(target.stop)
                    start(target)
                    warm_up(target, warm_up_s)
                measure(targets, [each for each in build_cores_loads() if each.name in chosen])

        if chosen & set(SECURITY_LOAD_NAMES):
            comparison.note(_SECURITY_REMARK)
            preparing = progress.add_task("security", total=len(names))
            with ExitStack() as running:
                secured = [fresh_secured(name) for name in names]
                for each in secured:
                    progress.update(preparing, advance=1, description=f"start and warm up {each.name} with TLS")
                    running.callback(each.stop)
                    start_secured(each)
                    warm_up_secured(each, warm_up_s)
                security_loads = build_security_loads(fresh_secured, partial(fresh_secured, extra=WITH_ACLS))
                measure(secured, [load for load in security_loads if load.name in chosen])

        if chosen & set(CLUSTER_LOAD_NAMES):
            comparison.note(_CLUSTER_REMARK)
            preparing = progress.add_task("clusters", total=len(names))
            with ExitStack() as running:
                clusters = [fresh_cluster(name) for name in names]
                for cluster in clusters:
                    progress.update(
                        preparing, advance=1, description=f"start and warm up three nodes of {cluster.name}"
                    )
                    running.callback(cluster.stop)
                    start(cluster)
                    warm_up_cluster(cluster, warm_up_s)
                measure(clusters, [each for each in build_cluster_loads(fresh_cluster) if each.name in chosen])

    destination.mkdir(parents=True, exist_ok=True)
    (destination / "results.json").write_text(json.dumps(as_json(comparison, loads), indent=1) + "\n")
    (destination / "results.md").write_text(markdown(comparison, loads))
    if beside is None:
        write_chart(destination / "chart.svg", comparison, loads)
    print_table(console, comparison, loads)
    console.print(f"Saved in {os.path.relpath(destination)}")
    if comparison.failures:
        raise typer.Exit(1)


def _distribution(console: Console) -> apache_kafka.KafkaDistribution:
    try:
        return apache_kafka.resolve()
    except apache_kafka.ToolchainMissingError as missing:
        console.print(f"Apache Kafka is not available: {missing}. Use --no-kafka for our numbers alone.", style="red")
        raise typer.Exit(2) from missing


def _progress(console: Console) -> Progress:
    # Twice a second is enough for eyes and keeps the display out of the measurements.
    columns = (TextColumn("{task.description:<60}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, refresh_per_second=2)


def _stop_on_signal(number: int, _: FrameType | None) -> None:
    """Leave by the ordinary way out, so that both brokers are stopped and their directory removed."""
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop_on_signal)
    application()
