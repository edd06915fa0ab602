"""Tiered storage on Google Cloud Storage: `gs://`, before a server of ours that has its conditional writes.

Google compares a generation where S3 and Azure compare an ETag. The emulators that can be installed by name ignore the
condition, so they would not notice a mistake there.
"""

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

from millstream.testing import EmbeddedBroker
from tests.integration.node.tier.tiered_topic import SETTINGS, consume, make_tiered, produce, until_tiered, value_of

_MODIFIED = "Wed, 18 Nov 2026 04:00:00 GMT"


class GoogleStore(ThreadingHTTPServer):
    """The objects of a bucket, with their generations."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.generation = 0
        self.conditions: list[int] = []
        self.lock = threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: GoogleStore

    def log_message(self, *_: object) -> None:
        pass

    def _name(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix("/bucket/")

    def _respond(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self) -> None:  # a name of http.server
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        condition = self.headers.get("x-goog-if-generation-match")
        store, name = self.server, self._name()
        with store.lock:
            if condition is not None:
                store.conditions.append(int(condition))
                if int(condition) != store.objects.get(name, (b"", 0))[1]:
                    self._respond(412)
                    return
            store.generation += 1
            store.objects[name] = body, store.generation
            self._respond(200, ETag=f'"{store.generation}"', x_goog_generation=str(store.generation))

    def do_GET(self) -> None:
        if "list-type" in self.path:
            self._list()
            return
        found = self.server.objects.get(self._name())
        if found is None:
            self._respond(404)
            return
        data, generation = found
        about = {"ETag": f'"{generation}"', "x_goog_generation": str(generation), "Last_Modified": _MODIFIED}
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked is None:
            self._respond(200, data, **about)
            return
        first, last = int(asked[1]), min(int(asked[2]), len(data) - 1)
        self._respond(206, data[first : last + 1], Content_Range=f"bytes {first}-{last}/{len(data)}", **about)

    def do_DELETE(self) -> None:
        self._respond(204 if self.server.objects.pop(self._name(), None) else 404)

    def _list(self) -> None:
        prefix = parse_qs(urlsplit(self.path).query).get("prefix", [""])[0]
        rows = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{len(data)}</Size><ETag>{generation}</ETag>"
            f"<LastModified>2026-11-18T04:00:00Z</LastModified></Contents>"
            for name, (data, generation) in sorted(self.server.objects.items())
            if name.startswith(prefix)
        )
        self._respond(200, f"<ListBucketResult>{rows}</ListBucketResult>".encode())


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[GoogleStore]:
    with GoogleStore() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        account = {
            "gcs_base_url": f"http://127.0.0.1:{server.server_port}",
            "disable_oauth": True,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        }
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(account))
        monkeypatch.setenv("GOOGLE_ALLOW_HTTP", "true")
        yield server
        server.shutdown()


def test_records_go_to_google_and_come_back(google: GoogleStore) -> None:
    with EmbeddedBroker({**SETTINGS, "millstream.tier.url": "gs://bucket/tier"}) as broker:
        make_tiered(broker.bootstrap_servers, "orders")
        produce(broker.bootstrap_servers, "orders", range(1000))
        until_tiered(broker.data_dir, "orders")
        found = consume(broker.bootstrap_servers, "orders", 1000)
        assert [(each.offset(), each.value()) for each in found] == [(n, value_of(n)) for n in range(1000)]
    segments = [name for name in google.objects if name.endswith(".segment")]
    (manifest,) = [name for name in google.objects if name.endswith("manifest.json")]
    assert len(segments) >= 3 and len(json.loads(google.objects[manifest][0])["segments"]) == len(segments)
    assert sum(generation > 0 for generation in google.conditions) >= 2, "the manifest is replaced by its generation"
