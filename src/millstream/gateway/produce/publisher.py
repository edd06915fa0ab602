"""Publishes records to the cluster: acknowledged by all in-sync replicas, written once, each with its own result.

It uses librdkafka, which batches the records of many small requests, keeps their order, writes each once across lost
connections and leader changes, and reports each record by itself. A producer of our raw client would be cheaper, but it
gives up as a whole at its first error, as a Spark task wants it. With librdkafka a record of 1 KB in a batch of 500
costs the gateway about 18 µs of CPU (benchmark `gateway`): a third in librdkafka and its reports, the rest in HTTP,
JSON and base64. A batch wakes the event loop once, not once per record.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from millstream.gateway.http.configuration import Limits
from millstream.gateway.http.errors import UNREACHABLE_HINT, ApiError, error_for_code
from millstream.raw_client import Cluster, client_properties
from millstream.raw_client.errors import error_code


def librdkafka_settings(cluster: Cluster) -> dict[str, Any]:
    """Settings for librdkafka to connect as the raw client does; the caller adds others."""
    given = cluster.settings
    return client_properties.librdkafka_settings(cluster.given_settings) | {
        "bootstrap.servers": cluster.bootstrap,
        "client.id": given.client_id,
        "socket.timeout.ms": int(given.request_timeout_s * 1000),
        "socket.connection.setup.timeout.ms": int(given.connect_timeout_s * 1000),
        "log.connection.close": False,
        "reconnect.backoff.max.ms": 1000,
    }


_log = logging.getLogger(__name__)
_LINGER_MS = 5
"""Enough for a request with hundreds of records to become one batch, and for small requests to share one."""
_BATCH_BYTES = 900_000
"""Below the brokers' default for `message.max.bytes`."""
_POLL_SECONDS = 0.2
_FLUSH_TIMEOUT_SECONDS = 5.0
_CHUNK_RECORDS = 1_000
"""After so many records of one request, other requests get a turn of the event loop."""
_REPORT_GRACE_SECONDS = 10.0
"""How long after librdkafka's own timeout a report is still expected."""
_UNSURE_HINT = "it may have been written: check before you send it again"


class OutgoingRecord(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    headers: list[tuple[str, str | bytes | None]] | None = None
    partition: int = -1
    """-1: chosen by the key as in Java's producer; without a key, any."""
    timestamp: int = 0
    """Milliseconds since 1970; 0 is now."""


class Stored(NamedTuple):
    partition: int
    offset: int
    timestamp: int


Outcome = Stored | ApiError


class Publisher:
    """Used from one event loop. It has one librdkafka producer, made on first use and replaced after a fatal error, and
    one thread that receives its reports."""

    def __init__(self, cluster: Cluster, limits: Limits) -> None:
        self._limits = limits
        timeout_ms = int(limits.produce_timeout_s * 1000)
        self._settings = librdkafka_settings(cluster) | {
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": _LINGER_MS,
            "batch.size": _BATCH_BYTES,
            "delivery.timeout.ms": timeout_ms,
            "request.timeout.ms": min(10_000, timeout_ms),
            "topic.metadata.propagation.max.ms": min(5_000, timeout_ms),
            # The brokers decide what is too large; this is only an upper bound.
            "message.max.bytes": min(limits.max_body_bytes + (1 << 20), 1_000_000_000),
            "queue.buffering.max.messages": 0,
            "queue.buffering.max.kbytes": max(2 * max(limits.max_in_flight_bytes, limits.max_body_bytes) >> 10, 1024),
            "partitioner": "murmur2_random",
            "error_cb": self._on_error,
            "logger": _log,
        }
        self._producer: Producer | None = None
        self._is_fatal = False
        """The producer had a fatal error and must be replaced."""
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    async def publish(self, topic: str, records: Sequence[OutgoingRecord]) -> list[Outcome]:
        """The result of each record, in order."""
        pending: list[tuple[asyncio.Future[list[Outcome]], int]] = []
        for start in range(0, len(records), _CHUNK_RECORDS):
            if start:
                await asyncio.sleep(0)
            chunk = records[start : start + _CHUNK_RECORDS]
            pending.append((self.enqueue(topic, chunk), len(chunk)))
        outcomes: list[Outcome] = []
        for future, count in pending:
            outcomes += await self.outcome(future, count)
        return outcomes

    async def outcome(self, future: "asyncio.Future[list[Outcome]]", count: int = 1) -> list[Outcome]:
        """The results of `count` records that were enqueued together."""
        try:
            return await asyncio.wait_for(future, self._limits.produce_timeout_s + _REPORT_GRACE_SECONDS)
        except TimeoutError:
            return [
                ApiError(
                    504, "the record was not acknowledged in time", f"{UNREACHABLE_HINT}; {_UNSURE_HINT}", code=50401
                )
            ] * count

    def enqueue(self, topic: str, records: Sequence[OutgoingRecord]) -> "asyncio.Future[list[Outcome]]":
        """Hands at least one record to librdkafka. Records of one call and of later calls keep their order."""
        batch = _PendingRecords(len(records), asyncio.get_running_loop())
        producer = self._running()
        produce = producer.produce
        for index, (value, key, headers, partition, timestamp) in enumerate(records):
            report = batch.reporter(index)
            try:
                if headers is None:
                    produce(topic, value, key, partition, report, None, timestamp)
                else:
                    produce(topic, value, key, partition, report, None, timestamp, headers)
            except BufferError:
                batch.settle(
                    index, ApiError(503, "too many records wait to be written", "retry in a moment", code=50302)
                )
            except KafkaException as error:
                batch.settle(index, error_for_librdkafka(error.args[0]))
        return batch.future

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    # The producer

    def _running(self) -> Producer:
        producer = self._producer
        if producer is None:
            producer = self._producer = Producer(self._settings)
            if self._thread is None:
                self._thread = threading.Thread(target=self._listen, name="deliveries", daemon=True)
                self._thread.start()
        return producer

    def _listen(self) -> None:
        """librdkafka calls back only from within `poll`."""
        while not self._closed.is_set():
            producer = self._producer
            if producer is None:
                self._closed.wait(_POLL_SECONDS)
                continue
            try:
                producer.poll(_POLL_SECONDS)
            except Exception:  # a callback raised; this thread must go on
                _log.exception("report_failed")
            if self._is_fatal:
                self._is_fatal = False
                self._producer = None  # the next record creates a new one
                producer.purge(in_queue=True, in_flight=True, blocking=False)
                producer.flush(_FLUSH_TIMEOUT_SECONDS)
        if self._producer is not None:
            self._producer.flush(_FLUSH_TIMEOUT_SECONDS)

    def _on_error(self, error: KafkaError) -> None:
        """Called from within `poll`."""
        if error.fatal():
            self._is_fatal = True
            _log.warning("producer_replaced reason=%s", error.str())
        else:
            _log.info("producer_error reason=%s", error.str())


class _PendingRecords:
    """The records of one call, and how many of them have no result yet."""

    def __init__(self, count: int, loop: asyncio.AbstractEventLoop) -> None:
        self._left = count
        self._outcomes: list[Any] = [None] * count
        self._loop = loop
        self.future: asyncio.Future[list[Outcome]] = loop.create_future()
        self._lock = threading.Lock()

    def reporter(self, index: int) -> Callable[[Any, Any], None]:
        def report(error: Any, message: Any) -> None:
            if error is None:
                self.settle(index, Stored(message.partition(), message.offset(), message.timestamp()[1]))
            else:
                self.settle(index, error_for_librdkafka(error))

        return report

    def settle(self, index: int, outcome: Outcome) -> None:
        self._outcomes[index] = outcome
        with self._lock:  # the event loop and the report thread both call this
            self._left -= 1
            if self._left:
                return
        try:
            self._loop.call_soon_threadsafe(self._complete)
        except RuntimeError:  # the loop has ended
            _log.info("result_dropped")

    def _complete(self) -> None:
        if not self.future.done():
            self.future.set_result(self._outcomes)


_LOCAL: dict[int, tuple[int, int, str]] = {
    KafkaError._MSG_TIMED_OUT: (504, 50401, f"{UNREACHABLE_HINT}; {_UNSURE_HINT}"),
    KafkaError._TIMED_OUT: (504, 50401, UNREACHABLE_HINT),
    KafkaError._TIMED_OUT_QUEUE: (504, 50401, UNREACHABLE_HINT),
    KafkaError._UNKNOWN_TOPIC: (404, 40403, "create the topic first"),
    KafkaError._UNKNOWN_PARTITION: (404, 40404, "use a partition of the topic, or none"),
    KafkaError._PURGE_QUEUE: (503, 50303, "send it again"),
    KafkaError._PURGE_INFLIGHT: (503, 50303, _UNSURE_HINT),
    KafkaError._AUTHENTICATION: (401, 40101, "the cluster does not accept the credentials any more"),
    KafkaError._QUEUE_FULL: (503, 50302, "retry in a moment"),
}


def error_for_librdkafka(error: KafkaError) -> ApiError:
    """The response for an error of librdkafka."""
    code = int(error.code())
    if code >= 0:
        return error_for_code(error_code(code), error.str())
    status, number, hint = _LOCAL.get(code, (503, 50301, UNREACHABLE_HINT))
    return ApiError(status, error.str(), hint, code=number)
