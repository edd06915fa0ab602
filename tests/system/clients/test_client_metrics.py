"""Client metrics (KIP-714) with unmodified clients: kafka-client-metrics, Java's producer, librdkafka."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer

from millstream.admin.broker_metrics import fetch_metrics
from millstream.doctor.evidence import read_clients
from millstream.raw_client import Cluster
from millstream.testing import EmbeddedBroker
from tests.system.cluster.kafka_tools import KafkaTools
from tests.waiting import until
from tests.wire import Wire
from tools import apache_kafka

TOOL = "org.apache.kafka.tools.ClientMetricsCommand"


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        with Wire(running.bootstrap_servers) as wire:
            wire.create_topic("measured", 2)
        yield running


@pytest.fixture(scope="module")
def subscribed(kafka_tools: KafkaTools, broker: EmbeddedBroker) -> str:
    """The subscription is made with Kafka's tool."""
    address = ("--bootstrap-server", broker.bootstrap_servers)
    kafka_tools(
        TOOL, *address, "--alter", "--name", "all", "--metrics", "org.apache.kafka.", "--interval", "200",
        "--match", "client_software_name=.*",
    )  # fmt: skip
    assert "all" in kafka_tools(TOOL, *address, "--list")
    described = kafka_tools(TOOL, *address, "--describe", "--name", "all")
    assert "interval.ms=200" in described and "metrics=org.apache.kafka." in described
    return "all"


def test_librdkafka_pushes_its_metrics(broker: EmbeddedBroker, subscribed: str) -> None:
    address = {"bootstrap.servers": broker.bootstrap_servers}
    producer = Producer({**address, "client.id": "rd-producer"})
    consumer = Consumer({**address, "client.id": "rd-consumer", "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["measured"])
    with Cluster(broker.bootstrap_servers) as cluster:

        def both() -> bool:
            producer.produce("measured", b"x")
            producer.flush()
            consumer.poll(0.05)
            found = {each.client_id: each.metrics for each in read_clients(cluster)}
            return (
                "producer.record.queue.time.avg" in found.get("rd-producer", {})
                and found.get("rd-consumer", {}).get("consumer.coordinator.assigned.partitions") == 2
            )

        until(both)
    consumer.close()


def test_java_pushes_and_prometheus_has_it(
    broker: EmbeddedBroker, subscribed: str, kafka: apache_kafka.KafkaDistribution
) -> None:
    done = kafka.run(
        apache_kafka.PRODUCER_PERFORMANCE,
        *("--bootstrap-server", broker.bootstrap_servers, "--topic", "measured"),
        *("--num-records", "4000", "--record-size", "100", "--throughput", "2000"),
        performance=apache_kafka.QUICK_START_OPTIONS,
    )
    assert done.returncode == 0, done.stderr
    with Wire(broker.bootstrap_servers) as wire:
        row = wire.fetch("__millstream_client_metrics", max_wait_ms=100)
        assert row.records
    with Cluster(broker.bootstrap_servers) as cluster:
        java = [each for each in read_clients(cluster) if each.software.startswith("apache-kafka-java")]
    assert java == [] or java[0].metrics["producer.record.send.rate"] > 0  # a client that stopped is not shown
    host, _, port = broker.bootstrap_servers.rpartition(":")
    samples = {each.name: each.value for each in fetch_metrics(host, int(port), ("clients",), 5.0)}
    assert samples["millstream_client_metrics_pushes_total"] > 0


def test_the_tool_deletes_the_subscription(kafka_tools: KafkaTools, broker: EmbeddedBroker, subscribed: str) -> None:
    address = ("--bootstrap-server", broker.bootstrap_servers)
    kafka_tools(TOOL, *address, "--delete", "--name", "all")
    assert kafka_tools(TOOL, *address, "--list").strip() == ""
