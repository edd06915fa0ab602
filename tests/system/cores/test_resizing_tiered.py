"""More and fewer nodes while topics are tiered: the tier goes with the logs. No folder is left because of its cache."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.system.cores.machine import Machine
from tests.waiting import TIMEOUT_SECONDS, until

PARTITIONS = 4


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    made._arguments = (
        *made._arguments,
        "--set", "remote.log.storage.system.enable=true",
        "--set", f"millstream.tier.url=file://{tmp_path}/tier",
        "--set", "remote.log.manager.task.interval.ms=100",
        "--set", "log.retention.check.interval.ms=100",
    )  # fmt: skip
    yield made
    made.kill_all()


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [False, True])
def test_tiered_records_stay_readable_when_the_number_of_nodes_changes(machine: Machine, is_killed: bool) -> None:
    expected: list[str] = []
    for cores in (1, 2, 1):
        machine.start(cores)
        if not expected:
            settings = {"remote.storage.enable": "true", "local.retention.bytes": "1", "internal.segment.bytes": "3000"}
            admin = AdminClient({"bootstrap.servers": machine.bootstrap, "log_level": 0})
            admin.create_topics([NewTopic("t", PARTITIONS, 1, config=settings)])["t"].result(TIMEOUT_SECONDS)
        assert machine.read("t", PARTITIONS, len(expected)) == sorted(expected), "from the tier"
        for part in range(8):
            values = [f"{cores}-{len(expected)}-{part}-{number}-{'x' * 100}" for number in range(40)]
            machine.produce("t", values, PARTITIONS)
            expected += values

        def is_tiered() -> bool:
            return all(
                len(list(path.glob("*.log"))) == 1 and not (path / f"{0:020d}.log").exists()
                for path in machine.data.rglob("t-?")
            )

        until(is_tiered, "the first segments are only in the tier")
        assert machine.read("t", PARTITIONS, len(expected)) == sorted(expected)
        assert len(list((machine.data / "cores").glob("?"))) == cores - 1, "the folder of a node that is gone"
        if is_killed:
            machine.kill_all()
        else:
            assert machine.stop() == 0
    assert "folder_kept" not in machine.log()
