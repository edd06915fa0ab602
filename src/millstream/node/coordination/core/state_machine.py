"""The interface of a coordinator's state machine, and what all of them use.

`StateMachine` is what the runtime calls; the state machines are in `groups/core`, `transactions/core` and
`queues/core`. An operation returns a `CoordinatorResult`: records to write, and a response that is ready now or later.
`Writes` collects the records of one operation. `Timers` has deadlines by key; the runtime runs due actions.
`RecordFormats` encodes and decodes records.

`TopicCatalog` is the view of the topics: name, id, partitions, racks. The broker adapts the metadata image to it
(`ImageTopics`); tests use `FixedTopics`.

`KnownEpochs` has the highest epochs of the metadata, for requests whose epoch would be stored. A stored epoch refuses
all lower ones. So an epoch above every known one is refused, with a retriable error: the metadata of this node may be
behind.
"""

import heapq
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from importlib.resources import files
from itertools import count
from struct import Struct
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from uuid import UUID

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import BrokerId, ProducerIdentity, TopicId, TopicName
from millstream.formats.protocol.primitives import Cursor, MalformedMessage
from millstream.formats.protocol.schema import Message, Schema, split_entries
from millstream.node.metadata.image import MetadataImage, TopicImage
from millstream.node.metadata.topic_names import TRANSACTION_STATE_TOPIC

R = TypeVar("R")


class CoordinatorRecord(NamedTuple):
    """One record of an internal topic. A value of None deletes the key."""

    key: bytes
    value: bytes | None


_INT16 = Struct(">h")


class RecordFormats:
    """The formats of the records of a coordinator's topic, from a schema file. The bytes are those that Kafka writes.

    A key begins with the type of the record, a value with its version.
    """

    def __init__(self, package: str, file: str, written_versions: Mapping[int, int] | None = None) -> None:
        """`written_versions` has the version of the values of each type; 0 for the others."""
        self._package = package
        self._file = file
        self._written_versions = written_versions or {}
        self._loaded: dict[int, tuple[Schema, Schema]] | None = None

    @property
    def _schemas(self) -> dict[int, tuple[Schema, Schema]]:
        # Not a cached_property: the compiled form would not cache it.
        if self._loaded is None:
            self._loaded = self._load()
        return self._loaded

    def _load(self) -> dict[int, tuple[Schema, Schema]]:
        entries = split_entries(files(self._package).joinpath(self._file).read_text())
        keys = [Schema(text) for (kind, _), text in entries.items() if kind == "key"]
        return {key.api_key: (key, Schema(entries["value", key.name])) for key in keys}

    def encode(
        self, kind: int, key: Mapping[str, Any], value: Mapping[str, Any] | None, version: int | None = None
    ) -> CoordinatorRecord:
        """A record of one type. A value of None is the tombstone that deletes the key."""
        key_schema, value_schema = self._schemas[kind]
        key_bytes = bytearray(_INT16.pack(kind))
        key_schema.write(key_bytes, key, 0)
        if value is None:
            return CoordinatorRecord(bytes(key_bytes), None)
        if version is None:
            version = self._written_versions.get(kind, 0)
        value_bytes = bytearray(_INT16.pack(version))
        value_schema.write(value_bytes, value, version)
        return CoordinatorRecord(bytes(key_bytes), bytes(value_bytes))

    def read_key(self, key: bytes) -> Message:
        """The fields of a key of a known type; MalformedMessage if they cannot be read."""
        return self._schemas[record_type(key)][0].read(Cursor(key, _INT16.size), 0)

    def read_value(self, kind: int, value: bytes) -> Message:
        """The fields of a value; MalformedMessage if its version is not known."""
        schema = self._schemas[kind][1]
        version = record_type(value)
        if version not in schema.versions:
            raise MalformedMessage(f"value of {schema.name} has version {version}")
        return schema.read(Cursor(value, _INT16.size), version)

    def is_known(self, key: bytes, value: bytes | None) -> bool:
        """Whether the type of the record and the version of its value are known."""
        schemas = self._schemas.get(record_type(key))
        return schemas is not None and (value is None or record_type(value) in schemas[1].versions)


def record_type(data: bytes) -> int:
    """The type that a key begins with, or the version that a value begins with; -1 if the bytes are too short."""
    return int(_INT16.unpack_from(data)[0]) if len(data) >= _INT16.size else -1


class DeferredResponse(Generic[R]):
    """A response that a later event resolves: a member waits for other members, a reader for a record."""

    __slots__ = ("_on_resolved", "resolved", "value")

    def __init__(self) -> None:
        self.resolved = False
        self.value: R | None = None
        self._on_resolved: Callable[[R], None] | None = None

    def resolve(self, value: R) -> None:
        """Resolves the response. Only the first call counts, so late callers need no check."""
        if self.resolved:
            return
        self.resolved = True
        self.value = value
        if self._on_resolved is not None:
            self._on_resolved(value)

    def when_resolved(self, callback: Callable[[R], None]) -> None:
        if self.resolved:
            callback(self.value)  # type: ignore[arg-type]
        else:
            self._on_resolved = callback


class CoordinatorResult(Generic[R]):
    """The result of an operation. Its records are appended as one batch and replayed; the response is sent when they
    are committed."""

    __slots__ = ("on_written", "producer", "records", "response")

    def __init__(
        self,
        response: R | DeferredResponse[R],
        records: Sequence[CoordinatorRecord] | None = None,
        on_written: Callable[[KafkaError | None], None] | None = None,
        producer: ProducerIdentity | None = None,
    ) -> None:
        self.response = response
        self.records: Sequence[CoordinatorRecord] = [] if records is None else records
        self.on_written = on_written
        """Called when the records are appended and replayed, or with the error if they could not be appended (then
        nothing changed). Clients see its effects only when the records are committed."""
        self.producer = producer
        """The producer in whose transaction the records are written. They are pending until it ends."""


OnWritten = Callable[[KafkaError | None], None]


class Writes:
    """The records of one operation, and what is called when they are written."""

    def __init__(self) -> None:
        self.records: list[CoordinatorRecord] = []
        self._on_written: list[OnWritten] = []

    def add(self, *records: CoordinatorRecord, then: OnWritten | None = None) -> None:
        self.records += records
        if then is not None:
            self._on_written.append(then)

    def extend(self, records: Iterable[CoordinatorRecord]) -> None:
        self.records += records

    def result(self, response: "R | DeferredResponse[R]") -> "CoordinatorResult[R]":
        return CoordinatorResult(response, self.records, self._done if self._on_written else None)

    def _done(self, error: KafkaError | None) -> None:
        for callback in self._on_written:
            callback(error)


Action = Callable[[int], CoordinatorResult[Any] | None]
"""Called with the time; returns a result to write, or None."""
_STALE_ENTRIES = 64


class Timers:
    """Deadlines by key, each with an action."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Hashable]] = []
        self._current: dict[Hashable, tuple[int, int, Action]] = {}
        self._order = count()
        self.on_earlier: Callable[[], None] = lambda: None
        """Called when a new deadline is earlier than all others, so that the runtime sets its timer again."""

    def set(self, key: Hashable, deadline_ms: int, action: Action) -> None:
        """Sets or moves the deadline of `key`."""
        earliest = self.next_deadline_ms
        number = next(self._order)
        self._current[key] = (deadline_ms, number, action)
        heapq.heappush(self._heap, (deadline_ms, number, key))
        self._drop_stale()
        if earliest is None or deadline_ms < earliest:
            self.on_earlier()

    def cancel(self, key: Hashable) -> None:
        self._current.pop(key, None)
        self._drop_stale()

    def _drop_stale(self) -> None:
        """Moved and cancelled entries stay in the heap until there are too many of them."""
        if len(self._heap) > 2 * len(self._current) + _STALE_ENTRIES:
            self._heap = [(deadline_ms, number, key) for key, (deadline_ms, number, _) in self._current.items()]
            heapq.heapify(self._heap)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._current

    @property
    def next_deadline_ms(self) -> int | None:
        while self._heap:
            deadline_ms, number, key = self._heap[0]
            current = self._current.get(key)
            if current is not None and current[1] == number:
                return deadline_ms
            heapq.heappop(self._heap)  # moved or cancelled
        return None

    def take_due(self, now_ms: int) -> Action | None:
        """The earliest due action; None if there is none."""
        deadline_ms = self.next_deadline_ms
        if deadline_ms is None or deadline_ms > now_ms:
            return None
        _, _, key = heapq.heappop(self._heap)
        return self._current.pop(key)[2]


class StateMachine(Protocol):
    """What the runtime needs of a coordinator's state."""

    timers: Timers

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Applies one record. Must accept any record in the log, and skip unknown ones."""
        ...

    def loaded(self, now_ms: int) -> None:
        """Called after all records were replayed: sets timers, starts sessions."""
        ...


class TransactionParticipant(Protocol):
    """A state machine that has records written in transactions."""

    def replay_pending(self, producer_id: int, producer_epoch: int, key: bytes, value: bytes | None) -> None:
        """Adds one record of an open transaction."""
        ...

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """Ends the producer's transaction, if there is one: its pending records are applied or dropped."""
        ...


class Topic(NamedTuple):
    """A topic as state machines see it."""

    name: str
    id: UUID
    partition_count: int


class TopicCatalog(Protocol):
    """The topics of the cluster, for a state machine."""

    @property
    def version(self) -> int:
        """Grows with every change of the cluster's metadata."""
        ...

    def names(self) -> Iterable[str]: ...

    def get(self, name: str) -> Topic | None: ...

    def by_id(self, topic_id: UUID) -> Topic | None: ...

    def racks(self, name: str) -> Sequence[frozenset[str]]:
        """For each partition the racks of its replicas, as far as they are known; empty if the topic does not exist."""
        ...


class FixedTopics:
    """A catalog with topics that a test chooses."""

    def __init__(
        self, topics: Iterable[Topic] = (), racks: Mapping[str, Sequence[frozenset[str]]] | None = None
    ) -> None:
        self._by_name = {topic.name: topic for topic in topics}
        self._racks = dict(racks or {})
        self.version = 0

    def add(self, name: str, partition_count: int, topic_id: UUID | None = None) -> Topic:
        """Adds a topic, or changes its number of partitions."""
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


class ImageTopics:
    """The catalog of the metadata image, internal topics included."""

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        self._image = image

    @property
    def version(self) -> int:
        return self._image().offset

    def names(self) -> Iterable[str]:
        return self._image().topics

    def get(self, name: str) -> Topic | None:
        return _topic(self._image().topics.get(TopicName(name)))

    def by_id(self, topic_id: UUID) -> Topic | None:
        return _topic(self._image().topics_by_id.get(TopicId(topic_id)))

    def racks(self, name: str) -> Sequence[frozenset[str]]:
        image = self._image()
        topic = image.topics.get(TopicName(name))
        if topic is None:
            return ()
        rack_of = {broker.id: broker.rack for broker in image.brokers.values()}
        return [
            frozenset(rack for replica in state.replicas if (rack := rack_of.get(BrokerId(replica))) is not None)
            for state in topic.partitions
        ]


def _topic(image: TopicImage | None) -> Topic | None:
    return None if image is None else Topic(image.name, image.id, len(image.partitions))


class KnownEpochs:
    """The highest epochs in the metadata."""

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        self._image = image

    def highest_coordinator_epoch(self) -> int:
        """The highest epoch of a transaction coordinator, which is the leader epoch of its partition; 0 if there is
        none."""
        topic = self._image().topics.get(TRANSACTION_STATE_TOPIC)
        return max((each.leader_epoch for each in topic.partitions), default=0) if topic is not None else 0

    def check_share_leader(self, topic_id: UUID, partition: int, leader_epoch: int) -> None:
        """KafkaError if no leader of the partition can have this epoch. A deleted topic has no leader to fence."""
        topic = self._image().topics_by_id.get(TopicId(topic_id))
        if topic is None:
            return
        if partition >= len(topic.partitions):
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.name} has {len(topic.partitions)} partitions"
            )
        known = topic.partitions[partition].leader_epoch
        if leader_epoch > known:
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                f"leader epoch {leader_epoch} of {topic.name}-{partition} is not known here; the highest is {known}",
            )
