"""Real nodes, real clients, real faults: nothing acknowledged is lost, doubled, reordered or unreadable.

One campaign with a fault of each kind is part of every test run and takes about a minute and a half; `make test-all`
has every fault, and twenty more minutes with other seeds, and with five nodes. Every campaign runs in a process and in
namespaces of its own.
"""

import subprocess
from pathlib import Path

import pytest

from tests.previous_version import NoSourceError, previous_source
from tests.repository import REPOSITORY
from tests.system.chaos import containment, nemeses
from tools import apache_kafka, install_test_clients

SECONDS = 90
FEWER_RECORDS = ("--rate", "50")
"""In `make test`: a third of the load. The CPU time of a campaign is mostly that of its clients."""
OF_EACH_KIND = (
    nemeses.KillLeader,
    nemeses.KillMajority,
    nemeses.PauseLeader,
    nemeses.PartitionLeader,
    nemeses.MuteNode,
    nemeses.RollingRestart,
    nemeses.FullDisk,
    nemeses.EioOnWrite,
    nemeses.EioOnRead,
    nemeses.CorruptTail,
)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command, environment = containment.command(arguments)
    return subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True)


def campaign(seed: int, directory: Path, *more: str, nodes: int = 3, seconds: int = SECONDS) -> None:
    arguments = ["--seed", str(seed), "--seconds", str(seconds), "--nodes", str(nodes), "--keep", str(directory), *more]
    done = run(*arguments)
    print(done.stdout)
    assert done.returncode == 0, f"python -m tests.system.chaos {' '.join(arguments)}\n{done.stdout}\n{done.stderr}"


@pytest.mark.timeout(900)
def test_one_fault_of_each_kind(tmp_path: Path) -> None:
    """Each once, however long it takes."""
    only = [word for each in OF_EACH_KIND for word in ("--only", each.__name__)]
    campaign(1, tmp_path, *only, *FEWER_RECORDS, seconds=1)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_histories_are_right_under_every_fault(tmp_path: Path) -> None:
    campaign(1, tmp_path)


@pytest.mark.timeout(300)
def test_no_client_notices_new_certificates(tmp_path: Path) -> None:
    """New certificates for all nodes under load, which no client may notice."""
    campaign(1, tmp_path, "--secured", "--only", "ReplaceCertificates", *FEWER_RECORDS, seconds=1)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_faults_of_a_secured_cluster(tmp_path: Path) -> None:
    only = ["ReplaceCertificates", "KillLeader", "PartitionController"]
    campaign(2, tmp_path, "--secured", *(word for name in only for word in ("--only", name)), seconds=1)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_tiered_topic_and_its_store(tmp_path: Path) -> None:
    """The store is killed, slow and failing, leaders are killed while they write to it; a reader begins at offset 0
    again and again."""
    try:
        install_test_clients.versitygw()
    except apache_kafka.ToolchainMissingError as reason:
        pytest.skip(f"S3 server: {reason}")
    chosen: list[type[nemeses.Nemesis]] = [*nemeses.OF_TIERED, nemeses.KillLeader, nemeses.KillEverybody]
    only = [each.__name__ for each in chosen]
    campaign(3, tmp_path, "--tiered", *(word for name in only for word in ("--only", name)), seconds=1)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", (4, 5))
def test_histories_are_right_through_upgrades_and_rollbacks(tmp_path: Path, seed: int) -> None:
    """Nodes begin with the previous version and change between the two, with other faults at clusters of both; then
    the upgrade is ended."""
    try:
        previous_source(tmp_path / "source")
    except NoSourceError as reason:
        pytest.skip(str(reason))
    chosen: list[type[nemeses.Nemesis]] = [*nemeses.OF_UPGRADES, nemeses.KillLeader, nemeses.KillController]
    chosen += [nemeses.KillMajority, nemeses.PartitionLeader, nemeses.CorruptTail]
    only = [word for each in chosen for word in ("--only", each.__name__)]
    campaign(seed, tmp_path, "--upgrades", *only, *FEWER_RECORDS, seconds=1)


@pytest.mark.timeout(300)
def test_data_that_is_really_lost_is_noticed(tmp_path: Path) -> None:
    """The same damage to a node that has no replicas to be healed from: everything that watches must cry out."""
    done = run("--nodes", "1", "--only", "CorruptTail", *FEWER_RECORDS, "--seconds", "1", "--keep", str(tmp_path))
    assert done.returncode == 1, f"{done.stdout}\n{done.stderr}"
    assert "INCONSISTENT_OFFSET" in done.stdout or "LOST_WRITE" in done.stdout, done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(101, 107))
def test_histories_are_right_under_many_faults(tmp_path: Path, seed: int) -> None:
    campaign(seed, tmp_path, seconds=150)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", (201, 202))
def test_many_faults_with_five_nodes(tmp_path: Path, seed: int) -> None:
    campaign(seed, tmp_path, nodes=5, seconds=150)
