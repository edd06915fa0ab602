"""Limits on TLS handshakes: under way, per second, per address."""

from millstream.node.server.handshakes import HandshakeGate, HandshakeLimits


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_passes_and_then_the_rate_holds() -> None:
    clock = Clock()
    gate = HandshakeGate(HandshakeLimits(per_second=10, per_second_of_address=10, timeout_s=1.0), clock)
    waits = [gate.enter("a") for _ in range(40)]
    assert waits[:20] == [0.0] * 20
    later = [wait for wait in waits[20:] if wait is not None]
    assert later == sorted(later) and 0 < later[-1] <= 1.0
    assert waits[-1] is None  # it would wait for longer than a handshake may take
    clock.now += 10
    assert gate.enter("a") == 0.0


def test_one_address_does_not_use_up_the_rate_of_others() -> None:
    gate = HandshakeGate(HandshakeLimits(per_second=1000, per_second_of_address=2, timeout_s=1.0), Clock())
    assert [gate.enter("a") for _ in range(20)][-1] is None
    assert gate.enter("b") == 0.0


def test_handshakes_in_progress_are_bounded() -> None:
    gate = HandshakeGate(HandshakeLimits(max_under_way=8), Clock())
    assert [gate.enter("a") for _ in range(3)] == [0.0, 0.0, None]
    assert [gate.enter(host) for host in "bbccdd"] == [0.0] * 6
    assert gate.enter("e") is None
    gate.leave("b")
    assert gate.enter("e") == 0.0
    assert gate.under_way == 8


def test_idle_addresses_are_forgotten() -> None:
    clock = Clock()
    gate = HandshakeGate(HandshakeLimits(), clock)
    for number in range(100):
        gate.enter(f"host-{number}")
        gate.leave(f"host-{number}")
    clock.now += 1
    gate.forget_idle()
    assert not gate._paces
