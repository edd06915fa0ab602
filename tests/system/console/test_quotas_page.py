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


def test_quotas_are_shown(looking: Looking, cluster: EmbeddedCluster) -> None:
    admin = QuotaAdmin(Cluster(cluster.bootstrap_servers))
    admin.alter({"user": "alice"}, {"producer_byte_rate": 123_456.0})
    try:
        page: Any = looking.open("/quotas")
        looking.await_text("quotas", "user=alice")
        looking.await_text("quotas", "123,456")
        assert page.get_by_test_id("quota-usage").count() == 1
    finally:
        admin.alter({"user": "alice"}, {"producer_byte_rate": None})
