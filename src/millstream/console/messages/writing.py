"""Produces one record: parses the form, chooses the partition as producers do, and sends the record."""

import base64
import binascii
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import orjson
import pyarrow as pa

from millstream.columnar import partition_by_key
from millstream.console.console import UserError
from millstream.console.messages.reading import FoundRecord
from millstream.console.messages.text import header_line, written_out
from millstream.formats.records.record import Header, Record, build_batch
from millstream.raw_client import Cluster, TopicPartition
from millstream.raw_client.producing import Producer
from millstream.raw_client.transactions import idempotent_producer
from millstream.registry.decoding import Decoded
from millstream.registry.encoding import Encoders, InvalidValueError
from millstream.registry.records import parse_subject
from millstream.registry.registry import Registry

TEXT, JSON, SCHEMA, BASE64, NULL = "text", "JSON", "schema", "base64", "null"
FORMS = (TEXT, JSON, SCHEMA, BASE64, NULL)
"""Input formats of keys and values."""
_DELIVERY_SECONDS = 30.0


class InvalidInputError(ValueError):
    """The input does not have the chosen format. The message says how to correct it."""


@dataclass(frozen=True, slots=True)
class WrittenAt:
    partition: int
    offset: int


def parse_bytes(text: str, form: str, what: str) -> bytes | None:
    """The bytes of a key or value from the input; `what` names it in the error."""
    if form == NULL:
        return None
    if form == BASE64:
        try:
            return base64.b64decode("".join(text.split()), validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidInputError(
                f"The {what} is not valid base64 ({error}). Correct it, or choose another format."
            ) from None
    if form == JSON:
        try:
            orjson.loads(text)
        except ValueError as error:
            raise InvalidInputError(
                f"The {what} is not valid JSON ({error}). Correct it, or choose the format text."
            ) from None
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidInputError(f"The {what} holds half of a surrogate pair. Enter it again, or use base64.") from None


def encode_with_schema(registry: Registry, subject: str, text: str, what: str) -> bytes:
    """The bytes of a JSON text by a schema of the registry (Avro, Protobuf, JSON Schema), with the id of the schema.
    `subject`: its latest version, or `id:N`. Blocking; RegistryError if there is no such schema."""
    try:
        value = orjson.loads(text)
    except ValueError as error:
        raise InvalidInputError(
            f"The {what} is not valid JSON ({error}). With a schema, the {what} is written as JSON."
        ) from None
    number = subject.strip().removeprefix("id:")
    if subject.strip().startswith("id:"):
        if not (number.isascii() and number.isdigit() and len(number) < 10):
            raise InvalidInputError(f"{subject!r} is not an id: write id:17, or the name of a subject.")
        encoder = Encoders(registry).by_id(int(number))
    else:
        encoder = Encoders(registry).version(parse_subject(subject.strip()))
    try:
        return encoder.encode(value)
    except InvalidValueError as error:
        stored = encoder.stored
        raise InvalidInputError(
            f"The {what} does not fit the {stored.type} schema {stored.id} of {stored.subject}: {error}"
        ) from None


def parse_headers(text: str) -> tuple[Header, ...]:
    """Parses one header per line, `name: value`. A line without a colon is a header without a value."""
    headers: list[Header] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        name, colon, value = line.partition(":")
        if not name.strip():
            raise InvalidInputError(
                f"Line {number} of the headers has no name. Enter one header per line, as name: value."
            )
        headers.append((name.strip(), value.strip().encode() if colon else None))
    return tuple(headers)


_FORM_OF_KIND = {
    "null": NULL,
    "json": JSON,
    "text": TEXT,
    "binary": BASE64,
    "avro": SCHEMA,
    "json-schema": SCHEMA,
    "protobuf": SCHEMA,
}
_MOST_CHARACTERS = 1_000_000


@dataclass(frozen=True, slots=True)
class Draft:
    """What the fields of the dialog begin with."""

    key_form: str = TEXT
    key: str = ""
    key_subject: str = ""
    value_form: str = JSON
    value: str = "{}"
    value_subject: str = ""
    headers: str = ""
    partition: int | None = None


def draft_of(topic: str, record: FoundRecord, key: Decoded, value: Decoded) -> Draft:
    """A record to change and to send again. UserError if it is too large to be edited."""
    key_form, key_text = _form_and_text(key)
    value_form, value_text = _form_and_text(value)
    if len(value_text) > _MOST_CHARACTERS:
        raise UserError(f"it has more than {_MOST_CHARACTERS:,} characters, too many to edit.")
    lines = [name if data is None else f"{name}: {header_line(data, 2000)}" for name, data in record.headers]
    return Draft(
        TEXT if record.key is None else key_form,
        "" if record.key is None else key_text,
        f"id:{key.schema_id}" if key_form == SCHEMA else "",
        value_form,
        value_text,
        f"id:{value.schema_id}" if value_form == SCHEMA else "",
        "\n".join(lines),
        record.partition if record.key is None else None,
    )


def _form_and_text(decoded: Decoded) -> tuple[str, str]:
    form = _FORM_OF_KIND.get(decoded.kind, BASE64)
    if form == NULL:
        return form, ""
    if form in (TEXT, BASE64):
        return form, str(decoded.value)
    return form, written_out(decoded, _MOST_CHARACTERS + 1).text


class RecordWriter:
    """Writes records. Blocking and thread-safe; not for the event loop."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def write(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
    ) -> WrittenAt:
        """Returns when all in-sync replicas have the record. Without a partition, the key selects it as in Java's
        producer."""
        count = self._cluster.partitions_of(topic)
        if partition is None:
            partition = random.randrange(count) if key is None else int(partition_by_key(pa.array([key]), count)[0])
        elif not 0 <= partition < count:
            raise InvalidInputError(f"{topic} has no partition {partition}, only 0 to {count - 1}.")
        # An idempotent producer writes the record once, also if it has to send it again.
        producer_id, epoch = idempotent_producer(self._cluster)
        record = Record(key, value, tuple(headers), time.time_ns() // 1_000_000)
        batch = build_batch([record], producer_id=producer_id, producer_epoch=epoch, base_sequence=0)
        topic_partition = TopicPartition(topic, partition)
        producer = Producer(self._cluster, delivery_timeout_s=min(_DELIVERY_SECONDS, self._cluster.timeout_s))
        try:
            producer.send(topic_partition, batch, 1)
            producer.flush()
            written = producer.written.get(topic_partition)
        finally:
            producer.close()
        return WrittenAt(partition, written.first_offset if written is not None else -1)
