"""Whatever listens at the address: the wait is bounded, and the error says what it looked like."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from millstream.raw_client import Cluster, UnreachableError
from tests.waiting import TIMEOUT_SECONDS

pytestmark = pytest.mark.timeout(300)


@contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """An address at which `serve` has each connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        kept = []

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                kept.append(connection)
                try:
                    serve(connection)
                except OSError:
                    pass

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(TIMEOUT_SECONDS)
        for each in kept:
            each.close()


def responding(data: bytes) -> Callable[[socket.socket], None]:
    def serve(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)

    return serve


def framed(correlation_id: int, body: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(body), correlation_id) + body


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "closed the connection at once: does this listener require TLS or SASL"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "uses HTTP"),
        (b"\x15\x03\x03\x00\x02\x02\x50", "uses TLS: set security.protocol"),
        (struct.pack(">i", -5), "a response of -5 bytes"),
        (b"SSH-2.0-OpenSSH", "is this a Kafka port"),
        (framed(7, b""), "a response to request 7 came instead of 1"),
        (framed(1, b"\0\0\xff\xff\xff\x7f"), "does not use Kafka's protocol"),
        (struct.pack(">ii", 1000, 1) + b"cut off", "closed the connection"),
    ],
)
def test_a_response_that_is_not_kafkas_is_an_error(data: bytes, said: str) -> None:
    with listening(responding(data)) as address, Cluster(address, timeout_s=3.0) as cluster:
        with pytest.raises(UnreachableError, match=said) as caught:
            cluster.topics()
        assert not caught.value.late
        assert address in str(caught.value)


def test_a_silent_broker_is_late() -> None:
    with listening(lambda connection: None) as address, Cluster(address, timeout_s=0.5) as cluster:
        with pytest.raises(UnreachableError, match="no response in time") as caught:
            cluster.topics()
        assert caught.value.late


def test_every_address_is_named_with_its_reason() -> None:
    with listening(lambda connection: None) as silent, Cluster(f"127.0.0.1:1,{silent}", timeout_s=3.0) as cluster:
        with pytest.raises(UnreachableError) as caught:
            cluster.topics()
        assert "127.0.0.1:1: connection refused" in str(caught.value)
        assert f"{silent}: no response in time" in str(caught.value)


def test_an_unknown_host_is_named_in_the_error() -> None:
    with Cluster("no-such-host.invalid:9092", timeout_s=0.3) as cluster, pytest.raises(UnreachableError) as caught:
        cluster.topics()
    assert "no-such-host.invalid:9092: " in str(caught.value)
