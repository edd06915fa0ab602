"""A token service on this machine: keys at `/keys` (JWKS), tokens for client credentials at `/token`."""

from __future__ import annotations

import base64
import json
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.sasl import Issuer


class TokenService:
    """Gives tokens to the clients in `secrets`, each for the user with its name."""

    def __init__(self, directory: Path, secrets: dict[str, str], lives_s: float = 300) -> None:
        self.issuer = Issuer(directory / "keys.json")
        self.issuer.rotate("first")
        self.secrets = secrets
        self.lives_s = lives_s
        self.given: list[str] = []
        """The users of the tokens that were given."""
        self.scopes: list[str] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._respond(200 if self.path == "/keys" else 404, service.issuer.path.read_bytes())

            def do_POST(self) -> None:
                fields = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                pair = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
                name, _, secret = pair.partition(":")
                if fields["grant_type"] != ["client_credentials"] or service.secrets.get(name) != secret:
                    self._respond(401, b'{"error": "invalid_client"}')
                    return
                service.given.append(name)
                service.scopes += fields.get("scope", [])
                token = service.issuer.token(name, lives_s=service.lives_s)
                document = {"access_token": token, "token_type": "Bearer", "expires_in": int(service.lives_s)}
                self._respond(200, json.dumps(document).encode())

            def _respond(self, status: int, content: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.keys = f"{self.address}/keys"
        self.tokens = f"{self.address}/token"

    @contextmanager
    def running(self) -> Iterator[TokenService]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()
