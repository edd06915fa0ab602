"""`millstream simulate`: runs clusters on virtual time with faults. A failed seed can be replayed."""

import os
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli.options import Json
from millstream.cli.terminal import CommandFailedError, print_json, progress

if TYPE_CHECKING:
    from millstream.simulator.results import Result
    from millstream.simulator.scenarios import Options

_SHOWN_FAILURES = 10


def simulate(
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed, or the first of several.")] = 1,
    seeds: Annotated[int, typer.Option("--seeds", metavar="N", min=1, help="Number of seeds.")] = 1,
    nodes: Annotated[int, typer.Option("--nodes", metavar="N", min=3, max=7, help="Number of nodes.")] = 3,
    cores: Annotated[
        int,
        typer.Option(
            "--cores", metavar="N", min=1, max=4, help="Nodes on each machine; --nodes is then the number of machines."
        ),
    ] = 1,
    fault_seconds: Annotated[
        float,
        typer.Option("--fault-seconds", "--trouble", metavar="SECONDS", min=1.0, help="Virtual time with faults."),
    ] = 8.0,
    scenario: Annotated[
        str,
        typer.Option(
            "--scenario",
            metavar="NAME",
            help="mixed, forming, blackout, transactions, failover, busy, disk or power. [default: by the seed]",
        ),
    ] = "",
    tls: Annotated[bool, typer.Option("--tls", help="All connections use TLS.")] = False,
    secured: Annotated[
        bool, typer.Option("--secured", help="TLS on all connections; clients log in and need ACLs.")
    ] = False,
    conditional: Annotated[
        bool, typer.Option("--conditional", help="Two more clients append conditionally (KIP-27).")
    ] = False,
    branches: Annotated[
        bool, typer.Option("--branches", help="One more client branches topics, and deletes branches.")
    ] = False,
    tiered: Annotated[
        bool, typer.Option("--tiered", help="Topics are tiered, to an object store that is slow and fails.")
    ] = False,
    mixed_versions: Annotated[
        bool,
        typer.Option(
            "--mixed-versions",
            help="Nodes start as an earlier or as the newest version; after the faults the upgrade is ended.",
        ),
    ] = False,
    disks: Annotated[
        int, typer.Option("--disks", metavar="N", min=1, max=3, help="Log directories of each node; single ones fail.")
    ] = 1,
    trace: Annotated[bool, typer.Option("--trace", help="Print the events of the run.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="With --trace: print the log lines of the nodes too.")
    ] = False,
    processes: Annotated[
        int, typer.Option("--processes", metavar="N", min=0, help="Number of parallel runs; 0 for one per core.")
    ] = 0,
    json: Json = False,
) -> None:
    """Run clusters of real nodes in virtual time, with crashes, network partitions and failing disks.

    Checks that no acknowledged write is lost, that transactions are atomic, and that the cluster recovers. The same
    seed gives the same run.

    \b
    Examples:
      millstream simulate --seeds 200
      millstream simulate --seed 42 --trace
      millstream simulate --scenario transactions --trace
      millstream simulate --seeds 20 --cores 2
      millstream simulate --seeds 20 --disks 2
    """
    import logging

    from millstream.simulator.scenarios import Options, Scenario
    from millstream.simulator.seeds import run_seeds
    from millstream.simulator.simulation import simulate as run_seed

    if scenario and scenario not in tuple(Scenario):
        raise CommandFailedError(f"--scenario {scenario}: write one of {', '.join(Scenario)}")
    if scenario == Scenario.POWER and (nodes != Options().nodes or cores != 1):
        raise CommandFailedError(f"--scenario {scenario} has a single node: remove --nodes and --cores")
    options = Options(
        nodes=nodes,
        processes=cores,
        fault_seconds=fault_seconds,
        scenario=Scenario(scenario) if scenario else None,
        tls=tls,
        secured=secured,
        conditional=conditional,
        branches=branches,
        tiered=tiered,
        mixed_versions=mixed_versions,
        disks=disks,
        log_level=logging.INFO if verbose else logging.WARNING,
    )
    failures: list[Result] = []
    totals = _Totals()
    if trace:
        for number in range(seed, seed + seeds):
            result = run_seed(number, options, print)
            _take(result, totals, failures, options)
    else:
        with progress(wanted=not json) as display:
            task = display.add_task("seeds", total=seeds, info="") if display is not None else None
            every = run_seeds(range(seed, seed + seeds), options, processes=processes or os.cpu_count() or 1)
            for result in every:
                _take(result, totals, failures, options)
                if display is not None and task is not None:
                    info = f"{totals.acked:,} acked, {totals.faults:,} faults, {len(failures)} failed"
                    display.update(task, advance=1, info=info)
    if json:
        print_json(
            {
                "seeds": seeds,
                "failed": [
                    {"seed": each.seed, "invariant": each.violation.invariant, "what": each.violation.what}
                    for each in failures
                    if each.violation is not None
                ],
                **totals.document(),
            }
        )
    else:
        print(totals.sentence(seeds, len(failures)))
    if failures:
        raise CommandFailedError(f"{len(failures)} of {seeds} seeds failed: {_some(failures)}")


class _Totals:
    def __init__(self) -> None:
        self.acked = self.faults = self.elections = 0
        self.committed = self.aborted = self.fenced = self.cleanings = 0
        self.virtual_seconds = self.cpu_seconds = 0.0

    def add(self, result: "Result") -> None:
        self.acked += result.acked
        self.faults += sum(result.faults.values())
        self.elections += result.elections
        self.committed += result.committed
        self.aborted += result.aborted
        self.fenced += result.fenced
        self.cleanings += result.cleanings
        self.virtual_seconds += result.virtual_seconds
        self.cpu_seconds += result.cpu_seconds

    def sentence(self, seeds: int, failed: int) -> str:
        outcome = f"{failed:,} failed" if failed else "all invariants held"
        return (
            f"{seeds:,} {'seed' if seeds == 1 else 'seeds'}: {outcome}; {self.acked:,} batches acknowledged, "
            f"{self.committed:,} transactions committed, {self.aborted:,} aborted, {self.fenced:,} producers fenced, "
            f"{self.cleanings:,} logs cleaned, {self.faults:,} faults, {self.elections:,} controllers elected, in "
            f"{self.virtual_seconds / 60:,.1f} "
            f"virtual minutes ({self.cpu_seconds:,.1f} s of CPU)"
        )

    def document(self) -> dict[str, float]:
        return {
            "acked": self.acked,
            "faults": self.faults,
            "elections": self.elections,
            "transactions_committed": self.committed,
            "transactions_aborted": self.aborted,
            "producers_fenced": self.fenced,
            "logs_cleaned": self.cleanings,
            "virtual_seconds": round(self.virtual_seconds, 1),
            "cpu_seconds": round(self.cpu_seconds, 1),
        }


def _take(result: "Result", totals: _Totals, failures: "list[Result]", options: "Options") -> None:
    totals.add(result)
    if result.violation is None:
        return
    failures.append(result)
    if len(failures) <= _SHOWN_FAILURES:
        again = f"millstream simulate --seed {result.seed}{_words(options)}"
        print(f"seed {result.seed}: {result.violation}\n  replay: {again} --trace")


def _words(options: "Options") -> str:
    """The options of the command line that make these options."""
    words = {
        f"--nodes {options.nodes}": options.nodes != 3,
        f"--cores {options.processes}": options.processes != 1,
        f"--fault-seconds {options.fault_seconds:g}": options.fault_seconds != 8.0,
        f"--scenario {options.scenario}": options.scenario is not None,
        "--tls": options.tls,
        "--secured": options.secured,
        "--conditional": options.conditional,
        "--branches": options.branches,
        "--tiered": options.tiered,
        "--mixed-versions": options.mixed_versions,
        f"--disks {options.disks}": options.disks != 1,
    }
    return "".join(f" {word}" for word, is_needed in words.items() if is_needed)


def _some(failures: "list[Result]") -> str:
    shown = ", ".join(str(each.seed) for each in failures[:_SHOWN_FAILURES])
    return shown + (" …" if len(failures) > _SHOWN_FAILURES else "")
