import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.config.log_config import LogConfig
from millstream.records.compression import Codec

from .batches import NOW, batch
from .conftest import Node
from .faulty_disk import FaultyDisk
from .test_partition_log import append


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=4), min_size=1, max_size=25),
    st.sampled_from(list(Codec)),
    st.sampled_from([200, 700, 100_000]),
    st.booleans(),
    st.integers(0, 30),
)
def test_search_by_time_agrees_with_a_list(
    batches: list[list[int]], codec: Codec, segment_bytes: int, restart: bool, start: int
) -> None:
    with tempfile.TemporaryDirectory() as root:
        node = Node(FaultyDisk(), str(Path(root) / "data"))
        config = LogConfig(segment_bytes=segment_bytes, index_interval_bytes=50)
        log = node.log(config)
        records: list[int] = []
        for times in batches:
            append(log, *(b"v" for _ in times), timestamps=[NOW + time for time in times], codec=codec)
            records += times
        if restart:
            node.restart(clean=False)
            log = node.log(config)
        start = min(start, len(records))
        log.delete_records_before(start)
        for wanted in range(-1, 52):
            expected = next(
                ((offset, NOW + time, 0) for offset, time in enumerate(records) if time >= wanted and offset >= start),
                None,
            )
            assert log.time_search().offset_by_timestamp(NOW + wanted) == expected
        if not start:
            greatest = max(records)
            assert log.time_search().max_timestamp_offset() == (records.index(greatest), NOW + greatest, 0)
        node.kill()


def test_an_empty_log_has_no_times(node: Node) -> None:
    assert node.log().time_search().offset_by_timestamp(0) is None
    assert node.log().time_search().max_timestamp_offset() is None


def test_records_without_timestamps(node: Node) -> None:
    log = node.log()
    log.append(batch(timestamps=[-1]), leader_epoch=0, now_ms=NOW)
    assert log.time_search().offset_by_timestamp(0) is None
    assert log.time_search().max_timestamp_offset() is None
