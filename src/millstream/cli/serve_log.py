"""Lines of the log: one event is one line, whatever others have chosen that is told in it.

The name of a group or topic may hold a line's end and what looks like another event: what cannot be printed is written
out. The lines of a stack trace, whose last tells an error's words, are indented.
"""

import logging
from typing import Any


class LineFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # as logging calls it
        return _printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        return _indented(super().formatStack(stack_info))


def _indented(lines: str) -> str:
    return "\n".join(f"  {_printable(line)}" for line in lines.split("\n"))


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
