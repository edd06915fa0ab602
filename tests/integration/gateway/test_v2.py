"""REST v2 as callers of Confluent's REST proxy, Karapace and Strimzi's bridge speak it, checked with a Kafka client."""

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import httpx
import pytest

from millstream.gateway.server import Gateway
from millstream.raw_client import Cluster, TopicPartition
from millstream.testing import EmbeddedBroker
from tests.integration.gateway.test_produce import make_topic, read_all
from tests.waiting import TIMEOUT_SECONDS, until

pytestmark = pytest.mark.timeout(300)

V2 = "application/vnd.kafka.v2+json"


def of(format_: str) -> str:
    return f"application/vnd.kafka.{format_}.v2+json"


@pytest.fixture
def http(gateway: Gateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, timeout=TIMEOUT_SECONDS, trust_env=False) as client:
        yield client


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    return make_topic(broker, 2)


@pytest.fixture
def group() -> str:
    return f"v2-{uuid4().hex[:8]}"


def post(http: httpx.Client, path: str, body: Any, type_: str = V2) -> httpx.Response:
    return http.post(path, content=b"" if body is None else json.dumps(body), headers={"Content-Type": type_})


def refused(response: httpx.Response, status: int, code: int) -> None:
    assert (response.status_code, response.json()["error_code"]) == (status, code), response.text
    assert set(response.json()) == {"error_code", "message"}


class Instance:
    """A consumer instance, as the documentation of Confluent's proxy uses it."""

    def __init__(self, http: httpx.Client, group: str, **settings: Any) -> None:
        made = post(http, f"/consumers/{group}", settings)
        assert made.status_code == 200 and made.headers["content-type"] == V2
        assert set(made.json()) == {"instance_id", "base_uri"}
        self.name, self.uri = made.json()["instance_id"], made.json()["base_uri"]
        self.format = settings.get("format", "binary")
        self._http = http

    def post(self, path: str, body: Any) -> httpx.Response:
        return post(self._http, f"{self.uri}/{path}", body)

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self._http.get(f"{self.uri}/{path}", **more)

    def delete(self, path: str = "") -> httpx.Response:
        return self._http.delete(f"{self.uri}/{path}".rstrip("/"))

    def committed(self, topic: str, *partitions: int) -> list[dict[str, Any]]:
        wanted = {"partitions": [{"topic": topic, "partition": number} for number in partitions]}
        found = self._http.request("GET", f"{self.uri}/offsets", json=wanted, headers={"Accept": V2})
        assert found.status_code == 200, found.text
        return list(found.json()["offsets"])

    def read(self, count: int) -> list[dict[str, Any]]:
        """So many records. The first polls may be before the group has assigned partitions."""
        found: list[dict[str, Any]] = []

        def enough() -> bool:
            response = self.get("records?timeout=5000&max_bytes=300000", headers={"Accept": of(self.format)})
            assert response.status_code == 200 and response.headers["content-type"] == of(self.format), response.text
            found.extend(response.json())
            return len(found) >= count

        until(enough)
        return found


def test_topics_partitions_and_brokers(http: httpx.Client, topic: str) -> None:
    accept = {"Accept": V2}
    names = http.get("/topics", headers=accept)
    assert topic in names.json() and names.headers["content-type"] == V2
    found = http.get(f"/topics/{topic}", headers=accept).json()
    assert set(found) == {"name", "configs", "partitions"} and found["configs"]["cleanup.policy"] == "delete"
    (broker,) = http.get("/brokers", headers=accept).json()["brokers"]
    partition = {"partition": 0, "leader": broker, "replicas": [{"broker": broker, "leader": True, "in_sync": True}]}
    assert found["partitions"][0] == partition
    assert http.get(f"/topics/{topic}/partitions", headers=accept).json() == found["partitions"]
    assert http.get(f"/topics/{topic}/partitions/0").json() == partition
    offsets = http.get(f"/topics/{topic}/partitions/0/offsets", headers=accept)
    assert offsets.json() == {"beginning_offset": 0, "end_offset": 0}
    refused(http.get("/topics/missing", headers=accept), 404, 40401)
    refused(http.get("/topics/missing/partitions", headers=accept), 404, 40401)
    refused(http.get(f"/topics/{topic}/partitions/2", headers=accept), 404, 40402)
    refused(http.get(f"/topics/{topic}/partitions/x", headers=accept), 404, 40402)
    refused(http.get(f"/topics/{topic}/partitions/7/offsets", headers=accept), 404, 40402)
    own = http.get("/topics").json()  # without a type of v2 the same path is a route of our own
    assert topic in [row["name"] for row in own["topics"]]


def test_produce_in_formats_without_schema(http: httpx.Client, broker: EmbeddedBroker, topic: str) -> None:
    header = {"key": "trace", "value": base64.b64encode(b"\x01").decode()}
    record = {
        "key": "somekey",
        "value": {"foo": "bar"},
        "partition": 1,
        "headers": [header],
        "timestamp": 1_700_000_000_000,
    }
    made = post(http, f"/topics/{topic}", {"records": [record, {"value": [1], "partition": 1}]}, of("json"))
    assert made.status_code == 200 and made.headers["content-type"] == V2
    assert made.json() == {
        "key_schema_id": None,
        "value_schema_id": None,
        "offsets": [
            {"partition": 1, "offset": 0, "error_code": None, "error": None},
            {"partition": 1, "offset": 1, "error_code": None, "error": None},
        ],
    }
    binary = {"records": [{"key": "a2V5", "value": "Y29uZmx1ZW50"}]}
    assert post(http, f"/topics/{topic}/partitions/1", binary, of("binary")).json()["offsets"][0]["offset"] == 2
    text = {"records": [{"key": "k", "value": "é", "partition": 1}, {"key": "k", "partition": 1}]}
    assert post(http, f"/topics/{topic}", text, of("text")).json()["offsets"][1]["offset"] == 4
    first, second, third, fourth, fifth = read_all(broker, topic, 5)
    assert (first.key(), first.value(), first.headers()) == (b'"somekey"', b'{"foo": "bar"}', [("trace", b"\x01")])
    assert first.timestamp()[1] == 1_700_000_000_000
    assert (second.key(), second.value()) == (None, b"[1]")
    assert (third.key(), third.value()) == (b"key", b"confluent")
    assert (fourth.key(), fourth.value(), fifth.value()) == (b"k", "é".encode(), None)


def test_wrong_produce_requests_are_refused(http: httpx.Client, topic: str) -> None:
    good: dict[str, Any] = {"records": [{"value": {}}]}
    refused(post(http, f"/topics/{topic}", good, "application/json"), 415, 415)
    refused(post(http, f"/topics/{topic}", good, of("xml")), 415, 415)
    refused(post(http, f"/topics/{topic}", {"records": []}, of("json")), 422, 422)
    refused(post(http, f"/topics/{topic}", {"records": [{"value": "%"}]}, of("binary")), 422, 422)
    refused(post(http, f"/topics/{topic}", {"recrods": []}, of("json")), 422, 422)
    refused(post(http, f"/topics/{topic}/partitions/9", good, of("json")), 404, 40402)
    refused(post(http, f"/topics/{topic}", good, of("avro")), 422, 42202)
    keys = {"records": [{"key": 1, "value": 1}], "value_schema": '"int"'}
    refused(post(http, f"/topics/{topic}", keys, of("avro")), 422, 42201)
    refused(post(http, f"/topics/{topic}", good | {"value_schema": "{"}, of("avro")), 422, 42205)
    refused(post(http, f"/topics/{topic}", good | {"value_schema_id": 2_000_000}, of("avro")), 422, 42205)
    wrong = {"value_schema": '"int"', "records": [{"value": "x"}]}
    refused(post(http, f"/topics/{topic}", wrong, of("avro")), 422, 42203)


SCHEMAS = {
    "avro": '{"type":"record","name":"User","fields":[{"name":"name","type":"string"}]}',
    "jsonschema": '{"type":"object","properties":{"name":{"type":"string"}}}',
    "protobuf": 'syntax="proto3"; message User { string name = 1; }',
}


@pytest.mark.parametrize("format_", SCHEMAS)
def test_formats_with_a_schema(http: httpx.Client, topic: str, group: str, format_: str) -> None:
    body = {"value_schema": SCHEMAS[format_], "records": [{"value": {"name": "testUser"}, "partition": 0}]}
    made = post(http, f"/topics/{topic}", body, of(format_)).json()
    assert made["offsets"] == [{"partition": 0, "offset": 0, "error_code": None, "error": None}]
    by_id = {"value_schema_id": made["value_schema_id"], "records": [{"key": None, "value": None, "partition": 0}]}
    assert post(http, f"/topics/{topic}", by_id, of(format_)).json()["value_schema_id"] == made["value_schema_id"] > 0
    post(http, f"/topics/{topic}", {"records": [{"value": "plain", "partition": 0}]}, of("text"))
    consumer = Instance(http, group, format=format_, **{"auto.offset.reset": "earliest"})
    assert consumer.post("assignments", {"partitions": [{"topic": topic, "partition": 0}]}).status_code == 204
    first, second = consumer.read(2)
    assert (first["value"], second["value"]) == ({"name": "testUser"}, None)
    refused(consumer.get("records?timeout=5000", headers={"Accept": of(format_)}), 422, 42207)  # it has no schema
    assert consumer.post("positions", {"offsets": [{"topic": topic, "partition": 0, "offset": 3}]}).status_code == 204
    assert consumer.get("records?timeout=0").json() == []
    consumer.delete()


def test_a_consumer_from_creation_to_deletion(
    http: httpx.Client, broker: EmbeddedBroker, gateway: Gateway, topic: str, group: str
) -> None:
    settings = {"name": "my_consumer", "format": "json", "auto.offset.reset": "earliest", "auto.commit.enable": "false"}
    consumer = Instance(http, group, **settings)
    assert consumer.uri == f"{gateway.url}/consumers/{group}/instances/my_consumer"
    refused(post(http, f"/consumers/{group}", {"name": "my_consumer"}), 409, 40902)
    refused(consumer.get("records"), 409, 40903)
    refused(consumer.post("subscription", {"topics": ["missing"]}), 404, 40401)
    refused(consumer.post("subscription", {}), 422, 422)
    assert consumer.post("subscription", {"topics": [topic]}).status_code == 204
    assert consumer.get("subscription").json() == {"topics": [topic]}
    refused(consumer.post("subscription", {"topic_pattern": "x.*"}), 409, 40903)
    refused(consumer.post("assignments", {"partitions": [{"topic": topic, "partition": 0}]}), 409, 40903)
    rows = [{"key": "a", "value": {"n": number}, "partition": number % 2} for number in range(4)]
    post(http, f"/topics/{topic}", {"records": rows}, of("json"))
    found = sorted(consumer.read(4), key=lambda row: row["value"]["n"])
    assert set(found[0]) == {"topic", "key", "value", "partition", "offset", "timestamp"}
    assert [(row["key"], row["value"], row["partition"], row["offset"]) for row in found] == [
        ("a", {"n": number}, number % 2, number // 2) for number in range(4)
    ]
    refused(consumer.get("records", headers={"Accept": of("binary")}), 406, 40601)
    assert consumer.get("records?timeout=0", headers={"Accept": V2}).json() == []
    both = [{"topic": topic, "partition": 0}, {"topic": topic, "partition": 1}]
    assert consumer.get("assignments").json() == {"partitions": both}
    assert consumer.committed(topic, 0, 1) == []
    done = {"offsets": [{"topic": topic, "partition": 0, "offset": 0, "metadata": "mine"}]}
    assert consumer.post("offsets", done).status_code == 204
    assert consumer.committed(topic, 0, 1) == [{"topic": topic, "partition": 0, "offset": 1, "metadata": "mine"}]
    assert consumer.post("offsets", None).status_code == 204  # all that was read
    assert [row["offset"] for row in consumer.committed(topic, 0, 1)] == [2, 2]
    with Cluster(broker.bootstrap_servers) as cluster:
        places = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
        assert cluster.committed_offsets(group, places) == dict.fromkeys(places, 2)

    assert consumer.post("positions/beginning", {"partitions": both}).status_code == 204
    assert len(consumer.read(4)) == 4
    assert consumer.post("positions", {"offsets": [both[0] | {"offset": 1}]}).status_code == 204
    assert [row["value"] for row in consumer.read(1)] == [{"n": 2}]
    assert consumer.post("positions/beginning", {"partitions": both}).status_code == 204
    assert consumer.post("positions/end", {"partitions": both}).status_code == 204
    assert consumer.get("records?timeout=0").json() == []
    refused(consumer.post("positions", {"offsets": [{"topic": topic, "partition": 7, "offset": 0}]}), 409, 40903)

    assert consumer.delete("subscription").status_code == 204
    assert (
        consumer.get("subscription").json() == {"topics": []} and consumer.get("assignments").json()["partitions"] == []
    )
    assert consumer.delete().status_code == 204
    refused(consumer.get("records"), 404, 40403)
    refused(consumer.delete(), 404, 40403)


def test_a_consumer_commits_automatically_when_it_leaves(http: httpx.Client, topic: str, group: str) -> None:
    """On by default, as in Kafka: what was read is committed when the consumer goes."""
    post(http, f"/topics/{topic}", {"records": [{"value": "Kg==", "partition": 0}] * 3}, of("binary"))
    first = Instance(http, group, **{"auto.offset.reset": "earliest"})
    first.post("subscription", {"topics": [topic]})
    assert [row["value"] for row in first.read(3)] == ["Kg=="] * 3
    assert first.delete().status_code == 204
    second = Instance(http, group, **{"auto.offset.reset": "none"})
    assert [row["offset"] for row in second.committed(topic, 0)] == [3]
    assert second.post("assignments", {"partitions": [{"topic": topic, "partition": 0}]}).status_code == 204
    assert second.get("records?timeout=0").json() == []
    second.delete()


def test_a_consumer_reads_partitions_assigned_by_hand(http: httpx.Client, topic: str, group: str) -> None:
    place = {"topic": topic, "partition": 1}
    consumer = Instance(http, group, **{"auto.offset.reset": "none", "enable.auto.commit": False})
    refused(consumer.post("assignments", {"partitions": [{"topic": "missing", "partition": 0}]}), 404, 40401)
    refused(consumer.post("assignments", {"partitions": [{"topic": topic, "partition": 2}]}), 404, 40402)
    assert consumer.post("assignments", {"partitions": [place]}).status_code == 204
    assert consumer.get("assignments").json() == {"partitions": [place]}
    assert consumer.get("subscription").json() == {"topics": []}
    refused(consumer.post("subscription", {"topics": [topic]}), 409, 40903)
    refused(consumer.get("records?timeout=5000"), 409, 40903)  # there is no offset to begin at
    assert consumer.post("positions/end", {"partitions": [place]}).status_code == 204
    post(http, f"/topics/{topic}/partitions/1", {"records": [{"value": "Kg=="}]}, of("binary"))
    assert [row["offset"] for row in consumer.read(1)] == [0]
    assert consumer.post("offsets", None).status_code == 204
    assert [row["offset"] for row in consumer.committed(topic, 1)] == [1]
    consumer.delete()


def test_a_consumer_subscribes_to_a_pattern(http: httpx.Client, topic: str, group: str) -> None:
    consumer = Instance(http, group, format="text", **{"auto.offset.reset": "earliest"})
    assert consumer.post("subscription", {"topic_pattern": f"{topic[:-1]}."}).status_code == 204
    post(http, f"/topics/{topic}", {"records": [{"value": "hello", "partition": 0}]}, of("text"))
    assert [row["value"] for row in consumer.read(1)] == ["hello"]
    assert consumer.get("subscription").json() == {"topics": [topic]}
    refused(consumer.post("subscription", {"topics": [topic]}), 409, 40903)
    consumer.delete()


def test_a_record_in_another_format_hides_none_before_it(http: httpx.Client, topic: str, group: str) -> None:
    good = {"records": [{"value": '{"n": 1}', "partition": 0}, {"value": "no JSON", "partition": 0}]}
    post(http, f"/topics/{topic}", good, of("text"))
    consumer = Instance(http, group, format="json", **{"auto.offset.reset": "earliest"})
    consumer.post("assignments", {"partitions": [{"topic": topic, "partition": 0}]})
    assert [row["value"] for row in consumer.read(1)] == [{"n": 1}]
    refused(consumer.get("records?timeout=5000"), 422, 42207)
    consumer.delete()


def test_settings_of_an_instance(http: httpx.Client, topic: str, group: str) -> None:
    refused(post(http, f"/consumers/{group}", {"format": "xml"}), 422, 422)
    refused(post(http, f"/consumers/{group}", {"auto.offset.reset": "middle"}), 422, 422)
    refused(post(http, f"/consumers/{group}", {"fetch.min.bytes": 99_000_000}), 422, 422)
    refused(post(http, f"/consumers/{group}", {"fetch.min.bytes": "99000000"}), 422, 42204)
    refused(post(http, f"/consumers/{group}", {"nmae": "x"}), 422, 422)
    settings = {"fetch.min.bytes": 300, "consumer.request.timeout.ms": "60000", "auto.offset.reset": "earliest"}
    consumer = Instance(http, group, **settings)
    consumer.post("assignments", {"partitions": [{"topic": topic, "partition": 0}]})
    with ThreadPoolExecutor(1) as thread:
        polled = thread.submit(consumer.get, "records")
        for _ in range(3):
            body = {"records": [{"value": base64.b64encode(b"x" * 100).decode()}]}
            assert post(http, f"/topics/{topic}/partitions/0", body, of("binary")).status_code == 200
        assert len(polled.result().json()) >= 2  # one record alone is not enough
    consumer.delete()
