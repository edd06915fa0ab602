"""Lineage of real runs: events in a file and at an endpoint, and columns from Spark's plans."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from millstream.pipeline.engine.column_lineage import columns_of
from millstream.pipeline.engine.failures import PipelineFailedError
from millstream.pipeline.engine.planned import planned_queries
from millstream.pipeline.engine.queries import build
from millstream.pipeline.engine.run import ENGINE_SETTINGS, own_session
from millstream.pipeline.lineage import Origin
from millstream.testing import EmbeddedBroker
from tests.system.pipeline.shop import Shop, run_once
from tests.waiting import TIMEOUT_SECONDS

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def shop(broker: EmbeddedBroker, tmp_path: Path) -> Shop:
    return Shop(broker, tmp_path)


@contextmanager
def endpoint() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Its address, and the events that it got."""
    got: list[dict[str, Any]] = []

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(201 if self.path == "/api/v1/lineage" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Endpoint)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", got
    finally:
        server.shutdown()
        server.server_close()
        thread.join(TIMEOUT_SECONDS)


RUN = """
name: li1
bootstrap: BOOTSTRAP
lineage: {file: ./events/lineage.jsonl, url: "URL", namespace: sales}
sources:
  orders: {topic: li1-orders, format: json, schema: "id STRING, amount DOUBLE"}
steps:
  priced:
    sql: SELECT id AS order_id, amount * 2 AS price, 'EUR' AS currency FROM orders
sinks:
  out: {from: priced, topic: li1-out, key: order_id}
  lake: {from: orders, table: ./lake}
"""


def test_a_run_tells_its_datasets_and_columns(shop: Shop, spark: SparkSession, broker: EmbeddedBroker) -> None:
    shop.fill("li1-orders", [{"id": "o1", "amount": 1.5}], "id")
    with endpoint() as (url, got):
        run_once(shop.pipeline(RUN.replace("URL", url)), spark)
    lines = (shop.directory / "events" / "lineage.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == got

    start, complete = got
    assert (start["eventType"], complete["eventType"]) == ("START", "COMPLETE")
    assert start["run"]["runId"] == complete["run"]["runId"]
    assert (start["job"]["namespace"], start["job"]["name"]) == ("sales", "li1")
    assert start["job"]["facets"]["jobType"]["processingType"] == "BATCH"
    assert (complete["inputs"], complete["outputs"]) == (start["inputs"], start["outputs"])

    cluster = f"kafka://{broker.bootstrap_servers}"
    (orders,) = start["inputs"]
    assert (orders["namespace"], orders["name"]) == (cluster, "li1-orders")
    assert columns(orders) == {"id": "string", "amount": "double"}
    out, lake = start["outputs"]
    assert (out["namespace"], out["name"]) == (cluster, "li1-out")
    assert columns(out) == {"order_id": "string", "price": "double", "currency": "string"}
    assert out["facets"]["columnLineage"]["fields"] == {
        "order_id": {"inputFields": [{"namespace": cluster, "name": "li1-orders", "field": "id"}]},
        "price": {"inputFields": [{"namespace": cluster, "name": "li1-orders", "field": "amount"}]},
    }
    assert (lake["namespace"], lake["name"]) == ("file", str(shop.directory / "lake"))
    assert set(lake["facets"]["columnLineage"]["fields"]) == {"id", "amount"}


def columns(dataset: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["type"] for each in dataset["facets"]["schema"]["fields"]}


def test_a_run_that_fails_says_why(shop: Shop, spark: SparkSession) -> None:
    """FAIL with the reason; an endpoint that is not there ends nothing."""
    shop.fill("li2-orders", [{"id": "o1"}], "id")
    text = """
        name: li2
        bootstrap: BOOTSTRAP
        lineage: {file: ./lineage.jsonl, url: "http://127.0.0.1:1"}
        sources:
          orders: {topic: li2-orders, format: json, schema: id STRING, expect: {no: {check: id = 'x', action: fail}}}
        sinks:
          out: {from: orders, topic: li2-out}
    """
    with pytest.raises(PipelineFailedError, match="expectation no of"):
        run_once(shop.pipeline(text), spark)
    start, failed = [json.loads(line) for line in (shop.directory / "lineage.jsonl").read_text().splitlines()]
    assert (start["eventType"], failed["eventType"]) == ("START", "FAIL")
    assert "expectation no of" in failed["run"]["facets"]["errorMessage"]["message"]


SHAPES = """
name: li3
bootstrap: BOOTSTRAP
sources:
  orders:
    topic: li3-orders
    format: json
    schema: id STRING, shop STRING, amount DOUBLE, tags ARRAY<STRING>, at TIMESTAMP
    watermark: {column: at, delay: 10 seconds}
    expect: {has_id: {check: id IS NOT NULL, action: drop}}
  changes: {topic: li3-customers, format: json, schema: "name STRING, country STRING"}
  shops: {table: ./shops.csv, format: csv, schema: "shop STRING, city STRING"}
steps:
  customers:
    latest: {from: changes}
  priced:
    sql: |
      WITH paid AS (SELECT id, shop, at, amount * 2 AS price, tags FROM orders)
      SELECT p.id AS order_id, p.shop, p.at, p.price, c.country, 'EUR' AS currency
      FROM paid p LEFT JOIN customers c ON p.id = c._key
  located:
    join: {left: priced, right: shops, on: shop, type: left}
  tagged:
    sql: SELECT o.id, tag FROM orders o LATERAL VIEW explode(o.tags) t AS tag
  both:
    sql: SELECT order_id AS id FROM priced UNION ALL SELECT tag FROM tagged
  large: {route: {from: orders, branches: {big: amount > 1}, rest: drop}}
  pairs:
    join: {left: big, right: orders, on: shop, within: 1 minute}
  twice:
    sql: WITH o AS (SELECT id AS one FROM orders) SELECT one FROM o UNION ALL SELECT upper(b.one) FROM o b
  doubled:
    python: {function: li3_code:doubled, from: orders}
  per_minute:
    window: {from: orders, tumbling: 1 minute, group_by: shop, aggregate: {total: sum(amount)}}
sinks:
  out: {from: located, topic: li3-out, key: order_id}
  tags: {from: tagged, table: ./tags}
  ids: {from: both, topic: li3-ids}
  pairs_out: {from: pairs, topic: li3-pairs}
  twice_out: {from: twice, topic: li3-twice}
  doubles: {from: doubled, topic: li3-doubles}
  minutes: {from: per_minute, table: ./minutes}
"""
CODE = """
def doubled(rows):
    def each(batches):
        for batch in batches:
            yield batch[["id"]].assign(twice=batch["amount"] * 2)
    return rows.mapInPandas(each, "id STRING, twice DOUBLE")
"""


def test_columns_are_found_through_all_kinds_of_steps(shop: Shop, spark: SparkSession) -> None:
    """CTE, explode, union, joins with tables and with itself, Python, windows. Spark analyses; nothing is read."""
    for topic in ("li3-orders", "li3-customers"):
        shop.fill(topic, [])
    (shop.directory / "shops.csv").write_text("s1,Delft\n")
    (shop.directory / "li3_code.py").write_text(CODE)
    pipeline = shop.pipeline(SHAPES)
    settings = {**ENGINE_SETTINGS, **pipeline.spark}
    built = [build(own_session(spark, settings), pipeline, plan, show=None) for plan in planned_queries(pipeline)]
    found = columns_of(pipeline, built)

    assert {name: dict(each) for name, each in found.sources.items()} == {
        "orders": {"id": "string", "shop": "string", "amount": "double", "tags": "array<string>", "at": "timestamp"},
        "changes": {"name": "string", "country": "string"},
        "shops": {"shop": "string", "city": "string"},
    }
    every = {f"orders.{name}" for name in ("id", "shop", "amount", "tags", "at")}
    assert {sink: {name: origins(each) for name, each in of.items()} for sink, of in found.origins.items()} == {
        "out": {
            "order_id": {"orders.id"},
            "shop": {"orders.shop"},
            "at": {"orders.at"},
            "price": {"orders.amount"},
            "country": {"changes.country"},
            "currency": set(),
            "city": {"shops.city"},
        },
        "tags": {"id": {"orders.id"}, "tag": {"orders.tags"}},
        "ids": {"id": {"orders.id", "orders.tags"}},
        "pairs_out": {
            "id": {"orders.id"},
            "shop": {"orders.shop"},
            "amount": {"orders.amount"},
            "tags": {"orders.tags"},
            "at": {"orders.at"},
            "orders_id": {"orders.id"},
            "orders_amount": {"orders.amount"},
            "orders_tags": {"orders.tags"},
            "orders_at": {"orders.at"},
        },
        "twice_out": {"one": {"orders.id"}},
        "doubles": {"id": every, "twice": every},
        "minutes": {
            "window_start": {"orders.at"},
            "window_end": {"orders.at"},
            "shop": {"orders.shop"},
            "total": {"orders.amount"},
        },
    }


def origins(found: Sequence[Origin]) -> set[str]:
    """Columns of sources without those of the record, which Python steps read too."""
    return {f"{source}.{column}" for source, column in found if not column.startswith("_")}
