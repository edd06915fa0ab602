"""Which topics and partitions a query reads: by name, by pattern, or partition by partition."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from millstream.raw_client import Cluster, TopicInfo, TopicPartition
from millstream.spark.errors import MissingTopicError, OptionError, nearest
from millstream.spark.source.positions import named, parse_assignment


@dataclass(frozen=True, slots=True)
class Subscription:
    """One of `topics`, `pattern` and `assigned` says what is read."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: frozenset[TopicPartition] = field(default_factory=frozenset)

    def wants(self, topic: str) -> bool:
        """Whether the query reads this topic if it exists."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.topics or any(each.topic == topic for each in self.assigned)

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"topics that match {self.pattern}"
        return ", ".join(self.topics) or named(self.assigned)

    def find(self, cluster: Cluster) -> dict[str, TopicInfo]:
        """The topics as they are now. Those that do not exist are left out."""
        if self.pattern is not None:
            return {name: info for name, info in cluster.topics().items() if not info.is_internal and self.wants(name)}
        names = self.topics or tuple({each.topic for each in self.assigned})
        return dict(cluster.topics(names))

    def partitions(self, found: Mapping[str, TopicInfo]) -> set[TopicPartition]:
        """All partitions that are read, of the topics that were found."""
        existing = {TopicPartition(name, each.index) for name, info in found.items() for each in info.partitions}
        return existing & self.assigned if self.assigned else existing

    def missing(self, found: Mapping[str, TopicInfo]) -> Collection[str]:
        """Topics that are asked for by name and were not found."""
        names = self.topics or {each.topic for each in self.assigned}
        return sorted(set(names) - set(found))

    def must_exist(self, cluster: Cluster, found: Mapping[str, TopicInfo], option: str) -> None:
        """MissingTopicError names what is not there, and what is there under a similar name."""
        if self.pattern is not None:
            if not found:
                raise MissingTopicError(
                    f"{option}: no topic matches {self.pattern!r}; {_near(self.pattern, cluster)}the pattern must "
                    "match the whole name"
                )
            return
        if missing := self.missing(found):
            raise MissingTopicError(
                "; ".join(f"topic {name!r} does not exist{_hint(name, cluster)}" for name in missing)
            )
        if lost := self.assigned - self.partitions(found):
            topic = min(lost).topic
            count = len(found[topic].partitions)
            raise MissingTopicError(f"assign: {named(lost)} does not exist; {topic!r} has partitions 0 to {count - 1}")


def parse_subscription(given: Mapping[str, str]) -> Subscription:
    """From the option that is there, of `subscribe`, `subscribePattern` and `assign`."""
    if len(given) != 1:
        which = "none is there" if not given else f"{' and '.join(given)} are there"
        raise OptionError(f"exactly one of subscribe, subscribePattern and assign says what to read; {which}")
    ((option, text),) = given.items()
    if option == "assign":
        return Subscription(assigned=parse_assignment(option, text))
    if option == "subscribe":
        topics = tuple(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))
        if not topics:
            raise OptionError("subscribe is empty; give topics, separated by commas")
        return Subscription(topics=topics)
    pattern = text.strip()
    if not pattern:
        raise OptionError(
            "subscribePattern is empty; give a regular expression for whole topic names, such as orders-.*"
        )
    try:
        re.compile(pattern)
    except re.error as error:
        raise OptionError(f"subscribePattern: {pattern!r} is no regular expression: {error}") from None
    return Subscription(pattern=pattern)


def _hint(name: str, cluster: Cluster) -> str:
    others = sorted(other for other, info in cluster.topics().items() if not info.is_internal)
    if near := nearest(name, others):
        return f"; did you mean {near!r}?"
    if not others:
        return "; there is no topic at all here: create it first"
    shown = ", ".join(others[:5]) + (" …" if len(others) > 5 else "")
    return f"; create it first, or choose one of those that exist: {shown}"


def _near(pattern: str, cluster: Cluster) -> str:
    near = nearest(re.sub(r"[^a-zA-Z0-9._-]|\.[*+]", "", pattern), [*cluster.topics()])
    return f"the nearest name is {near!r}; " if near else ""
