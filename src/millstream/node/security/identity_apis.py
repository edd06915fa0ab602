"""Users and tokens as a broker shows them: DescribeUserScramCredentials (50), DescribeDelegationToken (41).

Both come from the metadata image of this broker. Changes are requests to the controller
(`node/controller/identity_handlers.py`).
"""

from collections.abc import Callable

from millstream.formats.model.access_control import (
    ANONYMOUS,
    AclOperation,
    AclResourceType,
    Principal,
    parse_principal,
)
from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.wire_types import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from millstream.node.metadata.delegation_tokens import describe_tokens, token_hmac
from millstream.node.metadata.image import MetadataImage
from millstream.node.metadata.scram_users import describe_scram_users
from millstream.node.server.authorization import Authorizer
from millstream.node.server.request import Context


class IdentityHandlers:
    def __init__(
        self, image: Callable[[], MetadataImage], token_secret: Callable[[], str | None], authorizer: Authorizer
    ) -> None:
        self._image = image
        self._token_secret = token_secret
        self._authorizer = authorizer

    def describe_user_scram_credentials(
        self, request: DescribeUserScramCredentialsRequest, context: Context
    ) -> DescribeUserScramCredentialsResponse:
        users = None if request.users is None else [row.name for row in request.users]
        return {
            "error_message": None,
            "results": [
                {
                    "user": row.user,
                    "error_code": row.error,
                    "error_message": row.message,
                    "credential_infos": [
                        {"mechanism": mechanism, "iterations": iterations} for mechanism, iterations in row.credentials
                    ],
                }
                for row in describe_scram_users(self._image(), users)
            ],
        }

    def describe_delegation_token(
        self, request: DescribeDelegationTokenRequest, context: Context
    ) -> DescribeDelegationTokenResponse:
        peer = context.peer
        if peer.token_authenticated or peer.principal == ANONYMOUS:
            return {"error_code": ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, "tokens": []}
        secret = self._token_secret()
        if not secret:
            return {"error_code": ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, "tokens": []}
        owners = None
        if request.owners is not None:
            owners = [Principal(row.principal_type, row.principal_name) for row in request.owners]
        may = self._authorizer.sees
        tokens = describe_tokens(
            self._image(),
            owners,
            peer.principal,
            may_describe_token=lambda token_id: may(
                peer, AclOperation.DESCRIBE, AclResourceType.DELEGATION_TOKEN, token_id
            ),
            may_describe_of=lambda owner: may(peer, AclOperation.DESCRIBE_TOKENS, AclResourceType.USER, str(owner)),
        )
        return {
            "tokens": [
                {
                    "principal_type": parse_principal(token.owner).kind,
                    "principal_name": parse_principal(token.owner).name,
                    "token_requester_principal_type": parse_principal(token.requester).kind,
                    "token_requester_principal_name": parse_principal(token.requester).name,
                    "issue_timestamp": token.issue_timestamp,
                    "expiry_timestamp": token.expiration_timestamp,
                    "max_timestamp": token.max_timestamp,
                    "token_id": token.token_id,
                    "hmac": token_hmac(token.token_id, secret),
                    "renewers": [
                        {"principal_type": each.kind, "principal_name": each.name}
                        for each in map(parse_principal, token.renewers)
                    ],
                }
                for token in tokens
            ]
        }
