"""Queues with Kafka's own Java client and tools: the console share consumer, kafka-share-groups, kafka-dump-log."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from millstream.testing.embedded import EmbeddedBroker
from tests import wire as wires
from tests.system.cluster.kafka_tools import KafkaTools
from tools import apache_kafka

CONSOLE_SHARE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
SHARE_GROUP_COMMAND = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
GROUP = "java-workers"


class Tools:
    def __init__(self, kafka: apache_kafka.KafkaDistribution, shared: KafkaTools, broker: EmbeddedBroker) -> None:
        self._kafka = kafka
        self._shared = shared
        self.broker = broker

    def run(self, main_class: str, *arguments: str) -> str:
        said = self._shared(main_class, *arguments)
        assert "Exception" not in said
        return said

    def ask(self, main_class: str, *arguments: str) -> str:
        return self.run(main_class, "--bootstrap-server", self.broker.bootstrap_servers, *arguments)

    def consume(self, count: int, *options: str) -> list[str]:
        """In a virtual machine of its own."""
        done = self._kafka.run(
            CONSOLE_SHARE_CONSUMER,
            *("--bootstrap-server", self.broker.bootstrap_servers, "--topic", "jobs", "--group", GROUP),
            *("--max-messages", str(count), "--timeout-ms", "20000", *options),
            performance=apache_kafka.QUICK_START_OPTIONS,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Exception" not in done.stdout + done.stderr
        lines: list[str] = done.stdout.split()
        return lines[:count]

    def offsets(self) -> dict[int, tuple[int, int]]:
        """Start offset and lag of each partition."""
        rows = re.findall(
            rf"^{GROUP}\s+jobs\s+(\d+)\s+(\d+)\s+(\d+)",
            self.ask(SHARE_GROUP_COMMAND, "--describe", "--group", GROUP),
            re.M,
        )
        return {int(index): (int(start), int(lag)) for index, start, lag in rows}


@pytest.fixture
def tools(kafka: apache_kafka.KafkaDistribution, kafka_tools: KafkaTools) -> Iterator[Tools]:
    with EmbeddedBroker() as broker:
        yield Tools(kafka, kafka_tools, broker)


def test_a_queue_from_its_first_record_to_its_deletion(tools: Tools) -> None:
    with wires.Wire(tools.broker.bootstrap_servers) as wire:
        wire.create_topic("jobs", 2)
        for index in (0, 1):
            wire.produce("jobs", wires.batch(*(f"{index}-{at}".encode() for at in range(5))), partition=index)
    settings = ("--alter", "--entity-type", "groups", "--entity-name", GROUP)
    tools.ask(apache_kafka.CONFIG_COMMAND, *settings, "--add-config", "share.auto.offset.reset=earliest")

    assert sorted(tools.consume(10)) == [f"{index}-{at}" for index in (0, 1) for at in range(5)]
    assert tools.offsets() == {0: (5, 0), 1: (5, 0)}

    # kill -9, and everything that was accepted stays so
    tools.broker.kill()
    tools.broker.restart()
    assert tools.offsets() == {0: (5, 0), 1: (5, 0)}

    reset = ("--reset-offsets", "--group", GROUP, "--topic", "jobs:1", "--to-earliest", "--execute")
    tools.ask(SHARE_GROUP_COMMAND, *reset)
    assert tools.consume(2, "--reject") == ["1-0", "1-1"]
    assert tools.offsets() == {0: (5, 0), 1: (2, 3)}

    decoded = tools.run(
        apache_kafka.DUMP_LOG_SEGMENTS,
        "--share-group-state-decoder",
        "--files",
        ",".join(
            str(each) for each in tools.broker.data_dir.glob("__share_group_state-*/*.log") if each.stat().st_size
        ),
    )
    assert re.search(rf'"groupId":"{GROUP}".*"partition":1.*"startOffset":2', decoded)

    tools.ask(SHARE_GROUP_COMMAND, "--delete", "--group", GROUP)
    assert GROUP not in tools.ask(SHARE_GROUP_COMMAND, "--list")
