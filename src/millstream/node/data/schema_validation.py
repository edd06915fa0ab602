"""Schema validation: topics that accept only records with a registered schema (`millstream.value.schema.validation`,
and the same for keys).

Only the batches of these topics are opened. A record must begin as Confluent's serializers write it: a zero byte and
the four bytes of an id that is registered under the topic's subject, `TOPIC-value` or `TOPIC-key`. The rest of the
record is not checked. A null has no schema and is valid.

`SchemaGuard` knows the topics, `SchemaIds` the ids of each subject. `RegisteredSchemas` reads the ids from the leader
of `_schemas`, the topic of the schema registry, when they are first needed. An id that is not known may have just been
registered: then the rest of the topic is read first. Deletions are noticed within `STALE_SECONDS` while ids are used.
"""

import asyncio
import json
import logging
from collections.abc import Mapping, Set
from functools import partial
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from millstream.config.setting import ConfigError, Setting
from millstream.config.table import topic as settings
from millstream.formats.model.errors import ErrorCode, InvalidRecordsError, KafkaError
from millstream.formats.model.identifiers import TopicName, TopicPartition
from millstream.formats.records.batch import BatchHeader, iterate_headers
from millstream.formats.records.compiled import schema_faults
from millstream.formats.records.opening import OpeningLimits, records_between
from millstream.formats.records.record import Record
from millstream.formats.records.walking import NO_ID
from millstream.node.cluster.cluster_view import BrokerChannels, ClusterView
from millstream.node.environment import Environment
from millstream.node.metadata.image import MetadataDelta, MetadataImage, ResourceType

MAX_RECORD_ERRORS = 1000
"""Limit of the record errors in a response; Kafka has none. Clients treat the other records as valid, and get their
errors when they send them again. More errors would keep the event loop busy."""


class Schemas(Protocol):
    def ids(self, subject: str) -> Set[int]: ...


class UnknownSchemaError(InvalidRecordsError):
    """The only fault is an unknown schema id: it may have just been registered."""


class Guarded(NamedTuple):
    """The validation settings of one topic."""

    name: str
    keys: bool
    values: bool


class WantedSchemas(NamedTuple):
    """The ids that are registered for one topic, sorted; None if keys, or values, are not validated."""

    topic: str
    keys: tuple[int, ...] | None
    values: tuple[int, ...] | None


class SchemaGuard:
    def __init__(self, image: MetadataImage, schemas: Schemas) -> None:
        self._schemas = schemas
        self.topics: dict[bytes, Guarded] = {}
        """By name and by id, as in requests. Empty if no topic is validated."""
        for resource in image.configs:
            if resource.type == ResourceType.TOPIC:
                self._look_at(image, resource.name)

    def __bool__(self) -> bool:
        return bool(self.topics)

    def follow(self, delta: MetadataDelta, image: MetadataImage) -> None:
        for topic in delta.deleted.values():
            self._forget(topic.name)
        for resource in sorted(delta.configs):
            if resource.type == ResourceType.TOPIC:
                self._look_at(image, resource.name)
        for name in delta.created:
            self._look_at(image, name)

    def wanted(self, topic: bytes) -> "WantedSchemas | None":
        """The schema ids that are valid in a topic, as known now; None if the topic is not validated."""
        guarded = self.topics.get(topic)
        if guarded is None:
            return None
        return WantedSchemas(
            guarded.name,
            self._ids(guarded.name, "key") if guarded.keys else None,
            self._ids(guarded.name, "value") if guarded.values else None,
        )

    def _ids(self, topic: str, part: str) -> tuple[int, ...]:
        return tuple(sorted(self._schemas.ids(f"{topic}-{part}")))

    def _look_at(self, image: MetadataImage, name: str) -> None:
        self._forget(name)
        topic = image.topics.get(TopicName(name))
        overrides = image.topic_config(name)
        guarded = Guarded(
            name,
            _is_set(overrides, settings.KEY_SCHEMA_VALIDATION),
            _is_set(overrides, settings.VALUE_SCHEMA_VALIDATION),
        )
        if topic is not None and (guarded.keys or guarded.values):
            self.topics[name.encode()] = self.topics[topic.id.bytes] = guarded

    def _forget(self, name: str) -> None:
        if self.topics:
            self.topics = {key: guarded for key, guarded in self.topics.items() if guarded.name != name}


def _is_set(overrides: Mapping[str, str], setting: Setting[bool]) -> bool:
    text = overrides.get(setting.name)
    try:
        return text is not None and setting.parse(text)
    except ConfigError:
        return False


def schema_fault(
    header: BatchHeader, records: memoryview, wanted: WantedSchemas, most: int = MAX_RECORD_ERRORS
) -> InvalidRecordsError | None:
    """The fault in the records of an opened batch, whose lengths were checked. It names at most `most` records."""
    faults: list[tuple[int, str]] = []
    only_unknown = True
    for part, of_keys, known in (("key", True, wanted.keys), ("value", False, wanted.values)):
        if known is not None:
            found, unknown = schema_faults(records, 0, header.record_count, of_keys, known, most)
            only_unknown = only_unknown and unknown
            faults += ((number, _text(part, wanted.topic, schema_id)) for number, schema_id in found)
    if not faults:
        return None
    faults.sort(key=lambda fault: fault[0])
    return (UnknownSchemaError if only_unknown else InvalidRecordsError)(faults[0][1], tuple(faults[:most]))


def _text(part: str, topic: str, schema_id: int) -> str:
    if schema_id == NO_ID:
        return (
            f"the {part} has no schema id: write it with a serializer of the schema registry, "
            f"or turn off millstream.{part}.schema.validation of topic {topic}"
        )
    return f"schema id {schema_id} is not registered under subject {topic}-{part}: register it there"


_DEFAULT_CONTEXT = ":.:"
_NONE: frozenset[int] = frozenset()


class SchemaIds:
    def __init__(self) -> None:
        self._versions: dict[str, dict[int, int]] = {}
        """By subject: the id of each version that is not deleted."""
        self._ids: dict[str, frozenset[int]] = {}

    def of(self, subject: str) -> Set[int]:
        return self._ids.get(subject, _NONE)

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Applies the next record; ValueError, KeyError or TypeError if it is not a registry's record."""
        about = _document(key)
        kind = about.get("keytype")
        if kind == "SCHEMA":
            subject, version = _subject(about), int(about["version"])
            schema = None if value is None else _document(value)
            versions = self._versions.setdefault(subject, {})
            if schema is None or schema.get("deleted"):
                versions.pop(version, None)
            else:
                versions[version] = int(schema["id"])
        elif kind == "DELETE_SUBJECT" and value is not None:
            subject, last = _subject(about), int(_document(value)["version"])
            versions = self._versions.get(subject, {})
            for version in [version for version in versions if version <= last]:
                del versions[version]
        else:
            return
        if versions:
            self._ids[subject] = frozenset(versions.values())
        else:
            self._versions.pop(subject, None)
            self._ids.pop(subject, None)


def _subject(about: dict[str, Any]) -> str:
    return str(about["subject"]).removeprefix(_DEFAULT_CONTEXT)


def _document(data: bytes | None) -> dict[str, Any]:
    document = json.loads(data or b"null")
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    return document


STALE_SECONDS = 10.0
_READ_TIMEOUT_SECONDS = 5.0
_NO_TOPIC_TIMEOUT_SECONDS = 1.0
"""The topic may have just been created, and its metadata not yet be here."""
_PAUSE_SECONDS = 0.05
_FETCH_BYTES = 256 << 10
"""Size of one fetch."""
_LIMITS = OpeningLimits(max_bytes=16 << 20, max_records=10_000)
"""Limits of a batch in the topic: registries write one record at a time."""
_MOST_AT_ONCE = 1000
"""Limit of the records that are applied in one turn of the event loop."""
_LAST_VERSION_WITH_NAMES = 12
_CONSUMER = -1
_LATEST = -1
"""The special timestamp of the log end."""
_log = logging.getLogger("millstream.schemas")


class RegisteredSchemas:
    def __init__(self, view: ClusterView, peers: BrokerChannels, environment: Environment, topic: str) -> None:
        self._view = view
        self._peers = peers
        self._environment = environment
        self._loop = environment.loop
        self._topic = TopicName(topic)
        self._topic_id: UUID | None = None
        self._position = 0
        self._known = SchemaIds()
        self._reading = asyncio.Lock()
        self._read_at: float | None = None
        self._refresh: asyncio.Task[None] | None = None

    def ids(self, subject: str) -> Set[int]:
        """The known ids of a subject."""
        return self._known.of(subject)

    def keep_fresh(self) -> None:
        """Reads the topic in the background if the last read is older than STALE_SECONDS."""
        stale = self._read_at is not None and self._loop.time() - self._read_at > STALE_SECONDS
        if stale and (self._refresh is None or self._refresh.done()):
            self._refresh = self._loop.create_task(self._refresh_once())

    async def catch_up(self) -> None:
        """Reads everything that was committed before the call; KafkaError if that fails."""
        give_up_at = self._loop.time() + _READ_TIMEOUT_SECONDS
        no_topic_at = self._loop.time() + _NO_TOPIC_TIMEOUT_SECONDS
        async with self._reading:
            while True:
                try:
                    if await self._read_on():
                        return
                    if self._loop.time() >= no_topic_at:
                        self._restart(None, 0)
                        return
                    problem = f"topic {self._topic} does not exist"
                except (OSError, KafkaError) as error:
                    problem = str(error)
                if self._loop.time() >= give_up_at:
                    raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, f"the schemas cannot be read now: {problem}")
                await asyncio.sleep(_PAUSE_SECONDS)

    def close(self) -> None:
        if self._refresh is not None:
            self._refresh.cancel()

    async def _refresh_once(self) -> None:
        try:
            await self.catch_up()
        except KafkaError as error:
            _log.warning("schemas_not_read error=%s", error.message)
            self._read_at = self._loop.time()  # the next attempt comes after STALE_SECONDS

    async def _read_on(self) -> bool:
        """Reads to the end; False if there is no such topic."""
        end: int | None = None
        while True:
            image = self._view.image
            topic, state = image.topics.get(self._topic), image.partition(TopicPartition(self._topic, 0))
            if topic is None or state is None:
                return False
            if topic.id != self._topic_id:
                self._restart(topic.id, 0)
            if not state.has_leader:
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{self._topic} has no leader")
            if end is None:
                # A new leader may not know its high watermark yet; only ListOffsets reports that.
                end = await self._end_at(state.leader)
            row = await self._fetched(state.leader)
            if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                self._restart(topic.id, max(0, row.log_start_offset))
                continue
            if row.error_code:
                raise KafkaError(ErrorCode(row.error_code), f"broker {state.leader} refused the fetch")
            before = self._position
            await self._take(row.records or b"")
            if self._position >= max(end, row.high_watermark):
                self._read_at = self._loop.time()
                return True
            if self._position == before:
                raise KafkaError(
                    ErrorCode.UNKNOWN_SERVER_ERROR, f"broker {state.leader} returned no records from offset {before} on"
                )

    async def _end_at(self, leader: int) -> int:
        partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": _LATEST}
        fields = {
            "replica_id": _CONSUMER,
            "isolation_level": 0,
            "topics": [{"name": self._topic, "partitions": [partition]}],
            "timeout_ms": int(_READ_TIMEOUT_SECONDS * 1000),
        }
        response = await self._peers.request(leader, "list_offsets", fields, timeout_s=_READ_TIMEOUT_SECONDS)
        row = response.topics[0].partitions[0]
        if row.error_code:
            raise KafkaError(ErrorCode(row.error_code), f"broker {leader} does not know the end of {self._topic}")
        return int(row.offset)

    async def _fetched(self, leader: int) -> Any:
        partition = {"partition": 0, "fetch_offset": self._position, "partition_max_bytes": _FETCH_BYTES}
        fields = {
            "replica_id": _CONSUMER,
            "max_wait_ms": 0,
            "min_bytes": 0,
            "max_bytes": _FETCH_BYTES,
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [{"topic": self._topic, "partitions": [partition]}],
        }
        response = await self._peers.request(
            leader, "fetch", fields, timeout_s=_READ_TIMEOUT_SECONDS, version=_LAST_VERSION_WITH_NAMES
        )
        if response.error_code:
            raise KafkaError(ErrorCode(response.error_code), f"broker {leader} refused the fetch")
        return response.responses[0].partitions[0]

    async def _take(self, data: bytes) -> None:
        # Any client may write to the topic: its batches are opened within limits, in a thread.
        batches = await self._environment.open_in_turn(partial(_records, data, self._position))
        for next_offset, records in batches:
            for record in records:
                try:
                    self._known.apply(record.key, record.value)
                except (ValueError, KeyError, TypeError) as error:
                    _log.warning("schemas_record_skipped offset=%d reason=%s", record.offset, error)
            self._position = max(self._position, next_offset)

    def _restart(self, topic_id: UUID | None, position: int) -> None:
        self._topic_id, self._position, self._known = topic_id, position, SchemaIds()


def _records(data: bytes, first: int) -> list[tuple[int, list[Record]]]:
    """By batch: the next offset to read, and the records from offset `first` on. Limited to _MOST_AT_ONCE records: the
    next fetch returns the others."""
    found: list[tuple[int, list[Record]]] = []
    left = _MOST_AT_ONCE
    for position, header in iterate_headers(data):
        batch = memoryview(data)[position : position + header.size]
        records: list[Record] = []
        last = header.last_offset
        if not header.is_control and header.record_count and last >= first:
            low = max(first, header.base_offset)
            last = min(last, low + left - 1)
            try:
                records = records_between(header, batch, low, last, _LIMITS)
            except KafkaError as error:
                last = header.last_offset
                _log.warning("schemas_batch_skipped offset=%d reason=%s", header.base_offset, error.message)
            left -= max(1, len(records))
        found.append((last + 1, records))
        if left <= 0 or last < header.last_offset:
            break
    return found
