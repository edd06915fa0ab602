"""Sinks that share a read, and expectations: what arrives, what is counted, and what an upgrade does to checkpoints."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from millstream.admin.broker_metrics import fetch_metrics
from millstream.lake.options import parse_options
from millstream.lake.table import open_table
from millstream.pipeline.engine.failures import PartFailedError, PipelineFailedError
from millstream.pipeline.engine.fan_out import FanOut
from millstream.pipeline.engine.progress import PipelineMetrics
from millstream.pipeline.state import read_state, state_directory
from millstream.testing import EmbeddedBroker
from tests.system.lake.conftest import rows_of
from tests.system.pipeline.shop import Shop, at, run_once
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
    samples = fetch_metrics(host, int(port), ["topics"], TIMEOUT_SECONDS)
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
    state = read_state("sh1")
    assert state is not None
    (query,) = state.queries
    assert [(each.step, each.rows_total, (each.rows_per_second or 0) > 0) for each in query.steps] == [
        ("priced", 400, True)
    ]

    apart = shop.pipeline(
        "share_reads: false"
        + head("sh1b").replace("sh1b-orders", "sh1-orders")
        + THREE.replace("NAME", "sh1b").replace("./lake", "./lake-b")
    )
    before = bytes_out(broker, "sh1-orders")
    run_once(apart, spark)
    each_alone = bytes_out(broker, "sh1-orders") - before
    assert each_alone == pytest.approx(4 * shared, rel=0.2)


EXPECTING = """
steps:
  priced:
    sql: SELECT *, amount * 2 AS price FROM orders
    expect:
      has_price: {check: price <> 0, action: quarantine}
      known_shop: {check: shop = 's0', action: drop}
      small: price < 6
sinks:
  sales:
    from: priced
    topic: NAME-sales
    expect: {positive: {check: amount > 0, action: drop}}
  lake: {from: orders, table: ./lake-NAME}
"""


def test_expectations_warn_drop_quarantine_and_fail(
    shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts per rule; quarantined rows are dead letters with the reason; a batch that fails is written nowhere."""
    shop.fill("ex1-orders", [*orders(0, 100), {"id": "odd", "at": at(1)}], key="id")
    text = head("ex1") + EXPECTING.replace("NAME", "ex1")
    run_once(shop.pipeline(text), spark)

    good = [row for row in orders(0, 100) if row["amount"] != 0 and row["shop"] == "s0"]
    assert sorted(row["id"] for row in shop.rows("ex1-sales")) == sorted(row["id"] for row in good if row["amount"] > 0)
    assert len(rows_in_table(shop.directory / "lake-ex1")) == 101  # it reads the source, which has no rules
    letters = shop.records("ex1.dead-letters")
    assert len(letters) == 21  # amount 0, and the row without a price: null is not true
    assert {dict(each.headers)["millstream.step"] for each in letters} == {b"priced"}
    assert b"has_price (price <> 0)" in (dict(letters[0].headers)["millstream.reason"] or b"")
    assert "odd" in {json.loads(each.raw or b"")["id"] for each in letters}

    state = read_state("ex1")
    assert state is not None
    counted = {(rule.part, rule.rule): rule for query in state.queries for rule in query.expectations}
    assert {name: (rule.rows_total, rule.violations_total) for name, rule in counted.items()} == {
        ("priced", "has_price"): (101, 21),
        ("priced", "known_shop"): (101, 51),
        ("priced", "small"): (101, 21),
        ("sales", "positive"): (40, 10),
    }
    page = PipelineMetrics("ex1")
    for query in state.queries:
        page.show(query)
    labels = 'pipeline="ex1",part="priced",expectation="known_shop",action="drop"'
    assert f"millstream_pipeline_expectation_violations_total{{{labels}}} 51" in page.text()

    shop.fill("ex1-orders", [{"id": "bad", "shop": "s0", "amount": -7.0, "at": at(2)}, *orders(100, 110)], key="id")
    strict = text.replace("small: price < 6", "no_loss: {check: price > -10, action: fail}")
    with pytest.raises(PartFailedError, match=r"expectation no_loss of .* priced is not met: price > -10 \(topic ex1-"):
        run_once(shop.pipeline(strict), spark)
    assert len(rows_in_table(shop.directory / "lake-ex1")) == 101  # nothing of the batch, in no sink
    run_once(shop.pipeline(text), spark)
    assert len(rows_in_table(shop.directory / "lake-ex1")) == 112


def test_a_batch_that_is_interrupted_between_sinks_is_completed(
    shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table has the batch and the topics do not: the next run brings the topics to it, and doubles nothing."""
    shop.fill("sh2-orders", orders(0, 50), key="id")
    pipeline = shop.pipeline(head("sh2") + THREE.replace("NAME", "sh2"))
    save = FanOut._save

    def die_before_topics(self: FanOut, options: Any, format: str, *rest: Any) -> None:
        if format == "millstream":
            raise ConnectionError("the driver dies here")
        save(self, options, format, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(FanOut, "_save", die_before_topics)
        with pytest.raises(PartFailedError, match="the driver dies here"):
            run_once(pipeline, spark)
    assert len(rows_in_table(shop.directory / "lake")) == 50
    assert shop.rows("sh2-sales") == []

    moved = (head("sh2") + THREE.replace("NAME", "sh2")).replace("key: id}", "key: id, options: {checkReplays: true}}")
    with pytest.raises(PipelineFailedError, match=r"batch 0 of orders\.sinks was interrupted"):
        run_once(shop.pipeline(moved), spark)

    shop.fill("sh2-orders", orders(50, 60), key="id")
    run_once(shop.pipeline(head("sh2") + THREE.replace("NAME", "sh2")), spark)
    assert rows_in_table(shop.directory / "lake") == sorted(row["id"] for row in orders(0, 60))
    assert sorted(row["id"] for row in shop.rows("sh2-sales")) == sorted(
        row["id"] for row in orders(0, 60) if row["amount"] > 0
    )


def test_queries_of_an_earlier_version_join_where_nothing_is_lost_or_doubled(shop: Shop, spark: SparkSession) -> None:
    """Checkpoints of a query per sink, at the same place: one query from there. A new sink follows later."""
    shop.fill("sh3-orders", orders(0, 30), key="id")
    text = head("sh3") + THREE.replace("NAME", "sh3")
    run_once(shop.pipeline(text + "share_reads: false\n"), spark)
    root = state_directory("sh3") / "checkpoints"
    assert {each.name for each in root.iterdir()} == {"sales", "refunds", "lake", "checked.dead-letters"}

    shop.fill("sh3-orders", orders(30, 40), key="id")
    assert {each.query for each in run_once(shop.pipeline(text), spark).values()} == {"sh3.orders.sinks"}
    assert {each.name for each in root.iterdir()} == {
        "orders.sinks",
        *(f"{name}.joined" for name in ("sales", "refunds", "lake", "checked.dead-letters")),
    }
    assert rows_in_table(shop.directory / "lake") == sorted(row["id"] for row in orders(0, 40))
    assert len(shop.rows("sh3-refunds")) == 8

    more = text + "  all: {from: priced, topic: sh3-all}\n"
    shop.fill("sh3-orders", orders(40, 45), key="id")
    seen = run_once(shop.pipeline(more), spark)
    assert seen["all"].query == "sh3.all"  # from the beginning
    assert len(shop.rows("sh3-all")) == 45
    shop.fill("sh3-orders", orders(45, 50), key="id")
    seen = run_once(shop.pipeline(more), spark)
    assert seen["all"].query == "sh3.orders.sinks"
    assert sorted(row["id"] for row in shop.rows("sh3-all")) == sorted(row["id"] for row in orders(0, 50))
    assert rows_in_table(shop.directory / "lake") == sorted(row["id"] for row in orders(0, 50))

    with pytest.raises(PipelineFailedError, match=r"all.*: written until now by the shared query orders\.sinks"):
        run_once(shop.pipeline(more + "share_reads: false\n"), spark)
