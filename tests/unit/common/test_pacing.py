"""Which connections keep the pacing that the system has chosen."""

import socket
from typing import Any

import pytest

from millstream.common.pacing import leave_pacing_out_within_machine


class FakeSocket:
    def __init__(self, own: str, peer: str, algorithm: bytes) -> None:
        self._own, self._peer = own, peer
        self.algorithm = algorithm

    def getsockname(self) -> tuple[str, int]:
        return self._own, 9092

    def getpeername(self) -> tuple[str, int]:
        return self._peer, 50_000

    def getsockopt(self, level: int, option: int, length: int) -> bytes:
        return self.algorithm.ljust(length, b"\0")

    def setsockopt(self, level: int, option: int, value: bytes) -> None:
        self.algorithm = value


@pytest.mark.parametrize(
    ("own", "peer", "algorithm", "expected"),
    [
        ("127.0.0.1", "127.0.0.1", b"bbr", b"reno"),
        ("10.0.0.5", "10.0.0.5", b"bbr", b"reno"),
        ("::1", "::1", b"bbr2", b"reno"),
        ("127.0.0.1", "127.0.0.1", b"cubic", b"cubic"),
        ("10.0.0.5", "10.0.0.6", b"bbr", b"bbr"),
    ],
)
def test_only_connections_within_the_machine_lose_a_pacing_algorithm(
    monkeypatch: pytest.MonkeyPatch, own: str, peer: str, algorithm: bytes, expected: bytes
) -> None:
    monkeypatch.setattr(socket, "TCP_CONGESTION", 13, raising=False)
    fake: Any = FakeSocket(own, peer, algorithm)
    leave_pacing_out_within_machine(fake)
    assert fake.algorithm == expected


def test_a_system_that_refuses_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(FakeSocket):
        def setsockopt(self, level: int, option: int, value: bytes) -> None:
            raise PermissionError

    monkeypatch.setattr(socket, "TCP_CONGESTION", 13, raising=False)
    fake: Any = Refusing("127.0.0.1", "127.0.0.1", b"bbr")
    leave_pacing_out_within_machine(fake)
    assert fake.algorithm == b"bbr"
