"""Topics as server-sent events, over real HTTP from a real broker."""

import base64
import itertools
import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer

from millstream.gateway.http.configuration import Limits
from millstream.gateway.http.errors import ApiError
from millstream.gateway.server import Gateway, GatewayOptions
from millstream.gateway.streams import routes as stream_events
from millstream.gateway.streams import routes as stream_routes
from millstream.gateway.streams import tail as stream_tail
from millstream.gateway.streams.positions import EventId, format_positions, parse_event_id, parse_start
from millstream.raw_client import Cluster, TopicPartition
from millstream.testing import EmbeddedBroker
from tests.integration.node.broker.unreadable import unreadable
from tests.waiting import TIMEOUT_SECONDS
from tests.wire import Wire

pytestmark = pytest.mark.timeout(300)
_numbers = itertools.count()


@dataclass
class Event:
    id: str
    name: str
    data: Any


def read_events(lines: Iterator[str]) -> Iterator[Event]:
    """As the standard says a browser reads them: an event without data only sets the id."""
    last, name = "", ""
    data: list[str] = []
    for line in lines:
        if not line:
            if data:
                yield Event(last, name, json.loads("\n".join(data)))
            name, data = "", []
        elif line.startswith("id: "):
            last = line[4:]
        elif line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            data.append(line[6:])
        else:
            assert line.startswith((": ", "retry: ")), line


@pytest.fixture(scope="module")
def cluster(broker: EmbeddedBroker) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap_servers) as running:
        yield running


@pytest.fixture(scope="module")
def producer(broker: EmbeddedBroker) -> Producer:
    return Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})


@pytest.fixture
def topic(cluster: Cluster) -> str:
    name = f"streamed-{next(_numbers)}"
    cluster.create_topic(name, 2)
    return name


@pytest.fixture
def put(producer: Producer, topic: str) -> Callable[..., None]:
    def put(*values: str | bytes, partition: int = 0) -> None:
        for value in values:
            producer.produce(topic, value, partition=partition)
        assert producer.flush(TIMEOUT_SECONDS) == 0

    return put


@pytest.fixture
def stream(gateway: Gateway, topic: str) -> Callable[..., Any]:
    @contextmanager
    def stream(last: str = "", name: str = topic, **query: Any) -> Iterator[Iterator[Event]]:
        headers = {"Last-Event-ID": last} if last else {}
        url = f"{gateway.url}/topics/{name}/stream"
        with httpx.stream(
            "GET", url, params={"format": "text"} | query, headers=headers, timeout=TIMEOUT_SECONDS
        ) as response:
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            yield read_events(response.iter_lines())

    return stream


def values(events: Iterator[Event], count: int) -> list[str]:
    return [event.data["value"] for event in itertools.islice(events, count)]


def test_what_was_there_and_what_comes(stream: Callable[..., Any], put: Callable[..., None]) -> None:
    put("a", "b")
    put("c", partition=1)
    with stream(**{"from": "earliest"}) as events:
        assert sorted(values(events, 3)) == ["a", "b", "c"]
        put("d", partition=1)
        (event,) = itertools.islice(events, 1)
        assert (event.data["value"], event.data["partition"], event.data["offset"]) == ("d", 1, 1)
        assert event.id == "0:2,1:2"


def test_latest_is_the_default(stream: Callable[..., Any], put: Callable[..., None]) -> None:
    put("old")
    with stream() as events:
        put("new")
        assert values(events, 1) == ["new"]


def test_resuming_misses_and_repeats_nothing(stream: Callable[..., Any], put: Callable[..., None]) -> None:
    for number in range(10):
        put(f"{number}", partition=number % 2)
    seen: list[str] = []
    last = "0:0,1:0"
    while len(seen) < 10:
        with stream(last) as events:
            for event in itertools.islice(events, 3 if len(seen) < 9 else 1):
                seen.append(event.data["value"])
                last = event.id
    assert sorted(seen) == [str(number) for number in range(10)]
    assert last == "0:5,1:5"


def test_a_stream_without_events_resumes_too(gateway: Gateway, topic: str, put: Callable[..., None]) -> None:
    put("before")
    with httpx.stream("GET", f"{gateway.url}/topics/{topic}/stream", timeout=TIMEOUT_SECONDS) as response:
        lines = response.iter_lines()
        (last,) = itertools.islice((line[4:] for line in lines if line.startswith("id: ")), 1)
    assert last == "0:1,1:0"
    put("between")
    url = f"{gateway.url}/topics/{topic}/stream?last_event_id={last}&format=text"
    with httpx.stream("GET", url, timeout=TIMEOUT_SECONDS) as response:
        assert values(read_events(response.iter_lines()), 1) == ["between"]


def test_a_stream_begins_at_the_given_position(stream: Callable[..., Any], put: Callable[..., None]) -> None:
    put("0", "1", "2")
    now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() - 3600)) + "Z"
    for begin, expected in (("1", ["1", "2"]), ("-1", ["2"]), (now, ["0", "1", "2"]), ("-99", ["0", "1", "2"])):
        with stream(partition=0, **{"from": begin}) as events:
            assert values(events, len(expected)) == expected


def test_only_some_partitions(stream: Callable[..., Any], put: Callable[..., None]) -> None:
    put("no")
    put("yes", partition=1)
    with stream(partition=1, **{"from": "earliest"}) as events:
        (event,) = itertools.islice(events, 1)
        assert (event.data["value"], event.id) == ("yes", "1:1")


def test_wrong_requests_of_streams_are_refused(gateway: Gateway, topic: str) -> None:
    base = f"{gateway.url}/topics/{topic}/stream"
    for query, status in (("from=then", 400), ("partition=x", 400), ("partition=2", 404), ("format=xml", 400)):
        response = httpx.get(f"{base}?{query}")
        assert response.status_code == status and set(response.json()) == {"error_code", "message", "hint"}
    assert httpx.get(base, headers={"Last-Event-ID": "somewhere"}).status_code == 400
    assert httpx.get(f"{gateway.url}/topics/not-there/stream").status_code == 404
    assert httpx.head(base).status_code == 405


def test_event_ids_are_formatted_and_parsed() -> None:
    assert parse_event_id(format_positions({10: 5, 2: 7})) == {10: 5, 2: 7}
    assert format_positions({10: 5, 2: 7}) == "2:7,10:5"
    moving = EventId({10: 5, 2: 7})
    assert [moving.move(10, 6), moving.move(2, 8)] == [b"2:7,10:6", b"2:8,10:6"]
    for text in ("0", "0:", "a:1", "0:1,", "0:-1", "0:1;1:2"):
        with pytest.raises(ApiError):
            parse_event_id(text)
    assert parse_start("2026-01-31T12:00:00Z") == parse_start("2026-01-31T13:00:00 01:00")
    with pytest.raises(ApiError):
        parse_start("9" * 30)


def test_many_readers_see_the_same(stream: Callable[..., Any], put: Callable[..., None]) -> None:
    """Some at the tail from the start, some who come from the beginning."""
    put("0")
    found: list[list[str]] = []

    def read(begin: str, count: int, ready: threading.Barrier) -> None:
        with stream(**{"from": begin}) as events:
            ready.wait(30)
            found.append(values(events, count))

    ready = threading.Barrier(9)
    readers = [threading.Thread(target=read, args=("latest", 20, ready)) for _ in range(4)]
    readers += [threading.Thread(target=read, args=("earliest", 21, ready)) for _ in range(4)]
    for reader in readers:
        reader.start()
    ready.wait(30)
    for number in range(1, 21):
        put(str(number))
    for reader in readers:
        reader.join(TIMEOUT_SECONDS)
    expected = [str(number) for number in range(21)]
    assert sorted(found, key=len) == [expected[1:]] * 4 + [expected] * 4


def test_a_slow_reader_hurts_no_one_and_misses_nothing(
    gateway: Gateway, stream: Callable[..., Any], put: Callable[..., None], topic: str
) -> None:
    """It takes nothing while far more comes than is kept for it; then it reads on its own, and catches up."""
    big = base64.b64encode(bytes(30_000)).decode()
    host, port = gateway.address.rsplit(":", 1)
    with socket.create_connection((host, int(port))) as slow, stream() as events:
        path = f"/topics/{topic}/stream?format=text"
        slow.sendall(f"GET {path} HTTP/1.1\r\nHost: {gateway.address}\r\n\r\n".encode())
        slow.settimeout(TIMEOUT_SECONDS)
        head = slow.recv(4096)
        assert b"200 OK" in head
        for number in range(300):
            put(f"{number} {big}")
        assert [int(value.split()[0]) for value in values(events, 300)] == list(range(300))
        data = bytearray(head)
        while b'"value":"299 ' not in data:
            data += slow.recv(1 << 20)
        seen = [int(part.split(b" ")[0]) for part in bytes(data).split(b'"value":"')[1:]]
        assert seen == list(range(300))


def test_records_that_are_gone_are_told_of(
    stream: Callable[..., Any], put: Callable[..., None], topic: str, cluster: Cluster
) -> None:
    put("0", "1", "2")
    leader = cluster.leader_of(TopicPartition(topic, 0)).node_id
    rows = [{"partition_index": 0, "offset": 2}]
    cluster.call("delete_records", node=leader, topics=[{"name": topic, "partitions": rows}], timeout_ms=10_000)
    with stream("0:0,1:0") as events:
        told, event = itertools.islice(events, 2)
        assert (told.name, told.data) == ("skipped", {"partition": 0, "from": 0, "to": 2})
        assert event.data["value"] == "2"


def put_damaged(broker: EmbeddedBroker, topic: str) -> None:
    """A batch of three records that cannot be read, to partition 0."""
    with Wire(broker.bootstrap_servers) as wire:
        assert wire.produce(topic, unreadable()).error_code == 0


def test_records_that_cannot_be_read_are_told_of_and_passed_over(
    stream: Callable[..., Any], put: Callable[..., None], topic: str, broker: EmbeddedBroker
) -> None:
    put("a")
    put_damaged(broker, topic)
    put("b")
    put("c", partition=1)
    with stream(**{"from": "earliest"}) as events:
        seen = list(itertools.islice(events, 4))
        assert sorted(each.data["value"] for each in seen if not each.name) == ["a", "b", "c"]
        (told,) = [each for each in seen if each.name]
        assert told.name == "skipped" and told.data["reason"]
        assert [told.data[name] for name in ("partition", "from", "to")] == [0, 1, 4]
        put_damaged(broker, topic)  # the tail
        put("d")
        told, event = itertools.islice(events, 2)
        assert (told.name, told.data["from"], told.data["to"], event.data["value"]) == ("skipped", 5, 8, "d")


def test_a_partition_that_the_broker_refuses_does_not_hold_up_the_others(
    stream: Callable[..., Any], put: Callable[..., None], topic: str, broker: EmbeddedBroker
) -> None:
    put_damaged(broker, topic)
    with Wire(broker.bootstrap_servers) as wire:
        while not wire.fetch(topic).error_code:
            pass
    with stream(**{"from": "earliest"}) as events:
        told = next(events)
        assert told.name == "trouble" and f"{topic}-0 cannot be read at offset 0" in told.data["message"]
        for value in ("a", "b", "c"):
            put(value, partition=1)
            assert values(events, 1) == [value]


def test_an_id_that_is_ahead_of_its_topic(stream: Callable[..., Any], put: Callable[..., None]) -> None:
    """As of a topic that was made again: told of, wherever the others are that read the same."""
    put("0", "1")
    with stream("0:1000,1:0") as alone, stream(**{"from": "earliest"}) as other, stream("0:1000,1:0") as late:
        assert values(other, 2) == ["0", "1"]
        for events in (alone, late):
            told = next(events)
            assert (told.name, told.data) == ("skipped", {"partition": 0, "from": 1000, "to": 2})
        put("2")
        assert [values(events, 1) for events in (alone, other, late)] == [["2"]] * 3


def test_partitions_that_are_added_to_a_busy_topic(
    stream: Callable[..., Any],
    put: Callable[..., None],
    topic: str,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_tail, "_PARTITION_CHECK_SECONDS", 1.0)
    with stream() as events:
        rows = [{"name": topic, "count": 3, "assignments": None}]
        response = cluster.call("create_partitions", topics=rows, timeout_ms=10_000, validate_only=False)
        assert response.results[0].error_code == 0
        put("new", partition=2)
        for _ in range(100):
            put("busy")
            if next(events).data["value"] == "new":
                break
            time.sleep(0.1)
        else:
            pytest.fail("nothing came of the new partition")


def test_who_has_read_on_is_not_sent_back() -> None:
    note = {"partition": 0, "from": 3, "to": 7}
    assert [stream_events._concerns(note, at) for at in (3, 5, 7, 9)] == [True, True, False, False]
    cut = {"partition": 0, "from": 1000, "to": 5}
    assert [stream_events._concerns(cut, at) for at in (1000, 5, 9)] == [True, False, False]


def test_a_topic_that_is_deleted(
    stream: Callable[..., Any], put: Callable[..., None], topic: str, cluster: Cluster
) -> None:
    """One reader at the tail is told so, and the stream ends."""
    put("last")
    with stream(**{"from": "earliest"}) as events:
        assert values(events, 1) == ["last"]
        response = cluster.call("delete_topics", topics=[{"name": topic}], topic_names=[topic], timeout_ms=30_000)
        assert response.responses[0].error_code == 0
        names = [event.name for event in events]
    assert names[-1] == "gone" and set(names) <= {"trouble", "gone"}


def test_limits_and_the_end(broker: EmbeddedBroker, topic: str) -> None:
    with Gateway(GatewayOptions(broker.bootstrap_servers, limits=Limits(max_streams=1))) as gateway:
        url = f"{gateway.url}/topics/{topic}/stream"
        stopper = threading.Thread(target=gateway.stop)
        with httpx.stream("GET", url, timeout=TIMEOUT_SECONDS) as response:
            lines = response.iter_lines()
            next(lines)
            refused = httpx.get(url)
            assert (refused.status_code, refused.json()["error_code"]) == (429, 42901)
            stopper.start()
            list(lines)  # ends, and in good order
        stopper.join(TIMEOUT_SECONDS)


def test_streams_that_come_together_are_counted_together(
    broker: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One waits for the cluster while another comes."""
    waits, may_go = threading.Event(), threading.Event()
    count = stream_routes._count

    def slow_count(cluster: Cluster, name: str) -> int:
        waits.set()
        assert may_go.wait(TIMEOUT_SECONDS)
        return count(cluster, name)

    monkeypatch.setattr(stream_routes, "_count", slow_count)
    with Gateway(GatewayOptions(broker.bootstrap_servers, limits=Limits(max_streams=1))) as gateway:
        with ThreadPoolExecutor() as pool:
            first = pool.submit(httpx.get, f"{gateway.url}/topics/not-there/stream", timeout=TIMEOUT_SECONDS)
            assert waits.wait(TIMEOUT_SECONDS)
            second = pool.submit(httpx.get, f"{gateway.url}/topics/not-there/stream", timeout=TIMEOUT_SECONDS)
            wait(
                (second,), timeout=TIMEOUT_SECONDS / 4
            )  # it is refused while the first waits; or else both would go on
            may_go.set()
            assert [second.result().status_code, first.result().status_code] == [429, 404]
        for _ in range(2):  # places of streams that came to nothing are free again
            with httpx.stream("GET", f"{gateway.url}/topics/{topic}/stream", timeout=TIMEOUT_SECONDS) as response:
                assert response.status_code == 200
            deadline = time.monotonic() + TIMEOUT_SECONDS
            while httpx.get(f"{gateway.url}/topics/not-there/stream").status_code == 429:  # until it is seen to be gone
                assert time.monotonic() < deadline


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_reads_a_stream(gateway: Gateway, topic: str, put: Callable[..., None]) -> None:
    put("hello")
    command = ["curl", "-sN", f"{gateway.url}/topics/{topic}/stream?from=earliest&format=text"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as curl:
        assert curl.stdout is not None
        try:
            (event,) = itertools.islice(read_events(line.rstrip("\n") for line in curl.stdout), 1)
        finally:
            curl.kill()
    assert event.data["value"] == "hello"
