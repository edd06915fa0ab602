"""Controller mutation quotas (KIP-599): partitions created and deleted per second by users and client ids.

Each client has a token bucket. With new versions of CreateTopics, CreatePartitions and DeleteTopics a topic is refused
with THROTTLING_QUOTA_EXCEEDED while tokens are owed (*strict*). With older versions it is accepted, and the client is
throttled.
"""

from collections.abc import Callable

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.metadata.image import MetadataImage
from millstream.node.quotas.client_quotas import MAX_TRACKED
from millstream.node.quotas.core.entities import CONTROLLER_MUTATION_RATE, QuotaTable, Scope
from millstream.node.quotas.core.rates import TokenBucket
from millstream.node.server.request import Context
from millstream.node.server.service import LOCAL_LISTENER, Peer


class MutationQuota:
    """The quota of one request. Call it with the number of partitions that each topic adds or removes."""

    __slots__ = ("_bucket", "_entity", "_is_strict", "_now", "throttle_ms")

    def __init__(self, bucket: TokenBucket | None, entity: str, now: Callable[[], float], *, is_strict: bool) -> None:
        self._bucket = bucket
        self._entity = entity
        self._now = now
        self._is_strict = is_strict
        self.throttle_ms = 0

    def __call__(self, partitions: int) -> None:
        """Raises THROTTLING_QUOTA_EXCEEDED if the request is strict and the quota is exceeded."""
        bucket = self._bucket
        if bucket is None:
            return
        now = self._now()
        if self._is_strict:
            owed_ms = bucket.throttle_ms(now)
            if owed_ms:
                self.throttle_ms = max(self.throttle_ms, owed_ms)
                raise KafkaError(
                    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                    f"The quota {CONTROLLER_MUTATION_RATE}={bucket.limit:g} of {self._entity} has been exceeded; "
                    f"try again in {owed_ms} ms.",
                )
            bucket.take(partitions, now)
        else:
            bucket.take(partitions, now)
            self.throttle_ms = max(self.throttle_ms, bucket.throttle_ms(now))


class MutationQuotas:
    def __init__(self, now: Callable[[], float], *, burst_seconds: float) -> None:
        self._now = now
        self._burst_seconds = burst_seconds
        self._table = QuotaTable({})
        self._buckets: dict[Scope, TokenBucket] = {}

    def follow(self, image: MetadataImage) -> None:
        self._table = QuotaTable(image.quotas)
        if not self._table.has_mutation_quotas:
            self._buckets.clear()

    def quota(self, user: str, client_id: str, *, is_strict: bool) -> MutationQuota:
        """The quota of a request; one that allows everything if the client has none."""
        applied = None
        if self._table.has_mutation_quotas:
            applied = self._table.client_quota(CONTROLLER_MUTATION_RATE, user, client_id)
        if applied is None:
            return self.unlimited()
        bucket = self._buckets.get(applied.scope)
        if bucket is None:
            self._make_room()
            bucket = TokenBucket(applied.limit, self._burst_seconds, self._now())
            self._buckets[applied.scope] = bucket
        bucket.limit = applied.limit
        return MutationQuota(bucket, applied.entity, self._now, is_strict=is_strict)

    def unlimited(self) -> MutationQuota:
        return MutationQuota(None, "", self._now, is_strict=False)

    def _make_room(self) -> None:
        """Forgets full buckets, which do not differ from new ones; then the oldest."""
        if len(self._buckets) < MAX_TRACKED:
            return
        now = self._now()
        for scope in [scope for scope, bucket in self._buckets.items() if bucket.is_full(now)]:
            del self._buckets[scope]
        if len(self._buckets) >= MAX_TRACKED:
            del self._buckets[next(iter(self._buckets))]


class ControllerMutations:
    """The mutation quotas of clients, also of those that connect to the controller itself. Requests of brokers are
    exempt: a broker creates internal topics."""

    def __init__(
        self, quotas: MutationQuotas, controller_listeners: frozenset[str], is_broker: Callable[[Peer], bool]
    ) -> None:
        """`is_broker` returns whether a connection to the controller is that of a registered broker."""
        self._quotas = quotas
        self._controller_listeners = controller_listeners
        self._is_broker = is_broker

    def quota(self, context: Context, *, strict_since: int) -> MutationQuota:
        """The quota of a request; from version `strict_since` on, topics above the quota are refused."""
        peer = context.peer
        # A request that a broker forwards has no port.
        is_direct = peer.port and peer.listener in self._controller_listeners
        if peer.listener == LOCAL_LISTENER or (is_direct and self._is_broker(peer)):
            return self._quotas.unlimited()
        return self._quotas.quota(peer.principal.name, context.client_id, is_strict=context.version >= strict_since)
