"""The result of an append to a partition's log."""

from typing import Final

NO_APPEND_TIME: Final = -1


class Appended:
    """The offsets of an append. `log_append_time` is -1 unless the topic's timestamps are LogAppendTime."""

    # No named tuple: see `formats/protocol/produce.py`.
    __slots__ = ("base_offset", "duplicate", "last_offset", "log_append_time", "log_start_offset")

    def __init__(
        self, base_offset: int, last_offset: int, log_append_time: int, log_start_offset: int, duplicate: bool
    ) -> None:
        self.base_offset = base_offset
        self.last_offset = last_offset
        self.log_append_time = log_append_time
        self.log_start_offset = log_start_offset
        self.duplicate = duplicate
