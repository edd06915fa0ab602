"""Confluent's REST v3, asked as its callers do, checked against what Kafka clients see."""

import asyncio
import base64
import http.client
import json
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest
from confluent_kafka import Consumer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer

from millstream.gateway.http.request import BrokenStreamError, JsonSplitter, split
from millstream.gateway.server import Gateway
from millstream.testing import EmbeddedBroker
from tests.integration.gateway.test_produce import make_topic, read_all
from tests.waiting import TIMEOUT_SECONDS

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def api(gateway: Gateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, timeout=TIMEOUT_SECONDS, trust_env=False) as client:
        (cluster,) = client.get("/v3/clusters").json()["data"]
        client.base_url = httpx.URL(f"{gateway.url}/v3/clusters/{cluster['cluster_id']}/")
        yield client


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    return make_topic(broker, 2)


def refused(response: httpx.Response, status: int, code: int) -> None:
    assert response.status_code == status
    assert set(response.json()) == {"error_code", "message"} and response.json()["error_code"] == code


def lines(response: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line) for line in response.text.splitlines() if line]


def test_offsets_of_a_partition(api: httpx.Client, gateway: Gateway, topic: str) -> None:
    """In the form that Confluent's proxy has since 8.0; also below /kafka, where Confluent Server has it."""
    api.post(f"topics/{topic}/records", json={"partition_id": 1, "value": {"type": "STRING", "data": "x"}})
    path = f"topics/{topic}/partitions/1/offset"
    found = api.get(path, params={"offset_type": "earliest_and_latest"})
    id_ = found.json()["cluster_id"]
    assert found.json() == {
        "kind": "KafkaPartitionWithOffsets",
        "metadata": {
            "self": f"{gateway.url}/v3/clusters/{id_}/{path}",
            "resource_name": f"crn:///kafka={id_}/topic={topic}/partition=1/offset_type=earliest_and_latest",
        },
        "cluster_id": id_,
        "topic_name": topic,
        "partition_id": 1,
        "earliest_offset": 0,
        "latest_offset": 1,
    }
    assert api.get(path).json() == api.get(f"{gateway.url}/kafka/v3/clusters/{id_}/{path}").json() == found.json()
    refused(api.get(path, params={"offset_type": "latest"}), 400, 400)
    refused(api.get(f"topics/{topic}/partitions/2/offset"), 404, 404)


def test_clusters_and_brokers_are_listed(api: httpx.Client, gateway: Gateway) -> None:
    found = api.get(f"{gateway.url}/v3/clusters").json()
    assert found["kind"] == "KafkaClusterList" and found["metadata"] == {
        "self": f"{gateway.url}/v3/clusters",
        "next": None,
    }
    cluster = api.get(found["data"][0]["metadata"]["self"]).json()
    assert (
        cluster == found["data"][0] and cluster["metadata"]["resource_name"] == f"crn:///kafka={cluster['cluster_id']}"
    )
    brokers = api.get(cluster["brokers"]["related"]).json()
    (broker,) = brokers["data"]
    assert brokers["kind"] == "KafkaBrokerList" and broker["kind"] == "KafkaBroker" and broker["host"] == "127.0.0.1"
    assert api.get(cluster["controller"]["related"]).json() == api.get(broker["metadata"]["self"]).json() == broker
    refused(api.get("brokers/77"), 404, 404)
    refused(api.get("brokers/seven"), 404, 404)
    refused(api.get(f"{gateway.url}/v3/clusters/other/topics"), 404, 404)
    refused(api.get(f"{gateway.url}/v3/nothing"), 404, 404)


def test_topics_are_created_listed_and_deleted(api: httpx.Client) -> None:
    name = f"v3-{uuid4().hex[:8]}"
    body = {"topic_name": name, "partitions_count": 2, "replication_factor": 1}
    body |= {"configs": [{"name": "cleanup.policy", "value": "compact"}]}
    checked = api.post("topics", json=body | {"validate_only": True})
    assert checked.status_code == 201
    refused(api.get(f"topics/{name}"), 404, 40403)
    made = api.post("topics", json=body)
    assert made.status_code == 201 and made.json()["kind"] == "KafkaTopic" and made.json()["partitions_count"] == 2
    refused(api.post("topics", json=body), 400, 40002)
    assert made.json() in api.get("topics").json()["data"]
    assert api.get(made.json()["metadata"]["self"]).json() == made.json()
    assert api.get(f"topics/{name}/configs/cleanup.policy").json()["value"] == "compact"

    partitions = api.get(made.json()["partitions"]["related"]).json()
    assert [row["partition_id"] for row in partitions["data"]] == [0, 1]
    first = partitions["data"][0]
    assert api.get(first["metadata"]["self"]).json() == first
    (replica,) = api.get(first["replicas"]["related"]).json()["data"]
    assert replica["is_leader"] and replica["is_in_sync"]
    assert api.get(first["leader"]["related"]).json() == replica

    held = api.get(api.get(replica["broker"]["related"]).json()["partition_replicas"]["related"]).json()
    assert held["kind"] == "KafkaReplicaList" and replica in held["data"]
    for path in ("topics/-/partitions/-/reassignment", f"topics/{name}/partitions/-/reassignment"):
        moves = api.get(path).json()
        assert (moves["kind"], moves["data"]) == ("KafkaReassignmentList", [])
    refused(api.get(first["reassignment"]["related"]), 404, 404)
    refused(api.get("topics/nowhere/partitions/-/reassignment"), 404, 40403)

    assert api.patch(f"topics/{name}", json={"partitions_count": 3}).json()["partitions_count"] == 3
    refused(api.patch(f"topics/{name}", json={"partitions_count": 1}), 400, 40002)
    refused(api.get(f"topics/{name}/partitions/9"), 404, 404)
    assert api.delete(f"topics/{name}").status_code == 204
    refused(api.delete(f"topics/{name}"), 404, 40403)
    for bad in ({}, {"topic_name": 5}, {"topic_name": "x", "what": 1}, {"topic_name": "x", "configs": [1]}):
        refused(api.post("topics", json=bad), 400, 400)
    refused(api.post("topics", json={"topic_name": "a b"}), 400, 40002)
    refused(api.post("topics", json={"topic_name": "x", "replication_factor": 9}), 400, 40002)


def test_configs_of_a_topic_are_read_and_changed(api: httpx.Client, topic: str) -> None:
    configs = f"topics/{topic}/configs"
    found = api.get(configs).json()
    assert found["kind"] == "KafkaTopicConfigList" and all(row["topic_name"] == topic for row in found["data"])
    one = api.get(f"{configs}/retention.ms").json()
    assert one["is_default"] and one["source"] == "DEFAULT_CONFIG" and one in found["data"]
    assert api.put(f"{configs}/retention.ms", json={"value": "60000"}).status_code == 204
    one = api.get(f"{configs}/retention.ms").json()
    assert (one["value"], one["is_default"], one["source"]) == ("60000", False, "DYNAMIC_TOPIC_CONFIG")
    assert one["synonyms"][0] == {"name": "retention.ms", "value": "60000", "source": "DYNAMIC_TOPIC_CONFIG"}
    data = [{"name": "retention.ms", "operation": "DELETE"}, {"name": "segment.bytes", "value": "2000000"}]
    assert api.post(f"{configs}:alter", json={"data": data}).status_code == 204
    assert api.get(f"{configs}/segment.bytes").json()["value"] == "2000000"
    assert api.get(f"{configs}/retention.ms").json()["is_default"]
    assert api.delete(f"{configs}/segment.bytes").status_code == 204
    assert api.get(f"{configs}/segment.bytes").json()["is_default"]
    refused(api.put(f"{configs}/retention.ms", json={"value": "soon"}), 400, 40002)
    refused(api.get(f"{configs}/no.such"), 404, 40403)
    refused(api.get("topics/nowhere/configs"), 404, 40403)
    refused(api.post(f"{configs}:alter", json={"data": []}), 400, 400)

    broker_id = api.get("brokers").json()["data"][0]["broker_id"]
    settings = api.get(f"brokers/{broker_id}/configs").json()
    assert settings["kind"] == "KafkaBrokerConfigList" and len(settings["data"]) > 10
    assert api.put("broker-configs/log.retention.ms", json={"value": "7200000"}).status_code == 204
    for_all = {row["name"]: row["value"] for row in api.get("broker-configs").json()["data"]}
    assert for_all["log.retention.ms"] == "7200000"
    assert api.delete("broker-configs/log.retention.ms").status_code == 204


def test_groups_and_their_lags_are_listed(api: httpx.Client, broker: EmbeddedBroker, topic: str) -> None:
    group = f"v3-{uuid4().hex[:8]}"
    for number in range(5):
        api.post(f"topics/{topic}/records", json={"partition_id": 0, "value": {"type": "STRING", "data": str(number)}})
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "client.id": "ann",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe([topic])
        first, second = consumer.poll(TIMEOUT_SECONDS), consumer.poll(TIMEOUT_SECONDS)
        assert first is not None and second is not None
        consumer.commit(message=second, asynchronous=False)
        found = api.get(f"consumer-groups/{group}").json()
        assert (found["kind"], found["state"]) == ("KafkaConsumerGroup", "STABLE")
        assert found in api.get("consumer-groups").json()["data"]
        (member,) = api.get(found["consumers"]["related"]).json()["data"]
        assert member["client_id"] == "ann" and api.get(member["metadata"]["self"]).json() == member
        assignments = api.get(member["assignments"]["related"]).json()["data"]
        assert [(row["topic_name"], row["partition_id"]) for row in assignments] == [(topic, 0), (topic, 1)]
        assert api.get(assignments[0]["metadata"]["self"]).json() == assignments[0]
        lag = api.get(assignments[0]["lag"]["related"]).json()
        assert (lag["current_offset"], lag["log_end_offset"], lag["lag"], lag["client_id"]) == (2, 5, 3, "ann")
        assert lag in api.get(f"consumer-groups/{group}/lags").json()["data"]
        summary = api.get(found["lag_summary"]["related"]).json()
        assert (summary["max_lag"], summary["total_lag"], summary["max_lag_client_id"]) == (3, 3, "ann")
        refused(api.delete(f"consumer-groups/{group}"), 409, 40903)
        refused(api.get(f"consumer-groups/{group}/consumers/nobody"), 404, 404)
    finally:
        consumer.close()
    assert api.delete(f"consumer-groups/{group}").status_code == 204
    refused(api.get(f"consumer-groups/{group}"), 404, 40403)


def test_one_record_is_stored_as_sent(api: httpx.Client, broker: EmbeddedBroker, topic: str) -> None:
    body = {
        "partition_id": 1,
        "headers": [{"name": "h", "value": base64.b64encode(b"\x01").decode()}],
        "key": {"type": "BINARY", "data": base64.b64encode(b"k\xff").decode()},
        "value": {"type": "JSON", "data": {"n": 1}},
        "timestamp": "2021-02-05T19:14:42Z",
    }
    response = api.post(f"topics/{topic}/records", json=body)
    assert response.status_code == 200
    told = response.json()
    assert told.pop("cluster_id")
    assert told == {
        "error_code": 200,
        "topic_name": topic,
        "partition_id": 1,
        "offset": 0,
        "timestamp": "2021-02-05T19:14:42.000Z",
        "key": {"type": "BINARY", "size": 2},
        "value": {"type": "JSON", "size": 7},
    }
    (message,) = read_all(broker, topic, 1)
    assert (message.key(), message.value(), message.headers()) == (b"k\xff", b'{"n":1}', [("h", b"\x01")])


def test_each_line_is_the_response_to_its_record(api: httpx.Client, broker: EmbeddedBroker, topic: str) -> None:
    records = [{"value": {"type": "STRING", "data": str(number)}, "partition_id": 0} for number in range(50)]
    texts = [json.dumps(record) for record in records]
    texts[3] = '{"value": {"type": "BINARY", "data": "!"}}'
    texts[7] = '{"partition_id": 99, "value": null}'
    texts[9] = '{"what": 1}'
    sent = [text.encode() for text in texts]
    sent[11:11] = [
        b'{"value": {"type": "STRING", "data": "\xff"}}',
        b'{"value": {"type": "JSON", "data": "\xff"}}',
        b'{"headers": [{"name": "a\\u0000b"}]}',
    ]
    found = lines(api.post(f"topics/{topic}/records", content=b"\n".join(sent)))
    assert [row["error_code"] for row in found if row["error_code"] != 200] == [400, 40404, 400, 400, 400, 400]
    assert [number for number, row in enumerate(found) if row["error_code"] != 200] == [3, 7, 9, 11, 12, 13]
    assert [row["offset"] for row in found if row["error_code"] == 200] == list(range(47))
    assert len(read_all(broker, topic, 47)) == 47
    broken = lines(api.post(f"topics/{topic}/records", content=f"{texts[0]} nonsense {texts[1]}"))
    assert [row["error_code"] for row in broken] == [200, 400]
    cut = lines(api.post(f"topics/{topic}/records", content=texts[0] + texts[1][:-5]))
    assert [row["error_code"] for row in cut] == [200, 400]
    refused(api.post(f"topics/{topic}/records", content=""), 400, 400)


def test_responses_come_while_records_are_still_sent(gateway: Gateway, api: httpx.Client, topic: str) -> None:
    path = httpx.URL(f"{api.base_url}topics/{topic}/records").path
    host, _, port = gateway.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: {gateway.address}\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head.encode())
        response = http.client.HTTPResponse(connection)
        for number in range(3):
            record = json.dumps({"partition_id": 0, "value": {"type": "JSON", "data": number}}).encode()
            for part in (record[:9], record[9:]):  # a record may come in pieces
                connection.sendall(b"%x\r\n%s\r\n" % (len(part), part))
            if not number:
                response.begin()
            assert json.loads(response.readline())["offset"] == number
        connection.sendall(b"0\r\n\r\n")
        assert response.read().strip() == b""


def test_timestamps_keep_their_milliseconds(api: httpx.Client, broker: EmbeddedBroker) -> None:
    """A millisecond is not lost on the way, and what librdkafka would take for now is refused."""
    topic = make_topic(broker, 1, retention_ms="-1")  # a record is from 1970
    times = {"1970-01-01T00:00:01.001Z": 1_001, "2023-11-14T22:13:20.123": 1_700_000_000_123}
    refused = ["1970-01-01T00:00:00Z", "1970-01-01T01:00:00+01:00", "1969-12-31T23:59:59Z", "9999-12-31T23:59:59-14:00"]
    body = b"".join(json.dumps({"timestamp": at}).encode() for at in (*times, *refused))
    told = lines(api.post(f"topics/{topic}/records", content=body))
    assert [row["error_code"] for row in told] == [200] * 2 + [400] * 4 and "1970" in told[-1]["message"]
    assert told[0]["timestamp"] == "1970-01-01T00:00:01.001Z"
    assert [row.timestamp()[1] for row in read_all(broker, topic, 2)] == list(times.values())


def test_records_are_encoded_with_schemas(
    api: httpx.Client, gateway: Gateway, broker: EmbeddedBroker, topic: str
) -> None:
    avro = json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": ["null", "long"]}]})
    data = {"n": {"long": 7}}
    first = {"partition_id": 0, "value": {"type": "AVRO", "schema": avro, "data": data}}
    (told,) = lines(api.post(f"topics/{topic}/records", json=first))
    assert told["error_code"] == 200
    assert told["value"].items() >= {"type": "AVRO", "subject": f"{topic}-value", "schema_version": 1}.items()
    number = told["value"]["schema_id"]
    for value in (
        {"schema_id": number, "data": data},
        {"type": "AVRO", "data": data},
        {"subject": f"{topic}-value", "schema_version": 1, "data": data},
    ):
        (told,) = lines(api.post(f"topics/{topic}/records", json={"partition_id": 0, "value": value}))
        assert told["error_code"] == 200
    (other,) = lines(api.post("topics/another-with-the-same/records", json=first))
    assert (other["value"]["schema_id"], other["value"]["subject"]) == (number, "another-with-the-same-value")
    with SchemaRegistryClient({"url": gateway.url}) as client:
        read = AvroDeserializer(client)
        assert [read(row.value(), None) for row in read_all(broker, topic, 4)] == [{"n": 7}] * 4
    for value, code in (
        ({"schema_id": number, "data": {"n": "x"}}, 42206),
        ({"schema_id": 9999, "data": {}}, 40403),
        ({"type": "PROTOBUF", "schema_id": number, "data": {}}, 400),
        ({"type": "XML", "data": ""}, 400),
        ({"data": data, "subject": "no-such-subject"}, 40401),
        ({"type": "AVRO", "schema": "{", "data": {}}, 42201),
    ):
        (told,) = lines(api.post(f"topics/{topic}/records", json={"value": value}))
        assert told["error_code"] == code, told


def test_subjects_by_the_name_of_the_record(api: httpx.Client, topic: str) -> None:
    name = f"R{uuid4().hex[:8]}"
    avro = json.dumps({"type": "record", "name": name, "namespace": "shop", "fields": [{"name": "n", "type": "long"}]})
    title = json.dumps({"title": name, "type": "object"})
    proto = f'syntax = "proto3"; package shop; message P{name} {{ int64 n = 1; }}'
    for type_, schema, subject in (
        ("AVRO", avro, f"shop.{name}"),
        ("JSONSCHEMA", title, name),
        ("PROTOBUF", proto, f"shop.P{name}"),
    ):
        for strategy, expected in (("RECORD_NAME", subject), ("TOPIC_RECORD_NAME", f"{topic}-{subject}")):
            part: dict[str, Any] = {"subject_name_strategy": strategy, "data": {"n": 1}}
            (told,) = lines(
                api.post(f"topics/{topic}/records", json={"value": part | {"type": type_, "schema": schema}})
            )
            assert told["error_code"] == 200 and told["value"]["subject"] == expected, told
            by_id = part | {"schema_id": told["value"]["schema_id"]}
            (told,) = lines(api.post(f"topics/{topic}/records", json={"value": by_id}))
            assert told["error_code"] == 200 and told["value"]["subject"] == expected, told
    for part, code in (
        ({"subject_name_strategy": "RECORD_NAME", "type": "AVRO", "data": {}}, 400),
        ({"subject_name_strategy": "RECORD_NAME", "type": "AVRO", "schema": '"long"', "data": 1}, 400),
        ({"subject_name_strategy": "ANY_NAME", "type": "AVRO", "schema": avro, "data": {"n": 1}}, 400),
    ):
        (told,) = lines(api.post(f"topics/{topic}/records", json={"value": part}))
        assert told["error_code"] == code, told


@pytest.mark.parametrize(
    "part",
    [
        {"type": "JSON", "schema_id": 1},
        {"type": "BINARY", "subject": "orders-value"},
        {"type": "STRING", "schema": "{}"},
        {"type": "AVRO", "schema": '"long"', "schema_id": 1},
        {"type": "AVRO", "schema": '"long"', "schema_version": 1},
        {"schema_id": 1, "schema_version": 1},
        {"type": "AVRO", "subject": "orders-value", "subject_name_strategy": "TOPIC_NAME"},
    ],
)
def test_fields_of_a_record_that_exclude_each_other(api: httpx.Client, topic: str, part: dict[str, Any]) -> None:
    (told,) = lines(api.post(f"topics/{topic}/records", json={"value": part | {"data": "eA=="}}))
    assert told["error_code"] == 400, told


def test_settings_of_all_topics_and_brokers(api: httpx.Client, topic: str) -> None:
    found = api.get("topics/-/configs").json()
    assert found["kind"] == "KafkaTopicConfigList"
    assert topic in {row["topic_name"] for row in found["data"]}
    one = api.get(f"topics/{topic}/configs").json()["data"]
    assert [row for row in found["data"] if row["topic_name"] == topic] == one
    brokers = api.get("brokers/-/configs").json()
    assert brokers["kind"] == "KafkaBrokerConfigList"
    assert {row["broker_id"] for row in brokers["data"]} == {1}


def test_a_reassignment_is_started_or_refused(api: httpx.Client, topic: str) -> None:
    place = f"topics/{topic}/partitions/0/reassignment"
    assert api.post(place, json={"broker_ids": [1]}).status_code == 202
    refused(api.post(place, json={"broker_ids": [77]}), 400, 400)
    cancelled = api.post(place, json={"broker_ids": []})  # nothing is under way
    refused(cancelled, 400, 400)
    assert "reassignment" in cancelled.json()["message"]
    refused(api.post(f"topics/{topic}/partitions/9/reassignment", json={"broker_ids": [1]}), 404, 404)
    assert api.post(place, json={"broker_ids": "all"}).status_code == 400


def test_acls_without_an_authorizer_are_refused(api: httpx.Client) -> None:
    response = api.get("acls")
    refused(response, 400, 40002)
    assert "authorizer" in response.json()["message"]


def test_a_batch_has_a_status_for_each_record(api: httpx.Client, topic: str) -> None:
    entries: list[dict[str, Any]] = [{"id": str(n), "value": {"type": "STRING", "data": "x"}} for n in range(3)]
    entries[1]["value"]["data"] = 5
    response = api.post(f"topics/{topic}/records:batch", json={"entries": entries})
    assert response.status_code == 207
    assert [row["id"] for row in response.json()["successes"]] == ["0", "2"]
    assert [(row["id"], row["error_code"]) for row in response.json()["failures"]] == [("1", 400)]
    refused(api.post(f"topics/{topic}/records:batch", json={"entries": [entries[0], entries[0]]}), 400, 400)


def test_the_splitter_finds_the_same_objects_however_they_are_cut() -> None:
    objects = [b'{"a":"}\\"{"}', b"{}", b'{"b":[{"c":"\\\\"}]}']
    stream = b" \n".join(objects)
    for size in (1, 2, 3, 7, 100):
        splitter = JsonSplitter(100)
        found = [one for at in range(0, len(stream), size) for one in splitter.feed(stream[at : at + size])]
        assert found == objects and splitter.is_clean
    with pytest.raises(BrokenStreamError):
        list(JsonSplitter(100).feed(b"[1]"))
    with pytest.raises(BrokenStreamError):
        list(JsonSplitter(100).feed(b'{"a":"' + b"x" * 100))
    with pytest.raises(BrokenStreamError):
        list(JsonSplitter(100).feed(b'{"a":"' + b"x" * 100 + b'"}'))


@pytest.mark.parametrize("stream", [b"{}" * 10_000, b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"])
def test_others_have_their_turn_while_much_is_split(stream: bytes) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield stream

    async def turns_of_another() -> int:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        assert b"".join([one async for one in split(pieces(), 1 << 20)]) == stream
        task.cancel()
        return turns

    assert asyncio.run(turns_of_another()) >= 10


def test_what_came_before_the_end_of_sense_is_told_first() -> None:
    async def told(stream: bytes) -> list[bytes]:
        async def pieces() -> AsyncIterator[bytes]:
            yield stream

        found = []
        with pytest.raises(BrokenStreamError):
            async for one in split(pieces(), 100):
                found.append(one)
        return found

    for rest in (b"[1]", b'{"a":', b'{"a":"' + b"x" * 100):
        assert asyncio.run(told(b"{}{}" + rest)) == [b"{}", b"{}"]
