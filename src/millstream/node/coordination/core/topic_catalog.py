"""The topics there are, as coordinators see them: name, id, how many partitions, and in which racks.

The broker adapts its metadata image to this; tests use `FixedTopics`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol
from uuid import UUID


class Topic(NamedTuple):
    name: str
    id: UUID
    partition_count: int


class TopicCatalog(Protocol):
    @property
    def version(self) -> int:
        """Grows whenever anything in the cluster's metadata changes."""
        ...

    def names(self) -> Iterable[str]: ...

    def get(self, name: str) -> Topic | None: ...

    def by_id(self, topic_id: UUID) -> Topic | None: ...

    def racks(self, name: str) -> Sequence[frozenset[str]]:
        """For each partition the racks its replicas stand in, as far as they are known; empty if there is no topic."""
        ...


class FixedTopics:
    """A catalog that is told what to hold."""

    def __init__(
        self, topics: Iterable[Topic] = (), racks: Mapping[str, Sequence[frozenset[str]]] | None = None
    ) -> None:
        self._by_name = {topic.name: topic for topic in topics}
        self._racks = dict(racks or {})
        self.version = 0

    def add(self, name: str, partition_count: int, topic_id: UUID | None = None) -> Topic:
        """Adds a topic, or gives it another number of partitions."""
        known = self._by_name.get(name)
        if topic_id is None:
            topic_id = known.id if known is not None else UUID(int=len(self._by_name) + 1 + (self.version << 32))
        topic = self._by_name[name] = Topic(name, topic_id, partition_count)
        self.version += 1
        return topic

    def remove(self, name: str) -> None:
        del self._by_name[name]
        self.version += 1

    def names(self) -> Iterable[str]:
        return self._by_name

    def get(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def by_id(self, topic_id: UUID) -> Topic | None:
        return next((topic for topic in self._by_name.values() if topic.id == topic_id), None)

    def racks(self, name: str) -> Sequence[frozenset[str]]:
        topic = self._by_name.get(name)
        if topic is None:
            return ()
        return self._racks.get(name, (frozenset(),) * topic.partition_count)
