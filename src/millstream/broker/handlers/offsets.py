"""ListOffsets (2), OffsetForLeaderEpoch (23), DeleteRecords (21): positions in the logs this node leads.

A look-up by time may read the disk, so it is done where it does not hold up the event loop.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import Any

from millstream.api.request import Context, Response
from millstream.broker.partition import Partition
from millstream.broker.partition_table import PartitionTable
from millstream.environment import Environment
from millstream.model.errors import ErrorCode, KafkaError
from millstream.protocol.schema import Message

DELETE_UP_TO_HIGH_WATERMARK = -1


class Special(IntEnum):
    """What ListOffsets asks for in place of a timestamp."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


class OffsetHandlers:
    def __init__(
        self, partitions: PartitionTable, environment: Environment, remember_starts: Callable[[], None]
    ) -> None:
        """`remember_starts` writes down where logs begin, so that deleted records stay deleted after a crash."""
        self._partitions = partitions
        self._environment = environment
        self._remember_starts = remember_starts

    async def list_offsets(self, request: Message, context: Context) -> Response:
        asked = Counter((topic.name, row.partition_index) for topic in request.topics for row in topic.partitions)
        topics = []
        for topic in request.topics:
            rows = []
            for row in topic.partitions:
                try:
                    if asked[topic.name, row.partition_index] > 1:
                        raise KafkaError(ErrorCode.INVALID_REQUEST, "the partition is asked for twice")
                    found = await self._list_offset(topic.name, row)
                    rows.append({"partition_index": row.partition_index, **found})
                except (KafkaError, OSError) as error:
                    rows.append({"partition_index": row.partition_index, "error_code": _code(error), "offset": -1})
            topics.append({"name": topic.name, "partitions": rows})
        return {"topics": topics}

    async def _list_offset(self, topic: str, row: Message) -> dict[str, Any]:
        partition = self._partitions.find(topic, row.partition_index)
        partition.check_leader_epoch(row.current_leader_epoch)
        log = await partition.open()
        match row.timestamp:
            case Special.LATEST:
                return {"offset": partition.high_watermark, "leader_epoch": partition.leader_epoch}
            case Special.EARLIEST | Special.EARLIEST_LOCAL:
                return {"offset": log.log_start_offset, "leader_epoch": log.epochs.epoch_of(log.log_start_offset)}
            case Special.LATEST_TIERED | Special.EARLIEST_PENDING_UPLOAD:
                return {"offset": -1, "leader_epoch": -1}  # nothing is tiered here
            case Special.MAX_TIMESTAMP:
                found = await self._environment.offload(log.time_search().max_timestamp_offset)
            case timestamp if timestamp >= 0:
                found = await self._environment.offload(partial(log.time_search().offset_by_timestamp, timestamp))
            case unknown:
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"there is no special timestamp {unknown}")
        if found is None or found.offset >= partition.high_watermark:
            return {"offset": -1, "timestamp": -1, "leader_epoch": -1}
        return {"offset": found.offset, "timestamp": found.timestamp, "leader_epoch": found.leader_epoch}

    def offset_for_leader_epoch(self, request: Message, context: Context) -> Response:
        topics = []
        for topic in request.topics:
            rows = []
            for row in topic.partitions:
                try:
                    partition = self._partitions.find(topic.topic, row.partition)
                    partition.check_leader_epoch(row.current_leader_epoch)
                    epoch, end_offset = self._end_of_epoch(partition, row.leader_epoch)
                    rows.append({"partition": row.partition, "leader_epoch": epoch, "end_offset": end_offset})
                except (KafkaError, OSError) as error:
                    rows.append({"partition": row.partition, "error_code": _code(error)})
            topics.append({"topic": topic.topic, "partitions": rows})
        return {"topics": topics}

    def _end_of_epoch(self, partition: Partition, epoch: int) -> tuple[int, int]:
        log = partition.log  # first of all: how far a partition is committed is not known before its log is open
        if epoch == partition.leader_epoch:
            # A consumer must not be told of what is not committed, so the epoch that is still open ends there.
            return epoch, partition.high_watermark
        if epoch < 0:
            return -1, -1  # no epoch is meant
        return log.end_offset_of_epoch(epoch)

    async def delete_records(self, request: Message, context: Context) -> Response:
        topics = []
        for topic in request.topics:
            rows = []
            for row in topic.partitions:
                try:
                    partition = self._partitions.find(topic.name, row.partition_index)
                    low_watermark = self._delete_before(partition, row.offset)
                    rows.append({"partition_index": row.partition_index, "low_watermark": low_watermark})
                except (KafkaError, OSError) as error:
                    rows.append(
                        {"partition_index": row.partition_index, "low_watermark": -1, "error_code": _code(error)}
                    )
            topics.append({"name": topic.name, "partitions": rows})
            await asyncio.sleep(0)
        self._remember_starts()
        return {"topics": topics}

    def _delete_before(self, partition: Partition, offset: int) -> int:
        if partition.is_internal:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "records of internal topics cannot be deleted")
        log = partition.log
        if "delete" not in log.config.cleanup_policy:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, "records of a topic that is only compacted cannot be deleted")
        if offset == DELETE_UP_TO_HIGH_WATERMARK:
            offset = partition.high_watermark
        if offset < 0 or offset > partition.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{offset} is not in the log")
        log.delete_records_before(offset)
        return log.log_start_offset


def _code(error: KafkaError | OSError) -> int:
    """A disk that fails, or files that go while they are looked at because their topic is deleted, end one row only."""
    return error.code if isinstance(error, KafkaError) else ErrorCode.KAFKA_STORAGE_ERROR
