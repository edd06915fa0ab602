"""Pipelines run for real: a broker, Spark, and what arrives in topics and tables. One session for all."""

import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from pyspark.sql import SparkSession

from millstream.client import Message, connect
from millstream.pipeline.engine.analysis import analyse
from millstream.pipeline.engine.failures import PartFailedError
from millstream.pipeline.engine.run import RunOptions, run_pipeline
from millstream.pipeline.engine.supervision import RunResult, StopSignal
from millstream.pipeline.state import Phase, read_state
from millstream.testing import EmbeddedBroker
from tests.system.pipeline.shop import Shop, at, run_once

pytestmark = [
    pytest.mark.timeout(600),  # the first of these tests starts the JVM, which takes minutes on a busy machine
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def shop(broker: EmbeddedBroker, tmp_path: Path) -> Shop:
    return Shop(broker, tmp_path)


ORDERS = """
name: NAME
bootstrap: BOOTSTRAP
sources:
  orders:
    topic: NAME-orders
    format: json
    schema: id STRING, shop STRING, amount DOUBLE, at TIMESTAMP
    watermark: {column: at, delay: 10 seconds}
"""


def orders_of(name: str) -> str:
    return ORDERS.replace("NAME", name)


def test_route_dedup_window_python_and_dead_letters(shop: Shop, spark: SparkSession) -> None:
    """Each row once where it belongs; what is no JSON or fits no branch is a dead letter with its place and reason."""
    (shop.directory / "pricing.py").write_text(
        dedent(
            """
            from pyspark.sql.functions import col, udf

            def doubled(orders, factor):
                double = udf(lambda amount: amount * factor, "double")
                return orders.withColumn("amount", double(col("amount")))
            """
        )
    )
    orders = [{"id": f"o{i}", "shop": f"s{i % 2}", "amount": 1.0 + i % 3, "at": at(i)} for i in range(120)]
    refunds = [{"id": "r", "shop": "s0", "amount": -5.0, "at": at(100)}]
    odd: list[dict[str, Any] | bytes | None] = [b"not json", {"id": "zero", "shop": "s1", "amount": 0.0, "at": at(5)}]
    shop.fill("e1-orders", [*orders, *orders[:30], *refunds, *odd], key="shop")
    pipeline = shop.pipeline(
        orders_of("e1")
        + dedent(
            """
            steps:
              checked:
                route: {from: orders, branches: {good: amount > 0, refunds: amount < 0}}
              unique_orders:
                dedup: {from: good, key: id}
              priced:
                python: {function: "pricing:doubled", from: unique_orders, arguments: {factor: 2.0}}
              revenue:
                window:
                  from: priced
                  tumbling: 1 minute
                  group_by: shop
                  aggregate: {orders: count(*), revenue: sum(amount)}
            sinks:
              revenue: {from: revenue, topic: e1-revenue, key: shop, timestamp: window_end, headers: {by: "'e1'"}}
              refunds: {from: refunds, topic: e1-refunds}
            """
        )
    )
    seen = run_once(pipeline, spark)

    minute = [row for row in shop.rows("e1-revenue") if row["window_start"] == "2026-01-01T00:00:00.000Z"]
    assert sorted((row["shop"], row["orders"], row["revenue"]) for row in minute) == [
        (name, 30, sum(2 * float(str(order["amount"])) for order in orders[:60] if order["shop"] == name))
        for name in ("s0", "s1")
    ]
    (first, *_) = shop.records("e1-revenue")
    assert first.key in (b"s0", b"s1")
    assert first.headers == [("by", b"e1")]
    assert first.timestamp_ms % 60_000 == 0

    assert [(record.key, json.loads(record.raw or b"")) for record in shop.records("e1-refunds")] == [
        (b"s0", {"id": "r", "shop": "s0", "amount": -5.0, "at": "2026-01-01T00:01:40.000Z"})
    ]

    letters = {dict(letter.headers)["millstream.step"]: letter for letter in shop.records("e1.dead-letters")}
    assert set(letters) == {b"orders", b"checked"}
    assert len(shop.records("e1.dead-letters")) == 2  # though two queries read the source
    bad = dict(letters[b"orders"].headers)
    assert letters[b"orders"].raw == b"not json"
    assert bad["millstream.pipeline"] == b"e1"
    assert bad["millstream.topic"] == b"e1-orders"
    assert {"millstream.partition", "millstream.offset", "millstream.reason"} <= set(bad)
    assert json.loads(letters[b"checked"].raw or b"")["id"] == "zero"
    assert b"no branch" in (dict(letters[b"checked"].headers)["millstream.reason"] or b"")

    assert seen["refunds"].sources[0].lag == 0
    assert seen["refunds"].rows_out_total == 1
    assert seen["revenue"].state_rows is not None
    assert seen["revenue"].watermark is not None
    state = read_state("e1")
    assert state is not None
    assert state.run.phase is Phase.FINISHED
    assert {each.group for each in state.queries} >= {"e1.revenue", "e1.orders.sinks"}
    # Each step once, though two queries have the branches of the route; `revenue` is counted as rows of its sink.
    steps = {each.step: each.rows_total for query in state.queries for each in query.steps}
    assert steps == {"good": 150, "unique_orders": 120, "priced": 120}


def test_joins_latest_and_a_table_and_going_on_after_a_restart(shop: Shop, spark: SparkSession) -> None:
    """Orders joined with payments in time, with what is newest of each customer, and a file; the second run goes on."""
    (shop.directory / "cities.csv").write_text("shop,city\ns0,Delft\ns1,Ghent\n")
    shop.fill(
        "e2-orders",
        [{"id": f"o{i}", "shop": f"s{i % 2}", "customer": f"c{i % 3}", "at": at(i)} for i in range(20)],
        key="id",
    )
    shop.fill("e2-payments", [{"order_id": f"o{i}", "paid": i, "paid_at": at(i + 5)} for i in range(0, 20, 2)])
    shop.fill("e2-payments", [{"order_id": "o1", "paid": 1, "paid_at": at(3000)}])
    changes = [{"customer": f"c{i % 3}", "name": f"name {i}"} for i in range(6)]
    shop.fill("e2-customers", changes, key="customer")
    with connect(shop.bootstrap) as client:
        client.publish("e2-customers", None, key="c2")
    text = """
        name: e2
        bootstrap: BOOTSTRAP
        sources:
          orders:
            topic: e2-orders
            format: json
            schema: id STRING, shop STRING, customer STRING, at TIMESTAMP
            watermark: {column: at, delay: 1 minute}
          payments:
            topic: e2-payments
            format: json
            schema: order_id STRING, paid INT, paid_at TIMESTAMP
            watermark: {column: paid_at, delay: 1 minute}
          customer_changes: {topic: e2-customers, format: json, schema: "customer STRING, name STRING"}
          cities: {table: ./cities.csv, format: csv, schema: "shop STRING, city STRING"}
        steps:
          paid:
            join: {left: orders, right: payments, on: {id: order_id}, within: {before: 0s, after: 10 minutes}}
          customers:
            latest: {from: customer_changes, refresh: 100 ms}
          named:
            join: {left: paid, right: customers, on: customer, type: left}
          placed:
            join: {left: named, right: cities, on: shop, type: left}
        sinks:
          paid:
            from: placed
            topic: e2-paid
            key: id
        """
    pipeline = shop.pipeline(text)
    run_once(pipeline, spark)
    rows = {row["id"]: row for row in shop.rows("e2-paid")}
    assert set(rows) == {f"o{i}" for i in range(0, 20, 2)}
    assert (rows["o0"]["name"], rows["o0"]["city"], rows["o0"]["paid"]) == ("name 3", "Delft", 0)
    assert "name" not in rows["o2"]  # its customer is gone; null is left out of JSON
    assert len(shop.rows("e2-paid")) == 10

    shop.fill("e2-customers", [{"customer": "c0", "name": "renamed"}], key="customer")
    shop.fill("e2-orders", [{"id": "late", "shop": "s1", "customer": "c0", "at": at(3000)}], key="id")
    shop.fill("e2-payments", [{"order_id": "late", "paid": 7, "paid_at": at(3001)}])
    run_once(pipeline, spark)
    rows = {row["id"]: row for row in shop.rows("e2-paid")}
    assert len(shop.rows("e2-paid")) == 11
    assert (rows["late"]["name"], rows["late"]["city"]) == ("renamed", "Ghent")


def test_latest_is_looked_at_again_while_the_pipeline_runs(shop: Shop, spark: SparkSession) -> None:
    """While the pipeline runs: what is newest of a customer comes to be known after `refresh`."""
    shop.fill("e8-clicks", [{"customer": "c0"}])
    shop.fill("e8-customers", [{"customer": "c0", "name": "first"}], key="customer")
    pipeline = shop.pipeline(
        """
        name: e8
        bootstrap: BOOTSTRAP
        sources:
          clicks: {topic: e8-clicks, format: json, schema: customer STRING}
          changes: {topic: e8-customers, format: json, schema: "customer STRING, name STRING"}
        steps:
          customers:
            latest: {from: changes, refresh: 2 seconds}
          named:
            join: {left: clicks, right: customers, on: customer}
        sinks:
          out: {from: named, topic: e8-out}
        """
    )
    stop = StopSignal()
    thread, results = in_thread(lambda: run_pipeline(pipeline, RunOptions(), session=spark, stop=stop))
    try:
        wait_until(lambda: bool(results) or (has_topic(shop, "e8-out") and len(shop.records("e8-out")) == 1))
        shop.fill("e8-customers", [{"customer": "c0", "name": "second"}], key="customer")

        def has_second() -> bool:
            shop.fill("e8-clicks", [{"customer": "c0"}])
            time.sleep(1)
            return bool(results) or shop.rows("e8-out")[-1]["name"] == "second"

        wait_until(has_second, 200.0)
    finally:
        stop.request()
        thread.join(timeout=120)
    assert results == [RunResult.STOPPED]
    names = [row["name"] for row in shop.rows("e8-out")]
    assert names[0] == "first"
    assert names[-1] == "second"


def test_state_sessions_tables_and_the_console(shop: Shop, spark: SparkSession) -> None:
    """A stateful processor of the user's, a session window, a Delta table, rows on the screen."""
    (shop.directory / "totals.py").write_text(
        dedent(
            """
            import pandas as pd
            from pyspark.sql.streaming import StatefulProcessor

            class RunningTotal(StatefulProcessor):
                def __init__(self, limit):
                    self.limit = limit

                def init(self, handle):
                    self.total = handle.getValueState("total", "total double")

                def handleInputRows(self, key, rows, timerValues):
                    total = self.total.get()[0] if self.total.exists() else 0.0
                    total += sum(float(frame["amount"].sum()) for frame in rows)
                    self.total.update((total,))
                    if total > self.limit:
                        yield pd.DataFrame({"shop": [key[0]], "total": [total]})

                def close(self):
                    pass
            """
        )
    )
    shop.fill("e3-orders", [{"id": f"o{i}", "shop": f"s{i % 2}", "amount": 1.0, "at": at(i)} for i in range(31)])
    shop.fill("e3-orders", [{"id": "far", "shop": "s0", "amount": 1.0, "at": at(3000)}])
    pipeline = shop.pipeline(
        orders_of("e3")
        + dedent(
            """
            steps:
              totals:
                stateful:
                  from: orders
                  processor: totals:RunningTotal
                  key: shop
                  output: shop STRING, total DOUBLE
                  arguments: {limit: 16.0}
              visits:
                window: {from: orders, session: 5 seconds, group_by: shop, aggregate: {orders: count(*)}}
            sinks:
              totals: {from: totals, topic: e3-totals, key: shop}
              visits: {from: visits, table: ./visits, format: delta}
              screen: {from: orders, console: {rows: 2}}
            """
        )
    )
    seen = run_once(pipeline, spark)
    assert [(row["shop"], row["total"]) for row in shop.rows("e3-totals")] == [("s0", 17.0)]
    found = spark.read.format("millstream-table").load(str(shop.directory / "visits")).collect()
    assert sorted((row.shop, row.orders, row.window_end.minute * 60 + row.window_end.second) for row in found) == [
        ("s0", 16, 35),
        ("s1", 15, 34),
    ]
    assert seen["screen"].rows_out_total == 32


def test_changes_keep_tables_current(shop: Shop, spark: SparkSession) -> None:
    """Tombstones, a condition, Debezium's envelope and a history, in both formats; then a second run with more."""

    def customer(key: str, name: str | None, version: int = 0, state: str = "") -> Message:
        value = None if name is None else json.dumps({"id": key, "name": name, "version": version, "state": state})
        return Message(value=value, key=key)

    def debezium(op: str, key: int, name: str | None) -> Message:
        before, after = ({"id": key, "name": "old"}, None) if op == "d" else (None, {"id": key, "name": name})
        return Message(value=json.dumps({"op": op, "before": before, "after": after}), key=str(key))

    def publish(*batches: tuple[str, list[Message]]) -> None:
        with connect(shop.bootstrap) as client:
            for topic, messages in batches:
                client.create_topic(topic, partitions=2, exist_ok=True)
                client.publish_many(topic, messages)

    pipeline = shop.pipeline(
        """
        name: cdc
        bootstrap: BOOTSTRAP
        sources:
          changes: {topic: cdc-customers, format: json, key_format: string,
                    schema: "id STRING, name STRING, version INT, state STRING"}
          rows: {topic: cdc-rows, format: json,
                 schema: "op STRING, before STRUCT<id INT, name STRING>, after STRUCT<id INT, name STRING>"}
        steps:
          named: {sql: "SELECT id, name, version, state FROM changes WHERE id IS NOT NULL"}
        sinks:
          compacted: {from: changes, table: ./compacted, mode: upsert, keys: _key, delete_when: tombstone}
          customers: {from: named, table: ./customers, format: iceberg, mode: upsert, keys: id, sequence_by: version,
                      delete_when: state = 'left'}
          versions: {from: named, table: ./versions, mode: upsert, keys: [id], sequence_by: version, history: true}
          mirror: {from: rows, table: ./mirror, mode: upsert, keys: id, envelope: debezium}
        """
    )

    def table(name: str, *columns: str) -> list[tuple[Any, ...]]:
        rows = spark.read.format("millstream-table").load(str(shop.directory / name)).select(*columns).collect()
        return sorted((tuple(row) for row in rows), key=str)

    publish(
        ("cdc-customers", [customer("a", "Ann", 1), customer("b", "Bob", 1), customer("c", "Cy", 5, "left")]),
        ("cdc-rows", [debezium("r", 1, "one"), debezium("c", 2, "two"), debezium("u", 1, "uno")]),
    )
    run_once(pipeline, spark)
    assert table("compacted", "_key", "name") == [("a", "Ann"), ("b", "Bob"), ("c", "Cy")]
    assert table("customers", "id", "name") == [("a", "Ann"), ("b", "Bob")]
    assert table("mirror", "id", "name") == [(1, "uno"), (2, "two")]
    publish(
        (
            "cdc-customers",
            [customer("b", None), customer("a", "Anna", 3), customer("a", "late", 2), customer("c", "x", 4)],
        ),
        ("cdc-rows", [debezium("d", 2, None), Message(value=None, key="2"), debezium("c", 3, "three")]),
    )
    run_once(pipeline, spark)
    assert table("compacted", "_key", "name") == [("a", "late"), ("c", "x")]  # by offset
    assert table("customers", "id", "name") == [("a", "Anna"), ("b", "Bob")]  # by version
    assert table("versions", "id", "name", "_valid_from", "_valid_to", "_current") == [
        ("a", "Ann", 1, 2, False),
        ("a", "Anna", 3, None, True),
        ("a", "late", 2, 3, False),
        ("b", "Bob", 1, None, True),
        ("c", "Cy", 5, None, True),
        ("c", "x", 4, 5, False),
    ]
    assert table("mirror", "id", "name") == [(1, "uno"), (3, "three")]


def wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.1)


def in_thread(run: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []

    def catch() -> None:
        try:
            results.append(run())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=catch)
    thread.start()
    return thread, results


def test_a_run_is_stopped_after_the_batch_and_goes_on_where_it_was(shop: Shop, spark: SparkSession) -> None:
    text = orders_of("e4") + "sinks:\n  copy: {from: orders, topic: e4-copy}\ntrigger: every 200 ms\n"
    pipeline = shop.pipeline(text)
    shop.fill("e4-orders", [{"id": f"o{i}", "amount": 1.0, "at": at(i)} for i in range(50)], key="id")
    stop = StopSignal()
    options = RunOptions(archive_classes=False, metrics_port=0)
    thread, results = in_thread(lambda: run_pipeline(pipeline, options, session=spark, stop=stop))
    try:
        wait_until(lambda: bool(results) or len(shop.records("e4-copy")) == 50 if has_topic(shop, "e4-copy") else False)
        shop.fill("e4-orders", [{"id": f"p{i}", "amount": 1.0, "at": at(i)} for i in range(50)], key="id")
        wait_until(lambda: bool(results) or len(shop.records("e4-copy")) == 100)
    finally:
        stop.request()
        thread.join(timeout=120)
    assert results == [RunResult.STOPPED]
    state = read_state("e4")
    assert state is not None
    assert state.run.phase is Phase.FINISHED
    assert state.run.metrics is not None
    shop.fill("e4-orders", [{"id": "last", "amount": 1.0, "at": at(1)}], key="id")
    run_once(pipeline, spark)
    assert sorted(row["id"] for row in shop.rows("e4-copy")) == sorted(
        [f"o{i}" for i in range(50)] + [f"p{i}" for i in range(50)] + ["last"]
    )


def has_topic(shop: Shop, topic: str) -> bool:
    with connect(shop.bootstrap) as client:
        return topic in client.list_topics()


def test_a_query_that_fails_ends_the_run_with_its_reason(shop: Shop, spark: SparkSession) -> None:
    (shop.directory / "broken.py").write_text(
        dedent(
            """
            from pyspark.sql.functions import udf

            def fail(orders):
                def refuse(amount):
                    raise ValueError("no amount is good enough for this function of ours")
                return orders.withColumn("amount", udf(refuse, "double")("amount"))
            """
        )
    )
    shop.fill("e5-orders", [{"id": "a", "shop": "s", "amount": 1.0, "at": at(0)}])
    pipeline = shop.pipeline(
        orders_of("e5")
        + dedent(
            """
            steps:
              broken:
                python: {function: "broken:fail", from: orders}
            sinks:
              out: {from: broken, topic: e5-out}
            """
        )
    )
    with pytest.raises(PartFailedError) as told:
        run_once(pipeline, spark)
    assert "sink 'out': no amount is good enough for this function of ours" in str(told.value)
    state = read_state("e5")
    assert state is not None
    assert state.run.phase is Phase.FAILED
    assert shop.records("e5-out") == []


def test_a_topic_that_is_not_there_is_told_before_spark_does_anything(shop: Shop) -> None:
    shop.fill("e6-orders", [])
    pipeline = shop.pipeline(
        orders_of("e6").replace("topic: e6-orders", "topic: e6-order") + "sinks:\n  o: {from: orders, topic: x}\n"
    )
    with pytest.raises(PartFailedError, match=r"there is no topic 'e6-order' .* did you mean 'e6-orders'") as told:
        run_pipeline(pipeline, RunOptions(once=True))
    assert told.value.line == 5


class TestAnalysis:
    """What Spark makes of a file without a broker and without a query."""

    def problems(self, shop: Shop, session: SparkSession, steps: str, sinks: str) -> Sequence[tuple[int, str]]:
        text = orders_of("e7") + "steps:\n" + steps + "sinks:\n" + sinks
        return analyse(shop.pipeline(text.replace("BOOTSTRAP", "127.0.0.1:1")), session)

    def test_a_right_pipeline_has_no_problems(self, shop: Shop, spark: SparkSession) -> None:
        steps = "  a:\n    sql: SELECT shop, amount * 2 AS twice FROM orders\n"
        assert self.problems(shop, spark, steps, "  o: {from: a, topic: x, key: shop}\n") == []

    def test_a_column_that_is_not_there_is_told_at_its_line_with_the_nearest(
        self,
        shop: Shop,
        spark: SparkSession,
    ) -> None:
        steps = "  a:\n    sql: |\n      SELECT shop,\n        amout\n      FROM orders\n"
        (problem,) = self.problems(shop, spark, steps, "  o: {from: a, topic: x}\n  p: {from: a, topic: y}\n")
        assert problem[0] == 14
        assert "step 'a'" in problem[1]
        assert "`amout` cannot be resolved. Did you mean one of the following? [`amount`" in problem[1]

    def test_rules_for_streams_and_sinks_are_looked_at_too(self, shop: Shop, spark: SparkSession) -> None:
        steps = "  a:\n    sql: SELECT shop, count(*) AS n FROM orders GROUP BY shop\n"
        found = dict(
            self.problems(shop, spark, steps, "  o: {from: a, topic: x}\n  p: {from: orders, topic: y, key: sop}\n")
        )
        assert "watermark" in found[14]
        assert "`sop` cannot be resolved" in found[15]
