"""TLS contexts from settings, and SASL authentication: PLAIN, SCRAM (RFC 5802) with SHA-256 or SHA-512, OAUTHBEARER
(RFC 7628)."""

import base64
import hashlib
import hmac
import os
import secrets
import ssl
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import field

from millstream.common import bearer_tokens
from millstream.common.bearer_tokens import TokenError, TokenSource
from millstream.common.lazy_dataclass import dataclass
from millstream.common.pkcs12 import StoreContent, StoreError, looks_like_pkcs12, read_pkcs12
from millstream.formats.model.errors import ErrorCode
from millstream.raw_client.connection import Connection
from millstream.raw_client.errors import RefusedError, SetupError, error_code

_VERSIONS = {"TLSV1.2": ssl.TLSVersion.TLSv1_2, "TLSV1.3": ssl.TLSVersion.TLSv1_3}
_JKS = b"\xfe\xed\xfe\xed"
_TRUST_STORE = "ssl.truststore.location (ssl.ca.location)"
_KEY_STORE = "ssl.keystore.location (ssl.certificate.location)"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Certificates as files (PEM or PKCS12) or text. The CA certificates of the system are the default."""

    ca_location: str | None = None
    ca_pem: str | None = None
    ca_password: str | None = field(default=None, repr=False)
    """The password of a PKCS12 store of CA certificates."""
    certificate_location: str | None = None
    certificate_pem: str | None = None
    key_location: str | None = None
    key_pem: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    store_password: str | None = field(default=None, repr=False)
    """The password of a PKCS12 store at `certificate_location`."""
    checks_host: bool = True
    checks_certificate: bool = True
    protocols: tuple[str, ...] = ()
    newest_protocol: str | None = None
    ciphers: str | None = None


def make_context(settings: TlsSettings) -> ssl.SSLContext:
    """The TLS context. Reads all files at once, so that errors are found before the first connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.checks_host and settings.checks_certificate
    if not settings.checks_certificate:
        context.verify_mode = ssl.CERT_NONE
    _restrict(context, settings)
    _trust(context, settings)
    _identify(context, settings)
    return context


def _restrict(context: ssl.SSLContext, settings: TlsSettings) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.protocols:
        enabled = [_version("ssl.enabled.protocols", each) for each in settings.protocols]
        context.minimum_version, context.maximum_version = min(enabled), max(enabled)
    if settings.newest_protocol and settings.newest_protocol.upper() not in ("TLS", "SSL"):
        newest = _version("ssl.protocol", settings.newest_protocol)
        context.maximum_version = min(newest, max(_VERSIONS.values()))
    if settings.ciphers:
        try:
            context.set_ciphers(settings.ciphers.replace(",", ":"))
        except ssl.SSLError as error:
            raise SetupError(
                f"ssl.cipher.suites={settings.ciphers}: OpenSSL has none of them; `openssl ciphers` lists its names"
            ) from error


def _version(setting: str, name: str) -> ssl.TLSVersion:
    found = _VERSIONS.get(name.upper())
    if found is None:
        raise SetupError(f"{setting}={name}: give TLSv1.2 or TLSv1.3")
    return found


def _trust(context: ssl.SSLContext, settings: TlsSettings) -> None:
    if settings.ca_location is None and settings.ca_pem is None:
        context.load_default_certs()
        return
    where = settings.ca_location or "ssl.ca.pem"
    try:
        if settings.ca_location is not None:
            store = pkcs12_store(settings.ca_location, settings.ca_password, _TRUST_STORE, may_be_directory=True)
            if store is not None:
                context.load_verify_locations(cadata=store.certificates_pem)
            elif os.path.isdir(settings.ca_location):
                context.load_verify_locations(capath=settings.ca_location)
            else:
                context.load_verify_locations(cafile=settings.ca_location)
        if settings.ca_pem is not None:
            context.load_verify_locations(cadata=settings.ca_pem)
    except (ssl.SSLError, ValueError) as error:
        raise SetupError(f"{where}: it has no certificates in PEM format ({error})") from error


def _identify(context: ssl.SSLContext, settings: TlsSettings) -> None:
    certificate, key = settings.certificate_location, settings.key_location
    if certificate is None and settings.certificate_pem is None:
        if key is not None or settings.key_pem is not None:
            raise SetupError("a key without a certificate: give ssl.certificate.location or ssl.keystore.location too")
        return
    certificate_pem, key_pem = settings.certificate_pem, settings.key_pem
    if certificate is not None:
        store = pkcs12_store(certificate, settings.store_password or settings.key_password, _KEY_STORE)
        if store is not None:
            if store.key_pem is None:
                raise SetupError(f"{_KEY_STORE}={certificate}: the store has no key")
            certificate_pem, key_pem, certificate = store.certificates_pem, store.key_pem, None
    if key is not None and pkcs12_store(key, None, "ssl.key.location") is not None:
        raise SetupError(f"ssl.key.location={key}: give a PEM file; a PKCS12 store goes to ssl.keystore.location")
    password = settings.key_password or ""
    with _file(certificate, certificate_pem) as chain, _file(key, key_pem) as key_file:
        try:
            # Always a callable: without one OpenSSL asks for a password at the terminal.
            context.load_cert_chain(chain or "", key_file, password=lambda: password)
        except (ssl.SSLError, ValueError) as error:
            shown = settings.certificate_location or "the given certificate"
            raise SetupError(
                f"{shown}: certificate and key cannot be used ({getattr(error, 'reason', None) or error}):"
                " check that the key is in it or in ssl.key.location and belongs to it, and ssl.key.password"
            ) from error


def pkcs12_store(
    path: str, password: str | None, setting: str, *, may_be_directory: bool = False
) -> StoreContent | None:
    """The content of a PKCS12 store; None if the file is not one, and so should be PEM. Refuses Java's JKS."""
    if may_be_directory and os.path.isdir(path):
        return None
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise SetupError(f"{setting}={path}: {(error.strerror or str(error)).lower()}") from error
    if content[:4] == _JKS:
        raise SetupError(
            f"{setting}={path} is a Java key store (JKS): `keytool -importkeystore -srckeystore FILE -destkeystore"
            " FILE.p12 -deststoretype PKCS12` converts it to PKCS12, which can be used"
        )
    if not looks_like_pkcs12(content):
        return None
    try:
        return read_pkcs12(content, password)
    except StoreError as error:
        name = "ssl.truststore.password" if setting == _TRUST_STORE else "ssl.keystore.password"
        raise SetupError(f"{setting}={path}: the PKCS12 store cannot be read: {error}: check {name}") from error


@contextmanager
def _file(path: str | None, text: str | None) -> Iterator[str | None]:
    """A file with the text, as Python reads keys only from files. Only this user can read it, and it is removed."""
    if path is not None or text is None:
        yield path
        return
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(text)
        file.flush()
        yield file.name


_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
BEARER = "OAUTHBEARER"
MECHANISMS = ("PLAIN", *_HASHES, BEARER)
_FEWEST_ITERATIONS = 4096
_MOST_ITERATIONS = 10_000_000
"""A limit, because more iterations would take minutes of CPU time."""
_RENEW_AT = 0.85
"""The part of the session lifetime after which a connection is replaced."""

Conversation = Generator[bytes, bytes, None]
"""Yields messages to send, receives responses; ends when the server is authenticated too."""


@dataclass(frozen=True, slots=True)
class SaslSettings:
    mechanism: str
    username: str
    password: str = field(repr=False)
    by_token: bool = False
    """SCRAM with a delegation token: the user is its id, the password its HMAC (`tokenauth=true` in Java)."""
    bearer: TokenSource | None = None
    """The source of tokens for OAUTHBEARER."""


def authenticate(connection: Connection, settings: SaslSettings, timeout_s: float) -> None:
    """Authenticates on a new connection; raises if the broker refuses."""
    who = f" as {settings.username!r}" if settings.username else ""
    where = f"{connection.address}: SASL {settings.mechanism}{who}"
    if not connection.knows("sasl_handshake"):
        raise _no_sasl(where)
    response = connection.ask("sasl_handshake", {"mechanism": settings.mechanism}, timeout_s)
    if response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(response.mechanisms) or "none"
        raise SetupError(f"{where}: the broker offers {offered}: change sasl.mechanism")
    if response.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        raise _no_sasl(where)
    if response.error_code:
        raise RefusedError(f"{where} was refused", error_code(response.error_code))
    lifetime_ms = 0
    conversation = _conversation(settings, where, timeout_s)
    message = next(conversation)
    while True:
        response = connection.ask("sasl_authenticate", {"auth_bytes": message}, timeout_s)
        if response.error_code:
            reason = response.error_message or "the broker gives no reason"
            check = "the token" if settings.bearer else "user and password"
            raise RefusedError(f"{where}: {reason.rstrip('.')}: check {check}", error_code(response.error_code))
        lifetime_ms = response.session_lifetime_ms
        try:
            message = conversation.send(response.auth_bytes)
        except StopIteration:
            break
    if lifetime_ms > 0:
        connection.expires_at = time.monotonic() + lifetime_ms / 1000 * _RENEW_AT


def _no_sasl(where: str) -> SetupError:
    return SetupError(
        f"{where}: this listener does not use SASL: use another port, or security.protocol PLAINTEXT or SSL"
    )


def _conversation(settings: SaslSettings, where: str, timeout_s: float) -> Conversation:
    if settings.bearer is not None:
        return _bearer(bearer_token(settings.bearer, timeout_s)[0])
    if settings.mechanism in _HASHES:
        hash_name = _HASHES[settings.mechanism]
        return scram(hash_name, settings.username, settings.password, where, by_token=settings.by_token)
    return _plain(settings.username, settings.password)


def _bearer(token: str) -> Conversation:
    response = yield f"n,,\x01auth=Bearer {token}\x01\x01".encode()
    if response:  # a refusal: the broker gives its error code after this
        yield b"\x01"


def _plain(username: str, password: str) -> Conversation:
    yield b"\0".join((b"", username.encode(), password.encode()))


def scram(
    algorithm: str, username: str, password: str, where: str, nonce: str | None = None, *, by_token: bool = False
) -> Conversation:
    """SCRAM as in RFC 5802, with its names, without channel binding."""
    own_nonce = nonce or secrets.token_urlsafe(24)
    escaped = username.replace("=", "=3D").replace(",", "=2C")
    client_first_bare = f"n={escaped},r={own_nonce}" + (",tokenauth=true" if by_token else "")
    server_first = (yield f"n,,{client_first_bare}".encode()).decode("utf-8", "replace")
    fields = _attributes(server_first)
    try:
        full_nonce, salt, iterations = fields["r"], base64.b64decode(fields["s"], validate=True), int(fields["i"])
    except (KeyError, ValueError) as error:
        raise SetupError(f"{where}: the broker's SCRAM message is malformed") from error
    if not full_nonce.startswith(own_nonce) or len(full_nonce) == len(own_nonce):
        raise SetupError(f"{where}: the broker's nonce does not match: is there a proxy in between?")
    if not _FEWEST_ITERATIONS <= iterations <= _MOST_ITERATIONS:
        raise SetupError(
            f"{where}: {iterations} iterations, not {_FEWEST_ITERATIONS} to {_MOST_ITERATIONS}: set the password again"
        )
    salted_password = hashlib.pbkdf2_hmac(algorithm, password.encode(), salt, iterations)
    client_key = hmac.digest(salted_password, b"Client Key", algorithm)
    stored_key = hashlib.new(algorithm, client_key).digest()
    client_final_bare = f"c={base64.b64encode(b'n,,').decode()},r={full_nonce}"
    auth_message = ",".join((client_first_bare, server_first, client_final_bare)).encode()
    signature = hmac.digest(stored_key, auth_message, algorithm)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    server_final = yield f"{client_final_bare},p={base64.b64encode(proof).decode()}".encode()
    server_key = hmac.digest(salted_password, b"Server Key", algorithm)
    expected = base64.b64encode(hmac.digest(server_key, auth_message, algorithm)).decode()
    if not hmac.compare_digest(
        _attributes(server_final.decode("utf-8", "replace")).get("v", "").encode(), expected.encode()
    ):
        raise SetupError(f"{where}: the broker did not prove that it has the password: check the address of the broker")


def _attributes(message: str) -> dict[str, str]:
    return {part[:1]: part[2:] for part in message.split(",") if part[1:2] == "="}


def bearer_token(source: TokenSource, timeout_s: float) -> tuple[str, float]:
    """A token for OAUTHBEARER, and the time of its end in seconds since 1970. SetupError if there is none."""
    try:
        return bearer_tokens.bearer_token(source, timeout_s)
    except TokenError as error:
        raise SetupError(str(error)) from error
