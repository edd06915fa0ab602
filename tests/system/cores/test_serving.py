"""Two nodes under one supervisor: clients, one ready line, one log, one stop, nodes and supervisors that are killed."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from millstream.admin.cluster import ClusterAdmin
from millstream.raw_client import Cluster
from tests.system.clients.client_program import ClientProgram
from tests.system.clients.corpus import record
from tests.system.cluster.kafka_tools import KafkaTools
from tests.system.cores.machine import Machine, is_alive
from tests.waiting import TIMEOUT_SECONDS, eventually, until
from tools import apache_kafka


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A running machine; tests that kill parts of it leave it running."""
    made = Machine(tmp_path_factory.mktemp("cores"))
    line = made.start(2, "--http", "127.0.0.1:0")
    assert re.fullmatch(rf"ready kafka=127.0.0.1:{made.port},127.0.0.1:{made.port + 1} http=127.0.0.1:\d+\n", line), (
        line
    )
    made.bootstrap = line.split()[1].removeprefix("kafka=")
    (made.directory / "http").write_text(line.split()[2].removeprefix("http="))
    yield made
    made.kill_all()


def command(machine: Machine, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "millstream", *words, "-b", machine.bootstrap],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )


def test_leaders_are_on_both_nodes_and_a_group_reads_them(machine: Machine) -> None:
    machine.create("spread", 6)
    machine.produce("spread", [f"r{n}" for n in range(60)], 6)
    with Cluster(machine.bootstrap) as cluster:
        leaders = Counter(each.leader for each in ClusterAdmin(cluster).partitions() if each.topic == "spread")
    assert leaders == {1: 3, 1001: 3}
    seen: set[str] = set()
    members = [
        Consumer(
            {
                "bootstrap.servers": machine.bootstrap,
                "group.id": "both",
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        for _ in range(2)
    ]
    for member in members:
        member.subscribe(["spread"])

    def read() -> bool:
        for member in members:
            message = member.poll(0.1)
            if message is not None and not message.error():
                seen.add((message.value() or b"").decode())
        return len(seen) == 60

    until(read, "the group did not read everything")
    for member in members:
        member.close()


def test_a_transaction_spans_the_nodes(machine: Machine) -> None:
    machine.create("spanned", 4)
    producer = Producer({"bootstrap.servers": machine.bootstrap, "transactional.id": "spanning", "log_level": 0})
    producer.init_transactions(TIMEOUT_SECONDS)
    for kind in ("committed", "aborted"):
        producer.begin_transaction()
        for number in range(8):
            producer.produce("spanned", f"{kind}-{number}", partition=number % 4)
        producer.flush(TIMEOUT_SECONDS)
        if kind == "committed":
            producer.commit_transaction(TIMEOUT_SECONDS)
        else:
            producer.abort_transaction(TIMEOUT_SECONDS)
    assert machine.read("spanned", 4, 8) == sorted(f"committed-{number}" for number in range(8))


def test_a_java_client_uses_all_nodes(machine: Machine, tmp_path: Path) -> None:
    try:
        java = ClientProgram("java", tmp_path / "java.log")
    except apache_kafka.ToolchainMissingError as reason:
        pytest.skip(str(reason))
    try:
        java.ask("create_topic", machine.bootstrap, topic="java", partitions=2, config={})
        records = [record(None, f"v{number}".encode(), partition=number % 2) for number in range(10)]
        java.produce(machine.bootstrap, "java", records)
        java.transact(machine.bootstrap, "writer", "java", records, end="commit")
        for partition in (0, 1):
            found = java.consume(machine.bootstrap, "java", partition, 10, isolation="read_committed")
            assert len(found) == 10
    finally:
        java.close()


def test_kafkas_tools_see_an_ordinary_cluster(machine: Machine, tmp_path: Path) -> None:
    """They skip the machine, a tagged field of DescribeCluster and of the metadata log."""
    try:
        tools = KafkaTools(tmp_path / "tools.log")
    except apache_kafka.ToolchainMissingError as reason:
        pytest.skip(str(reason))
    try:
        said = tools("kafka-cluster", "list-endpoints", "--bootstrap-server", machine.bootstrap)
        rows = [line.split() for line in said.splitlines() if "127.0.0.1" in line]
        assert sorted(int(row[0]) for row in rows) == [1, 1001], said
        assert all("null" in row for row in rows), said  # the rack
        (log,) = (machine.data / "__cluster_metadata-0").glob("*0.log")
        said = tools("kafka-dump-log", "--cluster-metadata-decoder", "--files", str(log))
        assert said.count("REGISTER_BROKER_RECORD") >= 2, said
    finally:
        tools.close()


def test_status_and_list_show_the_machine(machine: Machine) -> None:
    def well() -> str:
        status = command(machine, "cluster", "status", "--json")
        assert status.returncode == 0, status.stdout + status.stderr
        return status.stdout

    brokers = json.loads(eventually(well))["brokers"]
    assert [(row["id"], row["machine"], row["rack"]) for row in brokers] == [(1, None, None), (1001, "machine-1", None)]
    assert "machine-1" in command(machine, "broker", "list").stdout


def test_replicas_on_one_machine_are_warned_about(machine: Machine) -> None:
    machine.create("doubled", 2, replicas=2)
    until(lambda: "replicas_share_machines topic=doubled replication_factor=2 machines=1" in machine.log())
    status = command(machine, "cluster", "status")
    assert "have several replicas on one machine" in status.stdout
    drained = command(machine, "broker", "drain", "--machine", "machine-1", "--dry-run")
    assert drained.returncode != 0
    assert "machine machine-1 cannot be drained" in drained.stderr
    assert "there is no machine nowhere" in command(machine, "broker", "drain", "--machine", "nowhere").stderr


def test_one_gateway_serves_all(machine: Machine) -> None:
    address = (machine.directory / "http").read_text()

    def topics() -> bool:
        with urllib.request.urlopen(f"http://{address}/topics", timeout=TIMEOUT_SECONDS) as response:
            return "spread" in response.read().decode()

    def served() -> bool:
        try:
            return topics()
        except OSError:
            return False

    machine.create("spread-more", 1)
    until(served, "the gateway does not serve the topics")


def test_each_line_of_the_log_names_its_node(machine: Machine) -> None:
    lines = [line for line in machine.log().splitlines() if "millstream.node " in line or "millstream.broker " in line]
    assert lines
    assert all(re.match(r"node=(1|1001) ", line) for line in lines)


def test_a_node_that_is_killed_comes_back(machine: Machine) -> None:
    machine.create("kept", 2)
    machine.produce("kept", [f"r{n}" for n in range(20)], 2)
    for node in (1001, 1):
        pid = machine.pid(node)
        os.kill(pid, signal.SIGKILL)
        until(lambda node=node, pid=pid: machine.pid(node) != pid, "it was not started again")  # type: ignore[misc]
        assert f"node_{node}_ended pid={pid} signal=9" in machine.log()
        assert machine.read("kept", 2, 20) == sorted(f"r{n}" for n in range(20))


def test_a_second_supervisor_is_refused(machine: Machine) -> None:
    other = subprocess.run(
        [sys.executable, "-m", "millstream", "serve", "--cores", "2", "--data-dir", str(machine.data), "--no-http",
         "--listen", "127.0.0.1:0"],
        capture_output=True, text=True, timeout=TIMEOUT_SECONDS,
    )  # fmt: skip
    assert other.returncode == 1
    assert "is in use by another `millstream serve --cores`" in other.stderr


def test_nodes_end_with_their_supervisor_and_a_stop_is_clean(machine: Machine) -> None:
    before = machine.read("kept", 2, 20)
    machine.kill()
    line = machine.start(2)
    assert machine.read("kept", 2, 20) == before, line
    pids = [machine.pid(node) for node in (1, 1001)]
    assert machine.stop() == 0
    assert not any(is_alive(pid) for pid in pids)
    for folder in (machine.data, machine.data / "cores" / "2"):
        assert (folder / ".kafka_cleanshutdown").exists(), machine.log()[-2000:]
    assert re.search(r"has 2 nodes: give --cores 2", refused("--data-dir", str(machine.data)))
    machine.start(2)
    assert machine.read("kept", 2, 20) == before


def refused(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "millstream", "serve", "--no-http", *words],
        capture_output=True, text=True, timeout=TIMEOUT_SECONDS,
    )  # fmt: skip
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) <= 2, done.stderr
    return done.stderr


@pytest.mark.parametrize("cores", ["0", "65", "many"])
def test_wrong_numbers_of_cores_are_refused(cores: str, tmp_path: Path) -> None:
    reason = refused("--cores", cores, "--data-dir", str(tmp_path))
    assert f"--cores={cores} is not allowed: write a number from 1 to 64, or auto" in reason


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    from millstream.testing.node_process import free_port_range

    port = free_port_range(2)
    with socket.create_server(("127.0.0.1", port + 1)):
        reason = refused("--cores", "2", "--listen", f"127.0.0.1:{port}", "--data-dir", str(tmp_path / "data"))
    assert f"cannot listen on 127.0.0.1:{port + 1}" in reason
    assert "--cores 2 needs 2 free ports" in reason
