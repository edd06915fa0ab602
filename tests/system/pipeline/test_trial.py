"""`pipeline test` on the session that other tests share: rows that pass, diffs, late rows, and failures told once."""

from pathlib import Path
from textwrap import dedent

import pytest
from pyspark.sql import SparkSession

from millstream.pipeline.cases import load_cases
from millstream.pipeline.definition import load
from millstream.pipeline.engine.trial import CaseResult, run_case

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

PIPELINE = """
name: trial
sources:
  orders:
    topic: orders
    format: json
    schema: id STRING, customer STRING, amount DOUBLE, at TIMESTAMP
    watermark: {column: at, delay: 10 seconds}
  customer_changes: {topic: customers, format: json, schema: "name STRING"}
  rates: {table: ./rates.csv, format: csv, schema: "name STRING, rate DOUBLE"}
steps:
  customers:
    latest: {from: customer_changes}
  known:
    sql: SELECT o.id, o.amount, o.at, c.name FROM orders o LEFT JOIN customers c ON o.customer = c._key
  checked:
    route: {from: known, branches: {good: amount > 0}}
  rated:
    join: {left: good, right: rates, on: name, type: left}
  per_minute:
    window: {from: good, tumbling: 1 minute, aggregate: {n: count(*), total: sum(amount)}}
sinks:
  orders_out: {from: rated, topic: out, key: id}
  minutes: {from: per_minute, table: ./minutes}
"""
TESTS = """
tests:
  passes:
    inputs:
      orders:
        - - {id: a, customer: c1, amount: 10, at: 2026-01-01T00:00:10Z}
          - {id: b, customer: c2, amount: 5, at: 2026-01-01T00:00:20Z}
          - {id: bad, amount: 0, at: 2026-01-01T00:00:20Z}
        - - {id: c, customer: c1, amount: 1, at: 2026-01-01T00:02:00Z}
        - - {id: d, customer: c1, amount: 1, at: 2026-01-01T00:02:30Z}
        - - {id: late, customer: c1, amount: 99, at: 2026-01-01T00:00:30Z}
          - {id: e, customer: c1, amount: 1, at: 2026-01-01T00:04:00Z}
      customer_changes:
        - {_key: c1, name: old}
        - {_key: c1, name: Ann}
        - {_key: c2, name: gone}
        - {_key: c2}
      rates:
        - {name: Ann, rate: 0.5}
    expect:
      orders_out:
        - {_key: a, name: Ann, rate: 0.5, amount: 10}
        - {_key: b, name: null, rate: null}
        - {id: c}
        - {id: late}
        - {id: d}
        - {id: e}
      minutes:
        - {window_start: 2026-01-01T00:00:00Z, n: 2, total: 15}
        - {window_start: 2026-01-01T00:02:00Z, n: 2, total: 2}
      dead_letters:
        - {id: bad, _step: checked}
  differs:
    inputs:
      orders: [{id: a, customer: c1, amount: 10, at: 2026-01-01T00:00:10Z}]
      customer_changes: []
      rates: []
    expect:
      orders_out: [{id: a, amount: 11}]
"""


def results(directory: Path, spark: SparkSession, pipeline: str, tests: str) -> dict[str, CaseResult]:
    file = directory / "pipeline.yaml"
    file.write_text(dedent(pipeline))
    cases = directory / "pipeline.test.yaml"
    cases.write_text(dedent(tests))
    found = load(file)
    return {case.name: run_case(spark, found, case) for case in load_cases(cases, found)}


def test_rows_through_the_whole_graph_without_a_broker(tmp_path: Path, spark: SparkSession) -> None:
    """`latest` with a tombstone, a table by rows, a window that leaves out what is late, a dead letter."""
    found = results(tmp_path, spark, PIPELINE, TESTS)
    passes = found["passes"]
    assert passes.failures == []
    assert {name: diff.lines() for name, diff in passes.diffs.items()} == {
        "orders_out": [],
        "minutes": [],
        "dead_letters": [],
    }
    assert found["differs"].diffs["orders_out"].lines() == ["~ {id: 'a'}  amount: expected 11, got 10.0"]


def test_a_step_that_fails_is_told_once(tmp_path: Path, spark: SparkSession) -> None:
    broken = PIPELINE.replace("c.name FROM orders", "c.nmae FROM orders")
    (failed,) = (each for each in results(tmp_path, spark, broken, TESTS).values() if each.case.name == "passes")
    assert not failed.has_passed
    ((line, reason),) = failed.failures
    assert "nmae" in reason
    assert broken.splitlines()[line - 1].strip().startswith("sql:")
    assert set(failed.skipped) == {"orders_out", "minutes", "dead_letters"}
