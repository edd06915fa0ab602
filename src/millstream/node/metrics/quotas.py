"""Metrics of client quotas: who is throttled, by which quota, and how much is used of it."""

from heapq import nlargest

from millstream.common.prometheus import Page, counter, gauge
from millstream.node.metrics.observed_node import MetricsSubject, ObservedNode, TimeSlices

MOST_SERIES = 100
"""Series of each metric with the label `user`: those that were throttled most, then those that used most."""
_SCOPE = ("quota", "user", "client_id")

LIMIT = gauge(
    "millstream_quota_limit",
    "The limit of a quota that is in use: bytes per second, or percent of one core for request_percentage. user and "
    "client_id are those who share it; an empty one is not counted separately. At most 100 series: those that were "
    "throttled most.",
    *_SCOPE,
)
RATE = gauge("millstream_quota_rate", "The rate that is measured now, in the unit of the limit.", *_SCOPE)
USED = counter("millstream_quota_used_total", "Bytes, or percent of a second, that were counted.", *_SCOPE)
THROTTLES = counter("millstream_quota_throttles_total", "Responses with a throttle time.", *_SCOPE)
THROTTLED = counter("millstream_quota_throttle_seconds_total", "The sum of these throttle times.", *_SCOPE)
TRACKED = gauge("millstream_quota_clients", "Users and client ids whose usage of a quota is in memory.")
MUTED = gauge(
    "millstream_connections_muted",
    "Connections that are not read now, because the client is above its quota.",
    "listener",
)
TENANTS = gauge(
    "millstream_tenants", "Principals, and addresses of anonymous clients, with connections: they have fair turns."
)
TURN_WAITS = counter(
    "millstream_turn_waits_total", "How often a connection waited for the turns of other tenants on the event loop."
)
LOOP_TIME = counter(
    "millstream_tenant_loop_seconds_total",
    "Time of the event loop that requests of a tenant used, since it connected: a principal, or the address of clients "
    "that are not authenticated. Counted while there are several tenants. At most 20 series: those that used most.",
    "tenant",
)
_MOST_TENANTS = 20


async def collect_quotas(node: ObservedNode, page: Page, turns: TimeSlices) -> None:
    for listener in node.listeners:
        page.add(MUTED, sum(connection.is_muted for connection in listener.connections), listener.name)
        await turns.pause()
    page.add(TENANTS, node.turns.tenants)
    page.add(TURN_WAITS, node.turns.waits)
    for name, seconds in node.turns.loop_seconds(_MOST_TENANTS):
        page.add(LOOP_TIME, seconds, name)
    if node.broker is None:
        return
    quotas = node.broker.quotas
    page.add(TRACKED, quotas.tracked)
    shown = nlargest(MOST_SERIES, quotas.usages(), key=lambda row: (row[1].throttled_ms, row[1].total))
    for key, usage in shown:
        labels = key, usage.scope.user, usage.scope.client_id
        page.add(LIMIT, usage.limit, *labels)
        page.add(RATE, usage.current_rate, *labels)
        page.add(USED, usage.total, *labels)
        page.add(THROTTLES, usage.throttles, *labels)
        page.add(THROTTLED, usage.throttled_ms / 1000, *labels)
        await turns.pause()


QUOTAS = MetricsSubject(
    "quotas",
    (LIMIT, RATE, USED, THROTTLES, THROTTLED, TRACKED, MUTED, TENANTS, TURN_WAITS, LOOP_TIME),
    collect_quotas,
)
