"""Connections, listener by listener: how many, which were refused, which are held up."""

from millstream.node.metrics.exposition import Page, counter, gauge
from millstream.node.metrics.subject import ObservedNode, Subject, Turns

OPEN = gauge("millstream_connections", "Open connections.", "listener")
ACCEPTED = counter("millstream_connections_accepted_total", "Connections taken since the start.", "listener")
REFUSED = counter(
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


async def collect(node: ObservedNode, page: Page, turns: Turns) -> None:
    for listener in node.listeners:
        name = listener.name
        page.add(OPEN, len(listener.connections), name)
        page.add(ACCEPTED, listener.accepted, name)
        for setting in _LIMITS:
            page.add(REFUSED, listener.refused[setting], name, setting)
        page.add(PAUSED, sum(connection.is_paused for connection in listener.connections), name)
        page.add(PAUSES, listener.pauses, name)
        page.add(MEMORY, listener.memory.used_bytes, name)
        page.add(MEMORY_LIMIT, listener.limits.request_memory_bytes, name)
        await turns.pause()


CONNECTIONS = Subject("connections", (OPEN, ACCEPTED, REFUSED, PAUSED, PAUSES, MEMORY, MEMORY_LIMIT), collect)
