"""The console below /console: requests whose client closes the connection early."""

import asyncio
from typing import Any

import pytest
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millstream.console.mounting import serve_or_leave


async def _unchanged(request: Any, call_next: Any) -> Any:
    return await call_next(request)


async def _wait_for_disconnect(scope: Scope, receive: Receive, send: Send) -> None:
    """As a streaming response does when the client leaves before its first part."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _return_at_once(scope: Scope, receive: Receive, send: Send) -> None:
    pass


def _serve(app: ASGIApp) -> list[Message]:
    """Calls the app behind the kind of middleware that NiceGUI has; returns what was sent."""
    incoming: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}, {"type": "http.disconnect"}]
    sent: list[Message] = []

    async def receive() -> Message:
        return incoming.pop(0) if len(incoming) > 1 else incoming[0]

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/console", "query_string": b"", "headers": []}
    asyncio.run(serve_or_leave(BaseHTTPMiddleware(app, _unchanged), scope, receive, send))
    return sent


def test_a_client_that_leaves_before_the_response_causes_no_error() -> None:
    assert _serve(_wait_for_disconnect) == []


def test_an_app_that_sends_no_response_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="No response returned"):
        _serve(_return_at_once)
