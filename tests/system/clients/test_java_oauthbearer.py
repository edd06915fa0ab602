"""Kafka's own Java clients with OAUTHBEARER: tokens of a token service or a file, keys by HTTP, re-authentication."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.testing import EmbeddedBroker
from tests.sasl import LISTENER, MODULES, sasl_settings
from tests.system.cluster.kafka_tools import KafkaTools
from tests.token_service import TokenService
from tools import apache_kafka

SECRET = "secret-of-java"
_numbers = itertools.count()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenService]:
    with TokenService(tmp_path_factory.mktemp("service"), {"java": SECRET}, lives_s=60).running() as running:
        yield running


@pytest.fixture(scope="module")
def broker(service: TokenService) -> Iterator[EmbeddedBroker]:
    settings = sasl_settings(service.issuer)
    settings |= {
        "sasl.oauthbearer.jwks.endpoint.url": service.keys,
        f"{LISTENER}.oauthbearer.connections.max.reauth.ms": 2000,
    }
    with EmbeddedBroker(settings) as running:
        yield running
        log = running.log_file.read_text()
        assert "handler_failed" not in log and "Traceback" not in log and "eyJ" not in log, log[-3000:]


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("token") / "token.jwt"


@pytest.fixture(scope="module")
def tools(
    kafka: apache_kafka.KafkaDistribution,
    service: TokenService,
    token_file: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[KafkaTools]:
    """Since Kafka 4.0 a Java client asks only those addresses and files that its command line allows."""
    allowed = "-Dorg.apache.kafka.sasl.oauthbearer.allowed"
    options = (f"{allowed}.urls={service.tokens},file://{token_file}", f"{allowed}.files={token_file}")
    running = KafkaTools(tmp_path_factory.mktemp("tools") / "tools.log", options)
    yield running
    running.close()


def config(directory: Path, url: str, module_options: str = "", more: str = "") -> str:
    file = directory / f"java-{next(_numbers)}.properties"
    file.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
        f"sasl.oauthbearer.token.endpoint.url={url}\n"
        f"sasl.login.callback.handler.class={MODULES}.oauthbearer.OAuthBearerLoginCallbackHandler\n"
        f"sasl.jaas.config={MODULES}.oauthbearer.OAuthBearerLoginModule required {module_options};\n{more}"
    )
    return str(file)


def round_trip(tools: KafkaTools, broker: EmbeddedBroker, config: str) -> str:
    topic = f"by-token-{next(_numbers)}"
    at = ("--bootstrap-server", broker.bootstrap_servers, "--topic", topic, "--command-config", config)
    tools("org.apache.kafka.tools.ConsoleProducer", *at, stdin="from java\n")
    return tools("kafka-console-consumer", *at, "--from-beginning", "--max-messages", "1")


def test_java_gets_a_token_from_a_service(
    tools: KafkaTools, broker: EmbeddedBroker, service: TokenService, tmp_path: Path
) -> None:
    more = (
        "sasl.oauthbearer.client.credentials.client.id=java\nsasl.oauthbearer.scope=streams\n"
        f"sasl.oauthbearer.client.credentials.client.secret={SECRET}\n"
    )
    assert "from java" in round_trip(tools, broker, config(tmp_path, service.tokens, more=more))
    assert "java" in service.given and "streams" in service.scopes


def test_client_credentials_in_jaas_with_extensions(
    tools: KafkaTools, broker: EmbeddedBroker, service: TokenService, tmp_path: Path
) -> None:
    options = f'clientId="java" clientSecret="{SECRET}" scope="streams" extension_team="blue"'
    assert "from java" in round_trip(tools, broker, config(tmp_path, service.tokens, options))


def test_a_token_in_a_file(
    tools: KafkaTools, broker: EmbeddedBroker, service: TokenService, token_file: Path, tmp_path: Path
) -> None:
    token_file.write_text(service.issuer.token("filed"))
    assert "from java" in round_trip(tools, broker, config(tmp_path, f"file://{token_file}"))


def test_a_session_is_renewed_by_re_authentication(
    tools: KafkaTools, broker: EmbeddedBroker, service: TokenService, tmp_path: Path
) -> None:
    """The consumer waits for longer than a session may last, and goes on over the same connections."""
    options = f'clientId="java" clientSecret="{SECRET}"'
    at = ("--bootstrap-server", broker.bootstrap_servers, "--topic", "silent")
    said = tools(
        "kafka-console-consumer", *at, "--command-config", config(tmp_path, service.tokens, options), "--timeout-ms",
        "5000",
    )  # fmt: skip
    assert "SaslAuthenticationException" not in said
    assert "session has expired" not in broker.log_file.read_text()


@pytest.mark.parametrize("claims", [{"aud": "others"}, {"iss": "https://evil.test"}], ids=str)
def test_java_shows_the_error_of_a_refused_token(
    tools: KafkaTools,
    broker: EmbeddedBroker,
    service: TokenService,
    token_file: Path,
    tmp_path: Path,
    claims: dict[str, Any],
) -> None:
    token_file.write_text(service.issuer.token("filed", **claims))
    # Java clients of one process share a login with the same options.
    options = f'extension_attempt="a{next(_numbers)}"'
    at = ("--bootstrap-server", broker.bootstrap_servers, "--command-config")
    code, said = tools.outcome("kafka-topics", *at, config(tmp_path, f"file://{token_file}", options), "--list")
    assert code and "invalid_token" in said, said
