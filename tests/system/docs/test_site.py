"""The docs site in a real browser: diagrams are drawn, search finds pages, and no other host is asked."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.repository import REPOSITORY
from tests.waiting import TIMEOUT_SECONDS
from tools import install_test_clients
from tools.apache_kafka import ToolchainMissingError

FROM_ELSEWHERE = re.compile(r'<(?:script|link|img|iframe)[^>]*?(?:src|href)="?(?:https?:)?//[^" >]+')
WITH_DIAGRAMS = [path for path in (REPOSITORY / "docs").rglob("*.md") if "\n```mermaid\n" in path.read_text()]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=2 * TIMEOUT_SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_no_page_names_a_script_or_picture_of_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 100
    found = {page.name: FROM_ELSEWHERE.findall(page.read_text()) for page in pages}
    assert not {name: addresses for name, addresses in found.items() if addresses}


def test_a_browser_draws_the_diagrams_and_finds_pages(address: str) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    try:
        (program,) = install_test_clients.chromium().command
    except ToolchainMissingError as reason:
        pytest.skip(str(reason))
    asked: list[str] = []
    errors: list[str] = []
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(TIMEOUT_SECONDS * 1000)
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: errors.append(f"{page.url}: {error}"))
        assert len(WITH_DIAGRAMS) >= 9
        for file in WITH_DIAGRAMS:
            count = file.read_text().count("\n```mermaid\n")
            page.goto(f"{address}/{file.relative_to(REPOSITORY / 'docs').with_suffix('')}/")
            page.wait_for_function(f"document.querySelectorAll('.diagram[data-processed] svg').length === {count}")
            assert page.locator(".error-icon").count() == 0, file
        page.goto(f"{address}/deep-dives/segments/")
        page.wait_for_function("document.querySelector('article img').naturalWidth > 0")
        page.goto(address)
        page.locator("input[name=query]").fill("sparse index")
        page.locator(".md-search-result__item", has_text="sparse index").first.wait_for()
        browser.close()
    assert not errors
    assert {url.split("/")[2] for url in asked} == {address.removeprefix("http://")}
