"""The brokers under test with encryption: the same four listeners, certificates and user on both.

`bootstrap` is a listener without TLS, by which loads make their topics; what is measured goes by the others. The
settings are one and the same list of Kafka's names. Certificates are made at each start as `millstream security init`
makes them (P-256), and given to both as PEM files. TLS is version 1.3 with one cipher suite, which `start_secured`
makes sure of. Millstream's limits on handshakes, which Kafka does not have, are out of the way.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from benchmarks.compare import wire
from benchmarks.compare.target import KafkaTarget, MillstreamTarget, Target, start
from millstream.cli.security.cluster_files import CertificateAuthority
from millstream.testing.node_process import free_ports
from tools.apache_kafka import ApacheKafkaBroker, KafkaDistribution

PLAIN, TLS, MUTUAL, SASL = "PLAINTEXT", "SSL", "MUTUAL", "SASLTLS"
_CONTROLLER = "CONTROLLER"
_PROTOCOLS = {PLAIN: "PLAINTEXT", TLS: "SSL", MUTUAL: "SSL", SASL: "SASL_SSL"}
CIPHER_SUITE = "TLS_AES_256_GCM_SHA384"
"""The first choice of clients and brokers. A listener of Millstream has all suites of TLS 1.3 or none."""
_SUITES = (CIPHER_SUITE, "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
_USER, _PASSWORD = "bench", "bench-password"
_MECHANISM = "SCRAM-SHA-512"
CLIENT_NAME = "bench-client"
_NO_LIMIT = "1000000"


@dataclass(frozen=True)
class BenchCertificates:
    """Files of an authority, of a broker on loopback, and of a client."""

    directory: Path

    @classmethod
    def make(cls, directory: Path) -> BenchCertificates:
        directory.mkdir(parents=True, exist_ok=True)
        files = cls(directory)
        authority = CertificateAuthority.make("bench authority")
        files.authority.write_text(authority.certificate_pem)
        files.node.write_text(authority.sign("bench-node", ["127.0.0.1", "localhost"], 30))
        files.client.write_text(authority.sign(CLIENT_NAME, ["localhost"], 30))
        return files

    @property
    def authority(self) -> Path:
        return self.directory / "authority.pem"

    @property
    def node(self) -> Path:
        return self.directory / "node.pem"

    @property
    def client(self) -> Path:
        return self.directory / "client.pem"

    def context(self, *, mutual: bool = False) -> ssl.SSLContext:
        """For clients on bare sockets."""
        context = ssl.create_default_context(cafile=str(self.authority))
        if mutual:
            context.load_cert_chain(self.client)
        return context


@runtime_checkable
class SecuredTarget(Target, Protocol):
    """A broker with the four listeners; `addresses` are by listener."""

    addresses: Mapping[str, str]
    certificates: BenchCertificates


SecuredFactory = Callable[[str], SecuredTarget]
"""Makes a new, not yet started secured target of the given name on a directory of its own."""


def client_settings(target: SecuredTarget, listener: str) -> dict[str, str]:
    """librdkafka's settings for a listener."""
    settings = {"bootstrap.servers": target.addresses[listener], "security.protocol": _PROTOCOLS[listener]}
    if listener != PLAIN:
        settings["ssl.ca.location"] = str(target.certificates.authority)
    if listener == MUTUAL:
        settings["ssl.certificate.location"] = settings["ssl.key.location"] = str(target.certificates.client)
    if listener == SASL:
        settings |= {"sasl.mechanism": _MECHANISM, "sasl.username": _USER, "sasl.password": _PASSWORD}
    return settings


class TlsDialer:
    """Opens TLS connections without a library for Kafka; sessions are not resumed, so each is a full handshake."""

    def __init__(self, target: SecuredTarget, listener: str) -> None:
        self._address = target.addresses[listener]
        self._context = target.certificates.context(mutual=listener == MUTUAL)

    def __call__(self) -> ssl.SSLSocket:
        plain: socket.socket = wire.connect(self._address)
        try:
            return self._context.wrap_socket(plain, server_hostname="127.0.0.1")
        except BaseException:
            plain.close()
            raise


def agreed_tls(target: SecuredTarget) -> str:
    """Version and cipher suite of a connection."""
    with TlsDialer(target, TLS)() as connection:
        cipher = connection.cipher()
        return f"{connection.version()} {cipher[0] if cipher else ''}"


def start_secured(target: SecuredTarget) -> None:
    """Starts it, adds the user, and makes sure that TLS is what it should be."""
    start(target)
    upsertion = UserScramCredentialUpsertion(
        _USER, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), _PASSWORD.encode()
    )
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    for future in admin.alter_user_scram_credentials([upsertion]).values():
        future.result(timeout=30)
    if (agreed := agreed_tls(target)) != f"TLSv1.3 {CIPHER_SUITE}":
        raise RuntimeError(f"{target.name} agreed on {agreed}, not on TLSv1.3 {CIPHER_SUITE}")


def _settings(addresses: Mapping[str, str], certificates: BenchCertificates) -> dict[str, str]:
    """What both brokers get."""
    return {
        "listeners": ",".join(f"{name}://{address}" for name, address in addresses.items()),
        "listener.security.protocol.map": ",".join(
            f"{name}:{_PROTOCOLS.get(name, 'PLAINTEXT')}" for name in (*_PROTOCOLS, _CONTROLLER)
        ),
        "inter.broker.listener.name": PLAIN,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.node),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.authority),
        "ssl.enabled.protocols": "TLSv1.3",
        "ssl.cipher.suites": ",".join(_SUITES),
        f"listener.name.{MUTUAL.lower()}.ssl.client.auth": "required",
        f"listener.name.{SASL.lower()}.sasl.enabled.mechanisms": _MECHANISM,
        f"listener.name.{SASL.lower()}.{_MECHANISM.lower()}.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
    }


class SecuredMillstream(MillstreamTarget):
    def __init__(self, directory: Path, extra: Mapping[str, str] | None = None) -> None:
        super().__init__(directory)
        self.certificates = BenchCertificates.make(directory / "certificates")
        self._file = directory / "server.properties"
        self._extra = dict(extra or {})
        ports = (f"127.0.0.1:{port}" for port in free_ports(len(_PROTOCOLS)))
        self.addresses: Mapping[str, str] = dict(zip(_PROTOCOLS, ports, strict=True))

    def arguments(self) -> list[str]:
        limits = {"millstream.ssl.handshake.rate": _NO_LIMIT, "millstream.ssl.handshake.rate.per.ip": _NO_LIMIT}
        settings = {**_settings(self.addresses, self.certificates), **limits, **self._extra}
        self._file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return ["--config", str(self._file)]


class SecuredKafka(KafkaTarget):
    def __init__(
        self, directory: Path, distribution: KafkaDistribution, extra: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(directory, distribution)
        self.certificates = BenchCertificates.make(directory / "certificates")
        *ports, controller = (f"127.0.0.1:{port}" for port in free_ports(len(_PROTOCOLS) + 1))
        self.addresses: Mapping[str, str] = dict(zip(_PROTOCOLS, ports, strict=True))
        settings = _settings({**self.addresses, _CONTROLLER: controller}, self.certificates)
        advertised = ",".join(f"{name}://{address}" for name, address in self.addresses.items())
        self._broker = ApacheKafkaBroker(
            distribution,
            self.data_dir,
            {**settings, "advertised.listeners": advertised, **(extra or {})},
            port=int(self.addresses[PLAIN].rpartition(":")[2]),
            voters={1: controller},
        )
