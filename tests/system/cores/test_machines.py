"""Three machines with two nodes each: one that dies takes both, and writes go on; one grows; one is drained."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.admin.cluster import ClusterAdmin
from millstream.raw_client import Cluster
from millstream.testing.node_process import free_port_range, free_ports
from tests.system.cores.machine import Machine
from tests.waiting import TIMEOUT_SECONDS, until

pytestmark = pytest.mark.slow
PARTITIONS = 6


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[list[Machine]]:
    controllers = free_ports(3)
    voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(controllers, 1))
    made = []
    for number, controller in enumerate(controllers, 1):
        directory = tmp_path / str(number)
        directory.mkdir()
        port = free_port_range(4)
        (directory / "server.properties").write_text(
            f"node.id={number}\nprocess.roles=broker,controller\ncontroller.quorum.voters={voters}\n"
            f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n"
            "controller.listener.names=CONTROLLER\ndefault.replication.factor=3\nmin.insync.replicas=2\n"
            f"log.dirs={directory / 'data'}\n"
        )
        machine = Machine(directory, "--config", str(directory / "server.properties"))
        machine.data = directory / "data"
        made.append(machine)
    processes = [machine.spawn(2) for machine in made]
    for machine, process in zip(made, processes, strict=True):
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready kafka="), machine.log()[-2000:]
        machine.bootstrap = line.split()[1].removeprefix("kafka=")
    together = ",".join(machine.bootstrap for machine in made)
    for machine in made:
        machine.bootstrap = together
    yield made
    for machine in made:
        machine.kill_all()


def replicas(machine: Machine, topic: str) -> list[tuple[int, ...]]:
    with Cluster(machine.bootstrap) as cluster:
        return [each.replicas for each in ClusterAdmin(cluster).partitions() if each.topic == topic]


def command(machine: Machine, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "millstream", *words, "-b", machine.bootstrap, "--timeout", "60"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )


def test_a_machine_dies_and_another_number_of_nodes_joins(machines: list[Machine]) -> None:
    first, second, third = machines
    first.create("t", PARTITIONS, replicas=3)
    for each in replicas(first, "t"):
        assert {number % 1000 for number in each} == {1, 2, 3}, each
    expected = [f"a{number}" for number in range(60)]
    first.produce("t", expected, PARTITIONS)

    second.kill_all()
    more = [f"b{number}" for number in range(60)]
    first.produce("t", more, PARTITIONS)  # acks=all with two of three machines
    expected += more
    assert first.read("t", PARTITIONS, len(expected)) == sorted(expected)

    ready = second.start(3)  # and with one node more
    second.bootstrap = f"{first.bootstrap},{ready.split()[1].removeprefix('kafka=').split(',')[-1]}"
    until(lambda: {n for each in replicas(first, "t") for n in each} >= {2002}, "the new node has no replica")
    for each in replicas(first, "t"):
        assert {number % 1000 for number in each} == {1, 2, 3}, each

    def is_well() -> bool:
        return command(first, "cluster", "status").returncode == 0

    until(is_well, "the cluster does not recover")
    third.kill_all()  # now the copies of the second machine count
    first.produce("t", ["c"], 1)
    expected.append("c")
    assert first.read("t", PARTITIONS, len(expected)) == sorted(expected)

    plan = command(first, "broker", "drain", "--machine", "machine-3", "--dry-run", "--json")
    if plan.returncode == 0:  # two machines cannot take the third replicas without sharing
        moves = json.loads(plan.stdout)["moves"]
        assert all(not {3, 1003} & set(move["to"]) for move in moves)
