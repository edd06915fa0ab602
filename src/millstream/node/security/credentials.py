"""The credentials that a node verifies logins with: SCRAM users and delegation tokens in the metadata.

A user that does not exist gets a fake credential, which looks like those of other users and stays the same: on all
nodes, and after a restart. It is made with `delegation.token.secret.key`, or, without it, with a stored key.
"""

import asyncio
import hashlib
import hmac
from collections.abc import Callable, Mapping

from millstream.formats.model.access_control import parse_principal
from millstream.node.environment import Environment
from millstream.node.metadata.delegation_tokens import token_hmac, token_password
from millstream.node.metadata.image import MetadataImage
from millstream.node.metadata.records import UserScramCredentialRecord
from millstream.node.security.core.scram import (
    MIN_ITERATIONS,
    Credential,
    Found,
    ScramMechanism,
    credential_of,
    fake_credential,
    salted_password,
)

_TOKENS_AT_ONCE = 2
_MOST_KEPT = 1000


class Credentials:
    def __init__(self, image: Callable[[], MetadataImage], token_secret: str | None, environment: Environment) -> None:
        self._image = image
        self._token_secret = token_secret
        self._environment = environment
        self._turns = asyncio.Semaphore(_TOKENS_AT_ONCE)
        self._of_tokens: dict[tuple[str, str], Credential] = {}
        self._models: (
            tuple[Mapping[tuple[str, int], UserScramCredentialRecord], dict[int, list[UserScramCredentialRecord]]]
            | None
        ) = None

    async def find(self, mechanism: ScramMechanism, name: str, by_token: bool) -> Found:
        """The credential of a user, or of a token, for one login."""
        if by_token:
            return await self._token(mechanism, name)
        stored = self._image().scram_credentials.get((name, mechanism.number))
        if stored is not None:
            return Found(stored, True, name)
        return Found(self._fake(mechanism, name), False, name)

    async def _token(self, mechanism: ScramMechanism, token_id: str) -> Found:
        """A token's password is made from its id. The credential of a token is made at its first login, in a thread,
        and kept. One that does not exist costs nothing, so that a client without a token cannot keep the threads busy.
        Ids are random, so the time of the first login helps no client to guess one."""
        token = self._image().delegation_tokens.get(token_id)
        now_ms = self._environment.clock.now_ms()
        exists = token is not None and self._token_secret is not None
        if token is not None and (token.expiration_timestamp < now_ms or token.max_timestamp < now_ms):
            exists = False
        secret = self._token_secret or (self._image().cluster_id or "")
        salt = hmac.digest(secret.encode(), f"salt\0{mechanism.name}\0{token_id}".encode(), "sha256")
        if token is None or not exists:
            key = hmac.digest(secret.encode(), f"none\0{mechanism.name}\0{token_id}".encode(), "sha512")
            fake = Credential(salt, key[: mechanism.size], key[: mechanism.size], MIN_ITERATIONS)
            return Found(fake, False, token_id, by_token=True)
        owner = parse_principal(token.owner)
        credential = self._of_tokens.get((mechanism.name, token_id))
        if credential is None:
            credential = await self._of_token(mechanism, token_id, secret, salt)
        return Found(credential, True, owner.name, owner.kind, token.expiration_timestamp, True)

    async def _of_token(self, mechanism: ScramMechanism, token_id: str, secret: str, salt: bytes) -> Credential:
        password = token_password(token_hmac(token_id, secret))
        async with self._turns:
            salted = await self._environment.offload(lambda: salted_password(mechanism, password, salt, MIN_ITERATIONS))
        if len(self._of_tokens) >= _MOST_KEPT:
            self._of_tokens.clear()
        made = self._of_tokens[mechanism.name, token_id] = credential_of(mechanism, salted, salt, MIN_ITERATIONS)
        return made

    def _fake(self, mechanism: ScramMechanism, user: str) -> Credential:
        models = self._models_of(mechanism)
        secret = self._fake_secret(models)
        # Which real credential the fake one resembles depends on the user alone.
        number = int.from_bytes(hmac.digest(secret, user.encode(), "sha256")[:8])
        return fake_credential(mechanism, user, secret, models[number % len(models)] if models else None)

    def _fake_secret(self, models: list[UserScramCredentialRecord]) -> bytes:
        basis = self._token_secret.encode() if self._token_secret else models[0].server_key if models else b""
        return hashlib.sha256(b"fake credentials\0" + (self._image().cluster_id or "").encode() + basis).digest()

    def _models_of(self, mechanism: ScramMechanism) -> list[UserScramCredentialRecord]:
        """The stored credentials of a mechanism, by user; made once for each state of the users."""
        stored = self._image().scram_credentials
        if self._models is None or self._models[0] is not stored:
            by_mechanism: dict[int, list[UserScramCredentialRecord]] = {}
            for _, record in sorted(stored.items()):
                by_mechanism.setdefault(record.mechanism, []).append(record)
            self._models = stored, by_mechanism
        return self._models[1].get(mechanism.number, [])
