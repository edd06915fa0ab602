"""Topics that take only records with a registered schema (`millstream.value.schema.validation`, and the same for keys).

Opens the batches of these topics and of no others. A record must begin as Confluent's serializers write it: a zero byte
and the four bytes of an id that is registered under the topic's subject, `TOPIC-value` or `TOPIC-key`. What follows is
not looked at. A null has no schema, and passes.
"""

from collections.abc import Iterator, Mapping, Set
from typing import NamedTuple, Protocol

from millstream.config.errors import ConfigError
from millstream.config.setting import Setting
from millstream.config.table import topic as settings
from millstream.metadata.image import MetadataDelta, MetadataImage, ResourceType
from millstream.model.errors import ErrorCode, KafkaError
from millstream.model.identifiers import TopicName
from millstream.protocol.produce import ProduceRequest
from millstream.records.record import Record, read_batches

MOST_TOLD = 1000
"""Of how many records of a batch it is told what is wrong with them."""
_PREFIX = 5


class Schemas(Protocol):
    def ids(self, subject: str) -> Set[int]: ...


class InvalidRecordsError(KafkaError):
    """A batch is refused for some of its records: which ones, and why."""

    def __init__(self, message: str, records: tuple[tuple[int, str], ...]) -> None:
        super().__init__(ErrorCode.INVALID_RECORD, message)
        self.records = records


class UnknownSchemaError(InvalidRecordsError):
    """Nothing else is wrong with the batch than ids that are not known; they may be, once more has been read."""


class Guarded(NamedTuple):
    """What is asked of one topic."""

    name: str
    keys: bool
    values: bool


Verdicts = dict[tuple[bytes, int], KafkaError | None]
"""By topic, as the request names it, and partition: what is wrong with its batches."""


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

    def judge(self, request: ProduceRequest, buffer: bytearray) -> Verdicts | None:
        """None if the request has nothing for a guarded topic."""
        topics = self._topics
        if not any(topic in topics for topic, _ in request.topics):
            return None
        whole = memoryview(buffer)
        return {
            (topic, index): self._fault(topics[topic], whole[start:end])
            for topic, datas in request.topics
            if topic in topics
            for index, start, end in datas
        }

    def check(self, topic: bytes, index: int, batches: memoryview, verdicts: Verdicts | None) -> None:
        """Raises what `judge` found, or would find if it was not asked."""
        guarded = self._topics.get(topic)
        if guarded is None:
            return
        key = topic, index
        fault = verdicts[key] if verdicts and key in verdicts else self._fault(guarded, batches)
        if fault is not None:
            raise fault

    def _fault(self, guarded: Guarded, batches: memoryview) -> KafkaError | None:
        faults: list[tuple[int, str]] = []
        only_unknown = True
        number = -1
        known_of = {
            part: self._schemas.ids(f"{guarded.name}-{part}")
            for part, wanted in (("key", guarded.keys), ("value", guarded.values))
            if wanted
        }
        try:
            for header, records in read_batches(batches):
                for record in records if not header.is_control else ():
                    number += 1
                    for text, unknown in _faults(record, guarded.name, known_of):
                        only_unknown = only_unknown and unknown
                        if len(faults) < MOST_TOLD:
                            faults.append((number, text))
        except KafkaError as error:
            return error
        if not faults:
            return None
        kind = UnknownSchemaError if only_unknown else InvalidRecordsError
        return kind(faults[0][1], tuple(faults))

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


def _faults(record: Record, topic: str, known_of: Mapping[str, Set[int]]) -> Iterator[tuple[str, bool]]:
    """What is wrong, and whether that is only that an id is not known."""
    for part, known in known_of.items():
        data = record.key if part == "key" else record.value
        if data is None:
            continue
        if len(data) < _PREFIX or data[0] != 0:
            yield (
                (
                    f"the {part} carries no schema id: write it with a serializer of the schema registry, "
                    f"or turn off millstream.{part}.schema.validation of topic {topic}"
                ),
                False,
            )
        elif (schema_id := int.from_bytes(data[1:_PREFIX])) not in known:
            yield (
                f"schema id {schema_id} is not registered under subject {topic}-{part}: register it there",
                True,
            )
