"""Names and values of settings, addresses, login lines, and what is said of wrong ones."""

import pickle
from pathlib import Path

import pytest

from millstream.raw_client import Cluster, SetupError
from millstream.raw_client.model import Address, parse_bootstrap
from millstream.raw_client.settings import IGNORED, USED, SecurityProtocol, WireSettings, credentials_of, parse_settings

SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


def parse(settings: dict[str, object]) -> WireSettings:
    return parse_settings(settings, "me", 30.0)


def test_a_client_without_settings_uses_neither_tls_nor_sasl() -> None:
    settings = parse({})
    assert settings.client_id == "me"
    assert settings.protocol is SecurityProtocol.PLAINTEXT
    assert (settings.call_timeout_s, settings.request_timeout_s) == (30.0, 10.0)


def test_a_short_call_leaves_time_for_another_broker() -> None:
    assert parse_settings({}, "me", 3.0).request_timeout_s == 1.0


def test_settings_have_javas_names() -> None:
    settings = parse(
        {
            "client.id": "spark",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": f'{SCRAM_MODULE} required username="u" password="p";',
            "ssl.truststore.location": "/ca.pem",
            "ssl.truststore.type": "PEM",
            "ssl.endpoint.identification.algorithm": "",
            "request.timeout.ms": "5000",
            "default.api.timeout.ms": 60_000,
            "receive.buffer.bytes": "-1",
            "max.poll.records": "10",
        }
    )
    assert settings.tls is not None
    assert settings.sasl is not None
    assert (settings.sasl.mechanism, settings.sasl.username, settings.sasl.password) == ("SCRAM-SHA-512", "u", "p")
    assert (settings.tls.ca_location, settings.tls.checks_host) == ("/ca.pem", False)
    assert (settings.request_timeout_s, settings.call_timeout_s) == (5.0, 60.0)
    assert settings.ignored == ("max.poll.records",)
    assert "password='p'" not in repr(settings)


def test_settings_have_librdkafkas_names() -> None:
    settings = parse(
        {
            "security.protocol": "sasl_ssl",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": "u",
            "sasl.password": "p",
            "ssl.ca.location": "/ca.pem",
            "ssl.certificate.location": "/me.pem",
            "ssl.key.location": "/me.key",
            "enable.ssl.certificate.verification": "false",
            "socket.timeout.ms": "7000",
            "socket.receive.buffer.bytes": "100000",
        }
    )
    assert settings.tls is not None
    assert settings.tls.certificate_location == "/me.pem"
    assert settings.tls.checks_host
    assert not settings.tls.checks_certificate
    assert (settings.request_timeout_s, settings.receive_buffer_bytes) == (7.0, 100_000)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"security.protokol": "SSL"}, "did you mean 'security.protocol'"),
        ({"sasl.user": "x"}, "did you mean 'sasl.username'"),
        ({"quite.something.else": "x"}, "there is no setting 'quite.something.else'"),
        ({"security.protocol": "TLS"}, "PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism is missing"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "u"}, "sasl.password"),
        (
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "u",
                "sasl.jaas.config": "x",
            },
            "exclude each other",
        ),
        ({"request.timeout.ms": "soon"}, "request.timeout.ms=soon: give a number of milliseconds"),
        ({"request.timeout.ms": "0"}, "above 0"),
        ({"request.timeout.ms": "1000", "socket.timeout.ms": "2000"}, "same setting with different values"),
        ({"receive.buffer.bytes": "-7"}, "a number of bytes"),
        ({"socket.keepalive.enable": "maybe"}, "TRUE, FALSE"),
        ({"security.protocol": "SSL", "ssl.truststore.type": "JKS"}, "keytool"),
        ({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "ldaps"}, "https, or none"),
    ],
)
def test_wrong_combinations_of_settings_are_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(SetupError, match=said.replace("(", r"\(").replace("|", r"\|")):
        parse(settings)


def test_spaces_belong_to_a_password() -> None:
    settings = {"security.protocol": " SASL_PLAINTEXT ", "sasl.mechanism": "plain ", "sasl.username": "u"}
    parsed = parse({**settings, "sasl.password": " p "}).sasl
    assert parsed is not None
    assert (parsed.mechanism, parsed.password) == ("PLAIN", " p ")


def test_no_name_is_both_used_and_ignored() -> None:
    assert not IGNORED & set(USED)


@pytest.mark.parametrize("weakening", ["ssl.", "sasl."])
def test_security_is_not_ignored(weakening: str) -> None:
    """What is ignored of these concerns passwords of stores and Java's plug-ins."""
    named = {name for name in IGNORED if name.startswith(weakening)}
    assert all(
        "password" in name
        or "login.re" in name
        or "login.connect" in name
        or "algorithm" in name
        or name in {"ssl.engine.factory.class", "ssl.provider", "ssl.secure.random.implementation"}
        # How Java finds a token; here sasl.oauthbearer.token.endpoint.url says it.
        or name in {"sasl.oauthbearer.method", "sasl.oauthbearer.jwt.retriever.class"}
        or name == "sasl.login.callback.handler.class"
        for name in named
    )


def test_bootstrap_addresses_are_parsed() -> None:
    assert parse_bootstrap("a:1, b ,PLAINTEXT://c:3,[::1]:4,[fe80::2],a:1") == (
        Address("a", 1),
        Address("b", 9092),
        Address("c", 3),
        Address("::1", 4),
        Address("fe80::2", 9092),
    )
    assert str(Address("::1", 4)) == "[::1]:4"


@pytest.mark.parametrize("text", ["", " , ", "a:b", "a:0", "a:70000", ":9092", "a:²"])
def test_wrong_bootstrap_addresses_are_refused(text: str) -> None:
    with pytest.raises(SetupError, match="HOST:PORT"):
        parse_bootstrap(text)


def test_credentials_are_read_from_a_jaas_line() -> None:
    line = f'  {SCRAM_MODULE} required\n  username="a b;c" password="quo\\"te\\\\";  '
    assert credentials_of(line) == ("a b;c", 'quo"te\\')
    assert credentials_of("x.PlainLoginModule required username=u password='p q'") == ("u", "p q")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nonsense", "not a login configuration"),
        ("x.Krb5LoginModule required useKeyTab=true;", "Krb5LoginModule is not supported"),
        ('x.PlainLoginModule required username="u";', "has no password"),
    ],
)
def test_wrong_jaas_lines_are_refused(line: str, said: str) -> None:
    with pytest.raises(SetupError, match=said):
        credentials_of(line)


def tls(**settings: object) -> None:
    names = {name.replace("_", "."): value for name, value in settings.items()}
    Cluster("localhost:1", {"security.protocol": "SSL", **names}).close()  # type: ignore[dict-item]


def test_wrong_certificate_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "store.jks").write_bytes(b"\xfe\xed\xfe\xed" + bytes(100))
    (tmp_path / "store.p12").write_bytes(b"\x30\x82" + bytes(100))
    (tmp_path / "text").write_text("no certificate")
    with pytest.raises(SetupError, match="no such file"):
        tls(ssl_ca_location=tmp_path / "missing")
    with pytest.raises(SetupError, match="Java key store"):
        tls(ssl_truststore_location=tmp_path / "store.jks")
    with pytest.raises(SetupError, match="PKCS12"):
        tls(ssl_keystore_location=tmp_path / "store.p12")
    with pytest.raises(SetupError, match="no certificates in PEM"):
        tls(ssl_ca_location=tmp_path / "text")
    with pytest.raises(SetupError, match="no certificates in PEM"):
        tls(ssl_ca_pem="nothing")
    with pytest.raises(SetupError, match="cannot be used"):
        tls(ssl_certificate_pem="nothing", ssl_key_pem="nothing")
    with pytest.raises(SetupError, match="key without a certificate"):
        tls(ssl_key_location=tmp_path / "text")
    with pytest.raises(SetupError, match=r"TLSv1\.2 or TLSv1\.3"):
        tls(ssl_enabled_protocols="TLSv1.2,TLSv1")
    with pytest.raises(SetupError, match="openssl ciphers"):
        tls(ssl_cipher_suites="TLS_OF_MY_OWN")


def test_a_pickled_cluster_is_a_new_one_with_the_same_settings() -> None:
    with Cluster("localhost:1", {"client.id": "x"}, timeout_s=3) as cluster:
        copy = pickle.loads(pickle.dumps(cluster))
    assert (copy.bootstrap, copy.settings, copy.timeout_s) == ("localhost:1", cluster.settings, 3)
