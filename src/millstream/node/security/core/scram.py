"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): credentials, the server's side and the client's side.

The server knows no password: it verifies a proof with a stored key. Channel binding is not supported, so a client that
says that it could use it (`y`) or wants it (`p=`) is refused, as in Kafka. A user that does not exist gets a salt too,
always the same one, and fails at the end, as with a wrong password.

The slow part (PBKDF2) is done when a credential is made, and by clients, never when a server verifies a login.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import field
from typing import NamedTuple, Protocol

from millstream.common.lazy_dataclass import dataclass
from millstream.node.security.core.sasl import Authenticated, AuthenticationError, Challenge

MIN_ITERATIONS = 4096
MAX_ITERATIONS = 16384
"""Kafka's limits for credentials."""
_MOST_CLIENT_ITERATIONS = 1 << 20
_GS2_HEADER = re.compile(r"(n|y|p=[^,]*),(?:a=((?:[^=,]|=2C|=3D)*))?,", re.ASCII)
_NONCE = re.compile(r"[\x21-\x2b\x2d-\x7e]+")
_MOST_NONCE = 1024
_BASE36 = frozenset(b"0123456789abcdefghijklmnopqrstuvwxyz")
_DIGITS = b"0123456789abcdefghijklmnopqrstuvwxyz"


class ScramMechanism(NamedTuple):
    name: str
    number: int
    """The number in metadata records and on the wire."""
    algorithm: str
    size: int


SCRAM_SHA_256 = ScramMechanism("SCRAM-SHA-256", 1, "sha256", 32)
SCRAM_SHA_512 = ScramMechanism("SCRAM-SHA-512", 2, "sha512", 64)
SCRAM_MECHANISMS = {each.name: each for each in (SCRAM_SHA_256, SCRAM_SHA_512)}


class ScramCredential(Protocol):
    """A credential, as the metadata has it (`UserScramCredentialRecord`)."""

    @property
    def salt(self) -> bytes: ...

    @property
    def stored_key(self) -> bytes: ...

    @property
    def server_key(self) -> bytes: ...

    @property
    def iterations(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Credential:
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """PBKDF2: takes milliseconds, so call it in a thread."""
    return hashlib.pbkdf2_hmac(mechanism.algorithm, password.encode(), salt, iterations)


def credential_of(mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int) -> Credential:
    """The credential that a server stores, from a salted password."""
    client_key = hmac.digest(salted, b"Client Key", mechanism.algorithm)
    stored_key = hashlib.new(mechanism.algorithm, client_key).digest()
    return Credential(salt, stored_key, hmac.digest(salted, b"Server Key", mechanism.algorithm), iterations)


def fake_credential(mechanism: ScramMechanism, user: str, secret: bytes, like: ScramCredential | None) -> Credential:
    """A credential for a user that does not exist; no password fits it. Equal for equal arguments.

    `like` is a real credential: the fake one has its iterations, and a salt of the same length and alphabet.
    """
    seed = hmac.digest(secret, f"{mechanism.name}\0{user}".encode(), "sha512")
    length = len(like.salt) if like is not None else 26
    stream = b"".join(hmac.digest(seed, bytes([part]), "sha512") for part in range(length // 64 + 1))[:length]
    if like is None or _BASE36.issuperset(like.salt):  # as Kafka's tools make salts
        stream = bytes(_DIGITS[byte % 36] for byte in stream)
    key = hmac.digest(seed, b"keys", "sha512")[: mechanism.size]
    return Credential(stream, key, key, like.iterations if like is not None else MIN_ITERATIONS)


@dataclass(frozen=True, slots=True)
class Found:
    """What the server knows about a user or a token."""

    credential: ScramCredential
    exists: bool
    """False: the credential is a fake."""
    user: str
    """The authenticated user: of a token, its owner."""
    kind: str = "User"
    expires_at_ms: int | None = None
    by_token: bool = False


Find = Callable[[str, bool], Awaitable[Found]]
"""The credential of a user, or of a token if the second argument is true."""


class ScramServer:
    """The server's side of one login."""

    def __init__(self, mechanism: ScramMechanism, find: Find, new_nonce: Callable[[], str]) -> None:
        self._mechanism = mechanism
        self._find = find
        self._new_nonce = new_nonce
        self._first: _ClientFirst | None = None
        self._found: Found | None = None
        self._nonce = ""
        self._server_first = ""

    async def step(self, message: bytes) -> "Challenge | Authenticated":
        text = _decoded(message)
        if self._first is None:
            return await self._begin(text)
        return self._finish(text)

    async def _begin(self, text: str) -> Challenge:
        first = self._first = _client_first(text)
        found = self._found = await self._find(first.user, first.by_token)
        if first.authorization_id and first.authorization_id != first.user:
            raise AuthenticationError(
                "Authentication failed: Client requested an authorization id that is different from username",
                is_public=True,
            )
        self._nonce = first.nonce + self._new_nonce()
        credential = found.credential
        salt = base64.b64encode(credential.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={credential.iterations}"
        return Challenge(self._server_first.encode())

    def _finish(self, text: str) -> Authenticated:
        assert self._first is not None and self._found is not None
        first, found, algorithm = self._first, self._found, self._mechanism.algorithm
        bare, separator, proof_text = text.rpartition(",p=")
        fields = _attributes(bare)
        if not separator or list(fields)[:2] != ["c", "r"] or "m" in fields:
            raise AuthenticationError("the final message is malformed")
        proof = _base64(proof_text)
        # The header that the client sent is part of what it proves: a changed one is found here.
        binds = hmac.compare_digest(_base64(fields["c"]), first.header.encode())
        same_nonce = hmac.compare_digest(fields["r"].encode(), self._nonce.encode())
        message = ",".join((first.bare, self._server_first, bare)).encode()
        signature = hmac.digest(found.credential.stored_key, message, algorithm)
        fits = len(proof) == len(signature)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=False))
        key = hashlib.new(algorithm, client_key).digest()
        proved = hmac.compare_digest(key, found.credential.stored_key)
        signature = base64.b64encode(hmac.digest(found.credential.server_key, message, algorithm))
        if not same_nonce:
            raise AuthenticationError("the nonce in the final message is not that of this login")
        if not binds:
            raise AuthenticationError("the channel binding in the final message is not that of the first message")
        if not (fits and proved and found.exists):
            raise AuthenticationError("the user does not exist, or the password is wrong")
        return Authenticated(
            b"v=" + signature, found.user, kind=found.kind, expires_at_ms=found.expires_at_ms, by_token=found.by_token
        )


@dataclass(frozen=True, slots=True)
class _ClientFirst:
    header: str
    bare: str
    user: str
    nonce: str
    authorization_id: str
    by_token: bool


def _client_first(text: str) -> _ClientFirst:
    header = _GS2_HEADER.match(text)
    if header is None:
        raise AuthenticationError("the first message is malformed")
    if header[1] != "n":
        raise AuthenticationError("the client wants channel binding, which is not supported")
    bare = text[header.end() :]
    fields = _attributes(bare)
    if list(fields)[:2] != ["n", "r"]:
        raise AuthenticationError("the first message is malformed: it has no user and nonce, or an extension first")
    nonce = fields["r"]
    if not _NONCE.fullmatch(nonce) or len(nonce) > _MOST_NONCE:
        raise AuthenticationError("the nonce of the client is malformed")
    return _ClientFirst(
        header[0],
        bare,
        _name(fields["n"]),
        nonce,
        _name(header[2]) if header[2] else "",
        fields.get("tokenauth", "").lower() == "true",
    )


def _name(text: str) -> str:
    """A name of the wire, where `=2C` is a comma and `=3D` an equals sign."""
    if not text or re.search(r"=(?!2C|3D)", text):
        raise AuthenticationError("the name of the user is malformed")
    return text.replace("=2C", ",").replace("=3D", "=")


def _attributes(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not (name and equals and name.isascii() and name.isalpha()) or name in fields:
            raise AuthenticationError("a message is malformed: an attribute is empty, or written twice")
        fields[name] = value
    return fields


def _decoded(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise AuthenticationError("a message is not UTF-8") from None


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise AuthenticationError("a message has invalid base64") from None


class ServerRefusedError(Exception):
    """The server did not prove that it knows the credential, or sent a malformed message."""


def scram_client(
    mechanism: ScramMechanism, user: str, password: str, nonce: str, extensions: Mapping[str, str] | None = None
) -> Generator[bytes, bytes, None]:
    """The client's side: yields messages, gets responses. Ends when the server has proved that it knows the user."""
    escaped = user.replace("=", "=3D").replace(",", "=2C")
    first_bare = ",".join(
        (f"n={escaped},r={nonce}", *(f"{name}={value}" for name, value in (extensions or {}).items()))
    )
    server_first = (yield f"n,,{first_bare}".encode()).decode("utf-8", "replace")
    try:
        fields = _attributes(server_first)
        full_nonce, salt, iterations = fields["r"], _base64(fields["s"]), int(fields["i"])
    except (KeyError, ValueError, AuthenticationError):
        raise ServerRefusedError("its first SCRAM message is malformed") from None
    if not full_nonce.startswith(nonce) or len(full_nonce) == len(nonce):
        raise ServerRefusedError("its SCRAM nonce does not begin with that of this node")
    if not MIN_ITERATIONS <= iterations <= _MOST_CLIENT_ITERATIONS:
        raise ServerRefusedError(f"its SCRAM credential has {iterations} iterations")
    salted = salted_password(mechanism, password, salt, iterations)
    credential = credential_of(mechanism, salted, salt, iterations)
    final_bare = f"c=biws,r={full_nonce}"
    message = ",".join((first_bare, server_first, final_bare)).encode()
    client_key = hmac.digest(salted, b"Client Key", mechanism.algorithm)
    signature = hmac.digest(credential.stored_key, message, mechanism.algorithm)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()
    server_final = yield f"{final_bare},p={proof}".encode()
    expected = b"v=" + base64.b64encode(hmac.digest(credential.server_key, message, mechanism.algorithm))
    if not hmac.compare_digest(server_final, expected):
        raise ServerRefusedError("the other side did not prove that it has the credential")
