"""Tokens of OAUTHBEARER: those that are right, and those that an attacker could make."""

from __future__ import annotations

import base64
import hmac
import json
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey

from millstream.node.security.core.oauthbearer import (
    OAuthBearerServer,
    TokenClaims,
    TokenRules,
    check_token,
    find_key,
    first_message,
    oauthbearer_client,
    read_keys,
    token_head,
)
from millstream.node.security.core.sasl import Authenticated, AuthenticationError, Challenge
from tests.unit.node.security.logins import run

NOW = 1_800_000_000
RSA = RSAKey.generate_key(2048, {"kid": "rsa"})
EC = ECKey.generate_key("P-256", {"kid": "ec"})
OTHER = RSAKey.generate_key(2048, {"kid": "rsa"})
KEYS = read_keys(json.dumps({"keys": [RSA.as_dict(private=False), EC.as_dict(private=False)]}).encode())
RULES = TokenRules(issuer="https://issuer", audiences=("kafka",), groups_claim="groups")
CLAIMS = {"sub": "alice", "iss": "https://issuer", "aud": ["kafka", "x"], "iat": NOW - 5, "exp": NOW + 60}


def signed(key: Any = RSA, alg: str = "RS256", kid: str | None = "rsa", **changes: Any) -> str:
    claims = {name: value for name, value in {**CLAIMS, **changes}.items() if value is not None}
    header = {"alg": alg} if kid is None else {"alg": alg, "kid": kid}
    return jwt.encode(header, claims, key, algorithms=[alg])


def check(token: str, rules: TokenRules = RULES) -> TokenClaims:
    head = token_head(token)
    key = find_key(head, KEYS)
    if key is None:
        raise AuthenticationError("the key of the token is unknown")
    return check_token(token, head, key, rules, NOW)


def encoded(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def test_valid_tokens_are_accepted() -> None:
    claims = check(signed(groups=["ops", "dev", 7]))
    assert claims == TokenClaims("alice", (NOW + 60) * 1000, ("ops", "dev"))
    assert check(signed(EC, "ES256", "ec")).subject == "alice"
    assert check(signed(alg="PS256")).subject == "alice"
    assert check(signed(EC, "ES256", None)).subject == "alice", "without a key id, the only key that fits is taken"
    assert check(signed(exp=NOW - 20)).subject == "alice", "the clocks may differ by 30 seconds"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"exp": NOW - 31}, "expired"),
        ({"exp": None}, "exp"),
        ({"exp": "tomorrow"}, "not a time"),
        ({"exp": True}, "not a time"),
        ({"nbf": NOW + 31}, "not valid yet"),
        ({"iat": NOW + 31}, "future"),
        ({"iat": None}, "iat"),
        ({"iss": "https://other"}, "issuer"),
        ({"iss": None}, "issuer"),
        ({"aud": "other"}, "audience"),
        ({"aud": None}, "audience"),
        ({"sub": None}, "claim sub"),
        ({"sub": ""}, "claim sub"),
        ({"sub": 7}, "claim sub"),
        ({"groups": ["g"] * 300}, "groups"),
    ],
)
def test_tokens_with_wrong_claims_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(AuthenticationError, match=reason):
        check(signed(**changes))


def test_a_token_without_a_signature() -> None:
    for algorithm in ("none", "None", "NONE", "nOnE", ""):
        with pytest.raises(AuthenticationError, match="algorithm"):
            check(f"{encoded({'alg': algorithm})}.{encoded(CLAIMS)}.")
    head, body, _ = signed().split(".")
    with pytest.raises(AuthenticationError, match="signature"):
        check(f"{head}.{body}.")


def test_the_public_key_as_a_shared_secret() -> None:
    for secret in (RSA.as_pem(private=False), RSA.as_der(private=False)):
        content = f"{encoded({'alg': 'HS256', 'kid': 'rsa'})}.{encoded(CLAIMS)}"
        signature = base64.urlsafe_b64encode(hmac.digest(secret, content.encode(), "sha256")).rstrip(b"=").decode()
        token = f"{content}.{signature}"
        with pytest.raises(AuthenticationError, match="algorithm"):
            check(token)


def test_a_token_of_another_key() -> None:
    with pytest.raises(AuthenticationError, match="signature"):
        check(signed(OTHER))
    with pytest.raises(AuthenticationError, match="does not fit"):
        check(signed(EC, "ES256", "rsa"))


@pytest.mark.parametrize("kid", ["../../etc/passwd", "/dev/null", "' OR 1=1 --", "", "unknown", "rsa\0"])
def test_tricks_with_the_key_id(kid: str) -> None:
    with pytest.raises(AuthenticationError, match="unknown"):
        check(signed(OTHER, kid=kid))


def test_keys_in_the_header_are_not_used() -> None:
    header = {"alg": "RS256", "kid": "rsa", "jwk": OTHER.as_dict(private=False), "jku": "https://evil/keys"}
    token = jwt.encode({"alg": "RS256", "kid": "rsa"}, CLAIMS, OTHER, algorithms=["RS256"])
    forged = ".".join((encoded(header), *token.split(".")[1:]))
    with pytest.raises(AuthenticationError, match="signature"):
        check(forged)
    with pytest.raises(AuthenticationError, match="critical"):
        check(".".join((encoded({"alg": "RS256", "crit": ["exp"]}), *token.split(".")[1:])))


@pytest.mark.parametrize("token", ["", "a", "a.b", "a.b.c", "a.b.c.d.e", "..", "e30.e30.e30", "W10.e30.e30"])
def test_malformed_tokens_are_refused(token: str) -> None:
    with pytest.raises(AuthenticationError):
        check(token)


def test_keys_that_cannot_be_used() -> None:
    for document in (
        b"",
        b"[]",
        b"{}",
        b'{"keys": []}',
        b'{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}',
        b'{"keys": 7}',
    ):
        with pytest.raises(ValueError, match=r"keys|key"):
            read_keys(document)
    encryption = {**RSA.as_dict(private=False), "use": "enc"}
    with pytest.raises(ValueError, match="no public key"):
        read_keys(json.dumps({"keys": [encryption]}).encode())


def test_messages_of_the_mechanism() -> None:
    async def validate(token: str) -> TokenClaims:
        return check(token)

    result = run(OAuthBearerServer(validate).step(oauthbearer_client(signed())))
    assert isinstance(result, Authenticated) and result.user == "alice" and result.expires_at_ms == (NOW + 60) * 1000
    refused = OAuthBearerServer(validate)
    status = run(refused.step(oauthbearer_client(signed(exp=1))))
    assert isinstance(status, Challenge) and json.loads(status.data) == {"status": "invalid_token"}
    with pytest.raises(AuthenticationError):
        run(refused.step(b"\x01"))
    again = OAuthBearerServer(validate)
    run(again.step(oauthbearer_client(signed(exp=1))))
    with pytest.raises(AuthenticationError):
        run(again.step(oauthbearer_client(signed())))


def test_the_first_message_has_user_and_token() -> None:
    assert first_message(b"n,a=bob,\x01auth=Bearer abc\x01traceId=7\x01\x01") == ("bob", "abc")
    for message in (b"", b"n,,\x01\x01", b"y,,\x01auth=Bearer a\x01\x01", b"n,,\x01auth=Basic a\x01\x01",
                    b"n,,\x01auth=Bearer a\x01auth=Bearer b\x01\x01", b"n,,\x01auth=Bearer a\x01"):  # fmt: skip
        with pytest.raises(AuthenticationError):
            first_message(message)
