"""Safe by default, end to end: who is let in, over what, and what strangers and other sites' pages are told."""

import base64
import http.client
import json
import re
import select
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from millstream.gateway.http.configuration import GatewayError, check_certificate, key_warnings, read_credentials
from millstream.gateway.server import Gateway, GatewayOptions
from millstream.testing import EmbeddedBroker
from tests.integration.gateway.conftest import Caller, Response
from tests.waiting import TIMEOUT_SECONDS
from tests.waiting import until as wait_until

pytestmark = pytest.mark.timeout(300)
PEOPLE = "basic ann:se:cret\nbearer t0ken\n"
BASIC = {"Authorization": "Basic " + base64.b64encode(b"ann:se:cret").decode()}
BEARER = {"Authorization": "Bearer t0ken"}
_CHANGING = {"POST", "PUT", "DELETE", "PATCH"}


def make_certificate(directory: Path, name: str = "server") -> tuple[Path, Path]:
    certificate, key = directory / f"{name}.pem", directory / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-subj", "/CN=localhost", "-days", "1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return certificate, key


def ask_over_tls(address: str, trusted: Path, path: str, headers: dict[str, str]) -> Response:
    context = ssl.create_default_context(cafile=str(trusted))
    with closing(http.client.HTTPSConnection(address, timeout=TIMEOUT_SECONDS, context=context)) as connection:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return Response(response.status, dict(response.getheaders()), response.read())


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def exposed(broker: EmbeddedBroker, certificate: tuple[Path, Path]) -> Iterator[Gateway]:
    """Reachable from elsewhere, with TLS and credentials."""
    options = GatewayOptions(
        broker.bootstrap_servers,
        "0.0.0.0",
        credentials=read_credentials(PEOPLE),
        certificate=str(certificate[0]),
        key=str(certificate[1]),
    )
    with Gateway(options) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def every_route(gateway: Gateway) -> list[tuple[str, str]]:
    """Method and path of whatever the gateway says it has."""
    paths: dict[str, dict[str, Any]] = Caller(gateway.address)("GET", "/openapi.json").json["paths"]
    return [
        (method.upper(), re.sub(r"\{[^}]*\}", "1", path))
        for path, methods in paths.items()
        for method in methods
        if method.upper() in _CHANGING | {"GET"}
    ]


def test_pages_of_other_sites_change_nothing_anywhere(call: Caller, every_route: list[tuple[str, str]]) -> None:
    changing = [(method, path) for method, path in every_route if method in _CHANGING]
    assert len(changing) > 15
    for method, path in changing:
        for origin in ("https://evil.example", "null", f"http://{call.address}.evil.example", "http://[::1"):
            response = call(method, path, {}, {"Origin": origin})
            assert response.status == 403, (method, path, origin)
    assert call("POST", "/topics/x/messages", {}, {"Sec-Fetch-Site": "cross-site"}).status == 403


def test_pages_of_other_sites_do_not_even_ask(call: Caller) -> None:
    """A poll moves a consumer on, so pages of other sites cannot send one. A link that a person follows is allowed."""
    page = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    assert call("GET", "/subjects", headers=page).status == 403
    assert call("GET", "/subjects", headers=page | {"Sec-Fetch-Mode": "navigate"}).status == 200
    assert call("GET", "/subjects", headers=page | {"Sec-Fetch-Site": "same-origin"}).status == 200


def test_on_loopback_only_this_machine_is_meant(call: Caller, every_route: list[tuple[str, str]]) -> None:
    for method, path in [*every_route, ("GET", "/console"), ("GET", "/docs")]:
        assert call(method, path, {}, {"Host": "rebound.example"}).status == 421, (method, path)
    for name in ("localhost", "127.0.0.1", "127.0.0.2:1", "[::1]"):
        assert call("GET", "/", headers={"Host": name}).status == 200, name


def test_strangers_are_told_nothing(
    exposed: Gateway, certificate: tuple[Path, Path], every_route: list[tuple[str, str]]
) -> None:
    address = f"127.0.0.1:{exposed.address.rpartition(':')[2]}"
    context = ssl.create_default_context(cafile=str(certificate[0]))
    with closing(http.client.HTTPSConnection(address, timeout=TIMEOUT_SECONDS, context=context)) as connection:
        paths = [*every_route, ("GET", "/console"), ("GET", "/docs"), ("GET", "/nowhere")]
        for number, (method, path) in enumerate(paths):
            if path in ("/livez", "/readyz"):
                continue
            # Failed sign-ins are slowed down, so a few must do.
            wrong: tuple[dict[str, str], ...] = ({"Authorization": "Basic ????"}, {"Authorization": "Bearer wrong"})
            for headers in ({}, *(wrong if number < 2 else ())):
                connection.request(method, path, headers=headers)
                response = connection.getresponse()
                body = response.read()
                assert response.status == 401, (method, path, headers)
                assert response.headers["www-authenticate"].startswith("Basic")
                assert json.loads(body)["error_code"]


def test_basic_and_bearer_over_tls(exposed: Gateway, certificate: tuple[Path, Path], tmp_path: Path) -> None:
    address = f"127.0.0.1:{exposed.address.rpartition(':')[2]}"
    for headers in (BASIC, BEARER):
        assert ask_over_tls(address, certificate[0], "/subjects", headers).status == 200
    assert ask_over_tls(address, certificate[0], "/livez", {}).status == 200, "probes have no credentials"
    with pytest.raises(ssl.SSLCertVerificationError):
        ask_over_tls(address, make_certificate(tmp_path, "other")[0], "/livez", {})
    with pytest.raises((http.client.HTTPException, OSError)):
        Caller(address)("GET", "/livez")


def test_websockets_are_held_to_the_same(call: Caller, exposed: Gateway, certificate: tuple[Path, Path]) -> None:
    handshake = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    socket_path = "/console/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
    assert call("GET", socket_path, headers=handshake | {"Origin": "https://evil.example"}).status == 403
    assert call("GET", socket_path, headers=handshake | {"Host": "rebound.example"}).status == 403
    address = f"127.0.0.1:{exposed.address.rpartition(':')[2]}"
    assert ask_over_tls(address, certificate[0], socket_path, handshake).status == 403


def test_an_internal_error_shows_no_stack_trace(
    gateway: Gateway, call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    from millstream.registry.registry import Registry

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr(Registry, "subjects", fail)
    response = call("GET", "/subjects")
    assert response.status == 500 and "log" in response.json["message"]
    assert b"ZeroDivision" not in response.body and b"Traceback" not in response.body


def test_what_was_asked_for_never_becomes_a_page(call: Caller) -> None:
    for path in ("/%3Cscript%3Ealert(1)%3C/script%3E", "/subjects?deleted=%3Cscript%3E"):
        response = call("GET", path)
        assert response.status in (400, 404)
        assert response.headers["content-type"].startswith("application/") and response.json["message"]


def test_wrong_certificates_of_the_gateway_are_refused(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    chain, key = map(str, certificate)
    _, other_key = make_certificate(tmp_path, "other")
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("no certificate")
    check_certificate(None, None)
    check_certificate(chain, key)
    for wrong in ((chain, None), (None, key), (chain, str(other_key)), (str(nonsense), key), ("missing", key)):
        with pytest.raises(GatewayError):
            check_certificate(*wrong)


def test_insecure_is_said_loudly(tmp_path: Path) -> None:
    """By the broker and by the gateway, in lines that stand out."""
    command = [sys.executable, "-m", "millstream", "serve", "--listen", "0.0.0.0:0", "--http", "0.0.0.0:0"]
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen([*command, "--insecure"], stdout=subprocess.PIPE, stderr=log, cwd=tmp_path)
    try:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], TIMEOUT_SECONDS)[0]
        assert process.stdout.readline().startswith(b"ready ")
        wait_until(lambda: "gateway_ready" in (tmp_path / "log").read_text())
        process.terminate()
        assert process.wait(TIMEOUT_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    text = (tmp_path / "log").read_text()
    assert text.count("*" * 80) == 4
    assert "WARNING: listener PLAINTEXT://0.0.0.0:0: clients do not authenticate, so all who reach it" in text
    assert "WARNING: --insecure: all who reach 0.0.0.0 can read, write and delete everything" in text


def test_a_private_key_that_all_can_read_is_said_loudly(certificate: tuple[Path, Path]) -> None:
    assert key_warnings(str(certificate[1])) == [] and key_warnings(None) == []
    certificate[1].chmod(0o644)
    try:
        assert "chmod 600" in key_warnings(str(certificate[1]))[0]
    finally:
        certificate[1].chmod(0o600)


def test_serve_hands_all_of_it_on(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    """The command itself: bound to every address, over TLS, with a file of people."""
    (tmp_path / "people").write_text(PEOPLE)
    (tmp_path / "people").chmod(0o600)
    command = [sys.executable, "-m", "millstream", "serve", "--listen", "127.0.0.1:0", "--http", "0.0.0.0:0"]
    command += ["--auth-file", "people", "--tls-cert", str(certificate[0]), "--tls-key", str(certificate[1])]
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, cwd=tmp_path)
    try:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], TIMEOUT_SECONDS)[0]
        found = re.search(r"http=0\.0\.0\.0:(\d+)", process.stdout.readline().decode())
        assert found is not None, (tmp_path / "log").read_text()
        address = f"127.0.0.1:{found[1]}"
        assert ask_over_tls(address, certificate[0], "/subjects", BEARER).status == 200
        assert ask_over_tls(address, certificate[0], "/subjects", {}).status == 401
        assert "se:cret" not in (tmp_path / "log").read_text()
        process.terminate()
        assert process.wait(TIMEOUT_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
