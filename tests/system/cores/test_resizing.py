"""More and fewer nodes on one directory: logs are renamed, everything is there, also after kill -9 at each step."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.admin.cluster import ClusterAdmin
from millstream.cli.cores.resizing import Resizing
from millstream.config.loading import load_broker_config
from millstream.raw_client import Cluster
from tests.system.cores.machine import Machine
from tests.waiting import until

PARTITIONS = 4


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.kill_all()


def inodes(data: Path) -> dict[str, int]:
    """The file of the first segment of each partition, wherever it is."""
    return {
        f"{path.parent.name}/{path.name}": path.stat().st_ino
        for path in data.rglob("*.log")
        if path.parent.name.startswith("t-")
    }


def brokers(machine: Machine) -> list[int]:
    with Cluster(machine.bootstrap) as cluster:
        return [each.id for each in ClusterAdmin(cluster).describe().brokers]


def test_grow_and_shrink(machine: Machine) -> None:
    expected: list[str] = []
    files: dict[str, int] = {}
    for cores in (1, 2, 3, 1):
        machine.start(cores)
        if not expected:
            machine.create("t", PARTITIONS)
        until(lambda cores=cores: len(brokers(machine)) == cores, "the brokers are not those of the nodes")  # type: ignore[misc]
        assert machine.read("t", PARTITIONS, len(expected)) == sorted(expected)
        values = [f"{cores}-{len(expected)}-{number}" for number in range(20)]
        machine.produce("t", values, PARTITIONS)
        expected += values
        assert machine.read("t", PARTITIONS, len(expected)) == sorted(expected)
        holders = [machine.data, *sorted((machine.data / "cores").glob("?"))]
        assert len(holders) == cores
        held = [sum(path.name.startswith("t-") for path in holder.iterdir()) for holder in holders]
        assert sum(held) == PARTITIONS and max(held) - min(held) <= 1, held
        assert machine.stop() == 0
        now = inodes(machine.data)
        assert all(now[name] == number for name, number in files.items()), "a log was copied"
        files = now
    assert not (machine.data / "cores").exists()
    assert not list(machine.data.glob("handover.json"))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A directory of one node with records, which stopped cleanly."""
    machine = Machine(tmp_path_factory.mktemp("prepared"))
    machine.start(1)
    machine.create("t", PARTITIONS)
    values = [f"r{number}" for number in range(40)]
    machine.produce("t", values, PARTITIONS)
    machine.stop()
    return machine.data, sorted(values)


STEPS = ["plan", "marks", "checkpoints 2", "rename t-", "rename t-", "handover 1", "handover 2"]


@pytest.mark.parametrize(
    "killed_after",
    [pytest.param(step, marks=() if step in (0, 3) else pytest.mark.slow) for step in range(len(STEPS))],
)
def test_a_change_that_was_killed_is_completed(
    killed_after: int, prepared: tuple[Path, list[str]], machine: Machine
) -> None:
    data, values = prepared
    shutil.copytree(data, machine.data)
    clean = killed_after % 2 == 0
    if not clean:
        (machine.data / ".kafka_cleanshutdown").unlink()  # the one node was killed too
    config = load_broker_config(data_dir=str(machine.data))
    with Resizing(config, 2) as resizing:
        steps = resizing.steps()
        done = [next(steps) for _ in range(killed_after + 1)]
        steps.close()
    assert [step.rstrip("0123") if step.startswith("rename") else step for step in done] == STEPS[: killed_after + 1]
    machine.start(2)
    assert machine.read("t", PARTITIONS, len(values)) == values
    assert machine.stop() == 0
    assert not list(machine.data.rglob("handover.json"))
    assert '"plan"' not in (machine.data / "cores" / "cores.json").read_text()


@pytest.mark.slow
def test_nodes_that_are_killed_during_the_change(prepared: tuple[Path, list[str]], machine: Machine) -> None:
    """At the registration of each node, grow and shrink; then once more with another number, which is refused."""
    data, values = prepared
    shutil.copytree(data, machine.data)
    for cores, event in (
        (2, "broker_registered broker=1 "),
        (2, "broker_registered broker=1001 "),
        (1, "broker_registered broker=1 "),
    ):
        seen = machine.log().count(event)
        machine.spawn(cores)
        until(lambda event=event, seen=seen: machine.log().count(event) > seen, event)  # type: ignore[misc]
        machine.kill_all()
        if cores == 1:
            break
        if (machine.data / "cores" / "cores.json").read_text().count('"plan"'):
            machine.refuse(3)
            assert "is not complete: start it once with --cores 2" in machine.log()
        machine.start(2)
        assert machine.read("t", PARTITIONS, len(values)) == values
        machine.kill_all()
    machine.start(1)
    assert machine.read("t", PARTITIONS, len(values)) == values
    until(lambda: brokers(machine) == [1], "the node that is gone is still registered")


@pytest.mark.slow
def test_two_replicas_on_one_machine_become_one(machine: Machine) -> None:
    machine.start(2)
    machine.create("twice", 2, replicas=2)
    machine.produce("twice", [f"r{n}" for n in range(10)], 2)
    machine.stop()
    machine.start(1)
    assert machine.read("twice", 2, 10) == sorted(f"r{n}" for n in range(10))
    with Cluster(machine.bootstrap) as cluster:
        assert {each.replicas for each in ClusterAdmin(cluster).partitions() if each.topic == "twice"} == {(1,)}
    until(lambda: brokers(machine) == [1], "the node that is gone is still registered")
    assert machine.log().count("folder_kept") == 1


def test_a_directory_in_use_is_not_changed(machine: Machine) -> None:
    machine.start(1)
    os.makedirs(machine.data / "cores", exist_ok=True)
    config = load_broker_config(data_dir=str(machine.data))
    with Resizing(config, 2) as resizing, pytest.MonkeyPatch.context() as patch:
        patch.setattr("millstream.cli.cores.resizing._PREDECESSOR_TIMEOUT_SECONDS", 0.0)
        with pytest.raises(Exception, match="is in use by another broker"):
            resizing.run()
    assert not (machine.data / "cores" / "cores.json").exists()
