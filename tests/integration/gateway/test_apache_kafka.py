"""The gateway in front of Apache Kafka: produce, consumers and streams do there what they do in front of Millstream."""

import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, TopicPartition

from millstream.gateway.server import Gateway, GatewayOptions
from tests.integration.gateway.test_streams import read_events
from tests.waiting import TIMEOUT_SECONDS, until
from tools import apache_kafka

pytestmark = [
    pytest.mark.slow,  # Kafka takes half a minute to start while others use the machine
    pytest.mark.timeout(300),
]
QUICK_GROUPS = {
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "500",
}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apache_kafka.ApacheKafkaBroker]:
    try:
        distribution = apache_kafka.resolve()
    except apache_kafka.ToolchainMissingError as reason:
        pytest.skip(str(reason))
    directory = tmp_path_factory.mktemp("apache") / "kafka"
    with apache_kafka.ApacheKafkaBroker(distribution, directory, QUICK_GROUPS, jvm=("-Xmx300M", "-Xms300M")) as running:
        yield running


@pytest.fixture(scope="module")
def http(kafka: apache_kafka.ApacheKafkaBroker) -> Iterator[httpx.Client]:
    with (
        Gateway(GatewayOptions(kafka.bootstrap_servers)) as gateway,
        httpx.Client(base_url=gateway.url, timeout=70, trust_env=False) as client,
    ):
        yield client


def made(http: httpx.Client, topic: str, partitions: int = 2) -> str:
    configs = {"retention.ms": "-1"}  # some records are from 1970
    body = {"name": topic, "partitions": partitions, "replication_factor": 1, "configs": configs}
    response = http.post("/topics", json=body)
    assert response.status_code == 201, response.text
    return topic


def test_audit_events_are_in_the_log_alone(http: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "millstream.gateway.audit")
    made(http, "audited")
    until(lambda: 'audit_events_total{result="log_only"} 0' not in http.get("/metrics").text)
    assert '"api":"POST /topics"' in caplog.text
    assert "__millstream_audit" not in http.get("/topics").text


def put(http: httpx.Client, topic: str, *values: Any, partition: int = 0) -> None:
    records = [{"value": value, "partition": partition} for value in values]
    response = http.post(f"/v1/topics/{topic}/produce", json={"records": records})
    assert response.status_code == 200, response.text


def polled(http: httpx.Client, group: str, count: int, **query: Any) -> list[dict[str, Any]]:
    """At least so many messages, or all that came before the timeout."""
    found: list[dict[str, Any]] = []
    give_up_at = time.monotonic() + TIMEOUT_SECONDS
    while len(found) < count and time.monotonic() < give_up_at:
        parameters: dict[str, Any] = {"timeout_ms": 2000, "format": "json"} | query
        response = http.get(f"/consumers/{group}/poll", params=parameters)
        assert response.status_code == 200, response.text
        found += response.json()["messages"]
    return found


def test_messages_are_produced_to_kafka(http: httpx.Client) -> None:
    assert http.get("/readyz").json() == {"status": "ready"}
    topic = made(http, "produced", 1)
    assert http.post(f"/topics/{topic}/messages", json={"value": "YQ==", "key": "k"}).json()["offset"] == 0
    messages = [{"value": "Yg=="}, {"value": "Yw==", "timestamp": 5}, {"value": "ZA=="}]
    batch = http.post(f"/topics/{topic}/messages/batch", json={"messages": messages}).json()["offsets"]
    assert [row["offset"] for row in batch] == [1, 2, 3] and batch[1]["timestamp"] == 5
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]})
    assert http.post(f"/subjects/{topic}-value/versions", json={"schema": schema}).status_code == 200
    body = {"records": [{"value": {"n": 7}}]}
    assert http.post(f"/v1/topics/{topic}/produce?value_format=schema", json=body).status_code == 200
    cluster_id = http.get("/cluster").json()["cluster_id"]
    stream = b'{"value":{"type":"STRING","data":"e"}}{"timestamp":"1970-01-01T00:00:00.006Z"}{}'
    told = http.post(f"/v3/clusters/{cluster_id}/topics/{topic}/records", content=stream).text.splitlines()
    assert [json.loads(line)["offset"] for line in told] == [5, 6, 7]
    assert http.post("/topics/no.such/messages", json={"value": "", "partition": 3}).status_code == 404
    too_large = {"value": "A" * 4_000_000}
    assert http.post(f"/topics/{topic}/messages", json=too_large).status_code == 413

    http.post("/consumers/produced-group/subscribe", json={"topics": [topic]})
    found = polled(http, "produced-group", 8, format="registry")
    assert [message["value"] for message in found] == ["a", "b", "c", "d", {"n": 7}, "e", None, None]
    assert [message["timestamp"] for message in found if message["offset"] in (2, 6)] == [5, 6]


def test_a_consumer_polls_records_of_kafka(http: httpx.Client, kafka: apache_kafka.ApacheKafkaBroker) -> None:
    topic, group = made(http, "consumed"), "readers"
    put(http, topic, 0, 1, 2)
    put(http, topic, 3, partition=1)
    opened = http.post(f"/consumers/{group}/subscribe", json={"topics": [topic]})
    assert opened.status_code == 200, opened.text
    assert sorted(message["value"] for message in polled(http, group, 4)) == [0, 1, 2, 3]
    ahead = http.post(f"/consumers/{group}/offsets", json={"offsets": {topic: {"0": 99}}})
    assert (ahead.status_code, ahead.json()["error_code"]) == (409, 40905)
    assert http.post(f"/consumers/{group}/offsets").json() == {"offsets": {topic: {"0": 3, "1": 1}}}
    assert http.post(f"/consumers/{group}/seek", json={"topic": topic, "partition": 0, "offset": 2}).status_code == 200
    assert [message["value"] for message in polled(http, group, 1)] == [2]

    other = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group})
    try:
        committed = other.committed([TopicPartition(topic, number) for number in (0, 1)], 30)
        assert [row.offset for row in committed] == [3, 1]
    finally:
        other.close()
    seen = http.get(f"/groups/{group}").json()
    assert len(seen["members"]) == 1, seen
    assert http.delete(f"/consumers/{group}").status_code == 204
    assert http.get(f"/consumers/{group}/poll").json()["error_code"] == 40406


def test_members_share_the_work(http: httpx.Client, kafka: apache_kafka.ApacheKafkaBroker) -> None:
    """Two over HTTP, then one of them goes, and a Kafka client comes in its place."""
    topic, group = made(http, "shared"), "sharers"
    for name in ("one", "two"):
        http.post(f"/consumers/{group}/subscribe", json={"topics": [topic], "instance_id": name})
    await_partitions(http, group, {"one": 1, "two": 1})
    put(http, topic, "a")
    put(http, topic, "b", partition=1)
    found = [message["value"] for name in ("one", "two") for message in polled(http, group, 1, instance_id=name)]
    assert sorted(found) == ["a", "b"]
    for name in ("one", "two"):
        assert http.post(f"/consumers/{group}/offsets?instance_id={name}").status_code == 200
    assert http.delete(f"/consumers/{group}?instance_id=two").status_code == 204
    await_partitions(http, group, {"one": 2})

    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "group.protocol": "consumer"}
    client = Consumer(settings)
    client.subscribe([topic])
    try:
        give_up_at = time.monotonic() + TIMEOUT_SECONDS
        while len(client.assignment()) != 1:
            client.poll(0.2)
            polled(http, group, 0, instance_id="one")
            assert time.monotonic() < give_up_at
        await_partitions(http, group, {"one": 1})
        put(http, topic, "c")
        put(http, topic, "d", partition=1)
        (message,) = polled(http, group, 1, instance_id="one")
        of_client = client.poll(TIMEOUT_SECONDS)
        assert of_client is not None and of_client.error() is None
        assert {message["value"], json.loads(of_client.value() or b"")} == {"c", "d"}
    finally:
        client.close()
    http.delete(f"/consumers/{group}?instance_id=one")


def await_partitions(http: httpx.Client, group: str, counts: dict[str, int]) -> None:
    give_up_at = time.monotonic() + TIMEOUT_SECONDS
    while True:
        rows = http.get(f"/consumers/{group}").json()["consumers"]
        if {row["instance_id"]: len(row["partitions"]) for row in rows} == counts:
            return
        assert time.monotonic() < give_up_at, rows
        time.sleep(0.2)


def test_a_stream_sends_records_of_kafka(http: httpx.Client) -> None:
    topic = made(http, "streamed")
    put(http, topic, 0, 1)
    put(http, topic, 2, partition=1)
    path = f"/topics/{topic}/stream"
    with http.stream("GET", path, params={"from": "earliest", "format": "json"}) as response:
        events = read_events(response.iter_lines())
        seen = list(itertools.islice(events, 3))
        assert sorted(event.data["value"] for event in seen) == [0, 1, 2]
        put(http, topic, 3)
        live = next(events)
        assert (live.data["value"], live.id) == (3, "0:3,1:1")
    put(http, topic, 4, partition=1)
    with http.stream("GET", path, params={"format": "json"}, headers={"Last-Event-ID": live.id}) as response:
        events = read_events(response.iter_lines())
        assert next(events).data["value"] == 4
        assert http.delete(f"/topics/{topic}").status_code == 204
        assert [event.name for event in events][-1] == "gone"
