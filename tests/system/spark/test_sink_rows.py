"""Rows to batches of partitions, without Spark: memory on the way, all rows come out, topics that are missing."""

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from millstream.formats.records.batch import read_header
from millstream.raw_client import Cluster
from millstream.spark.errors import SinkError
from millstream.spark.sink import rows as sink_rows
from millstream.spark.sink.options import parse_write_options
from millstream.spark.sink.rows import RowRouter, forget_topics
from millstream.testing import EmbeddedBroker

ROWS = 200


class TwoPartitions:
    """As much of a cluster as a router asks."""

    def topics(self, names: list[str]) -> list[str]:
        return names

    def partitions_of(self, _topic: str) -> int:
        return 2

    def call(self, _api: str, **_fields: Any) -> SimpleNamespace:
        return SimpleNamespace(results=[])


@pytest.mark.parametrize("with_headers", [False, True])
def test_a_row_now_and_then_does_not_keep_all_the_others_in_memory(
    monkeypatch: pytest.MonkeyPatch, with_headers: bool
) -> None:
    monkeypatch.setattr(sink_rows, "_MOST_GATHERED", 4 << 20)
    options = parse_write_options({"kafka.bootstrap.servers": "x:1", "topic": "t"}, streaming=True)
    router = RowRouter(TwoPartitions(), options)  # type: ignore[arg-type]
    before, most, found = pa.total_allocated_bytes(), 0, {0: 0, 1: 0}
    for _ in range(150):
        columns: dict[str, Any] = {
            "partition": pa.array([0] + [1] * (ROWS - 1), pa.int32()),
            "value": [b"x" * 1000] * ROWS,
        }
        if with_headers:
            columns["headers"] = [[{"key": "k", "value": b"v"}]] * ROWS
        for place, batch in router.add(pa.RecordBatch.from_pydict(columns)):
            found[place.partition] += read_header(batch.data, 0).record_count
        most = max(most, pa.total_allocated_bytes() - before)
    for place, batch in router.rest():
        found[place.partition] += read_header(batch.data, 0).record_count
    assert found == {0: 150, 1: 150 * (ROWS - 1)}
    assert most < 20 << 20  # of 30 MB that came through


@pytest.mark.parametrize("allowed", [True, False])
def test_a_missing_topic_is_created_where_the_brokers_allow_it(monkeypatch: pytest.MonkeyPatch, allowed: bool) -> None:
    monkeypatch.setattr(sink_rows, "_CREATION_WAIT_SECONDS", 0.1)
    settings = {"auto.create.topics.enable": str(allowed).lower(), "num.partitions": 3}
    with EmbeddedBroker(settings) as broker, Cluster(broker.bootstrap_servers) as cluster:
        given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": "new"}
        options = parse_write_options(given, streaming=True)
        rows = pa.RecordBatch.from_pydict({"value": [b"x"], "partition": pa.array([2], pa.int32())})
        if not allowed:
            with pytest.raises(SinkError, match="Create it: `millstream topic create new`"):
                list(RowRouter(cluster, options).add(rows))
            return
        list(RowRouter(cluster, options).add(rows))
        assert len(cluster.topics(["new"])["new"].partitions) == 3
        # What brokers say of a topic is kept for the next batch, until a write fails.
        requests: list[str] = []
        monkeypatch.setattr(cluster, "call", lambda api, **_: requests.append(api))
        list(RowRouter(cluster, options).add(rows))
        assert not requests
        forget_topics(options)
        with pytest.raises(AttributeError):
            list(RowRouter(cluster, options).add(rows))
        assert requests == ["describe_configs"]
