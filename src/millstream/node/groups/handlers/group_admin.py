"""DescribeGroups (15), ListGroups (16), DeleteGroups (42): what tools ask about groups."""

import asyncio
from typing import Any

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.schema import Message
from millstream.node.groups.core.group import ALL_GROUP_OPERATIONS
from millstream.node.groups.group_coordinator import GroupCoordinator
from millstream.node.server.request import Context, Response


class GroupAdminHandlers:
    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups

    async def describe_groups(self, request: Message, context: Context) -> Response:
        rows = []
        # A group that is named twice is shown once: the answer is far longer than the question.
        for group_id in dict.fromkeys(request.groups):
            row = await self._described(group_id, context.version)
            if request.include_authorized_operations:
                row["authorized_operations"] = ALL_GROUP_OPERATIONS
            rows.append(row)
            await asyncio.sleep(0)  # others have their turn
        return {"groups": rows}

    async def _described(self, group_id: str, version: int) -> dict[str, Any]:
        try:
            return await self._groups.read(group_id, lambda shard: shard.classic.describe(group_id, version))
        except KafkaError as error:
            return {"group_id": group_id, "error_code": error.code, "error_message": error.message}

    async def list_groups(self, request: Message, context: Context) -> Response:
        states = frozenset(state.lower() for state in request.states_filter)
        types = frozenset(kind.lower() for kind in request.types_filter)
        try:
            listed = await self._groups.read_all(lambda shard: shard.list_groups(states, types))
        except KafkaError as error:
            return {"error_code": error.code, "groups": []}
        return {"groups": [row for rows in listed for row in rows]}

    async def delete_groups(self, request: Message, context: Context) -> Response:
        rows = []
        for group_id in dict.fromkeys(request.groups_names):
            code = ErrorCode.NONE
            try:
                await self._delete(group_id)
            except KafkaError as error:
                code = error.code
            await asyncio.sleep(0)
            rows.append({"group_id": group_id, "error_code": code})
        return {"results": rows}

    async def _delete(self, group_id: str) -> None:
        is_gone = False
        while not is_gone:
            is_gone = await self._groups.run(group_id, lambda shard, now_ms: shard.delete_group(group_id, now_ms))
            await asyncio.sleep(0)
