"""Topics by regular expression, matched by RE2: time grows with the length of a name, whatever the expression is.

An expression must match the whole name. Internal topics match as all others do, as with Kafka: a client that does not
want them excludes them in its expression. Every name is matched once; the broker has a new expression `learn` the
topics there are in a thread, and then only topics that are new cost something where the requests are answered.
"""

from collections.abc import Iterable

from millstream.node.coordination.core.expression import Expression
from millstream.node.coordination.core.topic_catalog import TopicCatalog

_MOST_PATTERNS = 200


class TopicPattern:
    def __init__(self, text: str) -> None:
        """KafkaError (INVALID_REGULAR_EXPRESSION) if RE2 cannot read it (back-references, say), or it is too large."""
        self._expression = Expression(text, "SubscribedTopicRegex")
        self._known: dict[str, bool] = {}
        self._matching: frozenset[str] = frozenset()
        self._version: int | None = None
        """Of the catalog that `_matching` was found in."""

    def unknown(self, topics: TopicCatalog) -> list[str]:
        """The names that were not matched yet."""
        if topics.version == self._version:
            return []
        return [name for name in topics.names() if name not in self._known]

    def learn(self, names: Iterable[str]) -> None:
        """Matches names ahead of `matches`; may be called in a thread."""
        self._known = self._known | {name: self._is_match(name) for name in names}

    def matches(self, topics: TopicCatalog) -> frozenset[str]:
        """The topics that match."""
        if topics.version != self._version:
            known = self._known
            answers = {}
            for name in topics.names():
                answer = known.get(name)
                answers[name] = self._is_match(name) if answer is None else answer
            self._known = answers  # without the topics that are gone
            self._matching = frozenset(name for name, answer in answers.items() if answer)
            self._version = topics.version
        return self._matching

    def _is_match(self, name: str) -> bool:
        return self._expression.is_match(name)


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
