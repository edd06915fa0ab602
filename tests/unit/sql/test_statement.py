"""Queries as parsed: topics, columns, bounds; and what is refused."""

import sys

import pytest

from millstream.sql.engine import open_engine
from millstream.sql.errors import SqlError, Stop, StoppedError
from millstream.sql.reading import shared_out
from millstream.sql.statement import Bounds, parse_statement, renamed


@pytest.mark.parametrize(
    ("text", "topics", "columns"),
    [
        ("select * from orders", ("orders",), None),
        ("select count(*) from orders", ("orders",), frozenset()),
        ("select a, o.b.c from orders o where d", ("orders",), {"a", "o", "b", "c", "d"}),
        ("select orders from orders", ("orders",), None),
        ('select x from shop.orders, "my-topic"', ("shop.orders", "my-topic"), {"x"}),
        ("with orders as (select a from orders) select b from orders", ("orders",), {"a", "b"}),
        ("with z as (select a from t) select b from z where c in (select d from u)", ("t", "u"), {"a", "b", "c", "d"}),
        ("select x from a join b using (id)", ("a", "b"), {"x", "id"}),
        ("select 1 from a natural join b", ("a", "b"), None),
        ("describe orders", ("orders",), None),
    ],
)
def test_topics_and_columns_of_a_query(text: str, topics: tuple[str, ...], columns: set[str] | None) -> None:
    statement = parse_statement(text)
    assert statement.topics == topics
    assert statement.columns == columns


@pytest.mark.parametrize(
    ("condition", "bounds"),
    [
        ("_partition = 2", Bounds(frozenset({2}))),
        ("_partition in (1, 1 + 1) and a > 3", Bounds(frozenset({1, 2}))),
        ("_offset between 3 and 9", Bounds(first_offset=3, end_offset=10)),
        ("5 < _offset and o._offset <= 7", Bounds(first_offset=6, end_offset=8)),
        ("_timestamp >= '2026-01-01'", Bounds(since_ms=1767225600000)),
        ("_timestamp > timestamptz '2026-01-01 01:00+01' - interval 1 hour", Bounds(since_ms=1767222000000)),
        # Not recognised: DuckDB alone decides.
        ("_offset > 1.5", None),
        ("_offset > random()", None),
        ("_offset > 3 or a = 1", None),
        ("not _offset > 3", None),
        ("_timestamp < '2026-01-01'", None),
        ("_offset > (select 3)", None),
        ("_offset > a", None),
    ],
)
def test_conditions_that_make_it_read_less(condition: str, bounds: Bounds | None) -> None:
    assert parse_statement(f"select a from orders o where {condition}").bounds.get("orders") == bounds


@pytest.mark.parametrize(
    "text",
    [
        "select 1 from orders a, orders b where a._offset > 3",  # the topic is read once for both
        "select 1 from orders asof join b on orders.t >= b.t where b._partition = 1",
        "select 1 from orders positional join b where orders._partition = 1",
        "select 1 from orders tablesample 10% where _partition = 1",
        "select 1 from orders, b where _partition = 1",
    ],
)
def test_no_bounds_where_they_would_change_the_result(text: str) -> None:
    assert not parse_statement(text).bounds


def test_a_limit_alone_reads_that_many() -> None:
    assert parse_statement("select a, b from orders limit 10 offset 5").newest == 15
    for text in ("where a limit 10", "order by a limit 10", "group by a limit 10", ""):
        assert parse_statement(f"select a from orders {text}").newest is None
    assert parse_statement("select count(*) from orders limit 10").newest is None
    assert parse_statement("select distinct a from orders limit 10").newest is None


def test_the_depth_of_a_query_is_bounded_also_where_python_allows_more() -> None:
    """Other code in the process may raise Python's limit."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        with pytest.raises(SqlError, match="nested too deeply"):
            parse_statement("select " + " + ".join(["abs(1)"] * 900))
        parse_statement("select " + " + ".join(["abs(1)"] * 250))
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        ("selec 1", "syntax error"),
        ("select 1; select 2", "single SELECT"),
        ("drop table orders", "single SELECT"),
        ("copy orders to '/tmp/x'", "single SELECT"),
        ("set threads = 8", "single SELECT"),
        ("attach 'x.db'", "single SELECT"),
        ("install httpfs", "single SELECT"),
        ("select * from read_csv('/etc/passwd')", "cannot be used in FROM"),
        ("select * from glob('*')", "cannot be used in FROM"),
        ("select * from a.b.c", "double quotes"),
        ("x" * 200_000, "at most 100,000"),
        ("select " + " + ".join(["abs(1)"] * 900), "nested too deeply"),
    ],
)
def test_what_is_not_a_query_is_refused(text: str, reason: str) -> None:
    with pytest.raises(SqlError, match=reason):
        parse_statement(text)


@pytest.mark.parametrize(
    "condition",
    [
        "_offset > length(repeat('x', 9))",  # memory and time of functions have no bound while a query is parsed
        "_offset > list_sum(range(9))",
        "_offset > " + "+".join(["1"] * 60),
        "_offset in (" + ",".join(["1"] * 300) + ")",
    ],
)
def test_only_cheap_constants_are_evaluated_before_the_query_runs(condition: str) -> None:
    assert parse_statement(f"select * from t where {condition}").bounds == {}


def test_the_engine_has_no_way_out() -> None:
    """The second lock, under the check of statements."""
    import duckdb

    outside = [1, 2]
    assert outside
    with open_engine() as engine:
        for command in (
            "select * from '/etc/passwd'",
            "select * from read_text('/etc/passwd')",
            "select * from outside",
            "set enable_external_access = true",
            "set memory_limit = '100GB'",
            "copy (select 1) to '/tmp/millstream-sql-test'",
            "attach '/tmp/millstream-sql-test.db'",
            "install httpfs",
            "load httpfs",
            "select * from 'http://localhost/x.csv'",
        ):
            with pytest.raises(duckdb.Error):
                engine.execute(command).fetchall()


def test_names_of_topics_are_replaced_where_they_are_tables() -> None:
    statement = parse_statement("select 'ü orders', orders.a from orders where b in (select c from \"my-topic\" as m)")
    assert renamed(statement, {"orders": "x", "my-topic": "y"}).endswith("from x where b in (select c from y AS m)")


def test_the_newest_records_are_shared_out_to_partitions() -> None:
    assert shared_out(10, {0: 100, 1: 2, 2: 100}) == {0: 4, 1: 2, 2: 4}
    assert shared_out(10, {0: 1, 1: 0}) == {0: 1, 1: 0}


def test_a_stop_interrupts_and_says_why() -> None:
    interrupted: list[bool] = []
    stop = Stop(60)
    stop.interrupts(lambda: interrupted.append(True))
    stop.cancel()
    assert interrupted == [True]
    with pytest.raises(StoppedError, match="cancelled"):
        stop.check()
    with pytest.raises(StoppedError, match="longer than 0 s"):
        Stop(0).check()
