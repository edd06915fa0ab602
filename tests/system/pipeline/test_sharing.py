"""Sinks that share a read, and expectations: what arrives, what is counted, and what an upgrade does to checkpoints."""

import json
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from pyspark.sql import SparkSession

from millstream.admin.broker_metrics import fetch_metrics
from millstream.lake.options import parse_options
from millstream.lake.table import open_table
from millstream.pipeline.engine.failures import PartFailedError, PipelineFailedError
from millstream.pipeline.state import QueryProgress, read_state, state_directory
from millstream.testing import EmbeddedBroker
from tests.system.lake.conftest import rows_of
from tests.system.pipeline.shop import Shop, at, run_once
from tests.waiting import PATIENCE_S

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


def orders(first: int, last: int) -> list[dict[str, Any]]:
    return [{"id": f"o{i}", "shop": f"s{i % 2}", "amount": float(i % 5 - 1), "at": at(i)} for i in range(first, last)]


HEAD = """
name: NAME
bootstrap: BOOTSTRAP
sources:
  orders:
    topic: NAME-orders
    format: json
    schema: id STRING, shop STRING, amount DOUBLE, at TIMESTAMP
    watermark: {column: at, delay: 10 seconds}
"""


def head(name: str) -> str:
    return HEAD.replace("NAME", name)


def bytes_out(broker: EmbeddedBroker, topic: str) -> float:
    host, port = broker.bootstrap_servers.split(":")
    samples = fetch_metrics(host, int(port), ["topics"], PATIENCE_S)
    name = "millstream_topic_sent_bytes_total"
    return sum(each.value for each in samples if each.name == name and each.labels["topic"] == topic)


THREE = """
steps:
  priced:
    sql: SELECT *, amount * 2 AS price FROM orders
  checked:
    route: {from: priced, branches: {sales: amount > 0, refunds: amount < 0}}
sinks:
  sales: {from: sales, topic: NAME-sales, key: id}
  refunds: {from: refunds, topic: NAME-refunds}
  lake: {from: priced, table: ./lake}
"""


def rows_in_table(path: Path) -> list[str]:
    return sorted(row["id"] for row in rows_of(open_table(parse_options({"path": str(path)}))))


def test_three_sinks_read_their_source_once(shop: Shop, spark: SparkSession, broker: EmbeddedBroker) -> None:
    """Two topics, a table and the dead letters of a route are one query: the broker sends the records once."""
    shop.fill("sh1-orders", orders(0, 400), key="id")
    pipeline = shop.pipeline(head("sh1") + THREE.replace("NAME", "sh1"))
    before = bytes_out(broker, "sh1-orders")
    seen = run_once(pipeline, spark)
    shared = bytes_out(broker, "sh1-orders") - before

    expected = orders(0, 400)
    assert sorted(row["id"] for row in shop.rows("sh1-sales")) == sorted(
        row["id"] for row in expected if row["amount"] > 0
    )
    assert sorted(row["id"] for row in shop.rows("sh1-refunds")) == sorted(
        row["id"] for row in expected if row["amount"] < 0
    )
    assert rows_in_table(shop.directory / "lake") == sorted(row["id"] for row in expected)
    assert len(shop.records("sh1.dead-letters")) == 80
    assert {each.query for each in seen.values()} == {"sh1.orders.sinks"}
    assert {name: each.rows_out_total for name, each in seen.items()} == {
        "sales": 240,
        "refunds": 80,
        "lake": 400,
        "checked (dead letters)": 80,
    }
    assert seen["lake"].rows_in_total == 400

    apart = shop.pipeline(
        "share_reads: false"
        + head("sh1b").replace("sh1b-orders", "sh1-orders")
        + THREE.replace("NAME", "sh1b").replace("./lake", "./lake-b")
    )
    before = bytes_out(broker, "sh1-orders")
    run_once(apart, spark)
    each_alone = bytes_out(broker, "sh1-orders") - before
    assert each_alone == pytest.approx(4 * shared, rel=0.2)
