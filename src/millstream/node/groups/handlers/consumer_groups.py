"""ConsumerGroupHeartbeat (68) and ConsumerGroupDescribe (69): groups that the broker assigns."""

import asyncio
from contextlib import suppress
from typing import Any

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.schema import Message
from millstream.node.groups.core.classic.member import Client
from millstream.node.groups.core.group import ALL_GROUP_OPERATIONS
from millstream.node.groups.group_coordinator import GroupCoordinator
from millstream.node.server.request import Context, Response


class ConsumerGroupHandlers:
    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups

    async def consumer_group_heartbeat(self, request: Message, context: Context) -> Response:
        client = Client(context.client_id, f"/{context.peer.host}")
        if request.subscribed_topic_regex:
            with suppress(KafkaError):  # what is wrong with it, the heartbeat says in its turn
                await self._groups.learn_pattern(request.group_id, request.subscribed_topic_regex)
        try:
            return await self._groups.run(
                request.group_id,
                lambda shard, now_ms: shard.consumer.heartbeat(request, client, context.version, now_ms),
            )
        except KafkaError as error:
            return {"error_code": error.code, "error_message": error.message}

    async def consumer_group_describe(self, request: Message, context: Context) -> Response:
        # A group that is named twice is shown once: the answer is far longer than the question.
        rows = []
        for group_id in dict.fromkeys(request.group_ids):
            row = await self._described(group_id)
            if request.include_authorized_operations and not row.get("error_code"):
                row["authorized_operations"] = ALL_GROUP_OPERATIONS
            rows.append(row)
            await asyncio.sleep(0)  # others have their turn
        return {"groups": rows}

    async def _described(self, group_id: str) -> dict[str, Any]:
        try:
            if not group_id:
                raise KafkaError(ErrorCode.INVALID_GROUP_ID, "The group id is empty.")
            return await self._groups.read(group_id, lambda shard: shard.consumer.describe(group_id))
        except KafkaError as error:
            return {"group_id": group_id, "error_code": error.code, "error_message": error.message}
