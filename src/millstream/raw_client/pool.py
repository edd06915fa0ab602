"""Connections that wait to be used again, by broker. A thread that needs one while all are taken gets a new one, so a
fetch that waits for records stands in nobody's way.

Making a connection: TCP, then TLS, then which versions the broker knows, then who we are.
"""

import os
import select
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

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
        """A connection that is ready for requests."""
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
            reason = "no answer to the attempt to connect" if late else (error.strerror or str(error)).lower()
            raise ConnectionLostError(str(address), reason) from error
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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
                " give the right ssl.truststore.location (ssl.ca.location), or an address that the certificate names"
            ) from error
        except ssl.SSLError as error:
            if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
                raise SetupError(
                    f"{address} does not speak TLS: use another port, or security.protocol PLAINTEXT or SASL_PLAINTEXT"
                ) from error
            closed = isinstance(error, ssl.SSLEOFError)
            why = "closed in the handshake: does this port speak TLS?" if closed else f"no TLS: {error.reason}"
            raise ConnectionLostError(str(address), why, mismatch=closed) from error
        except OSError as error:
            late = isinstance(error, TimeoutError)
            reason = "no answer to the TLS handshake" if late else f"no TLS: {error.strerror or error}"
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
        """A connection for the caller alone; it goes back if all its requests were answered, or else is closed."""
        connection = self._take(address) or self._opener.open(address, timeout_s)
        try:
            yield connection
        except ConnectionLostError:
            # What else waits here is most likely gone too: a broker that restarts loses all of its connections.
            self.forget(address)
            raise
        finally:
            self._give_back(connection)

    def ask(
        self, address: Address, api: str, fields: Mapping[str, Any], deadline: Deadline, at_most: int | None = None
    ) -> Message:
        """One request and its answer, over a connection of its own."""
        wait_s = self.wait_s(deadline, fields.get("timeout_ms", 0))
        with self.borrow(address, wait_s) as connection:
            return connection.ask(api, fields, wait_s, at_most=at_most)

    def wait_s(self, deadline: Deadline, own_wait_ms: int = 0) -> float:
        """How long to wait for an answer that the broker itself may hold back for `own_wait_ms`."""
        return min(deadline.left_s, self._opener.settings.request_timeout_s + own_wait_ms / 1000)

    def forget(self, address: Address) -> None:
        """Closes what waits for use to a broker."""
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
                raise WireError("this Cluster was closed: make a new one")
            if self._process != os.getpid():  # a forked child must not speak into its parent's connections
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
    """Nothing is to come on an idle connection, so bytes to read can only be its end."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))
