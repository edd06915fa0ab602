"""Transactional producers on three nodes that begin and end transactions without a pause: none of them is fenced.

A client has the response to its commit before the markers are written. What it asks for next arrives while that end is
pending. Most of all an abort of a transaction whose records were never sent: from transaction version 2 on, the
coordinator does not know that this transaction began.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from millstream.testing import EmbeddedCluster
from tests.system.clients.client_program import ClientProgram
from tests.system.clients.corpus import record
from tests.system.cluster.conftest import QUIET, create_topic, eventually, new_topic
from tests.waiting import TIMEOUT_SECONDS
from tools import apache_kafka

ROUNDS = 50
LONG_MS = 1000
"""Records wait so long in the buffer of the client that an abort comes first."""
_JAVA = Path(__file__).parent / "java"


def committed(cluster: EmbeddedCluster, topic: str) -> list[str]:
    """The values in partition 0 that are committed."""
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "none", "enable.partition.eof": True}
    consumer = Consumer(settings | {"isolation.level": "read_committed", **QUIET})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    try:
        while (message := consumer.poll(20)) is not None and message.error() is None:
            found.append((message.value() or b"").decode())
    finally:
        consumer.close()
    return found


def _check(cluster: EmbeddedCluster, topic: str, client: str, rounds: int = ROUNDS) -> None:
    expected = [f"{client} {number} commit" for number in range(rounds)]

    def all_are_there() -> None:
        assert committed(cluster, topic) == expected

    eventually(all_are_there)


def _run_java(servers: str, topic: str, rounds: int, mode: str, *, hold_ms: int = 0) -> str:
    """The output of EndLoop; with `hold_ms` its network thread is held again and again."""
    try:
        kafka = apache_kafka.resolve()
    except apache_kafka.ToolchainMissingError as missing:
        pytest.skip(str(missing))
    log4j = f"-Dlog4j2.configurationFile={kafka.directory / 'log4j2-tool.properties'}"
    options = ["-Xmx256m", *apache_kafka.QUICK_START_OPTIONS, log4j, "-cp", kafka.classpath]
    program = [str(_JAVA / "EndLoop.java"), servers, topic, str(rounds), str(LONG_MS), mode]
    command = ["java", *options, *program]
    if hold_ms:
        held = [str(_JAVA / "HeldNetworkThread.java"), str(hold_ms), " ".join(options), " ".join(program)]
        command = ["java", "-Xmx256m", *apache_kafka.QUICK_START_OPTIONS, *held]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=200)
    return ran.stdout if ran.stdout == "done\n" else ran.stdout + ran.stderr


def test_java_ends_transactions_in_a_cluster(cluster: EmbeddedCluster) -> None:
    create_topic(cluster, "ends-java")
    assert _run_java(cluster.bootstrap_servers, "ends-java", ROUNDS, "wait") == "done\n"
    _check(cluster, "ends-java", "java")


@pytest.mark.slow
def test_a_java_client_that_commits_before_it_sends_gets_the_error_of_kafka(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    """The network thread of the Java client may send EndTxn before the records. The coordinator knows no transaction
    then, and must refuse the commit: its records are in the client's buffer, and would be part of the next transaction.
    """
    create_topic(cluster, "held-java")
    ours = _run_java(cluster.bootstrap_servers, "held-java", 5, "hurry", hold_ms=50)
    jvm = ("-Xmx512m", "-Xms128m")
    with apache_kafka.ApacheKafkaBroker(apache_kafka.resolve(), tmp_path, jvm=jvm) as kafka:
        new_topic(kafka.bootstrap_servers, "held-java", 1, 1)
        theirs = _run_java(kafka.bootstrap_servers, "held-java", 5, "hurry", hold_ms=50)
    for output in (ours, theirs):
        assert output.startswith("org.apache.kafka.common.errors.InvalidTxnStateException"), output


def test_librdkafka_ends_transactions_in_a_cluster(cluster: EmbeddedCluster) -> None:
    create_topic(cluster, "ends-c")
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "c-end-loop"}
    producer = Producer(settings | {"linger.ms": LONG_MS, **QUIET})
    producer.init_transactions(TIMEOUT_SECONDS)
    for number in range(ROUNDS):
        producer.begin_transaction()
        producer.produce("ends-c", f"c {number} commit")
        producer.commit_transaction(TIMEOUT_SECONDS)
        producer.begin_transaction()
        producer.produce("ends-c", f"c {number} abort")
        producer.abort_transaction(TIMEOUT_SECONDS)
    _check(cluster, "ends-c", "c")


def test_franz_go_ends_transactions_in_a_cluster(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    create_topic(cluster, "ends-go")
    try:
        program = ClientProgram("franz-go", tmp_path / "client.log")
    except apache_kafka.ToolchainMissingError as missing:
        pytest.skip(str(missing))
    try:
        for number in range(ROUNDS):
            for end in ("commit", "abort"):
                rows = [record(None, f"go {number} {end}".encode(), partition=0)]
                program.transact(cluster.address(1), "go-end-loop", "ends-go", rows, end=end)
                program.transact(cluster.address(1), "go-end-loop", "ends-go", [], end="abort")
    finally:
        program.close()
    _check(cluster, "ends-go", "go")
