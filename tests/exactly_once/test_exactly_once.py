"""Consume-transform-produce loops of three client libraries, while clients, coordinators and leaders are killed.

In every test run: a minute of it on three nodes, and less on one. `make test-all` adds more than ten minutes with other
seeds. Every campaign is a process of its own.
"""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def campaign(seed: int, directory: Path, *, nodes: int, seconds: int, settings: tuple[str, ...] = ()) -> str:
    arguments = ["--seed", str(seed), "--seconds", str(seconds), "--nodes", str(nodes), "--keep", str(directory)]
    arguments += [text for each in settings for text in ("--set", each)]
    command = [sys.executable, "-m", "tests.exactly_once", *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0, f"python {' '.join(command[1:])}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.timeout(600)
def test_three_nodes(tmp_path: Path) -> None:
    campaign(1, tmp_path, nodes=3, seconds=60)


@pytest.mark.timeout(400)
def test_one_node(tmp_path: Path) -> None:
    campaign(2, tmp_path, nodes=1, seconds=20)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(101, 105))
def test_many_kills_on_three_nodes(tmp_path: Path, seed: int) -> None:
    campaign(seed, tmp_path, nodes=3, seconds=150)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", (201, 202))
def test_many_kills_on_one_node(tmp_path: Path, seed: int) -> None:
    campaign(seed, tmp_path, nodes=1, seconds=120)
