"""Topics that take only records with a registered schema (`millstream.value.schema.validation`, and the same for keys).

Opens the batches of these topics and of no others. A record must begin as Confluent's serializers write it: a zero byte
and the four bytes of an id that is registered under the topic's subject, `TOPIC-value` or `TOPIC-key`. What follows is
not looked at. A null has no schema, and passes.
"""

from collections.abc import Mapping, Set
from typing import NamedTuple, Protocol

from millstream.config.errors import ConfigError
from millstream.config.setting import Setting
from millstream.config.table import topic as settings
from millstream.formats.model.errors import InvalidRecordsError
from millstream.formats.model.identifiers import TopicName
from millstream.formats.records.batch import BatchHeader
from millstream.formats.records.compiled import schema_faults
from millstream.formats.records.walking import NO_ID
from millstream.node.metadata.image import MetadataDelta, MetadataImage, ResourceType

MOST_TOLD = 1000
"""Of how many records of a batch the response says what is wrong with them; Kafka names all. Clients take those that
are not named for good ones, and hear of these when they send them again. More take the loop long."""


class Schemas(Protocol):
    def ids(self, subject: str) -> Set[int]: ...


class UnknownSchemaError(InvalidRecordsError):
    """Nothing else is wrong with the batch than ids that are not known; they may be, once more has been read."""


class Guarded(NamedTuple):
    """What is asked of one topic."""

    name: str
    keys: bool
    values: bool


class WantedSchemas(NamedTuple):
    """The ids that are registered for one topic, sorted; None where nothing is asked of keys, or of values."""

    topic: str
    keys: tuple[int, ...] | None
    values: tuple[int, ...] | None


class SchemaGuard:
    def __init__(self, image: MetadataImage, schemas: Schemas) -> None:
        self._schemas = schemas
        self._topics: dict[bytes, Guarded] = {}
        """By name and by id, as requests name topics."""
        for resource in image.configs:
            if resource.type == ResourceType.TOPIC:
                self._look_at(image, resource.name)

    def __bool__(self) -> bool:
        return bool(self._topics)

    def follow(self, delta: MetadataDelta, image: MetadataImage) -> None:
        for topic in delta.deleted.values():
            self._forget(topic.name)
        for resource in delta.configs:
            if resource.type == ResourceType.TOPIC:
                self._look_at(image, resource.name)
        for name in delta.created:
            self._look_at(image, name)

    def wanted(self, topic: bytes) -> "WantedSchemas | None":
        """What the records for a topic must begin with, as far as is known by now; None if it is not guarded."""
        guarded = self._topics.get(topic)
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
            self._topics[name.encode()] = self._topics[topic.id.bytes] = guarded

    def _forget(self, name: str) -> None:
        if self._topics:
            self._topics = {key: guarded for key, guarded in self._topics.items() if guarded.name != name}


def _is_set(overrides: Mapping[str, str], setting: Setting[bool]) -> bool:
    text = overrides.get(setting.name)
    try:
        return text is not None and setting.parse(text)
    except ConfigError:
        return False


def schema_fault(header: BatchHeader, records: memoryview, wanted: WantedSchemas) -> InvalidRecordsError | None:
    """What is wrong with the records of an opened batch, whose lengths were checked."""
    faults: list[tuple[int, str]] = []
    only_unknown = True
    for part, of_keys, known in (("key", True, wanted.keys), ("value", False, wanted.values)):
        if known is not None:
            found, unknown = schema_faults(records, 0, header.record_count, of_keys, known, MOST_TOLD)
            only_unknown = only_unknown and unknown
            faults += ((number, _text(part, wanted.topic, schema_id)) for number, schema_id in found)
    if not faults:
        return None
    faults = sorted(faults, key=lambda fault: fault[0])[:MOST_TOLD]
    return (UnknownSchemaError if only_unknown else InvalidRecordsError)(faults[0][1], tuple(faults))


def _text(part: str, topic: str, schema_id: int) -> str:
    if schema_id == NO_ID:
        return (
            f"the {part} carries no schema id: write it with a serializer of the schema registry, "
            f"or turn off millstream.{part}.schema.validation of topic {topic}"
        )
    return f"schema id {schema_id} is not registered under subject {topic}-{part}: register it there"
