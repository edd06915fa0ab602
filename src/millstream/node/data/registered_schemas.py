"""The schemas that are registered in this cluster, read from the leader of `_schemas` when they are needed.

Nothing is read before the first question. What is known is right at once; what is not known may have been registered a
moment ago, so whoever misses something has the rest of the topic read first. Deletions are noticed within `STALE_S`, as
long as somebody asks.
"""

import asyncio
import logging
from collections.abc import Set
from functools import partial
from typing import Any
from uuid import UUID

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicName, TopicPartition
from millstream.formats.records.batch import iterate_headers
from millstream.formats.records.opening import OpeningLimits, records_between
from millstream.formats.records.record import Record
from millstream.node.cluster.cluster_view import ClusterView
from millstream.node.cluster.peer_requests import PeerRequests
from millstream.node.data.schema_ids import SchemaIds
from millstream.node.environment import Environment

STALE_S = 10.0
_PATIENCE_S = 5.0
_NO_TOPIC_PATIENCE_S = 1.0
"""The topic may have been created a moment ago, and the news of it be on its way here."""
_PAUSE_S = 0.05
_FETCH_BYTES = 256 << 10
"""What is read in one go."""
_LIMITS = OpeningLimits(max_bytes=16 << 20, max_records=10_000)
"""Of a batch in the topic: registries write one record at a time."""
_MOST_AT_ONCE = 1000
"""Records that are applied in one turn of the event loop."""
_LAST_VERSION_WITH_NAMES = 12
_CONSUMER = -1
_LATEST = -1
"""The timestamp that asks for the end."""
_log = logging.getLogger("millstream.schemas")


class RegisteredSchemas:
    def __init__(self, view: ClusterView, peers: PeerRequests, environment: Environment, topic: str) -> None:
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
        """As far as is known."""
        return self._known.of(subject)

    def keep_fresh(self) -> None:
        """Has the topic read in the background if that is long ago."""
        stale = self._read_at is not None and self._loop.time() - self._read_at > STALE_S
        if stale and (self._refresh is None or self._refresh.done()):
            self._refresh = self._loop.create_task(self._refresh_once())

    async def catch_up(self) -> None:
        """Returns when all has been read that was committed before the call; KafkaError if that cannot be now."""
        give_up_at = self._loop.time() + _PATIENCE_S
        no_topic_at = self._loop.time() + _NO_TOPIC_PATIENCE_S
        async with self._reading:
            while True:
                try:
                    if await self._read_on():
                        return
                    if self._loop.time() >= no_topic_at:
                        self._begin_anew(None, 0)
                        return
                    trouble = f"{self._topic} is not there"
                except (OSError, KafkaError) as error:
                    trouble = str(error)
                if self._loop.time() >= give_up_at:
                    raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, f"the schemas cannot be read now: {trouble}")
                await asyncio.sleep(_PAUSE_S)

    def close(self) -> None:
        if self._refresh is not None:
            self._refresh.cancel()

    async def _refresh_once(self) -> None:
        try:
            await self.catch_up()
        except KafkaError as error:
            _log.warning("schemas_not_read error=%s", error.message)
            self._read_at = self._loop.time()  # not again at once

    async def _read_on(self) -> bool:
        """To the end; False if there is no such topic."""
        end: int | None = None
        while True:
            image = self._view.image
            topic, state = image.topics.get(self._topic), image.partition(TopicPartition(self._topic, 0))
            if topic is None or state is None:
                return False
            if topic.id != self._topic_id:
                self._begin_anew(topic.id, 0)
            if not state.has_leader:
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{self._topic} has no leader")
            if end is None:
                # A leader that is new, or has just started, may not know yet how far it is; only ListOffsets says so.
                end = await self._end_at(state.leader)
            row = await self._fetched(state.leader)
            if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                self._begin_anew(topic.id, max(0, row.log_start_offset))
                continue
            if row.error_code:
                raise KafkaError(ErrorCode(row.error_code), f"broker {state.leader} refuses to be asked")
            before = self._position
            await self._take(row.records or b"")
            if self._position >= max(end, row.high_watermark):
                self._read_at = self._loop.time()
                return True
            if self._position == before:
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"nothing is given from offset {before} on")

    async def _end_at(self, leader: int) -> int:
        partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": _LATEST}
        fields = {
            "replica_id": _CONSUMER,
            "isolation_level": 0,
            "topics": [{"name": self._topic, "partitions": [partition]}],
            "timeout_ms": int(_PATIENCE_S * 1000),
        }
        answer = await self._peers.request(leader, "list_offsets", fields, timeout_s=_PATIENCE_S)
        row = answer.topics[0].partitions[0]
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
        answer = await self._peers.request(
            leader, "fetch", fields, timeout_s=_PATIENCE_S, version=_LAST_VERSION_WITH_NAMES
        )
        if answer.error_code:
            raise KafkaError(ErrorCode(answer.error_code), f"broker {leader} refuses to be asked")
        return answer.responses[0].partitions[0]

    async def _take(self, data: bytes) -> None:
        # Anyone may write to the topic, so its batches are opened within limits and in a thread.
        batches = await self._environment.open_in_turn(partial(_records, data, self._position))
        for next_offset, records in batches:
            for record in records:
                try:
                    self._known.apply(record.key, record.value)
                except (ValueError, KeyError, TypeError) as error:
                    _log.warning("schemas_record_skipped offset=%d reason=%s", record.offset, error)
            self._position = max(self._position, next_offset)

    def _begin_anew(self, topic_id: UUID | None, position: int) -> None:
        self._topic_id, self._position, self._known = topic_id, position, SchemaIds()


def _records(data: bytes, first: int) -> list[tuple[int, list[Record]]]:
    """By batch: the offset to go on with behind what was read of it, and its records from offset `first` on. Of many
    records only the first: the next fetch has the others."""
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
