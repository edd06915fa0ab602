"""Records on their way to the cluster: acknowledged by all in-sync replicas, written once, each with its own outcome.

Through librdkafka: it batches what many small requests bring, keeps order and writes once through lost connections and
changes of leaders, and fails record by record. A batch that our own wire producer encodes at once would be cheaper
still, but that producer gives up as a whole at its first refusal, as a Spark task wants it. This way a record of 1 KB
in a batch of 500 costs the gateway some 18 µs of CPU from request to answer, where 50 are allowed (the benchmark
`gateway`): a third of it in librdkafka and its reports, the rest in HTTP, JSON and base64. So robustness wins. A batch
costs one wake-up of the event loop, not one per record.

The connection's settings for librdkafka, from those of the wire: Java's names, as users know them.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from millstream.gateway.http.configuration import Limits
from millstream.gateway.http.errors import UNREACHABLE_HINT, ApiError, error_for_code
from millstream.raw_client import Cluster
from millstream.raw_client.errors import error_code
from millstream.raw_client.security import TlsSettings


def librdkafka_settings(cluster: Cluster) -> dict[str, Any]:
    """What a librdkafka client needs to reach the same cluster in the same way; the caller adds what it is for."""
    given = cluster.settings
    settings: dict[str, Any] = {
        "bootstrap.servers": cluster.bootstrap,
        "client.id": given.client_id,
        "security.protocol": given.protocol.name.lower(),
        "socket.timeout.ms": int(given.request_timeout_s * 1000),
        "socket.connection.setup.timeout.ms": int(given.connect_timeout_s * 1000),
        "socket.keepalive.enable": given.keep_alive,
        "log.connection.close": False,
        "reconnect.backoff.max.ms": 1000,
    }
    if given.send_buffer_bytes > 0:
        settings["socket.send.buffer.bytes"] = given.send_buffer_bytes
    if given.receive_buffer_bytes > 0:
        settings["socket.receive.buffer.bytes"] = given.receive_buffer_bytes
    if given.tls is not None:
        settings |= _tls(given.tls)
    if given.sasl is not None:
        settings |= {
            "sasl.mechanism": given.sasl.mechanism,
            "sasl.username": given.sasl.username,
            "sasl.password": given.sasl.password,
        }
    return settings


def _tls(tls: TlsSettings) -> dict[str, Any]:
    # A key of its own is not needed where one file holds certificates and key, as Java's keystores do.
    key_location = tls.key_location or (None if tls.key_pem else tls.certificate_location)
    named = {
        "ssl.ca.location": tls.ca_location,
        "ssl.ca.pem": tls.ca_pem,
        "ssl.certificate.location": tls.certificate_location,
        "ssl.certificate.pem": tls.certificate_pem,
        "ssl.key.location": key_location,
        "ssl.key.pem": tls.key_pem,
        "ssl.key.password": tls.key_password,
        "ssl.cipher.suites": tls.ciphers,
    }
    return {name: value for name, value in named.items() if value is not None} | {
        "ssl.endpoint.identification.algorithm": "https" if tls.checks_host else "none",
        "enable.ssl.certificate.verification": tls.checks_certificate,
    }


logger = logging.getLogger(__name__)
_LINGER_MS = 5
"""Long enough for a request of some hundred records to become one batch, and for small requests to share one."""
_BATCH_BYTES = 900_000
"""Below the brokers' default for `message.max.bytes`."""
_POLL_S = 0.2
_GOODBYE_S = 5.0
_CHUNK = 1_000
"""After so many records of one request, others have their turn."""
_PATIENCE_S = 10.0
"""Beyond librdkafka's own deadline, after which we stop believing that it will report."""
_UNSURE_HINT = "it may have been written all the same: look before you send it again"


class OutgoingRecord(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    headers: list[tuple[str, str | bytes | None]] | None = None
    partition: int = -1
    """-1: by the key as Java's producer would, or anywhere."""
    timestamp: int = 0
    """Milliseconds since 1970; 0 is now."""


class Stored(NamedTuple):
    partition: int
    offset: int
    timestamp: int


Outcome = Stored | ApiError


class Publisher:
    """Used from one event loop. One librdkafka producer, made on first use and anew after an error that it does not
    survive; one thread hears its reports."""

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
            # The brokers say what is too large; this only bounds what one request can bring.
            "message.max.bytes": min(limits.max_body_bytes + (1 << 20), 1_000_000_000),
            "queue.buffering.max.messages": 0,
            "queue.buffering.max.kbytes": max(2 * max(limits.max_in_flight_bytes, limits.max_body_bytes) >> 10, 1024),
            "partitioner": "murmur2_random",
            "error_cb": self._on_error,
            "logger": logger,
        }
        self._producer: Producer | None = None
        self._spent = False
        """An error that no producer survives has been heard of this one."""
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    async def publish(self, topic: str, records: Sequence[OutgoingRecord]) -> list[Outcome]:
        """The outcome of each record, in their order."""
        pending: list[tuple[asyncio.Future[list[Outcome]], int]] = []
        for start in range(0, len(records), _CHUNK):
            if start:
                await asyncio.sleep(0)
            chunk = records[start : start + _CHUNK]
            pending.append((self.enqueue(topic, chunk), len(chunk)))
        outcomes: list[Outcome] = []
        for future, count in pending:
            outcomes += await self.outcome(future, count)
        return outcomes

    async def outcome(self, future: "asyncio.Future[list[Outcome]]", count: int = 1) -> list[Outcome]:
        """Of so many records that were enqueued together."""
        try:
            return await asyncio.wait_for(future, self._limits.produce_timeout_s + _PATIENCE_S)
        except TimeoutError:
            return [
                ApiError(
                    504, "the record was not acknowledged in time", f"{UNREACHABLE_HINT}; {_UNSURE_HINT}", code=50401
                )
            ] * count

    def enqueue(self, topic: str, records: Sequence[OutgoingRecord]) -> "asyncio.Future[list[Outcome]]":
        """At least one record, on its way when this returns; records of one call and of later ones keep their order."""
        flight = _Flight(len(records), asyncio.get_running_loop())
        producer = self._running()
        produce = producer.produce
        for index, (value, key, headers, partition, timestamp) in enumerate(records):
            report = flight.reporter(index)
            try:
                if headers is None:
                    produce(topic, value, key, partition, report, None, timestamp)
                else:
                    produce(topic, value, key, partition, report, None, timestamp, headers)
            except BufferError:
                flight.settle(
                    index, ApiError(503, "too many records wait to be written", "retry in a moment", code=50302)
                )
            except KafkaException as error:
                flight.settle(index, error_for_librdkafka(error.args[0]))
        return flight.future

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
        """Reports come only from within `poll`."""
        while not self._closed.is_set():
            producer = self._producer
            if producer is None:
                self._closed.wait(_POLL_S)
                continue
            try:
                producer.poll(_POLL_S)
            except Exception:  # raised by a report; without this thread no other would be heard
                logger.exception("report_failed")
            if self._spent:
                self._spent = False
                self._producer = None  # the next record makes a new one
                producer.purge(in_queue=True, in_flight=True, blocking=False)
                producer.flush(_GOODBYE_S)
        if self._producer is not None:
            self._producer.flush(_GOODBYE_S)

    def _on_error(self, error: KafkaError) -> None:
        """Called from within `poll`."""
        if error.fatal():
            self._spent = True
            logger.warning("producer_replaced reason=%s", error.str())
        else:
            logger.info("producer_trouble reason=%s", error.str())


class _Flight:
    """The records of one call, and how many of them have not been heard of."""

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
        with self._lock:  # the event loop refuses some while the other thread hears of others
            self._left -= 1
            if self._left:
                return
        try:
            self._loop.call_soon_threadsafe(self._land)
        except RuntimeError:  # the loop has ended, and with it whoever waited
            logger.info("outcome_unheard")

    def _land(self) -> None:
        if not self.future.done():
            self.future.set_result(self._outcomes)


_LOCAL: dict[int, tuple[int, int, str]] = {
    KafkaError._MSG_TIMED_OUT: (504, 50401, f"{UNREACHABLE_HINT}; {_UNSURE_HINT}"),
    KafkaError._TIMED_OUT: (504, 50401, UNREACHABLE_HINT),
    KafkaError._TIMED_OUT_QUEUE: (504, 50401, UNREACHABLE_HINT),
    KafkaError._UNKNOWN_TOPIC: (404, 40403, "create the topic first"),
    KafkaError._UNKNOWN_PARTITION: (404, 40404, "give a partition that the topic has, or none"),
    KafkaError._PURGE_QUEUE: (503, 50303, "send it again"),
    KafkaError._PURGE_INFLIGHT: (503, 50303, _UNSURE_HINT),
    KafkaError._QUEUE_FULL: (503, 50302, "send it again in a moment"),
}


def error_for_librdkafka(error: KafkaError) -> ApiError:
    """What an error of librdkafka means to a caller."""
    code = int(error.code())
    if code >= 0:
        return error_for_code(error_code(code), error.str())
    status, number, hint = _LOCAL.get(code, (503, 50301, UNREACHABLE_HINT))
    return ApiError(status, error.str(), hint, code=number)
