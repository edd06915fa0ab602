"""Unmodified clients and Kafka's own tools over a SASL listener, with each mechanism that they have."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from millstream.testing import EmbeddedBroker
from tests.sasl import LISTENER, PASSWORD, Issuer, sasl_settings
from tests.system.cluster.kafka_tools import KafkaTools
from tests.waiting import TIMEOUT_SECONDS
from tools import apache_kafka, install_test_clients

SOURCES = Path(__file__).parent
USER, SCRAM_PASSWORD = "sam", "scram-secret-1"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_EACH = [
    pytest.param(name, marks=() if name in ("SCRAM-SHA-512", "OAUTHBEARER") else pytest.mark.slow)
    for name in MECHANISMS
]
"""The mechanisms as parameters; those that differ least from the others are in the slow lane."""
JAVA_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    made = Issuer(tmp_path_factory.mktemp("issuer") / "keys.json")
    made.rotate("first")
    return made


@pytest.fixture(scope="module")
def broker(issuer: Issuer) -> Iterator[EmbeddedBroker]:
    # kafkajs authenticates again at each request if a session is shorter than ten seconds.
    settings = {**sasl_settings(issuer), f"{LISTENER}.scram-sha-512.connections.max.reauth.ms": 60_000}
    with EmbeddedBroker(settings) as running:
        yield running
        log = running.log_file.read_text()
        assert "handler_failed" not in log and "Traceback" not in log, log[-3000:]
        assert SCRAM_PASSWORD not in log and PASSWORD not in log


def java_config(directory: Path, mechanism: str, user: str, password: str, more: str = "") -> str:
    file = directory / f"{mechanism}-{next(_numbers)}.properties"
    file.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
        f'sasl.jaas.config={JAVA_MODULES[mechanism]} required username="{user}" password="{password}" {more};\n'
    )
    return str(file)


@pytest.fixture(scope="module")
def admin_config(tmp_path_factory: pytest.TempPathFactory) -> str:
    return java_config(tmp_path_factory.mktemp("config"), "PLAIN", "admin", "admin-secret-1")


@pytest.fixture(scope="module")
def user(broker: EmbeddedBroker, kafka_tools: KafkaTools, admin_config: str) -> str:
    """A SCRAM user, made by `kafka-configs`."""
    said = kafka_tools(
        "kafka-configs", "--bootstrap-server", broker.bootstrap_servers, "--command-config", admin_config, "--alter",
        "--entity-type", "users", "--entity-name", USER, "--add-config",
        f"SCRAM-SHA-256=[iterations=8192,password={SCRAM_PASSWORD}],SCRAM-SHA-512=[password={SCRAM_PASSWORD}]",
    )  # fmt: skip
    assert "Completed" in said
    return USER


@pytest.fixture
def topic() -> str:
    return f"authenticated-{next(_numbers)}"


@pytest.fixture
def secret(user: str, issuer: Issuer) -> Callable[[str], tuple[str, str]]:
    """User and password, or token, for a mechanism."""

    def of(mechanism: str) -> tuple[str, str]:
        if mechanism == "PLAIN":
            return "alice", PASSWORD
        return (user, SCRAM_PASSWORD) if mechanism != "OAUTHBEARER" else ("", issuer.token("tom"))

    return of


Secret = Callable[[str], tuple[str, str]]


def run(*command: str, environment: dict[str, str] | None = None, stdin: str = "") -> str:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        env={**os.environ, **(environment or {})},
        input=stdin,
    )
    return (done.stdout + done.stderr).strip()


def librdkafka_settings(broker: EmbeddedBroker, mechanism: str, user: str, password: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }


@pytest.mark.parametrize("mechanism", _EACH)
def test_librdkafka_logs_in(broker: EmbeddedBroker, secret: Secret, topic: str, mechanism: str) -> None:
    from confluent_kafka import Consumer, Producer

    name, password = secret(mechanism)
    settings: dict[str, object] = dict(librdkafka_settings(broker, mechanism, name, password))
    if mechanism == "OAUTHBEARER":
        import time

        settings = {name: settings[name] for name in ("bootstrap.servers", "security.protocol", "sasl.mechanism")}
        settings["oauth_cb"] = lambda _: (password, time.time() + 300)
    producer = Producer(settings)
    failures: list[object] = []
    producer.produce(topic, b"from librdkafka", on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(TIMEOUT_SECONDS) == 0 and failures == [None]
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        message = consumer.poll(TIMEOUT_SECONDS)
        assert message is not None and message.error() is None and message.value() == b"from librdkafka"
    finally:
        consumer.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("mechanism", _EACH)
def test_kafka_python_logs_in(broker: EmbeddedBroker, secret: Secret, topic: str, mechanism: str) -> None:
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.net.sasl.oauth import AbstractTokenProvider

    name, password = secret(mechanism)

    class Provider(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return password

    settings = {
        "bootstrap_servers": broker.bootstrap_servers,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        settings["sasl_oauth_token_provider"] = Provider()
    else:
        settings |= {"sasl_plain_username": name, "sasl_plain_password": password}
    producer = KafkaProducer(**settings)
    producer.send(topic, b"from kafka-python").get(30)
    producer.close()
    consumer = KafkaConsumer(topic, auto_offset_reset="earliest", consumer_timeout_ms=30_000, **settings)
    assert next(iter(consumer)).value == b"from kafka-python"
    consumer.close()


@pytest.mark.parametrize("mechanism", _EACH)
def test_aiokafka_logs_in(broker: EmbeddedBroker, secret: Secret, topic: str, mechanism: str) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.abc import AbstractTokenProvider

    name, password = secret(mechanism)

    class Provider(AbstractTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            return password

    settings = {
        "bootstrap_servers": broker.bootstrap_servers,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        settings["sasl_oauth_token_provider"] = Provider()
    else:
        settings |= {"sasl_plain_username": name, "sasl_plain_password": password}

    async def work() -> bytes:
        async with AIOKafkaProducer(**settings) as producer:
            await producer.send_and_wait(topic, b"from aiokafka")
        async with AIOKafkaConsumer(topic, auto_offset_reset="earliest", **settings) as consumer:
            return (await asyncio.wait_for(consumer.getone(), 30)).value

    assert asyncio.run(work()) == b"from aiokafka"


@pytest.mark.parametrize("mechanism", MECHANISMS[:3])
def test_kcat_logs_in(broker: EmbeddedBroker, secret: Secret, topic: str, mechanism: str) -> None:
    """librdkafka before 2.8 sends a nonce by SCRAM that Kafka refuses since CVE-2024-56128 (3.7.2), and so do we."""
    try:
        install_test_clients.kcat()
    except apache_kafka.ToolchainMissingError as reason:
        pytest.skip(str(reason))
    settings = librdkafka_settings(broker, mechanism, *secret(mechanism))
    options = [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]
    if mechanism != "PLAIN" and re.search(r"librdkafka (1|2\.[0-7])\.", run("kcat", "-V")):
        assert "invalid credentials" in run("kcat", *options, "-L", "-m", "5")
        return
    assert run("kcat", *options, "-P", "-t", topic, stdin="from kcat") == ""
    assert "from kcat" in run("kcat", *options, "-C", "-t", topic, "-o", "beginning", "-c", "1", "-q")
    options[-1] = "sasl.password=wrong"
    assert "Authentication fail" in run("kcat", *options, "-L", "-m", "5")


@pytest.mark.parametrize("mechanism", _EACH)
def test_kafkajs_logs_in(broker: EmbeddedBroker, secret: Secret, topic: str, mechanism: str) -> None:
    try:
        environment = dict(install_test_clients.kafkajs().environment)
    except apache_kafka.ToolchainMissingError as reason:
        pytest.skip(str(reason))
    program = str(SOURCES / "node" / "authenticated.js")
    arguments = (broker.bootstrap_servers, topic, mechanism, *secret(mechanism))
    assert run("node", program, *arguments, environment=environment) == "from kafkajs"


@pytest.fixture(scope="module")
def franz_go(tmp_path_factory: pytest.TempPathFactory) -> str:
    try:
        install_test_clients.need("go", "the Go toolchain")
    except apache_kafka.ToolchainMissingError as reason:
        pytest.skip(str(reason))
    module = SOURCES / "go"
    sources = [module / name for name in ("go.mod", "go.sum", "authenticated/main.go")]
    built = install_test_clients.fill(
        "go-authenticated",
        sources,
        lambda into: install_test_clients.run(
            "go", "build", "-o", str(into / "authenticated"), "./authenticated", cwd=module
        ),
    )
    return str(built / "authenticated")


@pytest.mark.parametrize("mechanism", _EACH)
def test_franz_go_logs_in(broker: EmbeddedBroker, secret: Secret, topic: str, mechanism: str, franz_go: str) -> None:
    arguments = (broker.bootstrap_servers, topic, mechanism, *secret(mechanism))
    assert run(franz_go, *arguments) == "from franz-go"


@pytest.mark.parametrize("mechanism", _EACH[:3])
def test_java_logs_in(
    broker: EmbeddedBroker, secret: Secret, topic: str, mechanism: str, kafka_tools: KafkaTools, tmp_path: Path
) -> None:
    config = java_config(tmp_path, mechanism, *secret(mechanism))
    at = ("--bootstrap-server", broker.bootstrap_servers, "--topic", topic, "--command-config", config)
    kafka_tools("org.apache.kafka.tools.ConsoleProducer", *at, stdin="from java\n")
    said = kafka_tools("kafka-console-consumer", *at, "--from-beginning", "--max-messages", "1")
    assert "from java" in said


def test_a_java_client_with_a_wrong_password(
    broker: EmbeddedBroker, kafka_tools: KafkaTools, user: str, tmp_path: Path
) -> None:
    config = java_config(tmp_path, "SCRAM-SHA-512", user, "wrong")
    code, said = kafka_tools.outcome(
        "kafka-topics", "--bootstrap-server", broker.bootstrap_servers, "--command-config", config, "--list"
    )
    assert code and "invalid credentials with SASL mechanism SCRAM-SHA-512" in said


def test_kafka_configs_changes_and_removes_users(
    broker: EmbeddedBroker, kafka_tools: KafkaTools, admin_config: str
) -> None:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient(librdkafka_settings(broker, "PLAIN", "admin", "admin-secret-1"))

    def configs(*arguments: str) -> str:
        at = ("--bootstrap-server", broker.bootstrap_servers, "--command-config", admin_config)
        return kafka_tools("kafka-configs", *at, "--entity-type", "users", *arguments)

    configs("--alter", "--entity-name", "short", "--add-config", "SCRAM-SHA-512=[iterations=4096,password=x]")
    described = cast(Any, admin.describe_user_scram_credentials(["short"]))["short"].result(TIMEOUT_SECONDS)
    assert [info.iterations for info in described.scram_credential_infos] == [4096]
    configs("--alter", "--entity-name", "short", "--delete-config", "SCRAM-SHA-512")
    assert "short" not in cast(Any, admin.describe_user_scram_credentials()).result(TIMEOUT_SECONDS)


def test_kafka_delegation_tokens_creates_renews_and_expires(
    broker: EmbeddedBroker, kafka_tools: KafkaTools, admin_config: str, tmp_path: Path
) -> None:
    def tokens(*arguments: str, config: str = admin_config) -> str:
        at = ("--bootstrap-server", broker.bootstrap_servers, "--command-config", config)
        return kafka_tools("org.apache.kafka.tools.DelegationTokenCommand", *at, *arguments)

    said = tokens("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:alice")
    row = next(line for line in said.splitlines() if "User:admin" in line).split()
    token_id, hmac = row[0], row[1]
    by_token = java_config(tmp_path, "SCRAM-SHA-256", token_id, hmac, "tokenauth=true")
    listed = kafka_tools(
        "kafka-topics", "--bootstrap-server", broker.bootstrap_servers, "--command-config", by_token, "--list"
    )
    assert "Exception" not in listed
    renewer = java_config(tmp_path, "PLAIN", "alice", PASSWORD)
    assert "Completed renew operation" in tokens("--renew", "--renew-time-period", "-1", "--hmac", hmac, config=renewer)
    assert token_id in tokens("--describe", "--owner-principal", "User:admin")
    assert "Completed expire operation" in tokens("--expire", "--expiry-time-period", "-1", "--hmac", hmac)
    assert token_id not in tokens("--describe", "--owner-principal", "User:admin")
