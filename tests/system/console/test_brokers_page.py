"""Settings and log levels of brokers in a real browser: changed as the preview showed it, and reset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

pytest.importorskip("nicegui")

from millstream.admin.topics import ConfigResource, TopicAdmin
from millstream.console.brokers import BrokerSetting, Layer, read_levels
from millstream.console.topics.settings import Source
from millstream.raw_client import Cluster
from millstream.testing import EmbeddedCluster
from tests.system.console.conftest import Looking, choose

_NAME = "message.max.bytes"


@pytest.fixture(scope="module")
def client(cluster: EmbeddedCluster) -> Iterator[Cluster]:
    with Cluster(cluster.bootstrap_servers) as client:
        yield client


def value(client: Cluster, broker: int) -> str | None:
    (entry,) = TopicAdmin(client).settings(ConfigResource.BROKER, str(broker), [_NAME])
    return entry.value


def test_a_setting_is_changed_and_reset_as_the_preview_shows(
    looking: Looking, client: Cluster, cluster: EmbeddedCluster
) -> None:
    default = value(client, 1)
    page: Any = looking.open("/cluster")
    page.get_by_test_id("brokers").get_by_role("link", name="2", exact=True).click()
    page.get_by_test_id("page-title").filter(has_text="Broker 2").wait_for()
    page.wait_for_function("window.socket?.connected")
    looking.await_text("broker-settings", "node.id")
    page.locator("[data-filter]:visible").fill(_NAME)
    row = page.get_by_test_id("broker-settings").get_by_text(_NAME, exact=True)
    row.click()
    page.get_by_test_id(f"value-{_NAME}").fill("many")
    page.get_by_test_id("preview-setting").click()
    looking.await_text("complaint", "many")
    page.get_by_test_id(f"value-{_NAME}").fill("2000000")
    page.get_by_test_id("preview-setting").click()
    looking.await_text("effects", "2000000 (2.0 MB)")
    assert value(client, 2) == default, "a preview changes nothing"
    page.get_by_test_id("save-setting").filter(has_text="Set on broker 2").click()
    looking.await_text("broker-settings", "broker (dynamic)")
    assert [value(client, each) for each in (1, 2)] == [default, "2000000"]

    looking.open(f"/brokers?filter={_NAME}")
    row.click()
    page.get_by_test_id(f"value-{_NAME}").fill("3000000")
    page.get_by_test_id("preview-setting").click()
    looking.await_text("effects", "keeps its own value")
    page.get_by_test_id("save-setting").filter(has_text="Set on all brokers").click()
    looking.await_text("broker-settings", "3000000 (3.0 MB)")

    looking.open("/brokers?broker=2&changed=true&filter=message")
    looking.await_text("broker-settings", "2000000")
    row.click()
    looking.await_text("layers", "all brokers (dynamic)")
    page.get_by_test_id("preview-reset").click()
    looking.await_text("effects", "3000000 (3.0 MB)")
    page.get_by_test_id("save-setting").filter(has_text="Reset on broker 2").click()
    looking.await_text("broker-settings", "all brokers (dynamic)")
    assert [value(client, each) for each in (1, 2)] == ["3000000", "3000000"]

    looking.open(f"/brokers?filter={_NAME}")
    row.click()
    page.get_by_test_id("preview-reset").click()
    page.get_by_test_id("save-setting").filter(has_text="Reset on all brokers").click()
    looking.await_closed("edit-broker-setting")
    page.get_by_test_id("broker-settings").get_by_text("3000000").wait_for(state="hidden")
    assert value(client, 1) == default


def test_what_is_changed_is_found_and_a_restart_is_said(looking: Looking, screenshot: Callable[..., None]) -> None:
    page: Any = looking.open("/brokers?broker=1")
    looking.await_text("broker-settings", "node.id")
    for shown in ("51–100 of", "101–150 of"):  # settings are read after the table is there
        page.get_by_test_id("broker-settings").get_by_label("Next page").click()
        looking.await_text("broker-settings", shown)
    page.get_by_test_id("only-changed").click()
    page.wait_for_function("new URLSearchParams(location.search).get('changed') === 'true'")
    page.get_by_test_id("broker-settings").get_by_text("default", exact=True).first.wait_for(state="hidden")
    assert parse_qs(urlsplit(page.url).query) == {"broker": ["1"], "changed": ["true"], "page": ["3"]}
    page.get_by_test_id("broker-settings").get_by_text("node.id", exact=True).click()
    looking.await_text("read-only", "restarted")
    assert page.get_by_test_id("save-setting").count() == 0
    screenshot("broker", "/brokers?broker=1", lambda tab: tab.get_by_text("while running").first.wait_for())


def test_a_log_level_is_changed_and_reset(looking: Looking, client: Cluster) -> None:
    logger = next(name for name in read_levels(client, "3") if name.startswith("millstream."))
    before = read_levels(client, "3")[logger]
    page: Any = looking.open(f"/brokers?broker=3&tab=loggers&loggers.filter={logger}")
    page.get_by_test_id("loggers").get_by_text(logger, exact=True).click()
    choose(page, page.get_by_test_id("edit-level").get_by_label("Level", exact=True), "DEBUG")
    page.get_by_test_id("save-level").click()
    looking.await_text("loggers", "DEBUG")
    assert read_levels(client, "3")[logger] == "DEBUG"
    page.get_by_test_id("loggers").get_by_text(logger, exact=True).click()
    page.get_by_test_id("reset-level").click()
    page.get_by_test_id("loggers").get_by_text("DEBUG").first.wait_for(state="hidden")
    assert read_levels(client, "3")[logger] == before


def test_the_value_after_a_change() -> None:
    file, default = Layer(Source.FILE, "x", "5"), Layer(Source.DEFAULT, "x", "1")
    own, others = Layer(Source.BROKER, "x", "9"), Layer(Source.ALL_BROKERS, "x", "7")

    def after(scope: Source, value: str | None, *layers: Layer, secret: bool = False) -> str:
        first = layers[0].value if layers else None
        return BrokerSetting("x", first, secret, Source.DEFAULT, layers, "", "", (), False).after(scope, value)

    assert after(Source.BROKER, "4", file, default) == "4"
    assert after(Source.ALL_BROKERS, "4", own, file, default) == "9"
    assert after(Source.ALL_BROKERS, "4", file, default) == "4"
    assert after(Source.BROKER, None, own, others, default) == "7"
    assert after(Source.ALL_BROKERS, None, others, file, default) == "5"
    assert after(Source.BROKER, None, own) == "not set"
    assert after(Source.BROKER, "4", secret=True) == "(secret)"
    assert after(Source.BROKER, None, Layer(Source.BROKER, "x", None), secret=True) == "not set"
