"""Regular expressions of clients, matched by RE2: the time is linear in the length of the text."""

import re2

from millstream.formats.model.errors import ErrorCode, KafkaError

_MAX_MEMORY_BYTES = 1 << 20
_MAX_PROGRAM_SIZE = 4000
"""Steps of RE2 for one character, in the worst case. A list of a hundred names needs about two thousand."""


def _options() -> re2.Options:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_MEMORY_BYTES
    return options


class Expression:
    def __init__(self, text: str, field: str) -> None:
        """KafkaError (INVALID_REGULAR_EXPRESSION) if RE2 does not support it (back-references, for example), or if it
        is too large.

        `field` is the name of the request's field, for the error message.
        """
        try:
            self._compiled = re2.compile(text, options=_options())
        except re2.error as error:
            reason = error.args[0] if error.args else ""
            shown = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
            raise _refused(field, text, shown) from None
        if self._compiled.programsize > _MAX_PROGRAM_SIZE:
            raise _refused(field, text, "pattern too large")

    def is_match(self, text: str) -> bool:
        """Whether the expression matches the whole text."""
        return self._compiled.fullmatch(text) is not None


def _refused(field: str, text: str, reason: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, f"{field} {text!r} is not a valid pattern: {reason}.")
