"""Each client's own admin API: topics, partitions, configs, offsets, the cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.system.clients.client_program import ClientFailedError, ClientProgram, eventually
from tests.system.clients.conftest import GetClient
from tests.system.clients.corpus import FIRST_TIMESTAMP_MS, record

Create = Callable[..., None]

# Kafka's error numbers.
UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_TOPIC = 17
TOPIC_ALREADY_EXISTS = 36
INVALID_PARTITIONS = 37
INVALID_CONFIG = 40


def ten_records() -> list[dict[str, Any]]:
    """One second apart, so that a timestamp finds each."""
    return [record(None, b"%d" % i, timestamp=FIRST_TIMESTAMP_MS + 1000 * i) for i in range(10)]


def fails_with(code: int, client: ClientProgram, operation: str, bootstrap: str, **arguments: Any) -> None:
    with pytest.raises(ClientFailedError) as failure:
        client.ask(operation, bootstrap, **arguments)
    assert failure.value.code == code, failure.value


def test_topic_is_created_listed_described_and_deleted(
    client: ClientProgram, bootstrap: str, topic: str, create_topic: Create
) -> None:
    create_topic(client, topic, partitions=3)
    assert topic in client.ask("list_topics", bootstrap)["topics"]
    cluster = client.ask("describe_cluster", bootstrap)
    partitions = client.ask("describe_topic", bootstrap, topic=topic)["partitions"]
    node = cluster["brokers"][0]["id"]
    expected = [{"id": number, "leader": node, "replicas": [node]} for number in range(3)]
    assert sorted(partitions, key=lambda each: int(each["id"])) == expected
    client.ask("delete_topic", bootstrap, topic=topic)
    assert eventually(lambda: topic not in client.ask("list_topics", bootstrap)["topics"])


def test_cluster_is_described(client: ClientProgram, bootstrap: str) -> None:
    cluster = client.ask("describe_cluster", bootstrap)
    host, port = bootstrap.split(":")
    (node,) = cluster["brokers"]
    assert (node["host"], node["port"]) == (host, int(port))
    assert cluster["controller"] == node["id"]
    if client.name != "kcat":
        assert cluster["cluster_id"]


def test_partitions_are_added(client: ClientProgram, bootstrap: str, topic: str, create_topic: Create) -> None:
    create_topic(client, topic, partitions=1)
    client.ask("create_partitions", bootstrap, topic=topic, count=4)
    assert eventually(lambda: len(client.ask("describe_topic", bootstrap, topic=topic)["partitions"]) == 4)
    # Written by the same client: it must have learnt of the new partition.
    (result,) = client.produce(bootstrap, topic, [record(None, b"in the new one", partition=3)])
    assert "error" not in result


def test_partitions_are_never_taken_away(
    client: ClientProgram, bootstrap: str, topic: str, create_topic: Create
) -> None:
    create_topic(client, topic, partitions=3)
    fails_with(INVALID_PARTITIONS, client, "create_partitions", bootstrap, topic=topic, count=2)


def test_configs_are_described_and_altered(
    client: ClientProgram, bootstrap: str, topic: str, create_topic: Create
) -> None:
    create_topic(client, topic, retention_ms="3600000")
    before = client.ask("describe_configs", bootstrap, topic=topic)["configs"]
    assert before["retention.ms"] == "3600000"
    # Defaults are there too.
    assert before["cleanup.policy"] == "delete"
    assert before["segment.bytes"] == "1073741824"
    client.ask("alter_config", bootstrap, topic=topic, name="retention.ms", value="7200000")
    after = {**before, "retention.ms": "7200000"}
    assert eventually(lambda: client.ask("describe_configs", bootstrap, topic=topic)["configs"] == after)


def test_bad_config_is_refused(client: ClientProgram, bootstrap: str, topic: str, create_topic: Create) -> None:
    if "create_topic" in client.lacks:
        pytest.skip(client.lacks["create_topic"])
    with pytest.raises(ClientFailedError) as failure:
        create_topic(client, topic, retention_ms="a week")
    assert failure.value.code == INVALID_CONFIG, failure.value
    assert topic not in client.ask("list_topics", bootstrap)["topics"]


@pytest.mark.parametrize("name", ["two words", "..", "x" * 250], ids=["space", "dots", "long"])
def test_bad_topic_name_is_refused(name: str, bootstrap: str, get_client: GetClient) -> None:
    # Some clients check the name themselves; these leave it to the broker.
    for client in ("java", "franz-go"):
        fails_with(INVALID_TOPIC, get_client(client), "create_topic", bootstrap, topic=name, partitions=1, config={})


def test_topic_cannot_be_created_twice(client: ClientProgram, topic: str, create_topic: Create) -> None:
    if "create_topic" in client.lacks:
        pytest.skip(client.lacks["create_topic"])
    create_topic(client, topic)
    if client.name == "kafkajs":
        # It responds "nothing was created" instead of failing.
        create_topic(client, topic)
        return
    with pytest.raises(ClientFailedError) as failure:
        create_topic(client, topic)
    assert failure.value.code == TOPIC_ALREADY_EXISTS, failure.value


def test_unknown_topic_cannot_be_deleted(client: ClientProgram, bootstrap: str, topic: str) -> None:
    fails_with(UNKNOWN_TOPIC_OR_PARTITION, client, "delete_topic", bootstrap, topic=topic)


def test_records_are_deleted(client: ClientProgram, bootstrap: str, topic: str, create_topic: Create) -> None:
    create_topic(client, topic)
    client.produce(bootstrap, topic, ten_records())
    response = client.ask("delete_records", bootstrap, topic=topic, partition=0, offset=4)
    assert response["low_watermark"] == 4
    assert client.ask("list_offsets", bootstrap, topic=topic, partition=0, at="earliest")["offset"] == 4
    (first,) = client.consume(bootstrap, topic, 0, 1)
    assert first["offset"] == 4


def test_offsets_are_listed(
    client: ClientProgram, bootstrap: str, topic: str, create_topic: Create, get_client: GetClient
) -> None:
    create_topic(client, topic)
    # kcat cannot set timestamps, so one who can writes.
    writer = get_client("confluent-kafka") if "timestamp" in client.lacks else client
    writer.produce(bootstrap, topic, ten_records())

    def offset(at: str | int) -> int:
        response = client.ask("list_offsets", bootstrap, topic=topic, partition=0, at=at)
        found: int = response["offset"]
        return found

    assert offset("earliest") == 0
    assert offset("latest") == 10
    assert offset(FIRST_TIMESTAMP_MS) == 0
    assert offset(FIRST_TIMESTAMP_MS + 3000) == 3
    assert offset(FIRST_TIMESTAMP_MS + 3001) == 4
    # After the last record there is none; some clients turn that into the end of the log.
    assert offset(FIRST_TIMESTAMP_MS + 3_000_000) in (-1, 10)


def test_offset_of_greatest_timestamp_is_listed(
    client: ClientProgram, bootstrap: str, topic: str, create_topic: Create
) -> None:
    create_topic(client, topic)
    for each in (5000, 9000, 1000):
        if "timestamp" in client.lacks:
            pytest.skip(client.lacks["timestamp"])
        client.produce(bootstrap, topic, [record(None, b"x", timestamp=FIRST_TIMESTAMP_MS + each)])
    response = client.ask("list_offsets", bootstrap, topic=topic, partition=0, at="max_timestamp")
    assert response["offset"] == 1
