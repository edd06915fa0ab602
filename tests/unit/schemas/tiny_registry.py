"""A registry over real HTTP that keeps schemas in a dict and fails on demand: what the client's own tests need."""

import base64
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from google.protobuf import descriptor_pb2

from millstream.schemas.formats import ResolvedSchema
from millstream.schemas.protobuf_files import MAIN_FILE
from millstream.schemas.protobuf_schema import load_file


class TinyRegistry:
    def __init__(self) -> None:
        self.schemas: list[dict[str, Any]] = []
        """By id - 1."""
        self.subjects: dict[str, list[int]] = {}
        self.requests: list[tuple[str, str, str | None]] = []
        """Method, path, Authorization."""
        self.failures: list[tuple[int, bytes]] = []
        """Responses to give instead, first in first out."""
        self.url = ""

    def respond(self, method: str, target: str, body: Any) -> tuple[int, Any]:
        parts = urlsplit(target)
        if found := re.fullmatch(r"/schemas/ids/(\d+)", parts.path):
            number = int(found[1])
            if not 0 < number <= len(self.schemas):
                return 404, {"error_code": 40403, "message": "Schema not found"}
            return 200, self._formatted(self.schemas[number - 1], parse_qs(parts.query))
        if parts.path == "/subjects":
            return 200, list(self.subjects)
        if found := re.fullmatch(r"/subjects/([^/]+)/versions/(latest|\d+)", parts.path):
            subject = unquote(found[1])
            ids = self.subjects.get(subject)
            if ids is None:
                return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
            version = len(ids) if found[2] == "latest" else int(found[2])
            if not 0 < version <= len(ids):
                return 404, {"error_code": 40402, "message": "Version not found."}
            return 200, self._formatted(self._registered(subject, version), parse_qs(parts.query))
        if found := re.fullmatch(r"/subjects/([^/]+)/versions", parts.path):
            return 200, {"id": self.register(unquote(found[1]), body)}
        if found := re.fullmatch(r"/subjects/([^/]+)", parts.path):
            subject = unquote(found[1])
            for version, number in enumerate(self.subjects.get(subject, []), 1):
                if self._same(self.schemas[number - 1], body):
                    return 200, self._registered(subject, version)
            return 404, {"error_code": 40403, "message": "Schema not found"}
        return 404, {"error_code": 404, "message": f"HTTP 404 Not Found: {method} {target}"}

    def register(self, subject: str, body: dict[str, Any]) -> int:
        known = [number for number, schema in enumerate(self.schemas, 1) if self._same(schema, body)]
        if not known:
            self.schemas.append({key: body[key] for key in ("schema", "schemaType", "references") if body.get(key)})
        number = known[0] if known else len(self.schemas)
        ids = self.subjects.setdefault(subject, [])
        if number not in ids:
            ids.append(number)
        return number

    def _registered(self, subject: str, version: int) -> dict[str, Any]:
        number = self.subjects[subject][version - 1]
        return {"subject": subject, "version": version, "id": number, **self.schemas[number - 1]}

    def _same(self, one: dict[str, Any], other: dict[str, Any]) -> bool:
        return all((one.get(key) or None) == (other.get(key) or None) for key in ("schema", "references"))

    def _formatted(self, schema: dict[str, Any], query: dict[str, list[str]]) -> dict[str, Any]:
        if query.get("format") != ["serialized"] or schema.get("schemaType") != "PROTOBUF":
            return schema
        descriptor = descriptor_pb2.FileDescriptorProto()
        load_file(ResolvedSchema(schema["schema"], "PROTOBUF", self._texts(schema))).CopyToProto(descriptor)
        descriptor.name = MAIN_FILE
        return {**schema, "schema": base64.b64encode(descriptor.SerializeToString()).decode()}

    def _texts(self, schema: dict[str, Any]) -> tuple[tuple[str, str], ...]:
        found: list[tuple[str, str]] = []
        for reference in schema.get("references", ()):
            inner = self.schemas[self.subjects[reference["subject"]][reference["version"] - 1] - 1]
            found += [*self._texts(inner), (reference["name"], inner["schema"])]
        return tuple(found)


@contextmanager
def running() -> Iterator[TinyRegistry]:
    registry = TinyRegistry()

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            registry.requests.append((self.command, self.path, self.headers.get("Authorization")))
            if registry.failures:
                status, content = registry.failures.pop(0)
            else:
                status, response = registry.respond(self.command, self.path, body)
                content = json.dumps(response).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = _serve  # noqa: N815  # the names that http.server calls

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    registry.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
