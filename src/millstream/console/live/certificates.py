"""When certificates expire: those of the brokers' listeners, and the gateway's own.

The metrics of a broker have the ends of the certificates of all its listeners. Where the user may not read them, and
for brokers that do not respond, the certificate that the broker shows is read in a handshake of its own. Nothing is
sent over that connection, so the certificate need not be valid: one that has expired is what a user wants to see here.
"""

import socket
import ssl
from collections.abc import Callable, Iterable
from dataclasses import replace

from cryptography import x509

from millstream.admin.broker_metrics import MetricsError, read_metrics
from millstream.console.live.snapshot import Broker, CertificateEnd
from millstream.raw_client import Cluster
from millstream.raw_client.security import make_context

_TIMEOUT_SECONDS = 0.9
_EXPIRES = "millstream_certificate_expires_in_seconds"


class CertificateEnds:
    """Reads them. Blocking."""

    def __init__(self, cluster: Cluster, own: Callable[[], float | None]) -> None:
        """`own`: the end of the gateway's own certificate; None if it has none."""
        self._cluster = cluster
        tls = cluster.settings.tls
        self._context = None if tls is None else make_context(replace(tls, checks_certificate=False))
        self._own = own

    def of_gateway(self) -> Iterable[CertificateEnd]:
        ends_at = self._own()
        return () if ends_at is None else (CertificateEnd("the gateway", ends_at, is_of_gateway=True),)

    def of_broker(self, broker: Broker, now: float) -> list[CertificateEnd]:
        """None are found if the broker does not respond."""
        found = self._by_metrics(broker, now) if broker.is_up else []
        if found or self._context is None:
            return found
        ends_at = _shown_certificate_end(self._context, broker.host, broker.port)
        return [] if ends_at is None else [CertificateEnd(f"broker {broker.id} ({broker.address})", ends_at)]

    def _by_metrics(self, broker: Broker, now: float) -> list[CertificateEnd]:
        try:
            samples = read_metrics(self._cluster, broker.id, broker.host, broker.port, ("connections",))
        except MetricsError:
            return []
        return [
            CertificateEnd(f"listener {labels.get('listener', '')} of broker {broker.id}", now + value)
            for name, labels, value in samples
            if name == _EXPIRES
        ]


def _shown_certificate_end(context: ssl.SSLContext, host: str, port: int) -> float | None:
    try:
        with (
            socket.create_connection((host, port), timeout=_TIMEOUT_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host) as secured,
        ):
            content = secured.getpeercert(binary_form=True)
    except (OSError, ValueError):
        return None
    return None if content is None else x509.load_der_x509_certificate(content).not_valid_after_utc.timestamp()
