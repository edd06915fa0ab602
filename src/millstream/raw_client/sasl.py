"""Telling a broker who we are: SASL's PLAIN, and SCRAM (RFC 5802) with SHA-256 or SHA-512."""

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Generator
from dataclasses import dataclass, field

from millstream.formats.model.errors import ErrorCode
from millstream.raw_client.connection import Connection
from millstream.raw_client.errors import RefusedError, SetupError, error_code

_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MECHANISMS = ("PLAIN", *_HASHES)
_FEWEST_ITERATIONS = 4096
_MOST_ITERATIONS = 10_000_000
"""More would keep us busy for minutes at a stranger's word."""
_RENEW_AT = 0.85
"""Of a session's lifetime: as early a connection is given up for a fresh one."""

Conversation = Generator[bytes, bytes, None]
"""Yields what to send, is sent what came back; ends when the server has proved itself too."""


@dataclass(frozen=True, slots=True)
class SaslSettings:
    mechanism: str
    username: str
    password: str = field(repr=False)


def authenticate(connection: Connection, settings: SaslSettings, timeout_s: float) -> None:
    """Proves who we are on a fresh connection; raises if the broker does not believe it."""
    where = f"{connection.address}: SASL {settings.mechanism} as {settings.username!r}"
    if not connection.knows("sasl_handshake"):
        raise _no_sasl(where)
    answer = connection.ask("sasl_handshake", {"mechanism": settings.mechanism}, timeout_s)
    if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(answer.mechanisms) or "none"
        raise SetupError(f"{where}: the broker offers {offered}: change sasl.mechanism")
    if answer.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        raise _no_sasl(where)
    if answer.error_code:
        raise RefusedError(f"{where} was refused", error_code(answer.error_code))
    lifetime_ms = 0
    conversation = _conversation(settings, where)
    message = next(conversation)
    while True:
        answer = connection.ask("sasl_authenticate", {"auth_bytes": message}, timeout_s)
        if answer.error_code:
            reason = answer.error_message or "the broker does not say why"
            raise RefusedError(f"{where}: {reason}: check user and password", error_code(answer.error_code))
        lifetime_ms = answer.session_lifetime_ms
        try:
            message = conversation.send(answer.auth_bytes)
        except StopIteration:
            break
    if lifetime_ms > 0:
        connection.expires_at = time.monotonic() + lifetime_ms / 1000 * _RENEW_AT


def _no_sasl(where: str) -> SetupError:
    return SetupError(f"{where}: this listener has no SASL: use another port, or security.protocol PLAINTEXT or SSL")


def _conversation(settings: SaslSettings, where: str) -> Conversation:
    if settings.mechanism in _HASHES:
        return scram(_HASHES[settings.mechanism], settings.username, settings.password, where)
    return _plain(settings.username, settings.password)


def _plain(username: str, password: str) -> Conversation:
    yield b"\0".join((b"", username.encode(), password.encode()))


def scram(algorithm: str, username: str, password: str, where: str, nonce: str | None = None) -> Conversation:
    """As RFC 5802 has it, without channel binding; names of its parts are the RFC's."""
    own_nonce = nonce or secrets.token_urlsafe(24)
    escaped = username.replace("=", "=3D").replace(",", "=2C")
    client_first_bare = f"n={escaped},r={own_nonce}"
    server_first = (yield f"n,,{client_first_bare}".encode()).decode("utf-8", "replace")
    fields = _attributes(server_first)
    try:
        full_nonce, salt, iterations = fields["r"], base64.b64decode(fields["s"], validate=True), int(fields["i"])
    except (KeyError, ValueError) as error:
        raise SetupError(f"{where}: the broker's SCRAM message makes no sense") from error
    if not full_nonce.startswith(own_nonce) or len(full_nonce) == len(own_nonce):
        raise SetupError(f"{where}: the broker answers to somebody else's nonce: is something in between?")
    if not _FEWEST_ITERATIONS <= iterations <= _MOST_ITERATIONS:
        raise SetupError(
            f"{where}: {iterations} iterations, not {_FEWEST_ITERATIONS} to {_MOST_ITERATIONS}: set the password anew"
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
        raise SetupError(f"{where}: the broker does not know the password itself: is it the right one?")


def _attributes(message: str) -> dict[str, str]:
    return {part[:1]: part[2:] for part in message.split(",") if part[1:2] == "="}
