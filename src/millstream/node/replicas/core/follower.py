"""The follower of one partition: where it fetches next, and how it handles each response.

It appends only at its log's end, so its log is always a prefix of some leader's log. Where it differs from its leader,
it first truncates to the last offset at which both agree (KIP-595's truncation on fetch). Its high watermark is never
ahead of its log, nor of the one that a leader sent.

A response to a request of an earlier leadership is dropped: a `FollowerPosition` has the leader epoch of the request.

In other modules: the connection to the leader, sessions, throttling (`fetcher`), and checksums (the log).
"""

from enum import Enum
from typing import NamedTuple, Protocol

from millstream.formats.model.errors import ErrorCode

NO_EPOCH = -1
NO_OFFSET = -1


class FollowedLog(Protocol):
    """The log, as a follower uses it."""

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
        """Removes everything, and continues at an offset that the log has not reached."""
        ...


class FollowerPosition(NamedTuple):
    """The position in a request to the leader."""

    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    log_start_offset: int


class Reaction(Enum):
    """What the fetcher does after a response."""

    CONTINUE = "fetch on"
    BACK_OFF = "fetch on after a pause"
    REQUEST_RANGE = "get the start and end of the leader's log, then call `leader_range`"
    START_FROM_TIER = "restart the log where the tier ends"


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

    def is_current(self, sent: FollowerPosition) -> bool:
        """Whether the response to a request may be used: the log was not truncated or appended to meanwhile."""
        log = self._log
        return (
            sent.leader_epoch == self.leader_epoch
            and sent.offset == log.log_end_offset
            and sent.last_fetched_epoch == log.latest_epoch
        )

    # Responses

    def refused(self, error: int) -> Reaction:
        """The leader responded with an error. Most errors end when both nodes have the same metadata."""
        if error == ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE:
            return Reaction.START_FROM_TIER
        return Reaction.REQUEST_RANGE if error == ErrorCode.OFFSET_OUT_OF_RANGE else Reaction.BACK_OFF

    def diverged(self, epoch: int, end_offset: int) -> int:
        """The leader's log ends `epoch` at `end_offset`, and this one does not: truncate to where both may agree.

        Returns the new end of the log. If this log does not have that epoch, the next fetch may find another
        difference, in an older epoch, and so on down to the offset where the logs diverge.
        """
        log = self._log
        if end_offset == NO_OFFSET:
            # The leader has no epoch of this log. Only committed records are sure.
            return self._truncate_to(self.high_watermark)
        own_epoch, own_end = log.end_offset_of_epoch(epoch)
        if own_end == NO_OFFSET:
            return self._truncate_to(end_offset)
        return self._truncate_to(own_end if own_epoch != epoch else min(own_end, end_offset))

    def leader_range(self, start: int, end: int, now_ms: int) -> int:
        """The range of the leader's log, after OFFSET_OUT_OF_RANGE; returns the new end of this log."""
        log = self._log
        if end < log.log_end_offset:
            # The leader was elected without the last records of this log: they were never committed, or an unclean
            # election lost them.
            return self._truncate_to(end)
        if start > log.log_end_offset:
            log.restart_at(start, now_ms)
            self.high_watermark = start
        return log.log_end_offset

    def restarted(self) -> None:
        """The log was restarted where the tier ends: everything before is committed."""
        self.high_watermark = self._log.log_end_offset

    def advanced(self, leader_high_watermark: int, leader_log_start: int) -> bool:
        """After the records of a response were appended; whether the high watermark moved.

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
