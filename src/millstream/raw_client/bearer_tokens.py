"""Tokens of a client for OAUTHBEARER: `common/bearer_tokens.py`, with the errors of this package."""

from millstream.common import bearer_tokens
from millstream.common.bearer_tokens import TokenError, TokenSource
from millstream.raw_client.errors import SetupError

__all__ = ["TokenSource", "bearer_token"]


def bearer_token(source: TokenSource, timeout_s: float) -> tuple[str, float]:
    """The token, and the time of its end in seconds since 1970. SetupError if there is none."""
    try:
        return bearer_tokens.bearer_token(source, timeout_s)
    except TokenError as error:
        raise SetupError(str(error)) from error
