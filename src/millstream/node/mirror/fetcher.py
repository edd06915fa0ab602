"""Copies the partitions that one broker of the source leads: one connection, one fetch in flight.

Fetches are those of a plain consumer that reads uncommitted records, control batches included. `core/partition.py`
decides what each response means; here it is done. A fetch waits at the source until there are records.
"""

import asyncio
import contextlib
import logging
from typing import Protocol

from millstream.common.lazy_dataclass import dataclass
from millstream.formats.model.errors import KafkaError
from millstream.formats.protocol.primitives import MalformedMessage
from millstream.formats.protocol.replica_fetch import Fetched, FetchRow, encode_consumer_request, parse_response
from millstream.node.environment import Environment
from millstream.node.mirror.core.links import MirrorTopic
from millstream.node.mirror.core.partition import (
    Decision,
    Position,
    Step,
    diverged,
    is_current,
    position,
    received,
    refused,
    source_range,
)
from millstream.node.mirror.source import SourceCluster, in_words
from millstream.node.replicas.fetcher import ranges_in_segments
from millstream.node.replicas.partition import Partition
from millstream.node.server.channel import Channel

UNKNOWN = -1


@dataclass(slots=True)
class Totals:
    """What was copied since the start of the process."""

    bytes_copied: int = 0
    records_skipped: int = 0
    records_truncated: int = 0

    def add(self, pulled: "PulledPartition") -> None:
        self.bytes_copied += pulled.bytes_copied
        self.records_skipped += pulled.records_skipped
        self.records_truncated += pulled.records_truncated


@dataclass(slots=True, eq=False)
class PulledPartition:
    """A partition of a mirror topic that this node leads and copies: its place at the source, its progress."""

    partition: Partition
    topic: MirrorTopic
    leader: int = UNKNOWN
    """The leader at the source, and its epoch."""
    leader_epoch: int = UNKNOWN
    source_start: int = UNKNOWN
    source_end: int = UNKNOWN
    """The high watermark of the source in the last response."""
    caught_up_at: float = 0.0
    """When this log last had everything that the source had."""
    rests_until: float = 0.0
    bytes_copied: int = 0
    records_skipped: int = 0
    """Offsets that the source had removed before they were copied."""
    records_truncated: int = 0
    """Offsets that were cut here because the source has others."""
    bytes_per_record: float = 0.0
    problem: str = ""

    @property
    def index(self) -> int:
        return self.partition.topic_partition.partition

    @property
    def end(self) -> int:
        return self.partition.log.log_end_offset

    @property
    def lag_records(self) -> int:
        return max(0, self.source_end - self.end) if self.source_end >= 0 else 0

    @property
    def lag_bytes(self) -> int:
        """About: by the size of the records that came last."""
        return int(self.lag_records * self.bytes_per_record)

    def lag_seconds(self, now: float) -> float:
        """How long ago this log had everything; 0 if it has everything now."""
        return max(0.0, now - self.caught_up_at) if self.lag_records else 0.0

    def copied(self, size: int, offsets: int) -> None:
        self.bytes_copied += size
        if offsets > 0:
            self.bytes_per_record = size / offsets


_log = logging.getLogger("millstream.mirror")

_WAIT_MS = 500
_RESPONSE_BYTES = 8 << 20
_PARTITION_BYTES = 1 << 20
_LEAST_BYTES = 64 << 10
_FETCH_TIMEOUT_SECONDS = 30.0
_PAUSE_SECONDS = 0.5
_MAX_PAUSE_SECONDS = 5.0


class FetcherContext(Protocol):
    """The link, as a fetcher uses it."""

    @property
    def throttle_bytes(self) -> int: ...

    @property
    def next_producer_id(self) -> int: ...

    async def throttle(self, size: int) -> None:
        """Waits until as many bytes may be copied."""
        ...

    async def raise_epoch(self, pulled: PulledPartition, epoch: int) -> None: ...

    async def raise_producer_ids(self, pulled: PulledPartition, producer_id: int) -> None: ...

    def metadata_is_stale(self) -> None:
        """The source responded that it has changed."""
        ...


class SourceFetcher:
    def __init__(
        self, broker_id: int, source: SourceCluster, context: FetcherContext, environment: Environment, link: str
    ) -> None:
        self.broker_id = broker_id
        self.partitions: dict[tuple[bytes, int], PulledPartition] = {}
        """By topic id at the source, and number."""
        self.problem = ""
        self._source = source
        self._context = context
        self._environment = environment
        self._link = link
        self._wake = asyncio.Event()
        self._channel: Channel | None = None
        self._version = 0
        self._task = environment.loop.create_task(self._run())

    def add(self, pulled: PulledPartition) -> None:
        self.partitions[pulled.topic.source_id.bytes, pulled.index] = pulled
        self._wake.set()

    def remove(self, pulled: PulledPartition) -> None:
        key = pulled.topic.source_id.bytes, pulled.index
        if self.partitions.get(key) is pulled:
            del self.partitions[key]

    def close(self) -> None:
        self._task.cancel()
        self._drop_channel()

    def _drop_channel(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    async def _run(self) -> None:
        pause_s = _PAUSE_SECONDS
        while True:
            try:
                await self._fetch()
                pause_s, self.problem = _PAUSE_SECONDS, ""
            except (OSError, MalformedMessage) as error:
                self._drop_channel()
                if str(error) != self.problem:
                    _log.warning("mirror_fetch_failed link=%s broker=%d error=%s", self._link, self.broker_id, error)
                self.problem = str(error) or type(error).__name__
                self._context.metadata_is_stale()
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _MAX_PAUSE_SECONDS)
            except Exception:
                _log.exception("mirror_fetcher_failed link=%s broker=%d", self._link, self.broker_id)
                await asyncio.sleep(_MAX_PAUSE_SECONDS)

    async def _fetch(self) -> None:
        now = self._environment.loop.time()
        ready = {key: pulled for key, pulled in self.partitions.items() if pulled.rests_until <= now}
        if not ready:
            await self._until_ready(now)
            return
        if self._channel is None:
            self._channel, self._version = await self._source.fetch_channel(self.broker_id)
        sent: dict[tuple[bytes, int], Position] = {}
        topics: dict[bytes, list[FetchRow]] = {}
        for (topic_id, index), pulled in ready.items():
            if not pulled.partition.is_leader or not pulled.partition.is_mirror:
                continue
            at = sent[topic_id, index] = position(pulled.partition.log)
            row = (index, pulled.leader_epoch, at.offset, at.last_epoch, -1, _PARTITION_BYTES)
            topics.setdefault(topic_id, []).append(row)
        if not sent:
            await self._until_ready(now)
            return
        is_whole = len(ready) == len(self.partitions)
        most = min(_RESPONSE_BYTES, max(_LEAST_BYTES, self._context.throttle_bytes))
        body = encode_consumer_request(self._version, topics, max_wait_ms=_WAIT_MS if is_whole else 50, max_bytes=most)
        try:
            frame, start = await self._channel.exchange("fetch", self._version, body, timeout_s=_FETCH_TIMEOUT_SECONDS)
        except OSError as error:
            raise in_words(error, (self._channel.host, self._channel.port)) from error
        response = parse_response(frame, start)
        if response.error:
            raise ConnectionError(f"the source refused a fetch with error {response.error}")
        size = 0
        for topic_id, rows in response.topics:
            for fetched in rows:
                key = topic_id, fetched.partition
                asked, pulled_now = sent.get(key), self.partitions.get(key)
                if asked is not None and pulled_now is not None:
                    size += len(fetched.records)
                    await self._take(pulled_now, asked, fetched)
        if size:
            await self._context.throttle(size)

    async def _until_ready(self, now: float) -> None:
        rests = [pulled.rests_until - now for pulled in self.partitions.values() if pulled.rests_until > now]
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.01, min(rests, default=1.0))):
                await self._wake.wait()

    async def _take(self, pulled: PulledPartition, sent: Position, row: Fetched) -> None:
        partition = pulled.partition
        try:
            if not partition.is_leader or not partition.is_mirror or not is_current(partition.log, sent):
                return
            if row.error:
                decision = refused(row.error)
            else:
                pulled.source_end, pulled.source_start = row.high_watermark, row.log_start_offset
                if row.diverging_epoch is not None:
                    decision = diverged(partition.log, *row.diverging_epoch)
                else:
                    decision = received(
                        row.records, partition.log, partition.leader_epoch, self._context.next_producer_id
                    )
            if decision.step is Step.FIND_RANGE:
                decision = await self._find_range(pulled, sent)
            await self._do(pulled, decision, row)
        except (KafkaError, OSError) as error:
            self._rest(pulled, str(error))

    async def _find_range(self, pulled: PulledPartition, sent: Position) -> Decision:
        start, end = await self._source.range_of(pulled.topic.source_name, pulled.index, self.broker_id)
        log = pulled.partition.log
        if not is_current(log, sent):
            return Decision(Step.WAIT)
        pulled.source_start, pulled.source_end = start, end
        return source_range(log, start, end)

    async def _do(self, pulled: PulledPartition, decision: Decision, row: Fetched) -> None:
        partition = pulled.partition
        log = partition.log
        before = log.log_end_offset
        now_ms = self._environment.clock.now_ms()
        match decision.step:
            case Step.APPEND:
                whole = row.records[: decision.whole_bytes]
                for piece in ranges_in_segments(whole, log.config.segment_bytes):
                    partition.append_mirrored(piece, now_ms)
                pulled.copied(len(whole), log.log_end_offset - before)
            case Step.TRUNCATE:
                end = partition.truncate_mirrored(decision.offset)
                pulled.records_truncated += before - end
                self._report(pulled, "mirror_truncated", before, end, decision)
                if end == before:
                    self._rest(pulled, decision.reason)
                    return
            case Step.RESTART:
                partition.restart_mirrored(decision.offset, now_ms)
                if decision.offset > before:
                    pulled.records_skipped += decision.offset - before if before else 0
                else:
                    pulled.records_truncated += before - decision.offset
                self._report(pulled, "mirror_restarted", before, decision.offset, decision)
            case Step.RAISE_EPOCH:
                await self._context.raise_epoch(pulled, decision.number)
            case Step.RAISE_PRODUCER_IDS:
                await self._context.raise_producer_ids(pulled, decision.number)
            case Step.REFRESH:
                self._context.metadata_is_stale()
                self._rest(pulled, decision.reason)
                return
            case Step.REFUSE:
                self._rest(pulled, decision.reason)
                return
        pulled.problem = ""
        partition.start_mirrored(pulled.source_start)
        if log.log_end_offset >= pulled.source_end:
            pulled.caught_up_at = self._environment.loop.time()

    def _rest(self, pulled: PulledPartition, problem: str) -> None:
        if problem != pulled.problem:
            at = pulled.partition.topic_partition
            _log.warning("mirror_waits link=%s partition=%s reason=%s", self._link, at, problem)
        pulled.problem = problem
        pulled.rests_until = self._environment.loop.time() + _PAUSE_SECONDS

    def _report(self, pulled: PulledPartition, event: str, before: int, after: int, decision: Decision) -> None:
        _log.warning(
            "%s link=%s partition=%s from=%d to=%d reason=%s",
            event,
            self._link,
            pulled.partition.topic_partition,
            before,
            after,
            decision.reason,
        )
