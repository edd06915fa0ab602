"""Nodes with two log directories each: one directory fails; Kafka's tools and ours move replicas between them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.admin.cluster import ClusterAdmin, LogDirectory
from millstream.raw_client import Cluster
from millstream.testing import EmbeddedCluster
from tests.failing_disk import SYNC, WRITE, FailingDisks, can_be_built
from tests.system.cluster.conftest import Writer, create_topic, described, eventually
from tests.system.cluster.kafka_tools import KafkaTools
from tests.system.cluster.test_failover import check_nothing_lost
from tests.system.faults.test_failing_disk import _write
from tests.waiting import TIMEOUT_SECONDS, until
from tools import apache_kafka

pytestmark = pytest.mark.skipif(not can_be_built(), reason="needs gcc, to build the library that lets disks fail")
PARTITIONS = 6


def _first(root: Path, number: int) -> Path:
    return root / f"node-{number}" / "data"


def _second(root: Path, number: int) -> Path:
    return root / f"node-{number}" / "disk2"


@pytest.fixture
def disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FailingDisks:
    made = FailingDisks(tmp_path)
    for name, value in made.environment(*(_second(tmp_path, number) for number in (1, 2, 3))).items():
        monkeypatch.setenv(name, value)
    return made


@pytest.fixture
def cluster(tmp_path: Path, disks: FailingDisks) -> Iterator[EmbeddedCluster]:
    own = {number: {"log.dirs": f"{_first(tmp_path, number)},{_second(tmp_path, number)}"} for number in (1, 2, 3)}
    with EmbeddedCluster(3, {"min.insync.replicas": 2}, node_settings=own, data_dir=tmp_path) as running:
        yield running


def _directories(cluster: EmbeddedCluster, number: int) -> dict[str, LogDirectory]:
    admin = ClusterAdmin(Cluster(cluster.bootstrap_servers))
    found = admin.log_directories(admin.read().broker(number)).directories
    return {each.path: each for each in found}


def _partitions(directory: LogDirectory) -> set[int]:
    return {at.partition for at in directory.sizes if at.topic == "t"}


def _led_by(cluster: EmbeddedCluster, number: int) -> set[int]:
    state = ClusterAdmin(Cluster(cluster.bootstrap_servers)).read()
    return {each.topic_partition.partition for each in state.partitions if each.topic == "t" and each.leader == number}


def test_a_failed_directory_takes_only_its_replicas_offline_and_comes_back(
    cluster: EmbeddedCluster, disks: FailingDisks, tmp_path: Path
) -> None:
    create_topic(cluster, "t", partitions=PARTITIONS)
    writer = Writer(cluster.bootstrap_servers)
    _write(writer, 0)
    held = _directories(cluster, 2)
    kept, lost = (_partitions(held[str(path(tmp_path, 2))]) for path in (_first, _second))
    assert kept and lost and kept | lost == set(range(PARTITIONS))
    led = _led_by(cluster, 2) & kept

    disks.fail(_second(tmp_path, 2), WRITE, SYNC)
    _write(writer, 1)
    eventually(lambda: _is_offline(cluster, 2, str(_second(tmp_path, 2))))
    eventually(lambda: _leads(cluster, 2, led, lost))
    assert cluster.running(2)
    for partition in lost:  # the other replicas are in sync, those of the other directory are all
        eventually(lambda: _in_sync(cluster, partition, {1, 3}))  # noqa: B023
    for partition in kept:
        assert _isr(cluster, partition) == {1, 2, 3}

    disks.heal(_second(tmp_path, 2))
    eventually(lambda: described(cluster, "t", in_sync=3))
    _write(writer, 2)
    assert not writer.errors, writer.errors
    check_nothing_lost(cluster, "t", writer)
    again = _directories(cluster, 2)
    assert _partitions(again[str(_second(tmp_path, 2))]) == lost


def _is_offline(cluster: EmbeddedCluster, number: int, path: str) -> None:
    assert _directories(cluster, number)[path].is_offline


def _leads(cluster: EmbeddedCluster, number: int, some: set[int], none_of: set[int]) -> None:
    led = _led_by(cluster, number)
    assert some <= led and not led & none_of, led


def _isr(cluster: EmbeddedCluster, partition: int) -> set[int]:
    state = ClusterAdmin(Cluster(cluster.bootstrap_servers)).read()
    (found,) = [e for e in state.partitions if e.topic == "t" and e.topic_partition.partition == partition]
    return set(found.isr)


def _in_sync(cluster: EmbeddedCluster, partition: int, wanted: set[int]) -> None:
    assert _isr(cluster, partition) == wanted


def test_tools_move_replicas_between_directories(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    create_topic(cluster, "t", partitions=PARTITIONS)
    writer = Writer(cluster.bootstrap_servers)
    _write(writer, 0)
    held = _directories(cluster, 1)
    here, there = str(_first(tmp_path, 1)), str(_second(tmp_path, 1))
    source, target = (here, there) if 0 in _partitions(held[here]) else (there, here)
    try:
        tools = KafkaTools(tmp_path / "tools.log")
    except apache_kafka.ToolchainMissingError as error:
        pytest.skip(str(error))
    try:
        plan = tmp_path / "plan.json"
        row = {"topic": "t", "partition": 0, "replicas": [1, 2, 3], "log_dirs": [target, "any", "any"]}
        plan.write_text(json.dumps({"version": 1, "partitions": [row]}))
        options = ("--bootstrap-server", cluster.bootstrap_servers, "--reassignment-json-file", str(plan))
        assert "Successfully started" in tools("kafka-reassign-partitions", "--execute", *options)
        until(lambda: 0 in _partitions(_directories(cluster, 1)[target]), "the replica did not move")
        assert 0 not in _partitions(_directories(cluster, 1)[source])
        assert "completed successfully" in tools("kafka-reassign-partitions", "--verify", *options)
        here_only = ("--bootstrap-server", cluster.bootstrap_servers, "--describe", "--broker-list", "1")
        said = tools("kafka-log-dirs", *here_only)
        (broker,) = json.loads(said.splitlines()[-1])["brokers"]
        found = {each["logDir"]: {row["partition"] for row in each["partitions"]} for each in broker["logDirs"]}
        assert "t-0" in found[target] and "t-0" not in found[source]
    finally:
        tools.close()
    command = [sys.executable, "-m", "millstream", "broker", "disks", "1", "--move", "t-0", source]
    moved = subprocess.run(
        [*command, "--bootstrap", cluster.bootstrap_servers, "--json"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert moved.returncode == 0, moved.stderr
    assert {row["directory"]: row["state"] for row in json.loads(moved.stdout)} == {here: "online", there: "online"}
    assert 0 in _partitions(_directories(cluster, 1)[source])
    _write(writer, 1)
    check_nothing_lost(cluster, "t", writer)
