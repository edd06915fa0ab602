"""Certificates that expire soon are problems on the Overview page: those of brokers, and the gateway's own."""

import contextlib
import datetime
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.console.live.certificates import CertificateEnds
from millstream.console.live.problems import Problem, Severity, problems_of
from millstream.console.live.snapshot import Broker, CertificateEnd, Snapshot
from millstream.raw_client import Cluster
from millstream.testing.embedded import EmbeddedBroker
from tests.certificates import LOCAL_HOSTS, Files, authority
from tests.system.console.conftest import SIZE, TIMEOUT_MS, GatewayProcess, Looking

pytestmark = pytest.mark.timeout(300)
_DAY = 86_400.0


def write_certificate(directory: Path, name: str, days: float) -> Files:
    valid_for = datetime.timedelta(days=days, hours=1)
    return authority().sign(name, hosts=LOCAL_HOSTS, valid_for=valid_for).write(directory, name)


def found(*certificates: CertificateEnd) -> list[Problem]:
    return problems_of(Snapshot(number=1, at=1_000 * _DAY, error=None, certificates=certificates))


def test_days_severity_and_next_step() -> None:
    assert found(CertificateEnd("broker 1 (a:1)", 1_030 * _DAY)) == []
    problems = found(
        CertificateEnd("broker 1 (a:1)", 1_029.5 * _DAY),
        CertificateEnd("listener SSL of broker 2", 1_000.5 * _DAY),
        CertificateEnd("broker 3 (a:3)", 999.5 * _DAY),
        CertificateEnd("the gateway", 1_001.5 * _DAY, is_of_gateway=True),
    )
    by_owner = {each.what: each for each in problems}
    assert by_owner.keys() == {
        "The certificate of broker 1 (a:1) expires in 29 days",
        "The certificate of listener SSL of broker 2 expires in less than a day",
        "The certificate of broker 3 (a:3) has expired",
        "The certificate of the gateway expires in 1 day",
    }
    assert by_owner["The certificate of broker 3 (a:3) has expired"].severity is Severity.CRITICAL
    assert by_owner["The certificate of broker 1 (a:1) expires in 29 days"].severity is Severity.WARNING
    assert "--tls-cert" in by_owner["The certificate of the gateway expires in 1 day"].next_step
    assert "1972-09-26 12:00 UTC" in by_owner["The certificate of broker 3 (a:3) has expired"].why


@pytest.fixture
def secured(chromium: str, tmp_path: Path) -> Iterator[tuple[GatewayProcess, Files]]:
    node, own = write_certificate(tmp_path, "node", 12), write_certificate(tmp_path, "gateway", 5)
    connection = tmp_path / "client.properties"
    connection.write_text(f"security.protocol=SSL\nssl.truststore.location={node.ca}\n")
    connection.chmod(0o600)
    with EmbeddedBroker(node.properties(), security_protocol="SSL", data_dir=tmp_path / "data") as broker:
        options = ("--command-config", str(connection), "--tls-cert", str(own.certificates), "--tls-key", str(own.key))
        running = GatewayProcess(broker.bootstrap_servers, tmp_path / "gateway.log", *options)
        yield running, own
        running.stop()
        log = (tmp_path / "gateway.log").read_text()
        assert "certificate_expires_soon" in log and "Traceback" not in log, log


def test_certificates_that_expire_soon_are_on_the_overview(
    browser: Any, secured: tuple[GatewayProcess, Files], tmp_path: Path
) -> None:
    gateway, own = secured
    context = browser.new_context(viewport=SIZE, ignore_https_errors=True)
    context.set_default_timeout(TIMEOUT_MS)
    looking = Looking(context.new_page(), gateway.url)
    page = looking.open("/")
    looking.await_text("problems", "of broker 1 expires in 12 days")
    looking.await_text("problems", "into the files of ssl.keystore.location")
    looking.await_text("problems", "The certificate of the gateway expires in 5 days")
    # A new certificate of the gateway is taken over while it runs, and the page says so without a reload.
    fresh = write_certificate(tmp_path / "fresh", "gateway", 300)
    own.key.write_text(fresh.key.read_text())
    own.certificates.write_text(fresh.certificates.read_text())
    page.get_by_test_id("problems").get_by_text("The certificate of the gateway").wait_for(state="detached")
    looking.await_text("problems", "expires in 12 days")
    assert looking.problems == []
    context.close()


def test_an_expired_certificate_of_a_broker_that_no_client_accepts_is_read_too(tmp_path: Path) -> None:
    """Its metrics cannot be read then: clients refuse the connection."""
    expired = authority().sign("node", hosts=LOCAL_HOSTS, valid_for=datetime.timedelta(days=-2)).write(tmp_path, "node")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(expired.keystore)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            accepted, _ = listener.accept()
            with contextlib.suppress(OSError), context.wrap_socket(accepted, server_side=True) as secured:
                secured.recv(1)

        serving = threading.Thread(target=serve)
        serving.start()
        settings = {"security.protocol": "SSL", "ssl.ca.location": str(expired.ca)}
        host, port = listener.getsockname()
        with Cluster(f"{host}:{port}", settings) as cluster:
            down = Broker(7, host, port, None, False, error="no response")
            (found,) = CertificateEnds(cluster, lambda: None).of_broker(down, time.time())
        serving.join()
    assert found.owner == f"broker 7 ({host}:{port})"
    (problem,) = problems_of(Snapshot(number=1, at=time.time(), error=None, certificates=(found,)))
    assert problem.what.endswith("has expired") and problem.severity is Severity.CRITICAL
