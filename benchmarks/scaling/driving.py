"""One request in flight on each of many connections, for some seconds: what the sweeps use to keep a broker busy.

The client is one epoll loop. The figure is the broker's CPU for each request, so it does not matter how fast the
client is.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle

from benchmarks.compare import wire
from benchmarks.compare.process_stat import cpu_seconds
from benchmarks.compare.target import Target

_STALL_SECONDS = 30.0
_PREFIX_BYTES = 4
_WARM_UP_SHARE = 0.25

Check = Callable[[bytes], None]
"""Raises RuntimeError where a response holds an error. Called with the first and the last response of a connection."""


@dataclass(frozen=True, slots=True)
class Driven:
    responses: int
    cpu_microseconds: float  # of the broker, for each response


class _Line:
    """A connection and the requests it sends in turn."""

    def __init__(self, bootstrap: str, requests: Sequence[bytes]) -> None:
        self.connection = wire.connect(bootstrap)
        self._requests = cycle(requests)
        self._received = bytearray()
        self.last = b""

    def send(self) -> None:
        self.connection.sendall(next(self._requests))

    def receive(self) -> bool:
        """Whether a whole response arrived."""
        data = self.connection.recv(1 << 16)
        if not data:
            raise ConnectionError("the broker closed the connection")
        self._received += data
        size = _PREFIX_BYTES + int.from_bytes(self._received[:_PREFIX_BYTES], "big")
        if len(self._received) < max(size, _PREFIX_BYTES + 1):
            return False
        self.last = bytes(self._received[_PREFIX_BYTES:size])
        self._received.clear()
        return True


def drive(
    target: Target,
    requests: Sequence[Sequence[bytes]],
    check: Check,
    seconds: float,
    addresses: Sequence[str] | None = None,
) -> Driven:
    """A connection for each list of requests, to `addresses` in their order; the first quarter of the time is not
    counted."""
    with ExitStack() as resources:
        lines = []
        for each, address in zip(requests, addresses or [target.bootstrap] * len(requests), strict=True):
            lines.append(_Line(address, each))
            resources.callback(lines[-1].connection.close)
        poller = select.epoll()
        resources.callback(poller.close)
        by_descriptor = {line.connection.fileno(): line for line in lines}
        for descriptor, line in by_descriptor.items():
            poller.register(descriptor, select.EPOLLIN)
            line.send()
        idle = set(by_descriptor)
        _run(poller, by_descriptor, idle, seconds * _WARM_UP_SHARE)
        for line in lines:
            if line.last:
                check(line.last)
        before = cpu_seconds(target.pid)
        responses = _run(poller, by_descriptor, idle, seconds)
        spent = cpu_seconds(target.pid) - before
        if idle:
            raise RuntimeError(f"{len(idle)} of {len(lines)} connections got no response")
        for line in lines:
            check(line.last)
        return Driven(responses, spent / responses * 1e6)


def _run(poller: select.epoll, lines: dict[int, _Line], silent: set[int], seconds: float) -> int:
    """Responses counted until the time is over and no connection is without one."""
    responses = 0
    started = time.perf_counter()
    while (passed := time.perf_counter() - started) < seconds or (silent and passed < _STALL_SECONDS):
        for descriptor, _ in poller.poll(1.0):
            line = lines[descriptor]
            if line.receive():
                responses += 1
                silent.discard(descriptor)
                line.send()
    return responses
