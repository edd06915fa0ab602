"""A browser's EventSource on a stream: the gateway is replaced under it, and nothing is missed or comes twice."""

import time
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from millstream.gateway.server import Gateway, GatewayOptions
from millstream.raw_client import Cluster
from millstream.testing import EmbeddedBroker
from tests.system.console.conftest import chromium  # noqa: F401
from tests.waiting import TIMEOUT_SECONDS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FOLLOW = """() => {
    window.seen = [];
    const source = new EventSource("/topics/watched/stream?format=text&from=earliest");
    source.onmessage = (event) => window.seen.push(JSON.parse(event.data).value);
}"""


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_an_event_source_of_a_browser_reads_a_stream(broker: EmbeddedBroker, chromium: str) -> None:  # noqa: F811
    from playwright.sync_api import sync_playwright

    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})

    def put(value: str) -> None:
        producer.produce("watched", value)
        assert producer.flush(TIMEOUT_SECONDS) == 0

    with Cluster(broker.bootstrap_servers) as cluster:
        cluster.create_topic("watched", 3)
    first = Gateway(GatewayOptions(broker.bootstrap_servers))
    first.start()
    port = int(first.address.rsplit(":", 1)[1])
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()

        def seen() -> list[str]:
            return list(page.evaluate("window.seen"))

        try:
            put("<b>0</b>")
            page.goto(f"{first.url}/livez")
            page.evaluate(FOLLOW)
            until(lambda: seen() == ["<b>0</b>"])
            put("1")
            until(lambda: len(seen()) == 2)
            first.stop()
            put("2")
            with Gateway(GatewayOptions(broker.bootstrap_servers, port=port)):
                until(lambda: len(seen()) == 3)
                put("3")
                until(lambda: len(seen()) == 4)
                assert seen() == ["<b>0</b>", "1", "2", "3"]
                page.close()
        finally:
            browser.close()
            first.stop()
