"""Opens connections (TCP, TLS, API versions, SASL) and keeps idle ones for reuse.

A thread gets a new connection if none is idle, so a fetch that waits for records blocks no other request.
"""

import os
import select
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from millstream.common.pacing import leave_pacing_out_within_machine
from millstream.formats.protocol.schema import Message
from millstream.raw_client.connection import Connection
from millstream.raw_client.deadline import Deadline
from millstream.raw_client.errors import ConnectionLostError, SetupError, WireError
from millstream.raw_client.model import Address
from millstream.raw_client.security import authenticate, make_context
from millstream.raw_client.settings import WireSettings


class Connector:
    def __init__(self, settings: WireSettings) -> None:
        self.settings = settings
        self._tls = None if settings.tls is None else make_context(settings.tls)

    def open(self, address: Address, timeout_s: float) -> Connection:
        """Opens a connection that is ready for requests."""
        settings = self.settings
        opened = self._connect(address, min(timeout_s, settings.connect_timeout_s))
        try:
            secured = opened if self._tls is None else self._secure(self._tls, opened, address)
        except BaseException:
            opened.close()
            raise
        connection = Connection(secured, address, settings.client_id)
        try:
            connection.read_versions(timeout_s)
            if settings.sasl is not None:
                authenticate(connection, settings.sasl, timeout_s)
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect(self, address: Address, timeout_s: float) -> socket.socket:
        settings = self.settings
        try:
            opened = socket.create_connection(address, timeout_s)
        except OSError as error:
            late = isinstance(error, TimeoutError)
            reason = "no response to the connection attempt" if late else (error.strerror or str(error)).lower()
            raise ConnectionLostError(str(address), reason) from error
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        leave_pacing_out_within_machine(opened)
        if settings.keep_alive:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if settings.send_buffer_bytes > 0:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.send_buffer_bytes)
        if settings.receive_buffer_bytes > 0:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.receive_buffer_bytes)
        return opened

    def _secure(self, context: ssl.SSLContext, opened: socket.socket, address: Address) -> ssl.SSLSocket:
        try:
            return context.wrap_socket(opened, server_hostname=address.host)
        except ssl.SSLCertVerificationError as error:
            raise SetupError(
                f"{address}: its certificate is not trusted: {error.verify_message.rstrip('.')}:"
                " set ssl.truststore.location (ssl.ca.location), or use an address that is in the certificate"
            ) from error
        except ssl.SSLError as error:
            if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
                raise SetupError(
                    f"{address} does not use TLS: use another port, or security.protocol PLAINTEXT or SASL_PLAINTEXT"
                ) from error
            closed = isinstance(error, ssl.SSLEOFError)
            why = "closed in the handshake: does this port use TLS?" if closed else f"no TLS: {error.reason}"
            raise ConnectionLostError(str(address), why, mismatch=closed) from error
        except OSError as error:
            late = isinstance(error, TimeoutError)
            reason = "no response to the TLS handshake" if late else f"no TLS: {error.strerror or error}"
            raise ConnectionLostError(str(address), reason, late=late) from error


_IDLE_PER_BROKER = 8


class ConnectionPool:
    def __init__(self, opener: Connector) -> None:
        self._opener = opener
        self._lock = threading.Lock()
        self._idle: dict[Address, list[Connection]] = {}
        self._closed = False
        self._process = os.getpid()

    @contextmanager
    def borrow(self, address: Address, timeout_s: float) -> Iterator[Connection]:
        """A connection for the caller alone. Returned to the pool if it has no requests in flight, otherwise closed."""
        connection = self._take(address) or self._opener.open(address, timeout_s)
        try:
            yield connection
        except ConnectionLostError:
            # Other idle connections are most likely lost too: a broker that restarts loses all of them.
            self.forget(address)
            raise
        finally:
            self._give_back(connection)

    def call(
        self, address: Address, api: str, fields: Mapping[str, Any], deadline: Deadline, at_most: int | None = None
    ) -> Message:
        """Sends a request on a free connection and waits for the response."""
        wait_s = self.wait_s(deadline, fields.get("timeout_ms", 0))
        with self.borrow(address, wait_s) as connection:
            return connection.ask(api, fields, wait_s, at_most=at_most)

    def wait_s(self, deadline: Deadline, own_wait_ms: int = 0) -> float:
        """The timeout for a response that the broker may delay by `own_wait_ms`."""
        return min(deadline.left_s, self._opener.settings.request_timeout_s + own_wait_ms / 1000)

    def forget(self, address: Address) -> None:
        """Closes the idle connections to a broker."""
        with self._lock:
            waiting = self._idle.pop(address, [])
        for each in waiting:
            each.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            addresses = list(self._idle)
        for address in addresses:
            self.forget(address)

    def _take(self, address: Address) -> Connection | None:
        with self._lock:
            if self._closed:
                raise WireError("this Cluster is closed: create a new one")
            if self._process != os.getpid():  # a forked child must not use the connections of its parent
                self._idle, self._process = {}, os.getpid()
            waiting = self._idle.get(address, [])
            while waiting:
                connection = waiting.pop()
                if not connection.expired and not _has_ended(connection):
                    return connection
                connection.close()
        return None

    def _give_back(self, connection: Connection) -> None:
        with self._lock:
            waiting = self._idle.setdefault(connection.address, [])
            if connection.idle and not self._closed and len(waiting) < _IDLE_PER_BROKER:
                waiting.append(connection)
                return
        connection.close()


def _has_ended(connection: Connection) -> bool:
    """Whether an idle connection was closed by the broker: it has nothing else to read."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))
