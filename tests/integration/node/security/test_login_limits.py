"""Clients that take too long to log in, and limits on the connections of one listener."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.testing.node_process import NodeProcess, free_ports
from tests.integration.node.security.secured_broker import in_a_file, settings
from tests.sasl import handshake, plain
from tests.waiting import TIMEOUT_SECONDS, until
from tests.wire import Wire

MOST = 6


class Broker:
    def __init__(self, directory: Path) -> None:
        sasl, plaintext = free_ports(2)
        self.address, self.open_address = f"127.0.0.1:{sasl}", f"127.0.0.1:{plaintext}"
        given = {
            **settings(),
            "listeners": f"SASL://{self.address},PLAINTEXT://{self.open_address}",
            "millstream.sasl.login.timeout.ms": "700",
            "listener.name.sasl.max.connections": str(MOST),
        }
        self.log_file = directory / "broker.log"
        arguments = ["--data-dir", str(directory / "data"), "--no-http", *in_a_file(directory / "settings", given)]
        self.process = NodeProcess("the broker", arguments, self.log_file, stop_timeout=TIMEOUT_SECONDS)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    made = Broker(tmp_path_factory.mktemp("broker"))
    made.process.spawn()
    try:
        made.process.wait_until_ready(60)
        yield made
    finally:
        made.process.reap(signal.SIGTERM)


def is_closed(wire: Wire) -> bool:
    wire.socket.settimeout(0.05)
    try:
        return wire.socket.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_a_client_that_sends_a_byte_now_and_then_is_closed(broker: Broker) -> None:
    """A frame of a login, byte by byte, as slow clients do that want to keep connections open."""
    frame = iter(b"\0\0\0\x40\0\x11\0\x01" + bytes(56))

    def drips(wire: Wire) -> bool:
        try:
            wire.socket.send(bytes((next(frame, 0),)))
        except OSError:
            return True
        return is_closed(wire)

    with Wire(broker.address) as authenticated, Wire(broker.address) as slow:
        assert not plain(authenticated, "alice", "alice-secret").error_code
        until(lambda: drips(slow), "a login without an end is not closed")
        assert authenticated.call("api_versions", 0).error_code == 0
    assert "millstream.sasl.login.timeout.ms" in broker.log_file.read_text()


def test_a_client_that_stops_in_its_login_is_closed(broker: Broker) -> None:
    with Wire(broker.address) as silent, Wire(broker.address) as halfway:
        assert handshake(halfway, "PLAIN").error_code == 0
        until(lambda: is_closed(silent), "a silent client is not closed")
        until(lambda: is_closed(halfway), "a client that stopped after the handshake is not closed")


def test_connections_of_one_listener_are_limited(broker: Broker) -> None:
    opened: list[Wire] = []
    try:
        for _ in range(MOST):
            opened.append(Wire(broker.address))
            assert not plain(opened[-1], "alice", "alice-secret").error_code
        with socket.create_connection(("127.0.0.1", int(broker.address.rpartition(":")[2])), 10) as refused:
            assert refused.recv(1) == b""
        with Wire(broker.open_address) as other:  # the limit is that of one listener
            assert other.call("api_versions", 0).error_code == 0
    finally:
        for each in opened:
            each.close()
