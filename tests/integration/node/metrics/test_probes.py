"""/livez and /readyz in all phases of a node's life, and HTTP on a Kafka port that is not as one would wish."""

import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.node.server.plain_http import MAX_HEAD_BYTES
from millstream.testing import EmbeddedBroker, EmbeddedCluster
from millstream.testing.node_process import NodeProcess, free_ports
from tests.integration.node.metrics.conftest import get
from tests.topics import make_topic
from tests.waiting import TIMEOUT_SECONDS, until
from tests.wire import Wire


def talk(address: str, *pieces: bytes, closes: bool = False) -> bytes:
    """Sends the pieces one by one; everything that comes back until the end."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            connection.sendall(piece)
            time.sleep(0.01)
        if closes:
            connection.shutdown(socket.SHUT_WR)
        response = b""
        while more := connection.recv(65536):
            response += more
        return response


@pytest.fixture(scope="module")
def address(broker: EmbeddedBroker) -> str:
    return broker.bootstrap_servers


def test_a_broker_that_serves_lives_and_is_ready(address: str) -> None:
    assert get(address, "/livez") == get(address, "/readyz") == (200, "ok\n")


def test_in_sync_and_safe_to_stop() -> None:
    """What a rolling restart asks: is this node back, and may the next one stop?"""
    with EmbeddedCluster(3) as cluster:
        make_topic(cluster, "orders", partitions=2, config={"min.insync.replicas": "2"})
        addresses = {number: cluster.address(number) for number in cluster.brokers}
        first, second, third = addresses
        until(lambda: all(get(each, "/syncz") == get(each, "/stopz") == (200, "ok\n") for each in addresses.values()))
        cluster.kill(third)
        until(lambda: get(addresses[first], "/stopz")[0] == get(addresses[second], "/stopz")[0] == 503)
        assert "would" in get(addresses[first], "/stopz")[1]
        assert get(addresses[first], "/syncz")[0] == 200  # its own replicas are in sync
        cluster.start(third)
        until(lambda: get(cluster.address(third), "/syncz") == (200, "ok\n"))
        until(lambda: get(addresses[first], "/stopz") == (200, "ok\n"))


def test_whatever_else_is_asked_for_is_told_what_there_is(address: str) -> None:
    for path in ("/", "/metric", "/metrics/", "//metrics", "/%00"):
        status, text = get(address, path)
        assert status == 404 and "/metrics" in text and "/readyz" in text, path


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT"])
def test_other_methods_are_refused(address: str, method: str) -> None:
    response = talk(address, f"{method} /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello".encode())
    assert response.startswith(b"HTTP/1.1 405 ") and b"Allow: GET, HEAD" in response


def test_metrics_of_a_loopback_listener_are_for_this_machine(address: str) -> None:
    """A web page that points its own name at 127.0.0.1 must not read them."""
    port = address.rpartition(":")[2].encode()
    for host in (b"evil.example", b"evil.example:" + port, b"127.0.0.1.evil.example", b"10.0.0.1", b"", b"localhost."):
        response = talk(address, b"GET /metrics?collect[]=process HTTP/1.1\r\nhost: %b\r\n\r\n" % host)
        assert response.startswith(b"HTTP/1.1 421 ") and b"this machine" in response, host
        assert talk(address, b"GET /livez HTTP/1.1\r\nHost: %b\r\n\r\n" % host).startswith(b"HTTP/1.1 200 "), host
    twice = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"
    assert talk(address, twice).startswith(b"HTTP/1.1 400 ")
    for good in (b"Host: localhost:" + port, b"HOST: [::1]", b"Host: 127.0.0.2", b"Accept: */*"):
        response = talk(address, b"GET /metrics?collect[]=process HTTP/1.0\r\n%b\r\n\r\n" % good)
        assert response.startswith(b"HTTP/1.1 200 "), good


def test_head_has_the_head_alone(address: str) -> None:
    head, _, body = talk(address, b"HEAD /livez HTTP/1.1\r\nHost: x\r\n\r\n").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK") and b"Content-Length: 3" in head and body == b""


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 20])
def test_a_request_may_come_in_pieces(address: str, cut: int) -> None:
    request = b"GET /livez HTTP/1.0\r\nX-Long: " + b"a" * 5000 + b"\r\n\r\n"
    assert talk(address, request[:cut], request[cut:]).endswith(b"\r\n\r\nok\n")


def test_a_client_that_closes_its_side_still_gets_the_response(address: str) -> None:
    response = talk(address, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", closes=True)
    assert response.startswith(b"HTTP/1.1 200 OK") and response.endswith(b"\n")


def test_what_is_not_http_after_all_is_told_so(address: str) -> None:
    assert talk(address, b"GET lost\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert talk(address, b"GET /metrics SPDY/9\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert talk(address, b"GET http://[::1/metrics HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 400 ")


def test_a_head_has_a_limit(address: str) -> None:
    endless = b"GET /livez HTTP/1.1\r\nX: " + b"a" * MAX_HEAD_BYTES
    assert talk(address, endless).startswith(b"HTTP/1.1 431 ")


def test_bytes_that_are_neither_end_the_connection(address: str) -> None:
    assert talk(address, b"\xff\xff\xff\xff some words") == b""
    assert talk(address, b"HELO broker\r\n") == b""


def test_kafka_goes_on_beside_it(address: str) -> None:
    with Wire(address) as wire:
        for _ in range(20):
            assert get(address, "/livez")[0] == 200
            assert wire.call("api_versions", 3, client_software_name="x", client_software_version="1").error_code == 0


# Nodes that start, and nodes of one role


@pytest.fixture
def lonely_broker(tmp_path: Path) -> Iterator[str]:
    """A broker whose quorum is not there."""
    port, controller = free_ports(2)
    arguments = ["--listen", f"127.0.0.1:{port}", "--data-dir", str(tmp_path / "data")]
    for setting in (
        "node.id=2",
        "process.roles=broker",
        "controller.listener.names=CONTROLLER",
        f"controller.quorum.voters=1@127.0.0.1:{controller}",
    ):
        arguments += ["--set", setting]
    process = NodeProcess("a broker", arguments, tmp_path / "log", stop_timeout=TIMEOUT_SECONDS)
    process.spawn()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.reap(signal.SIGKILL)


def test_a_broker_without_a_quorum_lives_and_says_what_it_waits_for(lonely_broker: str) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            status, text = get(lonely_broker, "/readyz")
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert status == 503 and "not registered" in text and "no leader" in text
    assert get(lonely_broker, "/livez") == (200, "ok\n")
    status, page = get(lonely_broker, "/metrics")
    assert status == 200 and "millstream_node_ready 0" in page and "millstream_quorum_leader_id -1" in page
    # Its Kafka clients are not told anything yet: they wait, as they would in the backlog.
    with Wire(lonely_broker, timeout=0.5) as wire, pytest.raises(OSError):
        wire.call("api_versions", 3, client_software_name="x", client_software_version="1")


@pytest.fixture(scope="module")
def apart() -> Iterator[EmbeddedCluster]:
    """A broker and a controller, each a node of its own."""
    with EmbeddedCluster(1, controllers=1) as running:
        yield running


def test_a_controller_alone_responds_on_its_listener(apart: EmbeddedCluster) -> None:
    address = apart.controller_address(2)
    assert get(address, "/livez") == get(address, "/readyz") == (200, "ok\n")
    status, page = get(address, "/metrics")
    assert status == 200 and "millstream_active_controller 1" in page and 'roles="controller"' in page
    assert 'server="controller",api="BrokerHeartbeat"' in page and "millstream_topic_" not in page


def test_a_broker_stays_ready_while_its_controller_is_away(apart: EmbeddedCluster) -> None:
    """It can still be written to and read; were all to say no at once, no one could."""
    apart.kill(2)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while "millstream_quorum_leader_id -1" not in get(apart.address(1), "/metrics?collect[]=quorum")[1]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert get(apart.address(1), "/readyz") == (200, "ok\n")
