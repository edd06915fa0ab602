"""Requests: how many, how long they took, which wait for something, what was refused.

Connections, listener by listener: how many, which were refused, which are held up.
"""

from millstream.formats.model.errors import ErrorCode
from millstream.node.metrics.exposition import Page, counter, gauge, histogram
from millstream.node.metrics.observed_node import ObservedNode, Subject, Turns
from millstream.node.server.dispatch import Dispatcher

DURATION = histogram(
    "millstream_request_duration_seconds",
    "From a whole request to its answer, waiting included (long polls, acks=all, fsync). Its _count is the number of "
    "requests. server is the role that answered, api Kafka's name; FetchFollower is a Fetch of another broker.",
    "server",
    "api",
)
REFUSED = counter(
    "millstream_requests_refused_total",
    "Requests that ended their connection: not well formed, not offered in this version, or acks=0 that failed.",
    "server",
)
ERRORS = counter(
    "millstream_partition_errors_total",
    "Partitions in Produce and Fetch requests that were answered with an error, by Kafka's name of it.",
    "api",
    "error",
)
WAITING = gauge(
    "millstream_purgatory_requests",
    "Requests that wait: Produce for replicas or the disk, fetches for something to read.",
    "api",
)
LONG_TURNS = histogram(
    "millstream_event_loop_long_turn_seconds",
    "Turns of the event loop above 50 ms that worked on a request of this API: nothing else was served meanwhile. The "
    "log names the peer.",
    "server",
    "api",
)


async def collect_requests(node: ObservedNode, page: Page, turns: Turns) -> None:
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
    """list_offsets is ListOffsets to everybody else."""
    return "".join(word.capitalize() for word in api.split("_"))


REQUESTS = Subject("requests", (DURATION, LONG_TURNS, REFUSED, ERRORS, WAITING), collect_requests)


OPEN = gauge("millstream_connections", "Open connections.", "listener")
ACCEPTED = counter("millstream_connections_accepted_total", "Connections taken since the start.", "listener")
REFUSED_CONNECTIONS = counter(
    "millstream_connections_refused_total",
    "Connections closed at once because of a limit; setting names it.",
    "listener",
    "setting",
)
PAUSED = gauge(
    "millstream_connections_paused",
    "Connections not read for now: too many answers wait, the peer does not take them, or there is no memory for more.",
    "listener",
)
PAUSES = counter("millstream_connection_pauses_total", "How often a connection was held up like that.", "listener")
MEMORY = gauge(
    "millstream_request_memory_bytes",
    "Memory claimed by requests that have arrived in part (queued.max.request.bytes).",
    "listener",
)
MEMORY_LIMIT = gauge("millstream_request_memory_limit_bytes", "How much they may claim.", "listener")
_LIMITS = ("max.connections", "max.connections.per.ip")


async def collect_connections(node: ObservedNode, page: Page, turns: Turns) -> None:
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


CONNECTIONS = Subject(
    "connections", (OPEN, ACCEPTED, REFUSED_CONNECTIONS, PAUSED, PAUSES, MEMORY, MEMORY_LIMIT), collect_connections
)
