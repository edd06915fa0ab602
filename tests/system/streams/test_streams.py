"""Kafka Streams with `group.protocol=streams` against one broker: a small application, from start to end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.testing import EmbeddedBroker
from tests.system.streams.application import COUNTS, HIGHEST, INPUT, Application, Output, Words
from tests.waiting import until
from tests.wire import Wire
from tools import apache_kafka

PARTITIONS = 3
QUICK = {
    "group.streams.initial.rebalance.delay.ms": 0,
    "group.streams.assignment.interval.ms": 0,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
}


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(QUICK) as running:
        with Wire(running.bootstrap_servers) as wire:
            for topic in (INPUT, COUNTS, HIGHEST):
                wire.create_topic(topic, PARTITIONS)
        yield running


def test_an_application_counts_words(broker: EmbeddedBroker, tmp_path: Path) -> None:
    bootstrap = broker.bootstrap_servers
    words = Words(bootstrap)
    words.send(500)
    counts = Output(bootstrap, COUNTS, range(PARTITIONS))
    try:
        application = Application(bootstrap, tmp_path, settings={"processing.guarantee": "exactly_once_v2"})
    except apache_kafka.ToolchainMissingError as reason:
        pytest.skip(f"Kafka Streams: {reason}")
    with application:
        until(lambda: counts.read() == words.counts, "the counts were not right")
        application.close()
    assert "CLOSED" in application.states
    assert all(values == sorted(set(values)) for values in counts.history.values())  # none was counted twice
    counts.close()
