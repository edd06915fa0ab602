"""Metrics of requests and connections: numbers, durations, waits, refusals."""

from millstream.common.prometheus import Page, counter, gauge, histogram
from millstream.config.table.ssl import MAX_HANDSHAKES
from millstream.formats.model.errors import ErrorCode
from millstream.node.metrics.observed_node import MetricsSubject, ObservedNode, TimeSlices
from millstream.node.server.dispatch import Dispatcher

DURATION = histogram(
    "millstream_request_duration_seconds",
    "The time from the complete request to its response, including waits (long polls, acks=all, fsync). Its _count is "
    "the number of requests. server is the role (broker or controller), api Kafka's name of the API; FetchFollower is "
    "a Fetch of another broker.",
    "server",
    "api",
)
REFUSED = counter(
    "millstream_requests_refused_total",
    "Requests for which the connection was closed: malformed, an unsupported version, or a failed produce with acks=0.",
    "server",
)
ERRORS = counter(
    "millstream_partition_errors_total",
    "Partitions in Produce and Fetch responses with an error, by Kafka's name of the error.",
    "api",
    "error",
)
WAITING = gauge(
    "millstream_purgatory_requests",
    "Delayed requests: Produce waits for replicas or the disk, fetches wait for records.",
    "api",
)
LONG_TURNS = histogram(
    "millstream_event_loop_long_turn_seconds",
    "Turns of the event loop above 50 ms that processed a request of this API. Nothing else was served in this time. "
    "The log names the client.",
    "server",
    "api",
)


COLD_READS = counter(
    "millstream_fetch_cold_reads_total",
    "Fetch responses for which records were read from the disk: they were not in the page cache, or not verified yet.",
)
COLD_READ_TIME = counter("millstream_fetch_cold_read_seconds_total", "The sum of the times of these reads.")
AUDITED = counter("millstream_audit_events_total", "Events of the audit log.")
AUDIT_DROPPED = counter(
    "millstream_audit_events_dropped_total",
    "Events that were lost because the queue of the audit log was full (millstream.audit.queue.events).",
)


async def collect_requests(node: ObservedNode, page: Page, turns: TimeSlices) -> None:
    broker = node.broker
    servers: dict[str, Dispatcher] = {}
    if broker is not None:
        servers["broker"] = broker.dispatcher
    if node.controller is not None:
        servers["controller"] = node.controller.dispatcher
    for server, dispatcher in servers.items():
        for api, found in sorted(dispatcher.durations.items()):
            page.add_histogram(DURATION, found, server, kafka_name(api))
        for api, found in sorted(dispatcher.turns.long_turns.items()):
            page.add_histogram(LONG_TURNS, found, server, kafka_name(api))
        page.add(REFUSED, dispatcher.refused, server)
        await turns.pause()
    auditor = node.environment.auditor
    page.add(AUDITED, auditor.recorded)
    page.add(AUDIT_DROPPED, auditor.dropped)
    if broker is None:
        return
    for api, errors in (("Produce", broker.produce.errors), ("Fetch", broker.fetch.reader.errors)):
        for code, count in sorted(errors.items()):
            page.add(ERRORS, count, api, ErrorCode(code).name)
    page.add(COLD_READS, broker.fetch.cold_reads)
    page.add(COLD_READ_TIME, broker.fetch.cold_read_s)
    page.add(WAITING, len(broker.produce.waiting), "Produce")
    page.add(WAITING, broker.fetch.waiting, "Fetch")
    page.add(WAITING, broker.fetch.waiting_followers, "FetchFollower")
    page.add(WAITING, broker.share_fetch.waiting, "ShareFetch")


def kafka_name(api: str) -> str:
    """Kafka's name of an API: list_offsets is ListOffsets."""
    return "".join(word.capitalize() for word in api.split("_"))


REQUESTS = MetricsSubject(
    "requests",
    (DURATION, LONG_TURNS, REFUSED, ERRORS, WAITING, COLD_READS, COLD_READ_TIME, AUDITED, AUDIT_DROPPED),
    collect_requests,
)


OPEN = gauge("millstream_connections", "Open connections.", "listener")
ACCEPTED = counter("millstream_connections_accepted_total", "Connections accepted since the start.", "listener")
REFUSED_CONNECTIONS = counter(
    "millstream_connections_refused_total",
    "Connections refused because of a limit, by the setting or the quota of the limit.",
    "listener",
    "setting",
)
PAUSED = gauge(
    "millstream_connections_paused",
    "Connections that are not read now: too many responses are pending, the client does not read them, or the memory "
    "for requests is used up.",
    "listener",
)
PAUSES = counter("millstream_connection_pauses_total", "The number of such pauses.", "listener")
MEMORY = gauge(
    "millstream_request_memory_bytes",
    "Memory of requests that are partly received (queued.max.request.bytes).",
    "listener",
)
MEMORY_LIMIT = gauge("millstream_request_memory_limit_bytes", "The limit of this memory.", "listener")
LOGINS = counter(
    "millstream_authentications_total",
    "Logins by SASL: succeeded, failed, repeated (re-authentication), or expired: the connection was used after the "
    "end of its session, and closed.",
    "listener",
    "mechanism",
    "result",
)
HANDSHAKES = counter("millstream_tls_handshakes_total", "TLS handshakes that succeeded.", "listener")
HANDSHAKES_FAILED = counter(
    "millstream_tls_handshakes_failed_total",
    "TLS handshakes that failed: the client does not use TLS, it or its certificate was refused, it took too long, or "
    "the connection broke. The log has the reason.",
    "listener",
    "kind",
)
HANDSHAKES_UNDER_WAY = gauge("millstream_tls_handshakes_under_way", "TLS handshakes that are not done yet.", "listener")
CERTIFICATE_EXPIRES = gauge(
    "millstream_certificate_expires_in_seconds",
    "Seconds until the listener's certificate, or one of its chain, expires. Negative: it has expired.",
    "listener",
)
_LIMITS = ("max.connections", "max.connections.per.ip", "connection_creation_rate")


async def collect_connections(node: ObservedNode, page: Page, turns: TimeSlices) -> None:
    for listener in node.listeners:
        name = listener.name
        page.add(OPEN, len(listener.connections), name)
        page.add(ACCEPTED, listener.accepted, name)
        for setting in _LIMITS:
            page.add(REFUSED_CONNECTIONS, listener.refused[setting], name, setting)
        page.add(PAUSED, sum(connection.is_paused for connection in listener.connections), name)
        page.add(PAUSES, listener.pauses, name)
        page.add(MEMORY, listener.memory.used_bytes, name)
        page.add(MEMORY_LIMIT, listener.limits.request_memory_bytes, name)
        if listener.tls is not None:
            page.add(REFUSED_CONNECTIONS, listener.refused[MAX_HANDSHAKES.name], name, MAX_HANDSHAKES.name)
            page.add(HANDSHAKES, listener.handshakes_done, name)
            for kind, count in sorted(listener.handshakes_failed.items()):
                page.add(HANDSHAKES_FAILED, count, name, kind)
            page.add(HANDSHAKES_UNDER_WAY, listener.handshakes.under_way, name)
            expires_at = listener.tls.certificates.expires_at
            if expires_at is not None:
                page.add(CERTIFICATE_EXPIRES, expires_at.timestamp() - node.environment.clock.now_ms() / 1000, name)
        await turns.pause()
    counts = node.sasl_counts
    for result in () if counts is None else ("succeeded", "failed", "repeated", "expired"):
        for (listener_name, mechanism), count in getattr(counts, result).items():
            page.add(LOGINS, count, listener_name, mechanism, result)


CONNECTIONS = MetricsSubject(
    "connections",
    (
        OPEN,
        ACCEPTED,
        REFUSED_CONNECTIONS,
        PAUSED,
        PAUSES,
        MEMORY,
        MEMORY_LIMIT,
        LOGINS,
        HANDSHAKES,
        HANDSHAKES_FAILED,
        HANDSHAKES_UNDER_WAY,
        CERTIFICATE_EXPIRES,
    ),
    collect_connections,
)
