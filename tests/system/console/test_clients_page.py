"""The Clients page in a real browser: the doctor's sentence, and the clients that push metrics."""

from __future__ import annotations

from confluent_kafka import Producer

from millstream.doctor import evidence
from millstream.raw_client import Cluster
from millstream.testing.embedded_cluster import EmbeddedCluster
from tests.system.console.conftest import Looking


def test_the_sentence_and_the_clients_are_shown(looking: Looking, cluster: EmbeddedCluster) -> None:
    with Cluster(cluster.bootstrap_servers) as admin:
        evidence.subscribe(admin, on=True)
        try:
            producer = Producer(
                {"bootstrap.servers": cluster.bootstrap_servers, "client.id": "page-client", "linger.ms": 0}
            )
            admin.create_topic("watched", 1)
            producer.produce("watched", b"x")
            producer.flush()
            looking.open("/clients")
            looking.await_text("clients", "page-client")
            looking.await_text("diagnosis", ".")
        finally:
            evidence.subscribe(admin, on=False)
