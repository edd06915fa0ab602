"""`millstream topic hot`, with a broker that reports every second."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

import millstream
from millstream.client import Client
from millstream.testing import EmbeddedBroker
from tests.integration.cli.conftest import Run
from tests.waiting import TIMEOUT_SECONDS


@pytest.fixture(scope="module")
def reporting() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({"millstream.hot.keys.interval.ms": 1000}) as broker:
        yield broker


@pytest.fixture
def client(reporting: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("MILLSTREAM_BOOTSTRAP", reporting.bootstrap_servers)
    with millstream.connect(reporting.bootstrap_servers, timeout=TIMEOUT_SECONDS) as connected:
        yield connected


def _until_reported(offline: Run, topic: str, enough: Any) -> dict[str, Any]:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        outcome = offline("topic", "hot", topic, "--json")
        if outcome.code == 0 and enough(outcome.json()):
            document: dict[str, Any] = outcome.json()
            return document
        assert time.monotonic() < deadline, outcome
        time.sleep(0.3)


def test_a_hot_key_is_found(offline: Run, client: Client, reporting: EmbeddedBroker) -> None:
    client.create_topic("orders", 3)
    client.create_topic("private", 1, config={"millstream.hot.keys.enable": "false"})
    for _ in range(3):
        rows = [("hot" if n % 10 < 7 else f"cold-{n}", "x" * 100) for n in range(2000)]
        client.publish_many("orders", rows)
        client.publish_many("private", rows)
        time.sleep(0.5)
    document = _until_reported(offline, "orders", lambda found: found["sampled_records"] > 100)
    assert document["keys"][0]["key"] == "hot"
    assert 0.5 < document["keys"][0]["record_share"] < 0.9
    assert len(document["partitions"]) == 3
    assert document["partitions"][0]["bytes_per_second"] > document["partitions"][1]["bytes_per_second"]
    text = offline("topic", "hot", "orders", "--top", 2).out
    assert "records/s" in text
    assert "hot " in text

    silent = offline("topic", "hot", "private")
    assert silent.code == 4
    assert "millstream.hot.keys.enable" in silent.err

    # The last report outlives the broker, and new ones follow. What was there before is no traffic.
    reporting.kill()
    reporting.start()
    before = offline("topic", "hot", "orders", "--json").json()
    assert before["keys"][0]["key"] == "hot"
    client.publish_many("orders", [("hot", "x"), ("other", "x")])
    after = _until_reported(offline, "orders", lambda found: found["time_ms"] > before["time_ms"])
    assert after["records_per_second"] < 100

    # Any client can read the reports, and they end with the topic.
    client.delete_topic("orders")
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        reports = [record for record in client.consume("__millstream_hot_keys") if record.key == b"orders/1"]
        assert all(record.raw is None or json.loads(record.raw)["topic"] == "orders" for record in reports)
        if reports[-1].raw is None:
            break
        assert time.monotonic() < deadline
        time.sleep(0.3)
    assert not any(record.key == b"private/1" for record in client.consume("__millstream_hot_keys"))
    assert offline("topic", "hot", "orders").code == 4


def test_a_wrong_top_and_a_missing_topic_have_exit_codes(offline: Run, client: Client) -> None:
    assert offline("topic", "hot", "orders", "--top", 0).code == 2
    assert offline("topic", "hot", "missing").code == 4
