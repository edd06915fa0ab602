"""`--command-config` with a secured Apache Kafka: each mechanism and kind of certificate, and what is refused."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.cli.app import run_app

from tests.integration.raw_client.kafka_with_security import KEY_PASSWORD, SecuredKafka, secured_kafka  # isort: skip

pytestmark = [
    pytest.mark.slow,  # Kafka takes half a minute to start while others use the machine
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates"),
]
LOGIN = "org.apache.kafka.common.security"


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    with secured_kafka(tmp_path_factory.mktemp("secured")) as kafka:
        kafka.add_user("alice", "scram-password")
        kafka.add_user("bob", "builder-password")
        yield kafka


def properties(kafka: SecuredKafka, directory: Path, listener: str, **more: str) -> str:
    settings = {
        "bootstrap.servers": kafka.address(listener),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": kafka.certificates.trusted,
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    path = directory / "client.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return str(path)


def jaas(module: str, user: str, password: str) -> str:
    return f'{LOGIN}.{module} required username="{user}" password="{password}";'


@pytest.mark.parametrize(
    ("listener", "settings"),
    [
        (
            "SASLTLS",
            {
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": "PLAIN",
                "sasl_jaas_config": jaas("plain.PlainLoginModule", "alice", "wonderland"),
            },
        ),
        (
            "SASLTLS",
            {
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": "SCRAM-SHA-512",
                "sasl_jaas_config": jaas("scram.ScramLoginModule", "alice", "${env:ALICE}"),
            },
        ),
        (
            "SASL",
            {
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "SCRAM-SHA-256",
                "sasl_username": "alice",
                "sasl_password": "${env:ALICE}",
            },
        ),
        (
            "MUTUAL",
            {
                "security_protocol": "SSL",
                "ssl_certificate_location": "{client}",
                "ssl_key_location": "{key}",
                "ssl_key_password": KEY_PASSWORD,
            },
        ),
    ],
)
def test_each_security_protocol_works_with_kafkas_settings(
    kafka: SecuredKafka,
    listener: str,
    settings: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ALICE", "scram-password")
    files = {"{client}": kafka.certificates.client, "{key}": kafka.certificates.client_key}
    file = properties(kafka, tmp_path, listener, **{name: files.get(value, value) for name, value in settings.items()})
    topic = f"by-{listener.lower()}-{settings.get('sasl_mechanism', 'none').lower()}"
    for words in (
        ["topic", "create", topic],
        ["produce", topic, "one", "two"],
        ["consume", topic, "--count", "2"],
        ["group", "list"],
        ["cluster", "status"],
        ["broker", "list"],
        ["txn", "list"],
    ):
        assert run_app([*words, "--command-config", file]) == 0, (words, capsys.readouterr().err)
    assert "one\ntwo\n" in capsys.readouterr().out


def test_wrong_client_properties_have_an_error(
    kafka: SecuredKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(code: int, said: str, *words: str, file: str) -> None:
        assert run_app([*words, "--command-config", file]) == code
        line = capsys.readouterr().err
        assert said in line
        assert line.count("\n") == 1
        assert "password-of" not in line

    sasl = {"security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-512", "sasl_username": "bob"}
    for command in ("topic", "group"):
        wrong = properties(kafka, tmp_path, "SASLTLS", **sasl, sasl_password="password-of-nobody")
        refused(9, "check user and password", command, "list", file=wrong)
        distrusting = {"ssl_truststore_location": kafka.certificates.other_authority, "security_protocol": "SSL"}
        refused(
            2, "certificate is not trusted", command, "list", file=properties(kafka, tmp_path, "SSL", **distrusting)
        )
    bob = properties(kafka, tmp_path, "SASLTLS", **sasl, sasl_password="builder-password")
    refused(9, "not allowed", "topic", "create", "of-bob", file=bob)
    refused(1, "it seems to require TLS", "topic", "list", file=properties(kafka, tmp_path, "SASLTLS"))
    refused(1, "it seems to require authentication", "topic", "list", file=properties(kafka, tmp_path, "SASL"))
