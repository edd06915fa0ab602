"""Handlers of share groups and of share state.

ShareGroupHeartbeat (76), ShareGroupDescribe (77); Describe, Alter and Delete ShareGroupOffsets (90 to 92). Initialize,
Read, Write, Delete and ReadSummary ShareGroupState (83 to 87): a share-partition leader on this broker calls the share
coordinator directly; these are for leaders on other brokers, and for tools.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.wire_types import (
    AlterShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateRequestTopicsPartitions,
    DescribeShareGroupOffsetsRequest,
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateRequestTopicsPartitions,
    ReadShareGroupStateRequest,
    ReadShareGroupStateRequestTopicsPartitions,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryRequestTopicsPartitions,
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
    WriteShareGroupStateRequest,
    WriteShareGroupStateRequestTopicsPartitions,
)
from millstream.node.coordination.core.state_machine import KnownEpochs
from millstream.node.data.internal_client import OffsetLookup
from millstream.node.groups.coordinator import GroupCoordinator
from millstream.node.groups.core.group import MAX_TEXT_LENGTH
from millstream.node.groups.core.share_group import ShareGroup
from millstream.node.queues.coordinator import ShareCoordinator
from millstream.node.queues.core.runs import RecordState, StateBatch
from millstream.node.queues.core.state import UNINITIALIZED, ShareKey, next_epoch
from millstream.node.queues.partitions import SharePartitions
from millstream.node.queues.persister import ShareGroupStates, SharePersister
from millstream.node.server.request import Context, Response

_ALL_GROUP_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
_NO_TOPIC = UUID(int=0)
_AT_ONCE = 50


class ShareGroupHandlers:
    def __init__(
        self,
        groups: GroupCoordinator,
        states: ShareGroupStates,
        persister: SharePersister,
        shared: SharePartitions,
        ends: OffsetLookup,
    ) -> None:
        self._groups = groups
        self._states = states
        self._persister = persister
        self._shared = shared
        self._ends = ends

    async def share_group_heartbeat(self, request: ShareGroupHeartbeatRequest, context: Context) -> Response:
        host = f"/{context.peer.host}"
        try:
            response = await self._groups.run(
                request.group_id,
                lambda shard, now_ms: shard.share.heartbeat(request, context.client_id, host, now_ms),
            )
            if response.get("assignment"):
                await self._states.ready(request.group_id)
            return response
        except KafkaError as error:
            return {"error_code": error.code, "error_message": error.message}

    async def share_group_describe(self, request: ShareGroupDescribeRequest, context: Context) -> Response:
        rows: list[dict[str, Any]] = []
        for group_id in request.group_ids:
            try:
                row = await self._describe(group_id)
                if request.include_authorized_operations:
                    row["authorized_operations"] = _ALL_GROUP_OPERATIONS
            except KafkaError as error:
                row = {
                    "group_id": group_id,
                    "error_code": error.code,
                    "error_message": error.message,
                    "group_state": "Dead",
                }
            rows.append(row)
        return {"groups": rows}

    async def _describe(self, group_id: str) -> dict[str, Any]:
        return await self._groups.read(group_id, lambda shard: shard.share.describe(group_id))

    # Offsets

    async def describe_share_group_offsets(
        self, request: DescribeShareGroupOffsetsRequest, context: Context
    ) -> Response:
        rows = []
        for requested in request.groups:
            row: dict[str, Any] = {"group_id": requested.group_id, "topics": []}
            try:
                group = await self._find(requested.group_id)
                named: list[tuple[str, UUID | None, list[int]]]
                if requested.topics is None:
                    named = [(each.name, at, sorted(each.partitions)) for at, each in group.state_topics.items()]
                else:
                    named = [
                        (each.topic_name, self._id_of(each.topic_name), each.partitions) for each in requested.topics
                    ]
                for name, topic_id, indexes in named:
                    described: list[dict[str, Any]] = []
                    for at in range(0, len(indexes), _AT_ONCE):  # in parallel: each needs up to two other brokers
                        some = indexes[at : at + _AT_ONCE]
                        described += await asyncio.gather(
                            *(self._described(requested.group_id, topic_id, name, index) for index in some)
                        )
                    row["topics"].append(
                        {"topic_name": name, "topic_id": topic_id or _NO_TOPIC, "partitions": described}
                    )
            except KafkaError as error:
                row |= {"error_code": error.code, "error_message": error.message, "topics": []}
            rows.append(row)
        return {"groups": rows}

    async def _described(self, group_id: str, topic_id: UUID | None, name: str, index: int) -> dict[str, Any]:
        row: dict[str, Any] = {"partition_index": index, "start_offset": UNINITIALIZED, "lag": -1}
        try:
            topic = self._groups.topics.get(name)
            if topic is None or topic_id is None or not 0 <= index < topic.partition_count:
                raise _unknown(name, index)
            state = await self._persister.summary(ShareKey(group_id, topic_id, index))
            if state is None:
                return row
            row |= {"start_offset": state.start_offset, "leader_epoch": state.leader_epoch}
            if state.start_offset != UNINITIALIZED:
                ends = await self._ends.find(name, index)
                start = max(state.start_offset, ends.start)
                done = max(state.complete_count, 0)
                row |= {"lag": max(0, ends.high_watermark - start - done), "leader_epoch": ends.leader_epoch}
        except KafkaError as error:
            row |= {"error_code": error.code, "error_message": error.message}
        return row

    async def alter_share_group_offsets(self, request: AlterShareGroupOffsetsRequest, context: Context) -> Response:
        try:
            await self._alterable(request.group_id)
        except KafkaError as error:
            return {"error_code": error.code, "error_message": error.message}
        kept: dict[UUID, tuple[str, list[int]]] = {}
        refused: dict[tuple[str, int], KafkaError] = {}
        for topic in request.topics:
            for partition in topic.partitions:
                try:
                    found = self._groups.topics.get(topic.topic_name)
                    if found is None or not 0 <= partition.partition_index < found.partition_count:
                        raise _unknown(topic.topic_name, partition.partition_index)
                    if partition.start_offset < 0:
                        raise KafkaError(ErrorCode.INVALID_REQUEST, f"invalid start offset {partition.start_offset}")
                    kept.setdefault(found.id, (topic.topic_name, []))[1].append(partition.partition_index)
                except KafkaError as error:
                    refused[topic.topic_name, partition.partition_index] = error
        if kept:
            try:  # before the state is written, so that no state is unknown to its group
                await self._groups.run(
                    request.group_id, lambda shard, now_ms: shard.share.add_state(request.group_id, kept)
                )
                await self._states.ready(request.group_id)
            except KafkaError as error:
                return {"error_code": error.code, "error_message": error.message}
        responses = []
        for topic in request.topics:
            topic_id = self._id_of(topic.topic_name) or _NO_TOPIC
            rows = []
            for partition in topic.partitions:
                index = partition.partition_index
                row: dict[str, Any] = {"partition_index": index}
                try:
                    if (refusal := refused.get((topic.topic_name, index))) is not None:
                        raise refusal
                    await self._set_start(ShareKey(request.group_id, topic_id, index), partition.start_offset)
                except KafkaError as error:
                    row |= {"error_code": error.code, "error_message": error.message}
                rows.append(row)
            responses.append({"topic_name": topic.topic_name, "topic_id": topic_id, "partitions": rows})
        return {"responses": responses}

    async def _set_start(self, key: ShareKey, start_offset: int) -> None:
        state = await self._persister.summary(key)
        await self._persister.initialize(key, 0 if state is None else next_epoch(state.state_epoch), start_offset)
        self._shared.reset(key.group_id, [(key.topic_id, key.partition)])

    async def delete_share_group_offsets(self, request: DeleteShareGroupOffsetsRequest, context: Context) -> Response:
        try:
            group = await self._find(request.group_id)
            group.check_deletion()
        except KafkaError as error:
            return {"error_code": error.code, "error_message": error.message}
        responses = []
        forgotten: set[UUID] = set()
        for topic in request.topics:
            topic_id = self._id_of(topic.topic_name)
            row: dict[str, Any] = {"topic_name": topic.topic_name, "topic_id": topic_id or _NO_TOPIC}
            if topic_id is None:
                row |= {
                    "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    "error_message": f"topic {topic.topic_name!r} does not exist",
                }
            elif topic_id in group.state_topics:
                forgotten.add(topic_id)
            responses.append(row)
        if forgotten:
            try:  # the state is deleted when the group has noted this, see ShareGroupStates
                await self._groups.run(
                    request.group_id, lambda shard, now_ms: shard.share.remove_state(request.group_id, forgotten)
                )
            except KafkaError as error:
                return {"error_code": error.code, "error_message": error.message}
        return {"responses": responses}

    async def _find(self, group_id: str) -> ShareGroup:
        return await self._groups.read(group_id, lambda shard: shard.share.find(group_id))

    async def _alterable(self, group_id: str) -> None:
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
        group = await self._groups.read(group_id, lambda shard: shard.groups.get(group_id))
        if group is None:
            return
        if not isinstance(group, ShareGroup) and not group.is_simple:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group.")
        group.check_deletion()

    def _id_of(self, name: str) -> UUID | None:
        topic = self._groups.topics.get(name)
        return None if topic is None else topic.id


def _unknown(name: str, index: int) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {index} of topic {name!r} does not exist")


Operation = Callable[[ShareKey, Any], Awaitable[dict[str, Any]]]
_StateRequest = (
    InitializeShareGroupStateRequest
    | ReadShareGroupStateRequest
    | WriteShareGroupStateRequest
    | DeleteShareGroupStateRequest
    | ReadShareGroupStateSummaryRequest
)
_MAX_BATCHES = 10_000
"""As many as records can be in flight (`group.share.partition.max.record.locks`)."""
_STATES = frozenset(RecordState) - {RecordState.ACQUIRED}


class ShareStateHandlers:
    def __init__(self, coordinator: ShareCoordinator, epochs: KnownEpochs) -> None:
        self._coordinator = coordinator
        self._epochs = epochs

    async def initialize_share_group_state(
        self, request: InitializeShareGroupStateRequest, context: Context
    ) -> Response:
        return await _each(request, self._initialize)

    async def _initialize(self, key: ShareKey, row: InitializeShareGroupStateRequestTopicsPartitions) -> dict[str, Any]:
        await self._coordinator.initialize(key, row.state_epoch, row.start_offset)
        return {}

    async def read_share_group_state(self, request: ReadShareGroupStateRequest, context: Context) -> Response:
        return await _each(request, self._read)

    async def _read(self, key: ShareKey, row: ReadShareGroupStateRequestTopicsPartitions) -> dict[str, Any]:
        self._epochs.check_share_leader(key.topic_id, key.partition, row.leader_epoch)
        state = await self._coordinator.read(key, row.leader_epoch)
        return {
            "state_epoch": state.state_epoch,
            "start_offset": state.start_offset,
            "state_batches": [
                {
                    "first_offset": batch.first,
                    "last_offset": batch.last,
                    "delivery_state": batch.state,
                    "delivery_count": batch.deliveries,
                }
                for batch in state.batches
            ],
        }

    async def write_share_group_state(self, request: WriteShareGroupStateRequest, context: Context) -> Response:
        return await _each(request, self._write)

    async def _write(self, key: ShareKey, row: WriteShareGroupStateRequestTopicsPartitions) -> dict[str, Any]:
        self._epochs.check_share_leader(key.topic_id, key.partition, row.leader_epoch)
        if len(row.state_batches) > _MAX_BATCHES:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"{len(row.state_batches)} batches of states; the limit is {_MAX_BATCHES}"
            )
        batches = [
            StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
            for each in row.state_batches
        ]
        for batch in batches:
            if not 0 <= batch.first <= batch.last or batch.state not in _STATES or batch.deliveries < 0:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"invalid state: {batch}")
        await self._coordinator.write(
            key,
            state_epoch=row.state_epoch,
            leader_epoch=row.leader_epoch,
            start_offset=row.start_offset,
            complete_count=row.delivery_complete_count,
            batches=batches,
        )
        return {}

    async def delete_share_group_state(self, request: DeleteShareGroupStateRequest, context: Context) -> Response:
        return await _each(request, self._delete)

    async def _delete(self, key: ShareKey, row: DeleteShareGroupStateRequestTopicsPartitions) -> dict[str, Any]:
        await self._coordinator.delete(key)
        return {}

    async def read_share_group_state_summary(
        self, request: ReadShareGroupStateSummaryRequest, context: Context
    ) -> Response:
        return await _each(request, self._summary)

    async def _summary(self, key: ShareKey, row: ReadShareGroupStateSummaryRequestTopicsPartitions) -> dict[str, Any]:
        state = await self._coordinator.summary(key)
        if state is None:
            return {"start_offset": UNINITIALIZED}
        return {
            "state_epoch": state.state_epoch,
            "leader_epoch": state.leader_epoch,
            "start_offset": state.start_offset,
            "delivery_complete_count": state.complete_count,
        }


async def _each(request: _StateRequest, operation: Operation) -> Response:
    results = []
    for topic in request.topics:
        rows = []
        for row in topic.partitions:
            response: dict[str, Any] = {"partition": row.partition}
            try:
                if not 0 < len(request.group_id or "") <= MAX_TEXT_LENGTH or row.partition < 0:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "invalid group id or partition")
                response |= await operation(ShareKey(request.group_id, topic.topic_id, row.partition), row)
            except KafkaError as error:
                response |= {"error_code": error.code, "error_message": error.message}
            rows.append(response)
        results.append({"topic_id": topic.topic_id, "partitions": rows})
    return {"results": results}
