"""`millstream share`, with confluent-kafka's ShareConsumer as a member."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import ShareConsumer

from millstream.testing import EmbeddedBroker
from tests.integration.cli.conftest import Run
from tests.waiting import TIMEOUT_SECONDS


@contextmanager
def member(broker: EmbeddedBroker, group: str, topic: str) -> Iterator[Any]:
    consumer: Any = ShareConsumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": group, "client.id": "tester"}
    )
    consumer.subscribe([topic])
    try:
        yield consumer
    finally:
        consumer.close()


def _until(run: Run, consumer: Any, group: str, enough: Any) -> Any:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        consumer.poll(0.1)
        outcome = run("share", "describe", group, "--json")
        if outcome.code == 0 and enough(outcome.json()[0]):
            return outcome.json()[0]
        assert time.monotonic() < deadline, outcome


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_life_of_a_share_group(run: Run, millstream_broker: EmbeddedBroker) -> None:
    assert run("topic", "create", "jobs", "--partitions", 2).code == 0
    run("produce", "jobs", *range(5), "--partition", 0)
    run("produce", "jobs", *range(5), "--partition", 1)
    with member(millstream_broker, "workers", "jobs") as consumer:
        document = _until(run, consumer, "workers", lambda found: len(found["partitions"]) == 2 and found["members"])
        assert (document["type"], document["state"]) == ("share", "Stable")
        assert [(row["client"], row["host"], len(row["partitions"])) for row in document["members"]] == [
            ("tester", "127.0.0.1", 2)
        ]
        assert {"group": "workers", "type": "share", "state": "Stable"} in run("share", "list", "--json").json()
        assert not any(row["group"] == "workers" for row in run("group", "list", "--json").json())
        assert "jobs:0,1" in run("share", "members", "workers").out
        assert "tester" in run("share", "describe", "workers").out
        refused = run("share", "reset-offsets", "workers", "-t", "jobs", "--to-earliest", "--execute")
        assert refused.code == 1
        assert "stop its consumers first" in refused.err
        assert run("share", "delete", "workers").code == 1

    shown = run("share", "reset-offsets", "workers", "-t", "jobs", "--to-earliest", "--json").json()
    assert [(row["old"], row["new"]) for row in shown["partitions"]] == [(5, 0), (5, 0)]
    assert not shown["executed"]
    assert run("share", "reset-offsets", "workers", "-t", "jobs:1", "--to-offset", 2, "--execute").code == 0
    (lag,) = run("share", "lag", "workers", "--json").json()
    assert ([row["offset"] for row in lag["partitions"]], lag["lag"]) == ([5, 2], 3)
    assert "lag 3" in run("share", "lag", "workers").out

    with member(millstream_broker, "workers", "jobs") as consumer:  # and it begins where it was told to
        values: list[bytes] = []
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while len(values) < 3:
            for message in consumer.poll(0.2) or []:
                values.append(message.value())
            assert time.monotonic() < deadline
    assert values == [b"2", b"3", b"4"]

    assert run("share", "delete", "workers").out == "deleted workers\n"
    assert run("share", "describe", "workers").code == 4


def test_a_missing_share_group_exits_with_4(run: Run) -> None:
    for command in ("describe", "members", "lag", "delete"):
        missing = run("share", command, "missing")
        assert missing.code == 4
        assert "millstream share list" in missing.err
    assert run("share", "reset-offsets", "missing", "--all-topics", "--to-latest").code == 4
    assert run("share", "delete", "missing", "--if-exists").code == 0
    secured = run("share", "list", "-X", "security.protocol=ssl", "--timeout", 1)
    assert secured.code == 3 and "does this port use TLS" in secured.err
    assert run("share", "list", "-X", "security.protocoll=ssl").code == 2


def test_a_command_without_a_broker_exits_with_3(offline: Run) -> None:
    assert offline("share", "list", "-b", "127.0.0.1:1").code == 3
    assert offline("group", "list", "-b", "127.0.0.1:1").code == 3
