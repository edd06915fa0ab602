"""Dead letters (KIP-1191): copies records that a share group gave up to the group's dead-letter topic.

The copy has the key, value and headers of the original (unless the group disables that), and headers with its source
and the reason. It is written before the record is archived. So a crash may write it twice, but never loses it: failures
are retried until it is written. A record that cannot be read gets a letter without a copy. Only if the settings are
wrong (the topic is missing, or not enabled for dead letters) the record is archived without a letter, and that is
logged: one wrong setting must not stop the group.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, repeat
from typing import Protocol

from millstream.config import group_config
from millstream.config.group_config import GroupConfig, dead_letter_topic_problem
from millstream.config.table import node, share
from millstream.config.table.topic import ERRORS_DEADLETTERQUEUE_GROUP_ENABLE
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicName, TopicPartition
from millstream.formats.records.batch import iterate_headers
from millstream.formats.records.opening import OpeningLimits, records_between
from millstream.formats.records.record import Record, build_batch
from millstream.node.cluster.cluster_view import ClusterView
from millstream.node.cluster.topic_creation import InternalTopics
from millstream.node.data.internal_client import InternalProducer
from millstream.node.environment import Environment
from millstream.node.metadata.topics import NewTopic
from millstream.node.queues.core.runs import DeadLetter
from millstream.node.queues.core.state import ShareKey
from millstream.node.replicas.partition import Partition
from millstream.node.storage.log.log_reader import Slice
from millstream.node.storage.opening_limits import opening_limits

_TIER_WAITS = 200
_TIER_WAIT_SECONDS = 0.1
_READ_BYTES = 1 << 20
_RECORDS_PER_BATCH = 100
_RETRY_SECONDS = (0.1, 0.5, 2.0, 5.0, 15.0)
_LAST_RETRY_SECONDS = 60.0
_PERMANENT_ERRORS = frozenset(
    (
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.POLICY_VIOLATION,
    )
)
"""Errors of a topic creation that a retry does not solve."""

_log = logging.getLogger("millstream.share")


class Sender(Protocol):
    """The share-partition leader whose records are given up."""

    @property
    def key(self) -> ShareKey: ...
    @property
    def partition(self) -> Partition: ...
    @property
    def dropped(self) -> bool: ...

    async def dead_letter_written(self, letter: DeadLetter) -> None: ...


class DeadLetters:
    def __init__(
        self, view: ClusterView, internal_topics: InternalTopics, writer: InternalProducer, environment: Environment
    ) -> None:
        self._view = view
        self._internal_topics = internal_topics
        self._writer = writer
        self._environment = environment

    async def send(self, sender: Sender, config: Callable[[], GroupConfig], letters: Sequence[DeadLetter]) -> None:
        """Writes the letters. Calls the sender for each letter that is written or given up.

        Stops if the sender is dropped: the next leader sends the letters that were not confirmed.
        """
        for letter in letters:
            await self._deliver(sender, config, letter)

    async def _deliver(self, sender: Sender, config: Callable[[], GroupConfig], letter: DeadLetter) -> None:
        delays = _delays()
        position = letter.first
        while not sender.dropped:
            settings = config()  # read again: an operator may have corrected the settings
            topic = settings[group_config.ERRORS_DEADLETTERQUEUE_TOPIC_NAME]
            copy = settings[group_config.ERRORS_DEADLETTERQUEUE_COPY_RECORD_ENABLE]
            try:
                while topic and position <= letter.last:
                    position = await self._send_part(sender, topic, copy, letter, position)
                await sender.dead_letter_written(letter)
                return
            except KafkaError as error:
                _log.error(
                    "dead_letter_failed group=%s topic=%s source=%s offset=%d error=%s",
                    sender.key.group_id, topic, sender.partition.topic_partition, position, error,
                )  # fmt: skip
                if error.code is ErrorCode.INVALID_CONFIG and position <= letter.last:
                    position = letter.last + 1  # given up; only the confirmation is left
                    continue
            await asyncio.sleep(next(delays))

    async def _send_part(self, sender: Sender, topic: str, copy: bool, letter: DeadLetter, offset: int) -> int:
        """Sends some of the records from `offset` on; returns the next offset."""
        source = sender.partition
        target = await self._target(topic, source)
        last = min(letter.last, offset + _RECORDS_PER_BATCH - 1)
        originals = await self._originals(source, offset, last) if copy else {}
        now_ms = self._environment.clock.now_ms()
        records = []
        for each in range(offset, last + 1):
            if copy and each not in originals and last > offset:
                continue  # a gap in the log, or removed by compaction
            context = _context(sender.key.group_id, source, each, letter)
            original = originals.get(each)
            if original is None:
                records.append(Record(None, None, context, now_ms))
            else:
                records.append(Record(original.key, original.value, (*original.headers, *context), now_ms))
        if records:
            await self._append(target, records, now_ms)
        return last + 1

    async def _append(self, target: TopicPartition, records: list[Record], now_ms: int) -> None:
        try:
            await self._writer.append(target.topic, target.partition, build_batch(records))
        except KafkaError as error:
            if error.code not in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
                raise
            if len(records) > 1:
                for record in records:
                    await self._append(target, [record], now_ms)
                return
            _log.warning("dead_letter_cut topic=%s error=%s", target, error)
            context = tuple(header for header in records[0].headers if header[0].startswith("__dlq.errors."))
            letter = Record(None, None, context, now_ms)
            await self._writer.append(target.topic, target.partition, build_batch([letter]))

    async def _originals(self, source: Partition, first: int, last: int) -> dict[int, Record | None]:
        """The records at these offsets; None for a record that cannot be read."""
        log = source.log
        found: dict[int, Record | None] = {}
        position = max(first, log.log_start_offset)
        waits = 0
        while position <= last:
            try:
                piece = log.read(position, _READ_BYTES, up_to=source.high_watermark, at_least_one=True)
                limits = opening_limits(self._view.config)
                read, reached = await self._environment.open_in_turn(partial(_read, piece, position, last, limits))
            except OSError as error:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"cannot be read: {error}") from error
            except KafkaError as error:
                if error.code is ErrorCode.KAFKA_STORAGE_ERROR:
                    raise
                _log.warning("dead_letter_without_copy source=%s error=%s", source.topic_partition, error)
                found.update((each, None) for each in range(position, last + 1))
                break
            found.update(read)
            if reached == position:
                if position < log.local_start_offset and waits < _TIER_WAITS:
                    waits += 1
                    await asyncio.sleep(_TIER_WAIT_SECONDS)  # the records are on their way from the tier
                    continue
                break
            position = reached
        return found

    async def _target(self, topic: str, source: Partition) -> TopicPartition:
        problem = dead_letter_topic_problem(topic, self._view.config)
        if topic == source.topic_partition.topic:
            problem = f"{topic} cannot be the dead-letter topic of its own records"
        if problem:
            raise KafkaError(ErrorCode.INVALID_CONFIG, problem)
        image = self._view.image
        if TopicName(topic) not in image.topics:
            await self._create(topic)
            image = self._view.image
        enabled = image.topic_config(topic).get(ERRORS_DEADLETTERQUEUE_GROUP_ENABLE.name, "false")
        if enabled.strip().lower() != "true":
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, f"topic {topic} does not have {ERRORS_DEADLETTERQUEUE_GROUP_ENABLE.name}=true"
            )
        count = len(image.topics[TopicName(topic)].partitions)
        return TopicPartition(TopicName(topic), source.topic_partition.partition % count)

    async def _create(self, topic: str) -> None:
        if not self._view.config[share.ERRORS_DEADLETTERQUEUE_AUTO_CREATE_TOPICS_ENABLE]:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"dead-letter topic {topic} does not exist")
        config = self._view.config
        try:
            await self._internal_topics.ensure_topic(
                NewTopic(
                    name=topic,
                    partition_count=config[node.NUM_PARTITIONS],
                    replication_factor=config[node.DEFAULT_REPLICATION_FACTOR],
                    configs={ERRORS_DEADLETTERQUEUE_GROUP_ENABLE.name: "true"},
                )
            )
        except KafkaError as error:
            if error.code not in _PERMANENT_ERRORS:
                raise
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, f"dead-letter topic {topic} cannot be created: {error.message}"
            ) from error


def _context(group_id: str, source: Partition, offset: int, letter: DeadLetter) -> tuple[tuple[str, bytes], ...]:
    at = source.topic_partition
    return (
        ("__dlq.errors.topic", at.topic.encode()),
        ("__dlq.errors.partition", str(at.partition).encode()),
        ("__dlq.errors.offset", str(offset).encode()),
        ("__dlq.errors.group", group_id.encode()),
        ("__dlq.errors.delivery.count", str(letter.deliveries).encode()),
        ("__dlq.errors.message", letter.reason.encode()),
    )


def _delays() -> Iterator[float]:
    return chain(_RETRY_SECONDS, repeat(_LAST_RETRY_SECONDS))


def _read(piece: Slice, first: int, last: int, limits: OpeningLimits) -> tuple[dict[int, Record | None], int]:
    """Runs in a thread: the wanted records of a slice, and the offset after the slice."""
    piece.prepare()
    data = memoryview(piece.read())
    found: dict[int, Record | None] = {}
    reached = first
    for position, header in iterate_headers(data):
        low, high = max(first, header.base_offset), min(last, header.last_offset)
        reached = header.last_offset + 1
        if header.is_control:
            continue
        try:
            batch = data[position : position + header.size]
            found.update((each.offset, each) for each in records_between(header, batch, low, high, limits))
        except KafkaError as error:
            _log.warning("dead_letter_without_copy offset=%d error=%s", header.base_offset, error)
            found.update((each, None) for each in range(low, high + 1) if each not in found)
        if reached > last:
            break
    return found, reached
