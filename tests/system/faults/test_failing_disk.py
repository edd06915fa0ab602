"""A disk that fails under one node of a real cluster: others lead, everyone can see why, and the node comes back."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.console.live.problems import broker_state
from millstream.console.live.watcher import Watcher
from millstream.formats.model.errors import ErrorCode
from millstream.raw_client import Cluster
from millstream.testing import EmbeddedBroker, EmbeddedCluster
from tests.failing_disk import READ, SYNC, TORN, WRITE, FailingDisks, can_be_built
from tests.system.cluster.conftest import Writer, create_topic, described, eventually, leader_of
from tests.system.cluster.kafka_tools import KafkaTools
from tests.system.cluster.test_failover import check_nothing_lost
from tests.waiting import TIMEOUT_SECONDS, until
from tests.wire import Closed, Wire, batch
from tools import apache_kafka

pytestmark = pytest.mark.skipif(not can_be_built(), reason="needs gcc, to build the library that lets disks fail")
PARTITIONS = 6


@pytest.fixture
def disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FailingDisks:
    """Those of the nodes that are started from here on."""
    made = FailingDisks(tmp_path)
    for name, value in made.environment(*(tmp_path / f"node-{number}" / "data" for number in (1, 2, 3))).items():
        monkeypatch.setenv(name, value)
    return made


@pytest.fixture
def cluster(tmp_path: Path, disks: FailingDisks) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(3, {"min.insync.replicas": 2}, data_dir=tmp_path) as running:
        yield running


@pytest.mark.parametrize("how", [(WRITE,), (TORN, SYNC), pytest.param((READ,), marks=pytest.mark.slow)])
def test_others_lead_while_the_disk_of_a_leader_fails(
    cluster: EmbeddedCluster, disks: FailingDisks, how: tuple[str, ...]
) -> None:
    create_topic(cluster, "t", partitions=PARTITIONS)
    victim = leader_of(cluster, "t")
    others = [number for number in cluster.nodes if number != victim]
    writer = Writer(cluster.bootstrap_servers)
    _write(writer, 0)

    disks.fail(cluster.data_dir(victim), *how)
    _write(writer, 1)  # every partition takes it: it is acknowledged, or the flush fails
    assert not writer.errors, writer.errors
    eventually(lambda: _nobody_leads_at(cluster, victim))

    directory = str(cluster.data_dir(victim))
    eventually(lambda: _is_named(cluster.address(others[0]), victim, directory))
    _console_names_it(cluster.address(others[0]), victim, directory)
    assert f'millstream_log_directory_offline{{directory="{directory}"}} 1' in _get(cluster.address(victim), "/metrics")
    assert "log directory offline" in _get(cluster.address(victim), "/readyz")
    with Wire(cluster.address(victim)) as wire:
        (described_directory,) = wire.call("describe_log_dirs", 4, topics=None).results
        assert described_directory.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert described_directory.log_dir == directory

    disks.heal(cluster.data_dir(victim))
    eventually(lambda: described(cluster, "t", in_sync=3))
    _write(writer, 2)
    check_nothing_lost(cluster, "t", writer)
    eventually(lambda: _is_well(cluster.address(victim)))
    assert cluster.running(victim)


def test_a_node_without_others_refuses_writes_says_why_and_takes_them_again(
    tmp_path: Path, disks: FailingDisks
) -> None:
    data = tmp_path / "node-1" / "data"
    with EmbeddedBroker(data_dir=data) as broker, Wire(broker.bootstrap_servers) as wire:
        wire.create_topic("t")
        assert wire.produce("t", batch(b"0")).error_code == 0
        disks.fail(data, WRITE)
        assert wire.produce("t", batch(b"lost")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        (directory,) = wire.call("describe_log_dirs", 4, topics=None).results
        assert (directory.error_code, directory.log_dir) == (ErrorCode.KAFKA_STORAGE_ERROR, str(data))
        said = _kafka_log_dirs(broker.bootstrap_servers, tmp_path)
        assert said is None or "KafkaStorageException" in said
        status = _status(broker.bootstrap_servers)
        assert status["brokers"][0]["offline_log_dirs"] == [str(data)]
        assert wire.fetch("t").error_code == 0  # what is there can be read
        disks.heal(data)
        assert wire.produce("t", batch(b"1")).error_code == 0  # without a restart
        eventually(lambda: _is_well(broker.bootstrap_servers))


def test_records_that_cannot_be_sent_to_a_consumer_take_the_directory_offline(
    tmp_path: Path, disks: FailingDisks
) -> None:
    """Large responses are sent from the file without being read by the process; its errors count all the same."""
    data = tmp_path / "node-1" / "data"
    with EmbeddedBroker(data_dir=data) as broker:
        with Wire(broker.bootstrap_servers) as wire:
            wire.create_topic("t")
            assert wire.produce("t", batch(os.urandom(900_000))).error_code == 0
            assert wire.fetch("t").error_code == 0
            disks.fail(data, READ)
            with pytest.raises(Closed):
                wire.fetch("t")
        with Wire(broker.bootstrap_servers) as wire:
            (directory,) = wire.call("describe_log_dirs", 4, topics=None).results
            assert (directory.error_code, directory.log_dir) == (ErrorCode.KAFKA_STORAGE_ERROR, str(data))
            disks.heal(data)
            eventually(lambda: _is_well(broker.bootstrap_servers))
            assert wire.fetch("t").error_code == 0


def _write(writer: Writer, round_: int) -> None:
    for number in range(50 * PARTITIONS):
        writer.send("t", b"%d" % (round_ * 1000 + number), number % PARTITIONS)
    writer.flush()


def _kafka_log_dirs(address: str, directory: Path) -> str | None:
    """What Kafka's own tool says; None on a machine that does not have it."""
    try:
        tools = KafkaTools(directory / "tools.log")
    except apache_kafka.ToolchainMissingError:
        return None
    try:
        return tools("kafka-log-dirs", "--bootstrap-server", address, "--describe")
    finally:
        tools.close()


def _nobody_leads_at(cluster: EmbeddedCluster, victim: int) -> None:
    assert victim not in {partition.leader for partition in described(cluster, "t").values()}


def _status(address: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "millstream", "cluster", "status", "--json", "-b", address]
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    said = subprocess.run(command, capture_output=True, timeout=TIMEOUT_SECONDS, env=environment)
    assert said.returncode in (0, 8), said.stderr
    return json.loads(said.stdout)


def _is_named(address: str, victim: int, directory: str) -> None:
    (row,) = (row for row in _status(address)["brokers"] if row["id"] == victim)
    assert (row["state"], row["offline_log_dirs"]) == ("disk offline", [directory])


def _console_names_it(address: str, victim: int, directory: str) -> None:
    with Cluster(address) as asked:
        watcher = Watcher(asked)
        watcher.opened(address)
        until(lambda: watcher.snapshot.failed_directories == {victim: (directory,)})

        def state() -> str:
            snapshot = watcher.snapshot
            return next((broker_state(snapshot, each)[0] for each in snapshot.brokers if each.id == victim), "")

        # On a busy machine the node may miss a ping, and then has another state for a moment.
        until(lambda: state() == f"disk offline: {directory}")
        watcher.close()


def _is_well(address: str) -> None:
    assert not any(row["offline_log_dirs"] for row in _status(address)["brokers"])


def _get(address: str, path: str) -> str:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=TIMEOUT_SECONDS) as response:
            return bytes(response.read()).decode()
    except urllib.error.HTTPError as error:
        return error.read().decode()
