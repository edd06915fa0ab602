"""Batches that become very large when they are opened, read over HTTP and by the console: the gateway takes no harm."""

import base64
import threading
from collections.abc import Iterator

import httpx
import pytest

from millstream.console.messages.reading import Range, RecordReader
from millstream.formats.records.compression import Codec
from millstream.formats.records.record import Record, build_batch
from millstream.gateway.http.configuration import Limits
from millstream.gateway.server import Gateway, GatewayOptions
from millstream.raw_client import Cluster
from millstream.testing import EmbeddedBroker
from tests.system.faults.test_bombs import many_records
from tests.waiting import TIMEOUT_SECONDS
from tests.wire import Wire, batch

BEYOND = 1_200_000

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    """With a limit above the gateway's: its own limits must hold for batches of other brokers, too."""
    with EmbeddedBroker({"millstream.batch.max.records": 2 * BEYOND}) as running:
        yield running


@pytest.fixture(scope="module")
def http(broker: EmbeddedBroker) -> Iterator[httpx.Client]:
    options = GatewayOptions(broker.bootstrap_servers, limits=Limits(max_batch_bytes=16 << 20))
    with Gateway(options) as gateway, httpx.Client(base_url=gateway.url, timeout=TIMEOUT_SECONDS) as client:
        yield client


def polled(http: httpx.Client, group: str) -> httpx.Response:
    """The next response that is not an empty list: the group may have to settle first."""
    while True:
        response = http.get(f"/consumers/{group}/poll", params={"timeout_ms": 5000})
        if response.status_code != 200 or response.json()["messages"]:
            return response


@pytest.mark.parametrize("kind", ["records", "bytes"])
def test_a_consumer_is_told_where_to_go_on(broker: EmbeddedBroker, http: httpx.Client, kind: str) -> None:
    topic = group = f"beyond-{kind}"
    count = BEYOND if kind == "records" else 1
    with Wire(broker.bootstrap_servers, 60) as wire:
        wire.create_topic(topic)
        bomb = many_records(BEYOND) if kind == "records" else many_records(1, value=bytes(20 << 20))
        assert wire.produce(topic, bomb).error_code == 0
        wire.produce(topic, batch(b"behind"))
    assert http.post(f"/consumers/{group}/subscribe", json={"topics": [topic]}).status_code == 200
    refused = polled(http, group)
    assert (refused.status_code, refused.json()["error_code"]) == (502, 50201)
    assert f"seek to offset {count}" in refused.json()["hint"]
    http.post(f"/consumers/{group}/seek", json={"topic": topic, "partition": 0, "offset": count})
    (row,) = polled(http, group).json()["messages"]
    assert base64.b64decode(row["value"]) == b"behind"


def test_many_records_of_one_batch_come_bit_by_bit(broker: EmbeddedBroker, http: httpx.Client) -> None:
    topic = group = "many"
    rows = [Record(None, b"%d" % number, timestamp=number) for number in range(25_000)]
    with Wire(broker.bootstrap_servers, 60) as wire:
        wire.create_topic(topic, retention_ms="-1")
        assert wire.produce(topic, bytes(build_batch(rows, codec=Codec.ZSTD))).error_code == 0
    assert http.post(f"/consumers/{group}/subscribe", json={"topics": [topic]}).status_code == 200
    seen: list[int] = []
    while len(seen) < len(rows):
        response = http.get(f"/consumers/{group}/poll", params={"timeout_ms": 5000, "max_records": 10_000})
        assert response.status_code == 200
        seen += [row["offset"] for row in response.json()["messages"]]
    assert seen == list(range(25_000))


def test_others_are_served_while_it_is_read(broker: EmbeddedBroker, http: httpx.Client) -> None:
    topic = group = "beside"
    with Wire(broker.bootstrap_servers, 60) as wire:
        wire.create_topic(topic)
        for _ in range(5):
            assert wire.produce(topic, many_records(900_000)).error_code == 0
    assert http.post(f"/consumers/{group}/subscribe", json={"topics": [topic]}).status_code == 200
    # Chance decides how many requests fit into one poll, so it is read again until there were enough beside one.
    served = 0
    with httpx.Client(base_url=http.base_url, timeout=TIMEOUT_SECONDS) as other:
        while served < 3:
            served = 0
            polling = threading.Thread(target=lambda: polled(http, group))
            polling.start()
            while polling.is_alive():
                assert other.get("/topics").status_code == 200
                served += polling.is_alive()
            polling.join()
            http.post(f"/consumers/{group}/seek", json={"topic": topic, "partition": 0, "offset": 0})


def test_the_console_says_what_it_cannot_show(broker: EmbeddedBroker) -> None:
    topic = "shown"
    with Wire(broker.bootstrap_servers, 60) as wire, Cluster(broker.bootstrap_servers) as cluster:
        wire.create_topic(topic)
        wire.produce(topic, batch(b"before"))
        assert wire.produce(topic, many_records(BEYOND)).error_code == 0
        wire.produce(topic, batch(b"behind"))
        reader = RecordReader(cluster)
        page = reader.forwards(topic, {0: Range(0, BEYOND + 2)}, 10)
        assert [record.value for record in page.records] == [b"before"]
        assert "1200000 records" in page.problems[0]
        page = reader.forwards(topic, {0: Range(BEYOND + 1, BEYOND + 2)}, 10)
        assert [record.value for record in page.records] == [b"behind"] and not page.problems
