"""A real S3 server on this machine (Versity's gateway over a directory), and a proxy before it that injects faults.

The server is killed and started again on the same port and the same directory. The proxy delays requests, responds with
errors, or holds those that a test wants to stop at a certain point. `tools/install_test_clients.py` installs the
server by name; where that is not possible, tests skip with the reason.
"""

import http.client
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from millstream.testing.node_process import free_ports
from tests.waiting import TIMEOUT_SECONDS, until
from tools import apache_kafka, install_test_clients

BUCKET = "tier"
_ACCESS, _SECRET, _REGION = "test", "secret-of-tests", "us-east-1"


class S3Server:
    """The process of the server. Objects are in `directory`, and stay over a kill."""

    def __init__(self, directory: Path, host: str = "127.0.0.1", command_prefix: Sequence[str] = ()) -> None:
        """`command_prefix`: what to run the program with, such as `chrt -i 0`."""
        self._program = (*command_prefix, *install_test_clients.versitygw().command)
        self._directory = directory
        self._host = host
        self.port = free_ports(1)[0]
        self._process: subprocess.Popen[bytes] | None = None
        for name in ("objects", "attributes"):
            (directory / name).mkdir(parents=True, exist_ok=True)

    @property
    def objects(self) -> Path:
        """Where the objects of the bucket are, as files."""
        return self._directory / "objects" / BUCKET

    def start(self) -> None:
        # Attributes beside the objects: not every file system of a test has extended attributes.
        arguments = ["--port", f"{self._host}:{self.port}", "--access", _ACCESS, "--secret", _SECRET, "--quiet"]
        backend = ["posix", "--sidecar", str(self._directory / "attributes"), str(self._directory / "objects")]
        with (self._directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._program, *arguments, *backend], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        until(self._responds, "the S3 server responds")
        if not self.objects.exists():
            self._create_bucket()

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def environment(self, port: int | None = None) -> dict[str, str]:
        """What a process needs to use the server, or a proxy before it."""
        return {
            "AWS_ENDPOINT_URL": f"http://{self._host}:{port or self.port}",
            "AWS_ACCESS_KEY_ID": _ACCESS,
            "AWS_SECRET_ACCESS_KEY": _SECRET,
            "AWS_REGION": _REGION,
        }

    def _responds(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"the S3 server has ended: {(self._directory / 'server.log').read_text()[-2000:]}")
        connection = http.client.HTTPConnection(self._host, self.port, timeout=2)
        try:
            connection.request("GET", "/")
            return connection.getresponse().status < 500
        except OSError:
            return False
        finally:
            connection.close()

    def _create_bucket(self) -> None:
        import boto3

        client = boto3.client(
            "s3",
            endpoint_url=f"http://{self._host}:{self.port}",
            region_name=_REGION,
            aws_access_key_id=_ACCESS,
            aws_secret_access_key=_SECRET,
        )
        client.create_bucket(Bucket=BUCKET)
        client.close()


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    """With the query."""

    @property
    def is_part(self) -> bool:
        return self.method == "PUT" and "partNumber=" in self.path

    @property
    def is_segment_write(self) -> bool:
        return self.method in ("PUT", "POST") and ".segment" in self.path

    @property
    def is_manifest_write(self) -> bool:
        return self.method == "PUT" and "manifest.json" in self.path

    @property
    def is_delete(self) -> bool:
        return self.method == "DELETE" or (self.method == "POST" and "delete" in self.path.partition("?")[2])


Matches = Callable[[Request], bool]


class Hold:
    """Stops the first request that matches: before the server gets it, or before its response is passed on."""

    def __init__(self, matches: Matches, *, after: bool) -> None:
        self.matches = matches
        self.after = after
        self.is_reached = threading.Event()
        self._is_released = threading.Event()

    def wait(self) -> None:
        """Until a request is held."""
        assert self.is_reached.wait(TIMEOUT_SECONDS), f"no request was held, in {TIMEOUT_SECONDS:g} s"

    def release(self) -> None:
        self._is_released.set()

    def stop_here(self) -> None:
        self.is_reached.set()
        self._is_released.wait(TIMEOUT_SECONDS)


@dataclass
class Faults:
    """What the proxy does to requests now."""

    delay_s: float = 0.0
    fails: Matches | None = None
    """These requests get 503 (SlowDown), and the server never sees them."""
    cuts: Matches | None = None
    """The connection of these requests is closed, and the server never sees them."""
    loses: Matches | None = None
    """These requests are executed, and the connection is closed without a response."""
    most: int = 1 << 30
    """How many requests fail or are lost; then no more."""


@dataclass
class Seen:
    """What has passed the proxy."""

    requests: list[Request] = field(default_factory=list)
    sent_bytes: int = 0
    received_bytes: int = 0


class StoreProxy:
    """Passes HTTP requests on to a server. Signatures stay valid: nothing of a request is changed."""

    def __init__(self, target: tuple[str, int], host: str = "127.0.0.1") -> None:
        self._target = target
        self.faults = Faults()
        self.seen = Seen()
        self._holds: list[Hold] = []
        self._lock = threading.Lock()
        self._conditional = threading.Lock()
        self._server = _Server((host, 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def hold(self, matches: Matches, *, after: bool = False) -> Hold:
        hold = Hold(matches, after=after)
        with self._lock:
            self._holds.append(hold)
        return hold

    def calm(self) -> None:
        """From now on, requests are passed on as they are."""
        self.faults = Faults()
        with self._lock:
            for hold in self._holds:
                hold.release()
            self._holds = []

    def close(self) -> None:
        self.calm()
        self._server.shutdown()
        self._server.server_close()

    def stop_at_hold(self, request: Request, *, after: bool) -> None:
        with self._lock:
            found = next((each for each in self._holds if each.after == after and each.matches(request)), None)
            if found is None or found.is_reached.is_set():
                return
        found.stop_here()

    def takes(self, matches: Matches | None, request: Request) -> bool:
        """Whether a fault applies to the request."""
        if matches is None or not matches(request):
            return False
        with self._lock:
            self.faults.most -= 1
            return self.faults.most >= 0

    def note(self, request: Request, sent: int, received: int) -> None:
        with self._lock:
            self.seen.requests.append(request)
            self.seen.sent_bytes += sent
            self.seen.received_bytes += received

    def pass_on(self, request: Request, headers: Mapping[str, str], body: bytes) -> http.client.HTTPResponse:
        # The server looks at the version of an object and then writes: of two who do so at once, both could be first.
        is_conditional = any(name.lower() in ("if-match", "if-none-match") for name in headers)
        with self._conditional if is_conditional else nullcontext():
            return self._send(request, headers, body)

    def _send(self, request: Request, headers: Mapping[str, str], body: bytes) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(*self._target, timeout=TIMEOUT_SECONDS)
        try:
            connection.putrequest(request.method, request.path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                if name.lower() != "connection":
                    connection.putheader(name, value)
            connection.putheader("Connection", "close")
            connection.endheaders(body)
            return connection.getresponse()
        except (OSError, http.client.HTTPException):
            connection.close()
            raise


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that is killed closes its connection in the middle of a request."""


def _handler(proxy: StoreProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # the head and the body of a response go out together

        def log_message(self, *_: object) -> None:
            pass

        def _serve(self) -> None:
            request = Request(self.command, self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            faults = proxy.faults
            if faults.delay_s:
                time.sleep(faults.delay_s)
            if proxy.takes(faults.fails, request):
                self._respond(503, {"Content-Type": "application/xml"}, b"<Error><Code>SlowDown</Code></Error>")
                return
            if proxy.takes(faults.cuts, request):
                self.close_connection = True
                return
            proxy.stop_at_hold(request, after=False)
            try:
                response = proxy.pass_on(request, dict(self.headers.items()), body)
                data = response.read()
            except (OSError, http.client.HTTPException):
                self.close_connection = True  # the server is down
                return
            proxy.note(request, len(body), len(data))
            proxy.stop_at_hold(request, after=True)
            if proxy.takes(faults.loses, request):
                self.close_connection = True
                return
            self._respond(response.status, dict(response.headers.items()), data)

        def _respond(self, status: int, headers: Mapping[str, str], data: bytes) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                    self.send_header(name, value)
            length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(data))
            if status != 204:
                self.send_header("Content-Length", length)
            self.end_headers()
            self.wfile.write(data)
            self.wfile.flush()

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815  # names of http.server

    return Handler


@dataclass
class FaultyStore:
    """The server, the proxy before it, and what brokers need to use it."""

    server: S3Server
    proxy: StoreProxy

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/of/tests"

    @property
    def environment(self) -> dict[str, str]:
        return self.server.environment(self.proxy.port)

    def segments(self) -> list[Path]:
        return sorted(path for path in self.server.objects.rglob("*.segment") if path.is_file())


@contextmanager
def faulty_store(directory: Path, host: str = "127.0.0.1") -> Iterator[FaultyStore]:
    """ToolchainMissingError if the server cannot be had."""
    server = S3Server(directory, host)
    try:
        server.start()
        proxy = StoreProxy((host, server.port), host)
        try:
            yield FaultyStore(server, proxy)
        finally:
            proxy.close()
    finally:
        server.kill()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStore]:
    """A store of its own for a test. Brokers that the test starts find it in the environment."""
    try:
        with faulty_store(tmp_path / "s3") as store:
            for name, value in store.environment.items():
                monkeypatch.setitem(os.environ, name, value)
            yield store
    except apache_kafka.ToolchainMissingError as reason:
        pytest.skip(f"S3 server: {reason}")
