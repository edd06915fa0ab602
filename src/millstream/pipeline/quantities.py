"""Durations, sizes and points in time as people write them."""

import re
from datetime import UTC, datetime

from millstream.pipeline.model import Duration

_DURATION_UNITS = {
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1000),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
    **dict.fromkeys(("w", "week", "weeks"), 7 * 86_400_000),
}
_SIZE_UNITS = {
    "": 1,
    "b": 1,
    **dict.fromkeys(("k", "kb", "kib"), 1 << 10),
    **dict.fromkeys(("m", "mb", "mib"), 1 << 20),
    **dict.fromkeys(("g", "gb", "gib"), 1 << 30),
}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)", re.IGNORECASE)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)


def parse_duration(text: str) -> Duration:
    """ "5s", "90 seconds", "1h 30m". Raises ValueError with what is wrong."""
    position = 0
    total = 0.0
    stripped = text.strip()
    while position < len(stripped):
        part = _PART.match(stripped, position)
        if part is None:
            raise ValueError(f"{text!r} is not a duration; write for example 500 ms, 5s, 90 seconds, 2 minutes, 1 hour")
        unit = _DURATION_UNITS.get(part[2].lower())
        if unit is None:
            raise ValueError(f"{part[2]!r} is no unit of time; use ms, seconds, minutes, hours, days or weeks")
        total += float(part[1]) * unit
        position = part.end()
    if not stripped:
        raise ValueError("a duration is missing; write for example 5s or 2 minutes")
    if total != int(total):
        raise ValueError(f"{text!r} is not a whole number of milliseconds")
    return Duration(int(total))


def parse_size(text: str) -> int:
    """ "64 MB", "1048576"; units are powers of 1024. Raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[2].lower() not in _SIZE_UNITS:
        raise ValueError(f"{text!r} is not a size; write a number of bytes, or for example 512 KB, 64 MB, 1 GB")
    size = float(match[1]) * _SIZE_UNITS[match[2].lower()]
    if size < 1:
        raise ValueError(f"{text!r} is less than a byte")
    return int(size)


def parse_timestamp_ms(text: str) -> int:
    """An ISO 8601 date or time, in UTC unless it says otherwise, as milliseconds since 1970. Raises ValueError."""
    moment = datetime.fromisoformat(text.strip())
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)
