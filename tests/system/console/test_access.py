"""Access to websockets, without a browser: the same as to requests, before anything behind is asked."""

import asyncio
import base64
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from millstream.gateway.http.access import Access
from millstream.gateway.http.configuration import Credentials
from millstream.gateway.identity.authentication import Authentication
from millstream.gateway.identity.caller import Connection
from millstream.raw_client import Cluster

PEOPLE = Credentials((("ann", "secret"),), (("robot", "token-1"),))
BASIC = "Basic " + base64.b64encode(b"ann:secret").decode()


def opened(credentials: Credentials, *, loopback: bool = True, **headers: str) -> bool:
    """Whether a websocket's handshake with these headers came through."""
    came: list[str] = []
    sent: list[dict[str, Any]] = []

    async def behind(scope: Any, receive: Any, send: Any) -> None:
        came.append(scope["type"])

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    raw = [(name.lower().encode(), value.encode()) for name, value in ({"Host": "localhost:8080"} | headers).items()]
    scope = {"type": "websocket", "path": "/console/_nicegui_ws/socket.io/", "headers": raw, "query_string": b""}
    with Cluster("127.0.0.1:1") as cluster:  # it connects at its first request, and gets none
        access = Access(behind, Authentication(Connection(cluster), credentials), loopback=loopback)
    with ThreadPoolExecutor(1) as elsewhere:  # Playwright's event loop may run in this thread
        elsewhere.submit(lambda: asyncio.run(access(scope, receive, send))).result()
    assert bool(came) != bool(sent)
    assert all(message["type"] == "websocket.close" for message in sent)
    return bool(came)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, True),
        ({"Origin": "http://localhost:8080"}, True),
        ({"Origin": "http://localhost:9999"}, False),
        ({"Origin": "http://evil.example"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": "http://[broken"}, False),
        ({"Host": "evil.example"}, False),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, False),
    ],
)
def test_on_loopback_neither_another_sites_page_nor_its_name_gets_in(headers: dict[str, str], expected: bool) -> None:
    assert opened(Credentials(), loopback=True, **headers) is expected


@pytest.mark.parametrize(
    ("authorization", "expected"),
    [(None, False), (BASIC, True), ("Bearer token-1", True), ("Bearer token-2", False), ("Basic %%%", False)],
)
def test_credentials_are_asked_of_websockets_too(authorization: str | None, expected: bool) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    assert opened(PEOPLE, loopback=True, **headers) is expected
    assert opened(PEOPLE, loopback=False, Host="gateway.example", **headers) is expected


def test_elsewhere_the_origin_must_be_the_host() -> None:
    assert opened(Credentials(), loopback=False, Host="gateway.example", Origin="https://gateway.example")
    assert not opened(Credentials(), loopback=False, Host="gateway.example", Origin="https://evil.example")
