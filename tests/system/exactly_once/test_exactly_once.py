"""Consume-transform-produce loops of three client libraries, while clients, coordinators and leaders are killed.

In every test run: forty seconds of it on three nodes. `make test-all` adds one node, and more than ten minutes with
other seeds. A single node that dies with open transactions is also what the `power` scenario of the simulator does.
Every campaign is a process of its own.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.repository import REPOSITORY
from tools import apache_kafka, install_test_clients


def run(seed: int, directory: Path, *options: str, nodes: int, seconds: int) -> subprocess.CompletedProcess[str]:
    arguments = ["--seed", str(seed), "--seconds", str(seconds), "--nodes", str(nodes), "--keep", str(directory)]
    command = [sys.executable, "-m", "tests.system.exactly_once", *arguments, *options]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    print(f"python {' '.join(command[1:])}\n{done.stdout}\n{done.stderr}")
    return done


def campaign(seed: int, directory: Path, *options: str, nodes: int, seconds: int) -> None:
    done = run(seed, directory, *options, nodes=nodes, seconds=seconds)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.timeout(600)
def test_records_are_copied_once_by_three_nodes(tmp_path: Path) -> None:
    campaign(1, tmp_path, nodes=3, seconds=40)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_records_are_copied_once_by_one_node(tmp_path: Path) -> None:
    campaign(2, tmp_path, nodes=1, seconds=12)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(101, 104))
def test_many_kills_on_three_nodes(tmp_path: Path, seed: int) -> None:
    campaign(seed, tmp_path, nodes=3, seconds=150)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", (0, 1))
def test_records_are_copied_once_by_earlier_transaction_versions(tmp_path: Path, version: int) -> None:
    campaign(301 + version, tmp_path, "--transaction-version", str(version), nodes=3, seconds=60)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_records_are_copied_once_by_franz_go(tmp_path: Path) -> None:
    campaign(401, tmp_path, "--library", "franz-go", nodes=3, seconds=60)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_records_are_copied_once_in_tiered_topics(tmp_path: Path) -> None:
    """Watchers and the last look read from offset 0; only the last segments are on the disks."""
    try:
        install_test_clients.versitygw()
    except apache_kafka.ToolchainMissingError as reason:
        pytest.skip(f"S3 server: {reason}")
    campaign(501, tmp_path, "--tiered", nodes=3, seconds=40)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_copiers_that_do_it_wrong_are_noticed(tmp_path: Path) -> None:
    """They commit offsets after their transactions: a program that is killed between the two copies its input again."""
    options = ("--careless", "--library", "confluent", "--only", "KillCopier")
    done = run(1, tmp_path, *options, nodes=1, seconds=15)
    assert done.returncode == 1
    assert "COPIED_TWICE" in done.stdout or "OFFSETS_DISAGREE" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_kills_on_one_node(tmp_path: Path) -> None:
    campaign(201, tmp_path, nodes=1, seconds=120)
