"""Listeners as texts and as values."""

import pytest

from millstream.config.addresses import Listener, parse_listeners, parse_protocol_map
from millstream.config.setting import ConfigError

PROTOCOLS = {"PLAINTEXT": "PLAINTEXT", "SSL": "SSL", "INSIDE": "PLAINTEXT"}


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("PLAINTEXT://127.0.0.1:9092", "127.0.0.1", 9092),
        ("plaintext://:0", "", 0),
        ("PLAINTEXT://[::1]:9092", "::1", 9092),
        ("PLAINTEXT://my-host.example:65535", "my-host.example", 65535),
    ],
)
def test_addresses(text: str, host: str, port: int) -> None:
    (listener,) = parse_listeners("listeners", [text], PROTOCOLS)
    assert listener == Listener("PLAINTEXT", host, port)
    assert str(listener).upper() == text.upper()


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (["9092"], "is not a listener; write NAME://host:port"),
        (["PLAINTEXT://host"], "is not a listener"),
        (["PLAINTEXT://host:65536"], "is not a listener"),
        (["PLAINTEXT://host:-1"], "is not a listener"),
        (["PLAINTEXT://::1:9092"], "is not a listener"),
        (["OUTSIDE://host:1"], "add OUTSIDE:PLAINTEXT to it"),
        (["SSL://host:1"], "uses SSL, which is not supported"),
        (["PLAINTEXT://a:1", "PLAINTEXT://b:2"], "the name PLAINTEXT is used twice"),
        (["PLAINTEXT://a:1", "INSIDE://a:1"], "port 1 is used twice"),
    ],
)
def test_refusals(items: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=r"^listeners: ") as refused:
        parse_listeners("listeners", items, PROTOCOLS)
    assert message in str(refused.value)


def test_a_controller_listener_is_plain_where_the_map_does_not_name_it() -> None:
    (listener,) = parse_listeners("listeners", ["CONTROLLER://:9093"], PROTOCOLS, ["CONTROLLER"])
    assert listener.security_protocol == "PLAINTEXT"


def test_two_listeners_may_both_take_a_free_port() -> None:
    assert len(parse_listeners("listeners", ["PLAINTEXT://a:0", "INSIDE://a:0"], PROTOCOLS)) == 2


def test_protocol_map() -> None:
    assert parse_protocol_map("a:plaintext, B:SASL_SSL") == {"A": "PLAINTEXT", "B": "SASL_SSL"}
    with pytest.raises(ConfigError, match="must be NAME:PROTOCOL"):
        parse_protocol_map("A=PLAINTEXT")
