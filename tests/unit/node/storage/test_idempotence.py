"""What a partition remembers of idempotent producers outlives whatever happens to the log: another leader, a restart,
deleted segments, batches that the cleaner emptied, gaps that it left."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from millstream.config.topic_config import LogConfig
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.records.batch import BatchHeader, iterate_headers
from millstream.node.storage.log.partition_log import PartitionLog
from millstream.node.storage.log.retention import retain
from tests.unit.node.storage.batches import NOW, batch
from tests.unit.node.storage.conftest import Node
from tests.unit.node.storage.test_partition_log import append, read, read_all
from tests.unit.node.storage.transactional import abort, commit, emptied, write

PRODUCER = 7
SMALL_SEGMENTS = LogConfig(segment_bytes=400, index_interval_bytes=100)


def sent(sequence: int, epoch: int = 0, count: int = 1) -> bytearray:
    return batch(*[b"v"] * count, producer_id=PRODUCER, producer_epoch=epoch, sequence=sequence)


def put(log: PartitionLog, sequence: int, epoch: int = 0) -> tuple[int, bool]:
    """(offset, whether it was there before) of a batch."""
    appended = log.append(sent(sequence, epoch), leader_epoch=0, now_ms=NOW)
    return appended.base_offset, appended.duplicate


def refusal(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(KafkaError) as error:
        call()
    return error.value.code


def knows_the_last_five(log: PartitionLog, last: int) -> None:
    """Sequence and offset are the same number here."""
    end = log.log_end_offset
    for sequence in range(last - 4, last + 1):
        assert put(log, sequence) == (sequence, True)
    assert refusal(lambda: put(log, last - 5)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(lambda: put(log, last + 2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.log_end_offset == end


def test_the_next_leader_knows_what_the_last_one_took(
    node: Node, make_node: Callable[[str], Node], tmp_path: Path
) -> None:
    leader = node.log()
    other = make_node(str(tmp_path / "other"))
    follower = other.log()
    for sequence in range(9):
        put(leader, sequence)
        follower.append_as_follower(read(leader, sequence).read(), now_ms=NOW)
    follower.assign_leader_epoch(1)
    knows_the_last_five(follower, 8)
    assert put(follower, 9) == (9, False)
    assert put(follower, 0, epoch=1) == (10, False)
    assert refusal(lambda: put(follower, 10)) == ErrorCode.INVALID_PRODUCER_EPOCH
    other.kill()


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_forgets_nothing(node: Node, clean: bool) -> None:
    log = node.log(SMALL_SEGMENTS)
    for sequence in range(40):
        put(log, sequence)
    assert len(log.segments) > 3
    node.restart(clean=clean)
    knows_the_last_five(node.log(SMALL_SEGMENTS), 39)


@pytest.mark.parametrize("clean", [True, False])
def test_deleted_segments_take_no_sequence_with_them(node: Node, clean: bool) -> None:
    config = LogConfig(segment_bytes=400, retention_bytes=400, retention_ms=-1)
    log = node.log(config)
    put(log, 0)
    put(log, 1)
    while len(log.segments) < 5:
        append(log, b"v" * 50)
    for job in retain(log, NOW):
        job.done(job.run())
    assert log.log_start_offset > 2
    for again in range(2):
        end = log.log_end_offset
        assert put(log, 1) == (1, True)
        assert refusal(partial(put, log, 3)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert log.log_end_offset == end
        if not again:
            node.restart(clean=clean)
            log = node.log(config)
    assert put(log, 2) == (end, False)


def test_idle_producers_are_forgotten_in_time(node: Node) -> None:
    log = node.log()
    put(log, 0)
    node.directory.maintenance(NOW + 86_400_000 - 1)
    assert refusal(lambda: put(log, 5)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    node.directory.maintenance(NOW + 2 * 86_400_000)
    assert PRODUCER not in log.producers.entries
    assert put(log, 5) == (1, False)


# What the cleaner leaves


def cleaned(data: bytes, keep: Callable[[BatchHeader], bool | None]) -> bytes:
    """The batches with some left out (False) and some emptied (None)."""
    out = bytearray()
    for position, header in iterate_headers(data):
        kept = keep(header)
        if kept is None:
            out += emptied(header)
        elif kept:
            out += data[position : position + header.size]
    return bytes(out)


def clean_segment(node: Node, base: int, keep: Callable[[BatchHeader], bool | None]) -> None:
    path = node.file(base)
    path.write_bytes(cleaned(path.read_bytes(), keep))
    for suffix in (".index", ".timeindex"):
        node.file(base, suffix).unlink(missing_ok=True)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("snapshots", [True, False])
def test_an_emptied_batch_keeps_the_last_sequence(node: Node, clean: bool, snapshots: bool) -> None:
    log = node.log(SMALL_SEGMENTS)
    put(log, 0)
    log.append(sent(1, count=3), leader_epoch=0, now_ms=NOW)
    while len(log.segments) < 3:
        append(log, b"v" * 50)
    bases, end = log.segments.bases[:], log.log_end_offset
    node.stop() if clean else node.kill()
    clean_segment(node, 0, lambda header: None if header.base_offset == 1 else header.last_offset == bases[1] - 1)
    if not snapshots:
        for path in node.path.glob("*.snapshot"):
            path.unlink()
    node.start()
    log = node.log(SMALL_SEGMENTS)
    assert (log.log_end_offset, log.segments.bases) == (end, bases)
    assert node.reports == []
    again = log.append(sent(1, count=3), leader_epoch=0, now_ms=NOW)
    assert (again.base_offset, again.last_offset, again.duplicate) == (1, 3, True)
    assert refusal(lambda: put(log, 5)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert put(log, 4) == (end, False)


def test_readers_pass_over_gaps_and_empty_batches(node: Node) -> None:
    log = node.log(LogConfig(segment_bytes=1500, index_interval_bytes=100))
    while len(log.segments) < 3:
        append(log, b"a" * 30, b"b" * 30, timestamps=[NOW + log.log_end_offset] * 2)
    bases, end = log.segments.bases[:], log.log_end_offset
    node.stop()

    def keep(header: BatchHeader) -> bool | None:
        if header.last_offset in (bases[1] - 1, bases[2] - 1):
            return None
        return header.base_offset % 6 == 4

    for base in bases[:2]:
        clean_segment(node, base, keep)
    node.start()
    log = node.log(LogConfig(segment_bytes=1500, index_interval_bytes=100))
    kept = read_all(log)
    assert kept[0] == 4 and bases[1] - 2 in kept
    for offset in range(end):
        expected = next(first for first in kept if first + 1 >= offset)
        for max_bytes in (1, 200, 1 << 20):
            found = [header.base_offset for _, header in iterate_headers(read(log, offset, max_bytes).read())]
            assert found[0] == expected
        later = log.time_search().offset_by_timestamp(NOW + offset)
        with_records = [first for first in kept if first not in (bases[1] - 2, bases[2] - 2) and first >= offset]
        assert (later.offset if later else None) == (with_records[0] if with_records else None)
    newest = log.time_search().max_timestamp_offset()
    assert newest is not None and newest.offset == kept[-1]


def test_a_follower_copies_what_is_left(node: Node, make_node: Callable[[str], Node], tmp_path: Path) -> None:
    """Gaps, emptied batches and markers: in one response or in many, then killed and recovered."""
    source = node.log(SMALL_SEGMENTS)
    put(source, 0)
    write(source, 1, 0)
    write(source, 2, 0)
    append(source, b"gone", b"gone")
    abort(source, 1)
    write(source, 2, 1)
    commit(source, 2)
    append(source, b"gone")
    put(source, 1)
    append(source, b"stays")
    data = b"".join(node.file(base).read_bytes() for base in source.segments.bases)
    left = cleaned(data, lambda header: None if header.base_offset in (0, 2, 9) else header.base_offset not in (3, 8))
    headers = list(iterate_headers(left))
    for whole in (True, False):
        other = make_node(str(tmp_path / f"other-{whole}"))
        config = LogConfig() if whole else SMALL_SEGMENTS
        log = other.log(config)
        if whole:
            log.append_as_follower(left, now_ms=NOW)
        else:
            for position, header in headers:
                log.append_as_follower(left[position : position + header.size], now_ms=NOW)
        for clean in (None, True, False):
            if clean is not None:
                other.restart(clean=clean)
                log = other.log(config)
                assert other.reports == []
            assert log.log_end_offset == source.log_end_offset
            assert read_all(log) == [header.base_offset for _, header in headers]
            assert log.last_stable_offset == log.log_end_offset
            assert log.aborted_transactions(0, log.log_end_offset) == [(1, 1)]
            assert log.producers.entries[PRODUCER].last_sequence == 1
            assert log.producers.entries[2].last_sequence == 1
        other.kill()
