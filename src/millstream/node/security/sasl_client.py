"""SASL as a client: how this node authenticates to another node, on a new connection.

Every failure is a ConnectionError that names the mechanism and the user, never a secret.
"""

import base64
import contextlib
import secrets
from collections.abc import Generator
from typing import Protocol

from millstream.common.bearer_tokens import TokenError, TokenSource, bearer_token
from millstream.formats.model.errors import ErrorCode
from millstream.node.environment import Environment
from millstream.node.security.core.plain import plain_client
from millstream.node.security.core.scram import ScramMechanism, ServerRefusedError, scram_client
from millstream.node.server.channel import Ask

_TOKEN_TIMEOUT_SECONDS = 10.0


class LoginFailedError(ConnectionError):
    """The other node refused the login, or did not prove that it knows the user."""


class SaslLogin(Protocol):
    """One way to log in. It can be used for many connections."""

    async def log_in(self, ask: Ask, host: str) -> float | None: ...


Conversation = Generator[bytes, bytes, None]
"""The messages of a login that go on with each response."""


def new_nonce() -> str:
    return base64.b64encode(secrets.token_bytes(24)).decode()


async def _handshake(ask: Ask, mechanism: str) -> None:
    response = await ask("sasl_handshake", {"mechanism": mechanism})
    if response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(response.mechanisms) or "none"
        raise LoginFailedError(f"SASL {mechanism}: the other node offers {offered}")
    if response.error_code:
        raise LoginFailedError(f"SASL {mechanism}: {ErrorCode(response.error_code).name}")


async def _send(ask: Ask, what: str, message: bytes) -> tuple[bytes, float | None]:
    response = await ask("sasl_authenticate", {"auth_bytes": message})
    if response.error_code:
        raise LoginFailedError(f"{what}: {response.error_message or ErrorCode(response.error_code).name}")
    lifetime_ms = response.session_lifetime_ms
    return bytes(response.auth_bytes), lifetime_ms / 1000 if lifetime_ms > 0 else None


class PlainLogin:
    def __init__(self, user: str, password: str) -> None:
        self._user = user
        self._password = password

    async def log_in(self, ask: Ask, host: str) -> float | None:
        await _handshake(ask, "PLAIN")
        message = plain_client(self._user, self._password)
        return (await _send(ask, f"SASL PLAIN as {self._user!r}", message))[1]


class ScramLogin:
    def __init__(self, mechanism: ScramMechanism, user: str, password: str, environment: Environment) -> None:
        self._mechanism = mechanism
        self._user = user
        self._password = password
        self._environment = environment

    async def log_in(self, ask: Ask, host: str) -> float | None:
        what = f"SASL {self._mechanism.name} as {self._user!r}"
        conversation = scram_client(self._mechanism, self._user, self._password, new_nonce())
        try:
            return await converse(ask, self._mechanism.name, what, conversation, self._environment)
        except ServerRefusedError as error:
            raise LoginFailedError(f"{what}: the other node cannot be trusted: {error}") from None


async def converse(
    ask: Ask, mechanism: str, what: str, conversation: Conversation, environment: Environment
) -> float | None:
    """Logs in by the messages of a conversation. They are made in a thread: keys and tickets take milliseconds."""
    await _handshake(ask, mechanism)
    message = await environment.offload(lambda: next(conversation, None))
    lifetime_s = None
    while message is not None:
        response, lifetime_s = await _send(ask, what, message)
        message = await environment.offload(_Next(conversation, response))
    return lifetime_s


class _Next:
    def __init__(self, conversation: Conversation, response: bytes) -> None:
        self._conversation = conversation
        self._response = response

    def __call__(self) -> bytes | None:
        try:
            return self._conversation.send(self._response)
        except StopIteration:
            return None


class OAuthBearerLogin:
    """With a token of a file or a token service, which is asked for at each login, so that it can be renewed."""

    def __init__(self, source: TokenSource, environment: Environment) -> None:
        self._source = source
        self._environment = environment

    async def log_in(self, ask: Ask, host: str) -> float | None:
        # Imported here: a node without OAUTHBEARER starts faster.
        from millstream.node.security.core.oauthbearer import oauthbearer_client

        source = self._source
        what = f"SASL OAUTHBEARER with the token of {source.file or source.endpoint}"
        try:
            token, _ = await self._environment.offload(lambda: bearer_token(source, _TOKEN_TIMEOUT_SECONDS))
            first_message = oauthbearer_client(token)
        except (TokenError, ValueError) as error:
            raise LoginFailedError(f"{what}: {error}") from None
        await _handshake(ask, "OAUTHBEARER")
        response, lifetime_s = await _send(ask, what, first_message)
        if response:  # the status of a refused token; the second message ends the login
            with contextlib.suppress(LoginFailedError):
                await _send(ask, what, b"\x01")
            raise LoginFailedError(f"{what}: {response.decode(errors='replace')[:200]}")
        return lifetime_s
