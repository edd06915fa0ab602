"""Client properties: one description for the raw client and for librdkafka."""

from pathlib import Path

import pytest

from millstream.raw_client import SetupError
from millstream.raw_client.client_properties import (
    as_user,
    librdkafka_settings,
    read_bootstrap,
    read_client_properties,
    with_token,
)
from millstream.raw_client.security import TlsSettings, make_context
from millstream.raw_client.settings import parse_settings
from tests.certificates import PASSWORD, Authority

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


def written(directory: Path, text: str) -> str:
    path = directory / "client.properties"
    path.write_text(text)
    return str(path)


def test_a_file_of_kafka(tmp_path: Path) -> None:
    (tmp_path / "secrets").write_text("alice=won=der land\n")
    path = written(
        tmp_path,
        f"""
        security.protocol=SASL_SSL
        sasl.mechanism=SCRAM-SHA-512
        sasl.jaas.config={SCRAM} required \\
            username="alice" password="${{file:{tmp_path}/secrets:alice}}";
        ssl.truststore.location=/ca.pem
        ssl.truststore.type=PEM
        request.timeout.ms=5000
        max.poll.records=5
        """,
    )
    settings = read_client_properties(path)
    assert "max.poll.records" not in settings
    wire = parse_settings(settings, "me", 30.0)
    assert wire.sasl is not None
    assert (wire.sasl.username, wire.sasl.password) == ("alice", "won=der land")


def test_properties_of_java_become_those_of_librdkafka(tmp_path: Path) -> None:
    files = Authority("ca").sign("client").write(tmp_path, "client")
    given = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{PLAIN} required username="u" password="p";',
        "ssl.truststore.location": str(files.ca),
        "ssl.keystore.location": str(files.keystore),
        "ssl.endpoint.identification.algorithm": "",
        "request.timeout.ms": "5000",
        "send.buffer.bytes": "-1",
    }
    assert librdkafka_settings(given) == {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "u",
        "sasl.password": "p",
        "ssl.ca.location": str(files.ca),
        "ssl.certificate.location": str(files.keystore),
        "ssl.key.location": str(files.keystore),
        "ssl.endpoint.identification.algorithm": "none",
        "enable.ssl.certificate.verification": True,
        "socket.timeout.ms": "5000",
    }
    assert librdkafka_settings({}) == {"security.protocol": "plaintext"}
    with pytest.raises(SetupError, match="librdkafka"):
        librdkafka_settings({"security.protocol": "SSL", "ssl.enabled.protocols": "TLSv1.2"})


def test_pkcs12_stores_become_pem_for_librdkafka(tmp_path: Path) -> None:
    files = Authority("ca").sign("client").write(tmp_path, "client")
    given = {
        "security.protocol": "SSL",
        "ssl.keystore.location": str(files.keystore_p12),
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.password": PASSWORD,
        "ssl.truststore.location": str(files.truststore_p12),
        "ssl.truststore.password": PASSWORD,
    }
    tls = parse_settings(given, "", 1.0).tls
    assert tls is not None
    assert make_context(tls).cert_store_stats()["x509_ca"] == 1
    mapped = librdkafka_settings(given)
    assert mapped["ssl.ca.pem"].startswith("-----BEGIN CERTIFICATE")
    assert (mapped["ssl.keystore.location"], mapped["ssl.keystore.password"]) == (
        str(files.keystore_p12),
        PASSWORD,
    )
    with pytest.raises(SetupError, match=r"password is wrong.*ssl\.truststore\.password") as wrong:
        make_context(TlsSettings(ca_location=str(files.truststore_p12), ca_password="guessed"))
    assert "guessed" not in str(wrong.value)
    with pytest.raises(SetupError, match="needs a password"):
        make_context(TlsSettings(ca_location=str(files.truststore_p12)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("security.protocl=SSL", r"client\.properties:1: .*did you mean 'security\.protocol'"),
        ("a=\\u12", "four hex digits"),
        ("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN", "SASL needs a user"),
        ("sasl.password=${env:NOT_THERE}", r"sasl\.password: \$\{env:NOT_THERE\}: .*is not set"),
        ("sasl.password=${file:/nowhere:x}", "no such file"),
        ("security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER", "needs a token"),
    ],
)
def test_wrong_client_properties_are_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SetupError, match=said):
        read_client_properties(written(tmp_path, text), {})


def test_a_file_that_is_missing() -> None:
    with pytest.raises(SetupError, match="/nowhere: the client properties cannot be read: no such file"):
        read_client_properties("/nowhere")


def test_another_user_replaces_the_credentials() -> None:
    base = {
        "security.protocol": "SSL",
        "ssl.ca.location": "/ca.pem",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": "…",
    }
    assert as_user(base, "bob", "secret") == {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": "/ca.pem",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "bob",
        "sasl.password": "secret",
    }
    settings = with_token({}, "abc")
    assert settings["security.protocol"] == "SASL_PLAINTEXT"
    wire = parse_settings(settings, "", 1.0)
    assert wire.sasl is not None
    assert wire.sasl.bearer is not None
    assert "abc" not in repr(wire)
    assert librdkafka_settings(settings)["oauth_cb"]("")[0] == "abc"


def test_a_token_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("e30.eyJleHAiOiA5OX0.x\n")
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": f"file://{tmp_path}/token",
    }
    assert librdkafka_settings(settings)["oauth_cb"]("") == ("e30.eyJleHAiOiA5OX0.x", 99.0)


def test_the_address_in_the_file(tmp_path: Path) -> None:
    assert read_bootstrap(written(tmp_path, "bootstrap.servers=a:1,b:2")) == "a:1,b:2"
    assert read_bootstrap(written(tmp_path, "client.id=x")) is None
