"""Client metrics of a broker: GetTelemetrySubscriptions (71) and PushTelemetry (72), KIP-714.

A push is decompressed and decoded in a thread, within `telemetry.max.bytes`. Its points go to the internal topic
`__millstream_client_metrics` as one JSON record, with the client's instance id as the key; any Kafka client can read
them, and `millstream doctor` and the console do. The newest values of a few metrics stay in memory, for Prometheus. All
is bounded: clients, points, texts, records that wait to be written, age and size of the topic.

The errors are those of Kafka. A difference: Kafka offers these APIs only with a plug-in that receives the metrics; here
the broker receives them.
"""

import json
import logging
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple
from uuid import UUID

from millstream.common.background_tasks import BackgroundTasks
from millstream.config.table import network
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.wire_types import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from millstream.formats.records.compression import Codec, DecompressionFailedError, TooLargeError, decompress
from millstream.formats.records.record import Record, build_batch
from millstream.node.client_metrics.core.otlp import MalformedOtlpError, Point, read_points
from millstream.node.client_metrics.core.subscriptions import ClientInstance, ClientInstances
from millstream.node.cluster.cluster_view import ClusterView
from millstream.node.cluster.topic_creation import InternalTopics
from millstream.node.data.internal_client import InternalProducer
from millstream.node.environment import Environment
from millstream.node.metadata.image import MetadataDelta, ResourceType
from millstream.node.metadata.topic_names import CLIENT_METRICS_TOPIC
from millstream.node.server.request import Context
from millstream.node.server.service import Peer

ACCEPTED_CODECS = (Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.SNAPPY)
"""In the order in which Kafka prefers them."""
TOPIC_SETTINGS = {
    "cleanup.policy": "compact,delete",
    "retention.ms": str(60 * 60 * 1000),
    "retention.bytes": str(64 << 20),
    "segment.ms": str(10 * 60 * 1000),
    "segment.bytes": str(8 << 20),
}
_REPLICAS = 3
_MOST_WAITING = 64
"""Records that wait to be written. More are left out, and counted."""
_MOST_IDS = 16
"""Client instance ids of one connection. A client has one, a proxy of clients may have more."""
_EXPIRY_SECONDS = 10.0
_NO_ID = UUID(int=0)
PREFIX = "org.apache.kafka."
EXPORTED = frozenset(
    (
        "producer.batch.size.avg",
        "producer.records.per.request.avg",
        "producer.record.queue.time.avg",
        "producer.request.latency.avg",
        "producer.node.request.latency.avg",
        "producer.produce.throttle.time.avg",
        "producer.record.send.rate",
        "producer.record.error.rate",
        "consumer.fetch.manager.fetch.latency.avg",
        "consumer.fetch.manager.fetch.size.avg",
        "consumer.fetch.manager.fetch.throttle.time.avg",
        "consumer.fetch.manager.records.lag.max",
        "consumer.fetch.manager.records.consumed.rate",
        "consumer.coordinator.rebalance.latency.avg",
        "consumer.coordinator.commit.latency.avg",
        "consumer.node.request.latency.avg",
        "consumer.poll.idle.ratio.avg",
    )
)
"""The metrics that are kept in memory for Prometheus, without the prefix of their names."""

_APIS = (71, 72)
"""GetTelemetrySubscriptions and PushTelemetry."""

_log = logging.getLogger("millstream.client_metrics")


class Decoded(NamedTuple):
    points: list[Point]
    batch: bytearray


class ClientMetrics:
    def __init__(
        self, view: ClusterView, topics: InternalTopics, producer: InternalProducer, environment: Environment
    ) -> None:
        self._view = view
        self._topics = topics
        self._producer = producer
        self._environment = environment
        self.instances = ClientInstances()
        self._ids: dict[int, set[UUID]] = {}
        """The client instance ids that each open connection has used, by the identity of the peer."""
        self._writes = BackgroundTasks()
        self._expiry_due = 0.0
        self.pushes = 0
        self.refused: dict[str, int] = {}
        """Refused requests, by the name of the error."""
        self.dropped = 0
        """Pushes whose record was not written to the topic."""
        self._subscribe()

    def follow(self, delta: MetadataDelta) -> None:
        if any(resource.type == ResourceType.CLIENT_METRICS for resource in delta.configs):
            self._subscribe()

    def _subscribe(self) -> None:
        configs = self._view.image.configs.items()
        self.instances.subscribe(values for resource, values in configs if resource.type == ResourceType.CLIENT_METRICS)

    def unused_apis(self) -> tuple[int, ...]:
        """Without a subscription the APIs are not offered, as in Kafka without a plug-in for metrics: clients that find
        them ask every five minutes, and librdkafka writes a line about it."""
        return () if self.instances.has_subscriptions else _APIS

    def tick(self) -> None:
        """Called about once a second."""
        now = self._environment.loop.time()
        if now >= self._expiry_due:
            self._expiry_due = now + _EXPIRY_SECONDS
            self.instances.expire(now * 1000)

    def close(self) -> None:
        self._writes.cancel()

    # APIs

    def get_telemetry_subscriptions(
        self, request: GetTelemetrySubscriptionsRequest, context: Context
    ) -> GetTelemetrySubscriptionsResponse:
        id_ = request.client_instance_id
        if not id_.int:
            id_ = UUID(bytes=self._environment.randomness.randbytes(16), version=4)
        instance: ClientInstance | None = None
        try:
            instance = self._instance(id_, context)
            instance.check_get(self._now_ms())
        except KafkaError as error:
            return {
                "error_code": self._refuse(instance, error),
                "client_instance_id": _NO_ID,
                "subscription_id": 0,
                "accepted_compression_types": [],
                "push_interval_ms": 0,
                "telemetry_max_bytes": 0,
                "delta_temporality": False,
                "requested_metrics": [],
            }
        return {
            "error_code": ErrorCode.NONE,
            "client_instance_id": id_,
            "subscription_id": instance.subscription_id,
            "accepted_compression_types": [codec.value for codec in ACCEPTED_CODECS],
            "push_interval_ms": instance.interval_ms,
            "telemetry_max_bytes": self._most_bytes,
            "delta_temporality": True,
            "requested_metrics": list(instance.metrics),
        }

    async def push_telemetry(self, request: PushTelemetryRequest, context: Context) -> PushTelemetryResponse:
        id_ = request.client_instance_id
        if id_.int <= 1:
            return {"error_code": ErrorCode.INVALID_REQUEST}
        instance: ClientInstance | None = None
        try:
            instance = self._instance(id_, context)
            instance.check_push(self._now_ms(), request.subscription_id, terminating=request.terminating)
            codec = _codec(request.compression_type)
            if len(request.metrics) > self._most_bytes:
                raise KafkaError(ErrorCode.TELEMETRY_TOO_LARGE, f"{len(request.metrics)} bytes are too many")
            if len(request.metrics):
                if not instance.metrics:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, f"no metrics of client {instance.id} are requested")
                await self._take(instance, bytes(request.metrics), codec, terminating=request.terminating)
        except KafkaError as error:
            return {"error_code": self._refuse(instance, error)}
        instance.last_error = ErrorCode.NONE
        return {}

    async def _take(self, instance: ClientInstance, payload: bytes, codec: Codec, *, terminating: bool) -> None:
        now_ms = self._environment.clock.now_ms()
        head: dict[str, object] = {
            "time_ms": now_ms,
            "broker": int(self._view.node_id),
            "client_instance_id": str(instance.id),
            **instance.identity,
            "principal": instance.principal,
            "interval_ms": instance.interval_ms,
            "terminating": terminating,
        }
        work: Callable[[], Decoded | KafkaError] = partial(_decode, payload, codec, self._most_bytes, head, now_ms)
        decoded = await self._environment.offload(work)
        if isinstance(decoded, KafkaError):
            raise decoded
        self.pushes += 1
        instance.known = exported(decoded.points)
        if len(self._writes) >= _MOST_WAITING:
            self.dropped += 1
            return
        self._writes.start(self._write(decoded.batch), loop=self._environment.loop)

    async def _write(self, batch: bytearray) -> None:
        try:
            await self._topics.ensure(CLIENT_METRICS_TOPIC, 1, _REPLICAS, TOPIC_SETTINGS)
            await self._producer.append(CLIENT_METRICS_TOPIC, 0, batch)
        except (KafkaError, OSError) as error:
            self.dropped += 1
            _log.warning("client_metrics_not_written topic=%s error=%s", CLIENT_METRICS_TOPIC, error)

    def _instance(self, id_: UUID, context: Context) -> ClientInstance:
        """The client. KafkaError if the connection has used too many other ids: each has limits of its own, and these
        APIs need no permission."""
        peer = context.peer
        ids = self._ids.get(id(peer))
        if ids is None:
            ids = self._ids[id(peer)] = set()
            peer.on_close.add(partial(self._closed, peer))
        if id_ not in ids:
            if len(ids) >= _MOST_IDS:
                raise KafkaError(
                    ErrorCode.THROTTLING_QUOTA_EXCEEDED, f"a connection may use {_MOST_IDS} client instance ids"
                )
            ids.add(id_)
        instance = self.instances.get(id_, _identity(context), str(peer.principal), self._now_ms())
        instance.connection = peer
        return instance

    def _closed(self, peer: Peer) -> None:
        for id_ in self._ids.pop(id(peer), ()):
            if (instance := self.instances.find(id_)) is not None and instance.connection is peer:
                self.instances.forget(id_)

    def _refuse(self, instance: ClientInstance | None, error: KafkaError) -> ErrorCode:
        if instance is not None:
            instance.last_error = error.code
        self.refused[error.code.name] = self.refused.get(error.code.name, 0) + 1
        _log.debug("telemetry_refused client=%s error=%s", None if instance is None else instance.id, error)
        return error.code

    @property
    def _most_bytes(self) -> int:
        return self._view.config[network.TELEMETRY_MAX_BYTES]

    def _now_ms(self) -> float:
        return self._environment.loop.time() * 1000


def _identity(context: Context) -> Mapping[str, str]:
    software, _, version = context.peer.client_software.partition(" ")
    return {
        "client_id": context.client_id[:200],
        "client_software_name": software[:200],
        "client_software_version": version[:200],
        "client_source_address": context.peer.host,
        "client_source_port": str(context.peer.port),
    }


def _codec(number: int) -> Codec:
    try:
        return Codec(number)
    except ValueError:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression type {number} is not one of 0 to 4"
        ) from None


def _decode(
    payload: bytes, codec: Codec, most_bytes: int, head: Mapping[str, object], now_ms: int
) -> Decoded | KafkaError:
    """Runs in a thread."""
    try:
        points = read_points(payload if codec is Codec.NONE else decompress(codec, payload, most_bytes))
    except TooLargeError:
        return KafkaError(ErrorCode.TELEMETRY_TOO_LARGE, f"the push has more than {most_bytes} bytes, decompressed")
    except (DecompressionFailedError, MalformedOtlpError) as error:
        return KafkaError(ErrorCode.INVALID_RECORD, f"the push cannot be read: {error}")
    rows = [
        {
            "name": each.name,
            "kind": each.kind,
            "value": each.value,
            **({"of": each.attributes} if each.attributes else {}),
        }
        for each in points
        if math.isfinite(each.value)
    ]
    value = json.dumps({**head, "metrics": rows}, separators=(",", ":")).encode()
    record = Record(str(head["client_instance_id"]).encode(), value, timestamp=now_ms)
    # Compressed here: a value may be several times as long as the push, and many may wait to be written.
    return Decoded(points, build_batch([record], codec=Codec.ZSTD))


def exported(points: list[Point]) -> dict[str, float]:
    """The values of the exported metrics: the largest one where a metric has several, such as one per broker."""
    found: dict[str, float] = {}
    for point in points:
        name = point.name.removeprefix(PREFIX)
        if name in EXPORTED and math.isfinite(point.value):
            found[name] = max(point.value, found.get(name, -math.inf))
    return found
