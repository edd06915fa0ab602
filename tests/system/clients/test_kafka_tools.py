"""Kafka's own command line tools against the broker, as an operator would use them."""

from __future__ import annotations

import json
import re

import pytest

from tests.system.clients.client_program import ClientProgram
from tests.system.clients.conftest import GetClient
from tests.system.clients.corpus import record
from tests.system.cluster.kafka_tools import KafkaTools
from tools import apache_kafka


class Tools:
    def __init__(self, kafka: apache_kafka.KafkaDistribution, shared: KafkaTools, bootstrap: str) -> None:
        self.kafka = kafka
        self.shared = shared
        self.bootstrap = bootstrap

    def __call__(self, main_class: str, *arguments: str) -> str:
        said = self.shared(main_class, "--bootstrap-server", self.bootstrap, *arguments)
        assert "Exception" not in said
        return said

    def alone(self, main_class: str, *arguments: str, stdin: str = "") -> str:
        """In a virtual machine of its own: a tool that writes or reads records."""
        done = self.kafka.run(
            main_class,
            *("--bootstrap-server", self.bootstrap),
            *arguments,
            stdin=stdin,
            performance=apache_kafka.QUICK_START_OPTIONS,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Exception" not in done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def tools(kafka: apache_kafka.KafkaDistribution, kafka_tools: KafkaTools, bootstrap: str) -> Tools:
    return Tools(kafka, kafka_tools, bootstrap)


@pytest.fixture
def writer(get_client: GetClient) -> ClientProgram:
    return get_client("confluent-kafka")


def test_kafka_topics_creates_alters_and_describes(tools: Tools, topic: str) -> None:
    command = apache_kafka.TOPIC_COMMAND
    tools(command, "--create", "--topic", topic, "--partitions", "2", "--config", "segment.bytes=2097152")
    assert topic in tools(command, "--list").splitlines()
    tools(command, "--alter", "--topic", topic, "--partitions", "3")
    described = tools(command, "--describe", "--topic", topic)
    assert re.search(r"PartitionCount: 3\tReplicationFactor: 1\tConfigs: .*segment.bytes=2097152", described)
    assert len(re.findall(r"Partition: \d\tLeader: \d+\tReplicas: \d+\tIsr: \d+", described)) == 3
    assert tools(command, "--describe", "--unavailable-partitions", "--topic", topic).strip() == ""
    tools(command, "--delete", "--topic", topic)


def test_kafka_configs_of_a_topic(tools: Tools, topic: str, writer: ClientProgram) -> None:
    writer.ask("create_topic", tools.bootstrap, topic=topic, partitions=1, config={})
    entity = ("--entity-type", "topics", "--entity-name", topic)
    command = apache_kafka.CONFIG_COMMAND
    tools(command, "--alter", *entity, "--add-config", "retention.ms=1234567,cleanup.policy=[compact,delete]")
    described = tools(command, "--describe", *entity)
    assert "retention.ms=1234567" in described
    assert "cleanup.policy=compact,delete" in described
    assert "DYNAMIC_TOPIC_CONFIG:retention.ms=1234567" in described
    tools(command, "--alter", *entity, "--delete-config", "retention.ms")
    everything = tools(command, "--describe", "--all", *entity)
    assert "retention.ms=604800000" in everything
    assert "segment.bytes=1073741824" in everything


def test_kafka_configs_of_the_broker(tools: Tools, writer: ClientProgram) -> None:
    (node,) = writer.ask("describe_cluster", tools.bootstrap)["brokers"]
    entity = ("--entity-type", "brokers", "--entity-name", str(node["id"]))
    described = tools(apache_kafka.CONFIG_COMMAND, "--describe", "--all", *entity)
    assert f"node.id={node['id']}" in described
    assert "message.max.bytes=1048588" in described


def test_kafka_configs_of_loggers(tools: Tools, writer: ClientProgram) -> None:
    (node,) = writer.ask("describe_cluster", tools.bootstrap)["brokers"]
    entity = ("--entity-type", "broker-loggers", "--entity-name", str(node["id"]))
    command = apache_kafka.CONFIG_COMMAND
    assert "root=INFO" in tools(command, "--describe", *entity)
    tools(command, "--alter", *entity, "--add-config", "millstream.net=DEBUG")
    assert "millstream.net=DEBUG" in tools(command, "--describe", *entity)
    tools(command, "--alter", *entity, "--delete-config", "millstream.net")
    assert "millstream.net=INFO" in tools(command, "--describe", *entity)


def test_console_producer_and_consumer(tools: Tools, topic: str, writer: ClientProgram) -> None:
    writer.ask("create_topic", tools.bootstrap, topic=topic, partitions=1, config={})
    lines = ["h1:a,h2:b\tkey one\tfirst", "h1:c\tключ\tзначение 🙂", "h1:d\tgone\tNULL"]
    tools.alone(
        apache_kafka.CONSOLE_PRODUCER,
        *("--topic", topic, "--compression-codec", "zstd"),
        *("--reader-property", "parse.key=true", "--reader-property", "parse.headers=true"),
        *("--reader-property", "null.marker=NULL"),
        stdin="".join(f"{line}\n" for line in lines),
    )
    read = tools.alone(
        apache_kafka.CONSOLE_CONSUMER,
        *("--topic", topic, "--partition", "0", "--offset", "earliest", "--max-messages", "3"),
        *("--timeout-ms", "20000"),
        *("--formatter-property", "print.key=true", "--formatter-property", "print.headers=true"),
        *("--formatter-property", "null.literal=NULL"),
    )
    assert read.splitlines() == lines


def test_producer_performance_sends_all_records(tools: Tools, topic: str, writer: ClientProgram) -> None:
    writer.ask("create_topic", tools.bootstrap, topic=topic, partitions=1, config={})
    said = tools.alone(
        apache_kafka.PRODUCER_PERFORMANCE,
        *("--topic", topic, "--num-records", "20000", "--record-size", "500", "--throughput", "-1"),
    )
    assert "20000 records sent" in said
    end = writer.ask("list_offsets", tools.bootstrap, topic=topic, partition=0, at="latest")
    assert end["offset"] == 20_000


def test_consumer_performance_reads_all_records(tools: Tools, topic: str, writer: ClientProgram) -> None:
    """Joins a group, and reads a dozen partitions through one fetch session."""
    writer.ask("create_topic", tools.bootstrap, topic=topic, partitions=12, config={})
    records = [record(None, b"x" * 100, partition=number % 12) for number in range(1000)]
    writer.produce(tools.bootstrap, topic, records, batch_records=7)
    said = tools.alone(
        apache_kafka.CONSUMER_PERFORMANCE, "--topic", topic, "--num-records", "1000", "--timeout", "30000"
    )
    assert "1000" in said.splitlines()[-1].split(", ")


def test_java_knows_every_api_of_the_broker(tools: Tools) -> None:
    """Every API the broker offers is one the Java client knows, and the client finds a version it can use."""
    said = tools(apache_kafka.BROKER_API_VERSIONS_COMMAND)
    for api in ("Produce(0)", "Fetch(1)", "ListOffsets(2)", "Metadata(3)", "ApiVersions(18)", "InitProducerId(22)"):
        (line,) = [each for each in said.splitlines() if f"\t{api}:" in each]
        assert "[usable:" in line
    assert "UNKNOWN" not in said


def test_offsets_records_and_directories(tools: Tools, topic: str, writer: ClientProgram) -> None:
    writer.ask("create_topic", tools.bootstrap, topic=topic, partitions=1, config={})
    writer.produce(tools.bootstrap, topic, [record(None, b"%d" % i) for i in range(5)])
    assert tools(apache_kafka.GET_OFFSETS, "--topic", topic).split() == [f"{topic}:0:5"]
    described = tools(apache_kafka.LOG_DIRS_COMMAND, "--describe", "--topic-list", topic)
    (broker,) = json.loads(described.splitlines()[-1])["brokers"]
    (directory,) = broker["logDirs"]
    assert directory["error"] is None
    (replica,) = directory["partitions"]
    assert (replica["partition"], replica["offsetLag"], replica["isFuture"]) == (f"{topic}-0", 0, False)
    assert replica["size"] > 0
