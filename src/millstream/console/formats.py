"""Formats numbers, sizes, rates and times for display."""

from datetime import datetime

_BYTES = ("B", "KB", "MB", "GB", "TB", "PB")


def count(number: float) -> str:
    return f"{number:,.0f}"


def short_count(number: float) -> str:
    """For example 1.2 M for 1,234,567."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size * 10 or (letter != "k" and abs(number) >= size):
            return f"{number / size:.1f} {letter}"
    return f"{number:,.0f}"


def size(number: float) -> str:
    for unit in _BYTES:
        if abs(number) < 1000 or unit == _BYTES[-1]:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    raise AssertionError("the last unit takes all")


def rate(number: float) -> str:
    return f"{number:,.1f}/s" if 0 < number < 10 else f"{short_count(number)}/s"


def milliseconds(number: float) -> str:
    return f"{number:,.1f} ms" if number < 100 else f"{number:,.0f} ms"


def ago(milliseconds_ago: float) -> str:
    seconds = max(0, int(milliseconds_ago / 1000))
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit} ago"
    return f"{seconds} s ago"


def clock(at: float) -> str:
    """Seconds since 1970 as a local time of day."""
    return datetime.fromtimestamp(at).strftime("%H:%M:%S")


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
