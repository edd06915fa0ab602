"""Credentials, sessions, delays, return addresses and OpenID Connect, without a socket."""

import asyncio
import base64
import hmac
import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey

from millstream.access.rules_file import OidcSettings, parse_rules
from millstream.gateway.identity.credentials import Credential, InvalidCredentialsError, parse_authorization
from millstream.gateway.identity.oidc import OidcClient, OidcError
from millstream.gateway.identity.sessions import ConsoleSessions
from millstream.gateway.identity.sign_in import safe_return
from millstream.gateway.identity.sign_in_delay import SignInDelay, TooManyAttemptsError


def _basic(text: bytes) -> str:
    return "Basic " + base64.b64encode(text).decode()


def test_credentials_never_appear_in_texts() -> None:
    found = parse_authorization(_basic(b"ann:top:secret"), "PLAIN")
    assert found is not None and (found.name, found.password) == ("ann", "top:secret")
    assert "secret" not in repr(found)
    assert parse_authorization("", "PLAIN") is None


def test_tokens_without_a_subject_are_not_one_caller() -> None:
    """Consumers and streams belong to a name: two unnamed callers must not find each other's."""
    names = set()
    for scope in (b'{"scope":"a"}', b'{"scope":"b"}', b'{"sub":""}', b'{"sub":7}'):
        claims = base64.urlsafe_b64encode(scope).rstrip(b"=").decode()
        found = parse_authorization(f"Bearer e30.{claims}.c2ln", "PLAIN")
        assert found is not None
        names.add(found.name)
    assert len(names) == 4


def test_claims_of_tokens_are_those_of_the_cluster() -> None:
    claims = base64.urlsafe_b64encode(b'{"sub":"4711","email":"ann@x","roles":"ops","groups":["all"]}').decode()
    header = f"Bearer e30.{claims}.c2ln"
    usual = parse_authorization(header, "PLAIN")
    assert usual is not None and (usual.name, usual.groups) == ("4711", frozenset({"all"}))
    rules = parse_rules('[tokens]\nuser_claim = "email"\ngroups_claim = "roles"\n')
    found = parse_authorization(header, "PLAIN", rules.tokens)
    assert found is not None and (found.name, found.groups) == ("ann@x", frozenset({"ops"}))


@pytest.mark.parametrize(
    "header",
    [
        _basic(b"ann"),
        _basic(b":x"),
        _basic(b"ann:"),
        _basic(b"ann\x00bob:x"),
        _basic(b"\xff:x"),
        "Basic %%%",
        "Digest x",
        "Bearer ",
        "Bearer a b",
        "Bearer " + "x" * 40000,
        _basic(b"a" * 2000 + b":x"),
    ],
)
def test_malformed_headers_are_refused(header: str) -> None:
    with pytest.raises(InvalidCredentialsError):
        parse_authorization(header, "PLAIN")


def test_cache_keys_differ_with_every_part_of_a_credential() -> None:
    different = [
        Credential("a", password="bc"),
        Credential("ab", password="c"),
        Credential("a", token="bc"),
        Credential("a", password="bc", mechanism="SCRAM-SHA-256"),
    ]
    assert len({each.digest(b"salt") for each in different}) == len(different)
    assert different[0].digest(b"salt") != different[0].digest(b"other")


@pytest.mark.parametrize(
    "text",
    [
        "https://evil.example",
        "//evil.example",
        "/\\evil.example",
        "/console//evil.example",
        "/console\r\nX: 1",
        "/consoles",
        "/console/../x",
        "/console/sign-in",
        "javascript:alert(1)",
        "/console#x",
        "",
        "/console/\u2028",
    ],
)
def test_a_return_address_stays_in_the_console(text: str) -> None:
    assert safe_return(text) == "/console"


def test_a_return_address_of_the_console_is_kept() -> None:
    assert safe_return("/console/topics?topic=orders") == "/console/topics?topic=orders"


def test_a_session_is_found_by_its_signed_cookie_only_and_ends() -> None:
    now = [1000.0]
    sessions = ConsoleSessions(lifetime_s=100, idle_s=10, clock=lambda: now[0])
    session = sessions.begin("ann", frozenset(), Credential("ann", password="x"))
    header = sessions.cookie(session, secure=True)
    assert all(part in header for part in ("HttpOnly", "SameSite=Lax", "Secure", "Path=/console", "Max-Age=100"))
    cookie = header.partition(";")[0].partition("=")[2]
    assert sessions.find(cookie) is session
    for forged in (session.id, f"{session.id}.", cookie[:-1], "planted." + cookie.partition(".")[2], "x" * 600, "é"):
        assert sessions.find(forged) is None
    assert ConsoleSessions().find(cookie) is None  # another key
    now[0] += 11
    assert sessions.find(cookie) is None and session.credential is None
    again = sessions.begin("ann", frozenset(), None)
    assert again.id != session.id
    sessions.end(again)
    assert not sessions.is_valid(again)


def test_failures_are_slowed_more_and_more_and_then_forgotten() -> None:
    now = [0.0]
    delay = SignInDelay(clock=lambda: now[0])
    delays = [delay.note("10.0.0.1", "ann") for _ in range(8)]
    assert delays == sorted(delays) and delays[0] < 1 and delays[-1] == 5.0
    assert delay.note("10.0.0.2", "ann") == 5.0  # by user, from any address
    assert delay.note("10.0.0.1", "bob") == 5.0  # by address, for any user
    now[0] += 601
    assert delay.note("10.0.0.1", "ann") < 1


def test_waiting_failures_are_bounded() -> None:
    async def run() -> None:
        delay = SignInDelay()
        for _ in range(8):
            await delay.attempt("a").__aenter__()
        with pytest.raises(TooManyAttemptsError):
            await delay.attempt("a").__aenter__()
        async with delay.attempt("b"):
            pass

    asyncio.run(run())
    delay = SignInDelay()
    for number in range(30_000):
        delay.note(f"address-{number}", "")
    assert len(delay._failures) <= 10_000


ISSUER = "https://id.example"
KEY, OTHER = RSAKey.generate_key(2048, {"kid": "one"}), RSAKey.generate_key(2048, {"kid": "one"})


class Provider:
    """An identity provider without a socket. `make` changes what it signs."""

    def __init__(self) -> None:
        self.make: Callable[[dict[str, Any]], str] = lambda claims: _signed(claims)
        self.nonce = ""
        self.challenge = ""
        self.forms: list[dict[str, list[str]]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("openid-configuration"):
            names = {"authorization_endpoint": "/auth", "token_endpoint": "/token", "jwks_uri": "/keys"}
            return httpx.Response(200, json={"issuer": ISSUER} | {name: ISSUER + path for name, path in names.items()})
        if request.url.path == "/keys":
            return httpx.Response(200, json={"keys": [KEY.as_dict(private=False)]})
        self.forms.append(parse_qs(request.content.decode()))
        claims: dict[str, Any] = {"iss": ISSUER, "aud": "console", "sub": "ann", "nonce": self.nonce, "groups": ["ops"]}
        claims |= {"iat": int(time.time()), "exp": int(time.time()) + 300}
        return httpx.Response(200, json={"id_token": self.make(claims), "access_token": "at", "expires_in": 300})


def _signed(claims: dict[str, Any], key: Any = KEY, alg: str = "RS256", **header: Any) -> str:
    return jwt.encode({"alg": alg, "kid": "one"} | header, claims, key, algorithms=[alg])


def _unsigned(claims: dict[str, Any]) -> str:
    parts = [b'{"alg":"none","kid":"one"}', json.dumps(claims).encode()]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts) + "."


def _with_public_key_as_secret(claims: dict[str, Any]) -> str:
    parts = [b'{"alg":"HS256","kid":"one"}', json.dumps(claims).encode()]
    content = ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)
    mac = hmac.digest(KEY.as_pem(private=False), content.encode(), "sha256")
    return f"{content}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"


async def _sign_in(provider: Provider, **changed: str) -> Any:
    client = OidcClient(OidcSettings(ISSUER, "console"), transport=httpx.MockTransport(provider))
    where, state = await client.begin("https://c.example/callback", "/console/topics")
    query = {name: values[0] for name, values in parse_qs(urlsplit(where).query).items()}
    provider.nonce = query["nonce"]
    assert query["code_challenge_method"] == "S256" and query["response_type"] == "code"
    parameters = {"code": "c", "state": state} | changed
    cookie = parameters.pop("cookie", state)
    signed_in = await client.complete(parameters, cookie)
    with pytest.raises(OidcError):  # a state works once
        await client.complete(parameters, cookie)
    return signed_in


def test_a_sign_in_by_openid_connect() -> None:
    provider = Provider()
    found = asyncio.run(_sign_in(provider))
    assert (found.user, found.groups, found.return_to) == ("ann", frozenset({"ops"}), "/console/topics")
    assert len(provider.forms[0]["code_verifier"][0]) >= 43


@pytest.mark.parametrize(
    "make",
    [
        _unsigned,
        lambda claims: _signed(claims, OTHER),
        lambda claims: _with_public_key_as_secret(claims),
        lambda claims: _signed(claims | {"exp": 1}),
        lambda claims: _signed(claims | {"iat": time.time() + 1000}),
        lambda claims: _signed(claims | {"aud": "other"}),
        lambda claims: _signed(claims | {"aud": ["console", "other"]}),
        lambda claims: _signed(claims | {"azp": "other"}),
        lambda claims: _signed(claims | {"iss": "https://evil.example"}),
        lambda claims: _signed(claims | {"nonce": "of another sign-in"}),
        lambda claims: _signed({name: value for name, value in claims.items() if name != "nonce"}),
        lambda claims: _signed({name: value for name, value in claims.items() if name != "exp"}),
        lambda claims: _signed(claims, OTHER, jwk=OTHER.as_dict(private=False), jku="https://evil.example/keys"),
        lambda claims: "not.a.token",
        lambda claims: "",
    ],
)
def test_a_forged_or_foreign_id_token_is_refused(make: Callable[[dict[str, Any]], str]) -> None:
    provider = Provider()
    provider.make = make
    with pytest.raises(OidcError):
        asyncio.run(_sign_in(provider))


@pytest.mark.parametrize(
    "changed", [{"state": "x"}, {"cookie": ""}, {"cookie": "x"}, {"code": ""}, {"error": "no"}, {"iss": "x"}]
)
def test_a_response_that_does_not_belong_to_this_browser_is_refused(changed: dict[str, str]) -> None:
    with pytest.raises(OidcError):
        asyncio.run(_sign_in(Provider(), **changed))
