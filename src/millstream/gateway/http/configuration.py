"""Where the gateway listens, and which clients that lets in.

Needs none of the gateway's packages: `millstream serve` opens the socket itself, and hands it to the gateway's process.

Names, passwords and tokens: how they are written down, and whether a request has one of them.

Needs none of the gateway's packages, so that `millstream serve` can check them before anything is started.

How much the gateway takes on at once, and how long it waits; what may be changed with `--limit NAME=VALUE`.

Needs none of the gateway's packages: `millstream serve` looks at what is said before it starts anything.
"""

import base64
import binascii
import hmac
import ipaddress
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

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
            f"{host} can be reached from other machines: give credentials with --auth-file FILE, "
            "or --insecure to admit every caller"
        )


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

    passwords: tuple[tuple[str, str], ...] = ()
    tokens: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.passwords or self.tokens)

    def admit(self, authorization: str) -> bool:
        """Whether the value of an `Authorization` header is valid, in constant time."""
        scheme, _, rest = authorization.partition(" ")
        given = rest.strip().encode("latin-1", "replace")  # the bytes that were sent
        if scheme.lower() == "bearer":
            return _any_equal(given, [token.encode() for token in self.tokens])
        if scheme.lower() == "basic":
            try:
                pair = base64.b64decode(given, validate=True)
            except binascii.Error:
                return False
            return _any_equal(pair, [f"{name}:{password}".encode() for name, password in self.passwords])
        return False


def _any_equal(given: bytes, known: Sequence[bytes]) -> bool:
    return sum(hmac.compare_digest(given, one) for one in known) > 0


def read_credentials(text: str) -> Credentials:
    """Lines `basic NAME:PASSWORD` or `bearer TOKEN`. Empty lines and lines that begin with # are ignored."""
    passwords, tokens = [], []
    for number, line in enumerate(text.splitlines(), 1):
        kind, _, rest = line.strip().partition(" ")
        name, colon, password = rest.strip().partition(":")
        if not kind or kind.startswith("#"):
            continue
        if kind == "basic" and name and colon and password:
            passwords.append((name, password))
        elif kind == "bearer" and rest.strip():
            tokens.append(rest.strip())
        else:
            raise CredentialsError(f"line {number}: write 'basic NAME:PASSWORD' or 'bearer TOKEN'")
    if not passwords and not tokens:
        raise CredentialsError("the file has no credentials: write lines 'basic NAME:PASSWORD' or 'bearer TOKEN'")
    return Credentials(tuple(passwords), tuple(tokens))


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
    max_streams: int = 1_000
    """Open server-sent event streams."""
    max_batch_bytes: int = 128 << 20
    """Decompressed size of a batch that is read for a consumer or a stream; beyond it 502."""
    max_batch_records: int = 1_000_000
    """Records in a batch that is read for a consumer or a stream; beyond it 502."""


_RANGES = {
    "max_body_bytes": (1, 512 << 20),  # librdkafka takes records of up to a gigabyte
    "body_timeout_s": (0.1, 86_400.0),
    "max_records": (1, 1_000_000),
    "max_in_flight_bytes": (1, 1 << 37),
    "produce_timeout_s": (0.1, 86_400.0),
    "max_consumers": (0, 1_000_000),
    "max_streams": (0, 1_000_000),
    "max_batch_bytes": (1 << 20, 256 << 20),
    "max_batch_records": (1000, 2**31 - 1),
}


def read_limits(words: Iterable[str], option: str = "--limit") -> Limits:
    """From words `NAME=VALUE`; the last one of a name counts. GatewayError names the option and the valid values."""
    kinds: dict[str, Any] = {field.name: type(field.default) for field in fields(Limits)}
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
