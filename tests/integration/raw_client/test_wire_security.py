"""TLS and SASL against Apache Kafka: every kind of listener, and what is said of wrong certificates and passwords."""

import shutil
from collections.abc import Iterator

import pytest

from millstream.raw_client import (
    LATEST,
    Cluster,
    ErrorCode,
    OffsetOutOfRangeError,
    RefusedError,
    SetupError,
    TopicPartition,
    UnreachableError,
)
from tests.wire import batch, values

from tests.integration.raw_client.kafka_with_security import KEY_PASSWORD, MECHANISMS, SecuredKafka, secured_kafka  # isort: skip

pytestmark = [
    pytest.mark.slow,  # Kafka takes half a minute to start while others use the machine
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates"),
]
TOPIC = "secured"
PLACE = TopicPartition(TOPIC, 0)
JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="{}";'


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    with secured_kafka(tmp_path_factory.mktemp("secured")) as kafka:
        kafka.add_user("alice", "pw=1,2")
        kafka.add_user("bob", "builder")
        with Cluster(kafka.address("PLAINTEXT")) as cluster:
            cluster.create_topic(TOPIC, 1, 1)
            data = [{"name": TOPIC, "partition_data": [{"index": 0, "records": batch(b"hello")}]}]
            response = cluster.call("produce", at_most=12, acks=-1, timeout_ms=5000, topic_data=data)
            assert response.responses[0].partition_responses[0].error_code == 0
        yield kafka


def check(kafka: SecuredKafka, listener: str, settings: dict[str, str], timeout_s: float = 20) -> None:
    """Metadata over the bootstrap address, offsets and fetch over the advertised one, a coordinator."""
    with Cluster(kafka.address(listener), settings, timeout_s=timeout_s) as cluster:
        assert cluster.partitions_of(TOPIC) == 1
        assert [row.port for row in cluster.brokers()] == [kafka.ports[listener]]
        assert cluster.offsets({PLACE: LATEST})[PLACE].offset == 1
        assert values(cluster.fetch(PLACE, 0, max_bytes=1000, max_wait_ms=1000).data) == [b"hello"]
        assert not cluster.fetch(PLACE, 1, max_bytes=1000, max_wait_ms=10).data
        with pytest.raises(OffsetOutOfRangeError, match="offsets 0 to 1, not 7"):
            cluster.fetch(PLACE, 7, max_bytes=1000, max_wait_ms=10)
        cluster.commit_offsets("secured", {PLACE: 0})


def trusting(kafka: SecuredKafka, protocol: str = "SSL") -> dict[str, str]:
    return {"security.protocol": protocol, "ssl.ca.location": kafka.certificates.trusted}


def test_tls_connects_with_the_right_trust_only(kafka: SecuredKafka) -> None:
    check(kafka, "SSL", trusting(kafka))
    with open(kafka.certificates.trusted) as file:
        check(kafka, "SSL", {"security.protocol": "SSL", "ssl.truststore.certificates": file.read()})
    check(kafka, "SSL", trusting(kafka) | {"ssl.enabled.protocols": "TLSv1.2"})
    check(kafka, "SSL", {"security.protocol": "SSL", "enable.ssl.certificate.verification": "false"})
    for settings in ({}, {"ssl.ca.location": kafka.certificates.other_authority}):
        with pytest.raises(SetupError, match="certificate is not trusted: unable to get local issuer"):
            check(kafka, "SSL", {"security.protocol": "SSL", **settings})


def test_the_certificate_must_name_the_host(kafka: SecuredKafka) -> None:
    bootstrap = f"localhost:{kafka.ports['SSL']}"
    with Cluster(bootstrap, trusting(kafka)) as cluster, pytest.raises(SetupError, match="Hostname mismatch"):
        cluster.topics()
    with Cluster(bootstrap, trusting(kafka) | {"ssl.endpoint.identification.algorithm": ""}) as cluster:
        assert TOPIC in cluster.topics()


def test_a_listener_that_requires_a_certificate_gets_one(kafka: SecuredKafka) -> None:
    certificates = kafka.certificates
    with pytest.raises(SetupError, match="requires one"):
        check(kafka, "MUTUAL", trusting(kafka))
    files = {"ssl.certificate.location": certificates.client, "ssl.key.location": certificates.client_key}
    check(kafka, "MUTUAL", trusting(kafka) | files | {"ssl.key.password": KEY_PASSWORD})
    with open(certificates.client) as chain, open(certificates.client_key) as key:
        texts = {"ssl.keystore.certificate.chain": chain.read(), "ssl.keystore.key": key.read()}
    check(kafka, "MUTUAL", trusting(kafka) | texts | {"ssl.key.password": KEY_PASSWORD})
    for wrong in ({}, {"ssl.key.password": "wrong"}):
        with pytest.raises(SetupError, match=r"and ssl\.key\.password"):
            check(kafka, "MUTUAL", trusting(kafka) | files | wrong)


@pytest.mark.parametrize(("listener", "protocol"), [("SASL", "SASL_PLAINTEXT"), ("SASLTLS", "SASL_SSL")])
def test_plain_and_scram_log_in(kafka: SecuredKafka, listener: str, protocol: str) -> None:
    settings = trusting(kafka, protocol)
    plain = settings | {"sasl.mechanism": "PLAIN", "sasl.username": "alice"}
    check(kafka, listener, plain | {"sasl.password": "wonderland"})
    with pytest.raises(RefusedError, match="check user and password") as caught:
        check(kafka, listener, plain | {"sasl.password": "wrong"})
    assert caught.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    for mechanism in MECHANISMS:
        scram = settings | {"sasl.mechanism": mechanism}
        check(kafka, listener, scram | {"sasl.jaas.config": JAAS.format("pw=1,2")})
        with pytest.raises(RefusedError, match=r"as 'alice'.*check user and password"):
            check(kafka, listener, scram | {"sasl.jaas.config": JAAS.format("wrong")})


def test_what_a_user_may_not_do(kafka: SecuredKafka) -> None:
    settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}
    settings |= {"sasl.username": "bob", "sasl.password": "builder"}
    with Cluster(kafka.address("SASL"), settings) as cluster:
        for ask in (
            lambda: cluster.topics([TOPIC]),
            lambda: cluster.offsets({PLACE: LATEST}),
            lambda: cluster.fetch(PLACE, 0, max_bytes=1000, max_wait_ms=1),
            lambda: cluster.create_topic("another", 1, 1),
        ):
            with pytest.raises(RefusedError, match=r"topic '.*' is not allowed for this user") as caught:
                ask()
            assert caught.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        with pytest.raises(RefusedError, match="group 'g' is not allowed for this user"):
            cluster.commit_offsets("g", {PLACE: 1})


def test_the_wrong_kind_of_listener(kafka: SecuredKafka) -> None:
    plain = {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": "wonderland"}
    for listener in ("SSL", "SASL"):
        with pytest.raises(UnreachableError, match=r"require TLS or SASL|it uses TLS"):
            check(kafka, listener, {}, timeout_s=3)
    with pytest.raises(UnreachableError, match="does this port use TLS"):
        check(kafka, "PLAINTEXT", trusting(kafka), timeout_s=3)
    with pytest.raises(SetupError, match="this listener does not use SASL"):
        check(kafka, "PLAINTEXT", {"security.protocol": "SASL_PLAINTEXT", **plain})
