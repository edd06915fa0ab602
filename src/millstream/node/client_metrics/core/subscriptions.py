"""Subscriptions to client metrics, and the clients that push them: the rules of Kafka's ClientMetricsManager, pure.

A client asks for its subscription, then pushes at its interval, with a jitter of the client. A request before the
interval is over is THROTTLING_QUOTA_EXCEEDED, except a push right after the subscription was given, and the last push
of a client that stops. When subscriptions change, the id of the client's subscription changes, its next push is
UNKNOWN_SUBSCRIPTION_ID, and the client asks again.
"""

import zlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any
from uuid import UUID

from millstream.common.lazy_dataclass import dataclass
from millstream.config.client_metrics_config import (
    ALL_METRICS,
    DEFAULT_INTERVAL_MS,
    INTERVAL_MS,
    MATCH,
    METRICS,
    match_patterns,
)
from millstream.config.setting import ConfigError
from millstream.formats.model.errors import ErrorCode, KafkaError

MOST_CLIENTS = 16_384
"""As in Kafka. The client that was heard of longest ago is forgotten first."""
_LEAST_EXPIRY_MS = 60_000


@dataclass(frozen=True, slots=True)
class Subscription:
    metrics: tuple[str, ...]
    interval_ms: int
    match: Mapping[str, Any]

    def is_for(self, client: Mapping[str, str]) -> bool:
        return all(pattern.fullmatch(client.get(name, "")) is not None for name, pattern in self.match.items())


def subscription_of(values: Mapping[str, str]) -> Subscription | None:
    """The subscription that a CLIENT_METRICS resource describes; None if this version does not accept its values."""

    def value(setting: Any) -> Any:
        return setting.parse(values[setting.name]) if setting.name in values else setting.default

    try:
        return Subscription(value(METRICS), value(INTERVAL_MS), match_patterns(value(MATCH)))
    except ConfigError:
        return None


@dataclass(slots=True)
class ClientInstance:
    """One client, as its connection and its requests describe it."""

    id: UUID
    identity: Mapping[str, str]
    """The names of `match` with their values."""
    principal: str
    metrics: tuple[str, ...]
    interval_ms: int
    subscription_id: int
    generation: int
    """That of the subscriptions from which these values were made."""
    last_get_ms: float = -1e18
    last_push_ms: float = -1e18
    heard_ms: float = 0.0
    is_terminating: bool = False
    last_error: ErrorCode = ErrorCode.NONE
    connection: object = None
    known: dict[str, float] = field(default_factory=dict)
    """The newest values of the metrics that this broker exports."""

    def check_get(self, now_ms: float) -> None:
        """Raises THROTTLING_QUOTA_EXCEEDED if the client requests it again too soon."""
        if now_ms - max(self.last_get_ms, self.last_push_ms) >= self.interval_ms:
            self.last_get_ms = now_ms
        elif self.last_error not in (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE):
            raise self._too_early()
        self.last_error = ErrorCode.NONE

    def check_push(self, now_ms: float, subscription_id: int, *, terminating: bool) -> None:
        if self.is_terminating:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"client {self.id} has sent its last push: further pushes are refused"
            )
        in_time = self.last_get_ms > self.last_push_ms or now_ms - self.last_push_ms >= self.interval_ms
        if in_time:
            self.last_push_ms = now_ms
        self.is_terminating = terminating
        if not in_time and not terminating:
            raise self._too_early()
        if subscription_id != self.subscription_id:
            raise KafkaError(ErrorCode.UNKNOWN_SUBSCRIPTION_ID, f"client {self.id} must request its subscription again")

    def _too_early(self) -> KafkaError:
        return KafkaError(
            ErrorCode.THROTTLING_QUOTA_EXCEEDED, f"client {self.id} pushes every {self.interval_ms} ms: it is too early"
        )


class ClientInstances:
    def __init__(self) -> None:
        self._subscriptions: tuple[Subscription, ...] = ()
        self._generation = 0
        self._instances: OrderedDict[UUID, ClientInstance] = OrderedDict()

    def __len__(self) -> int:
        return len(self._instances)

    @property
    def all(self) -> list[ClientInstance]:
        return list(self._instances.values())

    @property
    def has_subscriptions(self) -> bool:
        return bool(self._subscriptions)

    def subscribe(self, resources: Iterable[Mapping[str, str]]) -> None:
        """Takes the settings of all CLIENT_METRICS resources."""
        found = tuple(each for values in resources if (each := subscription_of(values)) is not None)
        self._subscriptions = found
        self._generation += 1

    def get(self, id_: UUID, identity: Mapping[str, str], principal: str, now_ms: float) -> ClientInstance:
        """The client, with the subscriptions as they are now."""
        known = self._instances.pop(id_, None)
        if known is None or known.generation != self._generation:
            fresh = self._new(id_, identity if known is None else known.identity, principal)
            if known is not None:
                fresh.connection, fresh.known, fresh.last_error = known.connection, known.known, known.last_error
            known = fresh
        known.heard_ms = now_ms
        self._instances[id_] = known
        if len(self._instances) > MOST_CLIENTS:
            self._instances.popitem(last=False)
        return known

    def find(self, id_: UUID) -> ClientInstance | None:
        return self._instances.get(id_)

    def forget(self, id_: UUID) -> None:
        self._instances.pop(id_, None)

    def expire(self, now_ms: float) -> None:
        """Forgets clients that have been silent. They are in the order of their last request."""
        for instance in list(self._instances.values()):
            if now_ms - instance.heard_ms < _LEAST_EXPIRY_MS:
                return
            if now_ms - instance.heard_ms >= max(_LEAST_EXPIRY_MS, 3 * instance.interval_ms):
                del self._instances[instance.id]

    def _new(self, id_: UUID, identity: Mapping[str, str], principal: str) -> ClientInstance:
        mine = [each for each in self._subscriptions if each.is_for({**identity, "client_instance_id": str(id_)})]
        names = {name for each in mine for name in each.metrics}
        metrics = (ALL_METRICS,) if ALL_METRICS in names else tuple(sorted(names))
        interval_ms = min([DEFAULT_INTERVAL_MS, *(each.interval_ms for each in mine)])
        return ClientInstance(
            id_, identity, principal, metrics, interval_ms, _id_of(metrics, interval_ms, id_), self._generation
        )


def _id_of(metrics: tuple[str, ...], interval_ms: int, client: UUID) -> int:
    """The id of a client's subscription: another one for other metrics, another interval, or another client."""
    bits = zlib.crc32(f"{metrics} {interval_ms}".encode()) ^ (client.int & 0xFFFF_FFFF)
    return bits - (1 << 32) if bits >> 31 else bits
