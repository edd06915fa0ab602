"""The result of an append to a partition's log."""

from typing import NamedTuple

NO_APPEND_TIME = -1


class Appended(NamedTuple):
    """The offsets of an append. `log_append_time` is -1 unless the topic's timestamps are LogAppendTime."""

    base_offset: int
    last_offset: int
    log_append_time: int
    log_start_offset: int
    duplicate: bool
