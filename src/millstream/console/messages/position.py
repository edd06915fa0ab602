"""Where to begin reading, as a person writes it: an offset, a time, or an age."""

import re
from datetime import UTC, datetime, timedelta, tzinfo

_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_HELP = "write a time such as 2026-01-31 12:00, a time of day such as 12:00, @milliseconds, or an age such as 5m, 2h"


class PositionError(ValueError):
    """The text is no position; it says how one is written."""


def parse_offset(text: str) -> int:
    digits = text.strip().replace(",", "").replace("_", "")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise PositionError(f"{text.strip()[:40]!r} is no offset: write a whole number from 0 on")
    return int(digits)


def parse_moment(text: str, zone: tzinfo, now: datetime) -> int:
    """Milliseconds since 1970. Times without a zone are in the reader's; `now` is what ages count from."""
    text = text.strip()
    age = re.fullmatch(r"(\d{1,9})\s*(ms|s|m|h|d)(?:\s+ago)?", text)
    try:
        if age:
            return _milliseconds(now - timedelta(**{_UNITS[age[2]]: int(age[1])}))
        if re.fullmatch(r"@\d{1,15}", text):
            return int(text[1:])
        if re.fullmatch(r"\d{1,2}:\d{2}(:\d{2})?", text):
            hour, minute, second = ([int(part) for part in text.split(":")] + [0])[:3]
            today = now.astimezone(zone).replace(hour=hour, minute=minute, second=second, microsecond=0)
            return _milliseconds(today if today <= now else today - timedelta(days=1))
        moment = datetime.fromisoformat(text)
        return _milliseconds(moment if moment.tzinfo else moment.replace(tzinfo=zone))
    except (ValueError, OverflowError):
        raise PositionError(f"{text[:40]!r} is no time: {_HELP}") from None


def shown_moment(timestamp_ms: int, zone: tzinfo) -> str:
    """A record's time to the millisecond, in the reader's zone; nothing if the record has none."""
    if timestamp_ms < 0:
        return "–"
    try:
        moment = (_EPOCH + timedelta(milliseconds=timestamp_ms)).astimezone(zone)
    except OverflowError:
        return f"@{timestamp_ms}"
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03d}"


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _milliseconds(moment: datetime) -> int:
    return max(0, (moment.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1))
