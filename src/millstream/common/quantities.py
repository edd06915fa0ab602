"""Durations and sizes as people write them: 90s, 1h 30m, PT5M; 1048576, 64 MB.

Every setting, option, URL and file of Millstream with a duration or a size is parsed here. Callers add the name of the
option to the error.
"""

import re
from datetime import timedelta
from decimal import Decimal

_MICROSECONDS = {
    **dict.fromkeys(("us", "microsecond", "microseconds"), 1),
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds"), 1_000),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1_000_000),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60_000_000),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3_600_000_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000_000),
    **dict.fromkeys(("w", "week", "weeks"), 7 * 86_400_000_000),
}
_BYTES = {
    **dict.fromkeys(("", "b"), 1),
    **dict.fromkeys(("k", "kb", "kib"), 1 << 10),
    **dict.fromkeys(("m", "mb", "mib"), 1 << 20),
    **dict.fromkeys(("g", "gb", "gib"), 1 << 30),
}
_NUMBER = r"\d{1,18}(?:\.\d{1,9})?"
_PART = re.compile(rf"\s*({_NUMBER})\s*([a-z]+)", re.IGNORECASE | re.ASCII)
_SIZE = re.compile(rf"({_NUMBER})\s*([a-z]*)", re.IGNORECASE | re.ASCII)
_ISO = re.compile(
    r"P(?:(?P<days>\d{1,9})D)?(?:T(?=.)(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?"
    r"(?:(?P<seconds>\d{1,12})(?:[.,](?P<fraction>\d{0,9}))?S)?)?",
    re.IGNORECASE | re.ASCII,
)
_ISO_MS = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1000}


def parse_duration(text: str, *, unit: str = "") -> timedelta:
    """A duration: one or more numbers with units ("90 seconds", "1h 30m"), or ISO 8601 ("PT5M").

    `unit` is the unit of a number that has none; without it, such a number is refused. Raises ValueError.
    """
    try:
        return timedelta(microseconds=_microseconds(text.strip(), unit))
    except OverflowError:
        raise ValueError(f"{text.strip()[:100]!r} is too long a duration") from None


def parse_duration_ms(text: str) -> int:
    """The same in milliseconds. Raises ValueError also for a fraction of a millisecond."""
    whole, rest = divmod(parse_duration(text), timedelta(milliseconds=1))
    if rest:
        raise ValueError(f"{text.strip()[:100]!r} is not a whole number of milliseconds")
    return whole


def parse_iso_duration_ms(text: str) -> int | None:
    """An ISO 8601 duration (PnDTnHnMn.nS) in milliseconds, as far as Java's Duration.parse reads it.

    None for any other text, and for negative durations.
    """
    match = _ISO.fullmatch(text)
    if match is None or not any(match.group(name) for name in _ISO_MS):
        return None
    whole = sum(int(match.group(name) or 0) * unit for name, unit in _ISO_MS.items())
    return whole + int(((match.group("fraction") or "") + "000")[:3])


def parse_size(text: str) -> int:
    """A size in bytes: a number, or one with a unit ("512 KB", "64m", "1.5 GB"). Units are powers of 1024.

    Raises ValueError.
    """
    match = _SIZE.fullmatch(text.strip())
    unit = _BYTES.get(match[2].lower()) if match is not None else None
    if match is None or unit is None:
        raise ValueError(
            f"{text.strip()[:100]!r} is not a size: write a number of bytes, or for example 512 KB, 64 MB or 1 GB"
        )
    size = int(Decimal(match[1]) * unit)
    if size < 1:
        raise ValueError(f"{text.strip()[:100]!r} is less than a byte")
    return size


def _microseconds(text: str, unit: str) -> int:
    if not text:
        raise ValueError("the duration is empty: write for example 5s or 2 minutes")
    iso_ms = parse_iso_duration_ms(text)
    if iso_ms is not None:
        return iso_ms * 1000
    if unit and text.isascii() and text.isdigit():
        text += unit
    position, total = 0, Decimal(0)
    while position < len(text):
        part = _PART.match(text, position)
        if part is None:
            raise ValueError(
                f"{text[:100]!r} is not a duration: write for example 500ms, 5s, 90 seconds, 2 minutes, 1 hour or PT5M"
            )
        scale = _MICROSECONDS.get(part[2].lower())
        if scale is None:
            raise ValueError(f"{part[2]!r} is not a unit of time: use ms, seconds, minutes, hours, days or weeks")
        total += Decimal(part[1]) * scale
        position = part.end()
    if total != int(total):
        raise ValueError(f"{text[:100]!r} is not a whole number of microseconds")
    return int(total)
