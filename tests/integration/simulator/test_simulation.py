"""Whole runs: scenarios that must pass, and runs that must repeat. The many seeds are in `test_seeds.py`."""

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterable

import pytest

from millstream import compilation
from millstream.cli.app import run_app
from millstream.node.cluster.lifecycle import BrokerLifecycle
from millstream.node.replicas.partition import Partition
from millstream.simulator import seeds as seeds_module
from millstream.simulator.results import Event, Result
from millstream.simulator.scenarios import Options, Scenario
from millstream.simulator.seeds import run_seeds
from millstream.simulator.simulation import simulate

FEW = pytest.mark.parametrize("seeds", [range(1, 3), pytest.param(range(3, 9), marks=pytest.mark.slow)], ids=str)
_PROGRAM = """
import random
from millstream.simulator.scenarios import Options
from millstream.simulator.simulation import simulate
kept = [bytearray(random.randrange(1, 5000)) for _ in range(random.randrange(20000))]  # other addresses
result = simulate({seed}, Options({options}))
print(result.fingerprint, result.steps, result.acked)
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seeds", [range(1, 5), pytest.param(range(5, 13), marks=pytest.mark.slow)], ids=str)
def test_transactions_keep_the_invariants(seeds: range) -> None:
    results = list(run_seeds(seeds, Options(scenario=Scenario.TRANSACTIONS), processes=os.cpu_count() or 1))
    assert [str(each.violation) for each in results if not each.ok] == []
    for what in ("committed", "aborted", "fenced", "cleanings"):
        assert sum(getattr(each, what) for each in results) > len(seeds), what


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seeds", [range(3, 5), pytest.param(range(5, 13), marks=pytest.mark.slow)], ids=str)
def test_clients_with_quotas_lose_nothing(seeds: range) -> None:
    options = Options(scenario=Scenario.MIXED, quotas=True)
    results = list(run_seeds(seeds, options, processes=os.cpu_count() or 1))
    assert [str(each.violation) for each in results if not each.ok] == []
    assert all(each.acked for each in results)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seeds", [range(1, 3), pytest.param((3, *range(20, 40)), marks=pytest.mark.slow)], ids=str)
def test_machines_with_two_nodes_die_as_a_whole(seeds: Iterable[int]) -> None:
    """Power losses and cuts of the network take both nodes; kills take one or both."""
    results = list(run_seeds(seeds, Options(processes=2), processes=os.cpu_count() or 1))
    assert [str(each.violation) for each in results if not each.ok] == []
    assert all(each.faults for each in results)


@pytest.mark.timeout(300)
@FEW
def test_leaders_that_are_cut_off(seeds: range) -> None:
    results = list(run_seeds(seeds, Options(scenario=Scenario.FAILOVER), processes=os.cpu_count() or 1))
    assert [str(each.violation) for each in results if not each.ok] == []
    assert all(each.faults for each in results)


@pytest.mark.timeout(300)
@FEW
def test_load_alone_gets_no_one_fenced(seeds: range) -> None:
    results = list(run_seeds(seeds, Options(scenario=Scenario.BUSY), processes=os.cpu_count() or 1))
    assert [str(each.violation) for each in results if not each.ok] == []
    assert all(each.faults.get("overload") and each.faults.get("short pause") for each in results)


@pytest.mark.timeout(300)
@FEW
def test_disks_of_leaders_that_fail(seeds: range) -> None:
    results = list(run_seeds(seeds, Options(scenario=Scenario.DISK), processes=os.cpu_count() or 1))
    assert [str(each.violation) for each in results if not each.ok] == []
    assert all(each.faults for each in results)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seeds", [range(1, 5), pytest.param(range(5, 13), marks=pytest.mark.slow)], ids=str)
def test_a_single_node_without_power(seeds: range) -> None:
    results = list(run_seeds(seeds, Options(scenario=Scenario.POWER), processes=os.cpu_count() or 1))
    assert [str(each.violation) for each in results if not each.ok] == []
    assert all("power cut during a write" in each.faults for each in results)
    assert sum(each.committed for each in results) > len(seeds)


@pytest.mark.timeout(300)
@FEW
def test_five_nodes_keep_the_invariants(seeds: range) -> None:
    results = list(run_seeds(seeds, Options(nodes=5), processes=os.cpu_count() or 1))
    assert [str(each.violation) for each in results if not each.ok] == []


@pytest.mark.timeout(300)
@FEW
def test_controllers_apart_from_brokers(seeds: range) -> None:
    results = list(run_seeds(seeds, Options(separate_roles=True), processes=os.cpu_count() or 1))
    assert [str(each.violation) for each in results if not each.ok] == []


@pytest.mark.timeout(300)
@FEW
def test_clusters_with_tls_keep_the_invariants(seeds: range) -> None:
    results = list(run_seeds(seeds, Options(tls=True), processes=os.cpu_count() or 1))
    assert [str(each.violation) for each in results if not each.ok] == []
    assert sum(each.acked for each in results) > 40 * len(seeds)


def test_the_same_seed_is_the_same_run_with_tls() -> None:
    """The bytes are random, their sizes and times are not."""
    first, again = (simulate(3, Options(tls=True)) for _ in range(2))
    assert first.fingerprint == again.fingerprint
    assert [str(event) for event in first.events] == [str(event) for event in again.events]


@pytest.mark.parametrize(
    ("seed", "options"),
    [
        (3, ""),
        (5, "tiered=True, disks=2"),
        pytest.param(6, "processes=2", marks=pytest.mark.slow),
        pytest.param(7, "conditional=True, quotas=True", marks=pytest.mark.slow),
        pytest.param(8, "secured=True", marks=pytest.mark.slow),
    ],
)
def test_the_same_seed_is_the_same_run(seed: int, options: str) -> None:
    """Also in another process, where sets of objects and of text have another order (`tools/check_order.py` finds
    iterations over such sets), and in plain Python, if the modules are compiled here."""
    here = run_elsewhere(seed, options, "1", os.environ.get(compilation.VARIABLE, compilation.AUTO))
    assert here == run_elsewhere(seed, options, "2", compilation.REFUSE)


def run_elsewhere(seed: int, options: str, hash_seed: str, form: str) -> str:
    """The result of a seed in another process."""
    chosen = {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path), compilation.VARIABLE: form}
    return subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(seed=seed, options=options)],
        env={**os.environ, **chosen},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.mark.parametrize(
    ("seed", "options"),
    [
        # Power was cut although a paused controller, which had been deposed, knew nothing of two restarts.
        (970042, Options()),
        # A controller was elected with a full disk, could not write its first record, and led for ever.
        (2002389, Options()),
        # A torn write left a part of a batch in the metadata log; the node stopped cleanly, and never started again.
        (3000165, Options(disks=2)),
        # The administrator ended the upgrade with a level of its own, and a node went back to the earlier version.
        (3000367, Options(mixed_versions=True)),
        # A replica was away for longer than delete.retention.ms, and missed the end of a transaction: a known limit.
        (2002656, Options(disks=2)),
        # A topic was created while all brokers of a machine were fenced.
        (2002128, Options(processes=2)),
        # A stream to a machine that had lost power stayed silent after its return.
        (960003, Options(scenario=Scenario.TRANSACTIONS, tiered=True)),
    ],
    ids=str,
)
def test_seeds_that_failed_once(seed: int, options: Options) -> None:
    assert simulate(seed, options).violation is None


def test_other_seeds_are_other_runs() -> None:
    short = Options(fault_seconds=1.0)
    assert simulate(1, short).fingerprint != simulate(2, short).fingerprint


def test_the_command_prints_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["simulate", "--seed", "3", "--trace", "--fault-seconds", "3"]) == 0
    said = capsys.readouterr().out
    assert "1 seed: all invariants held" in said
    assert "create topic orders" in said
    assert "leads epoch" in said


@pytest.mark.plain
def test_a_seed_that_fails_says_how_to_replay_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Partition, "append", lambda self, batches, now_ms, **more: 1 // 0)
    options = ["--nodes", "5", "--tiered", "--mixed-versions", "--disks", "2"]
    assert run_app(["simulate", "--seed", "5", "--processes", "1", *options]) == 1
    said = capsys.readouterr()
    assert "seed 5: " in said.out
    assert f"replay: millstream simulate --seed 5 {' '.join(options)} --trace" in said.out
    assert "1 of 1 seeds failed: 5" in said.err


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("scenario", "seeds"),
    [
        (Scenario.MIXED, range(8, 10)),
        pytest.param(Scenario.MIXED, range(10, 20), marks=pytest.mark.slow),
        pytest.param(Scenario.MIXED, range(302, 304), marks=pytest.mark.slow),
        pytest.param(Scenario.TRANSACTIONS, range(101, 109), marks=pytest.mark.slow),
        pytest.param(Scenario.POWER, range(1, 9), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_tiered_topics_lose_nothing(scenario: Scenario, seeds: range) -> None:
    """The store is slow, fails, and loses responses of conditional writes. Consumers read from offset 0 always."""
    options = Options(scenario=scenario, tiered=True)
    results = list(run_seeds(seeds, options, processes=os.cpu_count() or 1))
    assert [str(each.violation) for each in results if not each.ok] == []
    assert all(each.acked for each in results)


def test_uploads_that_were_cut_off_are_continued() -> None:
    events: list[Event] = []
    result = simulate(3, Options(scenario=Scenario.MIXED, tiered=True, log_level=logging.INFO), events.append)
    assert result.ok, result.violation
    assert any("upload_continued" in str(event) for event in events), "the store has segments in parts with this seed"


@pytest.mark.parametrize("seeds", [range(1, 4), pytest.param(range(100, 120), marks=pytest.mark.slow)], ids=str)
def test_nodes_of_two_versions_fit_together(seeds: range) -> None:
    """Each start of a node is one of the earlier or of the newest version. What is new is never written: otherwise a
    node of the earlier version would not start any more. After the faults the upgrade is ended, and the controller that
    wrote what is new dies."""
    results = list(run_seeds(seeds, Options(scenario=Scenario.MIXED, mixed_versions=True), processes=2))
    assert [str(each.violation) for each in results if not each.ok] == []
    assert all(each.acked for each in results)


def test_a_seed_whose_process_ends_is_named_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(seed: int, options: Options) -> Result:
        if seed == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if seed == 5:
            os._exit(7)
        return Result(seed)

    monkeypatch.setattr(seeds_module, "simulate", run)
    results = list(run_seeds(range(1, 9), Options(), processes=2))
    assert [each.seed for each in results] == list(range(1, 9))
    failed = {each.seed: str(each.violation) for each in results if not each.ok}
    assert set(failed) == {3, 5} and "SIGKILL" in failed[3] and "exit code 7" in failed[5]


def test_the_processes_of_seeds_end_with_their_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeds_module, "simulate", lambda seed, options: Result(seed))
    results = run_seeds(iter(range(1, 1000)), Options(), processes=2)
    assert next(results).seed == 1
    results.close()  # type: ignore[attr-defined]  # it is a generator
    assert multiprocessing.active_children() == []


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("scenario", "seeds"),
    [
        (Scenario.MIXED, (111, 122)),
        pytest.param(Scenario.MIXED, range(100, 130), marks=pytest.mark.slow),
        (Scenario.POWER, (1,)),
        pytest.param(Scenario.POWER, range(2, 9), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_nodes_with_several_log_directories_lose_nothing(scenario: Scenario, seeds: Iterable[int]) -> None:
    """Logs move between the directories, also while the node is killed or loses power; single directories fail."""
    options = Options(scenario=scenario, disks=2)
    results = list(run_seeds(seeds, options, processes=os.cpu_count() or 1))
    assert [str(each.violation) for each in results if not each.ok] == []
    assert all(each.acked for each in results)


def test_a_failed_log_directory_that_is_not_reported_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BrokerLifecycle, "directory_failed", lambda self, directory_id: None)
    result = simulate(111, Options(scenario=Scenario.MIXED, disks=2))
    assert result.violation is not None
