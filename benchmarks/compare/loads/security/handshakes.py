"""New TLS connections per second, each a full handshake and one ApiVersions request; without and with a certificate
of the client.

The request matters: with TLS 1.3 a client is done before the broker has looked at its certificate. Four threads open
connections, one after the other each; OpenSSL computes outside the interpreter's lock. A client's handshake costs about
as much CPU as the broker's, so on two cores the rate says more about the pair than about the broker: see its CPU.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

from benchmarks.compare import wire
from benchmarks.compare.loads.latency import percentile
from benchmarks.compare.measure import Load, Measure, Scale
from benchmarks.compare.process_stat import cpu_seconds
from benchmarks.compare.secured_target import MUTUAL, TLS, SecuredTarget, TlsDialer
from benchmarks.compare.target import Target

_THREADS = 4
_FULL_SECONDS = 3.0
_WARM_UP_SECONDS = 1.0
_WAYS = (("tls", "TLS", TLS), ("mutual", "mTLS", MUTUAL))


class Handshakes(Load):
    name: ClassVar[str] = "tls-handshakes"
    title: ClassVar[str] = "New TLS connections"
    measures: Sequence[Measure] = tuple(
        measure
        for key, label, _ in _WAYS
        for measure in (
            Measure(key, f"new connections, {label}, 4 at a time", "conn/s", "higher"),
            Measure(f"{key}_cpu", f"broker CPU per new connection, {label}", "ms", "lower"),
            Measure(f"{key}_p99", f"p99 of a new connection, {label}", "ms", "lower"),
        )
    )

    def run(self, target: Target, scale: Scale) -> dict[str, float]:
        assert isinstance(target, SecuredTarget)
        values: dict[str, float] = {}
        for key, _, listener in _WAYS:
            dial = TlsDialer(target, listener)
            _connect_for(dial, min(_WARM_UP_SECONDS, scale.seconds(_WARM_UP_SECONDS)))
            cpu_before = cpu_seconds(target.pid)
            began = time.perf_counter()
            delays_ns = _connect_for(dial, scale.seconds(_FULL_SECONDS))
            seconds = time.perf_counter() - began
            values[key] = len(delays_ns) / seconds
            values[f"{key}_cpu"] = (cpu_seconds(target.pid) - cpu_before) / len(delays_ns) * 1e3
            values[f"{key}_p99"] = percentile(delays_ns, 0.99) / 1e6
        return values


def _connect_for(dial: TlsDialer, seconds: float) -> list[int]:
    """How long each took, in nanoseconds, sorted."""
    stop_at = time.monotonic() + seconds
    request = wire.api_versions_request()

    def work() -> list[int]:
        delays_ns = []
        while time.monotonic() < stop_at:
            began_ns = time.monotonic_ns()
            with dial() as connection:
                wire.ask(connection, request)
                delays_ns.append(time.monotonic_ns() - began_ns)
        return delays_ns

    with ThreadPoolExecutor(_THREADS) as threads:
        return sorted(delay for each in [threads.submit(work) for _ in range(_THREADS)] for delay in each.result())
