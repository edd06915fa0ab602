"""Throughput of 1 KB records with librdkafka at its defaults, over SSL and SASL_SSL, and the broker's CPU per GB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from benchmarks.compare import librdkafka
from benchmarks.compare.measure import SECURITY_GOAL, Load, Measure, Scale
from benchmarks.compare.process_stat import cpu_seconds
from benchmarks.compare.secured_target import SASL, TLS, SecuredTarget, client_settings
from benchmarks.compare.target import Target
from benchmarks.compare.topic import THROUGHPUT_PARTITIONS, temporary_topic

_SIZE_BYTES = 1024
_PRODUCED_RECORDS = 300_000
_CONSUMED_RECORDS = 500_000
_WAYS = (("tls", "SSL", TLS), ("sasl", "SASL_SSL, SCRAM-SHA-512", SASL))


class TlsProduce(Load):
    name: ClassVar[str] = "tls-produce"
    title: ClassVar[str] = "Produce over TLS"
    measures: Sequence[Measure] = (
        *(
            Measure(key, f"produce 1 KB, acks=all, librdkafka, {label}", "MB/s", "higher", SECURITY_GOAL)
            for key, label, _ in _WAYS
        ),
        *(
            Measure(f"{key}_cpu", f"broker CPU, produce 1 KB, {label}", "s/GB", "lower", SECURITY_GOAL)
            for key, label, _ in _WAYS
        ),
    )

    def run(self, target: Target, scale: Scale) -> dict[str, float]:
        assert isinstance(target, SecuredTarget)
        values: dict[str, float] = {}
        count = scale.records(_PRODUCED_RECORDS)
        for key, _, listener in _WAYS:
            with temporary_topic(target, THROUGHPUT_PARTITIONS, count * _SIZE_BYTES) as topic:
                settings = client_settings(target, listener)
                producer = librdkafka.Producer(target.addresses[listener], topic, acks="all", settings=settings)
                producer.send(1, _SIZE_BYTES)  # handshakes, authentication and metadata are not what is measured
                cpu_before = cpu_seconds(target.pid)
                seconds = producer.send(count, _SIZE_BYTES)
                cpu_s = cpu_seconds(target.pid) - cpu_before
                producer.close()
                arrived = sum(librdkafka.end_offsets(target.bootstrap, topic, THROUGHPUT_PARTITIONS))
                if arrived != count + 1:
                    raise RuntimeError(f"{target.name}: {arrived} records in the log after producing {count + 1}")
            values[key] = count * _SIZE_BYTES / seconds / 1e6
            values[f"{key}_cpu"] = cpu_s / (count * _SIZE_BYTES / 1e9)
        return values


class TlsConsume(Load):
    name: ClassVar[str] = "tls-consume"
    title: ClassVar[str] = "Consume over TLS"
    measures: Sequence[Measure] = (
        *(
            Measure(key, f"consume 1 KB, librdkafka, {label}", "MB/s", "higher", SECURITY_GOAL)
            for key, label, _ in _WAYS
        ),
        *(
            Measure(f"{key}_cpu", f"broker CPU, consume 1 KB, {label}", "s/GB", "lower", SECURITY_GOAL)
            for key, label, _ in _WAYS
        ),
    )

    def run(self, target: Target, scale: Scale) -> dict[str, float]:
        assert isinstance(target, SecuredTarget)
        values: dict[str, float] = {}
        count = scale.records(_CONSUMED_RECORDS)
        with temporary_topic(target, THROUGHPUT_PARTITIONS, count * _SIZE_BYTES) as topic:
            producer = librdkafka.Producer(target.bootstrap, topic, acks="all")
            producer.send(count, _SIZE_BYTES)
            producer.close()
            for key, _, listener in _WAYS:
                settings = client_settings(target, listener)
                cpu_before = cpu_seconds(target.pid)
                read, seconds = librdkafka.consume_all(
                    target.addresses[listener], topic, THROUGHPUT_PARTITIONS, settings=settings
                )
                values[f"{key}_cpu"] = (cpu_seconds(target.pid) - cpu_before) / (read * _SIZE_BYTES / 1e9)
                values[key] = read * _SIZE_BYTES / seconds / 1e6
        return values
