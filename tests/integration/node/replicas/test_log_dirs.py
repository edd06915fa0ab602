"""A broker with several log directories: placement, moves while records are written, crashes, failed directories."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.admin.cluster import ClusterAdmin, LogDirectory
from millstream.admin.topics import TopicAdmin
from millstream.raw_client import LATEST, Cluster, WireError
from millstream.raw_client import TopicPartition as Partition
from millstream.raw_client.errors import RefusedError
from millstream.testing import EmbeddedBroker
from millstream.testing.node_process import NodeProcessError
from tests.waiting import TIMEOUT_SECONDS, until
from tests.wire import Wire, batch

ORDERS = Partition("orders", 0)
SETTINGS = {"log.segment.bytes": 1 << 20, "offsets.topic.num.partitions": 2}


@pytest.fixture
def disks(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "disk1", tmp_path / "disk2"


@pytest.fixture
def broker(disks: tuple[Path, Path]) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(SETTINGS, data_dir=f"{disks[0]},{disks[1]}") as running:
        yield running


def _admin(broker: EmbeddedBroker) -> ClusterAdmin:
    return ClusterAdmin(Cluster(broker.bootstrap_servers))


def _directories(broker: EmbeddedBroker) -> dict[str, LogDirectory]:
    admin = _admin(broker)
    (only,) = admin.read().brokers
    return {each.path: each for each in admin.log_directories(only).directories}


def _home(broker: EmbeddedBroker, at: Partition) -> str:
    (found,) = [path for path, each in _directories(broker).items() if at in each.sizes]
    return found


def _create(broker: EmbeddedBroker, name: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(name, partitions, 1)], operation_timeout=TIMEOUT_SECONDS)[name].result(
        TIMEOUT_SECONDS
    )


class Writer:
    """Writes numbered records until it is stopped, each acknowledged."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._producer = Producer(
            {"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True, "linger.ms": 5}
        )
        self.acked = 0
        self.errors: list[object] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stopped.is_set():
            for _ in range(100):
                self._producer.produce("orders", f"{number:08d}".encode() + bytes(500), on_delivery=self._delivered)
                number += 1
            self._producer.flush(TIMEOUT_SECONDS)
            self._stopped.wait(0.01)  # the moves need the processor too

    def _delivered(self, error: object, message: object) -> None:
        if error is None:
            self.acked += 1
        else:
            self.errors.append(error)

    def stop(self) -> int:
        self._stopped.set()
        self._thread.join(TIMEOUT_SECONDS)
        assert not self.errors, self.errors[:3]
        return self.acked


def _read(broker: EmbeddedBroker, count: int) -> list[int]:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    try:
        consumer.assign([TopicPartition("orders", 0, 0)])
        found: list[int] = []
        while len(found) < count:
            for message in consumer.consume(1000, 0.5):
                value = message.value()
                assert message.error() is None and value is not None
                found.append(int(value[:8]))
        return found
    finally:
        consumer.close()


def _move(broker: EmbeddedBroker, at: Partition, path: str) -> None:
    _admin(broker).move_to_directory(1, at, path)


def test_new_replicas_are_spread_and_stay_where_they_are(broker: EmbeddedBroker, disks: tuple[Path, Path]) -> None:
    _create(broker, "spread", 10)
    before = {path: set(each.sizes) for path, each in _directories(broker).items()}
    assert [len(before[str(disk)]) for disk in disks] == [5, 5]
    broker.restart()
    assert {path: set(each.sizes) for path, each in _directories(broker).items()} == before
    broker.kill()
    broker.start()
    assert {path: set(each.sizes) for path, each in _directories(broker).items()} == before
    for disk in disks:
        assert "directory.id=" in (disk / "meta.properties").read_text()


def test_directories_that_the_settings_file_cordons_get_nothing_new(disks: tuple[Path, Path]) -> None:
    both = f"{disks[0]},{disks[1]}"
    with EmbeddedBroker({**SETTINGS, "cordoned.log.dirs": str(disks[0])}, data_dir=both) as broker:
        _create(broker, "orders", 4)
        found = _directories(broker)
        assert [each.is_cordoned for each in found.values()] == [True, False]
        assert [len(each.sizes) for each in found.values()] == [0, 4]
    with EmbeddedBroker({**SETTINGS, "cordoned.log.dirs": "*"}, data_dir=both) as broker:
        with pytest.raises(KafkaException, match="cordoned"):
            _create(broker, "more", 1)
        _admin(broker).alter_configs({}, {broker_id(broker): {"cordoned.log.dirs": ""}})
        _create(broker, "more", 1)  # a value that is set while the broker runs counts before the file
    with pytest.raises(NodeProcessError, match="none of the log directories"):
        EmbeddedBroker({"cordoned.log.dirs": "/elsewhere"}, data_dir=both).start()


def broker_id(broker: EmbeddedBroker) -> int:
    (only,) = _admin(broker).read().brokers
    return only.id


def test_a_log_moves_while_it_is_written_and_is_whole_after_a_crash(
    broker: EmbeddedBroker, disks: tuple[Path, Path]
) -> None:
    _create(broker, "orders", 1)
    writer = Writer(broker)
    until(lambda: writer.acked > 3000)
    for _ in range(3):
        home = _home(broker, ORDERS)
        (target,) = [str(disk) for disk in disks if str(disk) != home]
        _move(broker, ORDERS, target)
        until(lambda: _home(broker, ORDERS) == target, "the log did not move")  # noqa: B023
        seen = writer.acked
        until(lambda: writer.acked > seen + 500, "nothing is written after the move")  # noqa: B023
        until(lambda: not os.path.exists(f"{home}/orders-0"), "the old log is still there")  # noqa: B023
    count = writer.stop()
    assert _read(broker, count) == list(range(count))
    broker.kill()
    broker.start()
    assert _home(broker, ORDERS) == target
    assert _read(broker, count) == list(range(count))
    assert not [name for disk in disks for name in os.listdir(disk) if name.endswith(("-future", "-delete", "-stray"))]


def _refuses_moves_that_cannot_be_made(broker: EmbeddedBroker, disks: tuple[Path, Path]) -> None:
    with pytest.raises(RefusedError, match="has no log directory /nowhere"):
        _move(broker, ORDERS, "/nowhere")
    with pytest.raises(RefusedError, match="has no replica of unknown-7"):
        _move(broker, Partition("unknown", 7), str(disks[0]))
    _move(broker, ORDERS, _home(broker, ORDERS))  # it is there: nothing to do


def test_a_directory_that_cannot_be_used_takes_only_its_replicas_offline(
    broker: EmbeddedBroker, disks: tuple[Path, Path]
) -> None:
    """The metadata log is in the first directory, so the node runs without the second."""
    _create(broker, "spread", 4)
    held = {path: sorted(each.sizes) for path, each in _directories(broker).items()}
    broker.stop()
    parked = disks[1].with_name("parked")
    disks[1].rename(parked)
    disks[1].write_text("not a directory")
    broker.start()
    found = _directories(broker)
    assert found[str(disks[1])].is_offline and sorted(found[str(disks[0])].sizes) == held[str(disks[0])]
    served = {at.partition for at in held[str(disks[0])] if at.topic == "spread"}
    for number in range(4):
        if number in served:
            until(lambda: _writes(broker, number), f"partition {number} is not served")  # noqa: B023
        else:
            assert not _writes(broker, number)
    # The disk comes back: the broker notices without a restart.
    disks[1].unlink()
    parked.rename(disks[1])
    until(lambda: not _directories(broker)[str(disks[1])].is_offline, "the directory is not used again")
    for number in sorted(set(range(4)) - served):
        until(lambda: _writes(broker, number), f"partition {number} has no leader")  # noqa: B023
    assert {path: sorted(each.sizes) for path, each in _directories(broker).items()} == held


def test_a_branch_is_in_the_directories_of_its_parent_and_whole_after_a_kill(
    broker: EmbeddedBroker, disks: tuple[Path, Path]
) -> None:
    """The broker is killed as soon as a part of the branch is seen on a disk."""
    partitions = 10
    _create(broker, "spread", partitions)
    for number in range(partitions):
        until(lambda: _writes(broker, number), f"partition {number} is not served")  # noqa: B023

    def branch() -> None:
        try:
            TopicAdmin(Cluster(broker.bootstrap_servers)).branch("spread", "copy")
        except (WireError, OSError):
            pass  # the broker was killed

    asking = threading.Thread(target=branch)
    asking.start()
    until(lambda: any(list(disk.glob("copy-*")) for disk in disks), "no part of the branch is there")
    broker.kill()
    asking.join(TIMEOUT_SECONDS)
    broker.start()
    places = [Partition("copy", number) for number in range(partitions)]

    def is_made() -> bool:
        found = Cluster(broker.bootstrap_servers).offsets(dict.fromkeys(places, LATEST))
        return [found[place].offset for place in places] == [1] * partitions

    until(is_made, "the branch is not made")
    homes = {path: {(at.topic, at.partition) for at in each.sizes} for path, each in _directories(broker).items()}
    for path, held in homes.items():
        for number in range(partitions):
            assert (("copy", number) in held) == (("spread", number) in held)
            if ("copy", number) in held:
                first = f"{0:020d}.log"
                assert os.stat(Path(path) / f"copy-{number}" / first).st_nlink == 2


def _writes(broker: EmbeddedBroker, partition: int) -> bool:
    with Wire(broker.bootstrap_servers) as wire:
        return int(wire.produce("spread", batch(b"x"), partition).error_code) == 0


def test_refused_moves_a_second_copy_of_a_log_and_a_directory_of_another_node(
    broker: EmbeddedBroker, disks: tuple[Path, Path]
) -> None:
    _create(broker, "orders", 1)
    _refuses_moves_that_cannot_be_made(broker, disks)
    home = _home(broker, ORDERS)
    broker.stop()
    (other,) = [str(disk) for disk in disks if str(disk) != home]
    shutil.copytree(f"{home}/orders-0", f"{other}/orders-0")
    broker.start()
    assert _home(broker, ORDERS) == home  # the directory that the controller knows
    assert [name for name in os.listdir(other) if name.startswith("orders-0.") and name.endswith("-stray")]
    broker.stop()
    properties = disks[1] / "meta.properties"
    properties.write_text(properties.read_text().replace("node.id=1", "node.id=7"))
    refused = subprocess.run(
        [
            sys.executable,
            "-m",
            "millstream",
            "serve",
            "--data-dir",
            f"{disks[0]},{disks[1]}",
            "--listen",
            "127.0.0.1:0",
        ],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert refused.returncode != 0 and f"{disks[1]} belongs to node 7, but node.id=1" in refused.stderr
