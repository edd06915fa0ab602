"""As `raw-transfer`, over TLS: pre-encoded 1 MB Produce requests in, bare Fetch requests out, no client library.

The client encrypts too, on the other core; the broker's CPU per GB says what it costs the broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from benchmarks.compare import wire
from benchmarks.compare.loads.raw_transfer import FULL_BATCHES, RECORDS_PER_BATCH, fetch, full_batch, produce
from benchmarks.compare.measure import SECURITY_GOAL, Load, Measure, Scale
from benchmarks.compare.process_stat import cpu_seconds
from benchmarks.compare.secured_target import TLS, SecuredTarget, TlsDialer
from benchmarks.compare.target import Target
from benchmarks.compare.topic import temporary_topic


class TlsRawTransfer(Load):
    name: ClassVar[str] = "tls-raw-transfer"
    title: ClassVar[str] = "Raw produce and fetch over TLS"
    measures: Sequence[Measure] = (
        Measure("produce", "produce, 1 MB requests, 4 in flight, SSL", "MB/s", "higher", SECURITY_GOAL),
        Measure("fetch", "fetch, bare Fetch requests of 1 MB, SSL", "MB/s", "higher", SECURITY_GOAL),
        Measure("produce_cpu", "broker CPU, 1 MB Produce requests, SSL", "s/GB", "lower", SECURITY_GOAL),
        Measure("fetch_cpu", "broker CPU, bare Fetch requests, SSL", "s/GB", "lower", SECURITY_GOAL),
    )

    def run(self, target: Target, scale: Scale) -> dict[str, float]:
        assert isinstance(target, SecuredTarget)
        batches = scale.records(FULL_BATCHES, least=20)
        batch = full_batch()
        sent_bytes = batches * len(batch)
        with temporary_topic(target, 1, sent_bytes) as topic, TlsDialer(target, TLS)() as connection:
            before = cpu_seconds(target.pid)
            produced_s = produce(connection, wire.produce_request(topic, 0, batch), topic, batches)
            between = cpu_seconds(target.pid)
            fetched_bytes, fetched_s = fetch(connection, topic, batches * RECORDS_PER_BATCH)
            after = cpu_seconds(target.pid)
        return {
            "produce": sent_bytes / produced_s / 1e6,
            "fetch": fetched_bytes / fetched_s / 1e6,
            "produce_cpu": (between - before) / (sent_bytes / 1e9),
            "fetch_cpu": (after - between) / (fetched_bytes / 1e9),
        }
