"""Client quotas of a broker: what users and client ids use, and how long they are throttled.

`ClientQuotas` follows the metadata. For each request it finds the limits of the client (user and client id of the
request) by one dictionary look-up, and counts bytes and time against them. Clients that share a limit share a `Usage`.
Everything is bounded: a client may send any number of client ids. Requests of brokers are exempt. Who is muted for how
long is the connection's part (`node/server/connection.py`).
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

from millstream.formats.model.access_control import Principal
from millstream.node.metadata.image import MetadataImage
from millstream.node.quotas.core.entities import (
    CONSUMER_BYTE_RATE,
    LONGEST_NAME,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    AppliedQuota,
    QuotaTable,
    Scope,
)
from millstream.node.quotas.core.rates import SampledRate
from millstream.node.server.service import Peer

MAX_TRACKED = 10_000
"""The maximum number of clients, and of usages, that are kept in memory."""
_IDLE_SECONDS = 3600.0
_EXPIRY_CHECK_SECONDS = 60.0

K = TypeVar("K")
V = TypeVar("V")


class Usage:
    """What the clients of one scope use of one quota."""

    __slots__ = ("entity", "limit", "now", "rate", "scope", "throttled_ms", "throttles", "total")

    def __init__(self, quota: AppliedQuota, rate: SampledRate, now: Callable[[], float]) -> None:
        self.limit = quota.limit
        self.scope = quota.scope
        self.entity = quota.entity
        self.rate = rate
        self.now = now
        self.total = 0.0
        """Everything that was counted, in bytes or in percent of a second."""
        self.throttles = 0
        self.throttled_ms = 0

    def count(self, amount: float) -> int:
        """Counts an amount; returns the throttle time in milliseconds."""
        now = self.now()
        self.rate.record(amount, now)
        self.total += amount
        return self._throttled(self.rate.throttle_ms(self.limit, now))

    def count_if_within(self, amount: float) -> int:
        """Counts an amount if the rate stays within the limit; returns the throttle time otherwise."""
        if not amount:
            return 0
        now = self.now()
        rate, seconds = self.rate.measure(now)
        if rate or amount <= self.limit * seconds:
            self.rate.record(amount, now)
            throttle_ms = self.rate.throttle_ms(self.limit, now)
            if throttle_ms:
                self.rate.record(-amount, now)
                return self._throttled(throttle_ms)
        else:
            # One batch that is larger than the whole window: it would never be within the limit. In Kafka the
            # consumer gets no further.
            self.rate.record(amount, now)
        self.total += amount
        return 0

    def _throttled(self, throttle_ms: int) -> int:
        if throttle_ms:
            self.throttles += 1
            self.throttled_ms += throttle_ms
        return throttle_ms

    @property
    def current_rate(self) -> float:
        return self.rate.measure(self.now())[0]


class QuotaClient:
    """The usages of one user and client id; None for a quantity without a quota."""

    __slots__ = ("_fetch", "_longest_request_ms", "_produce", "_request", "largest_fetch_bytes")

    def __init__(
        self, produce: Usage | None, fetch: Usage | None, request: Usage | None, window_s: float, sample_s: float
    ) -> None:
        self._produce = produce
        self._fetch = fetch
        self._request = request
        self._longest_request_ms = round(sample_s * 1000)
        self.largest_fetch_bytes = None if fetch is None else max(1, min(round(fetch.limit * window_s), 1 << 62))

    def produced(self, size: int) -> int:
        return 0 if self._produce is None else self._produce.count(size)

    def fetched(self, size: int) -> int:
        return 0 if self._fetch is None else self._fetch.count(size)

    def may_fetch(self, size: int) -> int:
        return 0 if self._fetch is None else self._fetch.count_if_within(size)

    def worked(self, seconds: float) -> int:
        """In percent of the event loop, which is one thread. One throttle is at most one sample, as in Kafka."""
        if self._request is None:
            return 0
        return min(self._request.count(seconds * 100.0), self._longest_request_ms)


class ClientQuotas:
    def __init__(self, now: Callable[[], float], *, samples: int, sample_seconds: float) -> None:
        """`now` is the loop's time in seconds."""
        self._now = now
        self._samples = samples
        self._sample_seconds = sample_seconds
        self._table = QuotaTable({})
        self._clients: dict[tuple[str, bytes], QuotaClient | None] = {}
        self._usages: dict[tuple[str, Scope], Usage] = {}
        self._ticked = now()

    @property
    def is_enabled(self) -> bool:
        """Whether a user or client id has a quota."""
        return self._table.has_client_quotas

    def follow(self, image: MetadataImage) -> None:
        """Takes over the quotas of an image. Rates that were measured so far are kept where a quota still applies."""
        self._table = QuotaTable(image.quotas)
        self._clients.clear()
        if not self.is_enabled:
            self._usages.clear()

    def client(self, peer: Peer, client_id: bytes) -> QuotaClient | None:
        """The quotas of the sender of a request; None if it has none."""
        key = peer.principal.name, client_id
        try:
            return self._clients[key]
        except KeyError:
            return self._new_client(peer.principal, client_id)

    def _new_client(self, principal: Principal, client_id: bytes) -> QuotaClient | None:
        found: QuotaClient | None = None
        name = client_id.decode(errors="replace")
        produce = self._usage(PRODUCER_BYTE_RATE, principal.name, name)
        fetch = self._usage(CONSUMER_BYTE_RATE, principal.name, name)
        request = self._usage(REQUEST_PERCENTAGE, principal.name, name)
        # A forwarded response may have a throttle time of the controller, which mutes the connection too.
        if produce or fetch or request or self._table.has_mutation_quotas:
            window_s = max(self._samples - 1, 1) * self._sample_seconds
            found = QuotaClient(produce, fetch, request, window_s, self._sample_seconds)
        if len(client_id) <= LONGEST_NAME:
            _make_room(self._clients)
            self._clients[principal.name, client_id] = found
        return found

    def _usage(self, key: str, user: str, client_id: str) -> Usage | None:
        quota = self._table.client_quota(key, user, client_id)
        if quota is None:
            return None
        usage = self._usages.get((key, quota.scope))
        if usage is None:
            if len(self._usages) >= MAX_TRACKED:
                self.expire()
                _make_room(self._usages)
            usage = Usage(quota, SampledRate(self._samples, self._sample_seconds), self._now)
            self._usages[key, quota.scope] = usage
        usage.limit, usage.entity = quota.limit, quota.entity
        return usage

    def tick(self) -> None:
        """Called periodically: forgets clients that have been idle for an hour, as Kafka does."""
        now = self._now()
        if now - self._ticked >= _EXPIRY_CHECK_SECONDS:
            self._ticked = now
            self.expire(_IDLE_SECONDS)

    def expire(self, idle_seconds: float = 0.0) -> None:
        """Forgets usages without events in the measured time: they do not differ from new ones."""
        now = self._now() - idle_seconds
        idle = [key for key, usage in self._usages.items() if usage.rate.is_idle(now)]
        for key in idle:
            del self._usages[key]
        if idle:
            self._clients.clear()

    @property
    def tracked(self) -> int:
        return len(self._usages)

    def usages(self) -> Iterator[tuple[str, Usage]]:
        """The key of each quota in use, and its usage."""
        for (key, _), usage in self._usages.items():
            yield key, usage


def _make_room(rows: dict[K, V]) -> None:
    """Removes the oldest row if the dictionary is full."""
    if len(rows) >= MAX_TRACKED:
        del rows[next(iter(rows))]
