import pytest

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.records.batch import MAX_SEQUENCE
from millstream.node.storage.log.producer_state import ProducerState
from tests.unit.node.storage.batches import NOW, batch
from tests.unit.node.storage.conftest import Node
from tests.unit.node.storage.test_partition_log import append, read_all

PRODUCER = 77


class Sequenced:
    """A partition's memory of one producer, fed as the log feeds it."""

    def __init__(self) -> None:
        self.state = ProducerState()
        self.end = 0

    def send(self, epoch: int, first: int, count: int = 1) -> int | ErrorCode:
        """The base offset, or the error."""
        try:
            written = self.state.check(PRODUCER, epoch, first, (first + count - 1) & MAX_SEQUENCE)
        except KafkaError as error:
            return error.code
        if written is not None:
            return written.last_offset - written.offset_delta
        base = self.end
        self.end += count
        self.state.append(PRODUCER, epoch, first, count - 1, self.end - 1, NOW, False)
        return base


def test_sequences_are_appended_repeated_or_out_of_order() -> None:
    producer = Sequenced()
    assert producer.send(0, 0, 3) == 0
    assert producer.send(0, 3, 2) == 3
    assert producer.send(0, 0, 3) == 0, "a repetition has its first response"
    assert producer.send(0, 3, 2) == 3
    assert producer.send(0, 3, 3) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "not the same batch"
    assert producer.send(0, 6) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.send(0, 5) == 5


def test_five_batches_are_remembered() -> None:
    producer = Sequenced()
    for sequence in range(7):
        assert producer.send(0, sequence) == sequence
    assert [producer.send(0, sequence) for sequence in range(2, 7)] == [2, 3, 4, 5, 6]
    assert producer.send(0, 1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_new_producer_epoch_fences_the_old_one() -> None:
    producer = Sequenced()
    producer.send(3, 0)
    assert producer.send(2, 0) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.send(4, 5) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "a new epoch begins at 0"
    assert producer.send(4, 0) == 1
    assert producer.send(3, 1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.send(4, 1) == 2


def test_unknown_producer_may_begin_anywhere() -> None:
    producer = Sequenced()
    assert producer.send(0, 1234) == 0
    assert producer.send(0, 1235) == 1


def test_sequences_wrap_around_after_the_greatest_integer() -> None:
    producer = Sequenced()
    assert producer.send(0, MAX_SEQUENCE - 1, 4) == 0
    assert producer.send(0, 2, 1) == 4
    assert producer.send(0, MAX_SEQUENCE - 1, 4) == 0
    assert producer.send(0, 4) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    producer = Sequenced()
    assert producer.send(0, MAX_SEQUENCE, 1) == 0
    assert producer.send(0, 0, 1) == 1


def test_expiry_spares_open_transactions() -> None:
    state = ProducerState()
    state.append(1, 0, 0, 0, 0, NOW, False)
    state.append(2, 0, 0, 0, 1, NOW, True)
    state.append(3, 0, 0, 0, 2, NOW + 500, False)
    assert state.expire(NOW + 1000, 1000) == 1
    assert set(state.entries) == {2, 3}
    state.end_transaction(2, 1, 0, NOW, 9, committed=True)
    assert state.entries[2].epoch == 1
    assert state.check(2, 1, 0, 0) is None
    assert state.expire(NOW + 1000, 1000) == 1


def test_a_repetition_gets_the_first_offsets_from_the_log(node: Node) -> None:
    log = node.log()
    for sequence in (0, 2):
        log.append(batch(b"a", b"b", producer_id=5, producer_epoch=0, sequence=sequence), leader_epoch=0, now_ms=NOW)
    size = log.size_bytes
    again = log.append(batch(b"a", b"b", producer_id=5, producer_epoch=0, sequence=0), leader_epoch=0, now_ms=NOW)
    assert (again.base_offset, again.last_offset, again.log_start_offset) == (0, 1, 0)
    assert (again.log_append_time, again.duplicate) == (-1, True)
    assert log.size_bytes == size
    with pytest.raises(KafkaError):
        append(log, b"x", producer_id=5, producer_epoch=0, sequence=9)
    assert log.log_end_offset == 4
    assert append(log, b"x", producer_id=5, producer_epoch=0, sequence=4) == 4
    assert read_all(log) == [0, 2, 4]


def test_a_failed_write_leaves_the_sequence_alone(node: Node) -> None:
    log = node.log()
    append(log, producer_id=5, producer_epoch=0, sequence=0)
    node.disk.room = 10
    with pytest.raises(KafkaError):
        append(log, producer_id=5, producer_epoch=0, sequence=1)
    node.disk.room = None
    assert append(log, producer_id=5, producer_epoch=0, sequence=1) == 1


def test_truncation_takes_the_producer_back(node: Node) -> None:
    log = node.log()
    for sequence in range(5):
        append(log, producer_id=5, producer_epoch=0, sequence=sequence)
    log.truncate_to(3)
    assert append(log, producer_id=5, producer_epoch=0, sequence=3) == 3


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_remembers_the_last_batch(node: Node, clean: bool) -> None:
    log = node.log()
    for sequence in range(5):
        append(log, producer_id=5, producer_epoch=0, sequence=sequence)
    node.restart(clean=clean)
    log = node.log()
    assert append(log, producer_id=5, producer_epoch=0, sequence=4) == 4
    assert log.log_end_offset == 5
    assert append(log, producer_id=5, producer_epoch=0, sequence=5) == 5
