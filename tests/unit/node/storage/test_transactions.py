"""Transactions in a log: what is stable, what was aborted, who may write, and what a restart remembers."""

from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.config.topic_config import LogConfig
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import Marker, Origin, VerificationGuard
from millstream.formats.records.batch import read_header
from millstream.node.storage.log.retention import retain
from tests.unit.node.storage.batches import NOW, batch
from tests.unit.node.storage.conftest import Node
from tests.unit.node.storage.faulty_disk import FaultyDisk
from tests.unit.node.storage.test_partition_log import append, read, read_all
from tests.unit.node.storage.transactional import TRANSACTIONAL, abort, commit, write, write_own

SMALL_SEGMENTS = LogConfig(segment_bytes=400, index_interval_bytes=100)


def refusal(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(KafkaError) as error:
        call()
    return error.value.code


# What is stable


def test_nothing_is_unstable_without_transactions(node: Node) -> None:
    log = node.log()
    append(log)
    append(log, producer_id=1, producer_epoch=0, sequence=0)
    assert (log.first_unstable_offset, log.last_stable_offset) == (None, 2)
    log.high_watermark = 1
    assert log.last_stable_offset == 1


def test_an_open_transaction_holds_the_last_stable_offset(node: Node) -> None:
    log = node.log()
    append(log)
    write(log, 1, 0)
    append(log)
    write(log, 2, 0)
    assert (log.first_unstable_offset, log.last_stable_offset) == (1, 1)
    assert log.open_transactions() == {1: 1, 2: 3}
    commit(log, 1)
    assert log.last_stable_offset == 3
    abort(log, 2)
    assert (log.first_unstable_offset, log.last_stable_offset) == (None, 6)


def test_a_transaction_stays_unstable_until_its_marker_is_committed(node: Node) -> None:
    log = node.log()
    log.high_watermark = 0
    write(log, 1, 0)
    write(log, 2, 0)
    assert commit(log, 2) == 2
    assert commit(log, 1) == 3
    log.high_watermark = 3
    assert (log.first_unstable_offset, log.last_stable_offset) == (0, 0)
    log.high_watermark = 4
    assert (log.first_unstable_offset, log.last_stable_offset) == (None, 4)


def test_the_next_transaction_of_a_producer_is_its_own(node: Node) -> None:
    log = node.log()
    write(log, 1, 0)
    commit(log, 1)
    write(log, 1, 1)
    assert log.last_stable_offset == 2
    abort(log, 1)
    assert log.aborted_transactions(0, 4) == [(1, 2)]


def test_a_marker_without_a_transaction_changes_nothing_that_is_read(node: Node) -> None:
    log = node.log()
    append(log)
    assert abort(log, 5) == 1
    assert log.last_stable_offset == 2
    assert log.aborted_transactions(0, 2) == []
    assert not node.file(0, ".txnindex").exists()


def test_the_start_of_the_log_may_pass_an_open_transaction(node: Node) -> None:
    """Deletion goes by the high watermark, as in Kafka, and the last stable offset is never before the start."""
    log = node.log()
    write(log, 1, 0)
    append(log)
    append(log)
    log.delete_records_before(2)
    assert (log.first_unstable_offset, log.last_stable_offset) == (2, 2)
    abort(log, 1)
    assert log.last_stable_offset == log.log_end_offset == 4
    assert log.aborted_transactions(2, 4) == [(1, 0)]


def test_a_follower_knows_the_same(node: Node, make_node: Callable[[str], Node], tmp_path: Path) -> None:
    leader = node.log()
    other = make_node(str(tmp_path / "other"))
    follower = other.log()
    follower.high_watermark = 0
    steps: list[Callable[[], int]] = [
        lambda: write(leader, 1, 0),
        lambda: write_own(leader, 2),
        lambda: abort(leader, 1),
        lambda: write(leader, 1, 1),
        lambda: commit(leader, 2),
        lambda: abort(leader, 1),
    ]
    for step in steps:
        copied = step()
        follower.append_as_follower(read(leader, copied).read(), now_ms=NOW)
        follower.high_watermark = follower.log_end_offset
        assert follower.last_stable_offset == leader.last_stable_offset
        assert follower.open_transactions() == leader.open_transactions()
        assert follower.aborted_transactions(0, 9) == leader.aborted_transactions(0, 9)
    assert other.file(0, ".txnindex").read_bytes() == node.file(0, ".txnindex").read_bytes()
    other.kill()


# Markers


def test_a_marker_is_the_control_batch_that_kafka_writes(node: Node) -> None:
    log = node.log()
    write(log, 7, 0, epoch=3)
    commit(log, 7, epoch=3, coordinator_epoch=9)
    data = read(log, 1).read()
    header = read_header(data)
    assert (header.base_offset, header.last_offset_delta, header.record_count, header.size) == (1, 0, 1, 78)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, -1)
    assert (header.attributes, header.base_timestamp, header.max_timestamp) == (0x30, NOW, NOW)
    # length 16, attributes, time, offset, key of 4 (version 0, commit), value of 6 (version 0, epoch 9), no headers
    assert data[61:].hex() == "2000000008000000010c00000000000900"
    abort(log, 7, epoch=3, coordinator_epoch=9)
    assert read(log, 2).read()[66:70].hex() == "00000000"


def test_a_marker_has_the_append_time_where_the_topic_wants_it(node: Node) -> None:
    log = node.log(LogConfig(message_timestamp_type="LogAppendTime"))
    appended = log.append_marker(Marker(1, 0, 0, True, 2), leader_epoch=4, now_ms=NOW + 5)
    header = read_header(read(log).read())
    assert header.has_log_append_time and header.max_timestamp == NOW + 5 and header.leader_epoch == 4
    assert (appended.base_offset, appended.last_offset, appended.log_start_offset) == (0, 0, 0)
    assert (appended.log_append_time, appended.duplicate) == (NOW + 5, False)


def test_markers_of_earlier_epochs_are_refused(node: Node) -> None:
    log = node.log()
    write(log, 1, 0, epoch=4)
    assert refusal(lambda: abort(log, 1, epoch=3)) == ErrorCode.INVALID_PRODUCER_EPOCH
    commit(log, 1, epoch=4, coordinator_epoch=7)
    assert refusal(lambda: commit(log, 1, epoch=4, coordinator_epoch=6)) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert log.log_end_offset == 2


@pytest.mark.parametrize("version", [0, 1])
def test_before_version_2_a_marker_has_the_epoch_of_its_transaction(node: Node, version: int) -> None:
    log = node.log()
    write(log, 1, 0, epoch=4)
    commit(log, 1, epoch=4, version=version)
    commit(log, 1, epoch=4, version=version)
    assert write(log, 1, 1, epoch=4) == 3


def test_from_version_2_on_a_marker_has_an_epoch_of_its_own(node: Node) -> None:
    """KIP-890 and KIP-1228: one of the same epoch belongs to the transaction before, unless nothing is open."""
    log = node.log()
    write(log, 1, 0, epoch=4)
    assert refusal(lambda: commit(log, 1, epoch=4, version=2)) == ErrorCode.INVALID_PRODUCER_EPOCH
    commit(log, 1, epoch=5, version=2)
    commit(log, 1, epoch=5, version=2)  # the response was lost
    assert refusal(lambda: write(log, 1, 1, epoch=4)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert refusal(lambda: write(log, 1, 1, epoch=5)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    write(log, 1, 0, epoch=5)
    assert refusal(lambda: abort(log, 1, epoch=5, version=2)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.last_stable_offset == 3
    abort(log, 1, epoch=6, version=2)
    assert log.aborted_transactions(0, 5) == [(1, 3)]


def test_clients_still_write_no_control_batches(node: Node) -> None:
    log = node.log()
    for origin in Origin:
        data = batch(b"x", producer_id=1, producer_epoch=0, sequence=0, attributes=0x30)
        code = refusal(lambda: log.append(data, leader_epoch=0, now_ms=NOW, origin=origin))  # noqa: B023
        assert code == ErrorCode.INVALID_RECORD


# Writing in a transaction


def test_the_response_to_a_repeated_batch_has_its_first_offset(node: Node) -> None:
    log = node.log()
    write(log, 1, 0, b"a", b"b")
    write(log, 1, 2)
    data = batch(b"a", b"b", producer_id=1, producer_epoch=0, sequence=0, attributes=TRANSACTIONAL)
    again = log.append(data, leader_epoch=0, now_ms=NOW)
    assert (again.base_offset, again.last_offset, again.log_append_time, again.log_start_offset) == (0, 1, -1, 0)
    assert again.duplicate
    commit(log, 1)
    assert log.append(data, leader_epoch=0, now_ms=NOW, needs_guard=True).duplicate
    assert log.open_transactions() == {}
    assert refusal(lambda: write(log, 1, 7)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_producer_writes_nothing_outside_of_its_open_transaction(node: Node) -> None:
    log = node.log()
    write(log, 1, 0)
    plain = batch(b"x", producer_id=1, producer_epoch=0, sequence=1)
    assert refusal(lambda: log.append(plain, leader_epoch=0, now_ms=NOW)) == ErrorCode.INVALID_TXN_STATE
    commit(log, 1)
    assert log.append(plain, leader_epoch=0, now_ms=NOW).base_offset == 2


def test_a_brokers_own_batches_have_no_sequence(node: Node) -> None:
    log = node.log()
    write_own(log, 1, epoch=3)
    write_own(log, 1, b"a", b"b", epoch=3)
    assert refusal(lambda: write_own(log, 1, epoch=2)) == ErrorCode.INVALID_PRODUCER_EPOCH
    entry = log.producers.entries[1]
    assert (entry.last_sequence, entry.next_sequence, entry.transaction_start) == (-1, 0, 0)
    client = batch(b"x", producer_id=2, producer_epoch=0, attributes=TRANSACTIONAL)
    assert refusal(lambda: log.append(client, leader_epoch=0, now_ms=NOW)) == ErrorCode.INVALID_RECORD
    for clean in (True, False):
        node.restart(clean=clean)
        log = node.log()
        entry = log.producers.entries[1]
        assert (entry.last_sequence, entry.next_sequence, entry.transaction_start) == (-1, 0, 0)
        assert entry.last_batch is not None and entry.last_batch.last_offset == log.log_end_offset - 1
    abort(log, 1, epoch=3)
    assert log.aborted_transactions(0, 9) == [(1, 0)]


# Verification


def test_the_first_batch_needs_the_guard_of_its_verification(node: Node) -> None:
    log = node.log()
    assert refusal(lambda: write(log, 1, 0, needs_guard=True)) == ErrorCode.INVALID_TXN_STATE
    guard = log.begin_verification(1, 0, 0, bumps_epoch=True)
    other = log.begin_verification(2, 0, 0, bumps_epoch=True)
    assert guard is not None and log.begin_verification(1, 0, 0, bumps_epoch=True) is guard
    assert refusal(lambda: write(log, 1, 0, guard=other, needs_guard=True)) == ErrorCode.INVALID_TXN_STATE
    assert write(log, 1, 0, guard=guard, needs_guard=True) == 0
    assert log.begin_verification(1, 0, 1, bumps_epoch=True) is None
    assert write(log, 1, 1, needs_guard=True) == 1


def test_a_marker_takes_the_guard_away(node: Node) -> None:
    """Else a response of the coordinator that came late would open a transaction that no one ends."""
    log = node.log()
    guard = log.begin_verification(1, 0, 0, bumps_epoch=False)
    abort(log, 1)
    assert refusal(lambda: write(log, 1, 0, guard=guard, needs_guard=True)) == ErrorCode.INVALID_TXN_STATE
    assert log.begin_verification(1, 0, 0, bumps_epoch=False) is not guard


def test_the_marker_of_the_transaction_before_leaves_the_guard(node: Node) -> None:
    """With an epoch for each transaction, the client knows of the end, and goes on, before the markers are written."""
    log = node.log()
    write(log, 1, 0)
    guard = log.begin_verification(1, 1, 0, bumps_epoch=True)
    commit(log, 1, epoch=1)
    assert write(log, 1, 0, epoch=1, guard=guard, needs_guard=True) == 2
    guard = log.begin_verification(2, 1, 0, bumps_epoch=True)
    abort(log, 2, epoch=2)
    assert refusal(lambda: write(log, 2, 0, epoch=1, guard=guard, needs_guard=True)) != ErrorCode.NONE


def test_a_replicated_marker_takes_the_guard_away_too(
    node: Node, make_node: Callable[[str], Node], tmp_path: Path
) -> None:
    log = node.log()
    guard = log.begin_verification(1, 0, 0, bumps_epoch=False)
    other = make_node(str(tmp_path / "other"))
    abort(other.log(), 1)
    log.append_as_follower(read(other.log()).read(), now_ms=NOW)
    assert refusal(lambda: write(log, 1, 0, guard=guard, needs_guard=True)) == ErrorCode.INVALID_TXN_STATE
    other.kill()


def test_a_verification_is_over_when_another_leader_took_the_batch(
    node: Node, make_node: Callable[[str], Node], tmp_path: Path
) -> None:
    log = node.log()
    log.begin_verification(1, 0, 0, bumps_epoch=True)
    other = make_node(str(tmp_path / "other"))
    write(other.log(), 1, 0)
    log.append_as_follower(read(other.log()).read(), now_ms=NOW)
    assert log.begin_verification(1, 0, 1, bumps_epoch=True) is None
    assert write(log, 1, 1, needs_guard=True) == 1, "the least sequence that waited is there"
    other.kill()


def test_a_batch_does_not_overtake_the_one_before_it(node: Node) -> None:
    log = node.log()
    guard = log.begin_verification(1, 0, 3, bumps_epoch=False)
    assert log.begin_verification(1, 0, 5, bumps_epoch=False) is guard
    assert refusal(lambda: write(log, 1, 5, guard=guard, needs_guard=True)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert write(log, 1, 3, guard=guard, needs_guard=True) == 0


def test_a_producer_that_bumps_its_epoch_begins_with_sequence_0(node: Node) -> None:
    log = node.log()
    guard = log.begin_verification(1, 0, 3, bumps_epoch=True)
    assert refusal(lambda: write(log, 1, 3, guard=guard, needs_guard=True)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    log.begin_verification(1, 1, 0, bumps_epoch=True)
    assert write(log, 1, 0, epoch=1, guard=guard, needs_guard=True) == 0


def test_a_fenced_producer_is_not_verified(node: Node) -> None:
    log = node.log()
    write(log, 1, 0, epoch=3)
    begin = lambda: log.begin_verification(1, 2, 0, bumps_epoch=True)  # noqa: E731
    assert refusal(begin) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.begin_verification(1, 4, 0, bumps_epoch=True) is not None, "of the next epoch nothing is open"
    assert refusal(lambda: write(log, 1, 0, epoch=4, needs_guard=True)) == ErrorCode.INVALID_TXN_STATE


def test_a_brokers_own_batch_needs_the_guard_as_well(node: Node) -> None:
    log = node.log()
    data = batch(b"x", producer_id=1, producer_epoch=0, attributes=TRANSACTIONAL)

    def own(guard: VerificationGuard | None = None) -> int:
        return log.append(
            data, leader_epoch=0, now_ms=NOW, origin=Origin.COORDINATOR, guard=guard, needs_guard=True
        ).base_offset

    assert refusal(own) == ErrorCode.INVALID_TXN_STATE
    assert own(log.begin_verification(1, 0, -1, bumps_epoch=True)) == 0


def test_guards_that_came_to_nothing_expire(node: Node) -> None:
    log = node.log()
    guard = log.begin_verification(1, 0, 0, bumps_epoch=True)
    expiration = 86_400_000
    node.directory.maintenance(NOW)
    node.directory.maintenance(NOW + expiration - 1)
    assert log.begin_verification(1, 0, 0, bumps_epoch=True) is guard
    node.directory.maintenance(NOW + 2 * expiration)
    assert refusal(lambda: write(log, 1, 0, guard=guard, needs_guard=True)) == ErrorCode.INVALID_TXN_STATE


# The index of aborted transactions


def test_the_index_file_is_kafkas(node: Node) -> None:
    log = node.log()
    write(log, 1, 0)
    write(log, 2, 0)
    abort(log, 2)
    abort(log, 1)
    number = lambda value: value.to_bytes(8, "big")  # noqa: E731
    entries = [(2, 1, 2, 0), (1, 0, 3, 4)]
    expected = b"".join(b"\x00\x00" + b"".join(map(number, entry)) for entry in entries)
    assert node.file(0, ".txnindex").read_bytes() == expected


def test_only_what_overlaps_is_told(node: Node) -> None:
    log = node.log()
    for producer in range(1, 6):
        write(log, producer, 0)
        abort(log, producer)
    write(log, 9, 0)
    assert log.aborted_transactions(0, 11) == [(1, 0), (2, 2), (3, 4), (4, 6), (5, 8)]
    assert log.aborted_transactions(3, 6) == [(2, 2), (3, 4)]
    assert log.aborted_transactions(4, 5) == [(3, 4)]
    assert log.aborted_transactions(10, 11) == []


def test_a_marker_may_be_segments_later(node: Node) -> None:
    log = node.log(SMALL_SEGMENTS)
    write(log, 1, 0)
    while len(log.segments) < 4:
        append(log, b"v" * 50)
    marker = abort(log, 1)
    base = log.segments.active.base_offset
    assert log.aborted_transactions(0, 1) == [(1, 0)]
    assert [path.name for path in node.path.glob("*.txnindex")] == [node.file(base, ".txnindex").name]
    assert log.aborted_transactions(marker, marker + 1) == [(1, 0)]
    for clean in (True, False):
        node.restart(clean=clean)
        assert node.log(SMALL_SEGMENTS).aborted_transactions(0, 1) == [(1, 0)]


def test_the_index_goes_with_its_segment(node: Node) -> None:
    log = node.log(LogConfig(segment_bytes=400, retention_bytes=400, retention_ms=-1))
    write(log, 1, 0)
    abort(log, 1)
    while len(log.segments) < 4:
        append(log, b"v" * 50)
    for job in retain(log, NOW):
        job.done(job.run())
    assert log.log_start_offset > 2
    assert not list(node.path.glob("*.txnindex*"))


def test_a_flush_brings_the_index_to_stable_storage(node: Node, disk: FaultyDisk) -> None:
    log = node.log()
    write(log, 1, 0)
    abort(log, 1)
    flush = log.flush_job()
    assert flush is not None
    flush.done(flush.run())
    assert str(node.file(0, ".txnindex")) in disk.synced


@pytest.mark.parametrize("damage", ["half", "garbage", "version", "order"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_damaged_index_is_made_again(node: Node, damage: str, clean: bool) -> None:
    log = node.log(SMALL_SEGMENTS)
    for producer in range(1, 9):
        write(log, producer, 0)
        write(log, producer + 10, 0)
        abort(log, producer)
    expected = log.aborted_transactions(0, log.log_end_offset)
    files = sorted(node.path.glob("*.txnindex"))
    whole = [path.read_bytes() for path in files]
    assert len(files) > 2 and len(expected) == 8
    node.stop() if clean else node.kill()
    for path, data in zip(files, whole, strict=True):
        path.write_bytes(
            {
                "half": data[:-7],
                "garbage": b"\xff" * len(data),
                "version": b"\x00\x07" + data[2:],
                "order": data + data[-34:],
            }[damage]
        )
    node.start()
    log = node.log(SMALL_SEGMENTS)
    assert log.aborted_transactions(0, log.log_end_offset) == expected
    assert [path.read_bytes() for path in sorted(node.path.glob("*.txnindex"))] == whole


def test_an_index_without_a_segment_is_removed(node: Node) -> None:
    append(node.log())
    stray = node.file(7, ".txnindex")
    node.kill()
    stray.write_bytes(bytes(34))
    node.start()
    node.log()
    assert not stray.exists()


def test_without_room_for_the_index_there_is_no_marker(node: Node, disk: FaultyDisk) -> None:
    log = node.log()
    write(log, 1, 0)
    disk.room = 78 + 10
    assert refusal(lambda: abort(log, 1)) == ErrorCode.KAFKA_STORAGE_ERROR
    disk.room = None
    assert (log.log_end_offset, log.last_stable_offset, log.open_transactions()) == (1, 0, {1: 0})
    assert not node.file(0, ".txnindex").exists()
    assert log.failure is None
    assert abort(log, 1) == 1
    assert log.aborted_transactions(0, 2) == [(1, 0)]
    assert read_all(log) == [0, 1]


# Truncation and restarts


def test_a_truncation_opens_the_transaction_again(node: Node) -> None:
    log = node.log(SMALL_SEGMENTS)
    write(log, 1, 0)
    abort(log, 1)
    write(log, 2, 0)
    while len(log.segments) < 3:
        append(log, b"v" * 50)
    second = abort(log, 2)
    log.truncate_to(second)
    assert (log.open_transactions(), log.last_stable_offset) == ({2: 2}, 2)
    assert log.aborted_transactions(0, second) == [(1, 0)]
    commit(log, 2)
    assert log.aborted_transactions(0, second + 1) == [(1, 0)]
    log.truncate_to(1)
    assert (log.open_transactions(), log.last_stable_offset) == ({1: 0}, 0)
    assert log.aborted_transactions(0, 1) == []
    assert not list(node.path.glob("*.txnindex"))
    log.restart_at(50, NOW)
    assert (log.open_transactions(), log.last_stable_offset) == ({}, 50)


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_changes_nothing(node: Node, clean: bool) -> None:
    log = node.log(SMALL_SEGMENTS)
    for producer in range(12):
        write(log, producer, 0, b"v" * 40)
        if producer % 3:
            (abort if producer % 3 == 1 else commit)(log, producer)
    stable = log.last_stable_offset, log.open_transactions(), log.aborted_transactions(0, log.log_end_offset)
    node.restart(clean=clean)
    log = node.log(SMALL_SEGMENTS)
    assert (
        log.last_stable_offset, log.open_transactions(), log.aborted_transactions(0, log.log_end_offset)
    ) == stable  # fmt: skip
    commit(log, 0)
    assert log.last_stable_offset == min(log.open_transactions().values())


def test_producers_with_an_open_transaction_do_not_expire(node: Node) -> None:
    log = node.log()
    write(log, 1, 0)
    append(log, producer_id=2, producer_epoch=0, sequence=0)
    node.directory.maintenance(NOW + 100 * 86_400_000)
    assert list(log.producers.entries) == [1]
    commit(log, 1)


def test_the_state_of_a_producer_outlives_its_records(node: Node) -> None:
    """Retention takes the segments; the transaction is still open, and the sequence goes on."""
    config = LogConfig(segment_bytes=400, retention_bytes=400, retention_ms=-1)
    log = node.log(config)
    write(log, 1, 0)
    while len(log.segments) < 4:
        append(log, b"v" * 50)
    for job in retain(log, NOW):
        job.done(job.run())
    start = log.log_start_offset
    for clean in (True, False):
        node.restart(clean=clean)
        log = node.log(config)
        assert log.open_transactions() == {1: 0}
        assert log.last_stable_offset == log.log_start_offset >= start
    assert refusal(lambda: write(log, 1, 5)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    write(log, 1, 1)
    abort(log, 1)
    assert log.aborted_transactions(log.log_start_offset, log.log_end_offset) == [(1, 0)]
