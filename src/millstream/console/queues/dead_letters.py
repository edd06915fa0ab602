"""Dead letters of a share group, and their redrive to the original partitions, without the dead-letter headers.

The progress of the redrive is stored as offsets of the group `<group>.redrive` on the dead-letter topic. So it survives
the gateway, and every Kafka tool shows it. Records are sent first and the offsets are committed afterwards: after a
crash in between, some records are sent twice and none is lost.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from millstream.console.console import UserError
from millstream.console.messages.reading import FoundRecord, Range, ReadLimit, RecordReader
from millstream.formats.records.record import Record, build_batch
from millstream.raw_client import Cluster, TopicPartition
from millstream.raw_client.producing import Producer
from millstream.raw_client.transactions import idempotent_producer

AT_ONCE = 500
_PREFIX = "__dlq.errors."
_PER_BATCH = 100
_NUMBER = re.compile("[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    record: FoundRecord
    topic: str
    partition: int
    offset: int
    deliveries: str
    reason: str


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Dead letters of a group that were not sent back, oldest first, and the offsets read up to. Dead letters of other
    groups may be in between."""

    topic: str
    letters: Sequence[DeadLetter]
    read_to: dict[TopicPartition, int]
    more: bool


def redrive_group(group: str) -> str:
    return f"{group}.redrive"


def pending_dead_letters(cluster: Cluster, group: str, topic: str) -> DeadLetters:
    """The first dead letters; `more`: there are others."""
    reader = RecordReader(cluster)
    ranges = reader.ranges(topic)
    topic_partitions = [TopicPartition(topic, number) for number in ranges]
    sent = cluster.committed_offsets(redrive_group(group), topic_partitions)
    left = {
        topic_partition.partition: Range(
            max(ranges[topic_partition.partition].start, sent.get(topic_partition, 0)),
            ranges[topic_partition.partition].end,
        )
        for topic_partition in topic_partitions
    }
    wanted = group.encode()
    page = reader.forwards(
        topic, left, AT_ONCE, lambda record: _header(record, "group") == wanted, ReadLimit(seconds=15.0)
    )
    if page.problems:
        raise UserError(f"some dead letters in {topic} cannot be read: {page.problems[0]}")
    letters = [letter for record in page.records if (letter := _dead_letter(record)) is not None]
    read_to = {TopicPartition(topic, number): offset for number, offset in page.following.items()}
    return DeadLetters(topic, letters, read_to, page.more)


def redrive(cluster: Cluster, group: str, letters: DeadLetters) -> int:
    """Sends dead letters back. Returns the number of records."""
    by_partition: dict[TopicPartition, list[DeadLetter]] = {}
    for letter in letters.letters:
        by_partition.setdefault(TopicPartition(letter.topic, letter.partition), []).append(letter)
    topics = cluster.topics({topic_partition.topic for topic_partition in by_partition})
    for topic_partition in by_partition:
        if topic_partition.topic not in topics:
            raise UserError(
                f"topic {topic_partition.topic!r} does not exist: create it, then send its dead letters back"
            )
        if topic_partition.partition >= len(topics[topic_partition.topic].partitions):
            raise UserError(f"{topic_partition} does not exist: the topic was created again with fewer partitions")
    producer_id, epoch = idempotent_producer(cluster)
    producer = Producer(cluster, delivery_timeout_s=cluster.timeout_s)
    try:
        for topic_partition, theirs in by_partition.items():
            for at in range(0, len(theirs), _PER_BATCH):
                records = [_original(letter.record) for letter in theirs[at : at + _PER_BATCH]]
                batch = build_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=at)
                producer.send(topic_partition, batch, len(records))
        producer.flush()
    finally:
        producer.close()
    cluster.commit_offsets(redrive_group(group), letters.read_to)
    return len(letters.letters)


def _dead_letter(record: FoundRecord) -> DeadLetter | None:
    topic, partition, offset = (_text(record, name) for name in ("topic", "partition", "offset"))
    if not topic or not _NUMBER.fullmatch(partition) or not _NUMBER.fullmatch(offset):
        return None
    return DeadLetter(
        record, topic, int(partition), int(offset), _text(record, "delivery.count"), _text(record, "message")
    )


def _original(record: FoundRecord) -> Record:
    headers = tuple(header for header in record.headers if not header[0].startswith(_PREFIX))
    return Record(record.key, record.value, headers, record.timestamp_ms)


def _header(record: FoundRecord, name: str) -> bytes | None:
    """The last header of this name. A record that was sent back and archived again has older ones before."""
    return next((value for key, value in reversed(record.headers) if key == _PREFIX + name), None)


def _text(record: FoundRecord, name: str) -> str:
    return (_header(record, name) or b"").decode("utf-8", "replace")
