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
from tests.system.cluster.conftest import QUIET, create_topic, eventually
from tools import apache_kafka

ROUNDS = 50
LONG_MS = 1000
"""Records wait so long in the buffer of the client that an abort comes first."""
_JAVA = Path(__file__).parent / "java" / "EndLoop.java"


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


def test_java(cluster: EmbeddedCluster) -> None:
    create_topic(cluster, "ends-java")
    try:
        kafka = apache_kafka.resolve()
    except apache_kafka.ToolchainMissingError as missing:
        pytest.skip(str(missing))
    log4j = f"-Dlog4j2.configurationFile={kafka.directory / 'log4j2-tool.properties'}"
    command = ["java", "-Xmx256m", *apache_kafka.QUICK_START_OPTIONS, log4j, "-cp", kafka.classpath, str(_JAVA)]
    arguments = [cluster.bootstrap_servers, "ends-java", str(ROUNDS), str(LONG_MS)]
    ran = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=200)
    assert ran.stdout == "done\n", ran.stdout + ran.stderr
    _check(cluster, "ends-java", "java")


def test_librdkafka(cluster: EmbeddedCluster) -> None:
    create_topic(cluster, "ends-c")
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "c-end-loop"}
    producer = Producer(settings | {"linger.ms": LONG_MS, **QUIET})
    producer.init_transactions(60)
    for number in range(ROUNDS):
        producer.begin_transaction()
        producer.produce("ends-c", f"c {number} commit")
        producer.commit_transaction(60)
        producer.begin_transaction()
        producer.produce("ends-c", f"c {number} abort")
        producer.abort_transaction(60)
    _check(cluster, "ends-c", "c")


def test_franz_go(cluster: EmbeddedCluster, tmp_path: Path) -> None:
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
