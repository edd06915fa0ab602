"""The page of a pipeline in a real browser, from what the pipeline publishes."""

import time
from typing import Any

import pytest

from millstream.admin.pipeline_status import PublishedStatuses, StatusPublisher
from millstream.raw_client import Cluster
from millstream.testing import EmbeddedCluster
from tests.system.console.conftest import Looking

pytestmark = pytest.mark.timeout(300)


def document(batch: int, **changes: Any) -> dict[str, Any]:
    query = {
        "query": "shop.orders.sinks",
        "sink": "revenue, lake",
        "batch": batch,
        "batch_ms": 4000,
        "rows_in_per_second": 1250.0,
        "sources": [{"source": "orders", "rows": 5000, "rows_per_second": 1250.0, "lag": 900_000}],
        "state_rows": 77,
        "state_bytes": 4096,
        "dropped_late_rows": 3,
        "watermark": "2026-01-01T00:00:00.000Z",
        "updated_ms": 1_767_225_720_000,
        "active": True,
        "durations_ms": {"addBatch": 3600},
        "recent": [[batch - 1, 1_767_225_700_000, 3900, 4990], [batch, 1_767_225_720_000, 4000, 5000]],
        "outputs": [
            {"sink": "revenue", "rows": 40, "rows_total": 80, "rows_per_second": 10.0, "dead_letters": False},
            {"sink": "lake", "rows": 5000, "rows_total": 9990, "rows_per_second": 1249.0, "dead_letters": False},
        ],
        "expectations": [
            {
                "kind": "part",
                "part": "orders",
                "rule": "has_amount",
                "action": "quarantine",
                "rows_total": 9990,
                "violations_total": 42,
                "violations": 21,
            }
        ],
        **changes,
    }
    graph = {
        "boxes": [
            ["source:orders", "topic", "orders", "json · orders"],
            ["sink:revenue", "topic", "revenue", 'json · <img src=x onerror="alert(1)">'],
            ["sink:lake", "table", "lake", "delta · lake"],
        ],
        "arrows": [["source:orders", "sink:revenue", ""], ["source:orders", "sink:lake", ""]],
    }
    run = {"pipeline": "page-shop", "file": "/srv/shop.yaml", "host": "worker-7", "pid": 4711, "phase": "running"}
    return {**run, "spark_ui": "http://worker-7:4040", "queries": [query], "graph": graph}


def test_the_page_of_a_pipeline(looking: Looking, cluster: EmbeddedCluster) -> None:
    """Batches, rates, state, watermark, expectations, the graph with rates, and why it is slow; live."""
    told: list[str] = []
    publisher = StatusPublisher(cluster.bootstrap_servers, {}, "page-shop", told.append)
    try:
        publisher.show(document(6))
        page: Any = looking.open("/pipelines?pipeline=page-shop")
        looking.await_text("pipeline-phase", "running")
        looking.await_text("pipeline-lag", "900")
        looking.await_text("pipeline-state", "77")
        looking.await_text("pipeline-watermark", "120 s")
        looking.await_text("pipeline-why", "Most of a batch is computing and writing rows: 3,600 of 4,000 ms")
        looking.await_text("queries", "revenue, lake")
        looking.await_text("expectations", "has_amount")
        looking.await_text("batches", "5,000")
        assert page.get_by_test_id("spark-ui").get_attribute("href") == "http://worker-7:4040"
        picture = page.get_by_test_id("pipeline-graph")
        picture.locator("svg").wait_for()
        looking.await_text("pipeline-graph", "1,249/s")
        assert picture.locator("img").count() == 0  # names are text
        publisher.show(document(7, sources=[{"source": "orders", "rows": 10, "rows_per_second": 1.0, "lag": 4}]))
        looking.await_text("pipeline-why", "It is not slow: 4 records wait")
    finally:
        publisher.close()
    assert told == []
    with Cluster(cluster.bootstrap_servers) as wire:
        statuses = PublishedStatuses(wire)
        statuses.refresh()
        assert statuses.documents["page-shop"]["queries"][0]["batch"] == 7
        assert statuses.documents["page-shop"]["published_ms"] <= time.time() * 1000
