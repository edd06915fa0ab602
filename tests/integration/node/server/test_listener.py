"""Limits of a listener: how many connections, of which clients, and how long they may be silent."""

import struct
from dataclasses import replace

import pytest

from millstream.node.server import connection, listener
from millstream.node.server.network import SocketNetwork
from millstream.node.server.service import HeldRequests
from tests.integration.node.server.conftest import RunningListener, Start, frame
from tests.wire import Closed, Wire


def is_served(wire: Wire) -> bool:
    try:
        wire.send_raw(frame(b"say hi"))
        return wire.receive_raw() == b"hi"
    except Closed:
        return False


def other(running: RunningListener) -> listener.Listener:
    return listener.Listener("OTHER", running.listener.limits, SocketNetwork(running.loop), running.loop)


def test_no_more_connections_than_allowed(start: Start) -> None:
    running = start(max_connections=3)
    wires = [running.connect() for _ in range(3)]
    assert all(is_served(wire) for wire in wires)
    assert not is_served(running.connect())
    wires[0].close()
    running.until(lambda: len(running.listener.connections) == 2)
    assert is_served(running.connect())


def test_no_more_connections_from_one_address_than_allowed(start: Start) -> None:
    running = start(max_connections_per_address=1)
    first = running.connect()
    assert is_served(first)
    assert not is_served(running.connect())
    first.close()
    running.until(lambda: not running.listener.connections)
    assert is_served(running.connect())


def test_an_address_may_have_a_limit_of_its_own(start: Start) -> None:
    running = start(max_connections_per_address=0, max_connections_of_address={"127.0.0.1": 2})
    assert is_served(running.connect())
    assert is_served(running.connect())
    assert not is_served(running.connect())


def test_limits_that_change_do_not_lose_count(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network whose connections stayed counted forever could not connect any more."""
    monkeypatch.setattr(listener, "address_key", lambda host: "2001:db8::/64")  # as if it were an address of it
    running = start(max_connections_per_address=1)
    before = running.listener.limits
    first = running.connect()
    assert is_served(first)
    running.listener.limits = replace(before, max_connections_of_address={"127.0.0.1": 5})
    first.close()
    running.until(lambda: not running.listener.connections)
    running.listener.limits = before
    assert is_served(running.connect())


def test_silent_connections_are_closed_and_those_that_wait_for_us_are_not(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "_SWEEP_SECONDS", 0.05)
    running = start(max_idle_seconds=0.3)
    silent, waiting = running.connect(), running.connect()
    waiting.send_raw(frame(b"wait a"))
    assert is_served(silent)
    assert silent.is_closed()
    running.respond(b"a", b"at last")
    assert waiting.receive_raw() == b"at last"


def test_a_peer_that_never_takes_its_responses_is_closed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_SWEEP_SECONDS", 0.05)
    running = start(max_idle_seconds=0.3, send_buffer_bytes=1 << 16)
    running.connect().send_raw(frame(b"large 50000000"))
    running.until(lambda: running.service.seen and not running.listener.connections)


def test_claims_that_are_not_used_do_not_keep_others_waiting(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(connection, "_STALLED_SECONDS", 0.3)
    running = start(request_memory_bytes=1 << 20)
    stalling, honest, small = running.connect(), running.connect(), running.connect()
    stalling.send_raw(struct.pack(">i", 1 << 20) + b"x")
    running.until(lambda: running.listener.memory.used_bytes)
    honest.send_raw(struct.pack(">i", 500_000) + b"size ".ljust(500_000, b"x"))
    small.send_raw(frame(b"say small")[:9])
    small.send_raw(frame(b"say small")[9:])
    assert small.receive_raw() == b"small"  # as much as one read brings is never held back
    assert honest.receive_raw()
    assert stalling.is_closed()


def test_a_taken_port_is_an_error(start: Start) -> None:
    running = start()
    port = int(running.address.rpartition(":")[2])
    with pytest.raises(OSError):
        running.on_loop(
            lambda: listener.Listener("OTHER", running.listener.limits, SocketNetwork(running.loop), running.loop).bind(
                "127.0.0.1", port
            )
        )


def test_closing_the_listener_closes_its_connections(start: Start) -> None:
    running = start()
    wire = running.connect()
    assert is_served(wire)
    running.on_loop(running.listener.close)
    assert wire.is_closed()
    with pytest.raises(ConnectionRefusedError):
        Wire(running.address)


class _Gate:
    """A login that never ends."""

    is_authenticated = False
    is_current = False

    def frame_limits(self, largest: int) -> tuple[int, int]:
        return 8, largest

    def handle(self, buffer: bytearray, start: int, end: int) -> None:
        return None


def test_logins_that_wait_for_the_start_of_the_node_are_not_closed(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "_SWEEP_SECONDS", 0.05)
    running = start(login_seconds=0.2)
    held, sweeps = HeldRequests(), []

    def begin() -> None:
        running.listener.authenticate = lambda peer: _Gate()
        running.listener.serve(held)
        sweep = running.listener._sweep

        def counted() -> None:
            sweeps.append(running.listener.now())
            sweep()

        monkeypatch.setattr(running.listener, "_sweep", counted)

    running.on_loop(begin)
    wire = running.connect()
    wire.send_raw(frame(b"say hi"))
    running.until(lambda: len(sweeps) > 10 and sweeps[-1] - sweeps[1] > 0.6)
    assert len(running.listener.connections) == 1
    running.on_loop(lambda: running.listener.serve(running.service))
    assert wire.is_closed()  # from here on the time counts
