"""Topics and groups over HTTP, beside what Kafka clients see of them."""

import struct
from collections.abc import Iterator
from uuid import uuid4

import httpx
import pytest
from confluent_kafka import Consumer, ShareConsumer
from confluent_kafka import TopicPartition as Place

from millstream.admin.groups import read_assignment
from millstream.gateway.server import Gateway
from millstream.testing import EmbeddedBroker
from tests.integration.gateway.test_produce import make_topic
from tests.waiting import TIMEOUT_SECONDS

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def http(gateway: Gateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, timeout=TIMEOUT_SECONDS, trust_env=False) as client:
        yield client


def refused(response: httpx.Response, status: int, code: int | None = None) -> None:
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error_code", "message", "hint"}
    assert response.json()["error_code"] == (status if code is None else code)


def test_the_life_of_a_topic(http: httpx.Client) -> None:
    name = f"admin-{uuid4().hex[:8]}"
    body = {"name": name, "partitions": 2, "configs": {"retention.ms": 60000, "cleanup.policy": "compact"}}
    made = http.post("/topics", json=body)
    assert made.status_code == 201
    summary = {"name": name, "partition_count": 2, "replication_factor": 1, "internal": False, "branch_of": None}
    assert made.json() == summary
    refused(http.post("/topics", json=body), 409, 40902)
    assert http.get(f"/topics?prefix={name}").json() == {"topics": [summary]}
    assert http.post(f"/topics/{name}/messages", json={"key": "k", "value": "", "partition": 1}).status_code == 200
    refused(http.post(f"/topics/{name}/messages", json={"value": ""}), 422, 42206)  # no key: it could not be compacted
    found = http.get(f"/topics/{name}").json()
    assert found["configs"] == {"retention.ms": "60000", "cleanup.policy": "compact"}
    assert [(row["start_offset"], row["end_offset"]) for row in found["partitions"]] == [(0, 0), (0, 1)]
    assert all(row["leader"] in row["isr"] for row in found["partitions"])

    assert http.post(f"/topics/{name}/partitions", json={"count": 4}).json()["partitions"] == 4
    refused(http.post(f"/topics/{name}/partitions", json={"count": 2}), 400, 40002)
    changes = {"configs": {"retention.ms": None, "max.message.bytes": 5000}}
    dry = http.patch(f"/topics/{name}/configs?dry_run=true", json=changes).json()["configs"]
    assert {row["name"] for row in dry} == {"retention.ms", "cleanup.policy"}
    now = http.patch(f"/topics/{name}/configs", json=changes).json()["configs"]
    assert {row["name"]: row["value"] for row in now} == {"cleanup.policy": "compact", "max.message.bytes": "5000"}
    every = {row["name"]: row for row in http.get(f"/topics/{name}/configs").json()["configs"]}
    assert every["retention.ms"]["default"] and every["retention.ms"]["documentation"]
    refused(http.patch(f"/topics/{name}/configs", json={"configs": {"no.such": "1"}}), 400, 40002)
    refused(http.patch(f"/topics/{name}/configs", json={"configs": {}}), 422)

    assert http.delete(f"/topics/{name}").status_code == 204
    refused(http.get(f"/topics/{name}"), 404, 40403)
    refused(http.delete(f"/topics/{name}"), 404, 40403)


def test_a_branch_of_a_topic(http: httpx.Client) -> None:
    name = f"admin-{uuid4().hex[:8]}"
    assert http.post("/topics", json={"name": name, "partitions": 1}).status_code == 201
    for _ in range(3):
        assert http.post(f"/topics/{name}/messages", json={"value": "YQ=="}).status_code == 200
    body = {"name": f"{name}-test", "offsets": [{"partition": 0, "offset": 2}], "configs": {"retention.ms": -1}}
    made = http.post(f"/topics/{name}/branches", json=body)
    assert made.status_code == 201, made.text
    assert made.json()["partitions"] == [{"partition": 0, "start": 0, "offset": 2, "note": None}]
    found = http.get(f"/topics/{name}-test").json()
    assert (found["branch_of"], found["configs"]) == (name, {"retention.ms": "-1"})
    assert found["partitions"][0]["end_offset"] == 2
    refused(http.post(f"/topics/{name}/branches", json=body), 409, 40902)
    refused(http.post(f"/topics/{name}/branches", json={}), 422)
    refused(http.post(f"/topics/{name}/branches", json={"name": "x", "offsets": {"0": 1}}), 422)
    refused(http.post(f"/topics/{name}/branches", json={"name": "x", "at": -5}), 422)
    assert http.post("/topics/no-such-topic/branches", json={"name": "x"}).status_code == 404


def test_wrong_topics_are_refused(http: httpx.Client) -> None:
    for body, status in (
        ({}, 422),
        ({"name": "x", "partitions": 0}, 422),
        ({"name": "x", "partitions": "2"}, 422),
        ({"name": "x", "partition": 2}, 422),
        ({"name": "x", "configs": {"a": {}}}, 422),
        ({"name": "a/b"}, 400),
        ({"name": "x", "replication_factor": 9}, 400),
        ({"name": "x", "configs": {"retention.ms": "soon"}}, 400),
        ({"name": "x", "configs": {"retention.ms": ""}}, 400),
    ):
        response = http.post("/topics", json=body)
        assert response.status_code == status and response.json()["hint"], response.text


def test_the_cluster_lists_its_broker(http: httpx.Client, broker: EmbeddedBroker) -> None:
    found = http.get("/cluster").json()
    (only,) = found["brokers"]
    assert f"{only['host']}:{only['port']}" == broker.bootstrap_servers and found["cluster_id"]


def test_internal_topics_are_not_listed_unless_asked_for(http: httpx.Client) -> None:
    def names(query: str) -> set[str]:
        return {row["name"] for row in http.get(f"/topics{query}").json()["topics"]}

    assert "_schemas" in names("")
    assert not any(name.startswith("__") for name in names(""))
    assert names("?internal=true") >= names("")
    assert len(names("?prefix=_&limit=1")) == 1, "those that are not listed take nobody's place on a page"


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups_are_listed_described_and_reset(http: httpx.Client, broker: EmbeddedBroker, protocol: str) -> None:
    topic = make_topic(broker, 2, retention_ms="-1")  # its records are from 1970
    group = f"group-{uuid4().hex[:8]}"
    for number in range(6):
        http.post(f"/topics/{topic}/messages", json={"value": "", "partition": number % 2, "timestamp": 1000 + number})
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": group,
        "client.id": "ann",
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    try:
        consumer.subscribe([topic])
        assert consumer.poll(TIMEOUT_SECONDS) is not None
        consumer.commit(offsets=[Place(topic, 0, 1)], asynchronous=False)
        found = http.get(f"/groups/{group}").json()
        assert (found["type"], found["state"]) == (protocol, "Stable")
        (member,) = found["members"]
        assert member["client_id"] == "ann"
        assert member["assignment"] == [{"topic": topic, "partition": 0}, {"topic": topic, "partition": 1}]
        progress = {"topic": topic, "partition": 0, "offset": 1, "end_offset": 3, "lag": 2}
        assert found["offsets"] == [progress] == http.get(f"/groups/{group}/offsets").json()["offsets"]
        assert {"group": group, "type": protocol, "state": "Stable"} in http.get("/groups").json()["groups"]
        refused(http.delete(f"/groups/{group}"), 409, 40903)
        refused(http.post(f"/groups/{group}/offsets", json={"topic": topic, "to": "earliest"}), 409, 40903)
    finally:
        consumer.close()

    def reset(**body: object) -> list[tuple[int, int | None, int]]:
        response = http.post(f"/groups/{group}/offsets", json={"topic": topic, **body})
        assert response.status_code == 200, response.text
        return [(row["partition"], row["from"], row["to"]) for row in response.json()["offsets"]]

    assert reset(to="latest", dry_run=True) == [(0, 1, 3), (1, None, 3)]
    assert reset(to="latest") == [(0, 1, 3), (1, None, 3)]
    assert reset(to={"offset": 2}, partitions=[1]) == [(1, 3, 2)]
    assert reset(to={"time": 1002}) == [(0, 3, 1), (1, 2, 1)]
    assert reset(to={"offset": 99}) == [(0, 1, 3), (1, 1, 3)]
    offsets = http.get(f"/groups/{group}/offsets").json()["offsets"]
    assert [row["lag"] for row in offsets] == [0, 0]
    for body in ({"to": "somewhere"}, {"to": "latest", "partitions": [7]}, {"to": {"offset": -1}}, {}):
        refused(http.post(f"/groups/{group}/offsets", json={"topic": topic, **body}), 422)
    refused(http.post(f"/groups/{group}/offsets", json={"topic": "nowhere", "to": "latest"}), 404, 40403)
    assert http.delete(f"/groups/{group}").status_code == 204
    refused(http.get(f"/groups/{group}"), 404, 40403)


def test_share_groups_are_listed_described_and_deleted(http: httpx.Client, broker: EmbeddedBroker) -> None:
    topic, group = make_topic(broker, 1), f"share-{uuid4().hex[:8]}"
    http.post(f"/topics/{topic}/messages/batch", json={"messages": [{"value": ""}] * 3})
    consumer = ShareConsumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    try:
        consumer.subscribe([topic])
        consumer.poll(2)
        found = http.get(f"/share-groups/{group}").json()
        assert found["type"] == "share" and found["members"][0]["assignment"] == [{"topic": topic, "partition": 0}]
        assert group in {row["group"] for row in http.get("/share-groups").json()["groups"]}
        assert group not in {row["group"] for row in http.get("/groups").json()["groups"]}
    finally:
        consumer.close()
    assert http.post(f"/share-groups/{group}/offsets", json={"topic": topic, "to": {"offset": 1}}).status_code == 200
    (row,) = http.get(f"/share-groups/{group}/offsets").json()["offsets"]
    assert (row["offset"], row["lag"]) == (1, 2)
    assert http.delete(f"/share-groups/{group}").status_code == 204
    refused(http.get(f"/share-groups/{group}"), 404, 40403)


def test_assignments_that_make_no_sense_are_none() -> None:
    assert read_assignment(b"") == read_assignment(b"\x00\x01\x00\x00\x00\x05ab") == []
    back_to_itself = struct.pack(">hihi", 1, 2**31 - 1, -6, 0) + bytes(64)
    assert read_assignment(back_to_itself) == []
