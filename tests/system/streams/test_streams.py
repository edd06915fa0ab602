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


def start(bootstrap: str, directory: Path, **settings: str) -> Application:
    try:
        return Application(
            bootstrap, directory, settings={name.replace("_", "."): value for name, value in settings.items()}
        )
    except apache_kafka.ToolchainMissingError as reason:
        pytest.skip(f"Kafka Streams: {reason}")


def test_an_application_counts_words(broker: EmbeddedBroker, tmp_path: Path) -> None:
    bootstrap = broker.bootstrap_servers
    words = Words(bootstrap)
    words.send(500)
    counts = Output(bootstrap, COUNTS, range(PARTITIONS))
    with start(bootstrap, tmp_path, processing_guarantee="exactly_once_v2") as application:
        until(lambda: counts.read() == words.counts, "the counts were not right")
        application.close()
    assert "CLOSED" in application.states
    assert all(values == sorted(set(values)) for values in counts.history.values())  # none was counted twice
    counts.close()


@pytest.mark.slow
def test_every_stateful_task_gets_a_standby(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """A group setting gives every task with state a standby; each instance knows which one has what."""
    bootstrap = broker.bootstrap_servers
    with Wire(bootstrap) as wire:
        config = {"name": "streams.num.standby.replicas", "config_operation": 0, "value": "1"}
        resource = {"resource_type": 32, "resource_name": "application", "configs": [config]}
        (row,) = wire.call("incremental_alter_configs", 1, resources=[resource]).responses
        assert row.error_code == 0
    words = Words(bootstrap)
    words.send(200)
    with (
        start(bootstrap, tmp_path / "1", application_server="one:1") as first,
        start(bootstrap, tmp_path / "2", application_server="two:2") as second,
    ):
        first.await_state("RUNNING")
        second.await_state("RUNNING")
        stateful = [f"1_{number}" for number in range(PARTITIONS)]

        def both(what: str) -> list[str]:
            return sorted([*first.ask(what), *second.ask(what)])

        until(lambda: [task for task in both("tasks") if task in stateful] == stateful, "tasks are missing")
        until(lambda: both("standbys") == stateful, "standbys are missing")
        assert not set(first.ask("tasks")) & set(first.ask("standbys"))
        until(lambda: len(first.ask("endpoints")) == len(second.ask("endpoints")) == 2, "endpoints are missing")
        assert first.ask("endpoints") == second.ask("endpoints")
        second.kill()
        words.send(200)
        counts = Output(bootstrap, COUNTS, range(PARTITIONS))
        until(lambda: all(counts.read().get(word, 0) >= count for word, count in words.counts.items()), "too few")
        counts.close()
