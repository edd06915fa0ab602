"""Java's `.properties` files, as Kafka reads them: comments, escapes, continuation lines, the last of two wins.

Only text to names and values; what the names mean is elsewhere.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from millstream.config.errors import ConfigError

_BLANK = " \t\f"
_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


@dataclass(frozen=True, slots=True)
class Property:
    name: str
    value: str
    place: str
    """Where it was written, for messages: `server.properties:12`."""


def parse_properties(text: str, file_name: str) -> Iterator[Property]:
    """Every name and value of the text in order, doubles included."""
    for number, line in _logical_lines(text):
        place = f"{file_name}:{number}"
        end = _end_of_name(line)
        rest = line[end:].lstrip(_BLANK)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(_BLANK)
        yield Property(_unescaped(line[:end], place), _unescaped(rest, place), place)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their continuations joined, comments and blank lines dropped, numbered by where they begin."""
    pending: str | None = None
    begin = 0
    for number, line in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), 1):
        line = line.lstrip(_BLANK)
        if pending is None:
            if not line or line[0] in "#!":
                continue
            pending, begin = "", number
        pending += line
        backslashes = len(pending) - len(pending.rstrip("\\"))
        if backslashes % 2:
            pending = pending[:-1] or None  # a backslash alone continues nothing
            continue
        yield begin, pending
        pending = None
    if pending:
        yield begin, pending


def _end_of_name(line: str) -> int:
    escaped = False
    for index, character in enumerate(line):
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character in "=:" or character in _BLANK:
            return index
    return len(line)


def _unescaped(text: str, place: str) -> str:
    if "\\" not in text:
        return text
    parts: list[str] = []
    characters = iter(text)
    for character in characters:
        if character != "\\":
            parts.append(character)
            continue
        escaped = next(characters, "")
        if escaped != "u":
            parts.append(_ESCAPES.get(escaped, escaped))
            continue
        digits = "".join(next(characters, "") for _ in range(4))
        if len(digits) != 4 or not set(digits) <= _HEX_DIGITS:
            raise ConfigError(f"{place}: \\u{digits} is not a character; write \\u and four hex digits")
        parts.append(chr(int(digits, 16)))
    return "".join(parts)
