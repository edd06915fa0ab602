"""Metrics of the gateway: `GET /metrics`, in the format of Prometheus.

The counts are kept where things happen; here they are declared and put on a page. Like every route but the probes it
needs credentials, where the gateway has any. The metrics of brokers are on their Kafka ports (`node/metrics`).
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from starlette.responses import Response
from starlette.routing import BaseRoute

from millstream.common.prometheus import CONTENT_TYPE, Family, Page, counter, gauge
from millstream.gateway.http.audit import AuditTrail
from millstream.gateway.http.request import ApiRequest
from millstream.gateway.http.routes import Doc, endpoint, text

AUTHENTICATIONS = counter(
    "millstream_gateway_authentications_total",
    "Credentials that were checked, by method (basic, bearer, certificate, form: the sign-in page, oidc) and result: "
    "succeeded, failed, or refused because too many failures of this address wait. Credentials that the cluster checks "
    "count once in identity_cache_s, those of a file at each request.",
    "method",
    "result",
)
SESSIONS = gauge("millstream_gateway_console_sessions", "Users who are signed in to the console.")
CALLERS = gauge(
    "millstream_gateway_callers", "Callers with an open connection of their own to the cluster (pass-through)."
)
RESPONSES = counter("millstream_gateway_responses_total", "Responses by class of status: 2xx, 3xx, 4xx, 5xx.", "status")
FORBIDDEN = counter(
    "millstream_gateway_forbidden_total",
    "Responses with status 403: a missing ACL or role, or a page of another site.",
)
READY = gauge("millstream_gateway_ready", "1 if the gateway is up to date with the cluster, as /readyz says; else 0.")
CERTIFICATE_EXPIRES = gauge(
    "millstream_gateway_certificate_expires_in_seconds",
    "Seconds until the gateway's certificate, or one of its chain, expires. Negative: it has expired.",
)
AUDIT_EVENTS = counter(
    "millstream_gateway_audit_events_total",
    "Audit events of the gateway, by result: reported to a broker; log_only, because the cluster does not take them "
    "(millstream.audit.gateways); dropped, because too many waited for a broker.",
    "result",
)
FAMILIES = (AUTHENTICATIONS, SESSIONS, CALLERS, RESPONSES, FORBIDDEN, READY, CERTIFICATE_EXPIRES, AUDIT_EVENTS)


@dataclass(slots=True)
class ResponseCounts:
    """Counted by the access check, which sees all responses. Used in the event loop."""

    by_class: Counter[str] = field(default_factory=Counter)
    forbidden: int = 0

    def note(self, status: int) -> None:
        self.by_class[f"{status // 100}xx"] += 1
        self.forbidden += status == 403


@dataclass(frozen=True, slots=True)
class GatewayMetrics:
    authentications: Callable[[], Iterable[tuple[tuple[str, str], int]]]
    sessions: Callable[[], int]
    callers: Callable[[], int]
    responses: ResponseCounts
    is_ready: Callable[[], bool]
    certificate_ends_at: Callable[[], float | None] = lambda: None
    """Seconds since 1970; None without a certificate."""
    trail: AuditTrail = field(default_factory=AuditTrail)

    def page(self) -> bytes:
        page = Page()
        for (method, result), count in sorted(self.authentications()):
            page.add(AUTHENTICATIONS, count, method, result)
        page.add(SESSIONS, self.sessions())
        page.add(CALLERS, self.callers())
        for status, count in sorted(self.responses.by_class.items()):
            page.add(RESPONSES, count, status)
        page.add(FORBIDDEN, self.responses.forbidden)
        page.add(READY, int(self.is_ready()))
        ends_at = self.certificate_ends_at()
        if ends_at is not None:
            page.add(CERTIFICATE_EXPIRES, ends_at - time.time())
        trail = self.trail
        for result, count in (("dropped", trail.dropped), ("log_only", trail.log_only), ("reported", trail.reported)):
            page.add(AUDIT_EVENTS, count, result)
        return b"".join(page.chunks())


_DOC = Doc(
    tag="Health",
    summary="Metrics of the gateway for Prometheus",
    response=text("Prometheus' text format."),
    response_type="text/plain",
)


def metrics_routes(metrics: GatewayMetrics) -> list[BaseRoute]:
    def serve(req: ApiRequest) -> Response:
        return Response(metrics.page(), headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"})

    return [endpoint("GET", "/metrics", serve, doc=_DOC, at_once=True)]


def markdown() -> str:
    """The table of docs/metrics.md."""
    lines: list[str] = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    lines += [_row(family) for family in FAMILIES]
    return "\n".join(lines) + "\n"


def _row(family: Family) -> str:
    labels = ", ".join(f"`{label}`" for label in family.labels)
    return f"| `{family.name}` | {family.kind} | {labels} | {family.help} |"


if __name__ == "__main__":
    print(markdown())
