"""Logs that do not fit the metadata: none is ever removed, and what belongs to a topic is found again."""

import os
import shutil
from pathlib import Path

from millstream.testing import EmbeddedBroker
from tests.system.faults.conftest import TOPIC, read_numbers, write_numbers
from tests.waiting import until
from tests.wire import Wire


def fill(broker: EmbeddedBroker, count: int = 10) -> Path:
    with Wire(broker.bootstrap_servers) as wire:
        wire.create_topic(TOPIC)
        write_numbers(wire, count)
    return broker.data_dir / f"{TOPIC}-0"


def strays(broker: EmbeddedBroker) -> list[Path]:
    return sorted(broker.data_dir.glob("*-stray"))


def test_a_log_whose_topic_id_is_lost_is_adopted(broker: EmbeddedBroker) -> None:
    directory = fill(broker)
    expected = (directory / "partition.metadata").read_bytes()
    broker.kill()
    (directory / "partition.metadata").write_bytes(b"")
    broker.start()
    assert read_numbers(broker.bootstrap_servers) == list(range(10))
    assert (directory / "partition.metadata").read_bytes() == expected
    assert strays(broker) == []


def test_a_log_of_another_topic_of_the_same_name_is_kept_aside(broker: EmbeddedBroker) -> None:
    directory = fill(broker)
    for stop in (broker.stop, broker.kill):
        stop()
        content = (directory / f"{0:020d}.log").read_bytes()
        (directory / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAg\n")
        broker.start()
        assert read_numbers(broker.bootstrap_servers) == []
        assert [(path / f"{0:020d}.log").read_bytes() for path in strays(broker)][-1] == content
        with Wire(broker.bootstrap_servers) as wire:
            write_numbers(wire, 3)
    assert len(strays(broker)) == 2


def test_directories_that_no_topic_knows_are_kept_aside(broker: EmbeddedBroker) -> None:
    directory = fill(broker)
    broker.kill()
    shutil.copytree(directory, broker.data_dir / "deleted-0")
    shutil.copytree(directory, broker.data_dir / f"{TOPIC}-1")  # the topic has one partition
    broker.start()
    names = [path.name for path in strays(broker)]
    assert [name.partition(".")[0] for name in names] == [f"{TOPIC}-1", "deleted-0"]
    log = broker.log_file.read_text()
    for name in names:
        (line,) = [line for line in log.splitlines() if name in line and "stray_log_set_aside" in line]
        assert "kept" in line and "removed by hand" in line
    assert (broker.data_dir / "__cluster_metadata-0").exists()
    assert read_numbers(broker.bootstrap_servers) == list(range(10))
    broker.restart()
    assert [path.name for path in strays(broker)] == names


def test_new_settings_reach_logs_that_only_maintenance_has_opened(broker: EmbeddedBroker) -> None:
    directory = fill(broker)
    broker.restart()
    log = directory / f"{0:020d}.log"
    files = Path(f"/proc/{broker.pid}/fd")
    until(lambda: log in [Path(os.readlink(each)) for each in files.iterdir() if each.is_symlink()])  # maintenance
    with Wire(broker.bootstrap_servers) as wire:
        settings = [{"name": "retention.bytes", "config_operation": 0, "value": "0"}]
        rows = [{"resource_type": 2, "resource_name": TOPIC, "configs": settings}]
        response = wire.call("incremental_alter_configs", 1, resources=rows, validate_only=False)
        assert response.responses[0].error_code == 0
    until(lambda: not log.exists())
    assert (directory / f"{10:020d}.log").exists()
