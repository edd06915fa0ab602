"""Durations as ISO 8601 writes them (PnDTnHnMn.nS), as far as Java's Duration.parse reads them."""

import re

_PATTERN = re.compile(
    r"P(?:(?P<days>\d{1,9})D)?(?:T(?=.)(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?"
    r"(?:(?P<seconds>\d{1,12})(?:[.,](?P<fraction>\d{0,9}))?S)?)?",
    re.IGNORECASE | re.ASCII,
)
_MILLISECONDS = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1000}


def parse_duration_ms(text: str) -> int | None:
    """The duration in milliseconds; None if the text is no duration, or a negative one."""
    match = _PATTERN.fullmatch(text)
    if match is None or not any(match.group(name) for name in _MILLISECONDS):
        return None
    whole = sum(int(match.group(name) or 0) * unit for name, unit in _MILLISECONDS.items())
    return whole + int(((match.group("fraction") or "") + "000")[:3])
