"""The topic `__remote_log_metadata`: events of tiered storage, for dashboards (`millstream.tier.events.enable`).

Leaders write them. A task writes them beside the work of the tier: an event that cannot be written waits in memory, and
the oldest are dropped and counted when too many wait. Copies and deletions never wait for it. Events of a partition
are in one partition of the topic, in order. No node reads it: the manifest is the truth (ADR 32, 64).
"""

import asyncio
import logging
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from millstream.config.broker_config import BrokerConfig
from millstream.config.table import tier
from millstream.formats.model.errors import KafkaError
from millstream.formats.records.record import Record, build_batch
from millstream.node.cluster.topic_creation import InternalTopics
from millstream.node.environment import Environment
from millstream.node.metadata.topic_names import REMOTE_LOG_METADATA_TOPIC
from millstream.node.tier.core.decisions import backoff_s
from millstream.node.tier.core.manifest import Manifest, TieredSegment
from millstream.node.tier.core.segment_events import (
    EventSource,
    PartitionState,
    SegmentState,
    partition_event,
    segment_event,
)

_PARTITIONS = 10
_REPLICAS = 3
_SETTINGS = {"cleanup.policy": "delete", "retention.ms": "-1"}
"""As in Kafka: nothing expires."""
_MOST_WAITING = 10_000
_MOST_AT_ONCE = 500
_log = logging.getLogger("millstream.tier")


class EventProducer(Protocol):
    """The broker as a producer (`data/internal_client.py`)."""

    async def append(self, topic: str, index: int, batch: bytes | bytearray) -> None: ...


class TierEvents:
    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        topics: InternalTopics,
        producer: EventProducer,
        environment: Environment,
    ) -> None:
        self._config = config
        self._topics = topics
        self._producer = producer
        self._environment = environment
        self._waiting: deque[tuple[int, bytes, int]] = deque()
        """Partition of the topic, event, time."""
        self._task: asyncio.Task[None] | None = None
        self.written = 0
        self.dropped = 0

    def segments(self, of: Manifest, segments: Iterable[TieredSegment], *states: SegmentState) -> None:
        """Report new states of segments of a partition."""
        if self._config()[tier.TIER_EVENTS_ENABLE]:
            source, now_ms = self._source(of), self._environment.clock.now_ms()
            for segment in segments:
                for state in states:
                    self._add(source, segment_event(source, segment, state, now_ms), now_ms)

    def partition(self, of: Manifest, *states: PartitionState) -> None:
        """Report that the objects of a whole partition are deleted."""
        if self._config()[tier.TIER_EVENTS_ENABLE]:
            source, now_ms = self._source(of), self._environment.clock.now_ms()
            for state in states:
                self._add(source, partition_event(source, state, now_ms), now_ms)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _source(self, of: Manifest) -> EventSource:
        return EventSource(of.topic, of.topic_id, of.partition, self._config().node_id)

    def _add(self, source: EventSource, event: bytes, now_ms: int) -> None:
        place = zlib.crc32(b"%s/%d" % (source.topic_id.bytes, source.partition)) % _PARTITIONS
        if len(self._waiting) == _MOST_WAITING:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append((place, event, now_ms))
        if self._task is None:
            self._task = self._environment.loop.create_task(self._write())

    async def _write(self) -> None:
        """Until nothing waits."""
        failures = 0
        try:
            while self._waiting:
                try:
                    await self._write_some()
                    failures = 0
                except (KafkaError, OSError) as error:
                    failures += 1
                    if failures == 1:
                        _log.warning("tier_events_wait count=%d error=%s", len(self._waiting), error)
                    await asyncio.sleep(backoff_s(failures, self._environment.randomness.random()))
        except Exception:
            _log.exception("tier_events_failed")
        finally:
            self._task = None

    async def _write_some(self) -> None:
        """Write events of one partition of the topic: all that wait, up to a limit."""
        await self._topics.ensure(REMOTE_LOG_METADATA_TOPIC, _PARTITIONS, _REPLICAS, _SETTINGS)
        place = self._waiting[0][0]
        taken = [each for each in self._waiting if each[0] == place][:_MOST_AT_ONCE]
        batch = build_batch([Record(None, event, timestamp=now_ms) for _, event, now_ms in taken])
        await self._producer.append(REMOTE_LOG_METADATA_TOPIC, place, batch)
        self.written += len(taken)
        done = {id(each) for each in taken}
        self._waiting = deque(each for each in self._waiting if id(each) not in done)
