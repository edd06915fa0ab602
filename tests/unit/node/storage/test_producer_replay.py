"""What a log tells of its producers when it is read again: control batches, and the batches before the last."""

from struct import pack

import pytest

import millstream.node.storage.log.producer_snapshots as producer_replay
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.records.batch import HEADER, HEADER_SIZE, seal
from tests.unit.node.storage.batches import NOW, batch, varint
from tests.unit.node.storage.conftest import Node
from tests.unit.node.storage.faulty_disk import FaultyDisk
from tests.unit.node.storage.test_partition_log import append

TRANSACTIONAL, CONTROL = 0x10, 0x20


def marker(producer_id: int, epoch: int, coordinator_epoch: int, base_offset: int, kind: int = 1) -> bytearray:
    key, value = pack(">hh", 0, kind), pack(">hi", 0, coordinator_epoch)
    body = b"\x00" + varint(0) + varint(0) + varint(len(key)) + key + varint(len(value)) + value + varint(0)
    data = bytearray(HEADER_SIZE) + varint(len(body)) + body
    attributes = TRANSACTIONAL | CONTROL
    HEADER.pack_into(data, 0, base_offset, len(data) - 12, 0, 2, 0, attributes, 0, NOW, NOW, producer_id, epoch, -1, 1)
    seal(data, 0, len(data))
    return data


def test_a_marker_ends_the_transaction(node: Node) -> None:
    log = node.log()
    append(log, producer_id=8, producer_epoch=0, sequence=0, attributes=TRANSACTIONAL)
    append(log, producer_id=8, producer_epoch=0, sequence=1, attributes=TRANSACTIONAL)
    entry = log.producers.entries[8]
    assert entry.transaction_start == 0
    log.append_as_follower(marker(8, 1, 5, 2), now_ms=NOW)
    assert (entry.transaction_start, entry.coordinator_epoch, entry.epoch) == (-1, 5, 1)
    assert entry.last_batch is None
    for clean in (False, True):
        node.restart(clean=clean)
        found = node.log().producers.entries[8]
        assert (found.transaction_start, found.coordinator_epoch, found.epoch) == (-1, 5, 1)
    assert append(node.log(), producer_id=8, producer_epoch=1, sequence=0) == 3


def test_an_open_transaction_is_remembered(node: Node) -> None:
    log = node.log()
    append(log)
    append(log, producer_id=8, producer_epoch=0, sequence=0, attributes=TRANSACTIONAL)
    node.restart(clean=False)
    assert node.log().producers.entries[8].transaction_start == 1


def test_other_control_batches_are_passed_over(node: Node) -> None:
    log = node.log()
    strange = batch(b"", producer_id=9, producer_epoch=0, sequence=0, attributes=CONTROL, base_offset=0, leader_epoch=0)
    log.append_as_follower(strange, now_ms=NOW)
    assert 9 not in log.producers.entries


def test_the_last_batches_of_a_producer_are_known_after_any_start(node: Node) -> None:
    """A snapshot has only the last; the others are in the log, and their repetition is one."""
    log = node.log()
    for sequence in range(8):
        append(log, producer_id=5, producer_epoch=0, sequence=sequence)
        append(log, producer_id=6, producer_epoch=1, sequence=sequence)
    known = log.producers.entries[5].batches
    for clean in (True, False, True):
        node.restart(clean=clean)
        log = node.log()
        assert log.producers.entries[5].batches == known
        assert append(log, producer_id=5, producer_epoch=0, sequence=3) == 6
        assert append(log, producer_id=6, producer_epoch=1, sequence=7) == 15
    assert append(log, producer_id=5, producer_epoch=0, sequence=8) == 16


def test_large_batches_are_remembered_as_small_ones_are(node: Node) -> None:
    log, size = node.log(), 3000
    for number in range(8):
        append(log, *[b"v"] * size, producer_id=5, producer_epoch=0, sequence=number * size)
    known = log.producers.entries[5].batches
    node.restart(clean=True)
    assert node.log().producers.entries[5].batches == known


def test_masses_of_small_batches_before_large_ones_are_not_walked_through(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_replay, "_NEARBY_OFFSETS", 20)
    monkeypatch.setattr(producer_replay, "_MOST_BATCHES", 30)
    log = node.log()
    for _ in range(100):
        append(log)
    for number in range(8):
        append(log, *[b"v"] * 10, producer_id=5, producer_epoch=0, sequence=number * 10)
    known = log.producers.entries[5].batches
    node.restart(clean=True)
    assert node.log().producers.entries[5].batches == known[-2:], "those within the first 20 offsets"


def test_batches_of_an_earlier_epoch_stay_forgotten(node: Node) -> None:
    log = node.log()
    append(log, producer_id=5, producer_epoch=0, sequence=0)
    append(log, producer_id=5, producer_epoch=1, sequence=0)
    node.restart(clean=True)
    assert len(node.log().producers.entries[5].batches) == 1


def test_earlier_batches_are_found_over_the_border_of_segments(node: Node) -> None:
    log = node.log()
    for sequence in range(6):
        append(log, producer_id=5, producer_epoch=0, sequence=sequence)
        if sequence == 3:
            log.roll(NOW)
    known = log.producers.entries[5].batches
    node.restart(clean=True)
    assert node.log().producers.entries[5].batches == known


def test_what_follows_a_batch_that_found_no_room_is_refused_for_the_same_reason(node: Node, disk: FaultyDisk) -> None:
    """Out of order it is as well, but told so a producer would begin a new epoch and repeat what is there already."""
    log = node.log()
    append(log, producer_id=5, producer_epoch=0, sequence=0)
    disk.room = 0
    for sequence in (1, 2):
        with pytest.raises(KafkaError) as refused:
            append(log, producer_id=5, producer_epoch=0, sequence=sequence)
        assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    disk.room = None
    with pytest.raises(KafkaError) as refused:
        append(log, producer_id=5, producer_epoch=0, sequence=2)
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert append(log, producer_id=5, producer_epoch=0, sequence=1) == 1
    with pytest.raises(KafkaError) as refused:
        append(log, producer_id=5, producer_epoch=0, sequence=3)
    assert refused.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
