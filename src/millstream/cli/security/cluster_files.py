"""The files of a secured cluster: an authority, a directory for each node, and client properties of the first user.

Clients use SASL_SSL with SCRAM-SHA-512; nodes and controllers authenticate each other by certificates. Each file that
has a key or a password is readable by its owner only. Keys are elliptic (P-256). The key of the authority signs the
certificates of nodes that are added later, so it is kept.
"""

import datetime
import ipaddress
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from millstream.cli import exit_codes
from millstream.cli.terminal import CommandFailedError
from millstream.common.lazy_dataclass import dataclass
from millstream.config.exposure import is_loopback
from millstream.node.security.core.scram import SCRAM_MECHANISMS
from millstream.node.security.first_users import make_credential, write_first_users

MECHANISM = "SCRAM-SHA-512"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule"
_PORTS_APART = 10


_DAY = datetime.timedelta(days=1)
_SKEW = datetime.timedelta(minutes=5)
_AUTHORITY_DAYS = 3650


class CertificateAuthority:
    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._key = key
        self.certificate = certificate

    @classmethod
    def make(cls, name: str) -> "CertificateAuthority":
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(name), _name(name), key, _AUTHORITY_DAYS)
        certificate = (
            builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        return cls(key, certificate)

    @classmethod
    def load(cls, certificate_pem: bytes, key_pem: bytes) -> "CertificateAuthority":
        key = load_pem_private_key(key_pem, None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return cls(key, x509.load_pem_x509_certificate(certificate_pem))

    @property
    def certificate_pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    @property
    def key_pem(self) -> str:
        return _key_pem(self._key)

    def sign(self, name: str, hosts: Sequence[str], days: int) -> str:
        """A new key with its certificate and the authority's, in one PEM text."""
        key = ec.generate_private_key(ec.SECP256R1())
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            _builder(_name(name), self.certificate.subject, key, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(both), critical=False)
            .add_extension(issuer, critical=False)
            .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return _key_pem(key) + certificate.public_bytes(Encoding.PEM).decode() + self.certificate_pem


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + days * _DAY)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


@dataclass(frozen=True, slots=True)
class NodePlan:
    """A node: its host, and its ports for clients, controllers and other nodes."""

    number: int
    host: str
    port: int

    @property
    def name(self) -> str:
        return f"node-{self.number}"

    @property
    def bind_host(self) -> str:
        """Every interface, except for a node that only this machine uses."""
        return self.host if is_loopback(self.host) else ""


def plan_nodes(hosts: Sequence[str], port: int) -> list[NodePlan]:
    """One node per host. Nodes on the same host get different ports."""
    seen: dict[str, int] = {}
    plans = []
    for number, host in enumerate(hosts, 1):
        plans.append(NodePlan(number, host, port + _PORTS_APART * seen.get(host, 0)))
        seen[host] = seen.get(host, 0) + 1
    return plans


def make_cluster(directory: Path, nodes: Sequence[NodePlan], user: str, days: int, installed: str | None) -> Path:
    """Writes all files; returns the client properties. `installed` is the directory of a node on its own machine."""
    if directory.exists() and any(directory.iterdir()):
        raise CommandFailedError(f"{directory} is not empty: give another directory", exit_codes.EXISTS)
    directory.mkdir(parents=True, exist_ok=True)
    os.chmod(directory, 0o700)
    authority = CertificateAuthority.make("Millstream cluster authority")
    write_secret(directory / "ca" / "ca.key", authority.key_pem)
    write_secret(directory / "ca" / "ca.pem", authority.certificate_pem)
    password = secrets.token_urlsafe(24)
    credential = make_credential(user, password, SCRAM_MECHANISMS[MECHANISM])
    for plan in nodes:
        place = directory / plan.name
        names = dict.fromkeys((plan.host, "localhost", "127.0.0.1") if is_loopback(plan.host) else (plan.host,))
        write_secret(place / "keystore.pem", authority.sign(plan.name, list(names), days))
        write_secret(place / "ca.pem", authority.certificate_pem)
        settings = node_settings(plan, nodes, installed or str(place.absolute()), user)
        write_secret(place / "server.properties", _properties(settings))
        write_first_users(str(place / "data"), [credential])
    client = directory / "client"
    write_secret(client / "ca.pem", authority.certificate_pem)
    properties = client / "client.properties"
    write_secret(properties, _properties(client_settings(client, nodes, user, password)))
    return properties


def node_settings(plan: NodePlan, nodes: Sequence[NodePlan], place: str, user: str) -> dict[str, str]:
    ports = {"CLIENT": 0, "CONTROLLER": 1, "NODES": 2}
    return {
        "process.roles": "broker,controller",
        "node.id": str(plan.number),
        "controller.quorum.voters": ",".join(f"{each.number}@{each.host}:{each.port + 1}" for each in nodes),
        "listeners": ",".join(f"{name}://{plan.bind_host}:{plan.port + more}" for name, more in ports.items()),
        "advertised.listeners": ",".join(f"{name}://{plan.host}:{plan.port + more}" for name, more in ports.items()),
        "listener.security.protocol.map": "CLIENT:SASL_SSL,NODES:SSL,CONTROLLER:SSL",
        "inter.broker.listener.name": "NODES",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": f"{place}/data",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": f"{place}/keystore.pem",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": f"{place}/ca.pem",
        "listener.name.client.sasl.enabled.mechanisms": MECHANISM,
        "listener.name.nodes.ssl.client.auth": "required",
        "listener.name.controller.ssl.client.auth": "required",
        "authorizer.class.name": AUTHORIZER,
        "super.users": ";".join([f"User:{user}", *(f"User:CN={each.name}" for each in nodes)]),
        "default.replication.factor": str(min(3, len(nodes))),
        "min.insync.replicas": str(max(1, min(3, len(nodes)) - 1)),
        "millstream.audit.enable": "true",
        "millstream.audit.gateways": f"User:{user}",
    }


def client_settings(place: Path, nodes: Sequence[NodePlan], user: str, password: str) -> dict[str, str]:
    return {
        "bootstrap.servers": ",".join(f"{each.host}:{each.port}" for each in nodes),
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": MECHANISM,
        "sasl.jaas.config": f'{_LOGIN} required username="{user}" password="{password}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(place.absolute() / "ca.pem"),
    }


def write_secret(path: Path, text: str) -> None:
    """Writes a new file that only its owner can read."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def _properties(settings: dict[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in settings.items())
