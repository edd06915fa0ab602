"""The evidence of a diagnosis: client metrics from `__millstream_client_metrics`, and two readings of brokers' metrics.

Everything is read with the rights of the caller: the topic over Kafka's protocol, the metrics of brokers over HTTP on
their Kafka ports. A broker without such a page (TLS, SASL, Apache Kafka) is named in `silent`.
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millstream.admin.broker_metrics import MetricsError, Sample, read_metrics
from millstream.admin.errors import check
from millstream.doctor.diagnosis import BrokerReport, ClientReport, Diagnosis, QuotaUse, diagnose
from millstream.formats.model.errors import KafkaError
from millstream.formats.records.record import read_batches
from millstream.raw_client import Cluster, TopicPartition

TOPIC = "__millstream_client_metrics"
SUBSCRIPTION = "millstream-doctor"
SUBSCRIBED = (
    "org.apache.kafka.producer.,org.apache.kafka.consumer.coordinator.,org.apache.kafka.consumer.fetch.manager.,"
    "org.apache.kafka.consumer.node.,org.apache.kafka.consumer.poll."
)
INTERVAL_MS = 10_000
_LATEST = -1
_RECENT_MS = 10 * 60 * 1000
_MOST_BYTES = 16 << 20
_PREFIX = "org.apache.kafka."
_SUBJECTS = ("process", "requests", "quotas", "topics", "partitions")
_TIMEOUT_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Examination:
    diagnosis: Diagnosis
    clients: Sequence[ClientReport]
    silent: Sequence[str]
    """Brokers without metrics."""


def examine(cluster: Cluster, seconds: float, sleep: Callable[[float], object] = time.sleep) -> Examination:
    """Reads the metrics of brokers twice, some seconds apart, and what clients pushed; then diagnoses."""
    before, _ = read_pages(cluster)
    sleep(seconds)
    after, silent = read_pages(cluster)
    clients = read_clients(cluster)
    brokers = [broker_report(name, before[name], after[name]) for name in after if name in before]
    return Examination(diagnose(clients, brokers, partition_counts(cluster)), clients, silent)


def partition_counts(cluster: Cluster) -> dict[str, int]:
    return {name: len(topic.partitions) for name, topic in cluster.topics().items()}


# Clients


def read_clients(cluster: Cluster, now_ms: int | None = None) -> list[ClientReport]:
    """The newest push of each client that has pushed recently; empty if there are none."""
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    at = TopicPartition(TOPIC, 0)
    if TOPIC not in cluster.topics([TOPIC]):
        return []
    try:
        offset = cluster.offsets({at: now_ms - _RECENT_MS})[at].offset
        end = cluster.offsets({at: _LATEST})[at].offset
    except KafkaError:
        return []
    newest: dict[bytes, bytes | None] = {}
    read = 0
    while 0 <= offset < end and read < _MOST_BYTES:
        data = cluster.fetch_existing(at, offset, max_bytes=1 << 20).data
        following = offset
        for header, records in read_batches(data):
            following = header.base_offset + header.last_offset_delta + 1
            newest.update((record.key, record.value) for record in records if record.key is not None)
        if following == offset:
            break
        offset, read = following, read + len(data)
    found = (_client_report(value, now_ms) for value in newest.values() if value is not None)
    return [each for each in found if each is not None]


def _client_report(value: bytes, now_ms: int) -> ClientReport | None:
    try:
        pushed: dict[str, Any] = json.loads(value)
        age_ms = now_ms - pushed["time_ms"]
        if pushed["terminating"] or age_ms > 3 * pushed["interval_ms"] + 30_000:
            return None
        metrics: dict[str, float] = {}
        for row in pushed["metrics"]:
            name = str(row["name"]).removeprefix(_PREFIX)
            metrics[name] = max(float(row["value"]), metrics.get(name, -math.inf))
        return ClientReport(
            str(pushed["client_id"]),
            f"{pushed['client_software_name']} {pushed['client_software_version']}",
            str(pushed["principal"]),
            str(pushed["client_source_address"]),
            max(age_ms, 0) / 1000,
            metrics,
        )
    except (ValueError, KeyError, TypeError):
        return None  # of another version of Millstream


# Brokers


@dataclass(frozen=True, slots=True)
class Reading:
    at: float
    samples: Mapping[tuple[str, tuple[tuple[str, str], ...]], float]


def read_pages(cluster: Cluster) -> tuple[dict[str, Reading], list[str]]:
    """The metrics of each broker by its name, and the brokers that have none."""
    found: dict[str, Reading] = {}
    silent = []
    for broker in cluster.brokers():
        name = f"broker {broker.node_id}"
        try:
            samples = read_metrics(cluster, broker.node_id, broker.host, broker.port, _SUBJECTS, _TIMEOUT_SECONDS)
        except MetricsError:
            silent.append(name)
            continue
        found[name] = reading(samples, time.monotonic())
    return found, silent


def reading(samples: Iterable[Sample], at: float) -> Reading:
    return Reading(at, {(name, tuple(sorted(labels.items()))): value for name, labels, value in samples})


def broker_report(name: str, before: Reading, after: Reading) -> BrokerReport:
    """What changed between two readings."""
    changes = [
        (metric, dict(labels), value - before.samples.get((metric, labels), 0.0))
        for (metric, labels), value in after.samples.items()
    ]

    def total(metric: str, **wanted: str) -> float:
        return sum(
            change
            for each, labels, change in changes
            if each == metric and all(labels.get(label) == text for label, text in wanted.items())
        )

    def by(metric: str, label: str) -> dict[str, float]:
        return {labels[label]: change for each, labels, change in changes if each == metric and change > 0}

    duration = "millstream_request_duration_seconds"
    return BrokerReport(
        name=name,
        seconds=max(after.at - before.at, 0.001),
        syncs=total("millstream_disk_sync_duration_seconds_count"),
        sync_s=total("millstream_disk_sync_duration_seconds_sum"),
        loop_lags=total("millstream_event_loop_lag_seconds_count"),
        loop_lag_s=total("millstream_event_loop_lag_seconds_sum"),
        long_turns=by("millstream_event_loop_long_turn_seconds_sum", "api"),
        tenants=by("millstream_tenant_loop_seconds_total", "tenant"),
        produces=total(f"{duration}_count", api="Produce", server="broker"),
        produce_s=total(f"{duration}_sum", api="Produce", server="broker"),
        received_records=total("millstream_topic_received_records_total"),
        cold_reads=total("millstream_fetch_cold_reads_total"),
        cold_read_s=total("millstream_fetch_cold_read_seconds_total"),
        throttled=_throttled(changes),
        partitions=_partitions(changes),
    )


def _throttled(changes: Iterable[tuple[str, dict[str, str], float]]) -> list[QuotaUse]:
    found: dict[tuple[str, str], list[float]] = {}
    for metric, labels, change in changes:
        if metric in ("millstream_quota_throttles_total", "millstream_quota_throttle_seconds_total"):
            who = " ".join(filter(None, (labels.get("user"), labels.get("client_id")))) or "a client"
            row = found.setdefault((labels.get("quota", ""), who), [0.0, 0.0])
            row[metric.endswith("seconds_total")] += change
    return [QuotaUse(quota=quota, who=who, throttles=row[0], throttled_s=row[1]) for (quota, who), row in found.items()]


def _partitions(changes: Iterable[tuple[str, dict[str, str], float]]) -> dict[tuple[str, int], float]:
    return {
        (labels["topic"], int(labels["partition"])): change
        for metric, labels, change in changes
        if metric == "millstream_partition_log_end_offset" and change > 0 and not labels["topic"].startswith("__")
    }


# The subscription


def subscribe(cluster: Cluster, *, on: bool) -> None:
    """Subscribes to the metrics of all clients that the diagnosis uses, or ends that. Raises KafkaError."""
    values = {"metrics": SUBSCRIBED, "interval.ms": str(INTERVAL_MS)}
    rows = [
        {"name": name, "config_operation": 0 if on else 1, "value": value if on else None}
        for name, value in values.items()
    ]
    resource = {"resource_type": 16, "resource_name": SUBSCRIPTION, "configs": rows}
    response = cluster.call("incremental_alter_configs", resources=[resource], validate_only=False)
    check(f"subscription {SUBSCRIPTION}", response.responses[0])
