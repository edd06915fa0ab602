"""One real cluster, one real gateway and one real browser for all tests of the console.

They last as long as this package's tests: while Playwright is at work, its event loop runs in the main thread, where
tests of other rooms want to run their own.

`MILLSTREAM_SCREENSHOTS=1 pytest tests/system/console` also writes docs/console/*.png again.
"""

import io
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from millstream.testing import EmbeddedCluster
from tests import topics
from tests.repository import REPOSITORY
from tests.waiting import TIMEOUT_SECONDS
from tools import install_test_clients
from tools.apache_kafka import ToolchainMissingError

SCREENSHOTS = REPOSITORY / "docs" / "console"
SIZE = {"width": 1360, "height": 860}
TIMEOUT_MS = TIMEOUT_SECONDS * 1000
"""For whatever a page is to show: machines that run many tests at once are slow."""


@pytest.fixture(scope="package")
def chromium() -> str:
    """Debian's browser, or the reason why there is none."""
    pytest.importorskip("playwright.sync_api")
    pytest.importorskip("nicegui")
    try:
        (program,) = install_test_clients.chromium().command
    except ToolchainMissingError as reason:
        pytest.skip(str(reason))
    return program


@pytest.fixture(scope="package")
def cluster(chromium: str) -> Iterator[EmbeddedCluster]:
    """Three nodes. A test that kills one starts it again before it ends."""
    settings = {
        "group.share.min.record.lock.duration.ms": 1000,
        "broker.session.timeout.ms": 4000,
        "replica.fetch.max.bytes": 100_000,  # one fetch in eleven seconds passes any throttle: let it be small
    }
    with EmbeddedCluster(3, settings) as running:
        yield running


@pytest.fixture(scope="package")
def admin(cluster: EmbeddedCluster) -> Any:
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers})


@pytest.fixture(scope="package")
def make_topic(cluster: EmbeddedCluster) -> Callable[..., str]:
    def make(name: str, partitions: int = 3, replication: int = 3, **config: str) -> str:
        return topics.make_topic(cluster, name, partitions, replication, config)

    return make


class Traffic:
    """Records that keep coming into `orders`, and a group `billing` that reads them."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._write, self._read)]

    def __enter__(self) -> "Traffic":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _write(self) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 20})
        number = 0
        while not self._ended.is_set():
            for _ in range(10):
                customer = f"customer-{number % 7}"
                value = b'{"order": %d, "amount": %d.5, "customer": "%s"}' % (number, number % 90, customer.encode())
                producer.produce("orders", value, key=customer)
                number += 1
            producer.poll(0)
            self._ended.wait(0.3)
        producer.flush(TIMEOUT_SECONDS)

    def _read(self) -> None:
        settings = {"bootstrap.servers": self._bootstrap, "group.id": "billing", "client.id": "billing-1"}
        consumer = Consumer(settings | {"auto.offset.reset": "earliest", "auto.commit.interval.ms": 500})
        consumer.subscribe(["orders"])
        while not self._ended.is_set():
            consumer.consume(100, 0.2)
        consumer.close()


@pytest.fixture(scope="package")
def traffic(cluster: EmbeddedCluster, make_topic: Callable[..., str]) -> Iterator[Traffic]:
    make_topic("orders", 6, 3, **{"min.insync.replicas": "2"})
    with Traffic(cluster.bootstrap_servers) as running:
        yield running


class GatewayProcess:
    """`millstream gateway` as users start it. An empty address: that of the client properties in the options."""

    def __init__(self, bootstrap: str, log_file: Path, *options: str) -> None:
        command = [sys.executable, "-m", "millstream", "gateway", *(["--bootstrap", bootstrap] if bootstrap else [])]
        where = () if "--http" in options else ("--http", "127.0.0.1:0")
        with open(log_file, "wb") as log:
            self._process = subprocess.Popen(
                [*command, "--exit-with-stdin", *where, *options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], TIMEOUT_SECONDS)
        line = self._process.stdout.readline().decode() if readable else ""
        if not line.startswith("ready http="):
            self.stop()
            raise AssertionError(f"the gateway did not start: {line!r} {log_file.read_text()}")
        scheme = "https" if "--tls-cert" in options else "http"
        self.url = f"{scheme}://" + line.partition("=")[2].strip().replace("0.0.0.0", "127.0.0.1")

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture(scope="package")
def gateway_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gateway") / "gateway.log"


@pytest.fixture(scope="package")
def gateway(cluster: EmbeddedCluster, gateway_log: Path) -> Iterator[GatewayProcess]:
    running = GatewayProcess(cluster.bootstrap_servers, gateway_log)
    yield running
    running.stop()


@pytest.fixture(scope="package")
def browser(chromium: str) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    # One process draws all tabs. It compiles the console's scripts once; a process per tab takes twice the CPU time.
    options = ["--no-sandbox", "--disable-gpu", "--renderer-process-limit=1"]
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=options)
        yield started
        started.close()


class Looking:
    """One tab. `problems` are what the browser complains about: pages are to give it no reason."""

    def __init__(self, page: Any, url: str) -> None:
        self.page = page
        self._url = url
        self.problems: list[str] = []
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", lambda said: self.problems.append(said.text) if said.type == "error" else None)
        page.on("request", self._requested)

    def open(self, path: str) -> Any:
        """Goes to a page of the console and waits until it is there and talks with the gateway."""
        self.page.goto(f"{self._url}/console{path}")
        self.page.wait_for_selector("[data-testid=page-title]")
        self.page.wait_for_function("window.socket?.connected")
        return self.page

    def text(self, test_id: str) -> str:
        return str(self.page.get_by_test_id(test_id).inner_text())

    def await_text(self, test_id: str, text: str) -> None:
        try:
            self.page.get_by_test_id(test_id).filter(has_text=text).first.wait_for()
        except Exception as error:
            fields = self.page.eval_on_selector_all("input, textarea", "all => all.map(each => each.value)")
            shown = self.page.locator("body").inner_text()
            raise AssertionError(
                f"{test_id} does not say {text!r} on {self.page.url}; fields: {fields}; problems: {self.problems}; "
                f"the page: {shown}"
            ) from error

    def await_closed(self, test_id: str) -> None:
        """Waits until a dialog is closed; what it shows otherwise is in the error."""
        try:
            self.page.get_by_test_id(test_id).wait_for(state="hidden")
        except Exception as error:
            shown = self.page.get_by_test_id(test_id).inner_text()
            raise AssertionError(f"{test_id} stays open; problems: {self.problems}; it shows: {shown}") from error

    def _requested(self, request: Any) -> None:
        sockets = self._url.replace("https:", "wss:").replace("http:", "ws:")
        if not request.url.startswith((self._url, sockets, "data:", "blob:")):
            self.problems.append(f"asked another site: {request.url}")


def choose(page: Any, field: Any, option: str, *, exact: bool = False) -> None:
    """Choose an option of a field. When it returns, the list is gone: a list that is still closing has options, too."""
    field.click()
    page.get_by_role("option", name=option, exact=exact).click()
    page.get_by_role("option").first.wait_for(state="detached")


@pytest.fixture(scope="package")
def window(browser: Any) -> Iterator[Any]:
    """One for all tabs, so that scripts and styles are fetched once."""
    context = browser.new_context(viewport=SIZE, color_scheme="light")
    context.set_default_timeout(TIMEOUT_MS)
    context.new_page()  # an empty tab stays: with the last tab the process that draws them would end
    yield context
    context.close()


@pytest.fixture
def looking(window: Any, gateway: GatewayProcess) -> Iterator[Looking]:
    looking = Looking(window.new_page(), gateway.url)
    yield looking
    looking.page.close()
    window.clear_cookies()
    assert looking.problems == []


@pytest.fixture
def page(looking: Looking) -> Any:
    """The tab itself, for those who need no more."""
    return looking.page


@pytest.fixture
def screenshot(browser: Any, gateway: GatewayProcess) -> Callable[..., None]:
    """`screenshot("groups", "/groups?group=billing", ready=…)`: light and dark, if they are asked for."""

    def take(name: str, path: str, ready: Callable[[Any], None] | None = None) -> None:
        if not os.environ.get("MILLSTREAM_SCREENSHOTS"):
            return
        from PIL import Image

        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        for scheme, suffix in (("light", ""), ("dark", "-dark")):
            context = browser.new_context(viewport=SIZE, color_scheme=scheme)
            context.set_default_timeout(TIMEOUT_MS)
            tab = Looking(context.new_page(), gateway.url).open(path)
            if ready is not None:
                ready(tab)
            time.sleep(4)  # charts get a few points
            taken = tab.screenshot()
            context.close()
            # A page has few colours: as a palette it is a third as large, and looks the same.
            few = Image.open(io.BytesIO(taken)).convert("RGB").quantize(192, dither=Image.Dither.NONE)
            few.save(SCREENSHOTS / f"{name}{suffix}.png", optimize=True)

    return take
