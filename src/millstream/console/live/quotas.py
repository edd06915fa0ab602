"""Usage of client quotas, read from the metrics of all brokers: who is throttled, and by which quota."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from millstream.admin.broker_metrics import MetricsError, Sample, read_metrics
from millstream.admin.quotas import EntityQuotas, QuotaAdmin
from millstream.console.live.snapshot import Broker
from millstream.raw_client import Cluster

_PREFIX = "millstream_quota_"


@dataclass(slots=True)
class QuotaUsage:
    """What those who share a quota use on all brokers. A quota is a limit for each broker."""

    quota: str
    user: str
    client_id: str
    limit: float = 0.0
    rate: float = 0.0
    """The highest of a broker."""
    throttles: int = 0
    throttled_s: float = 0.0

    @property
    def who(self) -> str:
        parts = (("user", self.user), ("client-id", self.client_id))
        return ", ".join(f"{kind}={name}" for kind, name in parts if name)

    @property
    def used(self) -> float:
        """The part of the limit that is used now; above 1 the clients are throttled."""
        return self.rate / self.limit if self.limit else 0.0


@dataclass(frozen=True, slots=True)
class QuotaReport:
    entities: Sequence[EntityQuotas]
    usages: Sequence[QuotaUsage]
    muted: int
    """Connections that are not read now."""
    silent: Sequence[str]
    """Brokers without metrics."""


def read_quotas(cluster: Cluster, brokers: Iterable[Broker]) -> QuotaReport:
    samples: list[Sample] = []
    silent = []
    for broker in brokers:
        try:
            samples += read_metrics(cluster, broker.id, broker.host, broker.port, ("quotas",))
        except MetricsError:
            silent.append(broker.address)
    usages = merged(samples)
    muted = sum(int(each.value) for each in samples if each.name == "millstream_connections_muted")
    return QuotaReport(QuotaAdmin(cluster).quotas(), usages, muted, silent)


def merged(samples: Iterable[Sample]) -> list[QuotaUsage]:
    """The usages of all brokers, the most throttled first."""
    found: dict[tuple[str, str, str], QuotaUsage] = {}
    for name, labels, value in samples:
        if not name.startswith(_PREFIX) or "quota" not in labels:
            continue
        key = labels["quota"], labels.get("user", ""), labels.get("client_id", "")
        usage = found.setdefault(key, QuotaUsage(*key))
        match name.removeprefix(_PREFIX):
            case "limit":
                usage.limit = value
            case "rate":
                usage.rate = max(usage.rate, value)
            case "throttles_total":
                usage.throttles += int(value)
            case "throttle_seconds_total":
                usage.throttled_s += value
    return sorted(found.values(), key=lambda usage: (-usage.throttled_s, -usage.used, usage.who))
