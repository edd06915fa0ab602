"""GetTelemetrySubscriptions and PushTelemetry (KIP-714) byte by byte: Kafka's errors, intervals, and the topic."""

import gzip
import json
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.testing import EmbeddedBroker
from tests import otlp
from tests.integration.node.broker.test_configs import DELETE, SET, alter
from tests.waiting import until
from tests.wire import Wire, values

CLIENT_METRICS = 16
NONE, GZIP = 0, 1
TOPIC = "__millstream_client_metrics"
PAYLOAD = otlp.metrics(otlp.gauge("org.apache.kafka.producer.batch.size.avg", 12.5), otlp.counter("other", 3))


@pytest.fixture(scope="module")
def small() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({"telemetry.max.bytes": 5000}) as running:
        yield running
        assert "Traceback" not in running.log_file.read_text()


class Client:
    def __init__(self, broker: EmbeddedBroker, client_id: str) -> None:
        self.wire = Wire(broker.bootstrap_servers, client_id=client_id)
        self.wire.call("api_versions", 4, client_software_name="tester", client_software_version="1.2")
        self.id = UUID(int=0)
        self.subscription = 0

    def get(self) -> Message:
        response = self.wire.call("get_telemetry_subscriptions", 0, client_instance_id=self.id)
        if not response.error_code:
            self.id, self.subscription = response.client_instance_id, response.subscription_id
        return response

    def push(self, payload: bytes = PAYLOAD, codec: int = NONE, **fields: Any) -> int:
        given = {"client_instance_id": self.id, "subscription_id": self.subscription, "terminating": False, **fields}
        return int(self.wire.call("push_telemetry", 0, compression_type=codec, metrics=payload, **given).error_code)


NewClient = Callable[[str], Client]


@pytest.fixture
def new_client(small: EmbeddedBroker) -> Iterator[NewClient]:
    made: list[Client] = []

    def make(client_id: str) -> Client:
        made.append(Client(small, client_id))
        return made[-1]

    yield make
    for each in made:
        each.wire.close()


@pytest.fixture
def subscribe(small: EmbeddedBroker) -> Iterator[Any]:
    with Wire(small.bootstrap_servers) as wire:

        def change(**settings: str) -> None:
            rows = [(name.replace("_", "."), SET, value) for name, value in settings.items()]
            assert alter(wire, CLIENT_METRICS, "it", *rows).error_code == 0

        yield change
        alter(wire, CLIENT_METRICS, "it", *((name, DELETE, None) for name in ("metrics", "interval.ms", "match")))


def test_a_client_without_a_subscription(new_client: NewClient) -> None:
    given = new_client("nobody").get()
    assert given.client_instance_id.int and given.requested_metrics == []
    assert (given.push_interval_ms, given.telemetry_max_bytes, given.delta_temporality) == (300_000, 5000, True)
    assert given.accepted_compression_types == [4, 3, 1, 2]


def test_a_push_is_a_record_of_the_topic(new_client: NewClient, subscribe: Any) -> None:
    subscribe(metrics="org.apache.kafka.", interval_ms="100", match="client_id=pusher,client_software_name=tester")
    client = new_client("pusher")
    given = client.get()
    assert (given.requested_metrics, given.push_interval_ms) == (["org.apache.kafka."], 100)
    assert client.push(gzip.compress(PAYLOAD), GZIP) == 0
    assert new_client("other").get().requested_metrics == []

    def record() -> dict[str, Any] | None:
        row = client.wire.fetch(TOPIC, max_wait_ms=100)
        found = [json.loads(value) for value in values(row.records)] if not row.error_code and row.records else []
        return next((each for each in found if each["client_id"] == "pusher"), None)

    until(lambda: record() is not None)
    pushed = record()
    assert pushed is not None
    assert pushed["client_instance_id"] == str(client.id) and pushed["client_software_version"] == "1.2"
    assert {row["name"]: row["value"] for row in pushed["metrics"]} == {
        "org.apache.kafka.producer.batch.size.avg": 12.5, "other": 3,
    }  # fmt: skip


def test_wrong_pushes_are_refused(new_client: NewClient, subscribe: Any) -> None:
    subscribe(metrics="*", interval_ms="60000")
    client = new_client("refused")
    assert client.push(client_instance_id=UUID(int=0)) == ErrorCode.INVALID_REQUEST
    assert client.get().requested_metrics == ["*"]
    assert client.get().error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert client.push(subscription_id=client.subscription + 1) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    assert client.get().error_code == 0  # at once, because of this error
    assert client.push() == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert client.push(terminating=True) == 0
    assert client.push() == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("payload", "codec", "code"),
    [
        (PAYLOAD, 9, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (b"x" * 5001, NONE, ErrorCode.TELEMETRY_TOO_LARGE),
        (gzip.compress(b"\0" * 1_000_000), GZIP, ErrorCode.TELEMETRY_TOO_LARGE),
        (b"not gzip", GZIP, ErrorCode.INVALID_RECORD),
        (b"\xff" * 40, NONE, ErrorCode.INVALID_RECORD),
        (b"", NONE, ErrorCode.NONE),
    ],
)
def test_payloads_are_accepted_or_refused_by_codec(
    new_client: NewClient, subscribe: Any, payload: bytes, codec: int, code: int
) -> None:
    subscribe(metrics="*", interval_ms="60000")
    client = new_client("payloads")
    client.get()
    assert client.push(payload, codec) == code
    if code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE:
        assert client.get().error_code == 0


def test_what_no_one_subscribed_to_is_not_stored(new_client: NewClient) -> None:
    """These APIs need no permission: a client must not be able to fill a topic that no one asked for."""
    client = new_client("uninvited")
    assert client.get().requested_metrics == []
    assert client.push() == ErrorCode.INVALID_REQUEST
    assert client.push(b"", terminating=True) == 0


def test_one_connection_has_few_client_instances(new_client: NewClient, subscribe: Any, small: EmbeddedBroker) -> None:
    """Each instance has its own interval: with a new id for each request there would be no limit, and each id keeps
    memory until the connection ends."""
    subscribe(metrics="*", interval_ms="60000")
    client, codes = new_client("many"), []
    for number in range(100):
        client.id = UUID(int=1000 + number)
        codes.append(client.get().error_code)
    assert codes[0] == 0 and codes.count(0) < 50 and codes[-1] == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert new_client("another").get().error_code == 0


def test_a_subscription_that_changes(new_client: NewClient, subscribe: Any) -> None:
    subscribe(metrics="a.", interval_ms="100")
    client = new_client("changed")
    client.get()
    subscribe(metrics="b.", interval_ms="100")
    until(lambda: client.push() == ErrorCode.UNKNOWN_SUBSCRIPTION_ID)
    assert client.get().requested_metrics == ["b."]


def test_the_apis_are_offered_while_there_is_a_subscription() -> None:
    """librdkafka writes a line to the log of each client where they are offered."""

    def offered(wire: Wire) -> bool:
        return {71, 72} <= {row.api_key for row in wire.call("api_versions", 0).api_keys}

    with EmbeddedBroker() as own, Wire(own.bootstrap_servers) as wire:
        assert not offered(wire)
        assert alter(wire, CLIENT_METRICS, "all", ("metrics", SET, "*")).error_code == 0
        until(lambda: offered(wire), "the APIs")
        assert alter(wire, CLIENT_METRICS, "all", ("metrics", DELETE, None)).error_code == 0
        until(lambda: not offered(wire), "no APIs")
