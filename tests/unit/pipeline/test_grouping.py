"""Which outputs share a query, and what their checkpoints allow; without Spark."""

import json
from pathlib import Path
from textwrap import dedent

import pytest

from millstream.pipeline.engine.failures import PipelineFailedError
from millstream.pipeline.engine.planned import PlannedQuery, planned_queries
from millstream.pipeline.engine.shared_checkpoints import RECORD, Checkpoints, Division
from millstream.pipeline.engine.sharing import counted, shared
from millstream.pipeline.model import Pipeline
from tests.system.pipeline.definitions import SOURCE, look_at, messages, pipeline_text

SINKS = """
raw: {from: orders, topic: raw}
good: {from: good, topic: good, key: order_id}
lake: {from: priced, table: ./lake}
minutes: {from: per_minute, topic: minutes}
minutes_lake: {from: per_minute, table: ./minutes}
slow: {from: orders, table: ./slow, trigger: every 1 minute}
"""
STEPS = """
priced:
  sql: SELECT *, amount * 2 AS price FROM orders
  expect: {has_price: {check: price > 0, action: quarantine}}
checked: {route: {from: priced, branches: {good: amount > 0}, rest: drop}}
per_minute: {window: {from: good, tumbling: 1 minute, time: at, aggregate: {n: count(*)}}}
"""


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return read(tmp_path, pipeline_text(SOURCE, STEPS, SINKS))


def read(directory: Path, text: str) -> Pipeline:
    found = look_at(directory, text)
    assert found.pipeline is not None, messages(found)
    return found.pipeline


def names(plans: list[PlannedQuery]) -> dict[str, list[str]]:
    return {plan.name: [member.name for member in plan.members] for plan in plans}


def test_outputs_with_the_same_trunk_are_one_query(pipeline: Pipeline) -> None:
    plans = planned_queries(pipeline)
    assert names(shared(pipeline, plans)) == {
        "shop.orders.sinks": ["shop.raw", "shop.good", "shop.lake", "shop.priced.quarantine"],
        "shop.per_minute.sinks": ["shop.minutes", "shop.minutes_lake"],
        "shop.slow": [],
    }
    # A SQL step with state is a trunk of its own.
    assert names(shared(pipeline, plans, {"priced"})) == {
        "shop.raw": [],
        "shop.priced.sinks": ["shop.good", "shop.lake", "shop.priced.quarantine"],
        "shop.per_minute.sinks": ["shop.minutes", "shop.minutes_lake"],
        "shop.slow": [],
    }
    # --once does not change which outputs are together.
    assert names(shared(pipeline, planned_queries(pipeline, available_now=True))) == names(shared(pipeline, plans))


def test_each_rule_is_counted_by_one_query(pipeline: Pipeline) -> None:
    plans = counted(pipeline, shared(pipeline, planned_queries(pipeline)))
    assert [plan.name for plan in plans if plan.counts_of] == ["shop.orders.sinks"]


def test_the_rows_of_each_step_are_counted_by_one_query(pipeline: Pipeline) -> None:
    """A step is counted where it is computed first; rows that only sinks read are counted as the sinks' own."""
    found = {plan.name: set(plan.steps) for plan in counted(pipeline, shared(pipeline, planned_queries(pipeline)))}
    assert found == {
        "shop.orders.sinks": {"priced", "good"},  # per_minute is read by sinks alone
        "shop.per_minute.sinks": set(),
        "shop.slow": set(),
    }


def test_reads_can_be_kept_apart(tmp_path: Path) -> None:
    pipeline = read(tmp_path, pipeline_text(SOURCE, STEPS, SINKS, top="name: shop\nshare_reads: false"))
    assert all(not plan.members for plan in shared(pipeline, planned_queries(pipeline)))


TWO = dedent(
    """
    a: {from: orders, topic: a}
    b: {from: orders, topic: b}
    """
)


def divided(directory: Path, sinks: str = TWO, top: str = "name: shop", with_state: bool = False) -> Division:
    pipeline = read(directory, pipeline_text(SOURCE, "", sinks, top))
    found = Checkpoints(pipeline, str(directory / "checkpoints")).divide(shared(pipeline, planned_queries(pipeline)))
    found.apply()
    return found


def checkpoint(directory: Path, name: str, end: int, *, batch: int = 3, committed: bool = True) -> None:
    """As Spark writes it, with offsets of our source."""
    root = directory / "checkpoints" / "shop" / name
    for folder in ("offsets", "commits"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    offset = json.dumps({"orders": {"0": end}, "$millstream": {"version": 1, "topics": {}}})
    (root / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{offset}")
    if committed:
        (root / "commits" / str(batch)).write_text("v1\n{}")


def test_new_outputs_share_from_the_first_run(tmp_path: Path) -> None:
    division = divided(tmp_path)
    assert names(division.plans) == {"shop.orders.sinks": ["shop.a", "shop.b"]}
    record = json.loads((tmp_path / "checkpoints/shop/orders.sinks" / RECORD).read_text())
    assert (record["outputs"], record["trunk"], record["starting"]) == (["a", "b"], "orders", None)
    assert names(divided(tmp_path).plans) == {"shop.orders.sinks": ["shop.a", "shop.b"]}  # and in the next run


def test_a_removed_output_leaves_and_does_not_come_back_unseen(tmp_path: Path) -> None:
    divided(tmp_path)
    checkpoint(tmp_path, "orders.sinks", 10)
    assert names(divided(tmp_path, TWO.split("\nb")[0] + "\n").plans) == {"shop.orders.sinks": ["shop.a"]}
    again = divided(tmp_path)
    assert names(again.plans) == {"shop.orders.sinks": ["shop.a"], "shop.b": []}
    assert "new" in again.notes[0]


def test_an_output_cannot_leave_for_another_query(tmp_path: Path) -> None:
    divided(tmp_path)
    checkpoint(tmp_path, "orders.sinks", 10)
    for sinks, top in (
        (TWO.replace("topic: b", "topic: b, trigger: every 1 minute"), "name: shop"),
        (TWO, "name: shop\nshare_reads: false"),
    ):
        with pytest.raises(PipelineFailedError, match=r"written until now by the shared query orders\.sinks"):
            divided(tmp_path, sinks, top)


def test_a_record_that_is_damaged_is_refused(tmp_path: Path) -> None:
    divided(tmp_path)
    (tmp_path / "checkpoints/shop/orders.sinks" / RECORD).write_text("{}")
    with pytest.raises(PipelineFailedError, match="cannot be read"):
        divided(tmp_path)


def test_topics_with_a_schema_are_written_with_the_others_but_not_in_the_middle_of_a_batch(tmp_path: Path) -> None:
    """An earlier version wrote them apart: a batch that it did not complete is repeated like that, later ones not."""
    top = "name: shop\nregistry: http://localhost:1"
    sinks = f"{TWO}c: {{from: orders, topic: c, format: avro}}\n"
    divided(tmp_path, sinks, top)
    path = tmp_path / "checkpoints/shop/orders.sinks" / RECORD
    record = json.loads(path.read_text())
    assert record["writes"] == {"topics": ["a", "b", "c"]}
    path.write_text(json.dumps({**record, "writes": {"topics": ["a", "b"], "c": ["c"]}}))

    checkpoint(tmp_path, "orders.sinks", 10, batch=4, committed=False)
    (plan,) = divided(tmp_path, sinks, top).plans
    assert plan.apart == {"c"}
    assert json.loads(path.read_text())["writes"] == {"topics": ["a", "b"], "c": ["c"]}
    with pytest.raises(PipelineFailedError, match=r"batch 4 of orders\.sinks was interrupted"):
        divided(tmp_path, sinks.replace("topic: a", "topic: a, options: {checkReplays: true}"), top)

    checkpoint(tmp_path, "orders.sinks", 10, batch=4)
    (plan,) = divided(tmp_path, sinks, top).plans
    assert plan.apart == frozenset()
    assert json.loads(path.read_text())["writes"] == {"topics": ["a", "b", "c"]}
