"""The connection's settings for librdkafka, from those of the wire: Java's names, as users know them."""

from typing import Any

from millstream.raw_client import Cluster
from millstream.raw_client.security import TlsSettings


def librdkafka_settings(cluster: Cluster) -> dict[str, Any]:
    """What a librdkafka client needs to reach the same cluster in the same way; the caller adds what it is for."""
    given = cluster.settings
    settings: dict[str, Any] = {
        "bootstrap.servers": cluster.bootstrap,
        "client.id": given.client_id,
        "security.protocol": given.protocol.name.lower(),
        "socket.timeout.ms": int(given.request_timeout_s * 1000),
        "socket.connection.setup.timeout.ms": int(given.connect_timeout_s * 1000),
        "socket.keepalive.enable": given.keep_alive,
        "log.connection.close": False,
        "reconnect.backoff.max.ms": 1000,
    }
    if given.send_buffer_bytes > 0:
        settings["socket.send.buffer.bytes"] = given.send_buffer_bytes
    if given.receive_buffer_bytes > 0:
        settings["socket.receive.buffer.bytes"] = given.receive_buffer_bytes
    if given.tls is not None:
        settings |= _tls(given.tls)
    if given.sasl is not None:
        settings |= {
            "sasl.mechanism": given.sasl.mechanism,
            "sasl.username": given.sasl.username,
            "sasl.password": given.sasl.password,
        }
    return settings


def _tls(tls: TlsSettings) -> dict[str, Any]:
    # A key of its own is not needed where one file holds certificates and key, as Java's keystores do.
    key_location = tls.key_location or (None if tls.key_pem else tls.certificate_location)
    named = {
        "ssl.ca.location": tls.ca_location,
        "ssl.ca.pem": tls.ca_pem,
        "ssl.certificate.location": tls.certificate_location,
        "ssl.certificate.pem": tls.certificate_pem,
        "ssl.key.location": key_location,
        "ssl.key.pem": tls.key_pem,
        "ssl.key.password": tls.key_password,
        "ssl.cipher.suites": tls.ciphers,
    }
    return {name: value for name, value in named.items() if value is not None} | {
        "ssl.endpoint.identification.algorithm": "https" if tls.checks_host else "none",
        "enable.ssl.certificate.verification": tls.checks_certificate,
    }
