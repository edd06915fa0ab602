"""Kafka's scripts as Millstream provides them: common options on a real broker, and clear errors for the others."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.testing import EmbeddedBroker
from tests.integration.cli.conftest import Outcome, Run


@pytest.fixture
def script(run: Run, millstream_broker: EmbeddedBroker) -> Run:
    def call(name: str, *words: object, stdin: bytes = b"") -> Outcome:
        return run("kafka-script", name, "--bootstrap-server", millstream_broker.bootstrap_servers, *words, stdin=stdin)

    return call


def test_kafka_topics_creates_and_describes_topics(script: Run) -> None:
    create = ("--create", "--topic", "scripted", "--partitions", 2, "--replication-factor", 1)
    made = script("kafka-topics.sh", *create, "--config", "retention.ms=1000")
    assert (made.code, made.out) == (0, "Created topic scripted.\n")
    again = script("kafka-topics", *create)
    assert again.code == 1 and "TOPIC_ALREADY_EXISTS" in again.err
    assert script("kafka-topics", *create, "--if-not-exists").code == 0
    assert "scripted" in script("kafka-topics", "--list").out.splitlines()
    assert script("kafka-topics", "--alter", "--topic", "scripted", "--partitions=3").code == 0
    described = script("kafka-topics", "--describe", "--topic", "scripted").out.splitlines()
    assert re.fullmatch(
        r"Topic: scripted\tTopicId: [\w-]{22}\tPartitionCount: 3\tReplicationFactor: 1\tConfigs: retention.ms=1000",
        described[0],
    )
    assert described[3] == "\tTopic: scripted\tPartition: 2\tLeader: 1\tReplicas: 1\tIsr: 1"
    assert script("kafka-topics", "--describe", "--topic", "scripted", "--under-replicated-partitions").out == ""
    assert script("kafka-topics", "--delete", "--topic", "scripted").code == 0
    assert script("kafka-topics", "--delete", "--topic", "scripted").code == 1
    assert script("kafka-topics", "--delete", "--topic", "scripted", "--if-exists").code == 0


def test_console_scripts_write_and_read_records_with_a_group(script: Run, millstream_topic: str) -> None:
    keyed = ("--property", "parse.key=true", "--property", "key.separator=,")
    sent = script("kafka-console-producer.sh", "--topic", millstream_topic, *keyed, stdin=b"a,1\nb,2\n")
    assert sent.code == 0, sent.err
    read = ("--topic", millstream_topic, "--from-beginning", "--timeout-ms", 200)
    shown = ("--property", "print.key=true", "--property", "print.offset=true", "--property", "print.partition=true")
    found = script("kafka-console-consumer.sh", *read, *shown, "--max-messages", 2)
    assert found.out == "Partition:0\tOffset:0\ta\t1\nPartition:0\tOffset:1\tb\t2\n", found.err
    assert script("kafka-console-consumer.sh", *read, "--partition", 0, "--offset", 1).out == "2\n"
    group = f"of-{millstream_topic}"
    assert script("kafka-console-consumer.sh", *read, "--group", group, "--max-messages", 2).out == "1\n2\n"
    assert group in script("kafka-consumer-groups", "--list").out.splitlines()
    header, row = script("kafka-consumer-groups", "--describe", "--group", group).out.strip().splitlines()
    assert header.split()[:4] == ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET"]
    assert row.split() == [group, millstream_topic, "0", "2", "2", "0", "-", "-", "-"]
    reset = ("--reset-offsets", "--group", group, "--topic", millstream_topic, "--to-earliest", "--execute")
    assert script("kafka-consumer-groups", *reset).code == 0
    assert " 0 " in script("kafka-consumer-groups", "--describe", "--all-groups").out
    assert script("kafka-get-offsets", "--topic", millstream_topic).out == f"{millstream_topic}:0:2\n"
    assert script("kafka-get-offsets", "--topic", millstream_topic, "--time", -2).out == f"{millstream_topic}:0:0\n"
    assert script("kafka-consumer-groups", "--delete", "--group", group).code == 0
    missing = script("kafka-consumer-groups", "--describe", "--group", group)
    assert missing.code == 1 and "does not exist" in missing.err


def test_scripts_describe_the_cluster(script: Run, run: Run, millstream_broker: EmbeddedBroker) -> None:
    versions = script("kafka-broker-api-versions")
    assert versions.code == 0 and " (id: 1 rack: null isFenced: false) -> (\n\tProduce(0): 0 to " in versions.out
    assert "ApiVersions(18)" in versions.out and "Unknown" not in versions.out
    servers = ("--bootstrap-server", millstream_broker.bootstrap_servers)
    status = run("kafka-script", "kafka-metadata-quorum.sh", *servers, "describe", "--status").out
    cluster = run("kafka-script", "kafka-cluster.sh", "cluster-id", *servers).out.split()[-1]
    assert f"ClusterId:              {cluster}\n" in status and "LeaderId:               1\n" in status
    replication = run("kafka-script", "kafka-metadata-quorum.sh", *servers, "describe", "--replication").out
    assert "Leader" in replication.splitlines()[1]


def test_kafka_configs_alters_and_describes_a_topic(script: Run, millstream_topic: str) -> None:
    topic = ("--entity-type", "topics", "--entity-name", millstream_topic)
    added = "cleanup.policy=[compact,delete],retention.ms=5000"
    assert script("kafka-configs", "--alter", *topic, "--add-config", added).code == 0
    found = script("kafka-configs", "--describe", *topic).out
    assert "  cleanup.policy=compact,delete sensitive=false\n  retention.ms=5000 sensitive=false\n" in found
    assert script("kafka-configs", "--alter", "--topic", millstream_topic, "--delete-config", "retention.ms").code == 0
    assert "retention.ms=" not in script("kafka-configs", "--describe", *topic).out
    assert "retention.ms=604800000" in script("kafka-configs", "--describe", "--all", *topic).out
    user = ("--entity-type", "users", "--entity-name", f"user-of-{millstream_topic}")
    password = "SCRAM-SHA-256=[iterations=4096,password=a,b=c]"
    assert script("kafka-configs", "--alter", *user, "--add-config", password).code == 0
    assert "SCRAM-SHA-256=iterations=4096" in script("kafka-configs", "--describe", *user).out
    assert script("kafka-configs", "--alter", *user, "--delete-config", "SCRAM-SHA-256").code == 0
    default = ("--entity-type", "brokers", "--entity-default")
    assert script("kafka-configs", "--alter", *default, "--add-config", "log.cleaner.threads=2").code == 0
    assert "log.cleaner.threads=2" in script("kafka-configs", "--describe", *default).out
    assert script("kafka-configs", "--alter", *default, "--delete-config", "log.cleaner.threads").code == 0


def test_a_formatted_directory_has_the_id_of_the_cluster(offline: Run, tmp_path: Path) -> None:
    cluster_id = offline("kafka-script", "kafka-storage.sh", "random-uuid").out.strip()
    settings = tmp_path / "server.properties"
    settings.write_text(f"node.id=4\nlog.dirs={tmp_path}/data\nlisteners=PLAINTEXT://127.0.0.1:0\n")
    words = ("kafka-script", "kafka-storage.sh", "format", "-t", cluster_id, "-c", settings)
    assert cluster_id in offline(*words).out
    refused = offline(*words)
    assert refused.code == 1 and "already formatted" in refused.err
    assert offline(*words, "--ignore-formatted").code == 0
    with EmbeddedBroker({"node.id": 4}, data_dir=tmp_path / "data") as broker:
        servers = ("--bootstrap-server", broker.bootstrap_servers)
        assert offline("kafka-script", "kafka-cluster", "cluster-id", *servers).out == f"Cluster ID: {cluster_id}\n"


def test_wrong_options_of_scripts_have_a_reason(script: Run, offline: Run, tmp_path: Path) -> None:
    for words, reason in (
        (
            ("kafka-topics", "--list", "--at-min-isr-partitions"),
            "--at-min-isr-partitions is not supported. Supported: ",
        ),
        (("kafka-topics",), "give exactly one of --list, --create"),
        (("kafka-topics", "--create"), "--create needs --topic"),
        (("kafka-topics", "--create", "--topic", "x", "--partitions", "many"), "--partitions many: give a number"),
        (("kafka-console-consumer", "--topic", "x", "--property", "print.epoch=true"), "print.epoch is not supported"),
        (("kafka-console-consumer", "--topic", "x", "--timeout-ms", "soon"), "--timeout-ms soon: give a number"),
        (("kafka-topics", "--describe", "--topic", "x("), "--topic x( is no regular expression: "),
        (("kafka-get-offsets", "--topic", "x("), "--topic x( is no regular expression: "),
        (("kafka-configs", "--describe", "--entity-type", "clients", "--entity-name", "x"), "`millstream quota`"),
        (("kafka-acls", "--list"), "use `millstream acl`"),
        (("kafka-nothing",), "give one of kafka-topics"),
    ):
        refused = script(*words)
        assert refused.code == 1 and reason in refused.err and refused.out == "", (words, refused)
    assert offline("kafka-script", "kafka-topics", "--list").code == 1
    nobody = offline("kafka-script", "kafka-topics", "--bootstrap-server", "127.0.0.1:1", "--list")
    assert nobody.code == 1 and "127.0.0.1:1" in nobody.err
    assert offline("kafka-script", "--install", tmp_path / "bin").code == 0
    done = subprocess.run([tmp_path / "bin" / "kafka-storage.sh", "random-uuid"], capture_output=True, text=True)
    assert done.returncode == 0 and len(done.stdout.strip()) == 22, done.stderr
    assert str(Path(sys.executable).parent) in (tmp_path / "bin" / "kafka-acls.sh").read_text()
