"""A limit on what strangers make us write: a flood of bad requests must not fill the disk with warnings about it."""

import logging

PER_SECOND = 20


class LogThrottle(logging.Filter):
    """Lets so many lines of a logger pass each second, and says later how many it held back."""

    def __init__(self, per_second: int = PER_SECOND) -> None:
        super().__init__()
        self._per_second = per_second
        self._second = 0
        self._passed = 0
        self._held_back = 0

    def filter(self, record: logging.LogRecord) -> bool:
        second = int(record.created)
        if second != self._second:
            if self._held_back:
                record.msg = f"{record.msg} (and {self._held_back} more lines like these before)"
            self._second, self._passed, self._held_back = second, 0, 0
        self._passed += 1
        if self._passed > self._per_second:
            self._held_back += 1
            return False
        return True
