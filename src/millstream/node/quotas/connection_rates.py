"""Rates of new connections: per address (quota `connection_creation_rate`), of a listener, and of the broker.

A connection above the quota of its address is closed after a delay, so that a client that retries at once does not
gain. Above the rate of the broker or of a listener (`max.connection.creation.rate`), connections wait to be accepted.
"""

from collections.abc import Callable

from millstream.node.metadata.image import MetadataImage
from millstream.node.quotas.core.entities import QuotaTable
from millstream.node.quotas.core.rates import SampledRate
from millstream.node.server.limits import address_key

MAX_ADDRESSES = 10_000


class ConnectionRates:
    def __init__(
        self,
        now: Callable[[], float],
        limit: Callable[[str | None], float | None],
        *,
        samples: int,
        sample_seconds: float,
    ) -> None:
        """`limit` is the present value of `max.connection.creation.rate`: of the broker (None), or that of a listener
        alone, which is None if it has none."""
        self._now = now
        self._limit = limit
        self._samples = samples
        self._sample_seconds = sample_seconds
        self._table = QuotaTable({})
        self._addresses: dict[str, SampledRate] = {}
        self._rates: dict[str | None, SampledRate] = {}
        self.exempt_listener: str | None = None
        """The listener between brokers, if they have their own: neither the rate of the broker nor that of addresses
        limits it."""
        self.throttled = 0
        """Connections that were closed because of the quota of their address."""

    def follow(self, image: MetadataImage) -> None:
        self._table = QuotaTable(image.quotas)
        if not self._table.has_address_quotas:
            self._addresses.clear()

    def of_address(self, address: str, listener: str) -> float:
        """Counts a new connection; the seconds after which to close it, or 0 to accept it."""
        if not self._table.has_address_quotas or listener == self.exempt_listener:
            return 0.0
        limit = self._table.connection_rate(address)
        if limit is None:
            return 0.0
        if not self._table.has_own_rate(address):
            address = address_key(address)
        rate = self._addresses.get(address)
        now = self._now()
        if rate is None:
            self._make_room(now)
            rate = self._addresses[address] = SampledRate(self._samples, self._sample_seconds)
        rate.record(1, now)
        throttle_ms = rate.throttle_ms(limit, now)
        if not throttle_ms:
            return 0.0
        rate.record(-1, now)
        self.throttled += 1
        return self._at_most_one_sample(throttle_ms)

    def of_listener(self, name: str) -> float:
        """Counts an accepted connection; the seconds for which this listener accepts no other."""
        of_broker = 0.0 if name == self.exempt_listener else self._counted(None)
        return max(of_broker, self._counted(name))

    def _counted(self, name: str | None) -> float:
        limit = self._limit(name)
        if limit is None or limit >= 2**31 - 1:
            return 0.0
        now = self._now()
        rate = self._rates.get(name)
        if rate is None:
            rate = self._rates[name] = SampledRate(self._samples, self._sample_seconds)
        rate.record(1, now)
        return self._at_most_one_sample(rate.throttle_ms(max(limit, 0.001), now))

    def _at_most_one_sample(self, throttle_ms: int) -> float:
        return min(throttle_ms / 1000, self._sample_seconds)

    def _make_room(self, now: float) -> None:
        if len(self._addresses) < MAX_ADDRESSES:
            return
        for address in [address for address, rate in self._addresses.items() if rate.is_idle(now)]:
            del self._addresses[address]
        if len(self._addresses) >= MAX_ADDRESSES:
            del self._addresses[next(iter(self._addresses))]
