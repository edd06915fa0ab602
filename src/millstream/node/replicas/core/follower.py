"""A follower of one partition: where it fetches next, and what it does with each answer.

Promises: what it appends follows on what it has, so its log is always a prefix of some leader's; where it differs from
its leader, it first goes back to the last offset at which both agree (KIP-595's truncation on fetch);
its high watermark is never ahead of its log, nor of what a leader told it.

An answer to a question of an earlier leadership is dropped: a `FollowerPosition` says for which one it was asked.

Deliberately elsewhere: the connection to the leader, sessions, throttling, checking checksums (the log does).
"""

from enum import Enum
from typing import NamedTuple, Protocol

from millstream.formats.model.errors import ErrorCode

NO_EPOCH = -1
NO_OFFSET = -1


class FollowedLog(Protocol):
    """The log as its follower uses it."""

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def latest_epoch(self) -> int:
        """The leader epoch of the last record, or NO_EPOCH."""
        ...

    def end_offset_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The greatest epoch here that is not after `epoch`, and where it ends; NO_EPOCH and NO_OFFSET if unknown."""
        ...

    def truncate_to(self, offset: int) -> int: ...

    def restart_at(self, offset: int, now_ms: int) -> None:
        """Drop everything, and go on at an offset that the log has not reached."""
        ...


class FollowerPosition(NamedTuple):
    """What to ask the leader for."""

    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    log_start_offset: int


class Reaction(Enum):
    """What the fetcher does after an answer."""

    CONTINUE = "fetch on"
    BACK_OFF = "fetch on after a pause"
    ASK_RANGE = "ask the leader where its log begins and ends, then tell `leader_range`"


class PartitionFollower:
    __slots__ = ("_log", "high_watermark", "leader_epoch", "leader_id")

    def __init__(self, log: FollowedLog, leader_id: int, leader_epoch: int, high_watermark: int) -> None:
        self._log = log
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.high_watermark = min(high_watermark, log.log_end_offset)

    def position(self) -> FollowerPosition:
        log = self._log
        return FollowerPosition(self.leader_epoch, log.log_end_offset, log.latest_epoch, log.log_start_offset)

    def is_current(self, asked: FollowerPosition) -> bool:
        """Whether an answer to what was asked may still be used: nothing was cut off or appended meanwhile."""
        log = self._log
        return (
            asked.leader_epoch == self.leader_epoch
            and asked.offset == log.log_end_offset
            and asked.last_fetched_epoch == log.latest_epoch
        )

    # Answers, in the order in which a fetch brings them

    def refused(self, error: int) -> Reaction:
        """The leader gave an error. Most of them pass when one of us has heard of the metadata that the other has."""
        return Reaction.ASK_RANGE if error == ErrorCode.OFFSET_OUT_OF_RANGE else Reaction.BACK_OFF

    def diverged(self, epoch: int, end_offset: int) -> int:
        """The leader's log ends `epoch` at `end_offset` and ours does not agree: cut back to where both may.

        Returns where the log ends now. If ours knew nothing of that epoch, the next fetch may find another difference,
        in an older epoch, and so on down to the point where the logs parted.
        """
        log = self._log
        if end_offset == NO_OFFSET:
            # The leader does not know any epoch of ours. What is committed is all we can be sure of.
            return self._truncate_to(self.high_watermark)
        own_epoch, own_end = log.end_offset_of_epoch(epoch)
        if own_end == NO_OFFSET:
            return self._truncate_to(end_offset)
        return self._truncate_to(own_end if own_epoch != epoch else min(own_end, end_offset))

    def leader_range(self, start: int, end: int, now_ms: int) -> int:
        """What the leader's log holds, after it had nothing at our offset; returns where ours ends now."""
        log = self._log
        if end < log.log_end_offset:
            # It has less than we have, so it was elected without our last records: they were never committed, or an
            # unclean election gave them up.
            return self._truncate_to(end)
        if start > log.log_end_offset:
            log.restart_at(start, now_ms)
            self.high_watermark = start
        return log.log_end_offset

    def advanced(self, leader_high_watermark: int, leader_log_start: int) -> bool:
        """After the records of an answer were appended; says whether our high watermark moved.

        The caller moves the log's start to `min(leader_log_start, high_watermark)`.
        """
        committed = min(leader_high_watermark, self._log.log_end_offset)
        if committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        return True

    def _truncate_to(self, offset: int) -> int:
        end = self._log.truncate_to(min(offset, self._log.log_end_offset))
        self.high_watermark = min(self.high_watermark, end)
        return end
