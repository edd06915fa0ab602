"""Conditional append (KIP-27): a batch is refused unless the partition's end is the one that the writer expects.

The check and the append are one step of the leader, in one turn of the event loop. A batch that the log has already (a
repetition of an idempotent producer) is not refused: its first attempt met the condition. With acks=all, a leader that
was replaced cannot acknowledge, so of two writers with the same expectation at most one succeeds.

A refusal is final too. A writer whose first attempt had no response must be able to rely on the refusal of the second:
the first may still be on its way. So the refusal waits until the record at the expected offset is committed
(`refused_until`); from then on no leader can meet the condition.

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
        self.expected = expected
        self.end_offset = end_offset

    @property
    def refused_until(self) -> int:
        """The refusal is final when the partition is committed up to this offset. An offset that the partition has not
        reached can still be met: nothing is waited for; a writer must not rely on it (docs/conditional-append.md)."""
        return self.expected + 1 if 0 <= self.expected < self.end_offset else 0


def check_condition(expected: int | None, log: PartitionLog, batch: memoryview) -> None:
    """Raises UnexpectedEndError for a batch whose writer expects another end. None is no condition."""
    end_offset = log.log_end_offset
    if expected is None or expected == end_offset or _is_repetition(log, batch, expected):
        return
    raise UnexpectedEndError(expected, end_offset)


def _is_repetition(log: PartitionLog, batch: memoryview, expected: int) -> bool:
    """Whether the log has the batch, where the writer expects it: a sequence may have been used for another batch."""
    if len(batch) < HEADER_SIZE:
        return False  # the append refuses it
    header = read_header(batch)
    if header.producer_id < 0:
        return False
    last_sequence = (header.base_sequence + header.last_offset_delta) & MAX_SEQUENCE
    found = log.producers.written_before(header.producer_id, header.producer_epoch, header.base_sequence, last_sequence)
    return found is not None and found.last_offset - found.offset_delta == expected
