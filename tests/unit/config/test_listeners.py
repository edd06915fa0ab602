"""Listeners as texts and as values."""

import pytest

from millstream.config.addresses import Listener, effective_protocol_map, parse_listeners, parse_protocol_map
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
def test_addresses_of_listeners_are_parsed(text: str, host: str, port: int) -> None:
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
        (["OUTSIDE://host:1"], "add OUTSIDE:PROTOCOL to it"),
        (["PLAINTEXT://a:1", "PLAINTEXT://b:2"], "the name PLAINTEXT is used twice"),
        (["PLAINTEXT://a:1", "INSIDE://a:1"], "port 1 is used twice"),
    ],
)
def test_wrong_listeners_are_refused(items: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=r"^listeners: ") as refused:
        parse_listeners("listeners", items, PROTOCOLS)
    assert message in str(refused.value)


def test_security_protocols_and_their_numbers() -> None:
    listeners = parse_listeners("listeners", ["PLAINTEXT://a:1", "SSL://a:2", "INSIDE://a:3"], PROTOCOLS)
    assert [(each.security_protocol, each.protocol_number) for each in listeners] == [
        ("PLAINTEXT", 0),
        ("SSL", 1),
        ("PLAINTEXT", 0),
    ]


def protocol_map(text: str, listeners: str, *, is_written: bool = True) -> dict[str, str]:
    return effective_protocol_map(
        text, is_written=is_written, controller_names=["CONTROLLER"], listeners=listeners.split(",")
    )


def test_a_controller_listener_is_plain_where_the_default_map_does_not_name_it() -> None:
    protocols = protocol_map("PLAINTEXT:PLAINTEXT", "PLAINTEXT://:1,CONTROLLER://:2", is_written=False)
    assert protocols["CONTROLLER"] == "PLAINTEXT"


@pytest.mark.parametrize("is_written", [True, False])
def test_with_a_secured_listener_the_map_must_name_the_controllers_listener(is_written: bool) -> None:
    with pytest.raises(ConfigError, match="no protocol for CONTROLLER; add CONTROLLER:PROTOCOL"):
        protocol_map("SSL:SSL", "SSL://:1,CONTROLLER://:2", is_written=is_written)
    assert protocol_map("SSL:SSL,CONTROLLER:SSL", "SSL://:1", is_written=is_written)["CONTROLLER"] == "SSL"


def test_two_listeners_may_both_take_a_free_port() -> None:
    assert len(parse_listeners("listeners", ["PLAINTEXT://a:0", "INSIDE://a:0"], PROTOCOLS)) == 2


def test_the_protocol_map_is_parsed() -> None:
    assert parse_protocol_map("a:plaintext, B:SASL_SSL") == {"A": "PLAINTEXT", "B": "SASL_SSL"}
    with pytest.raises(ConfigError, match="must be NAME:PROTOCOL"):
        parse_protocol_map("A=PLAINTEXT")
