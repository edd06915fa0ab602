"""Java's `.properties` format, as Kafka reads it: comments, escapes, continuation lines.

Files are not opened here, and the meaning of names is elsewhere: `config/loading.py` for brokers,
`raw_client/client_properties.py` for clients.
"""

from collections.abc import Iterator

from millstream.common.lazy_dataclass import dataclass


class PropertiesError(ValueError):
    """The text is not in the format. The message has the file and line."""


_BLANK = " \t\f"
_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


@dataclass(frozen=True, slots=True)
class Property:
    name: str
    value: str
    place: str
    """The file and line, for messages: `server.properties:12`."""


def parse_properties(text: str, file_name: str) -> Iterator[Property]:
    """Every name and value of the text in order, including duplicates."""
    for number, line in _logical_lines(text):
        place = f"{file_name}:{number}"
        end = _end_of_name(line)
        rest = line[end:].lstrip(_BLANK)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(_BLANK)
        yield Property(_unescaped(line[:end], place), _unescaped(rest, place), place)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Logical lines with the number of their first line: continuations joined, comments and blank lines removed."""
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
            pending = pending[:-1] or None  # a line with only a backslash
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
            raise PropertiesError(f"{place}: \\u{digits} is not a character; write \\u and four hex digits")
        parts.append(chr(int(digits, 16)))
    return "".join(parts)
