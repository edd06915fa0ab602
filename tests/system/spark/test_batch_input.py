"""When a batch that comes again is refused, and what the user reads then."""

import pytest

from millstream.spark.sink.batch_input import BatchInput, WrittenBatch, refusal

ROWS = BatchInput.of_rows(100, 4711)
OFFSETS = BatchInput.of_offsets([[0, 100]], ['{"orders":{"0":100}}'])


@pytest.mark.parametrize("given", [ROWS, OFFSETS])
def test_it_comes_back_as_it_was_kept(given: BatchInput) -> None:
    assert BatchInput.from_json(given.to_json()) == given
    assert BatchInput.from_json(None) is None
    with pytest.raises(ValueError, match="is not a mark"):
        BatchInput.from_json({**given.to_json(), "mark": "zzz"})


def test_the_same_input_counts_as_written() -> None:
    assert refusal("q", 3, ROWS, WrittenBatch(3, BatchInput.of_rows(100, 4711))) is None
    assert refusal("q", 3, ROWS, WrittenBatch(3, None)) is None  # of an earlier version
    assert refusal("q", 3, None, WrittenBatch(3, ROWS)) is None  # not compared


def test_offsets_of_very_many_partitions_are_kept_as_a_mark() -> None:
    assert BatchInput.of_offsets([1], ["x" * 5000]).ends == ()


@pytest.mark.parametrize("given", [BatchInput.of_rows(101, 4711), BatchInput.of_rows(100, 4712), OFFSETS])
def test_other_input_is_refused(given: BatchInput) -> None:
    text = refusal("q", 3, given, WrittenBatch(3, ROWS))
    assert text is not None
    assert "batch 3 of query q was written already, with other input: 100 rows" in text
    assert "restore the newer checkpoint; or start the query with a new checkpointLocation" in text
    assert ("checkReplays=false" in text) == (given is not OFFSETS)


def test_the_way_out_says_where_the_output_ends() -> None:
    for batch, given in ((3, ROWS), (2, OFFSETS)):
        text = refusal("q", batch, given, WrittenBatch(3, OFFSETS))
        assert text is not None
        assert 'a new checkpointLocation and startingOffsets={"orders":{"0":100}}, the end of the output' in text
    older = refusal("q", 2, None, WrittenBatch(3, None))
    assert older is not None
    assert "batch 2 of query q is older than batch 3" in older
    assert "startingOffsets at the end of the output, which its last rows show" in older
