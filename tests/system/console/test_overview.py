"""The overview in a real browser: real numbers, and a leader that is killed and comes back while the page is open."""

import time
from collections.abc import Callable

import pytest

from millstream.raw_client import Cluster
from millstream.testing import EmbeddedCluster
from tests.system.console.conftest import Looking, Traffic

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def wire(cluster: EmbeddedCluster) -> Cluster:
    return Cluster(cluster.bootstrap_servers)


def test_it_shows_the_cluster_as_it_is(
    looking: Looking, cluster: EmbeddedCluster, traffic: Traffic, screenshot: Callable[..., None]
) -> None:
    page = looking.open("/")
    looking.await_text("stat-brokers", "3 / 3")
    looking.await_text("health", "Healthy")
    looking.await_text("problems", "The cluster is healthy")
    looking.await_text("busiest", "orders")
    for number in cluster.nodes:
        looking.await_text("brokers", cluster.address(number))
    looking.await_text("quorum", "leader")
    # Records keep coming: the number and the chart say so.
    page.wait_for_function("Number(document.querySelector('[data-testid=stat-records]').innerText) > 10")
    canvas = page.get_by_test_id("chart-records").locator("canvas")
    canvas.wait_for()
    screenshot("overview", "/", lambda tab: tab.wait_for_timeout(8000))


def test_brokers_own_metrics_are_on_the_charts(looking: Looking, traffic: Traffic) -> None:
    page = looking.open("/")
    page.wait_for_function(
        "[...document.querySelectorAll('.ms-stat')].some(each => /\\d.*(KB|B)\\s*bytes\\/s in/.test(each.innerText))"
    )
    page.wait_for_function(
        "[...document.querySelectorAll('.ms-stat')].some(each => /\\d ms\\s*produce p99/.test(each.innerText))"
    )


def test_a_killed_leader_is_shown_and_its_return_too(
    looking: Looking, cluster: EmbeddedCluster, wire: Cluster, traffic: Traffic, screenshot: Callable[..., None]
) -> None:
    page = looking.open("/")
    looking.await_text("health", "Healthy")
    victim = wire.topics(["orders"])["orders"].partitions[0].leader
    page.evaluate("window.sameDocument = true")
    began = time.monotonic()
    cluster.kill(victim)
    try:
        looking.await_text("problems", f"Broker {victim} does not respond")
        took = time.monotonic() - began
        looking.await_text("health", f"Broker {victim} does not respond")
        looking.await_text("stat-brokers", "2 / 3")
        looking.await_text("brokers", "no response")
        print(f"a killed leader was shown after {took:.2f} s")
        screenshot("overview-broker-killed", "/")
    finally:
        cluster.start(victim)
    # By itself: no one reloads the page.
    looking.await_text("stat-brokers", "3 / 3")
    looking.await_text("problems", "The cluster is healthy")
    looking.await_text("health", "Healthy")
    assert page.evaluate("window.sameDocument") is True


@pytest.mark.slow
def test_a_cluster_that_is_gone_is_told_of_with_what_was_last_known(looking: Looking, cluster: EmbeddedCluster) -> None:
    page = looking.open("/")
    looking.await_text("health", "Healthy")
    cluster.kill(*cluster.nodes)
    try:
        looking.await_text("problems", "No broker responds")
        page.get_by_test_id("stale").wait_for()
        looking.await_text("brokers", cluster.address(1))
    finally:
        cluster.start()
    looking.await_text("health", "Healthy")
    page.get_by_test_id("stale").wait_for(state="hidden")


@pytest.mark.slow
def test_a_broker_that_hangs_is_shown(looking: Looking, cluster: EmbeddedCluster) -> None:
    looking.open("/cluster")
    looking.await_text("brokers-up", "3 / 3")
    cluster.pause(2)
    try:
        looking.await_text("health", "Broker 2 does not respond")
    finally:
        cluster.resume(2)
    looking.await_text("health", "Healthy")
