"""`/livez`: this process answers. `/readyz`: it is up to date with the cluster."""

from collections.abc import Callable

from starlette.routing import BaseRoute

from millstream.gateway.answers import JSON
from millstream.gateway.asked import Asked
from millstream.gateway.endpoints import endpoint
from millstream.gateway.errors import error_answer

OPEN_PATHS = frozenset({"/livez", "/readyz"})
"""Answered without credentials: probes have none, and learn nothing but yes or no."""


def health_routes(trouble: Callable[[], str | None]) -> list[BaseRoute]:
    def ready(asked: Asked) -> object:
        reason = trouble()
        return error_answer(503, 503, f"not ready: {reason}") if reason else {"status": "ready"}

    return [
        endpoint("GET", "/livez", lambda asked: {"status": "live"}, media_type=JSON, at_once=True),
        endpoint("GET", "/readyz", ready, media_type=JSON, at_once=True),
    ]
