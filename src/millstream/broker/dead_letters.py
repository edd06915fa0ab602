"""Dead letters (KIP-1191): records that a share group gave up are copied to the topic that the group names for them.

The copy has the key, value and headers of the original (unless the group does not want that), and headers that say
where it was and what became of it. It is written before the record counts as archived, so a crash in between may write
it twice, but never loses it. A topic that cannot be used (missing, not meant for dead letters) is logged, and the
record archived without a copy: one wrong setting must not stop the group.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from millstream.broker.controller import Controller
from millstream.broker.environment import Environment
from millstream.broker.partition import Partition
from millstream.broker.partition_table import PartitionTable
from millstream.config import group_config
from millstream.config.group_config import GroupConfig, dead_letter_topic_problem
from millstream.config.table import node, share
from millstream.config.table.topic import ERRORS_DEADLETTERQUEUE_GROUP_ENABLE
from millstream.coordinator.share.record_state import DeadLetter
from millstream.metadata.topics import NewTopic, create_topics
from millstream.model.errors import ErrorCode, KafkaError
from millstream.model.identifiers import TopicName
from millstream.records.record import Record, build_batch, read_batches

_READ_BYTES = 1 << 20
_RECORDS_PER_BATCH = 100
_RETRY_SECONDS = (0.1, 0.5, 2.0, 5.0, 15.0, 60.0)

_log = logging.getLogger("millstream.share")


class DeadLetters:
    def __init__(self, controller: Controller, partitions: PartitionTable, environment: Environment) -> None:
        self._controller = controller
        self._partitions = partitions
        self._environment = environment

    async def send(
        self,
        group_id: str,
        config: GroupConfig,
        source: Partition,
        letters: Sequence[DeadLetter],
        buried: Callable[[DeadLetter], Awaitable[None]],
    ) -> None:
        """Writes the letters, and calls back for each when it is written or has to be given up."""
        topic = config[group_config.ERRORS_DEADLETTERQUEUE_TOPIC_NAME]
        copy = config[group_config.ERRORS_DEADLETTERQUEUE_COPY_RECORD_ENABLE]
        for letter in letters:
            for delay in (*_RETRY_SECONDS, None):
                try:
                    if topic:
                        await self._send_one(group_id, topic, copy, source, letter)
                    await buried(letter)
                    break
                except KafkaError as error:
                    _log.error(
                        "dead_letter_failed group=%s topic=%s source=%s offset=%d error=%s",
                        group_id, topic, source.topic_partition, letter.first, error,
                    )  # fmt: skip
                    if error.code is ErrorCode.INVALID_CONFIG or delay is None:
                        await self._give_up(letter, buried)
                        break
                    await asyncio.sleep(delay)

    async def _give_up(self, letter: DeadLetter, buried: Callable[[DeadLetter], Awaitable[None]]) -> None:
        try:
            await buried(letter)
        except KafkaError as error:
            _log.error("dead_letter_not_archived offset=%d error=%s", letter.first, error)

    async def _send_one(self, group_id: str, topic: str, copy: bool, source: Partition, letter: DeadLetter) -> None:
        target = await self._target(topic, source)
        offset = letter.first
        while offset <= letter.last:
            last = min(letter.last, offset + _RECORDS_PER_BATCH - 1)
            originals = await self._originals(source, offset, last) if copy else {}
            now_ms = self._environment.clock.now_ms()
            records = []
            for each in range(offset, last + 1):
                original = originals.get(each)
                if copy and original is None and last > offset:
                    continue  # a gap in the log, or compacted away meanwhile: there is nothing to tell of
                context = _context(group_id, source, each, letter)
                if original is None:
                    records.append(Record(None, None, context, now_ms))
                else:
                    records.append(Record(original.key, original.value, (*original.headers, *context), now_ms))
            if records:
                self._append(target, records, now_ms)
            offset = last + 1

    def _append(self, target: Partition, records: list[Record], now_ms: int) -> None:
        try:
            target.append(memoryview(build_batch(records)), now_ms)
        except KafkaError as error:
            if error.code not in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
                raise
            if len(records) > 1:
                for record in records:
                    self._append(target, [record], now_ms)
                return
            _log.warning("dead_letter_cut topic=%s error=%s", target.topic_partition, error)
            context = tuple(header for header in records[0].headers if header[0].startswith("__dlq.errors."))
            target.append(memoryview(build_batch([Record(None, None, context, now_ms)])), now_ms)

    async def _originals(self, source: Partition, first: int, last: int) -> dict[int, Record]:
        log = source.log
        found: dict[int, Record] = {}
        position = max(first, log.log_start_offset)
        while position <= last:
            piece = log.read(position, _READ_BYTES, up_to=source.high_watermark, at_least_one=True)
            if not piece.ready:
                await self._environment.offload(piece.prepare)
            before = position
            for header, records in read_batches(piece.read()):
                found.update((each.offset, each) for each in records if first <= each.offset <= last)
                position = header.last_offset + 1
                if position > last:
                    break
            if position == before:
                break
        return found

    async def _target(self, topic: str, source: Partition) -> Partition:
        problem = dead_letter_topic_problem(topic, self._controller.config)
        if topic == source.topic_partition.topic:
            problem = f"{topic} cannot be the dead-letter topic of its own records"
        if problem:
            raise KafkaError(ErrorCode.INVALID_CONFIG, problem)
        image = self._controller.image
        if TopicName(topic) not in image.topics:
            await self._create(topic)
            image = self._controller.image
        enabled = image.topic_config(topic).get(ERRORS_DEADLETTERQUEUE_GROUP_ENABLE.name, "false")
        if enabled.strip().lower() != "true":
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, f"topic {topic} does not have {ERRORS_DEADLETTERQUEUE_GROUP_ENABLE.name}=true"
            )
        count = len(image.topics[TopicName(topic)].partitions)
        return self._partitions.find(topic, source.topic_partition.partition % count)

    async def _create(self, topic: str) -> None:
        if not self._controller.config[share.ERRORS_DEADLETTERQUEUE_AUTO_CREATE_TOPICS_ENABLE]:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"dead-letter topic {topic} does not exist")
        configs = {ERRORS_DEADLETTERQUEUE_GROUP_ENABLE.name: "true"}
        (result,) = await self._controller.decide(
            lambda image, config, randomness: create_topics(
                image,
                [
                    NewTopic(
                        name=topic,
                        partition_count=config[node.NUM_PARTITIONS],
                        replication_factor=config[node.DEFAULT_REPLICATION_FACTOR],
                        configs=configs,
                    )
                ],
                config,
                randomness,
            )
        )
        if result.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"dead-letter topic {topic} cannot be made: {result.message}")


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
