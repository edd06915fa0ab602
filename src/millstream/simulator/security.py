"""Security of simulated clusters: certificates for TLS, and secured clusters, where no client may be refused.

A secured cluster has SASL_SSL for clients, mutual TLS between nodes, and ACLs.
The administrator has a password in the settings of the nodes (PLAIN) and is a super user. All other clients are SCRAM
users in the metadata, with exactly the ACLs that they need (`clients/permissions.py`). A login that fails, and a
response with an authorization error, is a violation, whatever has happened to the nodes.
"""

import datetime
import functools
import ssl
from collections.abc import Callable

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.node.security.core.scram import SCRAM_MECHANISMS
from millstream.node.security.sasl_client import LoginFailedError, PlainLogin, SaslLogin, ScramLogin
from millstream.node.server.channel import Ask
from millstream.node.server.network import Network
from millstream.node.server.tls import TlsNetwork, TlsRuntime
from millstream.simulator.machine import Process

ADMINISTRATOR = "admin"
MECHANISM = SCRAM_MECHANISMS["SCRAM-SHA-512"]
REFUSALS = frozenset(
    (
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        ErrorCode.ILLEGAL_SASL_STATE,
    )
)
_INVARIANT = "NoAllowedClientIsRefused"
_PASSWORD = "of the administrator"
_PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"

Report = Callable[[str, str], None]
"""Reports a violation: the name of the invariant, and a description."""


def secured_settings() -> dict[str, str]:
    """The settings of every node."""
    settings = tls_settings() | {
        "listener.security.protocol.map": "CLIENT:SASL_SSL,NODES:SSL,CONTROLLER:SSL",
        "inter.broker.listener.name": "NODES",
        "listener.name.client.ssl.client.auth": "none",
        "listener.name.client.sasl.enabled.mechanisms": f"PLAIN,{MECHANISM.name}",
        "listener.name.client.plain.sasl.jaas.config": f'{_PLAIN_MODULE} required user_{ADMINISTRATOR}="{_PASSWORD}";',
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{ADMINISTRATOR};User:CN={NODE_NAME}",
    }
    del settings["security.inter.broker.protocol"]  # the listener is named instead
    return settings


def password(user: str) -> str:
    return f"of {user}"


class Watch:
    """The login of one simulated client, and a look at each response to it."""

    def __init__(self, process: Process, report: Report) -> None:
        self._user = process.machine.name
        self._report = report
        self._login: SaslLogin
        if self._user == ADMINISTRATOR:
            self._login = PlainLogin(ADMINISTRATOR, _PASSWORD)
        else:
            self._login = ScramLogin(MECHANISM, self._user, password(self._user), process.environment)

    async def log_in(self, ask: Ask, host: str) -> float | None:
        try:
            return await self._login.log_in(ask, host)
        except LoginFailedError as error:
            self._report(_INVARIANT, f"{self._user} could not log in: {error}")
            raise

    def look_at(self, api: str, response: Message) -> None:
        code = _refusal(response)
        if code is not None:
            self.look_at_error(api, code)

    def look_at_error(self, api: str, error: ErrorCode) -> None:
        if error in REFUSALS:
            self._report(_INVARIANT, f"{api} of {self._user} was refused: {error.name}")


def _refusal(message: Message) -> ErrorCode | None:
    """The first authorization error anywhere in a response."""
    for name in message.__slots__:
        value = getattr(message, name)
        if isinstance(value, int):
            if value in REFUSALS and name.endswith("error_code"):
                return ErrorCode(value)
        elif isinstance(value, Message | list):
            for each in value if isinstance(value, list) else (value,):
                if isinstance(each, Message) and (found := _refusal(each)) is not None:
                    return found
    return None


# Certificates: the same bytes in every run
#
# Keys are Ed25519 of fixed seeds, and all fields are fixed, so that certificates and signatures always have the same
# size. What TLS adds at random (keys of a session, numbers of a handshake) has a fixed size too. So the bytes of two
# runs differ, but not their sizes and times, by which a run is compared with its repetition.


_BEGIN, _END = datetime.datetime(2020, 1, 1), datetime.datetime(2120, 1, 1)
NODE_NAME = "simulated node"
"""The common name in the certificate of all nodes."""
_MOST_NODES = 16
_HANDSHAKE_TIMEOUT_SECONDS = 10.0


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
    return TlsNetwork(process.network, Client(), runtime, timeout_s=_HANDSHAKE_TIMEOUT_SECONDS)


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
