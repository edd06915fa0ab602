"""Channels: requests from one node to another, over real sockets."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from millstream.formats.protocol.schema import Message
from millstream.node.server.channel import Ask, Channel
from millstream.node.server.dispatch import Dispatcher
from millstream.node.server.listener import ConnectionLimits, Listener
from millstream.node.server.network import SocketNetwork
from millstream.node.server.request import Api, ApiVersions, Context, Response, api
from tests.waiting import TIMEOUT_SECONDS, until_async


class Server:
    """Responds to ApiVersions and Heartbeat; the test chooses the response to the latter."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.network = SocketNetwork(loop)
        self.seen: list[tuple[str, int]] = []
        self.respond: Callable[[Message], Response | Awaitable[Response]] = lambda request: {
            "error_code": request.generation_id
        }
        apis: list[Api] = [api("heartbeat", self._heartbeat)]
        versions = ApiVersions(apis, lambda: ({}, {}, 0))
        apis.append(api("api_versions", versions.handle))
        self.listener = Listener("TEST", ConnectionLimits(), self.network, loop)
        self.host, self.port = self.listener.bind("127.0.0.1", 0)
        self.listener.serve(Dispatcher(apis, loop))
        self.channel = Channel(self.host, self.port, self.network, loop, client_id="me")

    def _heartbeat(self, request: Message, context: Context) -> Any:
        self.seen.append((context.client_id, context.version))
        return self.respond(request)

    async def ask(self, number: int, timeout_s: float = 10) -> int:
        fields = {"group_id": "g", "generation_id": number, "member_id": "m"}
        response = await self.channel.request("heartbeat", fields, timeout_s=timeout_s)
        return int(response.error_code)

    def close(self) -> None:
        self.channel.close()
        self.listener.close()


def run(test: Callable[[Server], Awaitable[None]]) -> None:
    async def go() -> None:
        server = Server()
        try:
            await test(server)
        finally:
            server.close()

    asyncio.run(asyncio.wait_for(go(), TIMEOUT_SECONDS))


def test_responses_come_in_order_when_many_requests_are_in_flight() -> None:
    async def test(server: Server) -> None:
        assert await asyncio.gather(*(server.ask(number) for number in range(100))) == list(range(100))
        assert len(server.listener.connections) == 1
        assert set(server.seen) == {("me", 4)}  # the newest version that both know

    run(test)


def test_a_broken_connection_fails_what_is_in_flight_and_the_next_request_makes_a_new_one() -> None:
    async def test(server: Server) -> None:
        lost: list[bool] = []
        server.channel.on_lost = lambda: lost.append(True)
        assert await server.ask(1) == 1
        server.respond = lambda request: asyncio.get_running_loop().create_future()
        waiting = asyncio.ensure_future(server.ask(2))
        await until_async(lambda: len(server.seen) == 2)
        for connection in list(server.listener.connections):
            connection.close()
        with pytest.raises(ConnectionError):
            await waiting
        assert lost == [True]
        server.respond = lambda request: {"error_code": 3}
        assert await server.ask(3) == 3

    run(test)


def test_no_one_there_is_a_refusal_and_silence_a_timeout() -> None:
    async def test(server: Server) -> None:
        server.respond = lambda request: asyncio.get_running_loop().create_future()
        with pytest.raises(TimeoutError, match="did not respond to heartbeat within"):
            await server.ask(1, timeout_s=0.05)
        server.listener.close()
        with pytest.raises(ConnectionRefusedError):
            await server.ask(2)

    run(test)


def test_a_peer_that_talks_nonsense_is_a_connection_error() -> None:
    async def test(server: Server) -> None:
        async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await writer.drain()
            writer.close()

        other = await asyncio.start_server(nonsense, "127.0.0.1", 0, family=socket.AF_INET)
        port = other.sockets[0].getsockname()[1]
        channel = Channel("127.0.0.1", port, server.network, asyncio.get_running_loop(), client_id="me")
        with pytest.raises(ConnectionError):
            await channel.request("heartbeat", {"group_id": "g", "generation_id": 1, "member_id": "m"}, timeout_s=10)
        channel.close()
        other.close()

    run(test)


def test_a_closed_channel_refuses() -> None:
    async def test(server: Server) -> None:
        server.channel.close()
        with pytest.raises(ConnectionError, match="closed"):
            await server.ask(1)

    run(test)


def test_a_connection_that_breaks_in_the_last_step_of_a_login_is_not_kept() -> None:
    """The last step needs no response: a thread checks the one before."""

    class Login:
        logins = 0

        async def log_in(self, ask: Ask, host: str) -> float | None:
            self.logins += 1
            await ask("heartbeat", {"group_id": "g", "generation_id": 0, "member_id": "m"})
            if self.logins == 1:
                for connection in list(server_of_test[0].listener.connections):
                    connection.close()
                await until_async(lambda: broken())
            return None

    server_of_test: list[Server] = []
    links: list[Any] = []

    def broken() -> bool:
        return any(link.is_closed for link in links)

    async def test(server: Server) -> None:
        server_of_test.append(server)
        login = Login()

        class Watched(Channel):
            async def _authenticate(self, link: Any, login: Any) -> None:
                links.append(link)
                await super()._authenticate(link, login)

        loop = asyncio.get_running_loop()
        server.channel = Watched(server.host, server.port, server.network, loop, client_id="me", login=login)
        with pytest.raises(ConnectionError, match="during the login"):
            await server.ask(1)
        assert await server.ask(2) == 2
        assert login.logins == 2

    run(test)
