"""Produce over HTTP, read back with a Kafka client: what was sent is in the log, or the response says why not."""

import asyncio
import base64
import json
import socket
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

import httpx
import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer

from millstream.gateway.http.configuration import Limits
from millstream.gateway.produce import publisher as publishing
from millstream.gateway.server import Gateway, GatewayOptions
from millstream.raw_client import Cluster
from millstream.testing import EmbeddedBroker
from tests.waiting import TIMEOUT_SECONDS

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def http(gateway: Gateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, timeout=TIMEOUT_SECONDS, trust_env=False) as client:
        yield client


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    return make_topic(broker, 3)


def make_topic(broker: EmbeddedBroker, partitions: int, **configs: str) -> str:
    name = f"t-{uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    config = {key.replace("_", "."): value for key, value in configs.items()}
    admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(TIMEOUT_SECONDS)
    return name


def read_all(broker: EmbeddedBroker, topic: str, count: int) -> list[Message]:
    """In the order of partition and offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": f"g-{uuid4()}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        partitions = consumer.list_topics(topic, 20).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        found: list[Message] = []
        while len(found) < count:
            message = consumer.poll(TIMEOUT_SECONDS)
            assert message is not None and message.error() is None
            found.append(message)
        return sorted(found, key=lambda message: (message.partition(), message.offset()))
    finally:
        consumer.close()


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_one_message_is_stored_with_key_and_headers(http: httpx.Client, broker: EmbeddedBroker, topic: str) -> None:
    body = {"key": "user_123", "value": b64(b"\x00\xffhi"), "headers": {"trace_id": "abc"}, "partition": None}
    response = http.post(f"/topics/{topic}/messages", json=body)
    assert response.status_code == 200
    told = response.json()
    assert set(told) == {"topic", "partition", "offset", "timestamp"} and told["topic"] == topic
    (message,) = read_all(broker, topic, 1)
    assert (message.key(), message.value(), message.headers()) == (b"user_123", b"\x00\xffhi", [("trace_id", b"abc")])
    assert (message.partition(), message.offset()) == (told["partition"], told["offset"])
    assert message.timestamp()[1] == told["timestamp"]


def test_keys_go_where_java_sends_them(http: httpx.Client, topic: str) -> None:
    """murmur2 of these keys, by three."""
    messages = [{"key": key, "value": ""} for key in ("21", "foobar", "a-little-bit-long-string")]
    offsets = http.post(f"/topics/{topic}/messages/batch", json={"messages": messages}).json()["offsets"]
    hashes = (-973932308, -790332482, -985981536)
    assert [row["partition"] for row in offsets] == [(each & 0x7FFFFFFF) % 3 for each in hashes]


def test_a_batch_returns_the_offsets_in_order(http: httpx.Client, broker: EmbeddedBroker, topic: str) -> None:
    messages: list[dict[str, Any]] = [{"value": b64(b"%d" % number), "partition": number % 3} for number in range(300)]
    messages[7] |= {"timestamp": 1_700_000_000_000, "headers": {"a": None, "b": ["1", "2"]}, "key": 17}
    messages[8]["value"] = None
    offsets = http.post(f"/topics/{topic}/messages/batch", json={"messages": messages}).json()["offsets"]
    assert [(row["partition"], row["offset"]) for row in offsets] == [(n % 3, n // 3) for n in range(300)]
    assert offsets[7]["timestamp"] == 1_700_000_000_000
    found = {(row.partition(), row.offset()): row for row in read_all(broker, topic, 300)}
    assert [found[n % 3, n // 3].value() for n in range(300)] == [None if n == 8 else b"%d" % n for n in range(300)]
    assert found[1, 2].headers() == [("a", None), ("b", b"1"), ("b", b"2")] and found[1, 2].key() == b"17"


def test_json_values_are_kept_byte_for_byte(http: httpx.Client, broker: EmbeddedBroker, topic: str) -> None:
    value = b'{"order_id": "ord_9082348", "amount": 128.50, "n": 123456789012345678901234567890, "s": "\xc3\xa9"}'
    raw = (
        b'{"records": [{"key": "user_897123", "value": '
        + value
        + b', "partition": 0}, {"value": null, "partition": 0}]}'
    )
    response = http.post(f"/v1/topics/{topic}/produce", content=raw, headers={"Content-Type": "application/json"})
    assert response.status_code == 200 and response.json()["topic"] == topic
    assert [row["offset"] for row in response.json()["offsets"]] == [0, 1]
    first, second = read_all(broker, topic, 2)
    assert (first.key(), first.value(), second.key(), second.value()) == (b"user_897123", value, None, None)


def test_keys_and_values_are_encoded_in_the_chosen_format(
    http: httpx.Client, broker: EmbeddedBroker, topic: str
) -> None:
    def send(forms: str, **message: Any) -> int:
        body = {"messages": [message | {"partition": 1}]}
        return http.post(f"/topics/{topic}/messages/batch?{forms}", json=body).status_code

    assert send("value_format=text", value="plain é") == 200
    assert send("value_format=json&key_format=base64", value=["x"], key=b64(b"\x01")) == 200
    assert send("value_format=json&key_format=json", value="s", key="k") == 200
    assert send("value_format=xml", value="") == 400
    first, second, third = read_all(broker, topic, 3)
    assert first.value() == "plain é".encode()
    assert (second.key(), second.value()) == (b"\x01", b'["x"]')
    assert (third.key(), third.value()) == (b'"k"', b'"s"')


def test_values_of_a_schema(http: httpx.Client, gateway: Gateway, broker: EmbeddedBroker, topic: str) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "n", "type": ["null", "long"]}]}
    registered = http.post(f"/subjects/{topic}-value/versions", json={"schema": json.dumps(schema)})
    assert registered.status_code == 200, registered.text
    made = registered.json()
    path = f"/v1/topics/{topic}/produce?value_format=schema"
    body = {"records": [{"value": {"n": 5}, "partition": 0}, {"value": {"n": {"long": 6}}, "partition": 0}]}
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    assert http.post(f"{path}&value_schema_id={made['id']}", json=body).status_code == 200
    refused = http.post(path, json={"records": [{"value": {"n": 5}}, {"value": {"n": "five"}}]})
    assert refused.status_code == 422 and "record 1" in refused.json()["message"]
    assert http.post(f"{path}&value_schema_id=9999", json=body).status_code == 404
    with SchemaRegistryClient({"url": gateway.url}) as client:
        read = AvroDeserializer(client)
        assert [read(row.value(), None) for row in read_all(broker, topic, 4)] == [{"n": 5}, {"n": 6}] * 2

    person = '{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}'
    proto = 'syntax = "proto3"; message P { string name = 1; int64 born = 2; }'
    for kind, text, good, bad in (
        ("JSON", person, {"name": "x"}, {}),
        ("PROTOBUF", proto, {"name": "x", "born": "7"}, {"nobody": 1}),
    ):
        subject = f"{kind}-{topic}"
        number = http.post(f"/subjects/{subject}/versions", json={"schema": text, "schemaType": kind}).json()["id"]
        with_id = f"{path}&value_schema_id={number}"
        assert http.post(with_id, json={"records": [{"value": good}]}).status_code == 200
        assert http.post(with_id, json={"records": [{"value": bad}]}).status_code == 422


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("messages", b"{", 400),
        ("messages", b"\xff", 400),
        ("messages", b"[]", 422),
        ("messages", b"{}", 422),
        ("messages", b'{"value": "no base64!"}', 422),
        ("messages", b'{"value": 5}', 422),
        ("messages", b'{"vlaue": ""}', 422),
        ("messages", b'{"value": "", "partition": -1}', 422),
        ("messages", b'{"value": "", "partition": 3}', 404),
        ("messages", b'{"value": "", "headers": {"a": 1}}', 422),
        ("messages", b'{"value": "", "headers": {"a\\u0000b": "x"}}', 422),
        ("messages", b'{"value": "", "timestamp": 1e99}', 422),
        ("messages/batch", b'{"messages": []}', 422),
        ("messages/batch", b'{"messages": [{"value": ""}, {"value": "!"}]}', 422),
        ("messages/batch", b'{"messages": ' + b"[" * 100_000 + b"}", 400),
    ],
)
def test_bad_requests_are_refused_with_a_hint(
    http: httpx.Client, topic: str, path: str, body: bytes, status: int
) -> None:
    response = http.post(f"/topics/{topic}/{path}", content=body)
    assert response.status_code == status or (status == 400 and response.status_code == 422)
    assert set(response.json()) == {"error_code", "message", "hint"}


def test_headers_are_kept_whole(http: httpx.Client, broker: EmbeddedBroker, topic: str) -> None:
    headers = {"a": "x\0y", "b": ["1", None]}
    assert http.post(f"/topics/{topic}/messages", json={"value": "", "headers": headers}).status_code == 200
    (message,) = read_all(broker, topic, 1)
    assert message.headers() == [("a", b"x\0y"), ("b", b"1"), ("b", None)]


def test_wrong_names_of_topics_are_refused(http: httpx.Client) -> None:
    for name in ("a%2Fb", "%00", "x" * 300):
        response = http.post(f"/topics/{name}/messages", json={"value": ""})
        assert (response.status_code, response.json()["error_code"]) == (400, 40002)
    assert http.post("/topics/__consumer_offsets/messages", json={"value": ""}).status_code == 403


def test_a_topic_is_made_where_brokers_do_so(http: httpx.Client) -> None:
    name = f"new-{uuid4().hex[:8]}"
    assert http.post(f"/topics/{name}/messages", json={"value": ""}).json()["offset"] == 0


def test_each_record_has_its_own_outcome(http: httpx.Client, broker: EmbeddedBroker) -> None:
    small = make_topic(broker, 2, max_message_bytes="2000")
    messages: list[dict[str, Any]] = [{}, {}]
    for partition, size in enumerate((10, 3000)):  # in one partition they could share a batch, and be refused together
        messages[partition] = {"value": b64(b"x" * size), "partition": partition}
    response = http.post(f"/topics/{small}/messages/batch", json={"messages": messages})
    assert response.status_code == 207
    first, second = response.json()["offsets"]
    assert first["offset"] == 0 and second["error_code"] == 41301 and "max.message.bytes" in second["hint"]
    refused = http.post(f"/topics/{small}/messages", json=messages[1])
    assert (refused.status_code, refused.json()["error_code"]) == (413, 41301)


def test_requests_above_the_limits_are_refused(broker: EmbeddedBroker) -> None:
    limits = Limits(max_body_bytes=10_000, max_records=3, max_in_flight_bytes=15_000)
    with Gateway(GatewayOptions(broker.bootstrap_servers, limits=limits)) as gateway:
        name = make_topic(broker, 1)
        with httpx.Client(base_url=gateway.url, timeout=TIMEOUT_SECONDS, trust_env=False) as http:
            path = f"/topics/{name}/messages/batch"
            assert http.post(path, json={"messages": [{"value": ""}] * 4}).status_code == 422
            assert http.post(path, content=b"x" * 10_001).status_code == 413
            chunks = (b"x" * 1000 for _ in range(20))
            assert http.post(path, content=chunks).status_code == 413
        assert asyncio.run(_crowd(gateway.url, path)) == {200, 429}


def test_a_body_that_does_not_come_keeps_no_one_out(broker: EmbeddedBroker) -> None:
    limits = Limits(max_in_flight_bytes=1000, body_timeout_s=0.5)
    with Gateway(GatewayOptions(broker.bootstrap_servers, limits=limits)) as gateway:
        path = f"/topics/{make_topic(broker, 1)}/messages"
        host, port = gateway.address.split(":")
        with socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS) as slow:
            slow.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\n{{".encode())
            response = b"".join(iter(lambda: slow.recv(4096), b""))  # the gateway closes it
        assert response.startswith(b"HTTP/1.1 408 ") and b"send it faster" in response
        assert httpx.post(gateway.url + path, json={"value": b64(b"x" * 600)}, trust_env=False).status_code == 200


def test_a_request_larger_than_all_that_may_wait_is_taken_when_it_is_alone(broker: EmbeddedBroker, topic: str) -> None:
    limits = Limits(max_in_flight_bytes=100_000)
    with Gateway(GatewayOptions(broker.bootstrap_servers, limits=limits)) as gateway:
        response = httpx.post(f"{gateway.url}/topics/{topic}/messages", json={"value": b64(bytes(3 << 20))})
        assert response.status_code == 413, response.text  # the broker's word, which librdkafka must have asked for


def test_every_record_has_an_outcome_when_nothing_is_heard(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "_REPORT_GRACE_SECONDS", 0.0)
    with Cluster(broker.bootstrap_servers) as cluster:
        publisher = publishing.Publisher(cluster, Limits(produce_timeout_s=0.05))

    def lose(topic: str, records: Sequence[publishing.OutgoingRecord]) -> "asyncio.Future[list[publishing.Outcome]]":
        return asyncio.get_running_loop().create_future()

    monkeypatch.setattr(publisher, "enqueue", lose)
    outcomes = asyncio.run(publisher.publish("lost", [publishing.OutgoingRecord(b"")] * 1500))
    assert len(outcomes) == 1500 and {getattr(outcome, "status", None) for outcome in outcomes} == {504}


def test_a_report_that_fails_leaves_the_others_heard(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topic, made = make_topic(broker, 1), publishing.Stored

    def fail_once(*fields: int) -> publishing.Stored:
        monkeypatch.setattr(publishing, "Stored", made)
        raise ZeroDivisionError

    monkeypatch.setattr(publishing, "Stored", fail_once)
    with Cluster(broker.bootstrap_servers) as cluster:
        publisher = publishing.Publisher(cluster, Limits())

        async def publish() -> list[publishing.Outcome]:
            lost = publisher.enqueue(topic, [publishing.OutgoingRecord(b"")])
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(lost, 1.0)
            return await publisher.publish(topic, [publishing.OutgoingRecord(b"")])

        try:
            (stored,) = asyncio.run(publish())
            assert isinstance(stored, tuple) and stored[1] == 1
        finally:
            publisher.close()
    assert "report_failed" in caplog.text


async def _crowd(url: str, path: str) -> set[int]:
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_SECONDS, trust_env=False) as http:
        body = {"messages": [{"value": b64(b"x" * 6000)}]}
        responses = await asyncio.gather(*(http.post(path, json=body) for _ in range(30)))
        assert all("retry-after" in response.headers for response in responses if response.status_code == 429)
        return {response.status_code for response in responses}


def test_curl_produces_a_record(gateway: Gateway, broker: EmbeddedBroker, topic: str) -> None:
    command = ["curl", "-sS", "--fail", "-m", "30", "-H", "Content-Type: application/json"]
    body = '{"records": [{"value": {"from": "curl"}}]}'
    done = subprocess.run(
        [*command, "-d", body, f"{gateway.url}/v1/topics/{topic}/produce"], capture_output=True, check=True, timeout=60
    )
    assert json.loads(done.stdout)["offsets"][0]["offset"] == 0
    (message,) = read_all(broker, topic, 1)
    assert message.value() == b'{"from": "curl"}'


@pytest.mark.timeout(300)
def test_a_cluster_that_goes_away_and_comes_back() -> None:
    limits = Limits(produce_timeout_s=5)
    with EmbeddedBroker() as broker:
        options = GatewayOptions(broker.bootstrap_servers, limits=limits, timeout_s=5)
        with (
            Gateway(options) as gateway,
            httpx.Client(base_url=gateway.url, timeout=TIMEOUT_SECONDS, trust_env=False) as http,
        ):
            assert http.post("/topics/known/messages", json={"value": ""}).json()["offset"] == 0
            broker.stop()
            refused = http.post("/topics/known/messages", json={"value": ""})
            assert refused.status_code in (503, 504) and "brokers run" in refused.json()["hint"]
            refused = http.post("/topics/unknown/messages", json={"value": ""})
            assert refused.status_code == 503 and refused.json()["hint"]
            broker.start()
            offset = http.post("/topics/known/messages", json={"value": ""}).json()["offset"]
            assert offset in (1, 2), "what was not acknowledged may have been written"
