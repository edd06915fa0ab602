"""`/livez`: this process answers. `/readyz`: it is up to date with the cluster."""

from collections.abc import Callable

from starlette.routing import BaseRoute

from millstream.gateway.http.asked import Asked
from millstream.gateway.http.described import Doc, record, text
from millstream.gateway.http.endpoints import endpoint
from millstream.gateway.http.errors import BadRequestError

OPEN_PATHS = frozenset({"/livez", "/readyz"})
"""Answered without credentials: probes have none, and learn nothing but yes or no."""


def health_routes(trouble: Callable[[], str | None]) -> list[BaseRoute]:
    def ready(asked: Asked) -> object:
        reason = trouble()
        if reason:
            raise BadRequestError(503, f"not ready: {reason}")
        return {"status": "ready"}

    def doc(summary: str) -> Doc:
        return Doc(tag="Health", summary=summary, answer=record({"status": text("It is so.")}))

    return [
        endpoint(
            "GET", "/livez", lambda asked: {"status": "live"}, doc=doc("Whether this process answers"), at_once=True
        ),
        endpoint("GET", "/readyz", ready, doc=doc("Whether this gateway is up to date with the cluster"), at_once=True),
    ]
