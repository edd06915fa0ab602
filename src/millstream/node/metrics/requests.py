"""Metrics of requests and connections: numbers, durations, waits, refusals."""

from millstream.common.prometheus import Page, counter, gauge, histogram
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
    if broker is None:
        return
    for api, errors in (("Produce", broker.produce.errors), ("Fetch", broker.fetch.reader.errors)):
        for code, count in sorted(errors.items()):
            page.add(ERRORS, count, api, ErrorCode(code).name)
    page.add(WAITING, len(broker.produce.waiting), "Produce")
    page.add(WAITING, broker.fetch.waiting, "Fetch")
    page.add(WAITING, broker.fetch.waiting_followers, "FetchFollower")
    page.add(WAITING, broker.share_fetch.waiting, "ShareFetch")


def kafka_name(api: str) -> str:
    """Kafka's name of an API: list_offsets is ListOffsets."""
    return "".join(word.capitalize() for word in api.split("_"))


REQUESTS = MetricsSubject("requests", (DURATION, LONG_TURNS, REFUSED, ERRORS, WAITING), collect_requests)


OPEN = gauge("millstream_connections", "Open connections.", "listener")
ACCEPTED = counter("millstream_connections_accepted_total", "Connections accepted since the start.", "listener")
REFUSED_CONNECTIONS = counter(
    "millstream_connections_refused_total",
    "Connections refused because of a limit, by the setting of the limit.",
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
_LIMITS = ("max.connections", "max.connections.per.ip")


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
        await turns.pause()
    if node.sasl is None:
        return
    counts = node.sasl.counts
    for result in ("succeeded", "failed", "repeated", "expired"):
        for (listener_name, mechanism), count in getattr(counts, result).items():
            page.add(LOGINS, count, listener_name, mechanism, result)


CONNECTIONS = MetricsSubject(
    "connections",
    (OPEN, ACCEPTED, REFUSED_CONNECTIONS, PAUSED, PAUSES, MEMORY, MEMORY_LIMIT, LOGINS),
    collect_connections,
)
