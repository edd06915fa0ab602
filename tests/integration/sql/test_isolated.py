"""DuckDB in a process of its own: results, errors, and what DuckDB itself does not stop."""

import os

import pyarrow as pa
import pytest

from millstream.sql.errors import Stop
from millstream.sql.isolated import EngineError, run_isolated, spare

MEMORY = 64 << 20


def test_tables_go_in_and_batches_come_out() -> None:
    left = pa.table({"id": range(20_000)})
    right = pa.table({"id": range(20_000), "name": ["ü"] * 20_000})
    tables: dict[tuple[str, ...], pa.Table] = {("my-topic",): left, ("shop", "orders"): right}
    text = 'select t.id, o.name from "my-topic" t join shop.orders o using (id)'
    with run_isolated(text, tables, MEMORY, Stop(60)) as result:
        found = pa.Table.from_batches(result.batches(), result.schema)
    assert result.types == ["BIGINT", "VARCHAR"]
    assert sorted(found.column("id").to_pylist()) == list(range(20_000))
    assert set(found.column("name").to_pylist()) == {"ü"}


def test_a_million_records_are_grouped_within_the_limit_of_the_gateway() -> None:
    """The limit counts addresses, and what libraries only reserve was most of them."""
    count, at_once = 1_000_000, 32_768  # rows come as the reader of topics gives them
    customers = pa.array([f"customer-{number:04d}" for number in range(1000)])
    numbers = pa.array(range(count))
    places = pa.array([number * 7919 % 1000 for number in range(count)])
    whole = pa.table({"customer": customers.take(places), "total": numbers.cast(pa.float64())})
    table = pa.concat_tables(
        [
            pa.table({name: whole[name].slice(first, at_once) for name in whole.schema.names})
            for first in range(0, count, at_once)
        ]
    )
    text = "select customer, count(*) as orders, sum(total) from t group by all order by 3 desc limit 10"
    for _ in range(3):
        with run_isolated(text, {("t",): table}, 512 << 20, Stop(60)) as result:
            found = pa.Table.from_batches(result.batches(), result.schema)
        assert found.column("orders").to_pylist() == [1000] * 10


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("select nothing", "nothing"),
        ("select case when a.range = 50000 then cast('x' as int) end from range(100000) a", "Could not convert"),
        ("select length(repeat('x', 4000000000))", "Out of Memory"),  # beyond DuckDB's own limit
    ],
)
def test_an_error_comes_out_also_after_the_first_rows(text: str, reason: str) -> None:
    with pytest.raises(EngineError, match=reason), run_isolated(text, {}, MEMORY, Stop(60)) as result:
        list(result.batches())


def test_a_function_that_duckdb_does_not_interrupt_is_ended() -> None:
    """It would run for hours."""
    text = "select levenshtein(repeat('a', 5000000), repeat('b', 5000000))"
    with pytest.raises(EngineError, match="has ended"), run_isolated(text, {}, MEMORY, Stop(1)) as result:
        list(result.batches())


def test_a_query_that_is_left_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    spare.drop()  # it was started without the secret
    others = _children()
    monkeypatch.setenv("MILLSTREAM_SECRET_OF_A_TEST", "s3cret")
    tables: dict[tuple[str, ...], pa.Table] = {("t",): pa.table({"id": range(100_000)})}
    with run_isolated("select * from t", tables, MEMORY, Stop(60)) as result:
        next(result.batches())
        children = _children() - others
        environments = [_environment(child) for child in children]
    assert children and b"s3cret" not in b"".join(environments)
    assert not _children() & children


def _children() -> set[str]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return set(file.read().split())


def _environment(process: str) -> bytes:
    with open(f"/proc/{process}/environ", "rb") as file:
        return file.read()


def test_a_process_waits_for_the_next_query_and_runs_only_one() -> None:
    tables: dict[tuple[str, ...], pa.Table] = {("t",): pa.table({"n": [1, 2, 3]})}

    def result() -> list[dict[str, object]]:
        with run_isolated("select sum(n)::int as n from t", tables, MEMORY, Stop(60)) as found:
            return pa.Table.from_batches(found.batches(), found.schema).to_pylist()

    pids = []
    for _ in range(3):
        spare.fill()
        assert spare._process is not None
        pids.append(spare._process.pid)
        assert result() == [{"n": 6}]
    assert len(set(pids)) == 3
    assert spare._process is not None
    spare._process.kill()  # it died while it waited
    spare._process.wait()
    assert result() == [{"n": 6}]
    spare.drop()
    assert spare._process is None
