"""Making a connection: TCP, then TLS, then which versions the broker knows, then who we are."""

import socket
import ssl

from millstream.raw_client.addresses import Address
from millstream.raw_client.connection import Connection
from millstream.raw_client.errors import ConnectionLostError, SetupError
from millstream.raw_client.sasl import authenticate
from millstream.raw_client.settings import WireSettings
from millstream.raw_client.tls import make_context


class Opener:
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
            connection.learn_versions(timeout_s)
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
