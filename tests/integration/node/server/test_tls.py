"""TLS on a listener, over real sockets: data of all sizes, files encrypted in threads, and peers that misbehave."""

import asyncio
import contextlib
import logging
import shutil
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from millstream.common.properties import Property
from millstream.config.loading import broker_config_from
from millstream.node.runtime.disk import RealFile
from millstream.node.security.certificates import Certificates
from millstream.node.server import tls as tls_module
from millstream.node.server.handshakes import HandshakeLimits
from millstream.node.server.listener import ListenerTls
from millstream.node.server.network import SocketNetwork
from millstream.node.server.tls import HandshakeError, TlsNetwork, TlsRuntime
from tests.certificates import Authority, Files, authority
from tests.integration.node.server.conftest import RunningListener, Start, frame
from tests.waiting import TIMEOUT_SECONDS


def certificates(files: Files, **settings: str) -> Certificates:
    values = {"listeners": "SSL://127.0.0.1:0", **files.properties(), **settings}
    config = broker_config_from([Property(name, value, "test") for name, value in values.items()])
    return Certificates("SSL", config.listener("SSL"))


MakeTls = Callable[[asyncio.AbstractEventLoop], ListenerTls]


def _close_all(running: Any) -> None:
    for each in list(running.listener.connections):
        each.close()


def secured(files: Files, limits: Any = None, **settings: Any) -> MakeTls:
    made = certificates(files, **settings)

    def make(loop: asyncio.AbstractEventLoop) -> ListenerTls:
        runtime = TlsRuntime(loop, lambda function: loop.run_in_executor(None, function))
        return ListenerTls(made, runtime, limits or HandshakeLimits())

    return make


@pytest.fixture
def node(tmp_path: Path) -> Files:
    return authority().node().write(tmp_path, "node")


@pytest.fixture
def client(tmp_path: Path) -> Files:
    return authority().client("alice").write(tmp_path, "client")


@contextlib.contextmanager
def connected(
    running: RunningListener, node: Files, client: Files | None = None, **options: ssl.TLSVersion
) -> Iterator[ssl.SSLSocket]:
    context = ssl.create_default_context(cafile=str(node.ca))
    for name, value in options.items():
        setattr(context, name, value)
    if client is not None:
        context.load_cert_chain(client.keystore)
    with plain(running) as sock, context.wrap_socket(sock, server_hostname="localhost") as wrapped:
        yield wrapped


def plain(running: RunningListener) -> socket.socket:
    host, _, port = running.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS)


def receive(sock: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", exactly(sock, 4))
    return exactly(sock, size)


def exactly(sock: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = sock.recv(size - len(parts))
        if not part:
            raise ConnectionError(f"the connection ended after {len(parts)} of {size} bytes")
        parts += part
    return bytes(parts)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_requests_and_responses_of_all_sizes(start: Start, node: Files, version: ssl.TLSVersion) -> None:
    running = start(tls=secured(node))
    with connected(running, node, maximum_version=version) as sock:
        for _ in range(3):
            sock.sendall(frame(b"say hello"))
            assert receive(sock) == b"hello"
        sock.sendall(b"".join(frame(b"say %d" % number) for number in range(500)))
        assert [receive(sock) for _ in range(500)] == [b"%d" % number for number in range(500)]
        big = bytes(range(256)) * 4096
        sock.sendall(frame(b"say " + big))
        assert receive(sock) == big
        sock.sendall(frame(b"large 3000000"))
        assert receive(sock) == bytes(3_000_000)


def test_pipelined_requests_with_large_responses_while_the_client_does_not_read(start: Start, node: Files) -> None:
    running = start(tls=secured(node), max_unsent_bytes=100_000)
    with connected(running, node) as sock:
        sock.sendall(b"".join(frame(b"large 200000") for _ in range(40)))
        for _ in range(40):
            assert receive(sock) == bytes(200_000)


@pytest.mark.parametrize("size", [1_000, 100_000, 1_500_000])
def test_files_are_sent_in_order_with_the_bytes_around_them(
    start: Start, node: Files, tmp_path: Path, size: int
) -> None:
    content = bytes(range(251)) * (size // 251 + 1)
    path = tmp_path / "segment"
    path.write_bytes(content)
    running = start(tls=secured(node))
    running.service.file, running.service.file_length = RealFile(str(path)), size
    with connected(running, node) as sock:
        sock.sendall((frame(b"file") + frame(b"say between")) * 5)
        for _ in range(5):
            assert receive(sock) == content[:size]
            assert receive(sock) == b"between"


def test_a_client_that_goes_away_while_a_thread_encrypts(
    start: Start, node: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(1_000_000))
    started, go_on = threading.Event(), threading.Event()

    class SlowFile(RealFile):
        def read_at(self, position: int, length: int) -> bytes:
            started.set()
            go_on.wait(TIMEOUT_SECONDS)
            return super().read_at(position, length)

    running = start(tls=secured(node))
    running.service.file, running.service.file_length = SlowFile(str(path)), 1_000_000
    with connected(running, node) as sock:
        sock.sendall(frame(b"file"))
        assert started.wait(TIMEOUT_SECONDS)
        running.on_loop(lambda: _close_all(running))
    go_on.set()
    with connected(running, node) as sock:
        sock.sendall(frame(b"say hi"))
        assert receive(sock) == b"hi"
    assert running.connections <= 1


def test_requests_that_arrive_while_a_thread_encrypts(start: Start, node: Files, tmp_path: Path) -> None:
    """They are read when the thread is done, and the event loop does not run in circles until then."""
    path = tmp_path / "segment"
    path.write_bytes(bytes(1_000_000))
    started, go_on = threading.Event(), threading.Event()

    class SlowFile(RealFile):
        def read_at(self, position: int, length: int) -> bytes:
            started.set()
            go_on.wait(TIMEOUT_SECONDS)
            return super().read_at(position, length)

    running = start(tls=secured(node))
    running.service.file, running.service.file_length = SlowFile(str(path)), 1_000_000
    with connected(running, node) as sock, connected(running, node) as other:
        sock.sendall(frame(b"file"))
        assert started.wait(TIMEOUT_SECONDS)
        sock.sendall(frame(b"say next") + frame(b"file"))
        for _ in range(3):
            other.sendall(frame(b"say meanwhile"))
            assert receive(other) == b"meanwhile"
        transports: list[Any] = [connection._transport for connection in running.listener.connections]
        assert [transport._is_watching_readable for transport in transports if transport._job is not None] == [False]
        go_on.set()
        assert receive(sock) == bytes(1_000_000)
        assert receive(sock) == b"next"
        assert receive(sock) == bytes(1_000_000)
        sock.sendall(frame(b"say last"))
        assert receive(sock) == b"last"


def test_the_end_of_a_stream_is_noticed_while_the_socket_stays_open(start: Start, node: Files) -> None:
    running = start(tls=secured(node))
    context = ssl.create_default_context(cafile=str(node.ca))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    engine = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with plain(running) as sock:
        while True:
            try:
                engine.do_handshake()
                break
            except ssl.SSLWantReadError:
                sock.sendall(outgoing.read())
                incoming.write(sock.recv(65536))
        engine.write(frame(b"none"))
        with contextlib.suppress(ssl.SSLWantReadError):
            engine.unwrap()
        sock.sendall(outgoing.read())  # a request and the end in one piece
        running.until(lambda: running.service.seen == [b"none"] and not running.listener.connections)


def principals(running: RunningListener) -> list[str]:
    return running.on_loop(  # type: ignore[return-value]
        lambda: [str(connection.peer.principal) for connection in running.listener.connections]
    )


def test_the_principal_of_a_client_certificate(start: Start, node: Files, client: Files) -> None:
    running = start(tls=secured(node, None, **{"ssl.client.auth": "required"}))
    with connected(running, node, client) as sock:
        sock.sendall(frame(b"say hi"))
        assert receive(sock) == b"hi"
        assert principals(running) == ["User:CN=alice,O=Millstream"]


def test_a_client_without_a_certificate(start: Start, node: Files, client: Files) -> None:
    rules = {"ssl.client.auth": "requested", "ssl.principal.mapping.rules": "RULE:^CN=(.*?),O=.*$/$1/U,DEFAULT"}
    running = start(tls=secured(node, **rules))
    with connected(running, node) as anonymous, connected(running, node, client) as named:
        for sock in (anonymous, named):
            sock.sendall(frame(b"say hi"))
            assert receive(sock) == b"hi"
        assert sorted(principals(running)) == ["User:ALICE", "User:ANONYMOUS"]


def refusal(running: RunningListener, caplog: pytest.LogCaptureFixture, attempt: Callable[[], None]) -> str:
    """The log line about an attempt that must not reach the service."""
    with caplog.at_level(logging.WARNING, "millstream.net"):
        with contextlib.suppress(OSError):
            attempt()
        running.until(lambda: any("tls_handshake_failed" in each.getMessage() for each in caplog.records))
    running.until(lambda: not running.listener.handshakes.under_way)
    assert running.connections == 0
    assert running.service.seen == []
    return caplog.records[-1].getMessage()


def test_a_client_without_the_required_certificate_gets_an_alert(
    start: Start, node: Files, caplog: pytest.LogCaptureFixture
) -> None:
    running = start(tls=secured(node, None, **{"ssl.client.auth": "required"}))

    def attempt() -> None:
        with connected(running, node) as sock, pytest.raises(ssl.SSLError, match="certificate required"):
            sock.sendall(frame(b"say hi"))
            receive(sock)

    assert "peer did not return a certificate" in refusal(running, caplog, attempt)


def test_a_certificate_of_an_unknown_authority_is_refused(
    start: Start, node: Files, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = Authority("another").client("mallory").write(tmp_path, "stranger")
    running = start(tls=secured(node, None, **{"ssl.client.auth": "requested"}))

    def attempt() -> None:
        with connected(running, node, stranger) as sock:
            sock.sendall(frame(b"say hi"))
            receive(sock)

    assert "self-signed certificate in certificate chain" in refusal(running, caplog, attempt)


def test_a_name_without_a_mapping_rule_is_refused(
    start: Start, node: Files, client: Files, caplog: pytest.LogCaptureFixture
) -> None:
    rules = {"ssl.client.auth": "required", "ssl.principal.mapping.rules": "RULE:^CN=bob.*$/bob/"}
    running = start(tls=secured(node, **rules))

    def attempt() -> None:
        with connected(running, node, client) as sock:
            sock.sendall(frame(b"say hi"))
            receive(sock)

    assert "no rule of ssl.principal.mapping.rules applies" in refusal(running, caplog, attempt)


@pytest.mark.parametrize(
    ("sent", "received"), [(frame(b"say hi"), b""), (b"GET /metrics HTTP/1.1\r\n\r\n", b"HTTP/1.1 400 Bad Request")]
)
def test_a_client_without_tls_on_a_tls_port(
    start: Start, node: Files, caplog: pytest.LogCaptureFixture, sent: bytes, received: bytes
) -> None:
    running = start(tls=secured(node))

    def attempt() -> None:
        with plain(running) as sock:
            sock.sendall(sent)
            assert sock.recv(24).startswith(received)

    assert "does not use TLS: set its security.protocol" in refusal(running, caplog, attempt)


def test_a_tls_client_on_a_plain_port_gets_a_clear_log_line(
    start: Start, node: Files, caplog: pytest.LogCaptureFixture
) -> None:
    running = start()
    with caplog.at_level(logging.WARNING, "millstream.net"), pytest.raises(OSError), connected(running, node):
        pass
    assert "the client uses TLS, but the listener is PLAINTEXT" in caplog.records[-1].getMessage()


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"])
def test_a_slow_handshake_is_closed(start: Start, node: Files, caplog: pytest.LogCaptureFixture, sent: bytes) -> None:
    running = start(tls=secured(node, HandshakeLimits(timeout_s=0.2)))

    def attempt() -> None:
        with plain(running) as sock:
            sock.sendall(sent)
            assert sock.recv(1) == b""

    assert "not done within 0.2 s" in refusal(running, caplog, attempt)


def test_no_more_handshakes_under_way_than_allowed(start: Start, node: Files) -> None:
    running = start(tls=secured(node, HandshakeLimits(max_under_way=4, timeout_s=TIMEOUT_SECONDS)))
    first = running.connect()
    running.until(lambda: running.listener.handshakes.under_way == 1)
    assert running.connect().is_closed()  # a quarter of four for one address
    first.close()
    running.until(lambda: not running.listener.handshakes.under_way)
    with connected(running, node) as sock:
        sock.sendall(frame(b"say hi"))
        assert receive(sock) == b"hi"
    assert running.listener.refused["millstream.ssl.max.handshakes"] == 1


def test_renegotiation_is_refused(start: Start, node: Files) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    running = start(tls=secured(node))
    host, _, port = running.address.rpartition(":")
    command = ["openssl", "s_client", "-connect", f"{host}:{port}", "-tls1_2", "-CAfile", str(node.ca)]
    done = subprocess.run(command, input=b"R\n", capture_output=True, timeout=TIMEOUT_SECONDS)  # R renegotiates
    assert b"RENEGOTIATING" in done.stdout + done.stderr
    assert b"no renegotiation" in done.stderr
    with connected(running, node) as sock:
        sock.sendall(frame(b"say hi"))
        assert receive(sock) == b"hi"


def test_renegotiation_is_off(node: Files) -> None:
    made = certificates(node)
    assert made.context.options & ssl.OP_NO_RENEGOTIATION
    assert made.client_context.options & ssl.OP_NO_RENEGOTIATION


def test_a_connection_to_another_node(start: Start, node: Files, tmp_path: Path) -> None:
    running = start(tls=secured(node, None, **{"ssl.client.auth": "required"}))
    host, _, port = running.address.rpartition(":")

    async def connect(made: Certificates, name: str) -> bytes:
        runtime = TlsRuntime(running.loop, lambda function: running.loop.run_in_executor(None, function))
        network = TlsNetwork(SocketNetwork(running.loop), made.client, runtime, timeout_s=TIMEOUT_SECONDS)
        transport = await network.connect(name, int(port))
        done: asyncio.Future[bytes] = running.loop.create_future()
        buffer = bytearray(100)

        def readable() -> None:
            with contextlib.suppress(BlockingIOError):
                done.set_result(bytes(buffer[: transport.receive_into(memoryview(buffer))]))

        transport.watch_readable(readable)
        transport.send(frame(b"say hi"))
        try:
            return await done
        finally:
            transport.close()

    def result(made: Certificates, name: str) -> bytes:
        return asyncio.run_coroutine_threadsafe(connect(made, name), running.loop).result(TIMEOUT_SECONDS)

    assert result(certificates(node), host) == b"\0\0\0\2hi"
    elsewhere = authority().node(hosts=("elsewhere",)).write(tmp_path, "elsewhere")
    other = Authority("another").node().write(tmp_path, "other")
    with pytest.raises(HandshakeError, match="self-signed"):
        result(certificates(other), host)
    wrong = start(tls=secured(elsewhere))
    port = wrong.address.rpartition(":")[2]
    with pytest.raises(HandshakeError, match="IP address mismatch"):
        result(certificates(node), host)
    assert result(certificates(node, **{"ssl.endpoint.identification.algorithm": ""}), host) == b"\0\0\0\2hi"


def test_slices_in_threads_are_larger_than_what_is_encrypted_at_once() -> None:
    assert tls_module.INLINE_BYTES < tls_module.SLICE_BYTES


def test_a_connection_whose_handshake_has_not_begun_is_closed_with_the_listener(start: Start, node: Files) -> None:
    running = start(secured(node))

    def accept_and_close() -> socket.socket:
        connection = plain(running)
        running.listener._accept()  # starts the task of the handshake, which runs in the next turn of the loop
        running.listener.close()
        return connection

    with cast(socket.socket, running.on_loop(accept_and_close)) as connection:
        assert connection.recv(1) == b""
