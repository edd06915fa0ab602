"""Certificates of simulated clusters with TLS: the same bytes in every run.

Keys are Ed25519 of fixed seeds, and all fields are fixed, so that certificates and signatures always have the same
size. What TLS adds at random (keys of a session, numbers of a handshake) has a fixed size too. So the bytes of two runs
differ, but not their sizes and times, by which a run is compared with its repetition.
"""

import datetime
import functools
import ssl

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from millstream.node.server.network import Network
from millstream.node.server.tls import TlsNetwork, TlsRuntime
from millstream.simulator.machine import Process

_BEGIN, _END = datetime.datetime(2020, 1, 1), datetime.datetime(2120, 1, 1)
NODE_NAME = "simulated node"
"""The common name in the certificate of all nodes."""
_MOST_NODES = 16
_HANDSHAKE_TIMEOUT_S = 10.0


@functools.cache
def tls_settings() -> dict[str, str]:
    """The settings of every node: mutual TLS on all listeners, with one certificate for all hosts."""
    authority, node = (Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2))
    ca = _certificate("simulated authority", authority, "simulated authority", authority, 1, is_ca=True)
    own = _certificate(NODE_NAME, node, "simulated authority", authority, 2, is_ca=False)
    key = node.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return {
        "listener.security.protocol.map": "SSL:SSL,CONTROLLER:SSL",
        "security.inter.broker.protocol": "SSL",
        "ssl.client.auth": "required",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": key,
        "ssl.keystore.certificate.chain": _pem(own),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": _pem(ca),
    }


def client_network(process: Process, context: ssl.SSLContext) -> Network:
    """The network of a simulated client."""

    class Client:
        def __init__(self) -> None:
            self.context = context

    runtime = TlsRuntime(process.loop, process.offload)
    return TlsNetwork(process.network, Client(), runtime, timeout_s=_HANDSHAKE_TIMEOUT_S)


def _certificate(
    name: str, key: Ed25519PrivateKey, issuer: str, signer: Ed25519PrivateKey, serial: int, *, is_ca: bool
) -> x509.Certificate:
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(_BEGIN)
        .not_valid_after(_END)
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
    )
    if not is_ca:
        hosts = [x509.DNSName(f"node{number}") for number in range(1, _MOST_NODES + 1)]
        builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    return builder.sign(signer, None)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()
