"""JoinGroup (11), Heartbeat (12), LeaveGroup (13), SyncGroup (14): the classic protocol of groups."""

from collections.abc import Awaitable, Callable
from typing import Any

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.schema import Message
from millstream.node.coordination.core.outcome import Outcome
from millstream.node.groups.core.classic.member import Client
from millstream.node.groups.core.group_shard import GroupShard
from millstream.node.groups.group_coordinator import GroupCoordinator
from millstream.node.server.request import Context, Response

_FIRST_LEAVE_WITH_MEMBERS = 3
_FIRST_SYNC_WITH_PROTOCOL = 5

Operation = Callable[[GroupShard, int], Outcome[dict[str, Any]]]


class ClassicGroupHandlers:
    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups

    async def join_group(self, request: Message, context: Context) -> Response:
        client = Client(context.client_id, f"/{context.peer.host}")
        answer = await self._answer(
            request, lambda shard, now_ms: shard.classic.join(request, client, context.version, now_ms)
        )
        if answer["error_code"] == ErrorCode.GROUP_MAX_SIZE_REACHED:
            return {**answer, "member_id": ""}
        return {"member_id": request.member_id, **answer}

    async def sync_group(self, request: Message, context: Context) -> Response:
        if context.version >= _FIRST_SYNC_WITH_PROTOCOL and None in (request.protocol_type, request.protocol_name):
            return {"error_code": ErrorCode.INCONSISTENT_GROUP_PROTOCOL}
        return await self._answer(request, lambda shard, now_ms: shard.classic.sync(request, now_ms))

    def heartbeat(self, request: Message, context: Context) -> Response | Awaitable[Response]:
        if not request.group_id:
            return {"error_code": ErrorCode.INVALID_GROUP_ID}
        return self._groups.respond(
            request.group_id,
            lambda shard, now_ms: shard.classic.heartbeat(request, now_ms),
            lambda error: {"error_code": error.code},
        )

    async def leave_group(self, request: Message, context: Context) -> Response:
        if context.version >= _FIRST_LEAVE_WITH_MEMBERS:
            leaving = [(member.member_id, member.group_instance_id) for member in request.members]
        else:
            leaving = [(request.member_id, None)]
        try:
            _check_group_id(request)
            rows = await self._groups.run(
                request.group_id, lambda shard, now_ms: shard.classic.leave(request.group_id, leaving, now_ms)
            )
        except KafkaError as error:
            return {"error_code": error.code, "members": []}
        if context.version >= _FIRST_LEAVE_WITH_MEMBERS:
            return {"members": rows}
        return {"error_code": rows[0]["error_code"]}

    async def _answer(self, request: Message, operation: Operation) -> dict[str, Any]:
        try:
            _check_group_id(request)
            return await self._groups.run(request.group_id, operation)
        except KafkaError as error:
            return {"error_code": error.code}


def _check_group_id(request: Message) -> None:
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
