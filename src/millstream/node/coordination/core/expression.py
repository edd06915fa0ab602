"""Regular expressions of clients, matched by RE2: the time is linear in the length of the text.

`TopicPattern` matches topics. The expression must match the whole name. Internal topics match too, as in Kafka. Every
name is matched once; the broker matches a new expression in a thread (`learn`).
"""

from collections.abc import Iterable

import re2

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.coordination.core.state_machine import TopicCatalog

_MAX_PATTERNS = 200
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


class TopicPattern:
    def __init__(self, text: str) -> None:
        """KafkaError (INVALID_REGULAR_EXPRESSION) if RE2 does not support it, or if it is too large."""
        self._expression = Expression(text, "SubscribedTopicRegex")
        self._known: dict[str, bool] = {}
        self._matching: frozenset[str] = frozenset()
        self._version: int | None = None
        """The version of the catalog for `_matching`."""

    def unknown(self, topics: TopicCatalog) -> list[str]:
        """Names that were not matched yet."""
        if topics.version == self._version:
            return []
        return [name for name in topics.names() if name not in self._known]

    def learn(self, names: Iterable[str]) -> None:
        """Matches names before `matches` needs them; may run in a thread."""
        self._known = self._known | {name: self._is_match(name) for name in names}

    def matches(self, topics: TopicCatalog) -> frozenset[str]:
        """The topics that match."""
        if topics.version != self._version:
            known = self._known
            matches_by_name = {}
            for name in topics.names():
                is_match = known.get(name)
                matches_by_name[name] = self._is_match(name) if is_match is None else is_match
            self._known = matches_by_name  # without deleted topics
            self._matching = frozenset(name for name, is_match in matches_by_name.items() if is_match)
            self._version = topics.version
        return self._matching

    def _is_match(self, name: str) -> bool:
        return self._expression.is_match(name)


class TopicPatterns:
    """The compiled patterns that were used most recently."""

    def __init__(self) -> None:
        self._patterns: dict[str, TopicPattern] = {}

    def get(self, text: str) -> TopicPattern:
        pattern = self._patterns.pop(text, None)
        if pattern is None:
            pattern = TopicPattern(text)
            if len(self._patterns) >= _MAX_PATTERNS:
                del self._patterns[next(iter(self._patterns))]
        self._patterns[text] = pattern
        return pattern
