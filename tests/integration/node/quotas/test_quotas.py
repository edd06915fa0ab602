"""Quotas of a real broker over the wire: alter, describe, throttle, survive a restart. Windows are short."""

import itertools
import math
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.testing import EmbeddedBroker
from tests.waiting import TIMEOUT_SECONDS, eventually
from tests.wire import Wire, batch, fetch_fields

_numbers = itertools.count()
WINDOW = {"quota.window.num": 2, "controller.quota.window.num": 2}
"""Rates are measured over one second, so that throttle times are short."""


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({"num.partitions": 1, **WINDOW}) as running:
        yield running
        log = running.log_file.read_text()
        assert "handler_failed" not in log and "Traceback" not in log, log[-3000:]


@pytest.fixture
def admin(broker: EmbeddedBroker) -> Iterator[Wire]:
    with Wire(broker.bootstrap_servers, client_id="admin") as wire:
        yield wire
        for entry in describe(wire):
            entity = [{"entity_type": part.entity_type, "entity_name": part.entity_name} for part in entry.entity]
            remove = [{"key": row.key, "value": 0.0, "remove": True} for row in entry.values]
            wire.call("alter_client_quotas", 1, entries=[{"entity": entity, "ops": remove}], validate_only=False)


@pytest.fixture
def topic(admin: Wire) -> str:
    name = f"quota-{next(_numbers)}"
    admin.create_topic(name)
    return name


def alter(wire: Wire, parts: dict[str, str | None], version: int = 1, **values: float | None) -> Message:
    entity = [{"entity_type": kind.replace("_", "-"), "entity_name": name} for kind, name in parts.items()]
    ops = [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in values.items()]
    response = wire.call("alter_client_quotas", version, entries=[{"entity": entity, "ops": ops}], validate_only=False)
    row: Message = response.entries[0]
    return row


def set_quota(wire: Wire, parts: dict[str, str | None], **values: float | None) -> None:
    row = alter(wire, parts, 1, **values)
    assert row.error_code == 0, row.error_message


def describe(wire: Wire, *components: tuple[str, int, str | None], strict: bool = False) -> list[Message]:
    rows = [{"entity_type": kind, "match_type": match, "match": name} for kind, match, name in components]
    response = wire.call("describe_client_quotas", 1, components=rows, strict=strict)
    assert response.error_code == 0
    return list(response.entries)


def produce(wire: Wire, topic: str, size: int) -> int:
    """Produces one batch; the throttle time in the response."""
    rows = [{"name": topic, "partition_data": [{"index": 0, "records": batch(b"x" * size)}]}]
    response = wire.call("produce", 12, acks=-1, timeout_ms=10_000, topic_data=rows)
    assert response.responses[0].partition_responses[0].error_code == 0
    return int(response.throttle_time_ms)


def fetch(wire: Wire, topic: str, offset: int = 0) -> tuple[int, Any]:
    response = wire.call("fetch", 12, **fetch_fields([(topic, 0, offset)]))
    rows = response.responses
    return response.throttle_time_ms, rows[0].partitions[0].records if rows else None


def test_alter_and_describe_in_both_versions(admin: Wire) -> None:
    for version in (0, 1):
        assert alter(admin, {"user": "alice"}, version, producer_byte_rate=1000.0).error_code == 0
    set_quota(admin, {"user": "alice", "client-id": None}, request_percentage=50.5)
    (entry,) = describe(admin, ("user", 0, "alice"), strict=True)
    assert [(row.key, row.value) for row in entry.values] == [("producer_byte_rate", 1000.0)]
    (entry,) = describe(admin, ("user", 2, None), ("client-id", 1, None))
    assert [(part.entity_type, part.entity_name) for part in entry.entity] == [("client-id", None), ("user", "alice")]


@pytest.mark.parametrize("value", [0.0, -5.0, math.nan, math.inf, 1e300])
def test_bad_values_are_refused(admin: Wire, value: float) -> None:
    row = alter(admin, {"user": "alice"}, producer_byte_rate=value or -0.0)
    assert row.error_code == ErrorCode.INVALID_REQUEST
    assert not describe(admin)


def test_bad_filters_are_refused(admin: Wire) -> None:
    response = admin.call(
        "describe_client_quotas", 1, components=[{"entity_type": "x", "match_type": 0, "match": "y"}], strict=False
    )
    assert (response.error_code, response.entries) == (ErrorCode.UNSUPPORTED_VERSION, None)


def test_a_producer_is_throttled_and_then_goes_on(broker: EmbeddedBroker, admin: Wire, topic: str) -> None:
    set_quota(admin, {"client-id": "writer"}, producer_byte_rate=10_000.0)
    with Wire(broker.bootstrap_servers, client_id="writer") as wire:
        throttled = [produce(wire, topic, 4000) for _ in range(6)]
        assert any(throttled), throttled
    with Wire(broker.bootstrap_servers, client_id="other") as wire:
        assert [produce(wire, topic, 4000) for _ in range(6)] == [0] * 6


def test_produce_without_acknowledgement_is_throttled_too(broker: EmbeddedBroker, admin: Wire, topic: str) -> None:
    set_quota(admin, {"client-id": "silent"}, producer_byte_rate=20_000.0)
    with Wire(broker.bootstrap_servers, client_id="silent") as wire:
        rows = [{"name": topic, "partition_data": [{"index": 0, "records": batch(b"x" * 30_000)}]}]
        wire.send("produce", 12, acks=0, timeout_ms=10_000, topic_data=rows)
        # The connection is muted: the next request is read after the throttle time, and nothing is lost.
        assert produce(wire, topic, 10) >= 0
    with Wire(broker.bootstrap_servers) as wire:
        assert wire.fetch(topic).high_watermark == 2


def test_a_throttled_client_may_leave(broker: EmbeddedBroker, admin: Wire, topic: str) -> None:
    set_quota(admin, {"client-id": "leaver"}, producer_byte_rate=10.0)
    wire = Wire(broker.bootstrap_servers, client_id="leaver")
    assert produce(wire, topic, 50_000) > 1_000_000

    def muted() -> int:
        return int(metric(broker, "millstream_connections_muted"))

    assert muted() == 1
    wire.close()
    eventually(lambda: _equal(muted(), 0))


def test_a_consumer_gets_an_empty_response_with_a_throttle_time(
    broker: EmbeddedBroker, admin: Wire, topic: str
) -> None:
    for _ in range(4):
        produce(admin, topic, 6000)
    set_quota(admin, {"client-id": "reader"}, consumer_byte_rate=8000.0)
    with Wire(broker.bootstrap_servers, client_id="reader") as wire:
        offset, throttles, sizes = 0, 0, []
        while offset < 4:
            throttle_ms, records = fetch(wire, topic, offset)
            if throttle_ms:
                throttles += 1
                assert not records
            elif records:
                sizes.append(len(records))
                offset += 1
        assert throttles
        assert max(sizes) <= 8000, "a response is not larger than the quota allows in the window"


def test_a_session_goes_on_after_a_throttled_fetch(broker: EmbeddedBroker, admin: Wire, topic: str) -> None:
    for _ in range(2):
        produce(admin, topic, 6000)
    set_quota(admin, {"client-id": "session"}, consumer_byte_rate=7000.0)
    with Wire(broker.bootstrap_servers, client_id="session") as wire:
        session, epoch, throttles, offset = 0, 0, 0, 0
        while offset < 2:
            response = wire.call(
                "fetch", 12, **fetch_fields([(topic, 0, offset)], session_id=session, session_epoch=epoch)
            )
            assert response.error_code == 0
            if response.throttle_time_ms:
                throttles += 1
                assert not response.responses
            elif response.responses and response.responses[0].partitions[0].records:
                offset += 1
            session = response.session_id
            epoch = epoch + 1 if session else 0
        assert throttles


def test_users_take_precedence_over_client_ids(broker: EmbeddedBroker, admin: Wire, topic: str) -> None:
    set_quota(admin, {"client-id": "app"}, producer_byte_rate=10.0)
    set_quota(admin, {"user": "ANONYMOUS"}, producer_byte_rate=1e9)
    with Wire(broker.bootstrap_servers, client_id="app") as wire:
        assert produce(wire, topic, 5000) == 0
        set_quota(admin, {"user": "ANONYMOUS", "client-id": "app"}, producer_byte_rate=10.0)
        assert produce(wire, topic, 5000) > 0


def test_quotas_change_while_clients_run(broker: EmbeddedBroker, admin: Wire, topic: str) -> None:
    with Wire(broker.bootstrap_servers, client_id="live") as wire:
        assert produce(wire, topic, 5000) == 0
        set_quota(admin, {"client-id": None}, producer_byte_rate=4000.0)
        eventually(lambda: _positive(produce(wire, topic, 5000)))
        set_quota(admin, {"client-id": None}, producer_byte_rate=None)
        assert produce(wire, topic, 5000) == 0


def test_time_on_the_event_loop_is_throttled(broker: EmbeddedBroker, admin: Wire, topic: str) -> None:
    set_quota(admin, {"client-id": "busy"}, request_percentage=0.001)
    with Wire(broker.bootstrap_servers, client_id="busy") as wire:
        throttled = [wire.call("metadata", 12, topics=None).throttle_time_ms for _ in range(3)]
        assert any(0 < each <= 1000 for each in throttled), throttled


def test_mutations_above_the_quota(broker: EmbeddedBroker, admin: Wire) -> None:
    set_quota(admin, {"client-id": "creator"}, controller_mutation_rate=2.0)

    def create(wire: Wire, version: int, partitions: int) -> Message:
        new = {"name": f"quota-{next(_numbers)}", "num_partitions": partitions, "replication_factor": 1}
        return wire.call("create_topics", version, topics=[new], timeout_ms=10_000, validate_only=False)

    with Wire(broker.bootstrap_servers, client_id="creator") as wire:
        first = create(wire, 7, 6)
        assert (first.topics[0].error_code, first.throttle_time_ms) == (0, 0)
        second = create(wire, 7, 1)
        assert second.topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert second.throttle_time_ms > 0
    with Wire(broker.bootstrap_servers, client_id="creator") as wire:
        old = create(wire, 5, 2)
        assert old.topics[0].error_code == 0
        assert old.throttle_time_ms > 0


def test_connections_of_an_address_are_limited(broker: EmbeddedBroker, admin: Wire) -> None:
    set_quota(admin, {"ip": "127.0.0.3"}, connection_creation_rate=2.0)
    host, _, port = broker.bootstrap_servers.rpartition(":")
    sockets = [socket.create_connection((host, int(port)), 30, ("127.0.0.3", 0)) for _ in range(8)]
    try:
        eventually(
            lambda: _positive(int(metric(broker, "millstream_connections_refused_total", "connection_creation_rate")))
        )
        assert admin.call("metadata", 12, topics=None).brokers, "other addresses are not affected"
    finally:
        for each in sockets:
            each.close()


def test_a_flood_of_client_ids_is_survived(broker: EmbeddedBroker, admin: Wire, topic: str) -> None:
    set_quota(admin, {"client-id": None}, producer_byte_rate=1e6)
    with Wire(broker.bootstrap_servers) as wire:
        for number in range(40):
            wire.client_id = str(number) + "y" * 32_000
            assert produce(wire, topic, 10) == 0
    page = metrics(broker)
    assert "y" * 300 not in page


def test_quotas_survive_a_restart(broker: EmbeddedBroker, admin: Wire, topic: str) -> None:
    set_quota(admin, {"client-id": "kept"}, producer_byte_rate=10.0)
    broker.restart()
    with Wire(broker.bootstrap_servers, client_id="admin") as wire:
        (entry,) = describe(wire)
        assert entry.values[0].value == 10.0
        with Wire(broker.bootstrap_servers, client_id="kept") as kept:
            assert produce(kept, topic, 1000) > 0
        set_quota(wire, {"client-id": "kept"}, producer_byte_rate=None)
    admin.socket.close()
    admin.socket = Wire(broker.bootstrap_servers).socket


def metrics(broker: EmbeddedBroker) -> str:
    from urllib.request import urlopen

    with urlopen(f"http://{broker.bootstrap_servers}/metrics", timeout=TIMEOUT_SECONDS) as page:
        return str(page.read().decode())


def metric(broker: EmbeddedBroker, name: str, label: str = "") -> float:
    """The sum of the samples of a metric whose labels contain a text."""
    lines = [line for line in metrics(broker).splitlines() if line.startswith(name) and label in line]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def _equal(found: int, wanted: int) -> None:
    assert found == wanted


def _positive(found: int) -> None:
    assert found > 0
