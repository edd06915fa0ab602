"""Topics by regular expression, matched by RE2: time grows with the length of a name, whatever the expression is.

An expression must match the whole name. Internal topics are never matched: who says `.*` does not mean the offsets of
all groups.
"""

from collections.abc import Iterable

import re2

from millstream.model.errors import ErrorCode, KafkaError

_INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
_MOST_MEMORY_BYTES = 1 << 20
"""For one compiled expression; larger ones are refused."""
_MOST_PATTERNS = 200


def _options() -> re2.Options:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MOST_MEMORY_BYTES
    return options


class TopicPattern:
    def __init__(self, text: str) -> None:
        """KafkaError (INVALID_REGULAR_EXPRESSION) if RE2 cannot read it: back-references, for example."""
        try:
            self._compiled = re2.compile(text, options=_options())
        except re2.error as error:
            reason = error.args[0] if error.args else ""
            shown = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
            raise KafkaError(
                ErrorCode.INVALID_REGULAR_EXPRESSION, f"SubscribedTopicRegex {text!r} is not a valid pattern: {shown}."
            ) from None
        self._known: dict[str, bool] = {}

    def matches(self, names: Iterable[str]) -> frozenset[str]:
        """Those of the names that match; answers are remembered, so that only new topics cost something."""
        known, compiled = self._known, self._compiled
        answers = {}
        for name in names:
            answer = known.get(name)
            if answer is None:
                answer = name not in _INTERNAL_TOPICS and compiled.fullmatch(name) is not None
            answers[name] = answer
        self._known = answers  # without the topics that are gone
        return frozenset(name for name, answer in answers.items() if answer)


class TopicPatterns:
    """Compiled patterns, the most recently used ones."""

    def __init__(self) -> None:
        self._patterns: dict[str, TopicPattern] = {}

    def get(self, text: str) -> TopicPattern:
        pattern = self._patterns.pop(text, None)
        if pattern is None:
            pattern = TopicPattern(text)
            if len(self._patterns) >= _MOST_PATTERNS:
                del self._patterns[next(iter(self._patterns))]
        self._patterns[text] = pattern
        return pattern
