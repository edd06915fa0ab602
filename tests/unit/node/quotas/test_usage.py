"""Usages of clients: throttle times, bounded memory, quotas that change, mutations and connections."""

import pytest

from millstream.formats.model.access_control import Principal
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.metadata.image import MetadataImage
from millstream.node.metadata.records import QuotaEntity
from millstream.node.quotas import client_quotas
from millstream.node.quotas.client_quotas import ClientQuotas
from millstream.node.quotas.connection_rates import ConnectionRates
from millstream.node.quotas.mutations import ControllerMutations, MutationQuotas
from millstream.node.server.request import Context
from millstream.node.server.service import Peer


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def image(**quotas: float) -> MetadataImage:
    """An image with quotas of the default client id, or of the default address."""
    kind = "ip" if "connection_creation_rate" in quotas else "client-id"
    return MetadataImage(quotas={frozenset({QuotaEntity(entity_type=kind, entity_name=None)}): quotas})


def followed(time: Time, **quotas: float) -> ClientQuotas:
    made = ClientQuotas(time, samples=11, sample_seconds=1)
    made.follow(image(**quotas))
    return made


def peer(user: str = "alice") -> Peer:
    return Peer("192.0.2.1", 1, "PLAINTEXT", principal=Principal("User", user))


def test_a_producer_above_its_quota_is_throttled() -> None:
    quotas = followed(Time(), producer_byte_rate=100.0)
    client = quotas.client(peer(), b"app")
    assert client is not None
    assert client.produced(1000) == 0
    assert client.produced(500) == 5000
    assert client.may_fetch(1 << 30) == 0 and client.largest_fetch_bytes is None
    ((key, usage),) = quotas.usages()
    assert (key, usage.total, usage.throttles, usage.throttled_ms) == ("producer_byte_rate", 1500, 1, 5000)


def test_a_fetch_above_the_quota_counts_nothing() -> None:
    time = Time()
    client = followed(time, consumer_byte_rate=100.0).client(peer(), b"app")
    assert client is not None
    assert client.largest_fetch_bytes == 1000
    assert client.may_fetch(1000) == 0
    assert client.may_fetch(1000) == 10_000
    assert client.may_fetch(1000) == 10_000
    time.now += 11
    assert client.may_fetch(1000) == 0


def test_a_batch_larger_than_the_window_is_sent_when_the_window_is_empty() -> None:
    time = Time()
    client = followed(time, consumer_byte_rate=100.0).client(peer(), b"app")
    assert client is not None
    assert client.may_fetch(1) == 0
    assert client.may_fetch(5000) > 0
    time.now += 12
    assert client.may_fetch(5000) == 0
    assert client.may_fetch(5000) > 0


def test_time_is_throttled_for_one_sample_at_most() -> None:
    client = followed(Time(), request_percentage=1.0).client(peer(), b"app")
    assert client is not None
    assert client.worked(0.05) == 0
    assert client.worked(30.0) == 1000


def test_a_changed_quota_keeps_the_measured_rate() -> None:
    quotas = followed(Time(), producer_byte_rate=100.0)
    client = quotas.client(peer(), b"app")
    assert client is not None and client.produced(1000) == 0
    quotas.follow(image(producer_byte_rate=50.0))
    client = quotas.client(peer(), b"app")
    assert client is not None and client.produced(0) == 10_000
    quotas.follow(MetadataImage())
    assert not quotas.is_enabled and quotas.client(peer(), b"app") is None and quotas.tracked == 0


def test_a_client_id_like_a_brokers_is_not_exempt() -> None:
    assert followed(Time(), producer_byte_rate=1.0).client(peer(), b"millstream-broker-1") is not None


def test_a_flood_of_client_ids_takes_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_quotas, "MAX_TRACKED", 50)
    time = Time()
    quotas = followed(time, producer_byte_rate=100.0)
    for number in range(1000):
        client = quotas.client(peer(), b"%d" % number)
        assert client is not None
        client.produced(1)
        assert quotas.tracked <= 50
    for number in range(100):  # not cached, and not stored whole
        assert quotas.client(peer(), b"%d" % number + b"x" * 32_000) is not None
        assert quotas.tracked <= 50
    time.now += 3700
    quotas.tick()
    assert quotas.tracked == 0


def test_strict_mutations_are_refused_and_others_throttled() -> None:
    time = Time()
    mutations = MutationQuotas(time, burst_seconds=11)
    mutations.follow(image(controller_mutation_rate=1.0))
    strict = mutations.quota("alice", "app", is_strict=True)
    strict(20)  # more than the burst of 11: the bucket owes 9
    assert strict.throttle_ms == 0
    with pytest.raises(KafkaError) as refusal:
        strict(1)
    assert refusal.value.code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert strict.throttle_ms == 9000
    old = mutations.quota("alice", "app", is_strict=False)
    old(1)
    assert old.throttle_ms == 10_000
    time.now += 10
    mutations.quota("alice", "app", is_strict=True)(1)
    assert mutations.quota("alice", "other", is_strict=True).throttle_ms == 0


@pytest.mark.parametrize(("listener", "port"), [("CONTROLLER", 1), ("CONTROLLER", 0), ("CLIENTS", 1)])
def test_mutations_of_clients_at_the_controller_are_limited(listener: str, port: int) -> None:
    """Also of those that connect to the controller itself; not those of brokers."""
    time = Time()
    quotas = MutationQuotas(time, burst_seconds=1)
    quotas.follow(image(controller_mutation_rate=1.0))
    brokers: list[Peer] = []
    mutations = ControllerMutations(quotas, frozenset({"CONTROLLER"}), lambda each: each in brokers)
    client = Peer("192.0.2.1", port, listener)

    def create() -> None:
        mutations.quota(Context(7, "app", client), strict_since=6)(5)

    create()
    with pytest.raises(KafkaError, match="controller_mutation_rate"):
        create()
    brokers.append(client)
    if listener == "CONTROLLER" and port:
        create()
    else:
        with pytest.raises(KafkaError, match="controller_mutation_rate"):
            create()


def test_connections_of_an_address_above_its_quota_are_closed_later() -> None:
    time = Time()
    rates = ConnectionRates(time, lambda _: None, samples=11, sample_seconds=1)
    assert rates.of_address("192.0.2.1", "A") == 0 == rates.of_listener("A")
    rates.follow(image(connection_creation_rate=1.0))
    assert [rates.of_address("192.0.2.1", "A") for _ in range(10)] == [0.0] * 10
    assert rates.of_address("192.0.2.1", "A") == 1.0
    assert rates.of_address("192.0.2.2", "A") == 0.0
    rates.exempt_listener = "INTERNAL"
    assert rates.of_address("192.0.2.1", "INTERNAL") == 0.0
    time.now += 11
    assert rates.of_address("192.0.2.1", "A") == 0.0


def test_a_network_of_64_bits_is_one_address() -> None:
    rates = ConnectionRates(Time(), lambda _: None, samples=11, sample_seconds=1)
    own = frozenset({QuotaEntity(entity_type="ip", entity_name="2001:db8::7")})
    default = image(connection_creation_rate=1.0).quotas
    rates.follow(MetadataImage(quotas={**default, own: {"connection_creation_rate": 1.0}}))
    assert [rates.of_address(f"2001:db8::1:{number}", "A") for number in range(10)] == [0.0] * 10
    assert rates.of_address("2001:db8::ffff", "A") == 1.0
    assert rates.of_address("2001:db8:0:1::1", "A") == 0.0
    assert rates.of_address("2001:db8::7", "A") == 0.0  # it has a quota of its own


def test_connections_of_the_broker_and_of_a_listener_wait() -> None:
    limits: dict[str | None, float] = {None: 2, "SLOW": 1}
    rates = ConnectionRates(Time(), limits.get, samples=11, sample_seconds=1)
    assert [rates.of_listener("SLOW") for _ in range(10)] == [0.0] * 10
    assert rates.of_listener("SLOW") == 1.0
    assert [rates.of_listener("OTHER") for _ in range(9)] == [0.0] * 9
    assert rates.of_listener("OTHER") > 0  # with those of the other listener
    rates.exempt_listener = "INTERNAL"
    assert rates.of_listener("INTERNAL") == 0.0
