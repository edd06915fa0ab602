"""Three nodes that authenticate to each other by SCRAM, also the controllers, with clients; one is killed.

The user of the nodes is in the data directories before the first start, as `millstream user first` writes it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.testing.embedded_cluster import EmbeddedCluster
from tests.sasl import MODULES, plain, scram, upsertion
from tests.waiting import TIMEOUT_SECONDS, until
from tests.wire import Wire

NODES = (1, 2, 3)
PASSWORD = "node-secret-1"


def settings() -> dict[str, str]:
    node = f'{MODULES}.scram.ScramLoginModule required username="nodes" password="{PASSWORD}";'
    users = f'{MODULES}.plain.PlainLoginModule required user_admin="admin-secret-1";'
    return {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "listener.name.plaintext.sasl.enabled.mechanisms": "SCRAM-SHA-256,PLAIN",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
        "sasl.mechanism.controller.protocol": "SCRAM-SHA-256",
        "listener.name.plaintext.scram-sha-256.sasl.jaas.config": node,
        "listener.name.plaintext.plain.sasl.jaas.config": users,
        "listener.name.controller.scram-sha-256.sasl.jaas.config": node,
        "connections.max.reauth.ms": "4000",
        "offsets.topic.replication.factor": "3",
        "offsets.topic.num.partitions": "1",
    }


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    made = EmbeddedCluster(3, settings())
    for number in NODES:
        subprocess.run(
            [sys.executable, "-m", "millstream", "user", "first", "nodes", "--data-dir", str(made.data_dir(number)),
             "--password-file", "-", "--mechanism", "SCRAM-SHA-256"],
            input=PASSWORD, text=True, check=True, capture_output=True,
        )  # fmt: skip
    with made:
        yield made
        for number in NODES:
            log = made.log_file(number).read_text()
            assert PASSWORD not in log and "Traceback" not in log, log[-3000:]


def test_nodes_authenticate_to_each_other_and_survive_a_kill(cluster: EmbeddedCluster) -> None:
    client: dict[str, Any] = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "nodes",
        "sasl.password": PASSWORD,
    }
    admin = AdminClient(client)
    admin.create_topics([NewTopic("t", 3, 3, config={"min.insync.replicas": "2"})])["t"].result(TIMEOUT_SECONDS)
    producer = Producer({**client, "acks": "all"})
    failures: list[object] = []

    def write(first: int) -> None:
        for number in range(first, first + 30):
            producer.produce("t", str(number), on_delivery=lambda error, _: failures.append(error) if error else None)
        assert producer.flush(TIMEOUT_SECONDS) == 0 and not failures

    write(0)
    cluster.kill(3)
    write(30)  # the others elected leaders, as they trust each other
    with Wire(cluster.address(1)) as wire:
        plain(wire)
        rows = [upsertion("later", "later-secret", "SCRAM-SHA-256")]
        response = wire.call("alter_user_scram_credentials", 0, deletions=[], upsertions=rows)
        assert [row.error_code for row in response.results] == [0]
    cluster.start(3)

    def can_log_in_at_3() -> bool:
        with Wire(cluster.address(3)) as wire:
            return not scram(wire, "SCRAM-SHA-256", "later", "later-secret").error_code

    until(can_log_in_at_3, "the node that came back does not know the new user")
    write(60)
    consumer = Consumer({**client, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    seen: set[str] = set()

    def all_seen() -> bool:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            seen.add((message.value() or b"").decode())
        return len(seen) == 90

    try:
        until(all_seen, "records are missing")
    finally:
        consumer.close()


@pytest.mark.slow
def test_a_node_with_a_wrong_password_is_not_let_in(cluster: EmbeddedCluster) -> None:
    wrong = {name: text.replace(PASSWORD, "wrong") for name, text in settings().items() if "scram" in name}
    cluster.kill(3)
    cluster._node_settings[3] = wrong
    cluster.spawn(3)
    until(lambda: "login_failed" in cluster.log_file(3).read_text(), "no failed login in the log")
    until(lambda: "authentication_failed" in cluster.log_file(1).read_text() + cluster.log_file(2).read_text())
