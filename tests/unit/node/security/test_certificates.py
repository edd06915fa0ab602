"""Key stores and trust stores of a listener: what is read, what is refused and how, what may replace what."""

import datetime
import ssl
from pathlib import Path

import pytest

from millstream.common.properties import Property
from millstream.config.broker_config import ListenerConfig
from millstream.config.loading import broker_config_from
from millstream.config.setting import ConfigError
from millstream.node.security.certificates import TLS_1_3, Certificates, load, split_suites
from tests.certificates import PASSWORD, Authority, Files, Identity, authority


def listener(settings: dict[str, str]) -> ListenerConfig:
    values = {"listeners": "SSL://:0", **settings}
    return broker_config_from([Property(name, value, "test") for name, value in values.items()]).listener("SSL")


@pytest.fixture
def identity() -> Identity:
    return authority().node()


@pytest.fixture
def files(identity: Identity, tmp_path: Path) -> Files:
    return identity.write(tmp_path, "node")


def refusal(settings: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as refused:
        load(listener(settings), is_server=True)
    message = str(refused.value)
    assert PASSWORD not in message and "PRIVATE KEY-----\nM" not in message
    return message


def test_pem_files_pkcs12_files_and_texts_are_the_same(files: Files, identity: Identity) -> None:
    texts = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": identity.key_pem(),
        "ssl.keystore.certificate.chain": identity.chain_pem.replace("\n", " "),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": authority().pem,
    }
    default_type = {name: value for name, value in files.pkcs12_properties().items() if not name.endswith(".type")}
    for settings in (files.properties(), files.pkcs12_properties(), default_type, texts):
        material = load(listener(settings), is_server=True)
        assert material.store is not None
        assert material.store.certificates == (identity.certificate, identity.issuer)
        assert [each["serialNumber"] for each in material.client.get_ca_certs()]


def test_an_encrypted_key_needs_its_password(tmp_path: Path, identity: Identity) -> None:
    path = tmp_path / "encrypted.pem"
    path.write_text(identity.key_pem("key-password") + identity.chain_pem)
    settings = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(path)}
    assert load(listener({**settings, "ssl.key.password": "key-password"}), is_server=True).store is not None
    assert "the private key is encrypted: set ssl.key.password" in refusal(settings)
    assert "ssl.key.password is wrong" in refusal({**settings, "ssl.key.password": "other"})


def test_wrong_stores_are_refused(tmp_path: Path, files: Files, identity: Identity) -> None:
    jks = tmp_path / "node.jks"
    jks.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    junk = tmp_path / "junk.p12"
    junk.write_bytes(b"junk")
    other = authority().node("other")
    pem, p12 = files.properties(), files.pkcs12_properties()
    for settings, message in (
        ({}, "the listener SSL uses TLS and has no certificate: set ssl.keystore.location"),
        ({**pem, "ssl.keystore.location": str(tmp_path / "no.pem")}, "no.pem cannot be read: No such file"),
        ({**pem, "ssl.keystore.location": str(files.certificates)}, "no private key found in PEM format"),
        ({**pem, "ssl.keystore.location": str(files.key)}, "no certificate found in PEM format"),
        ({**pem, "ssl.keystore.password": PASSWORD}, "use ssl.key.password for an encrypted key"),
        ({**pem, "ssl.keystore.type": "PKCS12"}, "has the format PEM: set ssl.keystore.type=PEM"),
        ({**p12, "ssl.keystore.password": "wrong"}, "ssl.keystore.password is wrong, or it is not PKCS12"),
        ({**p12, "ssl.keystore.location": str(junk)}, "or it is not PKCS12"),
        ({**p12, "ssl.keystore.location": str(jks)}, "-deststoretype PKCS12`, and set the type PKCS12"),
        ({**p12, "ssl.truststore.location": str(jks)}, "keytool -importkeystore"),
        ({**pem, "ssl.keystore.key": identity.key_pem()}, "set together with ssl.keystore.key"),
        (
            {"ssl.keystore.type": "PEM", "ssl.keystore.key": identity.key_pem()},
            "ssl.keystore.certificate.chain: is missing",
        ),
        (
            {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.key": other.key_pem(),
                "ssl.keystore.certificate.chain": identity.chain_pem,
            },
            "key values mismatch",
        ),
        ({**pem, "ssl.principal.mapping.rules": "RULE:("}, "ssl.principal.mapping.rules: "),
        ({**pem, "ssl.cipher.suites": "TLS_AES_128_GCM_SHA256"}, "enabled or disabled together"),
        (
            {**pem, "ssl.enabled.protocols": "TLSv1.3", "ssl.cipher.suites": "TLS_RSA_WITH_AES_128_CBC_SHA"},
            "leave no version of TLS",
        ),
    ):
        assert message in refusal(settings)


def test_versions_and_suites_are_those_of_the_settings(files: Files) -> None:
    def versions(**settings: str) -> tuple[ssl.TLSVersion, ssl.TLSVersion]:
        values = {name.replace("_", "."): value for name, value in settings.items()}
        context = load(listener({**files.properties(), **values}), is_server=True).server
        assert context is not None
        return context.minimum_version, context.maximum_version

    old, new = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
    assert versions() == (old, new)
    assert versions(ssl_enabled_protocols="TLSv1.3") == (new, new)
    assert versions(ssl_protocol="TLSv1.2") == (old, old)
    assert versions(ssl_cipher_suites="TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256") == (old, old)


def test_a_certificate_is_replaced_by_a_compatible_one_only(files: Files, tmp_path: Path) -> None:
    current = Certificates("SSL", listener(files.properties()))
    expired = authority().sign(
        "node", hosts=("localhost", "127.0.0.1", "::1"), valid_for=datetime.timedelta(minutes=-1)
    )
    for number, (identity, message, permission) in enumerate(
        (
            (authority().node("other"), "has another subject (CN=other,O=Millstream", "ssl.allow.dn.changes"),
            (authority().node(hosts=("localhost",)), "lacks 127.0.0.1, ::1", "ssl.allow.san.changes"),
            (expired, "the new certificate has expired", None),
            (Authority("stranger").node(), "is not trusted by this node's own trust store", None),
        )
    ):
        other = identity.write(tmp_path, f"other-{number}")
        settings = {**files.properties(), "ssl.keystore.location": str(other.keystore)}
        with pytest.raises(ConfigError) as refused:
            current.prepare(listener(settings))
        assert message in str(refused.value)
        if permission is not None:
            current.prepare(listener({**settings, permission: "true"}))


def test_changed_files_are_noticed(files: Files) -> None:
    current = Certificates("SSL", listener(files.properties()))
    assert not current.is_changed()
    files.keystore.write_text(authority().node().pem + "\n")
    assert current.is_changed()
    before = current.fingerprint
    fresh = current.reload()
    assert fresh is not None and current.fingerprint == before
    current.take(current.config, fresh)
    assert current.fingerprint != before
    assert not current.is_changed()


def test_expiry_is_logged_once_for_each_step(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    current = Certificates("SSL", listener(files.properties()))
    end = current.expires_at
    assert end is not None
    for days in (100, 29, 28, 6.5, 6, 0.5, 0.4, -1, -2):
        current.report_expiry(end - datetime.timedelta(days=days))
    events = [record.getMessage().split()[0] for record in caplog.records]
    assert events == ["certificate_expires_soon"] * 3 + ["certificate_expired"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ssl.CERT_NONE),
        ({"ssl.client.auth": "required"}, ssl.CERT_NONE),
        ({"listener.name.sasl_ssl.ssl.client.auth": "required"}, ssl.CERT_REQUIRED),
        ({"listener.name.sasl_ssl.ssl.client.auth": "requested", "ssl.client.auth": "none"}, ssl.CERT_OPTIONAL),
    ],
)
def test_certificates_of_clients_of_sasl(files: Files, settings: dict[str, str], expected: int) -> None:
    """KIP-684: the setting of all listeners is for those without SASL."""
    values = {
        "listeners": "SASL_SSL://:0",
        "security.inter.broker.protocol": "SASL_SSL",
        **files.properties(),
        **settings,
    }
    config = broker_config_from([Property(name, value, "test") for name, value in values.items()])
    material = load(config.listener("SASL_SSL"), is_server=True)
    assert material.server is not None and material.server.verify_mode == expected
    both = {**files.properties(), "ssl.client.auth": "required"}
    plain = load(listener(both), is_server=True)
    assert plain.server is not None and plain.server.verify_mode == ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("java", "openssl"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"),
        ("TLS_DHE_RSA_WITH_AES_256_GCM_SHA384", "DHE-RSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256", "ECDHE-RSA-AES128-SHA256"),
        ("TLS_RSA_WITH_AES_128_CBC_SHA", "AES128-SHA"),
        ("TLS_RSA_WITH_AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
    ],
)
def test_java_names_of_suites_are_translated(java: str, openssl: str) -> None:
    assert split_suites([java]) == (openssl, False)


def test_suites_of_tls_1_3_come_together() -> None:
    assert split_suites(TLS_1_3) == ("", True)
    with pytest.raises(ConfigError, match="enabled or disabled together"):
        split_suites(["TLS_AES_128_GCM_SHA256"])


@pytest.mark.parametrize("name", ["TLS_RSA_WITH_NULL_SHA256", "TLS_FUTURE", "all:!aNULL", "@STRENGTH"])
def test_unknown_suites_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a supported cipher suite"):
        split_suites([name])
