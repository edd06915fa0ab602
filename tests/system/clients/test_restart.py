"""The broker dies in mid-produce and comes back: clients retry, and nothing is lost, doubled or reordered."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.clients import brokers
from tests.system.clients.conftest import GetClient
from tests.system.clients.corpus import assert_same, record

RECORDS = 2000
# kafkajs and kcat have no producer that is both idempotent and pipelined, so a retry may double or reorder.
WRITERS = ("confluent-kafka", "java", "franz-go", "kafka-python", "aiokafka")


@pytest.fixture(scope="module")
def restartable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[brokers.BrokerProcess]:
    started = brokers.start_broker(tmp_path_factory.mktemp("restart") / "data")
    yield started
    started.stop()


@pytest.mark.parametrize("stop", ["cleanly", "by kill"])
@pytest.mark.parametrize("writer", WRITERS)
def test_restart_in_mid_produce_loses_nothing(
    writer: str, stop: str, restartable: brokers.BrokerProcess, topic: str, get_client: GetClient
) -> None:
    client = get_client(writer)
    bootstrap = restartable.bootstrap_servers
    # Not by the writer: some admin clients fail on the connection they lost in the restart before.
    maker = get_client("confluent-kafka")
    maker.ask("create_topic", bootstrap, topic=topic, partitions=1, config={})
    client.begin(
        "stream", bootstrap, topic=topic, partition=0, count=RECORDS, interval_us=1000, announce_after=RECORDS // 5
    )
    client.wait_for("progress")
    if stop == "cleanly":
        restartable.stop()
    else:
        restartable.kill()
    restartable.start()
    assert client.finish()["offsets"] == list(range(RECORDS))
    expected = [record(None, b"record-%06d" % i) for i in range(RECORDS)]
    reader = get_client("franz-go" if writer != "franz-go" else "confluent-kafka")
    assert_same(reader.consume(bootstrap, topic, 0, RECORDS), expected)
