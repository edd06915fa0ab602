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
from millstream.formats.records.record import Header, Record, build_batch
from millstream.raw_client import Cluster, TopicPartition
from millstream.raw_client.producing import Producer
from millstream.raw_client.transactions import idempotent_producer

TEXT, JSON, BASE64, NULL = "text", "JSON", "base64", "null"
FORMS = (TEXT, JSON, BASE64, NULL)
"""Input formats of keys and values."""
_DELIVERY_S = 30.0


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
        producer = Producer(self._cluster, delivery_timeout_s=min(_DELIVERY_S, self._cluster.timeout_s))
        try:
            producer.send(topic_partition, batch, 1)
            producer.flush()
            written = producer.written.get(topic_partition)
        finally:
            producer.close()
        return WrittenAt(partition, written.first_offset if written is not None else -1)
