"""Control batches: what a log written by Kafka's transactions leaves of its producers."""

from struct import pack

from millstream.records.batch import HEADER, HEADER_SIZE, seal

from .batches import NOW, batch, varint
from .conftest import Node
from .test_partition_log import append

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
