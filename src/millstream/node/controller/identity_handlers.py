"""Handlers of the controller for users and tokens: AlterUserScramCredentials (51), Create-, Renew- and
ExpireDelegationToken (38, 39, 40); and the removal of expired tokens.

Who may send them is checked by the authorizer; here are the rules of the APIs themselves.
"""

import asyncio
import logging
import secrets

from millstream.config.broker_config import BrokerConfig
from millstream.config.table import sasl
from millstream.formats.model.access_control import ANONYMOUS, Principal
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.wire_types import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from millstream.node.controller.active_controller import ActiveController
from millstream.node.environment import Environment
from millstream.node.metadata.delegation_tokens import (
    MAX_REMOVED_AT_ONCE,
    TokenLimits,
    create_token,
    expire_token,
    new_token_id,
    remove_expired_tokens,
    renew_token,
    token_hmac,
)
from millstream.node.metadata.scram_users import Deletion, Upsertion, alter_scram_credentials
from millstream.node.server.request import Context
from millstream.node.server.service import Peer

_log = logging.getLogger("millstream.controller")


class ScramUserHandlers:
    def __init__(self, controller: ActiveController) -> None:
        self._controller = controller

    async def alter_user_scram_credentials(
        self, request: AlterUserScramCredentialsRequest, context: Context
    ) -> AlterUserScramCredentialsResponse:
        deletions = [Deletion(row.name, row.mechanism) for row in request.deletions]
        upsertions = [
            Upsertion(row.name, row.mechanism, row.iterations, bytes(row.salt), bytes(row.salted_password))
            for row in request.upsertions
        ]
        results = await self._controller.decide(
            lambda image, config, randomness: alter_scram_credentials(image, deletions, upsertions)
        )
        return {
            "results": [
                {"user": each.user, "error_code": each.error, "error_message": each.message} for each in results
            ]
        }


def token_limits(config: BrokerConfig) -> TokenLimits | None:
    """The settings of tokens; None if there are no tokens."""
    secret = config[sasl.DELEGATION_TOKEN_SECRET_KEY]
    if not secret:
        return None
    return TokenLimits(
        secret, config[sasl.DELEGATION_TOKEN_MAX_LIFETIME_MS], config[sasl.DELEGATION_TOKEN_EXPIRY_TIME_MS]
    )


def check_may_use_tokens(peer: Peer) -> None:
    """Tokens are for authenticated clients, and a token makes no tokens: raises KafkaError."""
    if peer.token_authenticated or peer.principal == ANONYMOUS:
        raise KafkaError(
            ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
            "Requests for delegation tokens need a client that is authenticated, and not by a token.",
        )


class DelegationTokenHandlers:
    def __init__(self, controller: ActiveController, environment: Environment) -> None:
        self._controller = controller
        self._environment = environment
        self._task: asyncio.Task[None] | None = None
        controller.on_leading.append(self._begin)
        controller.on_resigned.append(self.close)

    def _limits(self) -> TokenLimits:
        limits = token_limits(self._controller.config)
        if limits is None:
            raise KafkaError(
                ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, "There are no tokens: delegation.token.secret.key is not set."
            )
        return limits

    async def create_delegation_token(
        self, request: CreateDelegationTokenRequest, context: Context
    ) -> CreateDelegationTokenResponse:
        check_may_use_tokens(context.peer)
        limits, requester = self._limits(), context.peer.principal
        owner = requester
        if context.version >= 3 and request.owner_principal_name:
            owner = Principal(request.owner_principal_type or "", request.owner_principal_name)
        (token,) = await self._controller.decide(
            lambda image, config, randomness: create_token(
                limits,
                token_id=new_token_id(secrets.SystemRandom()),
                owner=owner,
                requester=requester,
                renewers=[Principal(row.principal_type, row.principal_name) for row in request.renewers],
                max_lifetime_ms=request.max_lifetime_ms,
                now_ms=self._environment.clock.now_ms(),
            )
        )
        return {
            "principal_type": owner.kind,
            "principal_name": owner.name,
            "token_requester_principal_type": requester.kind,
            "token_requester_principal_name": requester.name,
            "issue_timestamp_ms": token.issue_timestamp,
            "expiry_timestamp_ms": token.expiration_timestamp,
            "max_timestamp_ms": token.max_timestamp,
            "token_id": token.token_id,
            "hmac": token_hmac(token.token_id, limits.secret),
        }

    async def renew_delegation_token(
        self, request: RenewDelegationTokenRequest, context: Context
    ) -> RenewDelegationTokenResponse:
        check_may_use_tokens(context.peer)
        limits, now_ms = self._limits(), self._environment.clock.now_ms()
        (expires_ms,) = await self._controller.decide(
            lambda image, config, randomness: renew_token(
                image, limits, bytes(request.hmac), context.peer.principal, request.renew_period_ms, now_ms
            )
        )
        return {"expiry_timestamp_ms": expires_ms}

    async def expire_delegation_token(
        self, request: ExpireDelegationTokenRequest, context: Context
    ) -> ExpireDelegationTokenResponse:
        check_may_use_tokens(context.peer)
        limits, now_ms = self._limits(), self._environment.clock.now_ms()
        (expires_ms,) = await self._controller.decide(
            lambda image, config, randomness: expire_token(
                image, limits, bytes(request.hmac), context.peer.principal, request.expiry_time_period_ms, now_ms
            )
        )
        return {"expiry_timestamp_ms": expires_ms}

    # Expiry

    def _begin(self) -> None:
        self.close()
        self._task = self._environment.loop.create_task(self._remove_expired(self._controller.epoch))

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _remove_expired(self, epoch: int) -> None:
        """Removes expired tokens periodically, while this controller is active."""
        controller = self._controller
        while True:
            await asyncio.sleep(controller.config[sasl.DELEGATION_TOKEN_EXPIRY_CHECK_INTERVAL_MS] / 1000)
            if not controller.is_active or controller.epoch != epoch:
                return
            try:
                removed = MAX_REMOVED_AT_ONCE
                while removed >= MAX_REMOVED_AT_ONCE:
                    removed = len(
                        await controller.decide(
                            lambda image, config, randomness: remove_expired_tokens(
                                image, self._environment.clock.now_ms()
                            )
                        )
                    )
            except KafkaError as error:
                if error.code == ErrorCode.NOT_CONTROLLER:
                    return
                _log.warning("token_expiry_failed error=%s", error)
