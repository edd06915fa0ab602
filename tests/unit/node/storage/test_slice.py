"""Which bytes are served at once, and which are read and checked first."""

import os

import pytest

from millstream.config.topic_config import LogConfig
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.storage.log.log_reader import Slice
from millstream.node.storage.log.partition_log import PartitionLog
from tests.unit.node.storage.batches import NOW, batch
from tests.unit.node.storage.conftest import Node
from tests.unit.node.storage.test_partition_log import append, offsets

SIZE = len(batch(b"value"))


def ask(log: PartitionLog, offset: int, max_bytes: int = 1 << 20) -> Slice:
    return log.read(offset, max_bytes, up_to=log.log_end_offset, at_least_one=True)


def fill(log: PartitionLog, count: int) -> None:
    for _ in range(count):
        append(log, b"value")


def test_what_this_process_wrote_is_ready(node: Node) -> None:
    log = node.log(LogConfig(segment_bytes=100 * SIZE))
    fill(log, 250)
    assert ask(log, 249).ready
    assert ask(log, 200).ready
    sealed = ask(log, 100)
    sealed.prepare()
    assert ask(log, 100).ready, "its index is open now"


def test_what_an_earlier_process_wrote_is_checked_once(node: Node) -> None:
    fill(node.log(), 50)
    node.restart(clean=True)
    log = node.log()
    first = ask(log, 10)
    assert not first.ready
    first.prepare()
    assert offsets(first) == list(range(10, 50))
    assert ask(log, 10).ready
    assert ask(log, 20).ready
    assert not ask(log, 5).ready
    fill(log, 5)
    assert ask(log, 50).ready
    found = ask(log, 10)
    assert found.ready, "checked bytes and written bytes have grown together"
    assert offsets(found) == list(range(10, 55))


def test_cold_bytes_are_not_ready(node: Node) -> None:
    log = node.log()
    fill(log, 5)
    node.disk.cold = True
    found = ask(log, 0)
    assert not found.ready
    found.prepare()
    assert found.ready
    assert offsets(found) == [0, 1, 2, 3, 4]


def test_a_sealed_segment_that_changed_is_checked_again(node: Node) -> None:
    log = node.log(LogConfig(segment_bytes=10 * SIZE))
    fill(log, 25)
    ask(log, 1).prepare()
    assert ask(log, 1).ready
    os.utime(node.file(0), ns=(0, 12345))
    assert not ask(log, 1).ready
    ask(log, 1).prepare()
    assert ask(log, 1).ready


def test_damage_ends_the_slice_before_it(node: Node) -> None:
    log = node.log(LogConfig(segment_bytes=10 * SIZE))
    fill(log, 25)
    node.stop()
    data = bytearray(node.file(0).read_bytes())
    data[5 * SIZE - 1] ^= 1
    node.file(0).write_bytes(data)
    node.start()
    log = node.log(LogConfig(segment_bytes=10 * SIZE))
    found = ask(log, 0)
    found.prepare()
    assert offsets(found) == [0, 1, 2, 3]
    bad = ask(log, 4)
    with pytest.raises(KafkaError) as error:
        bad.prepare()
    assert error.value.code == ErrorCode.CORRUPT_MESSAGE
    after = ask(log, 5)
    after.prepare()
    assert offsets(after) == [5, 6, 7, 8, 9]


def test_catching_up_needs_no_search_for_what_comes_next(node: Node) -> None:
    config = LogConfig(segment_bytes=1000 * SIZE)
    fill(node.log(config), 900)
    node.restart(clean=True)
    log = node.log(config)
    offset, reads = 0, 0
    while offset < 900:
        found = ask(log, offset, 20 * SIZE)
        found.prepare()
        seen = offsets(found)
        assert seen == list(range(offset, offset + len(seen)))
        offset = seen[-1] + 1
        reads += 1
        assert log.segments.active.position_of(offset) is not None or offset == 900
    assert reads <= 900 // 20 * 3


def test_a_batch_larger_than_asked_for_comes_whole(node: Node) -> None:
    log = node.log()
    append(log, b"v" * 5000)
    append(log, b"v" * 5000)
    assert ask(log, 0, 100).length == len(batch(b"v" * 5000))
    assert log.read(0, 100, up_to=2, at_least_one=False).length == 0


def test_an_empty_slice_has_no_file(node: Node) -> None:
    log = node.log()
    empty = ask(log, 0)
    assert (empty.length, empty.ready, empty.read()) == (0, True, b"")
    with pytest.raises(OSError, match="no file"):
        empty.file.fileno()


def test_io_errors_are_storage_errors(node: Node) -> None:
    log = node.log(LogConfig(segment_bytes=10 * SIZE))
    fill(log, 25)
    node.restart(clean=True)
    log = node.log(LogConfig(segment_bytes=10 * SIZE))
    node.file(0).unlink()
    with pytest.raises(KafkaError) as error:
        ask(log, 3).prepare()
    assert error.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    append(log, timestamps=[NOW])
