"""Consumers over HTTP: real members of their groups, against a real broker."""

import base64
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from millstream.gateway.http.configuration import Limits
from millstream.gateway.server import Gateway, GatewayOptions
from millstream.raw_client import Cluster, CoordinatorKind, TopicPartition
from millstream.testing import EmbeddedBroker
from tests.integration.node.broker.unreadable import unreadable
from tests.waiting import TIMEOUT_SECONDS
from tests.wire import Wire

pytestmark = pytest.mark.timeout(300)
_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    quick = {
        "group.consumer.heartbeat.interval.ms": 300,
        "group.consumer.min.heartbeat.interval.ms": 300,
        "group.consumer.assignment.interval.ms": 0,
    }
    with EmbeddedBroker(quick) as running:
        yield running


@pytest.fixture(scope="module")
def gateway(broker: EmbeddedBroker) -> Iterator[Gateway]:
    with Gateway(GatewayOptions(broker.bootstrap_servers)) as running:
        yield running


@pytest.fixture
def http(gateway: Gateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, timeout=70) as client:
        yield client


@pytest.fixture(scope="module")
def cluster(broker: EmbeddedBroker) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap_servers) as running:
        yield running


@pytest.fixture(scope="module")
def producer(broker: EmbeddedBroker) -> Producer:
    return Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})


@pytest.fixture
def topic(cluster: Cluster) -> str:
    name = f"consumed-{next(_numbers)}"
    cluster.create_topic(name, 2)
    return name


@pytest.fixture
def group(topic: str) -> str:
    return f"group-of-{topic}"


@pytest.fixture
def put(producer: Producer, topic: str) -> Callable[..., None]:
    def put(*values: bytes | None, partition: int = 0, **more: Any) -> None:
        for value in values:
            producer.produce(topic, value, partition=partition, **more)
        assert producer.flush(TIMEOUT_SECONDS) == 0

    return put


def refusal(response: httpx.Response, status: int, code: int | None = None) -> str:
    """Checks that it is an error as every error is, and returns all of its text."""
    assert response.status_code == status, response.text
    document = response.json()
    assert set(document) == {"error_code", "message", "hint"} and document["hint"]
    if code is not None:
        assert document["error_code"] == code
    return f"{document['message']}: {document['hint']}"


def poll(http: httpx.Client, group: str, **query: Any) -> list[dict[str, Any]]:
    response = http.get(f"/consumers/{group}/poll", params={"timeout_ms": 20_000} | query)
    assert response.status_code == 200, response.text
    assert set(response.json()) == {"messages"}
    return list(response.json()["messages"])


def subscribe(http: httpx.Client, group: str, topic: str, **more: Any) -> dict[str, Any]:
    response = http.post(f"/consumers/{group}/subscribe", json={"topics": [topic]} | more)
    assert response.status_code == 200, response.text
    return dict(response.json())


def until(holds: Callable[[], bool], within_s: float = TIMEOUT_SECONDS) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.05)


def owned(http: httpx.Client, group: str, instance: str = "") -> list[int]:
    response = http.get(f"/consumers/{group}", params={"instance_id": instance} if instance else {})
    (shown,) = response.json()["consumers"]
    return [row["partition"] for row in shown["partitions"] if row["position"] is not None]


def test_the_api_as_it_was_drawn_up(http: httpx.Client, topic: str, group: str, put: Callable[..., None]) -> None:
    put(b"\x00one", b"two", b"three", key="user_123", headers={"trace_id": "abc"})
    shown = subscribe(http, group, topic)
    assert shown["topics"] == [topic] and 0 < shown["expires_in_ms"] <= 300_000
    first = poll(http, group, max_records=2)
    assert [(row["offset"], row["value"]) for row in first] == [
        (0, base64.b64encode(b"\x00one").decode()),
        (1, base64.b64encode(b"two").decode()),
    ]
    row = first[0]
    assert (row["topic"], row["partition"], row["key"]) == (topic, 0, "user_123")
    assert abs(row["timestamp"] - time.time() * 1000) < 60_000
    assert row["headers"] == {"trace_id": "abc"}
    response = http.post(f"/consumers/{group}/offsets", json={"offsets": {topic: {"0": 2}}})
    assert response.json() == {"offsets": {topic: {"0": 2}}}
    assert [row["offset"] for row in poll(http, group)] == [2]
    assert poll(http, group, timeout_ms=50) == []
    sought = http.post(f"/consumers/{group}/seek", json={"topic": topic, "partition": 0, "offset": 1})
    assert sought.json() == {"topic": topic, "partition": 0, "offset": 1}
    assert [row["offset"] for row in poll(http, group)] == [1, 2]
    assert http.delete(f"/consumers/{group}").status_code == 204
    subscribe(http, group, topic)
    assert [row["offset"] for row in poll(http, group)] == [2]


def test_a_poll_that_waits_gets_what_comes(
    http: httpx.Client, topic: str, group: str, put: Callable[..., None]
) -> None:
    subscribe(http, group, topic)
    until(lambda: len(owned(http, group)) == 2)
    for number, partition in ((0, 0), (1, 1), (2, 0)):
        timer = threading.Timer(0.3, put, [f"late {number}".encode()], {"partition": partition})
        timer.start()
        assert [row["value"] for row in poll(http, group, format="text")] == [f"late {number}"]
        timer.join()


def test_polls_with_a_timeout_of_zero_return_what_is_there(
    http: httpx.Client, topic: str, group: str, put: Callable[..., None]
) -> None:
    put(b"1", b"2")
    subscribe(http, group, topic)
    seen: list[Any] = []

    def has_all() -> bool:
        seen.extend(poll(http, group, timeout_ms=0))
        return len(seen) == 2

    until(has_all)


def test_poll_returns_values_in_the_chosen_format(
    http: httpx.Client, topic: str, group: str, put: Callable[..., None]
) -> None:
    made = http.post(f"/subjects/{topic}-value/versions", json={"schema": '"string"'})
    schema_id = made.json()["id"]
    avro = b"\x00" + schema_id.to_bytes(4, "big") + b"\x06ann"
    headers = [("h", b"1"), ("h", None), ("b", b"\xff")]
    put(b'{"a": 1}', b"plain", avro, None, key=b"\xff", headers=headers)
    subscribe(http, group, topic)
    shown: dict[str, list[Any]] = {}
    for form in ("base64", "json", "text", "registry"):
        http.post(f"/consumers/{group}/seek", json={"topic": topic, "partition": 0, "offset": "earliest"})
        rows = poll(http, group, format=form)
        assert all(row["key"] == "/w==" and row["key_format"] == "base64" for row in rows)
        assert all(row["headers"] == {"h": ["1", None], "b": {"base64": "/w=="}} for row in rows)
        shown[form] = [(row.get("value_format"), row["value"]) for row in rows]
    plain, bytes_ = base64.b64encode(b"plain").decode(), base64.b64encode(avro).decode()
    assert [value for _, value in shown["base64"]] == [
        base64.b64encode(b'{"a": 1}').decode(), plain, bytes_, None
    ]  # fmt: skip
    assert shown["json"] == [("json", {"a": 1}), ("base64", plain), ("base64", bytes_), ("null", None)]
    assert shown["text"][:2] == [("text", '{"a": 1}'), ("text", "plain")]
    assert shown["registry"] == [("json", {"a": 1}), ("text", "plain"), ("avro", "ann"), ("null", None)]


def test_only_what_was_handed_out_can_be_committed(
    http: httpx.Client, topic: str, group: str, put: Callable[..., None], cluster: Cluster
) -> None:
    put(b"1", b"2", b"3")
    subscribe(http, group, topic)
    assert len(poll(http, group, max_records=2)) == 2

    def commit(offsets: Any) -> httpx.Response:
        return http.post(f"/consumers/{group}/offsets", json={"offsets": offsets})

    assert "commit 2 at most" in refusal(commit({topic: {"0": 3}}), 409, 40905)
    refusal(commit({topic: {"7": 0}}), 409, 40904)
    refusal(commit({"another": {"0": 1}}), 400)
    wrong: Any
    for wrong in ([], {topic: 3}, {topic: {"x": 1}}, {topic: {"0": "1"}}, {topic: {"0": -1}}, {topic: {"0": True}}):
        refusal(commit(wrong), 400)
    assert http.post(f"/consumers/{group}/offsets").json() == {"offsets": {topic: {"0": 2, "1": 0}}}
    assert http.post(f"/consumers/{group}/offsets", json={}).json() == {"offsets": {}}
    assert cluster.committed_offsets(group, [TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 2}


def test_seek_stays_inside_the_log(http: httpx.Client, topic: str, group: str, put: Callable[..., None]) -> None:
    put(b"1", b"2")
    subscribe(http, group, topic)

    def seek(partition: Any, offset: Any, name: Any = topic) -> httpx.Response:
        body = {"topic": name, "partition": partition, "offset": offset}
        return http.post(f"/consumers/{group}/seek", json=body)

    assert seek(0, "latest").json()["offset"] == 2
    assert "from 0 to 2" in refusal(seek(0, 3), 416, 41601)
    refusal(seek(9, 0), 409, 40904)
    for partition, offset, name in ((0, "middle", topic), (-1, 0, topic), (0, -1, topic), (0, 0, 5), (0, 0, "other")):
        refusal(seek(partition, offset, name), 400)


def test_a_batch_that_cannot_be_read_is_told_and_the_others_are_handed_out(
    http: httpx.Client, topic: str, group: str, put: Callable[..., None], broker: EmbeddedBroker
) -> None:
    with Wire(broker.bootstrap_servers) as wire:
        assert wire.produce(topic, unreadable()).error_code == 0
    put(b"1")
    subscribe(http, group, topic)
    seen: list[Any] = []
    told: list[str] = []

    def ask() -> None:
        response = http.get(f"/consumers/{group}/poll", params={"timeout_ms": 1000, "format": "text"})
        if response.status_code == 200:
            seen.extend(row["value"] for row in response.json()["messages"])
        else:
            told.append(refusal(response, 502, 50203))
            assert response.json()["hint"] in ("seek to offset 3, after the batch", "seek past the batch")

    def has_all() -> bool:
        ask()
        return bool(told) and seen == ["other"]

    put(b"other", partition=1)
    until(has_all)
    assert all(f"{topic}-0 cannot be read at offset 0" in each for each in told)
    assert http.post(f"/consumers/{group}/seek", json={"topic": topic, "partition": 0, "offset": 3}).status_code == 200
    assert [row["value"] for row in poll(http, group, format="text")] == ["1"]


def test_wrong_requests_of_consumers_are_refused(http: httpx.Client, topic: str, group: str) -> None:
    body: Any
    for body in ({}, {"topics": []}, {"topics": "t"}, {"topics": [1]}, {"topics": [""]}, {"topics": [topic] * 101},
                 {"topics": [topic], "auto_offset_reset": "newest"}, {"topics": [topic], "expires_after_ms": 1},
                 {"topics": [topic], "instance_id": 7}):  # fmt: skip
        refusal(http.post(f"/consumers/{group}/subscribe", json=body), 400)
    refusal(http.post(f"/consumers/{group}/subscribe", content=b"{"), 400)
    assert "create it first" in refusal(http.post(f"/consumers/{group}/subscribe", json={"topics": ["not-there"]}), 404)
    assert "subscribe to open one" in refusal(http.get(f"/consumers/{group}/poll"), 404, 40406)
    subscribe(http, group, topic)
    for number in ("-1", "x", "0" * 5000, "2147483648"):
        refusal(http.post(f"/consumers/{group}/offsets", json={"offsets": {topic: {number: 0}}}), 400)
    for query in ("max_records=0", "max_records=10001", "timeout_ms=-1", "timeout_ms=60001", "max_bytes=0",
                  "format=xml", "timeout_ms=soon"):  # fmt: skip
        refusal(http.get(f"/consumers/{group}/poll?{query}"), 400)


def test_head_and_cross_site_requests_may_not_poll(
    http: httpx.Client, topic: str, group: str, put: Callable[..., None]
) -> None:
    """A poll moves on, so neither a look at its headers nor a page of another site may do it."""
    put(b"x")
    subscribe(http, group, topic)
    path = f"/consumers/{group}/poll?timeout_ms=20000"
    assert http.head(path).status_code == 405
    for site in ("cross-site", "same-site"):
        refusal(http.get(path, headers={"Sec-Fetch-Site": site}), 403)
    assert len(http.get(path, headers={"Sec-Fetch-Site": "same-origin"}).json()["messages"]) == 1


def test_one_poll_at_a_time(http: httpx.Client, topic: str, group: str, put: Callable[..., None]) -> None:
    subscribe(http, group, topic)
    responses: list[list[Any]] = []
    waiting = threading.Thread(target=lambda: responses.append(poll(http, group, format="text")))
    waiting.start()
    until(lambda: bool(http.get(f"/consumers/{group}").json()["consumers"][0]["polling"]))
    refusal(http.get(f"/consumers/{group}/poll"), 409, 40907)
    body = {"topic": topic, "partition": 0, "offset": 0}
    refusal(http.post(f"/consumers/{group}/seek", json=body), 409, 40907)
    put(b"x")
    waiting.join(TIMEOUT_SECONDS)
    assert [row["value"] for row in responses[0]] == ["x"]


def test_a_consumer_that_does_not_poll_expires(http: httpx.Client, topic: str, group: str) -> None:
    def lives_while_it_polls() -> bool:
        """A busy machine may come too late with the poll: then the consumer is gone before, and is tried again."""
        subscribe(http, group, topic, expires_after_ms=1_000, instance_id="brief")
        return http.get(f"/consumers/{group}/poll", params={"timeout_ms": 1_500}).status_code == 200

    until(lives_while_it_polls)
    until(lambda: not http.get("/consumers", params={"limit": 1000}).text.count(f'"{group}"'))
    response = http.get(f"/consumers/{group}/poll", params={"instance_id": "brief"})
    assert "subscribe" in refusal(response, 410, 41001)
    refusal(http.post(f"/consumers/{group}/offsets"), 410, 41001)
    subscribe(http, group, topic, instance_id="brief")
    assert http.get(f"/consumers/{group}/poll", params={"timeout_ms": 0}).status_code == 200


def test_several_members_share_the_partitions(
    http: httpx.Client, topic: str, group: str, put: Callable[..., None]
) -> None:
    subscribe(http, group, topic, instance_id="a")
    subscribe(http, group, topic, instance_id="b")
    assert "a, b" in refusal(http.get(f"/consumers/{group}/poll"), 409, 40906)
    until(lambda: len(owned(http, group, "a")) == 1 and len(owned(http, group, "b")) == 1)
    put(b"0", partition=0)
    put(b"1", partition=1)
    seen = poll(http, group, instance_id="a", format="text")
    response = http.get(f"/consumers/{group}/poll?timeout_ms=20000&format=text", headers={"Consumer-Instance-Id": "b"})
    seen += response.json()["messages"]
    assert sorted(row["value"] for row in seen) == ["0", "1"]
    assert http.delete(f"/consumers/{group}", params={"instance_id": "a"}).status_code == 204
    until(lambda: len(owned(http, group, "b")) == 2)
    names = [row["instance_id"] for row in http.get(f"/consumers/{group}").json()["consumers"]]
    assert names == ["b"]
    everyone = [(row["group"], row["instance_id"]) for row in http.get("/consumers").json()["consumers"]]
    assert (group, "b") in everyone and (group, "a") not in everyone
    assert len(http.get("/consumers?limit=1").json()["consumers"]) == 1


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("commits", [True, False], ids=["commits", "polls on"])
def test_a_rebalance_with_a_kafka_client(
    http: httpx.Client,
    topic: str,
    group: str,
    put: Callable[..., None],
    broker: EmbeddedBroker,
    protocol: str,
    commits: bool,
) -> None:
    """A partition that is to go stays until what was handed out of it is committed, or the caller polls on."""
    for partition in (0, 1):
        put("first", partition=partition)
    subscribe(http, group, topic)
    handed = poll(http, group)
    handed += poll(http, group) if len(handed) < 2 else []
    assert len(handed) == 2
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": group, "auto.offset.reset": "earliest"}
    client = Consumer(settings | {"group.protocol": protocol, "enable.auto.commit": False})
    client.subscribe([topic])
    theirs: list[Any] = []

    def heard() -> bool:
        message = client.poll(0.1)
        if message is not None and message.error() is None:
            theirs.append((message.partition(), message.offset()))
        return bool(theirs)

    def leaving() -> list[int]:
        heard()
        (shown,) = http.get(f"/consumers/{group}").json()["consumers"]
        return [row["partition"] for row in shown["partitions"] if row["leaving"]]

    def commit(partition: int) -> httpx.Response:
        return http.post(f"/consumers/{group}/offsets", json={"offsets": {topic: {str(partition): 1}}})

    try:
        until(lambda: bool(leaving()))
        (gone,) = leaving()
        if commits:
            assert commit(gone).status_code == 200
        else:
            assert poll(http, group, timeout_ms=0) == []
        until(lambda: owned(http, group) == [1 - gone])
        put("second", partition=gone)
        until(heard)
        assert theirs[0] == (gone, 1 if commits else 0)
        # What was handed out here and not committed is the other member's now: committing it would be a lie.
        assert "not assigned to this consumer" in refusal(commit(gone), 409, 40904)
        assert commit(1 - gone).status_code == 200
    finally:
        client.close()
    until(lambda: len(owned(http, group)) == 2)
    assert [(row["partition"], row["offset"]) for row in poll(http, group)][-1] == (gone, 1)


def test_a_consumer_may_subscribe_to_another_topic(
    http: httpx.Client, topic: str, group: str, put: Callable[..., None], cluster: Cluster, producer: Producer
) -> None:
    """What was handed out and not committed does not stand in the way."""
    put(b"x")
    subscribe(http, group, topic)
    assert len(poll(http, group)) == 1
    other = f"{topic}-other"
    cluster.create_topic(other, 1)
    producer.produce(other, b"y")
    producer.flush(TIMEOUT_SECONDS)
    shown = subscribe(http, group, other)
    assert shown["topics"] == [other]
    assert [row["topic"] for row in poll(http, group)] == [other]
    (shown,) = http.get(f"/consumers/{group}").json()["consumers"]
    assert [row["topic"] for row in shown["partitions"]] == [other]
    refusal(http.post(f"/consumers/{group}/offsets", json={"offsets": {topic: {"0": 1}}}), 400)
    assert http.post(f"/consumers/{group}/offsets").json() == {"offsets": {other: {"0": 1}}}


def test_a_member_that_is_thrown_out_begins_again(
    http: httpx.Client, topic: str, group: str, put: Callable[..., None], cluster: Cluster
) -> None:
    put(b"x")
    member = subscribe(http, group, topic)["member_id"]
    assert len(poll(http, group)) == 1
    fields = {"group_id": group, "member_id": member, "member_epoch": -1, "topic_partitions": None}
    cluster.call_coordinator(group, CoordinatorKind.GROUP, "consumer_group_heartbeat", **fields)
    response = http.post(f"/consumers/{group}/offsets")
    if response.status_code != 200:  # unless it has heard of it already, and begun again
        assert "poll again" in refusal(response, 409, 40904)
    assert [row["offset"] for row in poll(http, group)] == [0]
    assert http.post(f"/consumers/{group}/offsets").status_code == 200


def test_a_caller_that_vanishes_loses_nothing(
    gateway: Gateway, http: httpx.Client, topic: str, group: str, put: Callable[..., None]
) -> None:
    subscribe(http, group, topic)
    host, port = gateway.address.rsplit(":", 1)
    for _ in range(3):
        with socket.create_connection((host, int(port))) as connection:
            path = f"/consumers/{group}/poll?timeout_ms=30000"
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {gateway.address}\r\n\r\n".encode())
            until(lambda: bool(http.get(f"/consumers/{group}").json()["consumers"][0]["polling"]))
        until(lambda: not http.get(f"/consumers/{group}").json()["consumers"][0]["polling"])
    put(b"still there")
    assert [row["value"] for row in poll(http, group, format="text")] == ["still there"]


def test_a_poll_of_a_consumer_that_is_closed(http: httpx.Client, topic: str, group: str) -> None:
    subscribe(http, group, topic)
    responses: list[httpx.Response] = []
    path = f"/consumers/{group}/poll?timeout_ms=30000"
    waiting = threading.Thread(target=lambda: responses.append(http.get(path)))
    waiting.start()
    until(lambda: bool(http.get(f"/consumers/{group}").json()["consumers"][0]["polling"]))
    assert http.delete(f"/consumers/{group}").status_code == 204
    waiting.join(TIMEOUT_SECONDS)
    refusal(responses[0], 410, 41001)


def test_aborted_transactions_are_not_seen(
    http: httpx.Client, topic: str, group: str, put: Callable[..., None], broker: EmbeddedBroker
) -> None:
    writer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic})
    writer.init_transactions(TIMEOUT_SECONDS)
    for value, end in ((b"no", writer.abort_transaction), (b"yes", writer.commit_transaction)):
        writer.begin_transaction()
        writer.produce(topic, value, partition=0)
        writer.flush(TIMEOUT_SECONDS)
        end(30)
    subscribe(http, group, topic)
    assert [row["value"] for row in poll(http, group, format="text")] == ["yes"]
    assert http.post(f"/consumers/{group}/offsets").json()["offsets"][topic]["0"] >= 3


def test_large_batches_come_in_parts(http: httpx.Client, topic: str, group: str, put: Callable[..., None]) -> None:
    put(*(bytes(1_000) for _ in range(300)))
    subscribe(http, group, topic)
    sizes: list[int] = []
    while sum(sizes) < 300:
        sizes.append(len(poll(http, group, max_bytes=50_000, max_records=70)))
    assert max(sizes) <= 50 and len(sizes) >= 6
    http.post(f"/consumers/{group}/seek", json={"topic": topic, "partition": 0, "offset": 0})
    assert len(poll(http, group, max_bytes=1)) == 1


def test_records_deleted_before_they_were_read(
    http: httpx.Client, topic: str, group: str, put: Callable[..., None], cluster: Cluster
) -> None:
    put(b"1", b"2", b"3")
    subscribe(http, group, topic)
    assert len(poll(http, group, max_records=1)) == 1
    http.post(f"/consumers/{group}/seek", json={"topic": topic, "partition": 0, "offset": 0})
    leader = cluster.leader_of(TopicPartition(topic, 0)).node_id
    rows = [{"partition_index": 0, "offset": 2}]
    cluster.call("delete_records", node=leader, topics=[{"name": topic, "partitions": rows}], timeout_ms=10_000)
    assert [row["offset"] for row in poll(http, group)] == [2]


def test_a_gateway_that_stops_leaves_its_groups(
    broker: EmbeddedBroker, topic: str, group: str, put: Callable[..., None]
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    options = GatewayOptions(broker.bootstrap_servers, limits=Limits(max_consumers=1))
    responses: list[httpx.Response] = []
    with Gateway(options) as gateway, httpx.Client(base_url=gateway.url, timeout=70) as http:
        subscribe(http, group, topic)
        response = http.post(f"/consumers/{group}/subscribe", json={"topics": [topic], "instance_id": "second"})
        refusal(response, 429, 42901)
        described = admin.describe_consumer_groups([group])[group].result(TIMEOUT_SECONDS)
        assert len(described.members) == 1
        url = f"{gateway.url}/consumers/{group}/poll?timeout_ms=60000"
        waiting = threading.Thread(target=lambda: responses.append(httpx.get(url, timeout=70)))
        waiting.start()
        until(lambda: bool(httpx.get(f"{gateway.url}/consumers/{group}").json()["consumers"][0]["polling"]))
    waiting.join(TIMEOUT_SECONDS)
    assert json.loads(responses[0].content) == {"messages": []}
    assert admin.describe_consumer_groups([group])[group].result(TIMEOUT_SECONDS).members == []
