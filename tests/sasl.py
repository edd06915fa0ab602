"""SASL in tests: the settings of a broker with all mechanisms, an issuer of tokens, and logins on a raw connection."""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joserfc import jwt
from joserfc.jwk import RSAKey

from millstream.formats.protocol.schema import Message
from millstream.node.security.core.scram import SCRAM_MECHANISMS, salted_password, scram_client
from tests.wire import Wire

MODULES = "org.apache.kafka.common.security"
LISTENER = "listener.name.plaintext"
PASSWORD = "alice-secret-1"
TOKEN_SECRET = "token-secret-1"
ISSUER = "https://issuer.test"
FAILURE_DELAY_MS = 20


@dataclass
class Issuer:
    """Signs tokens; its public keys are in a file."""

    path: Path
    keys: dict[str, RSAKey] = field(default_factory=dict)

    def rotate(self, kid: str) -> None:
        self.keys = {kid: RSAKey.generate_key(2048, {"kid": kid})}
        document = {"keys": [key.as_dict(private=False) for key in self.keys.values()]}
        self.path.with_suffix(".new").write_text(json.dumps(document))
        self.path.with_suffix(".new").replace(self.path)

    def token(self, user: str, *, lives_s: float = 300, **claims: Any) -> str:
        ((kid, key),) = self.keys.items()
        now = time.time()
        content = {"sub": user, "iss": ISSUER, "aud": "kafka", "iat": now, "exp": now + lives_s, **claims}
        return jwt.encode({"alg": "RS256", "kid": kid}, content, key, algorithms=["RS256"])


def sasl_settings(issuer: Issuer) -> dict[str, Any]:
    return {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "connection.failed.authentication.delay.ms": FAILURE_DELAY_MS,
        "delegation.token.secret.key": TOKEN_SECRET,
        f"{LISTENER}.plain.sasl.jaas.config": f"{MODULES}.plain.PlainLoginModule required "
        f'username="admin" password="admin-secret-1" user_admin="admin-secret-1" user_alice="{PASSWORD}";',
        f"{LISTENER}.scram-sha-512.connections.max.reauth.ms": 3000,
        f"{LISTENER}.oauthbearer.sasl.server.callback.handler.class": (
            f"{MODULES}.oauthbearer.OAuthBearerValidatorCallbackHandler"
        ),
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{issuer.path}",
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": "kafka",
    }


def handshake(wire: Wire, mechanism: str) -> Message:
    return wire.call("sasl_handshake", 1, mechanism=mechanism)


def authenticate(wire: Wire, message: bytes, version: int = 2) -> Message:
    return wire.call("sasl_authenticate", version, auth_bytes=message)


def plain(wire: Wire, user: str = "admin", password: str = "admin-secret-1") -> Message:
    handshake(wire, "PLAIN")
    return authenticate(wire, f"\0{user}\0{password}".encode())


def scram(wire: Wire, mechanism: str, user: str, password: str, extensions: dict[str, str] | None = None) -> Message:
    """Logs in; returns the last response, or the first one with an error."""
    handshake(wire, mechanism)
    client: Generator[bytes, bytes, None] = scram_client(
        SCRAM_MECHANISMS[mechanism], user, password, "clientnonce", extensions
    )
    message = next(client)
    while True:
        response = authenticate(wire, message)
        if response.error_code:
            return response
        try:
            message = client.send(response.auth_bytes)
        except StopIteration:
            return response


def upsertion(user: str, password: str, mechanism: str, iterations: int = 4096, salt: bytes = b"somesalt") -> Any:
    made = SCRAM_MECHANISMS[mechanism]
    return {
        "name": user,
        "mechanism": made.number,
        "iterations": iterations,
        "salt": salt,
        "salted_password": salted_password(made, password, salt, max(iterations, 1)),
    }
