"""Delegation tokens: Create (38), Renew (39), Expire (40) and Describe (41) DelegationToken, and their expiry.

A token is an id; its password is the HMAC of the id with `delegation.token.secret.key`, as base64. So it is nowhere
stored. The owner, the requester and the renewers may renew and expire a token.
"""

import base64
import hmac
import random
from collections.abc import Callable, Sequence

from millstream.common.lazy_dataclass import dataclass
from millstream.formats.model.access_control import USER, Principal, parse_principal
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.metadata.image import MetadataImage
from millstream.node.metadata.records import Decision, DelegationTokenRecord, RemoveDelegationTokenRecord

MAX_RENEWERS = 256
MAX_REMOVED_AT_ONCE = 1000


def token_hmac(token_id: str, secret: str) -> bytes:
    return hmac.digest(secret.encode(), token_id.encode(), "sha512")


def token_password(digest: bytes) -> str:
    """The password with which a client logs in by SCRAM."""
    return base64.b64encode(digest).decode()


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """The settings of tokens."""

    secret: str
    max_lifetime_ms: int
    expiry_time_ms: int


def new_token_id(randomness: random.Random) -> str:
    """22 characters, as Kafka's ids of tokens."""
    return base64.urlsafe_b64encode(randomness.randbytes(16)).rstrip(b"=").decode()


def create_token(
    limits: TokenLimits,
    *,
    token_id: str,
    owner: Principal,
    requester: Principal,
    renewers: Sequence[Principal],
    max_lifetime_ms: int,
    now_ms: int,
) -> Decision[DelegationTokenRecord]:
    if any(each.kind != USER for each in (*renewers, owner)):
        raise KafkaError(ErrorCode.INVALID_PRINCIPAL_TYPE, "Owners and renewers of tokens must be of type User.")
    if len(renewers) > MAX_RENEWERS:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"A token can have at most {MAX_RENEWERS} renewers.")
    lifetime_ms = limits.max_lifetime_ms if max_lifetime_ms <= 0 else min(max_lifetime_ms, limits.max_lifetime_ms)
    record = DelegationTokenRecord(
        owner=str(owner),
        requester=str(requester),
        renewers=tuple(dict.fromkeys(str(each) for each in renewers)),
        issue_timestamp=now_ms,
        max_timestamp=now_ms + lifetime_ms,
        expiration_timestamp=min(now_ms + lifetime_ms, now_ms + limits.expiry_time_ms),
        token_id=token_id,
    )
    return Decision((record,), (record,))


def renew_token(
    image: MetadataImage, limits: TokenLimits, digest: bytes, caller: Principal, period_ms: int, now_ms: int
) -> Decision[int]:
    """The result is the new time of expiry."""
    token = _found(image, limits, digest)
    _check_not_expired(token, now_ms)
    _check_may_renew(token, caller)
    return _moved(token, now_ms + (limits.expiry_time_ms if period_ms < 0 else period_ms))


def expire_token(
    image: MetadataImage, limits: TokenLimits, digest: bytes, caller: Principal, period_ms: int, now_ms: int
) -> Decision[int]:
    """A negative period removes the token at once."""
    token = _found(image, limits, digest)
    _check_may_renew(token, caller)
    if period_ms < 0:
        return Decision((RemoveDelegationTokenRecord(token_id=token.token_id),), (now_ms,))
    _check_not_expired(token, now_ms)
    return _moved(token, now_ms + period_ms)


def remove_expired_tokens(image: MetadataImage, now_ms: int) -> Decision[str]:
    """Removes some of the expired tokens. The results are their ids."""
    expired = [
        token.token_id
        for token in image.delegation_tokens.values()
        if token.expiration_timestamp < now_ms or token.max_timestamp < now_ms
    ][:MAX_REMOVED_AT_ONCE]
    return Decision(tuple(RemoveDelegationTokenRecord(token_id=each) for each in expired), tuple(expired))


def describe_tokens(
    image: MetadataImage,
    owners: Sequence[Principal] | None,
    caller: Principal,
    *,
    may_describe_token: Callable[[str], bool],
    may_describe_of: Callable[[Principal], bool],
) -> list[DelegationTokenRecord]:
    """The tokens of these owners (None: of all) that the caller may see: its own, and those it has a right for."""
    shown = []
    for token in image.delegation_tokens.values():
        if owners is not None and not any(_is_owner_or_renewer(token, owner) for owner in owners):
            continue
        if (
            _is_owner_or_renewer(token, caller)
            or may_describe_token(token.token_id)
            or may_describe_of(parse_principal(token.owner))
        ):
            shown.append(token)
    return shown


def _moved(token: DelegationTokenRecord, until_ms: int) -> Decision[int]:
    expires_ms = min(token.max_timestamp, until_ms)
    record = DelegationTokenRecord(
        owner=token.owner,
        requester=token.requester,
        renewers=token.renewers,
        issue_timestamp=token.issue_timestamp,
        max_timestamp=token.max_timestamp,
        expiration_timestamp=expires_ms,
        token_id=token.token_id,
    )
    return Decision((record,), (expires_ms,))


def _found(image: MetadataImage, limits: TokenLimits, digest: bytes) -> DelegationTokenRecord:
    found = None
    for token in image.delegation_tokens.values():
        if hmac.compare_digest(token_hmac(token.token_id, limits.secret), digest):
            found = token
    if found is None:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "There is no token with this HMAC.")
    return found


def _check_not_expired(token: DelegationTokenRecord, now_ms: int) -> None:
    if token.max_timestamp < now_ms or token.expiration_timestamp < now_ms:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED, "The token has expired.")


def _is_owner_or_renewer(token: DelegationTokenRecord, who: Principal) -> bool:
    return str(who) in (token.owner, token.requester, *token.renewers)


def _check_may_renew(token: DelegationTokenRecord, caller: Principal) -> None:
    if not _is_owner_or_renewer(token, caller):
        raise KafkaError(
            ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH,
            "Only the owner, the requester and the renewers of a token may renew or expire it.",
        )
