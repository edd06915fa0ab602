"""HTTP on the Kafka ports of a node: /metrics, /livez, /readyz, /syncz, /stopz; and the list of all metrics.

A page is made in short time slices, between which the event loop serves others. Concurrent requests for the same page
share one page.
"""

import asyncio
import logging
import zlib
from collections.abc import Callable, Coroutine
from typing import Any

from millstream.common.prometheus import CONTENT_TYPE, Family, Page, gauge
from millstream.config.exposure import is_loopback
from millstream.formats.model.access_control import CLUSTER_NAME, AclOperation, AclResourceType
from millstream.node.metrics.clients import CLIENTS
from millstream.node.metrics.cluster import CLUSTER, QUORUM
from millstream.node.metrics.groups import GROUP_SUBJECT
from millstream.node.metrics.mirroring import MIRRORING
from millstream.node.metrics.observed_node import (
    MetricsSubject,
    ObservedNode,
    TimeSlices,
    why_not_in_sync,
    why_not_ready,
    why_not_safe_to_stop,
)
from millstream.node.metrics.partitions import COMPACTION, PARTITIONS, REPLICATION, TOPICS
from millstream.node.metrics.process import PROCESS
from millstream.node.metrics.quotas import QUOTAS
from millstream.node.metrics.requests import CONNECTIONS, REQUESTS
from millstream.node.metrics.tier import TIER
from millstream.node.server.authorization import Authorizer
from millstream.node.server.plain_http import HttpRequest, HttpResponse
from millstream.node.server.service import Peer

SUBJECTS: tuple[MetricsSubject, ...] = (
    PROCESS,
    REQUESTS,
    CONNECTIONS,
    QUOTAS,
    CLIENTS,
    TOPICS,
    PARTITIONS,
    REPLICATION,
    CLUSTER,
    QUORUM,
    GROUP_SUBJECT,
    COMPACTION,
    TIER,
    MIRRORING,
)

SUCCESS = gauge(
    "millstream_scrape_success",
    "1 if the metrics of a subject were collected; 0 if this failed: see the node's log.",
    "subject",
)
"""On every page, for each subject."""


def families() -> list[Family]:
    return [SUCCESS, *(family for subject in SUBJECTS for family in subject.families)]


def markdown() -> str:
    """The table of docs/metrics.md."""
    lines = []
    for title, found in [("on every page", (SUCCESS,)), *((f"`{each.name}`", each.families) for each in SUBJECTS)]:
        lines += [f"### {title}", "", "| metric | type | labels | meaning |", "|---|---|---|---|"]
        for family in found:
            labels = ", ".join(f"`{label}`" for label in family.labels)
            lines.append(f"| `{family.name}` | {family.kind} | {labels} | {family.help} |")
        lines.append("")
    return "\n".join(lines)


_log = logging.getLogger("millstream.metrics")
_CHOICE = "collect[]"
_GZIP = "gzip"
_GZIP_LEVEL, _GZIP_FORMAT = 1, 31
"""The fastest level: pages are similar lines. The format is zlib's number for gzip."""
_HELP = (
    "This is the Kafka port of a Millstream node. Over HTTP it serves:\n"
    "  /metrics  metrics for Prometheus; ?collect[]=NAME (repeatable) selects subjects; without it all but partitions\n"
    f"            (names: {', '.join(subject.name for subject in SUBJECTS)})\n"
    "  /livez    liveness\n"
    "  /readyz   readiness, or the reason why the node is not ready\n"
    "  /syncz    ready, and all replicas here are in sync: the next node of a rolling restart can be stopped\n"
    "  /stopz    this node can be stopped: all partitions can be written without it\n"
)
_NO_METRICS = (
    "clients of this listener log in by SASL, which is not possible over HTTP: read /metrics on a listener without "
    "SASL, for example the one between brokers, with a client certificate. Or log in with Kafka's protocol, then send "
    "this request on the same connection: a user that may DESCRIBE the cluster gets the metrics\n"
)
_OTHER_HOST = (
    "the Host {} is not this machine, and this listener is for this machine only: use http://localhost, or a listener "
    "that other machines can reach\n"
)
Deliver = Callable[[HttpResponse], None]
Question = Callable[[ObservedNode, TimeSlices], Coroutine[Any, Any, str | None]]


class Probes:
    """The endpoints of a listener with SASL: liveness and readiness for all; metrics for clients that have logged in on
    the connection (the console and `millstream doctor` do), and may describe the cluster."""

    def __init__(self, endpoints: "NodeEndpoints") -> None:
        self._endpoints = endpoints

    def respond(self, request: HttpRequest, deliver: Deliver) -> None:
        if request.path == "/metrics" and not self._endpoints.may_observe(request.peer):
            deliver(HttpResponse(403, _NO_METRICS.encode()))
        else:
            self._endpoints.respond(request, deliver)


class LocalEndpoints:
    """The endpoints of a listener on loopback: metrics for names of this machine only. A web page that points its own
    name at 127.0.0.1 (DNS rebinding) could read them otherwise; programs that send no Host are no web pages."""

    def __init__(self, endpoints: "NodeEndpoints") -> None:
        self._endpoints = endpoints

    def respond(self, request: HttpRequest, deliver: Deliver) -> None:
        if request.path == "/metrics" and request.host is not None and not is_loopback(request.host):
            deliver(HttpResponse(421, _OTHER_HOST.format(_shown(request.host)).encode()))
        else:
            self._endpoints.respond(request, deliver)


class NodeEndpoints:
    def __init__(self, node: ObservedNode) -> None:
        self._node = node
        environment = node.environment
        self._loop = environment.loop
        self._now = environment.stopwatch or environment.loop.time
        self._under_way: dict[tuple[str, ...], asyncio.Task[HttpResponse]] = {}
        self.authorizer: Authorizer | None = None
        """None until it is known: then no client may read metrics on a listener with SASL."""

    def may_observe(self, peer: Peer | None) -> bool:
        """Whether a client of a listener with SASL has logged in, and may read metrics."""
        if peer is None or self.authorizer is None:
            return False
        if peer.authentication is not None and not peer.authentication.is_current:
            return False
        return self.authorizer.sees(peer, AclOperation.DESCRIBE, AclResourceType.CLUSTER, CLUSTER_NAME)

    def respond(self, request: HttpRequest, deliver: Deliver) -> None:
        match request.path:
            case "/metrics":
                self._metrics(request.query, request.accepts_gzip, deliver)
            case "/livez":
                deliver(HttpResponse(200, b"ok\n"))
            case "/readyz":
                reason = why_not_ready(self._node)
                deliver(HttpResponse(200, b"ok\n") if reason is None else HttpResponse(503, f"{reason}\n".encode()))
            case "/syncz":
                self._ask(request.path, why_not_in_sync, deliver)
            case "/stopz":
                self._ask(request.path, why_not_safe_to_stop, deliver)
            case _:
                deliver(HttpResponse(404, f"not found: {_shown(request.path)}\n\n{_HELP}".encode()))

    def _ask(self, path: str, question: Question, deliver: Deliver) -> None:
        """Many requests for the same are one: the partitions are looked through once."""

        async def respond() -> HttpResponse:
            reason = await question(self._node, TimeSlices(self._now))
            return HttpResponse(200, b"ok\n") if reason is None else HttpResponse(503, f"{reason}\n".encode())

        self._once((path,), respond, deliver)

    def close(self) -> None:
        for task in self._under_way.values():
            task.cancel()

    def _metrics(self, query: dict[str, list[str]], accepts_gzip: bool, deliver: Deliver) -> None:
        wanted = query.get(_CHOICE, [])
        known = {subject.name: subject for subject in SUBJECTS}
        unknown = [_shown(name) for name in wanted if name not in known] + [
            _shown(key) for key in sorted(query.keys() - {_CHOICE})
        ]
        if unknown:
            deliver(HttpResponse(400, f"unknown: {', '.join(unknown)}\n\n{_HELP}".encode()))
            return
        chosen = tuple(name for name, subject in known.items() if (name in wanted if wanted else subject.is_default))
        key = (*chosen, _GZIP) if accepts_gzip else chosen
        self._once(key, lambda: self._page([known[name] for name in chosen], accepts_gzip), deliver)

    def _once(
        self, key: tuple[str, ...], work: Callable[[], Coroutine[Any, Any, HttpResponse]], deliver: Deliver
    ) -> None:
        task = self._under_way.get(key)
        if task is None:
            task = self._under_way[key] = asyncio.ensure_future(work(), loop=self._loop)
            task.add_done_callback(lambda done: self._under_way.pop(key, None))
        task.add_done_callback(lambda done: None if done.cancelled() else deliver(done.result()))

    async def _page(self, subjects: list[MetricsSubject], accepts_gzip: bool) -> HttpResponse:
        page, turns = Page(), TimeSlices(self._now)
        for subject in subjects:
            try:
                await subject.collect(self._node, page, turns)
            except Exception:
                # A failed subject must not hide the others, and must be visible.
                _log.exception("metrics_failed subject=%s", subject.name)
                page.add(SUCCESS, 0, subject.name)
            else:
                page.add(SUCCESS, 1, subject.name)
        chunks = []
        packer = zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP_FORMAT) if accepts_gzip else None
        for chunk in page.chunks():
            chunks.append(chunk if packer is None else packer.compress(chunk))
            await turns.pause()
        if packer is None:
            return HttpResponse(200, b"".join(chunks), CONTENT_TYPE)
        return HttpResponse(200, b"".join((*chunks, packer.flush())), CONTENT_TYPE, _GZIP)


def _shown(text: str) -> str:
    """Text of a request for a message: shortened, without control characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:100])
