"""Cost of the console's pages with many topics: bytes over the websocket, CPU time of the gateway, and false alarms.

    python -m benchmarks.console --topics 1000 --partitions 5

Three brokers, a gateway and a headless Chromium on this machine, and a producer of 100 records per second. Bytes and
CPU time do not depend much on other load of the machine; the time until a page shows its rows does. `--warm-up` seconds
pass first, so that charts have their points. `--screenshots DIRECTORY` also saves each page at two widths, dark and
light. `--source DIRECTORY` measures the gateway of another source tree, to compare.
"""

import argparse
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.testing import EmbeddedCluster
from tools import install_test_clients

_TIMEOUT_MS = 180_000
_SIZES: dict[str, Any] = {"wide": {"width": 1440, "height": 900}, "phone": {"width": 390, "height": 844}}
_PAGES = {
    "overview": ("/", "[data-testid=brokers] :text-matches('^[0-9]')"),
    "topics": ("/topics", "[data-testid=topics] a"),
    "topic": ("/topics?topic=bench-0000", "[data-testid=layout] :text('leader')"),
    "cluster": ("/cluster", "[data-testid=brokers] :text-matches('^[0-9]')"),
}


@contextmanager
def gateway(bootstrap: str, source: str | None = None) -> Iterator[tuple[str, int]]:
    environment = {**os.environ, **({"PYTHONPATH": source} if source else {})}
    command = [sys.executable, "-m", "millstream", "gateway", "--bootstrap", bootstrap, "--http", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, "--exit-with-stdin"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            if not select.select([process.stdout], [], [], 120)[0]:
                raise SystemExit("the gateway did not start within two minutes")
            yield "http://" + process.stdout.readline().decode().partition("=")[2].strip(), process.pid
        finally:
            process.terminate()
            process.wait(60)


def _cpu_s(pid: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _make_topics(bootstrap: str, topics: int, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    names = [f"bench-{number:04d}" for number in range(topics)]
    for begin in range(0, topics, 100):
        wanted = [NewTopic(name, partitions, 3) for name in names[begin : begin + 100]]
        for made in admin.create_topics(wanted, operation_timeout=120).values():
            made.result(180)


class _Traffic(threading.Thread):
    """100 records per second, into ten of the topics."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
        self.ended = threading.Event()

    def run(self) -> None:
        number = 0
        while not self.ended.wait(0.1):
            for _ in range(10):
                self._producer.produce(f"bench-{number % 10:04d}", b"x" * 200)
                number += 1
            self._producer.poll(0)
        self._producer.flush(30)


def _measure(page: Any, url: str, pid: int, name: str, seconds: float) -> None:
    path, ready = _PAGES[name]
    received = 0

    def count(frame: Any) -> None:
        nonlocal received
        received += len(frame if isinstance(frame, bytes) else frame.encode())

    page.on("websocket", lambda socket: socket.on("framereceived", count))
    began = time.monotonic()
    page.goto(f"{url}/console{path}")
    page.locator(ready).first.wait_for()
    shown_s = time.monotonic() - began
    page.wait_for_timeout(3000)
    received, cpu, began = 0, _cpu_s(pid), time.monotonic()
    dead: set[str] = set()
    while (passed := time.monotonic() - began) < seconds:
        page.wait_for_timeout(250)
        health = str(page.get_by_test_id("health").inner_text())
        if "does not respond" in health:
            dead.add(f"{health} at {passed:.0f} s")
    used = _cpu_s(pid) - cpu
    print(
        f"{name}: rows after {shown_s:.1f} s, {received / passed / 1000:.1f} KB/s, "
        f"gateway {1000 * used / passed:.0f} ms CPU/s, called dead: {len(dead)} {sorted(dead)[:3]}",
        flush=True,
    )


def _save_screenshots(browser: Any, url: str, directory: Path, tag: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, (path, _) in _PAGES.items():
        for size, viewport in _SIZES.items():
            for scheme in ("light", "dark"):
                context = browser.new_context(viewport=viewport, color_scheme=scheme)
                context.set_default_timeout(_TIMEOUT_MS)
                page = context.new_page()
                page.goto(f"{url}/console{path}")
                page.wait_for_function("window.socket?.connected")
                page.wait_for_timeout(4000)
                page.screenshot(path=directory / f"{tag}-{name}-{size}-{scheme}.png")
                context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=5, help="of each topic")
    parser.add_argument("--seconds", type=float, default=30.0, help="for each page")
    parser.add_argument("--warm-up", type=float, default=300.0, help="seconds")
    parser.add_argument("--source", action="append", help="source tree of the gateway; may be repeated")
    parser.add_argument("--screenshots", type=Path)
    chosen = parser.parse_args()
    from playwright.sync_api import sync_playwright

    (chromium,) = install_test_clients.chromium().command
    with EmbeddedCluster(3) as cluster, sync_playwright() as playwright:
        _make_topics(cluster.bootstrap_servers, chosen.topics, chosen.partitions)
        traffic = _Traffic(cluster.bootstrap_servers)
        traffic.start()
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for source in chosen.source or [None]:
            print(f"gateway of {source or 'this source tree'}:", flush=True)
            with gateway(cluster.bootstrap_servers, source) as (url, pid):
                waiting = browser.new_page()
                waiting.goto(f"{url}/console/")
                waiting.wait_for_timeout(1000 * chosen.warm_up)
                waiting.close()
                for name in _PAGES:
                    page = browser.new_page(viewport=_SIZES["wide"])
                    page.set_default_timeout(_TIMEOUT_MS)
                    _measure(page, url, pid, name, chosen.seconds)
                    page.close()
                if chosen.screenshots and source is None:
                    _save_screenshots(browser, url, chosen.screenshots, str(chosen.topics))
        browser.close()
        traffic.ended.set()
        traffic.join(60)


if __name__ == "__main__":
    main()
