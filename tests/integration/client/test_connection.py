"""Addresses, settings, and the absence of a broker."""

import socket

import pytest

import millstream
from millstream.client import MillstreamError, NoBrokerError
from millstream.client.connection import Connection


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("localhost:9092", [("localhost", 9092)]),
        ("localhost", [("localhost", 9092)]),
        ("a:1, b:2", [("a", 1), ("b", 2)]),
        ("[::1]:9", [("::1", 9)]),
        ("[::1]", [("::1", 9092)]),
        ("::1", [("::1", 9092)]),
        ("PLAINTEXT://a:1", [("a", 1)]),
    ],
)
def test_bootstrap_addresses_are_split(text: str, addresses: list[tuple[str, int]]) -> None:
    assert Connection(text).addresses == addresses


@pytest.mark.parametrize("text", ["", " , ", "a:b", "a:0", "a:70000", ":9092"])
def test_a_wrong_address_is_an_error(text: str) -> None:
    with pytest.raises(MillstreamError, match="HOST:PORT"):
        Connection(text)


def test_an_ipv6_address_is_given_to_librdkafka_in_brackets() -> None:
    assert Connection("::1").bootstrap == "[::1]:9092"


def test_the_users_settings_win() -> None:
    configuration = Connection("a:1", {"linger.ms": 7}).librdkafka(linger_ms=5, acks="all")
    assert (configuration["linger.ms"], configuration["acks"]) == (7, "all")


def test_connecting_where_no_one_listens_is_an_error() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # bound but not listening: the port is free for no one else, and refuses
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
        with pytest.raises(NoBrokerError, match="millstream serve") as caught:
            millstream.connect(address)
    assert address in str(caught.value)
    assert isinstance(caught.value, ConnectionError)


def test_a_name_that_does_not_exist() -> None:
    with pytest.raises(NoBrokerError, match="no broker at no-such-host"):
        millstream.connect("no-such-host.invalid:9092")


def test_one_address_of_several_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        ports = silent.getsockname()[1], listening.getsockname()[1]
        Connection(f"127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}").probe()
