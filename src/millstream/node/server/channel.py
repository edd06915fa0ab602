"""Requests from this node to another: one connection, made at the first request, and again after it broke.

Many requests may be in flight; responses come in their order. Every failure is an OSError: ConnectionRefusedError when
no process listens at the address, TimeoutError when no response came in time, ConnectionError when the connection
broke. After the last one it is not known whether the other node received the request.

With a login, a connection is authenticated by SASL before its first request. If the session has an end, a new
connection is made in time, and the old one is closed when its requests are done.
"""

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from millstream.formats.protocol.primitives import Cursor, MalformedMessage, read_unsigned_varint
from millstream.formats.protocol.schema import Message, request_schema, response_schema
from millstream.node.server.network import Network, Transport

_HEAD = struct.Struct(">ihhih")
_SIZE = struct.Struct(">i")
_API_VERSIONS_KEY = 18
_MAX_RESPONSE_BYTES = 1 << 30
_READ_BYTES = 256 << 10
_log = logging.getLogger("millstream.net")


Ask = Callable[[str, Mapping[str, Any]], Awaitable[Message]]
"""Sends a request of an API on a new connection; returns the response."""
_RENEW_AT = 0.85
"""The part of a session's lifetime after which a new connection takes its place."""


class Login(Protocol):
    """How this node authenticates to another node by SASL (`node/security/sasl_client.py`)."""

    async def log_in(self, ask: Ask, host: str) -> float | None:
        """Authenticates to this host; returns the lifetime of the session in seconds, if it has an end. Raises
        ConnectionError."""
        ...


class Channel:
    def __init__(
        self,
        host: str,
        port: int,
        network: Network,
        loop: asyncio.AbstractEventLoop,
        *,
        client_id: str,
        login: Login | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self._network = network
        self._loop = loop
        self._client_id = client_id.encode()
        self._login = login
        self._link: _Link | None = None
        self._connecting: asyncio.Task[_Link] | None = None
        self._closed = False
        self.on_lost: Callable[[], None] = lambda: None
        """Called when an established connection ends, except by `close`."""
        self.software: Callable[[], tuple[str, str]] = lambda: ("millstream", "node")
        """Name and version of this node's software, in the first request of each connection."""

    async def request(
        self, api: str, fields: Mapping[str, Any], *, timeout_s: float, version: int | None = None
    ) -> Message:
        """Sends a request, by default in the newest version that both nodes support; returns the response."""
        try:
            async with asyncio.timeout(timeout_s):
                link = await self._connected()
                schema = request_schema(api)
                if version is None:
                    version = link.best_version(schema.api_key, schema.versions.low, schema.versions.high)
                body = bytearray()
                schema.write(body, fields, version)
                flexible = schema.is_flexible(version)
                frame = await link.request(schema.api_key, version, flexible, self._client_id, body)
        except TimeoutError:
            self._drop()  # later responses would wait behind the late one
            raise TimeoutError(f"{self.host}:{self.port} did not respond to {api} within {timeout_s:g} s") from None
        cursor = Cursor(frame)
        try:
            # The response header of ApiVersions never has tagged fields.
            _skip_response_header(cursor, api != "api_versions" and response_schema(api).is_flexible(version))
            return response_schema(api).read(cursor, version)
        except MalformedMessage as error:
            self._drop()
            raise ConnectionError(f"{self.host}:{self.port} sent a malformed response to {api}: {error}") from None

    async def exchange(self, api: str, version: int, body: bytearray, *, timeout_s: float) -> tuple[bytearray, int]:
        """Sends an encoded request body; returns the frame of the response, and the position of its body."""
        schema = request_schema(api)
        try:
            async with asyncio.timeout(timeout_s):
                link = await self._connected()
                flexible = schema.is_flexible(version)
                frame = await link.request(schema.api_key, version, flexible, self._client_id, body)
        except TimeoutError:
            self._drop()
            raise TimeoutError(f"{self.host}:{self.port} did not respond to {api} within {timeout_s:g} s") from None
        return frame, self.body_position(api, version, frame)

    def body_position(self, api: str, version: int, frame: bytearray) -> int:
        """The position of the body in a response frame."""
        if len(frame) > 4 and not frame[4] and response_schema(api).is_flexible(version):
            return 5  # no tagged fields: the usual case
        cursor = Cursor(frame)
        try:
            _skip_response_header(cursor, response_schema(api).is_flexible(version))
        except MalformedMessage as error:
            self._drop()
            raise ConnectionError(f"{self.host}:{self.port} sent a malformed response to {api}: {error}") from None
        return cursor.position

    def begin(self, api: str, version: int, body: bytearray) -> "asyncio.Future[bytearray] | None":
        """Sends at once if there is a connection, else returns None. The future has no timeout.

        For fetchers, which send all the time: they watch the time themselves, and read with `body_position`.
        """
        link = self._current()
        if link is None:
            return None
        schema = request_schema(api)
        return link.send(schema.api_key, version, schema.is_flexible(version), self._client_id, body)

    async def best_version(self, api: str, *, timeout_s: float) -> int:
        """The newest version of an API that both nodes support."""
        schema = request_schema(api)
        try:
            async with asyncio.timeout(timeout_s):
                link = await self._connected()
        except TimeoutError:
            self._drop()
            raise TimeoutError(f"{self.host}:{self.port} cannot be reached within {timeout_s:g} s") from None
        return link.best_version(schema.api_key, schema.versions.low, schema.versions.high)

    async def _connected(self) -> "_Link":
        if self._closed:
            raise ConnectionError("the channel is closed")
        link = self._current()
        if link is not None:
            return link
        if self._connecting is None:
            self._connecting = asyncio.ensure_future(self._connect())
            self._connecting.add_done_callback(self._connected_or_not)
        connecting = self._connecting
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if connecting.cancelled() and (task is None or not task.cancelling()):
                # Another waiter's timeout cancelled the shared connect; this task was not cancelled.
                raise ConnectionError(f"{self.host}:{self.port} could not be reached in time") from None
            raise

    def _current(self) -> "_Link | None":
        """The connection, unless its session ends soon: then the next request makes a new one."""
        link = self._link
        if link is not None and link.renew_at is not None and self._loop.time() >= link.renew_at:
            self._link = None
            link.retire()
            return None
        return link

    async def _connect(self) -> "_Link":
        link = _Link(await self._network.connect(self.host, self.port), self._loop)
        try:
            schema = request_schema("api_versions")
            body = bytearray()
            name, software_version = self.software()
            schema.write(body, {"client_software_name": name, "client_software_version": software_version}, 3)
            frame = await link.request(_API_VERSIONS_KEY, 3, True, self._client_id, body)
            cursor = Cursor(frame)
            cursor.position += 4  # the response header of ApiVersions never has tagged fields
            response = response_schema("api_versions").read(cursor, 3)
            link.versions = {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}
            if self._login is not None:
                await self._authenticate(link, self._login)
        except MalformedMessage as error:
            link.close()
            raise ConnectionError(f"{self.host}:{self.port} does not use the Kafka protocol: {error}") from None
        except BaseException:
            link.close()
            raise
        if self._closed:
            link.close()
            raise ConnectionError("the channel is closed")
        if link.is_closed:
            # It broke after the last response of the login, while a thread checked it: `on_lost` was not set.
            raise ConnectionError(f"{self.host}:{self.port} closed the connection during the login")
        link.on_lost = lambda: self._lost(link)
        self._link = link
        return link

    async def _authenticate(self, link: "_Link", login: Login) -> None:
        async def ask(api: str, fields: Mapping[str, Any]) -> Message:
            schema = request_schema(api)
            version = link.best_version(schema.api_key, schema.versions.low, schema.versions.high)
            body = bytearray()
            schema.write(body, fields, version)
            frame = await link.request(schema.api_key, version, schema.is_flexible(version), self._client_id, body)
            cursor = Cursor(frame)
            _skip_response_header(cursor, response_schema(api).is_flexible(version))
            return response_schema(api).read(cursor, version)

        try:
            lifetime_s = await login.log_in(ask, self.host)
        except ConnectionError as error:
            _log.warning("login_failed node=%s:%d error=%s", self.host, self.port, error)
            raise
        if lifetime_s is not None:
            link.renew_at = self._loop.time() + lifetime_s * _RENEW_AT

    def _connected_or_not(self, task: "asyncio.Task[_Link]") -> None:
        if self._connecting is task:
            self._connecting = None
        if not task.cancelled():
            task.exception()  # marks it as seen: waiters get it from the task, and there may be none left

    @property
    def is_connected(self) -> bool:
        return self._link is not None

    def _lost(self, link: "_Link") -> None:
        if self._link is link:
            self._link = None
            if not self._closed:
                self.on_lost()

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()

    def close(self) -> None:
        self._closed = True
        self._drop()


class _Link:
    """One connection of a channel."""

    def __init__(self, transport: Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self.versions: dict[int, tuple[int, int]] = {}
        self.on_lost: Callable[[], None] = lambda: None
        self._next_id = 0
        self._waiting: deque[tuple[int, asyncio.Future[bytearray]]] = deque()
        self._unsent: deque[memoryview] = deque()
        self._size = bytearray(4)
        self._frame: bytearray | None = None
        self._filled = 0
        self._closed = False
        self.renew_at: float | None = None
        self._retired = False
        transport.watch_readable(self._readable)

    @property
    def is_closed(self) -> bool:
        return self._closed

    def best_version(self, api_key: int, low: int, high: int) -> int:
        theirs = self.versions.get(api_key)
        if theirs is None or theirs[1] < low or theirs[0] > high:
            raise ConnectionError(f"the other node does not support API {api_key} in a version that this node supports")
        return min(high, theirs[1])

    async def request(self, api_key: int, version: int, flexible: bool, client_id: bytes, body: bytearray) -> bytearray:
        """Sends a request; returns the frame of the response without its size."""
        return await self.send(api_key, version, flexible, client_id, body)

    def send(
        self, api_key: int, version: int, flexible: bool, client_id: bytes, body: bytearray
    ) -> "asyncio.Future[bytearray]":
        if self._closed:
            raise ConnectionError("the connection is closed")
        self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        tags = b"\0" if flexible else b""
        size = _HEAD.size - 4 + len(client_id) + len(tags) + len(body)
        frame = _HEAD.pack(size, api_key, version, self._next_id, len(client_id)) + client_id + tags + body
        response: asyncio.Future[bytearray] = self._loop.create_future()
        self._waiting.append((self._next_id, response))
        self._send(frame)
        return response

    def _send(self, frame: bytes) -> None:
        idle = not self._unsent
        self._unsent.append(memoryview(frame))
        if idle:
            self._writable()

    def _writable(self) -> None:
        try:
            while self._unsent:
                piece = self._unsent[0]
                sent = self._transport.send(piece)
                if sent < len(piece):
                    self._unsent[0] = piece[sent:]
                else:
                    self._unsent.popleft()
        except BlockingIOError:
            self._transport.watch_writable(self._writable)
            return
        except OSError as error:
            self._fail(error)
            return
        self._transport.watch_writable(None)

    def _readable(self) -> None:
        left = _READ_BYTES
        try:
            while not self._closed and left > 0:
                target = memoryview(self._frame if self._frame is not None else self._size)
                count = self._transport.receive_into(target[self._filled : self._filled + left])
                if count == 0:
                    raise ConnectionResetError("the other node closed the connection")
                left -= count
                self._filled += count
                if self._filled == len(target):
                    self._take()
                    if not self._waiting:
                        return  # no request waits; unexpected bytes wake the reader again
        except BlockingIOError:
            pass
        except OSError as error:
            self._fail(error)

    def _take(self) -> None:
        self._filled = 0
        if self._frame is None:
            (size,) = _SIZE.unpack(self._size)
            if not 4 <= size <= _MAX_RESPONSE_BYTES:
                raise ConnectionError(
                    f"the other node announced a response of {size} bytes; the limit is {_MAX_RESPONSE_BYTES}"
                )
            self._frame = bytearray(size)
            return
        frame, self._frame = self._frame, None
        (correlation_id,) = _SIZE.unpack_from(frame)
        if not self._waiting or self._waiting[0][0] != correlation_id:
            raise ConnectionError(f"a response to request {correlation_id}; the next expected response is another")
        _, response = self._waiting.popleft()
        if not response.done():
            response.set_result(frame)
        if self._retired and not self._waiting:
            self.close()

    def retire(self) -> None:
        """Closes the connection after the responses to the requests that were sent."""
        self._retired = True
        self.on_lost = lambda: None
        if not self._waiting:
            self.close()

    def _fail(self, error: OSError) -> None:
        lost = not self._closed
        self.close(error)
        if lost:
            self.on_lost()

    def close(self, error: OSError | None = None) -> None:
        if self._closed:
            return
        self._closed = True
        self._transport.close()
        self._unsent.clear()
        waiting, self._waiting = self._waiting, deque()
        for _, response in waiting:
            if not response.done():
                response.set_exception(error or ConnectionError("the connection was closed"))


def _skip_response_header(cursor: Cursor, flexible: bool) -> None:
    cursor.position += 4
    if flexible:
        for _ in range(read_unsigned_varint(cursor)):
            read_unsigned_varint(cursor)
            cursor.position += read_unsigned_varint(cursor)
