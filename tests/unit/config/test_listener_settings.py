"""Settings of single listeners, and the listener between brokers, by Kafka's rules."""

import pytest

from millstream.common.properties import Property
from millstream.config.broker_config import BrokerConfig
from millstream.config.loading import broker_config_from, parse_properties
from millstream.config.setting import ConfigError
from millstream.config.table import ssl

SECURED = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@localhost:9093
listeners=INTERNAL://:9092,EXTERNAL://:9094,CONTROLLER://:9093
inter.broker.listener.name=INTERNAL
controller.listener.names=CONTROLLER
listener.security.protocol.map=INTERNAL:SSL,EXTERNAL:SASL_SSL,CONTROLLER:SSL
ssl.keystore.type=PEM
ssl.keystore.location=/etc/kafka/node.pem
ssl.truststore.type=PKCS12
ssl.truststore.location=/etc/kafka/trust.p12
ssl.truststore.password=secret
ssl.client.auth=required
listener.name.external.ssl.client.auth=none
listener.name.external.sasl.enabled.mechanisms=SCRAM-SHA-512,PLAIN
listener.name.external.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.external.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
  user_admin="secret";
sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512
listener.name.internal.ssl.principal.mapping.rules=RULE:^CN=(.*?),.*$/$1/L,DEFAULT
"""


def config_of(text: str) -> BrokerConfig:
    return broker_config_from(list(parse_properties(text, "server.properties")))


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as refused:
        config_of(text)
    return str(refused.value)


def test_a_file_of_kafka_with_secured_listeners_is_accepted_as_it_is() -> None:
    config = config_of(SECURED)
    assert config.unknown == ()
    assert [listener.security_protocol for listener in config.listeners] == ["SSL", "SASL_SSL"]
    assert config.inter_broker_listener == "INTERNAL"
    assert config.controller_listener == "CONTROLLER"
    assert config.protocols["CONTROLLER"] == "SSL"


def test_a_listeners_own_value_takes_precedence() -> None:
    config = config_of(SECURED)
    assert config.listener("INTERNAL")[ssl.SSL_CLIENT_AUTH] == "required"
    external = config.listener("external")
    assert external[ssl.SSL_CLIENT_AUTH] == "none"
    assert external[ssl.SSL_KEYSTORE_LOCATION] == "/etc/kafka/node.pem"
    assert external.own(ssl.SSL_KEYSTORE_LOCATION) is None
    assert external.is_set(ssl.SSL_KEYSTORE_LOCATION)
    assert not external.is_set(ssl.SSL_PROTOCOL)
    assert external.uses_tls and external.uses_sasl
    assert not config.listener("INTERNAL").uses_sasl


def test_the_settings_of_one_mechanism() -> None:
    external = config_of(SECURED).listener("EXTERNAL")
    plain = external.mechanism("PLAIN")
    jaas = next(name for name in config_of(SECURED).values if name.endswith("external.plain.sasl.jaas.config"))
    assert 'user_admin="secret"' in config_of(SECURED).values[jaas]
    assert plain[ssl.SSL_KEYSTORE_TYPE] == "PEM"


def test_values_of_listeners_are_checked() -> None:
    assert "must be one of required, requested, none" in refusal(
        SECURED + "listener.name.internal.ssl.client.auth=maybe\n"
    )


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("listener.name.INTERNAL.ssl.keystore.type", "in lower case: listener.name.internal.ssl.keystore.type"),
        ("listener.name.internal.num.partitions", "num.partitions cannot be set for one listener"),
        ("listener.name.internal.ssl.keystore.typ", "did you mean ssl.keystore.type?"),
    ],
)
def test_names_that_are_not_settings_of_a_listener_get_a_hint(name: str, hint: str) -> None:
    (unknown,) = broker_config_from([Property(name, "1", "--set")]).unknown
    assert hint in unknown.hint


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("listeners=SSL://:1\nsecurity.inter.broker.protocol=SSL\ninter.broker.listener.name=SSL", "are both set"),
        ("listeners=SSL://:1\nsecurity.inter.broker.protocol=PLAINTEXT", "has no listener with this name"),
        ("listeners=SSL://:1\ninter.broker.listener.name=OTHER", "has no protocol for OTHER"),
        ("listeners=SSL://:1\ninter.broker.listener.name=PLAINTEXT", "is not one of listeners (SSL)"),
        (
            "listeners=A://:1,B://:2\nlistener.security.protocol.map=A:SSL,B:PLAINTEXT",
            "have different security protocols: set inter.broker.listener.name",
        ),
        (
            "listeners=A://:1,C://:2\ncontroller.listener.names=C\nlistener.security.protocol.map=A:SSL,C:SSL\n"
            "inter.broker.listener.name=C",
            "is also in controller.listener.names",
        ),
        ("security.inter.broker.protocol=TLS", "must be one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
    ],
)
def test_refused_listeners_between_brokers(lines: str, message: str) -> None:
    assert message in refusal(lines)


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        ("listeners=SSL://:1", "SSL"),
        ("listeners=SSL://:1,PLAINTEXT://:2", "PLAINTEXT"),
        ("listeners=PLAINTEXT://:2,SSL://:1\nsecurity.inter.broker.protocol=SSL", "SSL"),
        ("listeners=SSL://:1,PLAINTEXT://:2\ninter.broker.listener.name=ssl", "SSL"),
    ],
)
def test_the_listener_between_brokers(lines: str, name: str) -> None:
    assert config_of(lines).inter_broker_listener == name
