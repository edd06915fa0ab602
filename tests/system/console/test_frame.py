"""The frame in a real browser: navigation by keys, help, theme, no page of another site, nothing shown but text."""

import http.client
import json
import signal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from millstream.console.console import ENTRIES
from millstream.testing import EmbeddedCluster
from tests.system.console.conftest import TIMEOUT_MS, GatewayProcess, Looking
from tests.waiting import TIMEOUT_SECONDS

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(
    "keys",
    [{"c": "Cluster"}, pytest.param({"c": "Cluster", "r": "Groups", "o": "Overview"}, marks=pytest.mark.slow)],
    ids=["one", "several"],
)
def test_keys_lead_from_page_to_page(looking: Looking, keys: dict[str, str]) -> None:
    page = looking.open("/")
    for key, title in keys.items():
        page.keyboard.press("g")
        page.keyboard.press(key)
        page.get_by_test_id("page-title").filter(has_text=title).wait_for()
        page.wait_for_function("window.socket?.connected")


def test_a_question_mark_shows_the_keys(looking: Looking) -> None:
    page = looking.open("/")
    page.keyboard.press("?")
    looking.await_text("keys", "filter the table")
    page.keyboard.press("Escape")
    page.get_by_test_id("keys").wait_for(state="hidden")


def test_dark_and_light_are_remembered(looking: Looking) -> None:
    page = looking.open("/")
    assert not page.evaluate("document.body.classList.contains('body--dark')")
    page.keyboard.press("d")
    page.wait_for_function("document.body.classList.contains('body--dark')")
    looking.open("/cluster")
    page.wait_for_function("document.body.classList.contains('body--dark')")


def test_every_entry_of_the_navigation_is_served(looking: Looking, gateway: GatewayProcess) -> None:
    """That the pages show what they should is tested with each of them."""
    page = looking.open("/")
    paths = page.eval_on_selector_all("nav a", "links => links.map(link => link.getAttribute('href'))")
    assert len(paths) == len(ENTRIES)
    for path in paths:
        status, _, body = _ask(gateway, path)
        assert status == 200, (path, body)
        assert b"page-title" in body, path


@pytest.mark.slow  # all pages in a browser
def test_every_entry_of_the_navigation_has_a_page(looking: Looking) -> None:
    page = looking.open("/")
    paths = page.eval_on_selector_all("nav a", "links => links.map(link => link.getAttribute('href'))")
    assert len(paths) == len(ENTRIES)
    for path in paths:
        looking.open(path.removeprefix("/console"))
        assert page.get_by_test_id("banner").is_hidden()


def _ask(gateway: GatewayProcess, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(urlsplit(gateway.url).netloc, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    finally:
        connection.close()


HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec_WebSocket_Version": "13",
    "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
SOCKET = "/console/_nicegui_ws/socket.io/?EIO=4&transport=websocket"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 101),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://[broken"}, 403),
        ({"Host": "evil.example"}, 403),
    ],
)
def test_a_websocket_is_held_to_the_same_as_a_request(
    gateway: GatewayProcess, headers: dict[str, str], status: int
) -> None:
    _ask(gateway, "/console/")  # NiceGUI is there from now on
    connection = http.client.HTTPConnection(urlsplit(gateway.url).netloc, timeout=TIMEOUT_SECONDS)
    try:
        sent = {name.replace("_", "-"): value for name, value in (HANDSHAKE | headers).items()}
        connection.request("GET", SOCKET, headers=sent)
        assert connection.sock is not None
        response = connection.getresponse()
        assert response.status == status
    finally:
        connection.close()


def test_other_sites_may_not_frame_it_nor_read_what_it_polls(gateway: GatewayProcess) -> None:
    status, headers, _ = _ask(gateway, "/console/")
    assert status == 200
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-frame-options"] == "DENY"
    _, headers, _ = _ask(
        gateway, "/console/_nicegui_ws/socket.io/?EIO=4&transport=polling", Origin="http://evil.example"
    )
    assert "access-control-allow-origin" not in headers


def test_what_is_not_there_is_said_without_a_stack_trace(gateway: GatewayProcess) -> None:
    status, _, body = _ask(gateway, "/console/no/such/page")
    assert status == 404
    assert b"Traceback" not in body


def test_rest_and_console_share_the_address(gateway: GatewayProcess) -> None:
    status, _, body = _ask(gateway, "/subjects")
    assert (status, json.loads(body)) == (200, [])


@pytest.mark.slow
def test_a_browser_with_credentials_gets_pages_and_their_websocket(
    browser: Any, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    people = tmp_path / "people"
    people.write_text("basic ann:secret\n")
    people.chmod(0o600)
    guarded = GatewayProcess(cluster.bootstrap_servers, tmp_path / "log", "--auth-file", str(people))
    context = browser.new_context(http_credentials={"username": "ann", "password": "secret"})
    context.set_default_timeout(TIMEOUT_MS)
    try:
        assert _ask(guarded, "/console/")[0] == 401
        looking = Looking(context.new_page(), guarded.url)
        looking.open("/")
        looking.await_text("stat-brokers", "3 / 3")
        assert looking.problems == []
    finally:
        context.close()
        guarded.stop()


def test_a_gateway_that_hangs_or_is_gone_is_said_in_the_page(
    browser: Any, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    own = GatewayProcess(cluster.bootstrap_servers, tmp_path / "log")
    context = browser.new_context()
    context.set_default_timeout(TIMEOUT_MS)
    try:
        looking = Looking(context.new_page(), own.url)
        page = looking.open("/cluster")
        looking.await_text("brokers-up", "3 / 3")
        gone = page.get_by_test_id("gateway-gone")
        assert gone.is_hidden()
        own.send_signal(signal.SIGSTOP)
        looking.await_text("gateway-gone", "The gateway does not respond.")
        own.send_signal(signal.SIGCONT)
        gone.wait_for(state="hidden")
        own.send_signal(signal.SIGKILL)
        looking.await_text("gateway-gone", "The connection with the gateway is lost.")
    finally:
        context.close()
        own.stop()


@pytest.mark.slow
def test_a_page_outlives_the_gateway(browser: Any, cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """It is loaded again by itself once a gateway is at the address again."""
    first = GatewayProcess(cluster.bootstrap_servers, tmp_path / "first")
    context = browser.new_context()
    context.set_default_timeout(TIMEOUT_MS)
    try:
        looking = Looking(context.new_page(), first.url)
        page = looking.open("/cluster")
        looking.await_text("brokers-up", "3 / 3")
        page.evaluate("window.sameDocument = true")
    finally:
        first.stop()
    second = GatewayProcess(cluster.bootstrap_servers, tmp_path / "second", "--http", urlsplit(first.url).netloc)
    try:
        page.wait_for_function("window.sameDocument === undefined && window.socket?.connected")
        looking.await_text("brokers-up", "3 / 3")
    finally:
        context.close()
        second.stop()
