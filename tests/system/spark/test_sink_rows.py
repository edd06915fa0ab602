"""Rows to batches of partitions, without a broker: what is held in memory on the way, and that all rows come out."""

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from millstream.formats.records.batch import read_header
from millstream.spark.sink import rows as sink_rows
from millstream.spark.sink.options import parse_write_options
from millstream.spark.sink.rows import RowRouter

ROWS = 200


class TwoPartitions:
    """As much of a cluster as a router asks."""

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
