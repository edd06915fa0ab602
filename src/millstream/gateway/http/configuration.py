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
    """The gateway cannot start as it is asked to; the text says what to do."""


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_address(text: str) -> tuple[str, int]:
    """`HOST:PORT`; a lone port means loopback, an IPv6 address stands in brackets."""
    host, colon, port = text.rpartition(":")
    if not colon:
        host, port = "", text
    bracketed = host.startswith("[") and host.endswith("]")
    if not (port.isascii() and port.isdecimal()) or int(port) > 65_535 or (":" in host and not bracketed):
        raise GatewayError(f"--http {text}: write HOST:PORT, such as 127.0.0.1:8081; port 0 picks a free one")
    return host.strip("[]") or "127.0.0.1", int(port)


def check_exposure(host: str, *, demands_credentials: bool, insecure: bool) -> None:
    """GatewayError if strangers would be let in without anybody having said so."""
    if not is_loopback(host) and not demands_credentials and not insecure:
        raise GatewayError(
            f"{host} can be reached from other machines: name who may ask with --auth-file FILE, "
            "or say --insecure to let everybody in"
        )


def check_certificate(certificate: str | None, key: str | None) -> None:
    """GatewayError unless both are there and belong together, or neither is given."""
    if certificate is None and key is None:
        return
    if certificate is None or key is None:
        raise GatewayError("--tls-cert and --tls-key go together: give both")
    import ssl

    for option, file in (("--tls-cert", certificate), ("--tls-key", key)):
        try:
            open(file, "rb").close()
        except OSError as error:
            raise GatewayError(f"{option} {file}: {error.strerror}: name a file in PEM format") from error
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
    """Whoever connects from now on waits until somebody accepts. Port 0 picks a free one."""
    try:
        ((family, kind, _, _, address), *_) = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        listener = socket.socket(family, kind)
    except OSError as error:
        raise GatewayError(f"{host}: {error.strerror}: name an address of this machine") from error
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
    """The file with credentials cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who is let in: names with passwords, and tokens. Empty: everybody."""

    passwords: tuple[tuple[str, str], ...] = ()
    tokens: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.passwords or self.tokens)

    def admit(self, authorization: str) -> bool:
        """Whether the value of an `Authorization` header is good; takes as long for a wrong guess as for a near one."""
        scheme, _, rest = authorization.partition(" ")
        given = rest.strip().encode("latin-1", "replace")  # as a header is decoded: the bytes that were sent
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
    """Lines `basic NAME:PASSWORD` or `bearer TOKEN`; empty ones and those that begin with # do not count."""
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
        raise CredentialsError("nobody is named there: write lines 'basic NAME:PASSWORD' or 'bearer TOKEN'")
    return Credentials(tuple(passwords), tuple(tokens))


@dataclass(frozen=True, slots=True)
class Limits:
    max_body_bytes: int = 16 << 20
    """Of one request that produces; a streaming request may go on for ever, but no record of it be larger."""
    body_timeout_s: float = 60.0
    """How long the body of a request that produces may take to come, unless it is a stream; then 408."""
    max_records: int = 10_000
    """In one request that produces."""
    max_in_flight_bytes: int = 128 << 20
    """Bodies of producing requests that are not answered yet, together; beyond it 429."""
    produce_timeout_s: float = 30.0
    """How long records may take to be acknowledged by all in-sync replicas; then 504."""
    max_consumers: int = 1_000
    """Open consumers over HTTP, of all groups."""
    max_streams: int = 1_000
    """Open server-sent event streams."""
    max_batch_bytes: int = 128 << 20
    """Of one batch that is read for a consumer or a stream, decompressed; beyond it the batch cannot be read (502)."""
    max_batch_records: int = 1_000_000
    """In one batch that is read for a consumer or a stream; beyond it the batch cannot be read (502)."""


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
    """From words `NAME=VALUE`, of which a later one counts. GatewayError names the option and what would do."""
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
        if given[name] is None or not lowest <= given[name] <= highest:  # which NaN is not
            a_number = "a whole number" if kinds[name] is int else "a number"
            raise GatewayError(f"{option} {word}: give {a_number} from {lowest} to {highest}")
    return Limits(**given)
