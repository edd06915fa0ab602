"""Pipelines whose sinks write Avro and Protobuf by the registry, and tables that are in an S3-compatible store."""

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from pyspark.sql import SparkSession

from millstream.lake.options import parse_options
from millstream.lake.table import open_table
from millstream.pipeline.engine.failures import PartFailedError
from millstream.pipeline.engine.fan_out import TOPICS, FanOut
from millstream.pipeline.state import QueryProgress, read_state
from millstream.testing import EmbeddedBroker
from tests.system.lake.conftest import rows_of
from tests.system.lake.object_store import store
from tests.system.pipeline.shop import Shop, at, run_once
from tests.unit.schemas.tiny_registry import TinyRegistry, running

__all__ = ["store"]
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings(
        "ignore:PySpark does not yet fully support pandas:FutureWarning",
        "ignore::DeprecationWarning:botocore",
        "ignore::DeprecationWarning:moto",
    ),
]
BILL = 'syntax = "proto3";\nmessage Bill { string id = 1; double amount = 2; int64 at_ms = 3; }\n'


@pytest.fixture
def shop(broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setenv("MILLSTREAM_STATE_HOME", str(tmp_path / "state"))
    return Shop(broker, tmp_path)


def first_run(registry: TinyRegistry, table: str) -> str:
    return f"""
        name: typed
        bootstrap: BOOTSTRAP
        registry: {registry.url}
        sources:
          orders: {{topic: typed-orders, format: json, schema: "id STRING, amount DOUBLE, at TIMESTAMP"}}
        steps:
          bills:
            sql: SELECT id, amount, unix_millis(at) AS at_ms FROM orders
        sinks:
          avro: {{from: orders, topic: typed-avro, format: avro, key: id}}
          protobuf: {{from: bills, topic: typed-protobuf, format: protobuf, key: id}}
          lake: {{from: orders, {table}, format: delta, partition_by: day(at)}}
        """


def second_run(registry: TinyRegistry, table: str) -> str:
    return f"""
        name: typed-again
        bootstrap: BOOTSTRAP
        registry: {registry.url}
        sources:
          bills: {{topic: typed-protobuf, format: protobuf}}
          avro_orders: {{topic: typed-avro, format: avro}}
          lake: {{{table}, format: delta}}
        steps:
          known:
            sql: SELECT bills.id, bills.at_ms, lake.amount FROM bills JOIN lake ON bills.id = lake.id
        sinks:
          known: {{from: known, topic: typed-known}}
          plain: {{from: avro_orders, topic: typed-plain}}
        """


@pytest.mark.slow  # five queries
def test_avro_and_protobuf_sinks_and_a_table_in_a_store(shop: Shop, spark: SparkSession, store: dict[str, str]) -> None:
    """What the first pipeline writes, typed and into the store, the second one reads."""
    orders: list[dict[str, Any]] = [{"id": f"o{i}", "amount": i * 0.5, "at": at(i)} for i in range(20)]
    shop.fill("typed-orders", orders, key="id")
    options = ", ".join(f"{name}: {value!r}" for name, value in store.items())
    table = f"table: s3://lake/typed, options: {{{options}}}"
    with running() as registry:
        registry.register("typed-protobuf-value", {"schema": BILL, "schemaType": "PROTOBUF"})
        run_once(shop.pipeline(dedent(first_run(registry, table))), spark)
        assert set(registry.subjects) == {"typed-protobuf-value", "typed-avro-value"}
        records = shop.records("typed-avro")
        assert {record.key for record in records} == {order["id"].encode() for order in orders}
        assert all(record.raw is not None and record.raw[:1] == b"\0" for record in records)
        stored = rows_of(open_table(parse_options({"path": "s3://lake/typed", **store})))
        assert sorted((row["id"], row["amount"]) for row in stored) == sorted((o["id"], o["amount"]) for o in orders)

        run_once(shop.pipeline(dedent(second_run(registry, table)), "again"), spark)
    known = sorted((row["id"], row["amount"], row["at_ms"] // 1000 % 3600) for row in shop.rows("typed-known"))
    assert known == sorted((f"o{i}", i * 0.5, i) for i in range(20))
    plain = sorted((row["id"], row["amount"]) for row in shop.rows("typed-plain"))
    assert plain == sorted((order["id"], order["amount"]) for order in orders)


def test_topics_with_a_schema_and_without_get_a_batch_together(
    shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Avro, Protobuf, JSON and the dead letters of a route have one decision: if it is not made, none has the batch."""
    orders: list[dict[str, Any]] = [{"id": f"o{i}", "amount": i * 0.5, "at": at(i)} for i in range(20)]
    shop.fill("together-orders", orders, key="id")
    save = FanOut._save

    def die_before_topics(self: FanOut, options: Any, format: str, rows: Any, name: str, *rest: Any) -> None:
        if name == TOPICS:
            raise ConnectionError("the driver dies here")
        save(self, options, format, rows, name, *rest)

    with running() as registry:
        registry.register("together-protobuf-value", {"schema": BILL, "schemaType": "PROTOBUF"})
        pipeline = shop.pipeline(
            f"""
            name: together
            bootstrap: BOOTSTRAP
            registry: {registry.url}
            sources:
              orders: {{topic: together-orders, format: json, schema: "id STRING, amount DOUBLE, at TIMESTAMP"}}
            steps:
              bills:
                sql: SELECT id, amount, unix_millis(at) AS at_ms FROM orders
              checked:
                route: {{from: orders, branches: {{paid: amount > 0}}}}
            sinks:
              avro: {{from: orders, topic: together-avro, format: avro, key: id, headers: {{by: "'me'"}}}}
              protobuf: {{from: bills, topic: together-protobuf, format: protobuf}}
              json: {{from: paid, topic: together-json, key: id}}
            """
        )
        topics = ["together-avro", "together-protobuf", "together-json", "together.dead-letters"]
        with monkeypatch.context() as patched:
            patched.setattr(FanOut, "_save", die_before_topics)
            with pytest.raises(PartFailedError, match="the driver dies here"):
                run_once(pipeline, spark)
        assert [len(shop.records(topic)) for topic in topics] == [0, 0, 0, 0]
        run_once(pipeline, spark)
        assert [len(shop.records(topic)) for topic in topics] == [20, 20, 19, 1]
        (query,) = _queries("together")
        assert query.query == "together.orders.sinks"

        # What is in them is what sinks of their own write: the sources of another pipeline read it by the registry.
        written = shop.records("together-avro")
        assert {record.key for record in written} == {order["id"].encode() for order in orders}
        assert written[0].headers == [("by", b"me")]
        run_once(
            shop.pipeline(
                f"""
                name: reader
                bootstrap: BOOTSTRAP
                registry: {registry.url}
                sources:
                  avro_orders: {{topic: together-avro, format: avro}}
                  bills: {{topic: together-protobuf, format: protobuf}}
                sinks:
                  orders: {{from: avro_orders, topic: reader-orders}}
                  bills: {{from: bills, topic: reader-bills}}
                """,
                "reader",
            ),
            spark,
        )
    assert sorted((row["id"], row["amount"]) for row in shop.rows("reader-orders")) == sorted(
        (order["id"], order["amount"]) for order in orders
    )
    assert sorted((row["id"], row["at_ms"] // 1000 % 3600) for row in shop.rows("reader-bills")) == sorted(
        (f"o{i}", i) for i in range(20)
    )


def _queries(pipeline: str) -> tuple[QueryProgress, ...]:
    state = read_state(pipeline)
    assert state is not None
    return state.queries


@pytest.mark.slow
def test_a_protobuf_sink_without_a_schema_is_told(shop: Shop, spark: SparkSession) -> None:
    shop.fill("typed-lost", [{"id": "a"}])
    with running() as registry:
        text = f"""
            name: lost
            bootstrap: BOOTSTRAP
            registry: {registry.url}
            sources:
              orders: {{topic: typed-lost, format: json, schema: id STRING}}
            sinks:
              out: {{from: orders, topic: typed-lost-out, format: protobuf}}
            """
        with pytest.raises(Exception, match="typed-lost-out-value"):
            run_once(shop.pipeline(text), spark)
