"""A small OpenID Connect provider on loopback: discovery, a sign-in page, the token endpoint, and its keys.

It is strict, so that a client with a mistake fails here: PKCE (S256) is demanded and checked, a code works once and for
its redirect address only, and a confidential client must give its secret. What it signs can be changed, to play a
provider that is wrong or hostile.
"""

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT_ID = "console"


class Provider:
    """Its issuer is a `localhost` address: for a gateway on 127.0.0.1 that is another site."""

    def __init__(self, *, asks: bool = False) -> None:
        """`asks`: with a page where a person gives a name; without, `user` is signed in at once."""
        self.key = RSAKey.generate_key(2048, {"kid": "one"})
        self.user, self.groups = "ann", ["people"]
        self.asks = asks
        self.refuses = ""
        """The error with which it refuses every sign-in."""
        self.change: Callable[[dict[str, Any]], dict[str, Any]] = lambda claims: claims
        """Changes what it signs."""
        self.complaints: list[str] = []
        """What was wrong with requests of the client."""
        self._codes: dict[str, dict[str, str]] = {}
        provider = self

        class Handler(_Handler):
            owner = provider

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://localhost:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def access_rules(self) -> str:
        """The table of the access file."""
        return f'[oidc]\nissuer = "{self.issuer}"\nclient_id = "{CLIENT_ID}"\n'

    def problem_of(self, query: dict[str, str]) -> str:
        for name, wanted in (("response_type", "code"), ("client_id", CLIENT_ID), ("code_challenge_method", "S256")):
            if query.get(name) != wanted:
                return f"{name} is {query.get(name)!r}"
        if "openid" not in query.get("scope", "").split():
            return "the scope has no openid"
        return next((f"no {each}" for each in ("state", "nonce", "code_challenge") if not query.get(each)), "")

    def grant(self, query: dict[str, str], user: str) -> str:
        """The address to which the browser is sent back."""
        back = {"state": query["state"], "iss": self.issuer}
        if self.refuses:
            back["error"] = self.refuses
        else:
            back["code"] = secrets.token_urlsafe(16)
            self._codes[back["code"]] = query | {"user": user}
        return f"{query['redirect_uri']}?{urlencode(back)}"

    def tokens(self, form: dict[str, str]) -> dict[str, Any] | None:
        """None if the code does not fit."""
        granted = self._codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if granted is None or form.get("grant_type") != "authorization_code":
            self.complaints.append("unknown code")
        elif challenge != granted["code_challenge"]:
            self.complaints.append("PKCE: the verifier does not fit")
        elif form.get("redirect_uri") != granted["redirect_uri"] or form.get("client_id") != CLIENT_ID:
            self.complaints.append("another redirect address or client")
        else:
            claims = {"iss": self.issuer, "aud": CLIENT_ID, "sub": granted["user"], "nonce": granted["nonce"]}
            id_token = self.sign(claims | {"groups": self.groups})
            return {"id_token": id_token, "access_token": "at", "token_type": "Bearer", "expires_in": 300}
        return None

    def sign(self, claims: dict[str, Any]) -> str:
        now = int(time.time())
        return jwt.encode(
            {"alg": "RS256", "kid": "one"}, self.change({"iat": now, "exp": now + 300, **claims}), self.key
        )


class _Handler(BaseHTTPRequestHandler):
    owner: Provider

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if url.path == "/auth":
            problem = self.owner.problem_of(query)
            if problem:
                self.owner.complaints.append(problem)
                self._send(400, problem.encode(), "text/plain")
            elif self.owner.asks and "user" not in query:
                hidden = "".join(f'<input type="hidden" name="{name}" value="{query[name]}">' for name in query)
                page = f'<form action="/auth">{hidden}<input name="user"><button type="submit">Go</button></form>'
                self._send(200, f"<title>Provider</title>{page}".encode(), "text/html")
            else:
                self.send_response(302)
                self.send_header("Location", self.owner.grant(query, query.get("user", self.owner.user)))
                self.end_headers()
        elif url.path == "/keys":
            self._json({"keys": [self.owner.key.as_dict(private=False)]})
        elif url.path == "/.well-known/openid-configuration":
            names = {"authorization_endpoint": "/auth", "token_endpoint": "/token", "jwks_uri": "/keys"}
            at = {name: self.owner.issuer + path for name, path in names.items()}
            self._json({"issuer": self.owner.issuer} | at)
        else:
            self._send(404, b"", "text/plain")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        found = self.owner.tokens({name: values[0] for name, values in parse_qs(body).items()})
        if found is None:
            self._send(400, b'{"error": "invalid_grant"}', "application/json")
        else:
            self._json(found)

    def _json(self, document: Any) -> None:
        self._send(200, json.dumps(document).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass
