"""Where the gateway listens, and which clients that lets in.

Needs none of the gateway's packages: `millstream serve` opens the socket itself, and hands it to the gateway's process.

Names, passwords and tokens: how they are written down, and whether a request has one of them.

Needs none of the gateway's packages, so that `millstream serve` can check them before anything is started.

How much the gateway takes on at once, and how long it waits; what may be changed with `--limit NAME=VALUE`.

Needs none of the gateway's packages: `millstream serve` looks at what is said before it starts anything.
"""

import base64
import binascii
import hashlib
import hmac
import ipaddress
import os
import socket
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import urlsplit

from millstream.access.roles import Role
from millstream.access.rules_file import AccessRules

_BACKLOG = 256


class GatewayError(Exception):
    """The gateway cannot start with these options; the text says what to do."""


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_address(text: str) -> tuple[str, int]:
    """`HOST:PORT`. A port alone means loopback; an IPv6 address is in brackets."""
    host, colon, port = text.rpartition(":")
    if not colon:
        host, port = "", text
    bracketed = host.startswith("[") and host.endswith("]")
    if not (port.isascii() and port.isdecimal()) or int(port) > 65_535 or (":" in host and not bracketed):
        raise GatewayError(f"--http {text}: write HOST:PORT, such as 127.0.0.1:8081; port 0 picks a free one")
    return host.strip("[]") or "127.0.0.1", int(port)


def check_exposure(host: str, *, demands_credentials: bool, insecure: bool) -> None:
    """GatewayError if other machines could connect without credentials, and --insecure is not given."""
    if not is_loopback(host) and not demands_credentials and not insecure:
        raise GatewayError(
            f"{host} can be reached from other machines: give credentials with --auth-file FILE, let the cluster "
            "decide with --pass-through MECHANISM, or give --insecure to admit every caller"
        )


def key_warnings(key: str | None) -> list[str]:
    """If other users of this machine can read the private key."""
    try:
        mode = 0 if key is None else os.stat(key).st_mode
    except OSError:
        return []
    if not (stat.S_ISREG(mode) and mode & stat.S_IROTH):
        return []
    return [f"--tls-key {key}: every user of this machine can read the private key: chmod 600 {key}"]


def exposure_warnings(host: str, *, demands_credentials: bool, has_tls: bool, is_secured: bool = False) -> list[str]:
    """What is dangerous about an address that other machines can reach, or about an open gateway of a cluster that is
    secured by users (`is_secured`)."""
    if is_loopback(host):
        if demands_credentials or not is_secured:
            return []
        return [
            "no credentials: every program on this machine has the rights of the gateway's user on the cluster",
            "give --pass-through MECHANISM or --auth-file FILE",
        ]
    if not demands_credentials:
        return [
            f"--insecure: all who reach {host} can read, write and delete everything that the gateway can",
            "give --auth-file FILE or --pass-through MECHANISM, and remove --insecure",
        ]
    if not has_tls:
        return [
            f"no TLS: names, passwords and records to and from {host} can be read on the network",
            "give --tls-cert and --tls-key, unless a proxy on this machine adds TLS",
        ]
    return []


def read_secret_file(path: str, option: str) -> str:
    """The text of a file with secrets. GatewayError if other users of this machine can read it."""
    try:
        with open(path, encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            if stat.S_ISREG(mode) and mode & stat.S_IROTH:
                raise GatewayError(
                    f"{option} {path}: every user of this machine can read it (mode {mode & 0o777:o}): chmod 600 {path}"
                )
            return file.read()
    except OSError as error:
        raise GatewayError(f"{option} {path}: {error.strerror}: give a file that this user can read") from error
    except UnicodeDecodeError:
        raise GatewayError(f"{option} {path}: it is not UTF-8 text") from None


PASS_THROUGH = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


def check_mechanism(mechanism: str | None) -> None:
    if mechanism is not None and mechanism not in PASS_THROUGH:
        raise GatewayError(f"--pass-through {mechanism}: give {', '.join(PASS_THROUGH)}")


def parse_origin(text: str) -> str:
    """An origin of a browser: scheme and host, with a port unless it is the default one."""
    try:
        parts = urlsplit(text)
        valid = (
            parts.scheme in ("http", "https") and parts.hostname and not (parts.path or parts.query or parts.fragment)
        )
        valid = valid and parts.username is None and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid:
        raise GatewayError(f"--allowed-origin {text}: write scheme and host, such as https://console.example.com")
    return text.lower()


def check_certificate(certificate: str | None, key: str | None) -> None:
    """GatewayError unless both are given and belong together, or neither is given."""
    if certificate is None and key is None:
        return
    if certificate is None or key is None:
        raise GatewayError("--tls-cert and --tls-key must be given together")
    import ssl

    for option, file in (("--tls-cert", certificate), ("--tls-key", key)):
        try:
            open(file, "rb").close()
        except OSError as error:
            raise GatewayError(f"{option} {file}: {error.strerror}: give a file in PEM format") from error
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise GatewayError(
            f"--tls-cert {certificate} and --tls-key {key} cannot be used together ({reason}): "
            "give a certificate chain and its own private key, both in PEM format and without a password"
        ) from error


def check_client_ca(client_ca: str | None, certificate: str | None) -> None:
    if client_ca is None:
        return
    if certificate is None:
        raise GatewayError("--tls-client-ca needs --tls-cert and --tls-key")
    import ssl

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(client_ca)
    except (OSError, ssl.SSLError) as error:
        reason = getattr(error, "strerror", None) or error
        raise GatewayError(f"--tls-client-ca {client_ca}: {reason}: give a file with CA certificates, PEM") from error


def _no_password() -> str:
    raise ValueError("the key has a password")


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen(host: str, port: int) -> socket.socket:
    """An open listener. Connections wait until they are accepted. Port 0 picks a free one."""
    try:
        ((family, kind, _, _, address), *_) = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        listener = socket.socket(family, kind)
    except OSError as error:
        raise GatewayError(f"{host}: {error.strerror}: give an address of this machine") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise GatewayError(
            f"cannot listen on {host}:{port}: {error.strerror}: choose another address with --http HOST:PORT"
        ) from error
    return listener


class CredentialsError(ValueError):
    """The credentials file cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Names with passwords, and tokens. Empty: every caller is admitted."""

    passwords: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Names and passwords."""
    tokens: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Names and tokens."""

    def __bool__(self) -> bool:
        return bool(self.passwords or self.tokens)

    def admit(self, authorization: str) -> bool:
        """Whether the value of an `Authorization` header is valid, in constant time."""
        return self.name_of(authorization) is not None

    def name_of(self, authorization: str) -> str | None:
        """The name of the caller, in constant time. None: the header is not valid."""
        scheme, _, rest = authorization.partition(" ")
        given = rest.strip().encode("latin-1", "replace")  # the bytes that were sent
        if scheme.lower() == "bearer":
            equal = _equal_to(given, [token.encode() for _, token in self.tokens])
            return self.tokens[equal[0]][0] if equal else None
        if scheme.lower() == "basic":
            try:
                pair = base64.b64decode(given, validate=True)
            except binascii.Error:
                return None
            equal = _equal_to(pair, [f"{name}:{password}".encode() for name, password in self.passwords])
            return self.passwords[equal[0]][0] if equal else None
        return None

    @staticmethod
    def claimed_name(authorization: str) -> str:
        """The name in a header that is not valid, for the log; empty if there is none."""
        scheme, _, rest = authorization.partition(" ")
        if scheme.lower() != "basic":
            return ""
        try:
            name, colon, _ = base64.b64decode(rest.strip().encode("latin-1", "replace"), validate=True).partition(b":")
        except binascii.Error:
            return ""
        return name.decode("utf-8", "replace") if colon else ""


def unnamed_token(token: str) -> str:
    """The name of a caller whose token has none in the file: the same in every process, whatever line it is on."""
    return f"token-{hashlib.sha256(token.encode()).hexdigest()[:8]}"


def _equal_to(given: bytes, known: Sequence[bytes]) -> list[int]:
    """The positions of equal texts. Compares with all of them, so that the duration reveals nothing."""
    return [index for index, equal in enumerate([hmac.compare_digest(given, one) for one in known]) if equal]


def check_modes(pass_through: str | None, client_ca: str | None, credentials: Credentials, rules: AccessRules) -> None:
    """Refuses options that exclude each other."""
    if pass_through and credentials:
        raise GatewayError("--pass-through and --auth-file exclude each other: the cluster or the file decides")
    if rules.certificates and not (pass_through and client_ca):
        raise GatewayError("certificates in the access file need --pass-through, --tls-cert and --tls-client-ca")
    roles = rules.roles
    if (
        rules.masking
        and roles.default is Role.ADMIN
        and not any(role < Role.ADMIN for role in (*roles.users.values(), *roles.groups.values()))
    ):
        raise GatewayError(
            "the masks in the access file have no effect, because every caller is admin: add [roles] with a "
            "default such as "
            'default = "viewer"'
        )


_FORMS = "'basic NAME:PASSWORD' or 'bearer NAME:TOKEN'"


def read_credentials(text: str) -> Credentials:
    """Lines `basic NAME:PASSWORD` or `bearer NAME:TOKEN`. Empty lines and lines that begin with # are ignored. A token
    without a name has one made of its hash: each token is a caller of its own."""
    passwords, tokens = [], []
    for number, line in enumerate(text.splitlines(), 1):
        kind, _, rest = line.strip().partition(" ")
        name, colon, password = rest.strip().partition(":")
        if not kind or kind.startswith("#"):
            continue
        if kind == "basic" and name and colon and password:
            passwords.append((name, password))
        elif kind == "bearer" and name and bool(colon) == bool(password):  # a token has no colon (RFC 6750)
            tokens.append((name, password) if colon else (unnamed_token(name), name))
        else:
            raise CredentialsError(f"line {number}: write {_FORMS}")
    if not passwords and not tokens:
        raise CredentialsError(f"the file has no credentials: write lines {_FORMS}")
    if len({token for _, token in tokens}) < len(tokens):
        raise CredentialsError("two lines have the same token: give each caller its own")
    return Credentials(tuple(passwords), tuple(tokens))


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """A further cluster of the console."""

    name: str
    """As in the URL of its pages."""
    bootstrap: str
    settings: Mapping[str, str] = field(default_factory=dict)
    rules: AccessRules | None = None
    """Roles, masks and permissions on subjects; None: those of the first cluster."""


@dataclass(frozen=True, slots=True)
class Limits:
    max_body_bytes: int = 16 << 20
    """Body of a produce request. A streaming request has no limit, but each of its records has this one."""
    body_timeout_s: float = 60.0
    """Timeout for the body of a produce request that is not a stream; then 408."""
    max_records: int = 10_000
    """Records in one produce request."""
    max_in_flight_bytes: int = 128 << 20
    """Total size of the bodies of active produce requests; beyond it 429."""
    produce_timeout_s: float = 30.0
    """Timeout for the acknowledgement by all in-sync replicas; then 504."""
    max_consumers: int = 1_000
    """Open HTTP consumers of all groups."""
    max_consumers_per_caller: int = 250
    """Open HTTP consumers of one caller with a name: one caller cannot take all."""
    max_streams: int = 1_000
    """Open server-sent event streams."""
    max_batch_bytes: int = 128 << 20
    """Decompressed size of a batch that is read for a consumer or a stream; beyond it 502."""
    max_batch_records: int = 1_000_000
    """Records in a batch that is read for a consumer or a stream; beyond it 502."""
    max_callers: int = 200
    """Callers with an open connection to the cluster of their own (pass-through); beyond it 503."""
    caller_idle_s: float = 300.0
    """The connection of a caller without requests is closed after this time."""
    identity_cache_s: float = 60.0
    """Credentials are verified again after this time: how long a removed user still has access."""


_RANGES = {
    "max_body_bytes": (1, 512 << 20),  # librdkafka takes records of up to a gigabyte
    "body_timeout_s": (0.1, 86_400.0),
    "max_records": (1, 1_000_000),
    "max_in_flight_bytes": (1, 1 << 37),
    "produce_timeout_s": (0.1, 86_400.0),
    "max_consumers": (0, 1_000_000),
    "max_consumers_per_caller": (1, 1_000_000),
    "max_streams": (0, 1_000_000),
    "max_batch_bytes": (1 << 20, 256 << 20),
    "max_batch_records": (1000, 2**31 - 1),
    "max_callers": (1, 10_000),
    "caller_idle_s": (1.0, 86_400.0),
    "identity_cache_s": (0.1, 3_600.0),
}


def read_limits(words: Iterable[str], option: str = "--limit") -> Limits:
    """From words `NAME=VALUE`; the last one of a name counts. GatewayError names the option and the valid values."""
    kinds: dict[str, Any] = {each.name: type(each.default) for each in fields(Limits)}
    given: dict[str, Any] = {}
    for word in words:
        name, _, text = word.partition("=")
        if name not in kinds:
            raise GatewayError(f"{option} {word}: write NAME=VALUE with one of {', '.join(kinds)}")
        lowest, highest = _RANGES[name]
        try:
            given[name] = kinds[name](text)
        except ValueError:
            given[name] = None
        if given[name] is None or not lowest <= given[name] <= highest:  # false for NaN
            a_number = "an integer" if kinds[name] is int else "a number"
            raise GatewayError(f"{option} {word}: give {a_number} from {lowest} to {highest}")
    return Limits(**given)
