"""Queries of `millstream sql` as pipelines: the file is valid, and Spark's rows are those of the query."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millstream.pipeline.definition import load
from millstream.raw_client import Cluster
from millstream.sql.as_pipeline import pipeline_file
from millstream.sql.output import rows_of
from millstream.sql.query import Query
from millstream.testing import EmbeddedBroker
from tests.system.pipeline.shop import Shop, run_once

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]
FILTER = """
    -- "quotes", 'strings' and types of DuckDB
    select o.id, o."the total" * 2 as twice, 'it''s ' || o.customer as name, o.made::timestamptz as made
    from "sql.orders" o where o."the total" > 10
"""
JOIN = """
    select o.id, o."the total" * 2 as twice, c.name, o.made::timestamptz as made
    from "sql.orders" o join sql_customers c on o.customer = c.id where o."the total" > 10
"""


@pytest.fixture
def shop(broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setenv("MILLSTREAM_STATE_HOME", str(tmp_path / "state"))
    return Shop(broker, tmp_path)


@pytest.mark.parametrize(
    ("name", "text"), [("filter", FILTER), pytest.param("join", JOIN, marks=pytest.mark.slow)], ids=["filter", "join"]
)
def test_spark_has_the_rows_of_the_query(shop: Shop, spark: SparkSession, name: str, text: str) -> None:
    orders = [
        {"id": number, "customer": number % 2, "the total": number * 5.5, "made": "2026-01-01T00:00:00Z"}
        for number in range(6)
    ]
    shop.fill("sql.orders", orders)
    shop.fill("sql_customers", [{"id": each, "name": f"c{each}"} for each in (0, 1)])
    with Cluster(shop.bootstrap) as cluster:
        query = Query(cluster, text)
        with query.run() as result:
            expected = sorted(row[:3] for batch in result.batches for row in rows_of(batch))
        columns = {name: query.columns(topic) for name, topic in query.topics.items()}
    pipeline = pipeline_file(query.statement, columns, bootstrap=shop.bootstrap, sink_topic=f"sql-rows-{name}")
    file = shop.directory / "query.yaml"
    file.write_text(pipeline)
    run_once(load(file), spark)
    rows = shop.rows(f"sql-rows-{name}")
    assert sorted([row["id"], row["twice"], row["name"]] for row in rows) == expected
    assert {row["made"] for row in rows} == {"2026-01-01T00:00:00.000Z"}
