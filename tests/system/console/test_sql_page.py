"""The SQL page in a real browser: a query, its errors, its rows as a file, and its pipeline."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
from confluent_kafka import Producer

from millstream.testing import EmbeddedCluster
from tests.system.console.conftest import Looking
from tests.waiting import TIMEOUT_SECONDS


def test_a_query_and_its_pipeline(
    looking: Looking,
    cluster: EmbeddedCluster,
    make_topic: Callable[..., str],
    screenshot: Callable[..., None],
    tmp_path: Path,
) -> None:
    topic = make_topic("sql-page", 2)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number in range(40):
        order = {"id": number, "customer": f"customer-{number % 4}", "total": number * 1.5, "card": {"last": "42"}}
        producer.produce(topic, json.dumps(order), key=f"k{number}")
    assert producer.flush(TIMEOUT_SECONDS) == 0

    page: Any = looking.open("/sql")
    page.get_by_test_id("sql-topics").get_by_text(topic).click()
    page.wait_for_function("document.querySelector('.ms-sql textarea').value.includes('sql-page')")
    page.get_by_test_id("sql-run").click()
    looking.await_text("sql-rows", "customer-3")
    assert "40 rows" in page.locator(".ms-sql-results").inner_text()
    assert '{"last":"42"}' in looking.text("sql-rows")

    field = page.get_by_test_id("sql-query")
    field.fill(f'select customer, sum(totl) from "{topic}" group by all')
    page.get_by_test_id("sql-run").click()
    looking.await_text("sql-error", 'Candidate bindings: "total"')

    query = f'select customer, sum(total) as total from "{topic}" group by all order by customer'
    field.fill(query)
    field.press("Control+Enter")
    page.locator(".ms-sql-results").get_by_text("4 rows").wait_for()  # times of the first result may have any digits
    looking.await_text("sql-rows", "270")
    assert page.get_by_test_id("sql-error").is_hidden()
    with page.expect_download() as saving:
        page.get_by_test_id("sql-save-parquet").click()
    saving.value.save_as(tmp_path / "rows.parquet")
    assert pyarrow.parquet.read_table(tmp_path / "rows.parquet").to_pylist()[0] == {
        "customer": "customer-0",
        "total": 270.0,
    }

    page.get_by_test_id("sql-pipeline").click()
    looking.await_text("sql-error", "ORDER BY cannot be a pipeline")
    field.fill(query.partition(" order by")[0])
    page.get_by_test_id("sql-pipeline").click()
    looking.await_text("sql-pipeline-file", "mode: update")
    assert f'topic: "{topic}"' in looking.text("sql-pipeline-file")
    page.keyboard.press("Escape")

    # The query is in the URL: a link shows it again.
    assert "q=select" in page.url
    page.reload()
    page.wait_for_selector("[data-testid=sql-query]")
    assert "order by customer" in page.get_by_test_id("sql-query").input_value()

    def run(tab: Any) -> None:
        tab.get_by_test_id("sql-query").fill(query)
        tab.get_by_test_id("sql-run").click()
        tab.get_by_test_id("sql-rows").wait_for()

    screenshot("sql", "/sql", run)


def test_a_running_query_is_cancelled(looking: Looking) -> None:
    page: Any = looking.open("/sql")
    page.get_by_test_id("sql-query").fill("select count(*) from range(1000000000000) a where a.range % 3 = 1")
    page.get_by_test_id("sql-run").click()
    page.get_by_role("button", name="Cancel").click()
    looking.await_text("sql-error", "the query was cancelled")
