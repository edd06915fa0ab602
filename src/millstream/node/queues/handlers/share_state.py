"""Initialize, Read, Write, Delete and ReadSummary ShareGroupState (83 to 87): the share coordinator, on the wire.

A leader on this node calls the coordinator directly; these are for leaders on others, and for tools.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.schema import Message
from millstream.node.coordination.known_epochs import KnownEpochs
from millstream.node.groups.core.group import LONGEST_TEXT
from millstream.node.queues.core.record_state import RecordState, StateBatch
from millstream.node.queues.core.share_state import UNINITIALIZED, ShareKey
from millstream.node.queues.share_coordinator import ShareCoordinator
from millstream.node.server.request import Context, Response

Operation = Callable[[ShareKey, Message], Awaitable[dict[str, Any]]]
_MOST_BATCHES = 10_000
"""As many as records can be in flight (`group.share.partition.max.record.locks`)."""
_STATES = frozenset(RecordState) - {RecordState.ACQUIRED}


class ShareStateHandlers:
    def __init__(self, coordinator: ShareCoordinator, epochs: KnownEpochs) -> None:
        self._coordinator = coordinator
        self._epochs = epochs

    async def initialize_share_group_state(self, request: Message, context: Context) -> Response:
        return await _each(request, self._initialize)

    async def _initialize(self, key: ShareKey, row: Message) -> dict[str, Any]:
        await self._coordinator.initialize(key, row.state_epoch, row.start_offset)
        return {}

    async def read_share_group_state(self, request: Message, context: Context) -> Response:
        return await _each(request, self._read)

    async def _read(self, key: ShareKey, row: Message) -> dict[str, Any]:
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

    async def write_share_group_state(self, request: Message, context: Context) -> Response:
        return await _each(request, self._write)

    async def _write(self, key: ShareKey, row: Message) -> dict[str, Any]:
        self._epochs.check_share_leader(key.topic_id, key.partition, row.leader_epoch)
        if len(row.state_batches) > _MOST_BATCHES:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"{len(row.state_batches)} batches of states; the limit is {_MOST_BATCHES}"
            )
        batches = [
            StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
            for each in row.state_batches
        ]
        for batch in batches:
            if not 0 <= batch.first <= batch.last or batch.state not in _STATES or batch.deliveries < 0:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"there is no such state: {batch}")
        await self._coordinator.write(
            key,
            state_epoch=row.state_epoch,
            leader_epoch=row.leader_epoch,
            start_offset=row.start_offset,
            complete_count=row.delivery_complete_count,
            batches=batches,
        )
        return {}

    async def delete_share_group_state(self, request: Message, context: Context) -> Response:
        return await _each(request, self._delete)

    async def _delete(self, key: ShareKey, row: Message) -> dict[str, Any]:
        await self._coordinator.delete(key)
        return {}

    async def read_share_group_state_summary(self, request: Message, context: Context) -> Response:
        return await _each(request, self._summary)

    async def _summary(self, key: ShareKey, row: Message) -> dict[str, Any]:
        state = await self._coordinator.summary(key)
        if state is None:
            return {"start_offset": UNINITIALIZED}
        return {
            "state_epoch": state.state_epoch,
            "leader_epoch": state.leader_epoch,
            "start_offset": state.start_offset,
            "delivery_complete_count": state.complete_count,
        }


async def _each(request: Message, operation: Operation) -> Response:
    results = []
    for topic in request.topics:
        rows = []
        for row in topic.partitions:
            answer: dict[str, Any] = {"partition": row.partition}
            try:
                if not 0 < len(request.group_id or "") <= LONGEST_TEXT or row.partition < 0:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "there is no such group id or partition")
                answer |= await operation(ShareKey(request.group_id, topic.topic_id, row.partition), row)
            except KafkaError as error:
                answer |= {"error_code": error.code, "error_message": error.message}
            rows.append(answer)
        results.append({"topic_id": topic.topic_id, "partitions": rows})
    return {"results": results}
