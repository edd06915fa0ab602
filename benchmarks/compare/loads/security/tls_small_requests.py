"""As `small-requests`, over TLS: one 100 B record per Produce request, 8 connections, one and five in flight each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from benchmarks.compare import wire
from benchmarks.compare.loads.small_requests import (
    FULL_SECONDS,
    PIPELINED_IN_FLIGHT,
    RECORD_BYTES,
    WARM_UP_SECONDS,
    drive_dialed,
)
from benchmarks.compare.measure import SECURITY_GOAL, Load, Measure, Scale
from benchmarks.compare.process_stat import cpu_seconds
from benchmarks.compare.secured_target import TLS, SecuredTarget, TlsDialer
from benchmarks.compare.target import Target
from benchmarks.compare.topic import temporary_topic


class TlsSmallRequests(Load):
    name: ClassVar[str] = "tls-small-requests"
    title: ClassVar[str] = "Many small requests over TLS"
    measures: Sequence[Measure] = (
        Measure("one", "small requests, 8 connections, 1 in flight, SSL", "req/s", "higher", SECURITY_GOAL),
        Measure("pipelined", "small requests, 8 connections, 5 in flight, SSL", "req/s", "higher", SECURITY_GOAL),
        Measure("cpu", "broker CPU per small request, 1 in flight, SSL", "µs", "lower"),
    )

    def run(self, target: Target, scale: Scale) -> dict[str, float]:
        assert isinstance(target, SecuredTarget)
        values: dict[str, float] = {}
        seconds = scale.seconds(FULL_SECONDS)
        dial = TlsDialer(target, TLS)
        for key, in_flight in (("one", 1), ("pipelined", PIPELINED_IN_FLIGHT)):
            with temporary_topic(target, partitions=1, expected_bytes=100 << 20) as topic:
                request = wire.produce_request(topic, 0, wire.record_batch([b"x" * RECORD_BYTES]))
                drive_dialed(dial, request, topic, in_flight, min(WARM_UP_SECONDS, seconds))
                cpu_before = cpu_seconds(target.pid)
                responses, elapsed = drive_dialed(dial, request, topic, in_flight, seconds)
                if key == "one":
                    values["cpu"] = (cpu_seconds(target.pid) - cpu_before) / responses * 1e6
                values[key] = responses / elapsed
        return values
