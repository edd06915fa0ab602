"""Making a connection: TCP, then TLS, then who we are."""

import socket
from dataclasses import dataclass

from millstream.wire.addresses import Address
from millstream.wire.connection import Connection
from millstream.wire.errors import ConnectionLostError
from millstream.wire.settings import WireSettings


@dataclass(frozen=True, slots=True)
class Opener:
    settings: WireSettings

    def open(self, address: Address, timeout_s: float) -> Connection:
        """A connection that is ready for requests."""
        settings = self.settings
        try:
            opened = socket.create_connection(address, min(timeout_s, settings.connect_timeout_s))
        except OSError as error:
            late = isinstance(error, TimeoutError)
            reason = "no answer to the attempt to connect" if late else (error.strerror or str(error)).lower()
            raise ConnectionLostError(str(address), reason) from error
        try:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(opened, address, settings.client_id)
            connection.learn_versions(timeout_s)
        except BaseException:
            opened.close()
            raise
        return connection
