"""A consumer quota slows down what reads a topic to its end, and leaves nothing out: throttled responses are empty."""

from collections.abc import Iterator

import pytest

from millstream.admin.quotas import QuotaAdmin, make_entity
from millstream.admin.report_topic import read_reports
from millstream.client import connect
from millstream.raw_client import Cluster
from millstream.sql.query import Limits, Query
from millstream.sql.reading import Window
from millstream.testing import EmbeddedBroker

RECORDS = 60


@pytest.fixture(scope="module")
def throttled() -> Iterator[Cluster]:
    with EmbeddedBroker({"quota.window.num": 2}) as broker:
        with connect(broker.bootstrap_servers) as client:
            client.create_topic("reports", partitions=1)
            for number in range(RECORDS):  # a batch each
                client.publish("reports", {"number": number, "text": "x" * 500}, key=f"k{number}")
        with Cluster(broker.bootstrap_servers) as cluster:
            QuotaAdmin(cluster).alter(make_entity(client_id="<default>"), {"consumer_byte_rate": 20_000.0})
            yield cluster


def test_sql_counts_all_records(throttled: Cluster) -> None:
    pytest.importorskip("duckdb")
    for _ in range(2):
        query = Query(throttled, "select count(*), sum(number) from reports", limits=Limits(Window(None)))
        with query.run() as result:
            rows = [row for batch in result.batches for row in batch.to_pylist()]
        assert [tuple(row.values()) for row in rows] == [(RECORDS, sum(range(RECORDS)))]
        assert result.read[0].notes == []


def test_reports_are_complete(throttled: Cluster) -> None:
    for _ in range(2):
        assert len(dict(read_reports(throttled, "reports"))) == RECORDS
