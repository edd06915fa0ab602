"""Connections that wait to be used again, by broker. A thread that needs one while all are taken gets a new one, so a
fetch that waits for records stands in nobody's way."""

import os
import select
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from millstream.formats.protocol.schema import Message
from millstream.raw_client.addresses import Address
from millstream.raw_client.connection import Connection
from millstream.raw_client.errors import ConnectionLostError, WireError
from millstream.raw_client.opening import Opener
from millstream.raw_client.patience import Patience

_IDLE_PER_BROKER = 8


class ConnectionPool:
    def __init__(self, opener: Opener) -> None:
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
        self, address: Address, api: str, fields: Mapping[str, Any], patience: Patience, at_most: int | None = None
    ) -> Message:
        """One request and its answer, over a connection of its own."""
        wait_s = self.wait_s(patience, fields.get("timeout_ms", 0))
        with self.borrow(address, wait_s) as connection:
            return connection.ask(api, fields, wait_s, at_most=at_most)

    def wait_s(self, patience: Patience, own_wait_ms: int = 0) -> float:
        """How long to wait for an answer that the broker itself may hold back for `own_wait_ms`."""
        return min(patience.left_s, self._opener.settings.request_timeout_s + own_wait_ms / 1000)

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
