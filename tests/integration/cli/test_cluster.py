"""`millstream cluster` and `millstream broker`, on clusters of real nodes."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from millstream.admin.cluster import Broker, ClusterState, Partition, Quorum, QuorumNode
from millstream.cli.cluster import start as cluster_start
from millstream.cli.cluster.report import Health, leader_skew, shown_bytes
from millstream.cli.terminal import CommandFailedError
from millstream.testing.embedded_cluster import EmbeddedCluster
from millstream.testing.node_process import free_port_range
from tests import wire as wires
from tests.integration.cli.conftest import Run
from tests.topics import await_topic
from tests.waiting import TIMEOUT_SECONDS, eventually, until
from tests.wire import Wire

COMMANDS = [
    ["cluster", "start"],
    ["cluster", "status"],
    ["cluster", "balance"],
    ["cluster", "quorum", "show"],
    ["cluster", "quorum", "upgrade"],
    ["cluster", "quorum", "add"],
    ["cluster", "quorum", "remove"],
    ["broker", "list"],
    ["broker", "drain"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_shows_an_example_and_has_json(offline: Run, command: list[str]) -> None:
    outcome = offline(*command, "--help")
    assert outcome.code == 0
    assert "Example" in outcome.out and f"millstream {' '.join(command)}" in outcome.out and "--json" in outcome.out


# What is shown


def a_cluster(*partitions: Partition, brokers: int = 3, fenced: tuple[int, ...] = ()) -> ClusterState:
    rows = [Broker(number, "h", 9092, None, number in fenced) for number in range(1, brokers + 1)]
    return ClusterState("c", Quorum(1, 1, 10, []), rows, list(partitions), {"t": 2}, {})


def a_partition(number: int, leader: int, isr: tuple[int, ...], replicas: tuple[int, ...] = (1, 2, 3)) -> Partition:
    return Partition("t", number, leader, replicas, isr, False)


def test_what_is_not_well_is_found() -> None:
    assert Health(a_cluster(a_partition(0, 1, (1, 2, 3)))).is_healthy
    behind = Health(a_cluster(a_partition(0, 1, (1, 2))))
    assert not behind.is_healthy and len(behind.under_replicated) == 1 and not behind.under_min_in_sync
    alone = Health(a_cluster(a_partition(0, 3, (3,))))
    assert len(alone.under_min_in_sync) == 1 and len(alone.not_preferred) == 1
    gone = Health(a_cluster(a_partition(0, -1, ())))
    assert len(gone.offline) == 1 and not gone.under_min_in_sync
    assert not Health(a_cluster(a_partition(0, 1, (1, 2, 3)), fenced=(2,))).is_healthy


def test_a_voter_that_is_away_is_found() -> None:
    nodes = [QuorumNode(n, UUID(int=n), 10, 0, behind, True, n == 1) for n, behind in ((1, 0), (2, 300), (3, 60_000))]
    away = ClusterState("c", Quorum(1, 1, 10, nodes), [], [], {}, {})
    assert Health(away).lagging_voters == [3] and not Health(away).is_healthy


def test_leader_skew_is_what_the_first_has_too_much() -> None:
    assert leader_skew(a_cluster()) == 0
    assert leader_skew(a_cluster(*(a_partition(n, n % 3 + 1, (1, 2, 3)) for n in range(7)))) == 0
    assert leader_skew(a_cluster(*(a_partition(n, 1, (1, 2, 3)) for n in range(6)))) == 2.0


def test_bytes_are_readable() -> None:
    assert [shown_bytes(size) for size in (0, 999, 1500, 250_000, 3_000_000_000_000, None)] == [
        "0 B",
        "999 B",
        "1.5 kB",
        "250 kB",
        "3.0 TB",
        "?",
    ]


# Starting


def test_a_directory_keeps_what_was_chosen(tmp_path: Path) -> None:
    assert cluster_start.choose(tmp_path, None, None) == cluster_start.Choice(3, 9092)
    (tmp_path / cluster_start.CHOICE_FILE).write_text('{"nodes": 5, "port": 1000}')
    assert cluster_start.choose(tmp_path, None, None) == cluster_start.Choice(5, 1000)
    assert cluster_start.choose(tmp_path, 5, 2000) == cluster_start.Choice(5, 2000)
    with pytest.raises(CommandFailedError, match="5 nodes"):
        cluster_start.choose(tmp_path, 3, None)
    (tmp_path / cluster_start.CHOICE_FILE).write_text("nonsense")
    with pytest.raises(CommandFailedError, match="cannot be read"):
        cluster_start.choose(tmp_path, None, None)


@pytest.mark.parametrize("words", [("--nodes", 0), ("--nodes", 99), ("--port", 65535)])
def test_wrong_options_of_cluster_start_are_usage_errors(
    offline: Run, tmp_path: Path, words: tuple[object, ...]
) -> None:
    assert offline("cluster", "start", "--dir", tmp_path, *words).code == 2


def test_a_port_that_is_taken_is_named(offline: Run, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = min(taken.getsockname()[1], 65000)
        outcome = offline("cluster", "start", "--nodes", 1, "--dir", tmp_path, "--port", taken.getsockname()[1])
    assert outcome.code == 1 and f"port {port}" in outcome.err and "--port" in outcome.err


class Started:
    """A `millstream cluster start` of its own process."""

    def __init__(self, *words: object) -> None:
        command = [sys.executable, "-m", "millstream", "cluster", "start", "--json", "--no-http", *map(str, words)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def ready(self) -> Any:
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], TIMEOUT_SECONDS)
        assert readable, "not ready"
        return json.loads(self.process.stdout.readline())

    def error_line(self) -> str:
        assert self.process.stderr is not None
        readable, _, _ = select.select([self.process.stderr], [], [], TIMEOUT_SECONDS)
        assert readable, "nothing was said"
        return self.process.stderr.readline().decode()

    def end(self, how: signal.Signals) -> int:
        self.process.send_signal(how)
        code = self.process.wait(TIMEOUT_SECONDS)
        self.close()
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_cluster_is_started_watched_stopped_and_goes_on(offline: Run, tmp_path: Path) -> None:
    port = free_port_range(6)
    started = Started("--dir", tmp_path, "--port", port)
    try:
        told = started.ready()
        assert told["bootstrap"].startswith(f"127.0.0.1:{port},") and len(told["nodes"]) == 3
        address = f"127.0.0.1:{port + 1}"
        assert offline("topic", "create", "t", "--partitions", 3, "--replication", 3, "-b", address).code == 0
        until(lambda: offline("cluster", "status", "-b", address).code == 0)
        os.kill(told["nodes"][0]["pid"], signal.SIGKILL)
        assert "node 1 ended (SIGKILL), 2 still run" in started.error_line()
        status = unwell(offline, address)
        assert [row["state"] for row in status["brokers"]] == ["fenced", "live", "live"]
        assert len(status["under_replicated"]) >= 3 and status["offline"] == []
        assert started.end(signal.SIGTERM) == 0
    finally:
        started.close()
    assert not any(is_alive(node["pid"]) for node in told["nodes"][1:])
    again = Started("--dir", tmp_path)
    try:
        assert again.ready()["bootstrap"] == told["bootstrap"]
        assert "t" in offline("topic", "list", "-b", f"127.0.0.1:{port}").out
        assert again.end(signal.SIGINT) == 0
    finally:
        again.close()


def well(run: Run) -> Any:
    """The status of a cluster without a problem: right after the start, a replica may still have to catch up."""
    status = run("cluster", "status", "--json")
    assert status.code == 0, status.out
    document = status.json()
    assert document["well"]
    return document


def unwell(offline: Run, address: str) -> Any:
    """The status once the cluster has noticed what is missing."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        outcome = offline("cluster", "status", "--json", "-b", address)
        if outcome.code == 8 and "fenced" in outcome.out:
            return outcome.json()
        assert time.monotonic() < deadline, outcome.out
        time.sleep(0.1)


# Balancing and draining


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(3, {"offsets.topic.num.partitions": 5}) as running:
        yield running


@pytest.fixture
def run(offline: Run, cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("MILLSTREAM_BOOTSTRAP", cluster.address(1))
    return offline


def place_topic(cluster: EmbeddedCluster, name: str, *replicas: tuple[int, ...]) -> None:
    """A topic whose partitions are where we want them, with a record in each."""
    rows = [{"partition_index": number, "broker_ids": list(each)} for number, each in enumerate(replicas)]
    topic = {"name": name, "num_partitions": -1, "replication_factor": -1, "assignments": rows, "configs": []}
    with Wire(cluster.address(1)) as wire:
        (made,) = wire.call("create_topics", 7, topics=[topic], timeout_ms=10_000, validate_only=False).topics
        assert made.error_code == 0, made.error_message
    await_topic(cluster, name, len(replicas))
    for number, each in enumerate(replicas):
        with Wire(cluster.address(each[0])) as wire:
            deadline = time.monotonic() + TIMEOUT_SECONDS
            while wire.produce(name, wires.batch(b"x" * 1000), partition=number).error_code:
                assert time.monotonic() < deadline
                time.sleep(0.05)


def brokers(run: Run) -> dict[int, dict[str, Any]]:
    return {row["id"]: row for row in run("broker", "list", "--json").json()}


def test_status_shows_brokers_and_the_roles_of_the_quorum(run: Run, cluster: EmbeddedCluster) -> None:
    document = eventually(lambda: well(run))
    assert [row["id"] for row in document["brokers"]] == [1, 2, 3]
    roles = sorted(row["role"] for row in document["quorum"]["nodes"])
    assert roles == ["leader", "voter", "voter"]
    shown = run("cluster", "status").out
    assert "leader skew" in shown and "under-replicated" in shown
    assert "high watermark" in run("cluster", "quorum", "show").out


def test_votes_are_taken_away_and_given(run: Run, cluster: EmbeddedCluster) -> None:
    assert run("cluster", "quorum", "remove", 9).code == 4
    assert run("cluster", "quorum", "add", 1, "--address", "127.0.0.1:1").code == 5
    assert run("cluster", "quorum", "add", 1, "--address", "nowhere").code == 2
    static = run("cluster", "quorum", "remove", 3)
    assert static.code == 1 and "quorum upgrade" in static.err
    assert run("cluster", "quorum", "upgrade").code == 0
    assert "voters: 1, 2\n" in run("cluster", "quorum", "remove", 3).out
    assert run("cluster", "quorum", "remove", 3).code == 4
    added = run("cluster", "quorum", "add", 3, "--address", cluster.controller_address(3), "--json")
    assert added.code == 0, added.err
    assert "observer" not in [node["role"] for node in added.json()["nodes"]]


def test_balance_spreads_what_is_on_one_broker(run: Run, cluster: EmbeddedCluster) -> None:
    place_topic(cluster, "heavy", *[(1,)] * 6)
    before = brokers(run)
    assert before[1]["replicas"] - before[2]["replicas"] >= 6
    dry = run("cluster", "balance", "--dry-run", "--json").json()
    assert not dry["executed"] and len(dry["moves"]) >= 4 and all(move["moved_bytes"] for move in dry["moves"])
    # Leaders may change by themselves, logs grow, and internal topics are created; these replicas stay where they are.
    with Wire(cluster.address(1)) as wire:
        (topic,) = wire.call("metadata", 12, topics=[{"name": "heavy"}]).topics
    assert [row.replica_nodes for row in topic.partitions] == [[1]] * 6
    done = run("cluster", "balance", "--throttle", 10_000_000, "--json")
    assert done.code == 0 and done.json()["executed"]
    after = brokers(run)
    counts = [row["replicas"] for row in after.values()]
    assert max(counts) - min(counts) <= 1
    assert max(row["leaders"] for row in after.values()) - min(row["leaders"] for row in after.values()) <= 1
    assert "nothing to move" in run("cluster", "balance").out
    with Wire(cluster.address(1)) as wire:
        resources = [{"resource_type": 2, "resource_name": "heavy", "configuration_keys": None}]
        resources += [{"resource_type": 4, "resource_name": "1", "configuration_keys": None}]
        response = wire.call("describe_configs", 4, resources=resources)
    values = {
        config.name: config.value for row in response.results for config in row.configs if "throttled" in config.name
    }
    assert not any(value for name, value in values.items() if name.endswith("replicas")), values


def test_drain_empties_a_broker_and_refuses_what_cannot_be(run: Run, cluster: EmbeddedCluster) -> None:
    place_topic(cluster, "wide", (1, 2, 3))
    refused = run("broker", "drain", 3, "--dry-run")
    assert refused.code == 1 and "wide-0" in refused.err and "add a broker" in refused.err
    assert run("topic", "delete", "wide").code == 0
    place_topic(cluster, "pairs", (3, 1), (2, 3), (1, 2))
    with Wire(cluster.address(1)) as wire:  # makes __consumer_offsets, which may do with fewer replicas
        wire.call("find_coordinator", 4, key_type=0, coordinator_keys=["g"])
    assert run("broker", "drain", 9).code == 4
    drained = run("broker", "drain", 3, "--json")
    assert drained.code == 0, drained.err
    assert drained.json()["executed"]
    assert (brokers(run)[3]["replicas"], brokers(run)[3]["leaders"]) == (0, 0)
    assert brokers(run)[3]["state"] == "cordoned"
    assert run("broker", "drain", 3, "--undo").code == 0
    assert brokers(run)[3]["state"] == "live"
    late = run("broker", "drain", 3, "--unregister", "--timeout", 1)
    assert late.code == 6 and "stop it" in late.err
    cluster.stop(3)
    gone = run("broker", "drain", 3, "--unregister")
    assert gone.code == 0 and "unregistered" in gone.out
    assert list(brokers(run)) == [1, 2]
