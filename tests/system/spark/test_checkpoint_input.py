"""What a batch reads, by the checkpoint as Spark lays it out on a disk."""

import json
from pathlib import Path
from typing import Any

import pytest

from millstream.spark.errors import SinkError
from millstream.spark.sink.batch_input import BatchInput
from millstream.spark.sink.input_identity import CheckpointOffsets, RowDigest, input_of_rows


def ours(offset: int, **note: Any) -> dict[str, Any]:
    return {"orders": {"0": offset}, "$millstream": {"ids": {"orders": "id-1"}, **note}}


class Checkpoint:
    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "offsets").mkdir(parents=True)
        (root / "metadata").write_text('{"id":"query-1"}')

    def batch(self, number: int, *sources: dict[str, Any] | str, time: int = 1, version: str = "v1") -> None:
        lines = [each if isinstance(each, str) else json.dumps(each) for each in sources]
        metadata = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": time, "conf": {}})
        (self.root / "offsets" / str(number)).write_text("\n".join([version, metadata, *lines]))

    def input_of(self, number: int) -> BatchInput:
        found = CheckpointOffsets.find(str(self.root))
        assert found is not None and found.query == "query-1"
        return found.input_of(number)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path / "checkpoint")


def test_a_batch_is_where_it_begins_and_ends(checkpoint: Checkpoint) -> None:
    checkpoint.batch(0, ours(10))
    checkpoint.batch(1, ours(20))
    first, second = checkpoint.input_of(0), checkpoint.input_of(1)
    assert second.ends == ('{"orders":{"0":20}}',)
    assert not first.is_same(second)
    checkpoint.batch(1, ours(20), time=2)  # planned again, at another time
    assert checkpoint.input_of(1).is_same(second)
    checkpoint.batch(1, ours(30))
    assert not checkpoint.input_of(1).is_same(second)
    checkpoint.batch(1, ours(20))
    checkpoint.batch(0, ours(5))
    assert not checkpoint.input_of(1).is_same(second)
    checkpoint.batch(0, ours(10, begin={"orders": {"0": 3}}))
    assert not checkpoint.input_of(0).is_same(first)
    checkpoint.batch(0, {**ours(10), "$millstream": {"ids": {"orders": "of a topic that was created again"}}})
    assert not checkpoint.input_of(0).is_same(first)


def test_with_state_the_time_counts(checkpoint: Checkpoint) -> None:
    (checkpoint.root / "state").mkdir()
    checkpoint.batch(0, ours(10))
    before = checkpoint.input_of(0)
    checkpoint.batch(0, ours(10), time=2)
    assert not checkpoint.input_of(0).is_same(before)


def test_the_input_of_several_sources_is_read(checkpoint: Checkpoint) -> None:
    checkpoint.batch(0, ours(10), "-")  # the second has no data yet
    assert checkpoint.input_of(0).ends == ()
    checkpoint.batch(1, ours(10), ours(5))
    assert checkpoint.input_of(1).ends == ('{"orders":{"0":10}}', '{"orders":{"0":5}}')


def test_while_a_table_is_read_no_offset_is_shown(checkpoint: Checkpoint) -> None:
    note = {"version": "3", "topics": ["orders"], "first": 0, "following": 2, "count": 5}
    checkpoint.batch(0, ours(10, history=note))
    found = checkpoint.input_of(0)
    assert found.ends == ()
    checkpoint.batch(0, ours(10, history={**note, "following": 3}))
    assert not checkpoint.input_of(0).is_same(found)


@pytest.mark.parametrize("other", ['{"logOffset":0}', "7", '{"orders":{"0":10}}', "-"])
def test_offsets_of_other_sources_say_nothing(checkpoint: Checkpoint, other: str) -> None:
    checkpoint.batch(0, ours(10))
    checkpoint.batch(1, other)
    assert CheckpointOffsets.find(str(checkpoint.root)) is None
    checkpoint.batch(2, ours(10))  # where it begins is not known
    assert CheckpointOffsets.find(str(checkpoint.root)) is None


def test_what_cannot_be_read_is_not_known(checkpoint: Checkpoint, tmp_path: Path) -> None:
    assert CheckpointOffsets.find(str(checkpoint.root)) is None  # no batch yet
    checkpoint.batch(0, ours(10))
    assert CheckpointOffsets.find(f"file:{checkpoint.root}") == CheckpointOffsets.find(str(checkpoint.root)) is not None
    assert CheckpointOffsets.find(f"file://{checkpoint.root}") is not None
    for location in (None, "", "s3a://bucket/x", "hdfs:/x", str(tmp_path / "none")):
        assert CheckpointOffsets.find(location) is None
    known = CheckpointOffsets.find(str(checkpoint.root))
    assert known is not None
    with pytest.raises(SinkError, match=r"the offsets of batch 1 in .* cannot be read"):
        known.input_of(1)
    checkpoint.batch(0, ours(10), version="v9")
    assert CheckpointOffsets.find(str(checkpoint.root)) is None


def test_rows_of_all_tasks() -> None:
    assert input_of_rows([RowDigest(2, 5), RowDigest(1, 6)]) == input_of_rows([RowDigest(3, 11)])
    assert not input_of_rows([RowDigest(2, 11)]).is_same(input_of_rows([RowDigest(3, 11)]))
    with pytest.raises(SinkError, match="readable before the batch and is not now"):
        input_of_rows([RowDigest(2, 5), None])
