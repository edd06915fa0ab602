"""ListOffsets (2), OffsetForLeaderEpoch (23), DeleteRecords (21): offsets in the logs that this node leads.

A lookup by timestamp may read the disk, so it runs in a thread.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from enum import IntEnum
from functools import partial
from typing import TypeVar

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.wire_types import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsResponseTopics,
    DeleteRecordsResponseTopicsPartitions,
    ListOffsetsRequest,
    ListOffsetsRequestTopicsPartitions,
    ListOffsetsResponse,
    ListOffsetsResponseTopics,
    ListOffsetsResponseTopicsPartitions,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderEpochResponseTopics,
    OffsetForLeaderEpochResponseTopicsPartitions,
)
from millstream.formats.records.opening import OpeningLimits
from millstream.node.environment import Environment
from millstream.node.replicas.acknowledgement import CommitWaiter
from millstream.node.replicas.partition import Partition
from millstream.node.replicas.partition_table import PartitionDirectory, PartitionTable
from millstream.node.server.request import Context

DELETE_UP_TO_HIGH_WATERMARK = -1
READ_UNCOMMITTED = 0
_ROWS_PER_TURN = 200
T = TypeVar("T")


class Special(IntEnum):
    """Special timestamps of ListOffsets."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


class OffsetHandlers:
    def __init__(
        self,
        partitions: PartitionTable,
        environment: Environment,
        cluster: PartitionDirectory,
        remember_starts: "Callable[[], asyncio.Future[OSError | None]]",
        limits: Callable[[], OpeningLimits],
        tier_timeout_s: Callable[[], float] = lambda: 30.0,
    ) -> None:
        """`remember_starts` stores the log start offsets, so that deleted records stay deleted after a crash; its
        future is done when they are on disk. `limits` apply to a batch that is opened to find a timestamp."""
        self._partitions = partitions
        self._environment = environment
        self._cluster = cluster
        self._remember_starts = remember_starts
        self._limits = limits
        self._tier_timeout_s = tier_timeout_s

    def _led(self, topic: str, index: int, leader_epoch: int = -1) -> Partition:
        """The partition, if this node leads it in the leader epoch of the request."""
        name = topic.encode()
        is_here = index in self._partitions.by_name.get(name, {})
        if not is_here and self._cluster.state_in_metadata(name, False, index) is not None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this node has no replica of the partition")
        partition = self._partitions.find(topic, index)
        partition.check_is_leader()
        partition.check_leader_epoch(leader_epoch)
        return partition

    async def list_offsets(self, request: ListOffsetsRequest, context: Context) -> ListOffsetsResponse:
        named = Counter((topic.name, row.partition_index) for topic in request.topics for row in topic.partitions)
        topics: list[ListOffsetsResponseTopics] = []
        for topic in request.topics:
            rows: list[ListOffsetsResponseTopicsPartitions] = []
            for row in topic.partitions:
                try:
                    if named[topic.name, row.partition_index] > 1:
                        raise KafkaError(ErrorCode.INVALID_REQUEST, "the request names the partition twice")
                    rows.append(await self._list_offset(topic.name, row, request))
                except (KafkaError, OSError) as error:
                    rows.append({"partition_index": row.partition_index, "error_code": _code(error), "offset": -1})
            topics.append({"name": topic.name, "partitions": rows})
        return {"topics": topics}

    async def _list_offset(
        self, topic: str, row: ListOffsetsRequestTopicsPartitions, request: ListOffsetsRequest
    ) -> ListOffsetsResponseTopicsPartitions:
        index = row.partition_index
        partition = self._led(topic, index, row.current_leader_epoch)
        log = await partition.open()
        epoch = partition.leader_epoch
        match row.timestamp:
            case Special.LATEST if request.replica_id >= 0:
                return _found(index, log.log_end_offset, epoch)
            case Special.LATEST:
                _check_knows_end(partition)
                return _found(index, _end_for(partition, request), epoch)
            case Special.EARLIEST:
                if log.tier is not None and log.log_start_offset < log.local_start_offset:
                    await self._in_tier(log.tier.when_known())
                return _found(index, log.log_start_offset, log.epochs.epoch_of(log.log_start_offset))
            case Special.EARLIEST_LOCAL:
                return _found(index, log.local_start_offset, log.epochs.epoch_of(log.local_start_offset))
            case Special.LATEST_TIERED | Special.EARLIEST_PENDING_UPLOAD:
                if log.tier is None:
                    return _found(index, -1, -1)
                await self._in_tier(log.tier.when_known())
                end = log.tier.end_offset
                offset = end - 1 if row.timestamp == Special.LATEST_TIERED else max(end, log.log_start_offset)
                return _found(index, offset, log.epochs.epoch_of(offset))
            case Special.MAX_TIMESTAMP:
                search = log.time_search(self._limits())
                found = await self._environment.open_in_turn(search.max_timestamp_offset)
                if log.tier is not None and log.log_start_offset < log.local_start_offset:
                    older = await self._in_tier(log.tier.greatest_timestamp(self._limits()))
                    if found is None or (older is not None and older.timestamp >= found.timestamp):
                        found = older
            case timestamp if timestamp >= 0:
                found = None
                if log.tier is not None and log.log_start_offset < log.local_start_offset:
                    found = await self._in_tier(log.tier.offset_by_timestamp(timestamp, self._limits()))
                if found is None:
                    search = log.time_search(self._limits())
                    found = await self._environment.open_in_turn(partial(search.offset_by_timestamp, timestamp))
            case unknown:
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"there is no special timestamp {unknown}")
        if found is None or found.offset >= _end_for(partition, request):
            if found is not None:
                _check_knows_end(partition)
            return _found(index, -1, -1)
        return _found(index, found.offset, found.leader_epoch, found.timestamp)

    async def _in_tier(self, search: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._tier_timeout_s()):
                return await search
        except TimeoutError:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                "the tier did not respond in time (remote.list.offsets.request.timeout.ms)",
            ) from None

    def offset_for_leader_epoch(
        self, request: OffsetForLeaderEpochRequest, context: Context
    ) -> OffsetForLeaderEpochResponse:
        topics: list[OffsetForLeaderEpochResponseTopics] = []
        for topic in request.topics:
            rows: list[OffsetForLeaderEpochResponseTopicsPartitions] = []
            for row in topic.partitions:
                try:
                    partition = self._led(topic.topic, row.partition, row.current_leader_epoch)
                    epoch, end_offset = self._end_of_epoch(partition, row.leader_epoch, request.replica_id)
                    rows.append({"partition": row.partition, "leader_epoch": epoch, "end_offset": end_offset})
                except (KafkaError, OSError) as error:
                    rows.append({"partition": row.partition, "error_code": _code(error)})
            topics.append({"topic": topic.topic, "partitions": rows})
        return {"topics": topics}

    def _end_of_epoch(self, partition: Partition, epoch: int, replica_id: int) -> tuple[int, int]:
        log = partition.log  # opens it: before, the high watermark is not known
        if replica_id < 0 and partition.is_in_doubt:
            raise partition.doubt_error("a consumer would go back to the end of this log")
        if epoch == partition.leader_epoch and replica_id < 0:
            # For a consumer, the current epoch ends at the high watermark.
            return epoch, partition.high_watermark
        if epoch < 0:
            return -1, -1  # no epoch given
        return log.end_offset_of_epoch(epoch)

    async def delete_records(self, request: DeleteRecordsRequest, context: Context) -> DeleteRecordsResponse:
        """Responds when no live replica has the records any more and the log start offset is on disk, or after the
        timeout."""
        waits: list[
            tuple[DeleteRecordsResponseTopicsPartitions, Partition, CommitWaiter, asyncio.Future[KafkaError | None]]
        ] = []
        topics: list[DeleteRecordsResponseTopics] = []
        for topic in request.topics:
            rows: list[DeleteRecordsResponseTopicsPartitions] = []
            for row in topic.partitions:
                result: DeleteRecordsResponseTopicsPartitions = {
                    "partition_index": row.partition_index,
                    "low_watermark": -1,
                }
                rows.append(result)
                if len(rows) % _ROWS_PER_TURN == 0:
                    await asyncio.sleep(0)
                try:
                    partition = self._led(topic.name, row.partition_index)
                    offset = self._delete_before(partition, row.offset)
                    result["low_watermark"] = partition.low_watermark
                    done: asyncio.Future[KafkaError | None] = self._environment.loop.create_future()
                    waiter = partition.when_deleted(offset, partial(_resolve, done))
                    if waiter is not None:
                        waits.append((result, partition, waiter, done))
                except (KafkaError, OSError) as error:
                    _fail(result, _code(error))
            topics.append({"name": topic.name, "partitions": rows})
            await asyncio.sleep(0)
        deleted = [row for topic in topics for row in topic["partitions"] if "error_code" not in row]
        if not deleted:
            return {"topics": topics}
        remembered = self._remember_starts()
        pending = [done for _, _, _, done in waits]
        await asyncio.wait({remembered}.union(pending), timeout=max(request.timeout_ms, 0) / 1000)
        for result, partition, waiter, done in waits:
            waiter.cancel()
            failure = done.result() if done.done() else KafkaError(ErrorCode.REQUEST_TIMED_OUT, "a replica is behind")
            if failure is None:
                result["low_watermark"] = partition.low_watermark
            else:
                _fail(result, _code(failure))
        if not remembered.done():
            _refuse(deleted, ErrorCode.REQUEST_TIMED_OUT)
        elif remembered.result() is not None:
            _refuse(deleted, ErrorCode.KAFKA_STORAGE_ERROR)
        return {"topics": topics}

    def _delete_before(self, partition: Partition, offset: int) -> int:
        """Deletes on this node; returns the offset up to which the followers delete."""
        if partition.is_internal:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "records of internal topics cannot be deleted")
        if partition.is_mirror:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, "the log of a mirror topic begins where the source's does")
        log = partition.log
        if "delete" not in log.config.cleanup_policy:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, "records of a topic that is only compacted cannot be deleted")
        if offset == DELETE_UP_TO_HIGH_WATERMARK:
            offset = partition.high_watermark
        if offset > partition.high_watermark and partition.is_in_doubt:
            raise partition.doubt_error(f"{offset} is not in its log")
        if offset < 0 or offset > partition.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{offset} is not in the log")
        log.delete_records_before(offset)
        return log.log_start_offset


def _found(index: int, offset: int, leader_epoch: int, timestamp: int = -1) -> ListOffsetsResponseTopicsPartitions:
    return {"partition_index": index, "offset": offset, "timestamp": timestamp, "leader_epoch": leader_epoch}


def _fail(row: DeleteRecordsResponseTopicsPartitions, error: int) -> None:
    row["low_watermark"], row["error_code"] = -1, error


def _refuse(rows: list[DeleteRecordsResponseTopicsPartitions], error: ErrorCode) -> None:
    for row in rows:
        _fail(row, row.get("error_code", error))


def _resolve(done: "asyncio.Future[KafkaError | None]", error: KafkaError | None) -> None:
    if not done.done():
        done.set_result(error)


def _end_for(partition: Partition, request: ListOffsetsRequest) -> int:
    """The offset up to which a consumer may read."""
    return partition.high_watermark if request.isolation_level == READ_UNCOMMITTED else partition.last_stable_offset


def _check_knows_end(partition: Partition) -> None:
    """A new leader may not know the high watermark yet: for consumers, the end must not go back."""
    if not partition.knows_what_is_committed:
        raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, "the leader is new, and has no high watermark yet: try again")


def _code(error: KafkaError | OSError) -> int:
    """A failing disk, or files of a topic that is being deleted, fail only their row."""
    return error.code if isinstance(error, KafkaError) else ErrorCode.KAFKA_STORAGE_ERROR
