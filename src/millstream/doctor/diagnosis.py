"""The diagnosis: from what clients and brokers report, the cause that delays requests most, in one sentence. Pure.

Every rule estimates the delay of one request, in milliseconds, that its cause explains, so that causes of different
kinds can be compared: the largest one is named. A rule needs evidence that is more than noise (the constants below).
The other findings follow, with their evidence. Without a finding, the sentence says what was looked at.

| cause | rule |
|---|---|
| client | few records per request at many requests; records that wait in the client; rebalances |
| broker | late turns of the event loop (and the tenant that uses it most); reads of old records; a hot partition |
| disk | slow fsyncs |

A throttled client is the cause *throttling*: neither the client nor the broker is slow then.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

LEAST_DELAY_MS = 5.0
"""A smaller delay is not called slow."""
_FEW_RECORDS = 2.0
_MANY_REQUESTS = 50.0
"""Produce requests per second of one client, or of one broker, from which small batches matter."""
_HOT_SHARE = 0.6
_VERY_SLOW_SYNC_MS = 50.0
"""An fsync of a broker without writes is named only above this."""
_LEAST_PARTITIONS = 3
_MANY_RECORDS = 100.0

CLIENT, BROKER, DISK, THROTTLING = "client", "broker", "disk", "throttling"


@dataclass(frozen=True, slots=True)
class ClientReport:
    """What one client pushed last."""

    client_id: str
    software: str
    principal: str
    address: str
    age_s: float
    metrics: Mapping[str, float]
    """By Kafka's name without `org.apache.kafka.`; the largest value where a metric has several."""

    @property
    def name(self) -> str:
        return self.client_id or self.address


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaUse:
    quota: str
    who: str
    throttles: float
    throttled_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerReport:
    """What happened on one broker between two readings of its metrics."""

    name: str
    seconds: float
    syncs: float = 0.0
    sync_s: float = 0.0
    """The sum of the times of the fsyncs."""
    loop_lags: float = 0.0
    loop_lag_s: float = 0.0
    long_turns: Mapping[str, float] = field(default_factory=dict)
    """Seconds of long turns by API."""
    tenants: Mapping[str, float] = field(default_factory=dict)
    """Seconds of the event loop by tenant."""
    produces: float = 0.0
    produce_s: float = 0.0
    received_records: float = 0.0
    cold_reads: float = 0.0
    cold_read_s: float = 0.0
    throttled: Sequence[QuotaUse] = ()
    partitions: Mapping[tuple[str, int], float] = field(default_factory=dict)
    """Records that each partition received on this broker, as leader or follower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    cause: str
    delay_ms: float
    sentence: str
    evidence: tuple[str, ...]
    advice: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    findings: tuple[Finding, ...]
    """The largest delay first."""
    clients: int
    brokers: int

    @property
    def cause(self) -> str:
        return self.findings[0].cause if self.findings else "none"

    @property
    def sentence(self) -> str:
        if self.findings:
            first = self.findings[0]
            return f"The cause is the {first.cause}: {first.sentence}; {first.advice}."
        return (
            f"Nothing is slow: {_count(self.brokers, 'broker')} and {_count(self.clients, 'client')} with metrics show "
            f"no delay above {LEAST_DELAY_MS:g} ms."
        )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def diagnose(
    clients: Sequence[ClientReport], brokers: Sequence[BrokerReport], partition_counts: Mapping[str, int] | None = None
) -> Diagnosis:
    """`partition_counts` are those of the topics: a partition that gets nothing may have no metrics."""
    found = [*_of_clients(clients), *_of_brokers(brokers), *_hot_partitions(brokers, partition_counts or {})]
    found = [each for each in found if each.delay_ms >= LEAST_DELAY_MS]
    return Diagnosis(tuple(sorted(found, key=lambda each: -each.delay_ms)), len(clients), len(brokers))


# Clients


def _of_clients(clients: Iterable[ClientReport]) -> Iterator[Finding]:
    for client in clients:
        yield from _throttled_client(client)
        yield from _small_batches(client)
        yield from _waiting_records(client)
        yield from _rebalances(client)


def _latency_ms(client: ClientReport, role: str) -> float:
    """The time of a request, as the client measures it."""
    return max(
        client.metrics.get(f"{role}.request.latency.avg", 0.0),
        client.metrics.get(f"{role}.node.request.latency.avg", 0.0),
    )


def _throttled_client(client: ClientReport) -> Iterator[Finding]:
    for name, what in (
        ("producer.produce.throttle.time.avg", "producing"),
        ("consumer.fetch.manager.fetch.throttle.time.avg", "fetching"),
    ):
        delay_ms = client.metrics.get(name, 0.0)
        yield Finding(
            cause=THROTTLING,
            delay_ms=delay_ms,
            sentence=f"{client.name} is throttled by a quota for {delay_ms:.0f} ms per request while {what}",
            evidence=(f"{client.name}: {name} = {delay_ms:.1f} ms",),
            advice="raise the quota (`millstream quota list`), or send less",
        )


def _small_batches(client: ClientReport) -> Iterator[Finding]:
    records = client.metrics.get("producer.records.per.request.avg")
    rate = client.metrics.get("producer.record.send.rate", 0.0)
    if records is None or not 0 < records < _FEW_RECORDS or rate / records < _MANY_REQUESTS:
        return
    latency_ms = _latency_ms(client, "producer")
    size = client.metrics.get("producer.batch.size.avg", 0.0)
    yield Finding(
        cause=CLIENT,
        # A record costs a whole request: what batching would save is what the requests of a second wait.
        delay_ms=max(latency_ms, 1.0) * rate / records / _MANY_REQUESTS,
        sentence=f"{client.name} sends {records:.1f} records per request, {rate / records:.0f} requests per second",
        evidence=(
            f"{client.name}: producer.records.per.request.avg = {records:.2f}",
            f"{client.name}: producer.batch.size.avg = {size:.0f} bytes",
            f"{client.name}: producer.request.latency.avg = {latency_ms:.1f} ms",
        ),
        advice="set linger.ms to 5 or more, and batch.size to 64 KB or more",
    )


def _waiting_records(client: ClientReport) -> Iterator[Finding]:
    waiting_ms = client.metrics.get("producer.record.queue.time.avg", 0.0)
    latency_ms = _latency_ms(client, "producer")
    if waiting_ms < 2 * latency_ms or client.metrics.get("producer.produce.throttle.time.avg", 0.0) > 0:
        return
    yield Finding(
        cause=CLIENT,
        delay_ms=waiting_ms,
        sentence=f"records of {client.name} wait {waiting_ms:.0f} ms in the client, and their requests take "
        f"{latency_ms:.0f} ms",
        evidence=(
            f"{client.name}: producer.record.queue.time.avg = {waiting_ms:.1f} ms",
            f"{client.name}: request latency = {latency_ms:.1f} ms",
        ),
        advice="lower linger.ms if latency matters more than throughput; otherwise add producers or partitions",
    )


def _rebalances(client: ClientReport) -> Iterator[Finding]:
    delay_ms = client.metrics.get("consumer.coordinator.rebalance.latency.avg", 0.0)
    yield Finding(
        cause=CLIENT,
        delay_ms=delay_ms,
        sentence=f"the group of {client.name} rebalances, for {delay_ms:.0f} ms each time",
        evidence=(f"{client.name}: consumer.coordinator.rebalance.latency.avg = {delay_ms:.0f} ms",),
        advice="use group.protocol=consumer, or static members (group.instance.id), and find out why members leave",
    )


# Brokers


def _of_brokers(brokers: Iterable[BrokerReport]) -> Iterator[Finding]:
    for broker in brokers:
        yield from _throttled_on_broker(broker)
        yield from _slow_disk(broker)
        yield from _late_loop(broker)
        yield from _cold_reads(broker)
        yield from _requests_with_few_records(broker)


def _throttled_on_broker(broker: BrokerReport) -> Iterator[Finding]:
    for each in broker.throttled:
        if not each.throttles:
            continue
        delay_ms = each.throttled_s / each.throttles * 1000
        yield Finding(
            cause=THROTTLING,
            delay_ms=delay_ms,
            sentence=f"{each.who} is throttled by the quota {each.quota} for {delay_ms:.0f} ms per request",
            evidence=(
                f"{broker.name}: {each.throttles:.0f} throttled responses in {broker.seconds:.0f} s, "
                f"{each.throttled_s:.1f} s in all",
            ),
            advice="raise the quota (`millstream quota list`), or send less",
        )


def _slow_disk(broker: BrokerReport) -> Iterator[Finding]:
    if broker.syncs < 1:
        return
    mean_ms = broker.sync_s / broker.syncs * 1000
    produce_ms = broker.produce_s / broker.produces * 1000 if broker.produces else 0.0
    if produce_ms < mean_ms / 2 and (broker.produces or mean_ms < _VERY_SLOW_SYNC_MS):
        return  # of checkpoints or the metadata: no record waits for it
    yield Finding(
        cause=DISK,
        delay_ms=mean_ms,
        sentence=f"an fsync on {broker.name} takes {mean_ms:.0f} ms",
        evidence=(
            f"{broker.name}: {broker.syncs:.0f} fsyncs in {broker.seconds:.0f} s, {mean_ms:.1f} ms each",
            f"{broker.name}: a Produce takes {produce_ms:.1f} ms",
        ),
        advice="look at the disk of this broker, or set flush.before.ack=false where replicas are enough",
    )


def _late_loop(broker: BrokerReport) -> Iterator[Finding]:
    if broker.loop_lags < 1:
        return
    lag_ms = broker.loop_lag_s / broker.loop_lags * 1000
    evidence = [f"{broker.name}: turns of the event loop are {lag_ms:.1f} ms late"]
    sentence = f"the event loop of {broker.name} is {lag_ms:.0f} ms late"
    total_s = sum(broker.tenants.values())
    if total_s > 0:
        tenant, seconds = max(broker.tenants.items(), key=lambda row: row[1])
        sentence += f", and {tenant} uses {seconds / broker.seconds:.0%} of it"
        evidence.append(f"{broker.name}: {tenant} used {seconds:.1f} s of {broker.seconds:.0f} s")
    if broker.long_turns:
        api, seconds = max(broker.long_turns.items(), key=lambda row: row[1])
        evidence.append(f"{broker.name}: long turns of {api}, {seconds:.1f} s")
    yield Finding(
        cause=BROKER,
        delay_ms=lag_ms,
        sentence=sentence,
        evidence=tuple(evidence),
        advice="move partitions to other brokers, or limit the client with a quota (request_percentage)",
    )


def _cold_reads(broker: BrokerReport) -> Iterator[Finding]:
    if broker.cold_reads < 1:
        return
    mean_ms = broker.cold_read_s / broker.cold_reads * 1000
    yield Finding(
        cause=BROKER,
        delay_ms=mean_ms,
        sentence=f"consumers on {broker.name} read old records from the disk, {mean_ms:.0f} ms each time",
        evidence=(f"{broker.name}: {broker.cold_reads:.0f} cold reads in {broker.seconds:.0f} s",),
        advice="give the machine more memory for its page cache, or let consumers keep up",
    )


def _requests_with_few_records(broker: BrokerReport) -> Iterator[Finding]:
    """For clients that do not push the sizes of their batches, such as those of librdkafka."""
    rate = broker.produces / broker.seconds if broker.seconds else 0.0
    if rate < _MANY_REQUESTS or broker.received_records / broker.produces >= _FEW_RECORDS:
        return
    records = broker.received_records / broker.produces
    produce_ms = broker.produce_s / broker.produces * 1000
    yield Finding(
        cause=CLIENT,
        delay_ms=max(produce_ms, 1.0) * rate / _MANY_REQUESTS,
        sentence=f"producers send {records:.1f} records per request to {broker.name}, {rate:.0f} requests per second",
        evidence=(
            f"{broker.name}: {broker.produces:.0f} Produce requests and {broker.received_records:.0f} records in "
            f"{broker.seconds:.0f} s",
        ),
        advice="set linger.ms to 5 or more in the producers, and do not flush after each record",
    )


def _hot_partitions(brokers: Iterable[BrokerReport], partition_counts: Mapping[str, int]) -> Iterator[Finding]:
    topics: dict[str, dict[int, float]] = {}
    for broker in brokers:
        for (topic, number), records in broker.partitions.items():
            found = topics.setdefault(topic, {})
            found[number] = max(found.get(number, 0.0), records / broker.seconds)
    for topic, rates in topics.items():
        total = sum(rates.values())
        if partition_counts.get(topic, 0) < _LEAST_PARTITIONS or total < _MANY_RECORDS:
            continue
        number, rate = max(rates.items(), key=lambda row: row[1])
        if rate / total < _HOT_SHARE:
            continue
        yield Finding(
            cause=BROKER,
            # It delays only what else needs the partition: named when nothing slower is found.
            delay_ms=LEAST_DELAY_MS,
            sentence=f"partition {number} of {topic} gets {rate / total:.0%} of the records",
            evidence=(f"{topic}: {rate:.0f} of {total:.0f} records per second go to partition {number}",),
            advice=f"look at its keys (`millstream topic hot {topic}`), and spread the hot ones",
        )
