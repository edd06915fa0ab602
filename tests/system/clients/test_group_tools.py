"""Kafka's own tools on groups: kafka-consumer-groups, the console consumer, and the reader of `__consumer_offsets`."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.node.coordination.runtime import java_hash
from tests.system.clients import brokers
from tests.system.clients.client_program import eventually
from tests.system.cluster.kafka_tools import KafkaTools
from tests.waiting import TIMEOUT_SECONDS
from tools import apache_kafka

CONSUMER_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
OFFSETS_READER = "org.apache.kafka.tools.consumer.OffsetsMessageFormatter"
QUICK = apache_kafka.QUICK_START_OPTIONS


def fill(bootstrap: str, topic: str, count: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(TIMEOUT_SECONDS)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(topic, value=f"value-{number}", partition=number % 2)
    assert producer.flush(TIMEOUT_SECONDS) == 0


def consume_as_group(bootstrap: str, group: str, topic: str, count: int) -> None:
    """Reads so many records as the only member, commits, and leaves."""
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False, "client.id": "reader"})
    consumer.subscribe([topic])
    seen = 0
    while seen < count:
        seen += len(consumer.consume(count - seen, timeout=1))
    consumer.commit(asynchronous=False)
    consumer.close()


def groups_tool(tools: KafkaTools, bootstrap: str, *arguments: str) -> str:
    return tools(CONSUMER_GROUPS, "--bootstrap-server", bootstrap, *arguments)


def table(text: str) -> list[dict[str, str]]:
    """What the tool prints, by the names in its first line."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    head = next(at for at, words in enumerate(lines) if words[0] == "GROUP")
    return [dict(zip(lines[head], words, strict=False)) for words in lines[head + 1 :]]


def committed(bootstrap: str, group: str) -> dict[int, int]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (found,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    return {each.partition: each.offset for each in found.result(TIMEOUT_SECONDS).topic_partitions}


def test_kafka_consumer_groups_lists_describes_and_resets(kafka_tools: KafkaTools, bootstrap: str, topic: str) -> None:
    fill(bootstrap, topic, 20)
    consume_as_group(bootstrap, topic, topic, 20)
    listed = {row["GROUP"]: row["STATE"] for row in table(groups_tool(kafka_tools, bootstrap, "--list", "--state"))}
    assert listed[topic] == "Empty"
    rows = table(groups_tool(kafka_tools, bootstrap, "--describe", "--group", topic))
    assert [(row["CURRENT-OFFSET"], row["LAG"]) for row in rows] == [("10", "0"), ("10", "0")]
    reset = ("--reset-offsets", "--group", topic, "--topic", topic, "--to-offset", "3")
    groups_tool(kafka_tools, bootstrap, *reset, "--execute")
    assert committed(bootstrap, topic) == {0: 3, 1: 3}
    groups_tool(kafka_tools, bootstrap, "--delete-offsets", "--group", topic, "--topic", f"{topic}:1")
    assert committed(bootstrap, topic) == {0: 3}
    groups_tool(kafka_tools, bootstrap, "--delete", "--group", topic)
    assert committed(bootstrap, topic) == {}


def test_members_are_shown(kafka: apache_kafka.KafkaDistribution, bootstrap: str, topic: str) -> None:
    fill(bootstrap, topic, 2)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "client.id": "shown"})
    consumer.subscribe([topic])
    assert eventually(lambda: consumer.poll(0.1) is not None or len(consumer.assignment()) == 2)
    described = subprocess.Popen(
        kafka.command(
            *(CONSUMER_GROUPS, "--bootstrap-server", bootstrap, "--describe", "--group", topic, "--members"),
            performance=QUICK,
        ),
        stdout=subprocess.PIPE,
        text=True,
    )
    while described.poll() is None:
        consumer.poll(0.1)
    assert described.stdout is not None
    (row,) = table(described.stdout.read())
    described.stdout.close()
    assert row["CLIENT-ID"] == "shown" and row["#PARTITIONS"] == "2" and row["HOST"] == "/127.0.0.1"
    consumer.close()


def test_console_consumer_in_a_group(kafka: apache_kafka.KafkaDistribution, bootstrap: str, topic: str) -> None:
    fill(bootstrap, topic, 20)
    arguments = ("--bootstrap-server", bootstrap, "--topic", topic, "--group", topic, "--from-beginning")
    done = kafka.run(CONSOLE_CONSUMER, *arguments, "--max-messages", "20", "--timeout-ms", "30000", performance=QUICK)
    assert sorted(done.stdout.split()) == sorted(f"value-{number}" for number in range(20)), done.stderr
    assert committed(bootstrap, topic) == {0: 10, 1: 10}


def json_values(text: str) -> list[dict[str, Any]]:
    """The formatter writes one object after another, without a separator."""
    decoder, position, found = json.JSONDecoder(), text.find("{"), []
    while position >= 0:
        value, position = decoder.raw_decode(text, position)
        found.append(value)
        position = text.find("{", position)
    return found


def test_lag_exporters_can_read_our_records(
    kafka: apache_kafka.KafkaDistribution, broker: brokers.BrokerProcess, topic: str
) -> None:
    bootstrap = broker.bootstrap_servers
    fill(bootstrap, topic, 20)
    consume_as_group(bootstrap, topic, topic, 20)
    simple = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "enable.auto.commit": False})
    simple.commit(offsets=[TopicPartition(topic, 1, 7, metadata="nöte")], asynchronous=False)
    partition = java_hash(topic) % 50
    _, end = simple.get_watermark_offsets(TopicPartition("__consumer_offsets", partition), timeout=TIMEOUT_SECONDS)
    simple.close()
    arguments = ["--bootstrap-server", bootstrap, "--topic", "__consumer_offsets", "--formatter", OFFSETS_READER]
    arguments += ["--partition", str(partition), "--offset", "earliest", "--max-messages", str(end)]
    arguments += ["--timeout-ms", "60000"]
    done = kafka.run(CONSOLE_CONSUMER, *arguments, performance=QUICK)
    history: dict[tuple[str, int], list[tuple[int, str]]] = {}
    for row in json_values(done.stdout):
        key, value = row["key"]["data"], row["value"]
        if key["group"] == topic:
            # confluent-kafka counts the zero at the end of a C string
            committed = value["data"]["offset"], value["data"]["metadata"].rstrip("\0")
            history.setdefault((key["topic"], key["partition"]), []).append(committed)
    assert history == {(topic, 0): [(10, "")], (topic, 1): [(10, ""), (7, "nöte")]}


def test_dump_log_decodes_our_groups(kafka_tools: KafkaTools, broker: brokers.BrokerProcess, topic: str) -> None:
    fill(broker.bootstrap_servers, topic, 4)
    consume_as_group(broker.bootstrap_servers, topic, topic, 4)
    files = [str(path) for path in broker.data_dir.glob("__consumer_offsets-*/*.log") if path.stat().st_size]
    said = kafka_tools("kafka-dump-log", "--offsets-decoder", "--files", ",".join(files))
    ours = [line for line in said.splitlines() if f'"group":"{topic}"' in line]
    groups = [line for line in ours if '"type":"2"' in line]
    assert len(groups) == 2 and '"clientId":"reader"' in groups[0] and '"members":[]' in groups[1], said[-3000:]
    assert sum('"type":"1"' in line for line in ours) == 2
