"""How one partition of a mirror topic follows the source: what it requests, and what it does with each response.

It appends only at its log's end, and only what the source has committed, so its log is a prefix of the source's. Its
request has the epoch of its last record. Where the source has lost records (an unclean election), it responds with the
offset at which both logs agree, and the mirror truncates there, as a follower does (KIP-595).

The records keep their leader epochs. So before a batch with a later epoch than this cluster has for the partition is
appended, the controller raises the epoch here (`Step.RAISE_EPOCH`); the same for producer ids that this cluster could
give to a producer too.
"""

from enum import Enum
from typing import NamedTuple, Protocol

from millstream.common.lazy_dataclass import dataclass
from millstream.formats.model.errors import ErrorCode
from millstream.formats.records.batch import HEADER, HEADER_SIZE, LOG_OVERHEAD, Bytes
from millstream.node.metadata.mirrors import MAX_PRODUCER_IDS

NO_EPOCH = -1
NO_OFFSET = -1
_MAGIC = 2


class MirroredLog(Protocol):
    """The log, as a mirror uses it."""

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def latest_epoch(self) -> int: ...

    def end_offset_of_epoch(self, epoch: int) -> tuple[int, int]: ...


class Position(NamedTuple):
    """The position in a request to the source."""

    offset: int
    last_epoch: int
    log_start: int


class Step(Enum):
    """What the fetcher does with a response."""

    APPEND = "append the batches"
    WAIT = "nothing was sent: fetch again"
    TRUNCATE = "cut the log to `offset`, then fetch again"
    RAISE_EPOCH = "the controller raises the leader epoch to `number`; then fetch again"
    RAISE_PRODUCER_IDS = "the controller raises the next producer id above `number`; then fetch again"
    FIND_RANGE = "get the range of the source's log, then call `source_range`"
    REFRESH = "get the source's metadata, then fetch again after a pause"
    RESTART = "begin the log again at `offset`"
    REFUSE = "the batches cannot be used: fetch again after a pause"


@dataclass(frozen=True, slots=True)
class Decision:
    step: Step
    offset: int = NO_OFFSET
    number: int = -1
    whole_bytes: int = 0
    """The length of the whole batches of a response: the last one may be cut short."""
    reason: str = ""


def position(log: MirroredLog) -> Position:
    return Position(log.log_end_offset, log.latest_epoch, log.log_start_offset)


def is_current(log: MirroredLog, sent: Position) -> bool:
    """Whether the response to a request may be used: the log is where it was."""
    return sent.offset == log.log_end_offset and sent.last_epoch == log.latest_epoch


def diverged(log: MirroredLog, epoch: int, end_offset: int) -> Decision:
    """The source's log ends `epoch` at `end_offset`, and this one does not."""
    own_epoch, own_end = log.end_offset_of_epoch(epoch)
    if own_end == NO_OFFSET or own_epoch == NO_EPOCH:
        cut = end_offset
    else:
        cut = own_end if own_epoch != epoch else min(own_end, end_offset)
    cut = min(cut, log.log_end_offset)
    if cut < log.log_start_offset:
        return Decision(Step.RESTART, offset=cut, reason="the source has other records from before this log's start on")
    return Decision(Step.TRUNCATE, offset=cut, reason="the source lost records in an unclean election, or has others")


def refused(error: int) -> Decision:
    """The source responded with an error."""
    if error == ErrorCode.OFFSET_OUT_OF_RANGE:
        return Decision(Step.FIND_RANGE)
    try:
        name = ErrorCode(error).name
    except ValueError:
        name = f"error {error}"
    return Decision(Step.REFRESH, reason=f"the source responded with {name}")


def source_range(log: MirroredLog, start: int, end: int) -> Decision:
    """The range of the source's log, after OFFSET_OUT_OF_RANGE."""
    if end < log.log_end_offset:
        if end < log.log_start_offset:
            return Decision(Step.RESTART, offset=start, reason="the source lost all records that are here")
        return Decision(Step.TRUNCATE, offset=end, reason="the source lost records in an unclean election")
    if start > log.log_end_offset:
        return Decision(Step.RESTART, offset=start, reason="the source has removed records that were not mirrored yet")
    # The offset is there, but the source does not know the epoch of the record before it: such records are cut, epoch
    # by epoch, until the source knows one.
    epoch = log.latest_epoch
    if epoch == NO_EPOCH:
        return Decision(Step.WAIT)
    _, begin = log.end_offset_of_epoch(epoch - 1) if epoch > 0 else (NO_EPOCH, NO_OFFSET)
    return Decision(
        Step.TRUNCATE,
        offset=max(begin, log.log_start_offset),
        reason=f"the source does not know leader epoch {epoch} of the last records here",
    )


def received(records: Bytes, log: MirroredLog, leader_epoch: int, next_producer_id: int) -> Decision:
    """Batches of the source, for the end of the log. Checksums are checked when they are appended."""
    place, total = 0, len(records)
    end_offset = log.log_end_offset
    greatest_id = -1
    while place + HEADER_SIZE <= total:
        header = HEADER.unpack_from(records, place)
        base_offset, length, epoch, magic = header[0], header[1], header[2], header[3]
        end = place + LOG_OVERHEAD + length
        if end > total or end <= place:
            break
        if magic != _MAGIC:
            return Decision(
                Step.REFUSE,
                reason=f"the source sent a batch of the old format {magic} at offset {base_offset}: only version 2 "
                "(Kafka 0.11 and later) can be mirrored; copy this topic with MirrorMaker 2",
            )
        if place == 0 and base_offset < end_offset and log.log_start_offset < end_offset:
            return Decision(
                Step.TRUNCATE, offset=max(base_offset, log.log_start_offset), reason="the log ends within a batch"
            )
        if epoch > leader_epoch:
            return Decision(Step.RAISE_EPOCH, number=epoch)
        greatest_id = max(greatest_id, header[9])
        place = end
    if greatest_id >= next_producer_id:
        if greatest_id > MAX_PRODUCER_IDS:
            return Decision(
                Step.REFUSE,
                reason=f"the source sent producer id {greatest_id}: no cluster gives ids above {MAX_PRODUCER_IDS}",
            )
        return Decision(Step.RAISE_PRODUCER_IDS, number=greatest_id)
    return Decision(Step.APPEND if place else Step.WAIT, whole_bytes=place)
