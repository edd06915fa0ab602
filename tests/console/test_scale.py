"""A cluster of a thousand topics in a real browser: found, sorted and paged without waiting."""

import pytest
from confluent_kafka.admin import NewTopic

from tests.console.conftest import Looking

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
COUNT = 1000


def test_a_thousand_topics(looking: Looking, admin: object) -> None:
    names = [f"many-{number:04}" for number in range(COUNT)]
    for at in range(0, COUNT, 100):
        topics = [NewTopic(name, 1, 1) for name in names[at : at + 100]]
        for made in admin.create_topics(topics, operation_timeout=60).values():  # type: ignore[attr-defined]
            made.result(120)
    try:
        page = looking.open("/topics")
        looking.await_text("topics", "many-0000")
        assert page.locator("[data-testid=topics] tbody tr").count() <= 250, "the browser has only what it shows"
        page.keyboard.press("/")
        page.keyboard.type("many-0777")
        page.get_by_role("link", name="many-0777").wait_for()
        page.get_by_role("link", name="many-0000").wait_for(state="hidden")
        looking.open("/cluster")
        page.wait_for_function("Number(document.querySelector('[data-testid=offline]').innerText) === 0")
        looking.open("/")
        looking.await_text("health", "Healthy")
    finally:
        for gone in admin.delete_topics(names, operation_timeout=60).values():  # type: ignore[attr-defined]
            gone.result(120)
