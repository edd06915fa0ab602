"""Conditional append (KIP-27): a batch is refused unless the partition's end is the one that the writer expects.

The check and the append are one step of the leader, in one turn of the event loop. A batch that the log has already (a
repetition of an idempotent producer) is not refused: its first attempt met the condition. With acks=all, a leader that
was replaced cannot acknowledge, so of two writers with the same expectation at most one succeeds.

The end of a partition counts, not the last offset of a key: the log has no index of keys (docs/adr/0035).
"""

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.records.batch import HEADER_SIZE, MAX_SEQUENCE, read_header
from millstream.node.storage.log.partition_log import PartitionLog


class UnexpectedEndError(KafkaError):
    """The partition's end is not the expected one."""

    def __init__(self, expected: int, end_offset: int) -> None:
        super().__init__(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"the end of the partition is {end_offset}, not {expected}: read the records before it, and decide again",
        )
        self.end_offset = end_offset


def check_condition(expected: int | None, log: PartitionLog, batch: memoryview) -> None:
    """Raises UnexpectedEndError for a batch whose writer expects another end. None is no condition."""
    end_offset = log.log_end_offset
    if expected is None or expected == end_offset or _is_repetition(log, batch):
        return
    raise UnexpectedEndError(expected, end_offset)


def _is_repetition(log: PartitionLog, batch: memoryview) -> bool:
    if len(batch) < HEADER_SIZE:
        return False  # the append refuses it
    header = read_header(batch)
    if header.producer_id < 0:
        return False
    last_sequence = (header.base_sequence + header.last_offset_delta) & MAX_SEQUENCE
    found = log.producers.written_before(header.producer_id, header.producer_epoch, header.base_sequence, last_sequence)
    return found is not None
