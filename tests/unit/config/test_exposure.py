"""Listeners that other machines can reach, and secrets on the command line."""

import pytest

from millstream.config.exposure import check_exposure, check_words, is_loopback
from millstream.config.loading import load_broker_config
from millstream.config.setting import ConfigError

MAP = "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL,SASL_PLAINTEXT:SASL_PLAINTEXT"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("", False),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("broker.example", False),
    ],
)
def test_loopback_addresses_are_recognised(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    "settings",
    [
        ["listeners=PLAINTEXT://:9092"],
        ["listeners=PLAINTEXT://127.0.0.1:9092,SSL://0.0.0.0:9093", "inter.broker.listener.name=PLAINTEXT"],
        ["listeners=SSL://10.0.0.1:9093", "ssl.client.auth=requested", "inter.broker.listener.name=SSL"],
        ["listeners=PLAINTEXT://127.0.0.1:1,C://:2", "controller.listener.names=C"],
    ],
)
def test_open_listeners_are_refused(settings: list[str]) -> None:
    words = [*settings] if "C://" in settings[0] else [*settings, MAP]
    config = load_broker_config(overrides=words)
    with pytest.raises(ConfigError, match=r"millstream security init.*--insecure") as refused:
        check_exposure(config, insecure=False)
    assert refused.value.name == "listeners"
    check_exposure(config, insecure=True)
    allowed = load_broker_config(overrides=[*words, "millstream.allow.insecure.listeners=true"])
    check_exposure(allowed, insecure=False)


@pytest.mark.parametrize(
    "settings",
    [
        ["listeners=PLAINTEXT://127.0.0.1:9092"],
        ["listeners=SASL_SSL://:9092", MAP, "inter.broker.listener.name=SASL_SSL"],
        ["listeners=SSL://:9092", MAP, "listener.name.ssl.ssl.client.auth=required", "inter.broker.listener.name=SSL"],
    ],
)
def test_others_are_not(settings: list[str]) -> None:
    check_exposure(load_broker_config(overrides=settings), insecure=False)


def test_the_common_case_of_kafka() -> None:
    """The message names the listener and three ways out."""
    with pytest.raises(ConfigError) as refused:
        check_exposure(load_broker_config(overrides=["listeners=PLAINTEXT://:9092"]), insecure=False)
    message = str(refused.value)
    for part in (
        "listener PLAINTEXT://:9092 listens on every network interface",
        "--listen 127.0.0.1:9092",
        "docs/security.md",
        "millstream.allow.insecure.listeners=true",
    ):
        assert part in message
    assert "\n" not in message


def test_secrets_on_the_command_line_are_refused() -> None:
    check_words(["ssl.key.password=${file:/x:y}", "node.id=3"])
    for name in ("ssl.key.password", "listener.name.x.ssl.keystore.password"):
        with pytest.raises(ConfigError, match="process list") as refused:
            check_words([f"{name}=hunter2"])
        assert "hunter2" not in str(refused.value)
