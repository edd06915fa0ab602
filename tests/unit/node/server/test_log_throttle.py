"""A flood of warnings becomes a trickle, and nothing is held back in silence."""

import logging

from millstream.node.server.limits import LogThrottle


def record(second: float) -> logging.LogRecord:
    made = logging.makeLogRecord({"msg": "request_refused", "levelno": logging.WARNING})
    made.created = second
    return made


def test_so_many_lines_pass_each_second() -> None:
    throttle = LogThrottle(per_second=3)
    assert [throttle.filter(record(10.1)) for _ in range(5)] == [True, True, True, False, False]
    following = record(11.0)
    assert throttle.filter(following)
    assert following.getMessage() == "request_refused (and 2 more lines like these before)"
    quiet = record(12.0)
    assert throttle.filter(quiet)
    assert quiet.getMessage() == "request_refused"
