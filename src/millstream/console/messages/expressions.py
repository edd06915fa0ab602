"""Filters of records as expressions in CEL (https://cel.dev): `value.total > 100 && key.startsWith("c-")`.

Names: `value` and `key` (decoded), `headers` (a map of texts), `topic`, `partition`, `offset`, `time`. A mistake in
the expression is an error before anything is read: the syntax, and names that do not exist. A record without the
field does not match. A record of other types does not match either, and is counted with its reason.

CEL has no loops but over lists and maps. Expressions that go through lists in each other are limited, by the size of
the lists of each record: an evaluation cannot be interrupted.
"""

import re
import threading
from datetime import UTC, datetime
from typing import Any

import cel

from millstream.console.messages.reading import FoundRecord
from millstream.registry.decoding import Decoded

NAMES = ("value", "key", "headers", "topic", "partition", "offset", "time")
_LONGEST = 500
_MAX_STEPS = 1_000_000
_MAX_GROWTH = 1_000
_LOOP = r"(?:all|exists|exists_one|existsOne|map|filter)"
_MACRO = re.compile(rf"""\.\s*{_LOOP}\s*\(|(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|[()]""")
_LOOP_WORD = re.compile(rf"\b{_LOOP}\b")
_HARD_TO_READ = re.compile(r"""'''|\"\"\"|\\|//""")
"""Texts in three quotes, escapes and comments can look like the end of a text to `_MACRO`."""
_LOOP_NAME = re.compile(rf"\.\s*{_LOOP}\s*\(\s*(\w+)\s*,")
_POSITION = re.compile(r"<input>:1:(\d+): (.*)")
_EXAMPLES = "for example value.total > 100, value.name.contains('smith'), key == 'a', partition == 0"


class FilterError(ValueError):
    """The text is not an expression. The message says what to write."""


class Expression:
    """An expression that was checked. Thread safe."""

    def __init__(self, text: str) -> None:
        if len(text) > _LONGEST:
            raise FilterError(f"the filter has {len(text)} characters; the maximum is {_LONGEST}")
        try:
            self._program = cel.compile(text)
        except ValueError as error:
            raise FilterError(_syntax(text, str(error))) from None
        bound = {found[1] for found in _LOOP_NAME.finditer(text)}
        unknown = [name for name in self._program.variables() if name not in NAMES and name not in bound]
        if unknown:
            name = unknown[0]
            raise FilterError(
                f"{name!r} is not defined: write value.{name} for a field of the value, or key.{name}. "
                f"There are {', '.join(NAMES)}"
            )
        self._depth = _depth(text)
        self._own_length = text.count(",") + 1
        """No list or map that is written in the expression is longer."""
        loops = len(_LOOP_WORD.findall(text)) or 1
        self._growth = (text.count("+") / loops + 1) ** loops
        """How many times longer than all of its parts a list or text can become: `.map(x, x + x).map(x, x + x)`."""
        if self._growth > _MAX_GROWTH:
            raise FilterError("the filter has too many + in loops (map, filter, all, exists): write it with fewer")
        self._lock = threading.Lock()
        self.misfits = 0
        """Records whose types do not fit the expression."""
        self.reason = ""
        """Of the first of them."""

    def holds(self, topic: str, record: FoundRecord, key: Decoded, value: Decoded) -> bool:
        if self._depth > 1:
            longest = max(_longest_list(value.value), _longest_list(key.value), len(record.headers), self._own_length)
            if (longest * self._growth) ** self._depth > _MAX_STEPS:
                self._note("its lists are too long for lists in lists")
                return False
        names = {
            "value": value.value,
            "key": key.value,
            "headers": {name: (data or b"").decode("utf-8", "replace") for name, data in record.headers},
            "topic": topic,
            "partition": record.partition,
            "offset": record.offset,
            "time": _moment(record.timestamp_ms),
        }
        try:
            found = self._program.execute(names)
        except (KeyError, IndexError):
            return False  # the record has no such field
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            if "No such key" not in str(error):
                self._note(str(error).partition(". ")[0])
            return False
        if not isinstance(found, bool):
            self._note(f"the result is {found!r:.40}, not true or false")
            return False
        return found

    def _note(self, reason: str) -> None:
        with self._lock:
            self.misfits += 1
            self.reason = self.reason or reason


def parse_expression(text: str) -> Expression | None:
    """None for an empty text; FilterError for one that is not understood."""
    return Expression(text.strip()) if text.strip() else None


def _syntax(text: str, message: str) -> str:
    if re.search(r"[^=!<>]=[^=]", text):
        return f"{text[:60]!r} is not an expression: write == to compare, {_EXAMPLES}"
    found = _POSITION.search(message)
    where = f" (character {found[1]}: {found[2].removeprefix('Syntax error: ')[:80]})" if found else ""
    return f"{text[:60]!r} is not an expression{where}: {_EXAMPLES}"


def _depth(text: str) -> int:
    """How many loops over lists are in each other, or more."""
    if _HARD_TO_READ.search(text):
        return len(_LOOP_WORD.findall(text))
    open_: list[bool] = []
    deepest = 0
    for found in _MACRO.finditer(text):
        if found["text"] is not None:
            continue
        if found[0] == ")":
            if open_:
                open_.pop()
        else:
            open_.append(found[0] != "(")
            deepest = max(deepest, sum(open_))
    return deepest


def _longest_list(value: Any) -> int:
    if isinstance(value, dict):
        return max(len(value), *map(_longest_list, value.values()), 0)
    if isinstance(value, list):
        return max(len(value), *map(_longest_list, value), 0)
    return 0


def _moment(timestamp_ms: int) -> datetime | None:
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC) if timestamp_ms >= 0 else None
    except (OverflowError, ValueError, OSError):
        return None
