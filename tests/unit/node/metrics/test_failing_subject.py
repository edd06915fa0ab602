"""A subject that fails is missing from the page, and the page says so."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from millstream.common.prometheus import Page, gauge
from millstream.node.metrics import endpoints
from millstream.node.metrics.observed_node import MetricsSubject, ObservedNode, TimeSlices
from millstream.node.server.plain_http import HttpRequest, HttpResponse
from tests.integration.node.metrics.conftest import Scraped

KNOWN = gauge("known", "What can be told.")


async def tell(node: ObservedNode, page: Page, turns: TimeSlices) -> None:
    page.add(KNOWN, 5)


async def fail(node: ObservedNode, page: Page, turns: TimeSlices) -> None:
    raise ZeroDivisionError("by a bug")


def test_a_failing_subject_hides_no_other_metrics(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        endpoints, "SUBJECTS", (MetricsSubject("broken", (), fail), MetricsSubject("whole", (KNOWN,), tell))
    )
    responses: list[HttpResponse] = []

    async def ask() -> None:
        environment = SimpleNamespace(stopwatch=None, loop=asyncio.get_running_loop())
        node = endpoints.NodeEndpoints(cast(Any, SimpleNamespace(environment=environment)))
        second: asyncio.Future[HttpResponse] = asyncio.get_running_loop().create_future()
        node.respond(HttpRequest("/metrics", {}), responses.append)
        node.respond(HttpRequest("/metrics", {}), second.set_result)  # who asks meanwhile gets the same page
        responses.append(await second)

    with caplog.at_level(logging.ERROR):
        asyncio.run(ask())
    assert responses[0] is responses[1] and responses[0].status == 200
    page = Scraped(responses[0].body.decode())
    assert page("known") == 5
    assert page("millstream_scrape_success", subject="broken") == 0
    assert page("millstream_scrape_success", subject="whole") == 1
    assert "metrics_failed subject=broken" in caplog.text
