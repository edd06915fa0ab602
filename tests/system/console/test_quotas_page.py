"""Quotas: the report from metrics, without a browser; and the page in a real browser."""

from __future__ import annotations

from typing import Any

from millstream.admin.broker_metrics import parse
from millstream.admin.quotas import QuotaAdmin
from millstream.console.live.quotas import merged
from millstream.raw_client import Cluster
from millstream.testing.embedded_cluster import EmbeddedCluster
from tests.system.console.conftest import Looking

_PAGE = """
millstream_quota_limit{quota="producer_byte_rate",user="alice",client_id=""} 1000
millstream_quota_rate{quota="producer_byte_rate",user="alice",client_id=""} 1500
millstream_quota_throttles_total{quota="producer_byte_rate",user="alice",client_id=""} 3
millstream_quota_throttle_seconds_total{quota="producer_byte_rate",user="alice",client_id=""} 2.5
millstream_quota_limit{quota="consumer_byte_rate",user="",client_id="app"} 1000
millstream_quota_rate{quota="consumer_byte_rate",user="",client_id="app"} 10
millstream_connections_muted{listener="PLAINTEXT"} 2
"""


def test_usages_of_brokers_are_joined() -> None:
    first, second = merged([*parse(_PAGE), *parse(_PAGE)])
    assert (first.who, first.quota, first.throttles, first.throttled_s) == ("user=alice", "producer_byte_rate", 6, 5.0)
    assert first.used == 1.5
    assert (second.who, second.throttles, second.used) == ("client-id=app", 0, 0.01)


def test_quotas_are_set_shown_and_removed(looking: Looking, cluster: EmbeddedCluster) -> None:
    page: Any = looking.open("/quotas")
    page.get_by_test_id("open-quota").click()
    page.get_by_test_id("quota-value").fill("fast")
    page.get_by_test_id("set-quota-now").click()
    looking.await_text("complaint", "enter a user, a client id, both, or an address")
    page.get_by_test_id("quota-user").fill("alice")
    page.get_by_test_id("set-quota-now").click()
    looking.await_text("complaint", "write a number, for example producer_byte_rate=10MB")
    page.get_by_test_id("quota-value").fill("1MB")
    page.get_by_test_id("set-quota-now").click()
    looking.await_text("quotas", "user=alice")
    looking.await_text("quotas", "1,048,576")
    assert page.get_by_test_id("quota-usage").count() == 1
    with Cluster(cluster.bootstrap_servers) as raw:
        admin = QuotaAdmin(raw)
        assert [dict(row.values) for row in admin.quotas({"user": "alice"})] == [{"producer_byte_rate": 1048576.0}]
        page.get_by_test_id("quotas").locator("tbody tr").filter(has_text="alice").locator(".q-checkbox").click()
        page.get_by_test_id("remove-quotas").click()
        page.get_by_test_id("confirm").click()
        page.get_by_test_id("quotas").get_by_text("user=alice").wait_for(state="detached")
        assert admin.quotas({"user": "alice"}) == []


def test_a_cluster_without_an_authorizer_or_tokens_says_so(looking: Looking) -> None:
    page: Any = looking.open("/access")
    looking.await_text("access-note", "ACLs are off: authorizer.class.name is not set")
    assert not page.get_by_test_id("open-acl").is_visible()
    page.get_by_test_id("tab-tokens").click()
    looking.await_text("tokens-note", "tokens need a client that is authenticated by SASL or TLS")
