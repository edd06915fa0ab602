"""The address of the broker and the settings of librdkafka.

librdkafka retries an unreachable address without a message until its timeout. `probe` opens a socket instead, so that
a missing broker is reported at once, and `check_protocol` finds a port that uses TLS or SASL.
"""

import logging
import socket
import struct
from collections.abc import Mapping
from typing import Any

from millstream.client.errors import DeadlineError, MillstreamError, from_kafka, no_broker, unreadable_records

DEFAULT_PORT = 9092
PROBE_TIMEOUT_SECONDS = 3.0
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
_METADATA = struct.pack(">ihhihib", 15, 3, 4, 2, -1, 0, 0)
"""Metadata of no topic: a broker that requires authentication closes the connection instead of a response."""
_FIRST_OF_TLS_ALERT = 0x15

_log = logging.getLogger("millstream.client")
_log.addHandler(logging.NullHandler())


class Connection:
    """Bootstrap address, settings of librdkafka and the timeout of a call. It opens no connection."""

    def __init__(self, bootstrap: str, settings: Mapping[str, Any] | None = None, timeout: float = 30.0) -> None:
        self.addresses = [_parse_address(part.strip()) for part in bootstrap.split(",") if part.strip()]
        if not self.addresses:
            raise MillstreamError("the broker's address is empty: give HOST:PORT, for example localhost:9092")
        self.bootstrap = ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.addresses
        )
        self.timeout = timeout
        self._settings = dict(settings or {})

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the user, by librdkafka's names."""
        return self._settings

    def librdkafka(self, **defaults: Any) -> dict[str, Any]:
        """A complete configuration: `defaults` (with underscores for dots), overridden by the settings of the user."""
        return {
            "bootstrap.servers": self.bootstrap,
            "client.id": "millstream-client",
            "socket.timeout.ms": max(1000, int(self.timeout * 1000)),
            # Reconnect quickly to a broker that restarts.
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 1000,
            "logger": _log,
            **{name.replace("_", "."): value for name, value in defaults.items()},
            **self._settings,
        }

    def setting(self, *names: str) -> str | None:
        """The user's value for one of these names, as text."""
        return next((str(self._settings[name]) for name in names if name in self._settings), None)

    def probe(self) -> None:
        """Raises NoBrokerError, with the last reason, if no address accepts a connection."""
        reason = ""
        for address in self.addresses:
            try:
                socket.create_connection(address, timeout=min(PROBE_TIMEOUT_SECONDS, self.timeout)).close()
                return
            except OSError as error:
                reason = (error.strerror or str(error) or type(error).__name__).lower()
        raise no_broker(self.bootstrap, reason)

    def check_protocol(self) -> None:
        """Raises an error if the port of a connection without TLS and SASL requires one of them.

        librdkafka would reconnect until its timeout.
        """
        if (self.setting("security.protocol") or "plaintext").lower() != "plaintext":
            return
        address = self.addresses[0]
        try:
            with socket.create_connection(address, timeout=min(PROBE_TIMEOUT_SECONDS, self.timeout)) as opened:
                opened.sendall(_API_VERSIONS)
                first = opened.recv(4)
                if first and first[0] != _FIRST_OF_TLS_ALERT:
                    opened.sendall(_METADATA)
                    rest = struct.unpack(">i", first + opened.recv(4 - len(first), socket.MSG_WAITALL))[0]
                    while rest > 0 and (got := opened.recv(min(rest, 65536))):
                        rest -= len(got)
                    if rest > 0 or opened.recv(1):
                        return
        except ConnectionResetError:
            first = b""
        except (OSError, struct.error):
            return  # librdkafka finds the reason, or another broker
        needed = "authentication (SASL)" if first and first[0] != _FIRST_OF_TLS_ALERT else "TLS"
        raise MillstreamError(
            f"{self.bootstrap} closed the connection: it seems to require {needed}: give the client properties with"
            " --command-config FILE or settings=…, for example security.protocol=SASL_SSL"
        )

    def reading_error(self, message: Any, topic: str) -> MillstreamError:
        """The exception for an error that was returned instead of a record."""
        error = message.error()
        if error.name() == "INVALID_RECORD":
            return unreadable_records(topic, message.partition(), error.str())
        return self.error(error, topic)

    def error(self, kafka_error: Any, topic: str = "") -> MillstreamError:
        """Our exception for librdkafka's. After a timeout it checks whether a broker listens at all."""
        translated = from_kafka(kafka_error, bootstrap=self.bootstrap, topic=topic)
        if isinstance(translated, DeadlineError):
            try:
                self.probe()
            except MillstreamError as unreachable:
                return unreachable
        return translated


def _parse_address(text: str) -> tuple[str, int]:
    text = text.rsplit("://", 1)[-1]
    if text.startswith("[") or text.count(":") == 1:
        host, _, port = text.rpartition(":")
        if text.endswith("]"):
            host, port = text, str(DEFAULT_PORT)
    else:
        host, port = text, str(DEFAULT_PORT)
    host = host.strip("[]")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise MillstreamError(f"{text!r} is not an address: give HOST:PORT, for example localhost:9092")
    return host, int(port)
