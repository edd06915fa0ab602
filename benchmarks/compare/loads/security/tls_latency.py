"""As `latency`, over SASL_SSL: end-to-end delays at a steady 5,000 msg/s of 1 KB, acks=all, no linger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from benchmarks.compare.loads.latency import RATE, end_to_end, percentile
from benchmarks.compare.measure import SECURITY_GOAL, Load, Measure, Scale
from benchmarks.compare.secured_target import SASL, SecuredTarget, client_settings
from benchmarks.compare.target import Target


class TlsLatency(Load):
    name: ClassVar[str] = "tls-latency"
    title: ClassVar[str] = f"End-to-end latency at {RATE:,} msg/s over SASL_SSL"
    measures: Sequence[Measure] = (
        Measure("p50", f"end-to-end latency p50, {RATE:,} msg/s, SASL_SSL", "ms", "lower"),
        Measure("p99", f"end-to-end latency p99, {RATE:,} msg/s, SASL_SSL", "ms", "lower", SECURITY_GOAL),
    )

    def run(self, target: Target, scale: Scale) -> dict[str, float]:
        assert isinstance(target, SecuredTarget)
        delays_ns = end_to_end(target, client_settings(target, SASL), scale)
        return {key: percentile(delays_ns, share) / 1e6 for key, share in (("p50", 0.5), ("p99", 0.99))}
